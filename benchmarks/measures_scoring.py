"""The measurements of scoring all pairs behind ``benchmarks/run.py``.

Each runs in a process of its own, so that its peak memory is that of the work, of the embeddings
and of the libraries, and of nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from rows import Row

_SCORE = """
import json, sys, time
import numpy as np, torch
from facerec.verification.scoring import score_all_pairs

images, subjects, dimensions, threads, arguments = json.loads(sys.argv[1])
torch.set_num_threads(threads)
generator = np.random.default_rng(0)
person = np.concatenate([np.arange(subjects), generator.integers(subjects, size=images - subjects)])
generator.shuffle(person)
centres = generator.standard_normal((subjects, dimensions), np.float32)
vectors = np.empty((images, dimensions), np.float32)
for start in range(0, images, 4096):
    who = person[start : start + 4096]
    noise = generator.standard_normal((len(who), dimensions), np.float32)
    vectors[start : start + 4096] = centres[who] + 1.5 * noise + 0.15
start, used = time.perf_counter(), time.process_time()
found = score_all_pairs(vectors, person, **arguments)
seconds, used = time.perf_counter() - start, time.process_time() - used
assert [point.target for point in found.points] == list(arguments["fpr"])
assert all(0 <= point.fpr_realised <= float(point.target) for point in found.points)
line = next(x for x in open("/proc/self/status") if x.startswith("VmHWM"))
print(json.dumps({"pairs": found.mated + found.non_mated, "seconds": seconds, "used": used,
                  "peak": int(line.split()[1]) / 1024}))
"""

DIMENSIONS = 512
TARGETS = ("1e-1", "1e-2", "1e-3", "1e-4", "1e-5", "1e-6")


def all_pairs(*, images: int = 13_233, subjects: int = 5_749) -> list[Row]:
    """Score all pairs of as many images as LFW has, with tables by subject at each target.

    Args:
        images: random embeddings in clusters, one a subject.
        subjects: each has an image at least.
    """
    return _rows(12.0, 1000, images, subjects)


def many_pairs(*, images: int = 100_000, subjects: int = 20_000) -> list[Row]:
    """Score five thousand million pairs; arguments as for `all_pairs`."""
    return _rows(360.0, 3000, images, subjects)


def fixed_thresholds(*, images: int = 30_000, subjects: int = 6_000) -> list[Row]:
    """Count errors at two thresholds by subject; arguments as for `all_pairs`."""
    found = _measure(images, subjects, {"fpr": (), "thresholds": (0.18, 0.2)})
    return [
        Row(
            f"errors of {found['pairs']:,} pairs, {DIMENSIONS}-d, at 2 thresholds, by subject",
            found["pairs"] / found["seconds"],
            "pairs/s",
            2e10 / 240,
            "higher",
            _remark(found),
        )
    ]


def _rows(seconds: float, megabytes: float, images: int, subjects: int) -> list[Row]:
    found = _measure(images, subjects, {"fpr": TARGETS})
    name = f"all {found['pairs']:,} pairs of {images:,} images, {DIMENSIONS}-d"
    targets = f"{len(TARGETS)} exact thresholds, errors by subject at each; {_remark(found)}"
    return [
        Row(name, found["seconds"], "s", seconds, remark=targets),
        Row(f"{name}: peak memory", found["peak"], "MB", megabytes, remark="of the whole process"),
    ]


def _measure(images: int, subjects: int, arguments: dict[str, Any]) -> dict[str, float]:
    call = json.dumps([images, subjects, DIMENSIONS, 2, arguments])
    done = subprocess.run([sys.executable, "-c", _SCORE, call], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def _remark(found: dict[str, float]) -> str:
    return f"2 threads, {found['used']:.1f} s of CPU time"
