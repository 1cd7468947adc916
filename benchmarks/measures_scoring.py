"""The measurements of scoring all pairs behind ``benchmarks/run.py``.

Each runs in a process of its own, so that its peak memory is that of the work, of the embeddings
and of the libraries, and of nothing else.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from apart import apart, clusters, peak
from numpy.typing import NDArray
from rows import Row

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
    found = apart(scored, images, subjects, {"fpr": (), "thresholds": (0.18, 0.2)})
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
    pairs, wrong = apart(wrong_counts, images)
    name = f"counts at 7 thresholds of {pairs:,} pairs that float64 has otherwise"
    differ = apart(wrong_searches, searches, entries)
    return [
        Row(name, wrong, "counts", 1),
        Row(f"searches of {searches:,} that float64 answers otherwise", differ, "", 1),
    ]


def wrong_counts(images: int) -> tuple[int, int]:
    """Return the pairs of a crowd, and how many of the counts at thresholds float64 denies."""
    from facerec.verification.scoring import score_all_pairs

    vectors = _crowd(images, 0)
    subjects = np.random.default_rng(1).integers(images // 5, size=images)
    given = (-0.25, 0.0, 0.125, 0.25, 1.0)
    found = score_all_pairs(vectors, subjects, fpr=("1e-2", "1e-4"), thresholds=given)
    # NaN accepts nobody: more pairs than a target allows score 1.
    edges = np.nan_to_num([table.threshold for table in found.tables], nan=np.inf)
    unit, names = _units(vectors), subjects[vectors.any(axis=1)]
    counts = np.zeros((edges.size, 2), np.int64)
    for start in range(0, len(unit), 1024):
        block = _scores(unit[start : start + 1024], unit)
        same = names[start : start + 1024, None] == names
        later = np.arange(len(unit)) > np.arange(start, start + len(block))[:, None]
        other, mated = block[later & ~same], block[later & same]
        for line, edge in zip(counts, edges, strict=True):
            line += np.count_nonzero(other >= edge), np.count_nonzero(mated < edge)
    told = [(table.false_matches, int(table.missed.sum())) for table in found.tables]
    return found.mated + found.non_mated, int((counts != told).sum())


def wrong_searches(searches: int, entries: int) -> int:
    """Return how many searches of one crowd in another float64 answers otherwise."""
    from facerec.cosines import UnitRows, best

    right, differ = _crowd(entries, 2), 0
    right = right[right.any(axis=1)]
    sides = UnitRows(right), _units(right)
    for start in range(0, searches, 50_000):
        left = _crowd(min(50_000, searches - start), 3 + start)
        left = left[left.any(axis=1)]
        columns, values = best(UnitRows(left), sides[0], 5)
        for first in range(0, len(left), 4096):
            part = slice(first, first + 4096)
            table = _scores(_units(left[part]), sides[1])
            order = np.argsort(-table, axis=1, kind="stable")[:, :5]
            wrong = np.take_along_axis(table, order, axis=1) != values[part]
            differ += np.count_nonzero((wrong | (order != columns[part])).any(axis=1))
    return int(differ)


def _crowd(count: int, seed: int) -> NDArray[np.float32]:
    """Likenesses, equal and opposite rows, signs whose cosines tie, extreme sizes, zero rows."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((count, DIMENSIONS), np.float32)
    rows += 0.3 * np.random.default_rng(9).standard_normal((1, DIMENSIONS), np.float32)
    rows[: count // 8] = generator.choice([-1.0, 1.0], size=(count // 8, DIMENSIONS))
    rows[count // 8 : count // 7] = rows[-1]
    rows[count // 7 : count // 6] = -rows[-2]
    rows *= 10.0 ** generator.choice([-30, -3, 0, 3, 15], size=(count, 1)).astype(np.float32)
    rows[generator.integers(count - 9, size=5)] = 0
    return rows[generator.permutation(count)]


def _scores(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    products = left @ right.T
    products *= 2.0**24
    return np.rint(products, out=products) / 2.0**24


def _units(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    kept = rows[rows.any(axis=1)].astype(np.float64)
    return kept / np.linalg.norm(kept, axis=1, keepdims=True)


def _rows(seconds: float, megabytes: float, images: int, subjects: int) -> list[Row]:
    found = apart(scored, images, subjects, {"fpr": TARGETS})
    name = f"all {found['pairs']:,} pairs of {images:,} images, {DIMENSIONS}-d"
    targets = f"{len(TARGETS)} exact thresholds, errors by subject at each; {_remark(found)}"
    return [
        Row(name, found["seconds"], "s", seconds, remark=targets),
        Row(f"{name}: peak memory", found["peak"], "MB", megabytes, remark="of the whole process"),
    ]


def scored(images: int, subjects: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """Score all pairs of clusters on two threads; return pairs, seconds and MB."""
    import torch

    from facerec.verification.scoring import score_all_pairs

    torch.set_num_threads(2)
    generator = np.random.default_rng(0)
    more = generator.integers(subjects, size=images - subjects)
    person = generator.permutation(np.concatenate([np.arange(subjects), more]))
    vectors = clusters(person, DIMENSIONS, generator, 1.5, 0.15)
    start, used = time.perf_counter(), time.process_time()
    found = score_all_pairs(vectors, person, **arguments)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    assert [point.target for point in found.points] == list(arguments["fpr"])
    assert all(0 <= point.fpr_realised <= float(point.target) for point in found.points)
    pairs = found.mated + found.non_mated
    return {"pairs": pairs, "seconds": seconds, "used": used, "peak": peak() / 2**20}


def _remark(found: dict[str, float]) -> str:
    return f"2 threads, {found['used']:.1f} s of CPU time"
