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

_EXACT = """
import json, sys
import numpy as np
from facerec.cosines import UnitRows, best
from facerec.verification.scoring import score_all_pairs

images, searches, entries, dimensions = json.loads(sys.argv[1])

def crowd(count, seed):
    "Likenesses, equal and opposite rows, signs whose cosines tie, extreme sizes, rows of zeros."
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((count, dimensions), np.float32)
    rows += 0.3 * np.random.default_rng(9).standard_normal((1, dimensions), np.float32)
    rows[: count // 8] = generator.choice([-1.0, 1.0], size=(count // 8, dimensions))
    rows[count // 8 : count // 7] = rows[-1]
    rows[count // 7 : count // 6] = -rows[-2]
    rows *= 10.0 ** generator.choice([-30, -3, 0, 3, 15], size=(count, 1)).astype(np.float32)
    rows[generator.integers(count - 9, size=5)] = 0
    return rows[generator.permutation(count)]

def scores(left, right):
    products = left @ right.T
    products *= 2.0**24
    return np.rint(products, out=products) / 2.0**24

def units(rows):
    rows = rows[np.abs(rows).max(axis=1) > 0].astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)

vectors = crowd(images, 0)
subjects = np.random.default_rng(1).integers(images // 5, size=images)
given = (-0.25, 0.0, 0.125, 0.25, 1.0)
found = score_all_pairs(vectors, subjects, fpr=("1e-2", "1e-4"), thresholds=given)
# NaN accepts nobody: more pairs than a target allows score 1.
edges = np.nan_to_num([table.threshold for table in found.tables], nan=np.inf)
unit, names = units(vectors), subjects[np.abs(vectors).max(axis=1) > 0]
false, missed = np.zeros((2, edges.size), np.int64)
for start in range(0, len(unit), 1024):
    block = scores(unit[start : start + 1024], unit)
    same = names[start : start + 1024, None] == names
    later = np.arange(len(unit)) > np.arange(start, start + len(block))[:, None]
    other, mated = block[later & ~same], block[later & same]
    for line, edge in enumerate(edges):
        false[line] += np.count_nonzero(other >= edge)
        missed[line] += np.count_nonzero(mated < edge)
wrong = sum(table.false_matches != count for table, count in zip(found.tables, false))
wrong += sum(table.false_non_matches != count for table, count in zip(found.tables, missed))
right, differ = crowd(entries, 2), 0
right = right[np.abs(right).max(axis=1) > 0]
sides = UnitRows(right), units(right)
for start in range(0, searches, 50_000):
    left = crowd(min(50_000, searches - start), 3 + start)
    left = left[np.abs(left).max(axis=1) > 0]
    columns, values = best(UnitRows(left), sides[0], 5)
    for first in range(0, len(left), 4096):
        part = slice(first, first + 4096)
        table = scores(units(left[part]), sides[1])
        order = np.argsort(-table, axis=1, kind="stable")[:, :5]
        differ += np.count_nonzero((order != columns[part]).any(axis=1) | (
            np.take_along_axis(table, order, axis=1) != values[part]).any(axis=1))
counts = {"pairs": found.mated + found.non_mated, "wrong": int(wrong), "differ": int(differ)}
print(json.dumps(counts))
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


def exact_answers(
    *, images: int = 45_000, searches: int = 1_000_000, entries: int = 1_000
) -> list[Row]:
    """Hold counts and searches of ill-natured vectors against float64, pair by pair.

    Args:
        images: whose pairs are counted at seven thresholds.
        searches: whose five best of so many ``entries`` are compared, and their scores.
        entries: of the gallery.
    """
    call = json.dumps([images, searches, entries, DIMENSIONS])
    done = subprocess.run([sys.executable, "-c", _EXACT, call], check=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    name = f"counts at 7 thresholds of {found['pairs']:,} pairs that float64 has otherwise"
    return [
        Row(name, found["wrong"], "counts", 1),
        Row(f"searches of {searches:,} that float64 answers otherwise", found["differ"], "", 1),
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
