"""What is set before any library is used: reports off, float32 exact, threads as granted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest import MonkeyPatch

from facerec.base import environment
from facerec.base.environment import available_cores, bound_threads


def run(code: str, **variables: str) -> str:
    """Run code in a process of its own and return what it prints."""
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env=os.environ | variables, text=True)


# --- float32 on every processor ----------------------------------------------------------------

CONVOLUTION = """
import torch
torch.nn.functional.conv2d(torch.randn(2, 16, 28, 28), torch.randn(16, 16, 3, 3))
"""


@pytest.mark.integration
def test_no_variable_makes_torch_compute_float32_in_bfloat16() -> None:
    """oneDNN tells in its log what it was allowed, also where the processor has no bfloat16."""
    variables = {"DNNL_DEFAULT_FPMATH_MODE": "BF16", "ONEDNN_VERBOSE": "1"}
    foreign = {"ONEDNN_DEFAULT_FPMATH_MODE": ""}
    if "fpmath:bf16" not in run(CONVOLUTION, **variables, **foreign):
        pytest.skip("this build of torch does not compute convolutions with oneDNN")
    log = run(f"import facerec{CONVOLUTION}", **variables, **foreign)
    assert "convolution" in log and "fpmath:" not in log


# --- cores --------------------------------------------------------------------------------------


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """Control groups of a machine on which this process may use 8 cores."""
    monkeypatch.setattr(environment, "CONTROL_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(environment, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return tmp_path


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"cpu.{name}").write_text(text + "\n")


@pytest.mark.parametrize(
    ("own", "above", "cores"),
    [
        ("max 100000", "max 100000", 8),
        ("200000 100000", "max 100000", 2),
        ("max 100000", "250000 100000", 3),
        ("5000 100000", "max 100000", 1),
        ("damaged", "max 100000", 8),
    ],
)
def test_quotas_of_version_2(groups: Path, own: str, above: str, cores: int) -> None:
    (groups / "own").write_text("0::/pod/container\n")
    write(groups / "cgroup")
    write(groups / "cgroup/pod", max=above)
    write(groups / "cgroup/pod/container", max=own)
    assert available_cores() == cores


def test_threads_follow_the_quota_and_the_user(groups: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    bound_threads()
    # The cores that a process is bound to are heeded by the libraries themselves.
    assert "OMP_NUM_THREADS" not in os.environ
    (groups / "own").write_text("0::/\n")
    write(groups / "cgroup", max="200000 100000")
    bound_threads()
    assert os.environ.pop("OMP_NUM_THREADS") == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    bound_threads()
    assert os.environ["OMP_NUM_THREADS"] == "5"
