"""The suite for a GPU, at toy size on the CPU: every row is reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

BARE = """
import sys

class Without:
    names = {"cv2", "simplejpeg", "rich", "tyro", "safetensors", "pandas", "matplotlib", "jinja2",
             "psutil", "sklearn", "onnx", "onnxruntime"}

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in self.names else self.finder.find_spec(name, *rest)

sys.meta_path[:] = map(Without, sys.meta_path)
"""
"""Leaves PyTorch, NumPy and SciPy, as in an image that somebody made for them."""

RUN = """
import sys, torch
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)
import run
run.main([*sys.argv[2:], "--toy"])
"""


def measured(program: str, file: Path, *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run measures in a new process; return machine, and the rows by name."""
    arguments = [str(BENCHMARKS), *names, "--json", str(file)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["complete"]
    for row in found["rows"]:
        assert row["measure"] in done.stderr  # told as soon as it was measured
    return found["machine"], {row["measure"]: row for row in found["rows"]}


@pytest.mark.integration
def test_a_dry_run_reaches_every_row_where_little_more_than_torch_is_installed(
    tmp_path: Path,
) -> None:
    machine, rows = measured(BARE + RUN, tmp_path / "found.json", "gpu")
    assert "TOY" in machine["size"] and machine["OpenCV"] is None
    failed = {n: r["remark"] for n, r in rows.items() if "failed" in r["remark"]}
    assert not failed
    assert "simplejpeg" in rows["loader"]["remark"]
    steps = [name for name in rows if name.endswith("facerec's step")]
    for backbone in ("iresnet18", "iresnet50", "iresnet100", "iresnet200", "mbf"):
        assert sum(name.startswith(f"{backbone}, batch") for name in steps) == 3
    for backbone in ("vit_t", "vit_s", "vit_b"):
        assert any(name.startswith(f"{backbone}, batch") for name in steps)
    values = [rows[name]["value"] for name in steps]
    assert all(value > 0 for value in values)
    plain = [name for name in rows if name.endswith("facerec against the plain loop")]
    assert len(plain) >= 9 and all(rows[name]["value"] > 0 for name in plain)
    heads = [name for name in rows if name.startswith("head alone") and "against" in name]
    assert len(heads) >= 18
    assert sum(name.startswith("profile of") for name in rows) == 16
    assert sum(name.startswith("all ") for name in rows) == 2
    assert sum(name.startswith("extraction") for name in rows) == 2
    # A CPU has no bars of an H100.
    assert all(row["met"] is None for row in rows.values())


@pytest.mark.integration
def test_the_loader_is_measured_where_images_can_be_decoded(tmp_path: Path) -> None:
    _, rows = measured(RUN, tmp_path / "found.json", "gpu_loader")
    assert len(rows) == 3 and all(row["value"] > 0 for row in rows.values())
    (fed,) = (row for row in rows.values() if "fed" in row["measure"])
    assert "waiting for data" in fed["remark"]
