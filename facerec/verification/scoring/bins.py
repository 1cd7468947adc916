"""Bins of scores, the windows they make, and counts of distinct scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from facerec.statistics.operating_points import just_above

BIN_WIDTH = 2.0**-13
"""Of the histograms; a power of two, so that the bin of a float32 score is exact."""

BIN_EDGES = np.arange(-(2**13), 2**13 + 1) * BIN_WIDTH
"""Lower edges of the bins, −1, …, 1; the last bin holds the score 1 alone."""

Window = tuple[np.float32, np.float32]
"""Scores from the first one on and below the second one."""

LOWEST = np.float32(-1.125)
"""Every score of a pair is above it."""

PENDING = 2**21
"""Scores or pairs that are collected before they are merged: it bounds memory and is large enough
to be rare."""


def window_of_bins(bottom: int, top: int) -> Window:
    """Return the scores in some bins, from the first to before the last: at or above, below."""
    high = np.float32(BIN_EDGES[top]) if top < BIN_EDGES.size else np.float32(np.inf)
    return within_cosines(np.float32(BIN_EDGES[bottom])), high


def bins_of(scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the bin of each score between −1 and 1, an index into `BIN_EDGES`."""
    clipped = np.clip(scores, -1, 1)
    return np.floor(clipped / np.float32(BIN_WIDTH)).astype(np.int64) + BIN_EDGES.size // 2


def float32_at_least(threshold: float) -> np.float32:
    """Return the lowest float32 that is no less: it decides float32 scores alike."""
    rounded = np.float32(threshold)
    return just_above(rounded) if float(rounded) < threshold else rounded


def within_cosines(edge: np.float32) -> np.float32:
    """Return a threshold that treats scores beyond ±1 as ±1."""
    if edge > 1:
        return np.float32(np.inf)
    return LOWEST if edge <= -1 else edge


def merge(
    tallies: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Add up counts of distinct scores."""
    scores, counts = (np.concatenate(side) for side in zip(*tallies, strict=True))
    distinct, index = np.unique(scores, return_inverse=True)
    summed = np.zeros(distinct.size, np.int64)
    np.add.at(summed, index, counts)
    return distinct, summed


class DistinctScores:
    """Distinct scores and how often each one came; their number is bounded by float32's grain."""

    def __init__(self) -> None:
        self._tallies: list[tuple[NDArray[np.float32], NDArray[np.int64]]] = []
        self._pending: list[NDArray[np.float32]] = []
        self._size = 0

    def add(self, scores: NDArray[np.float32]) -> None:
        """Count some scores."""
        self._pending.append(scores)
        self._size += scores.size
        if self._size >= PENDING:
            self._tallies = [self.merged()]
            self._pending, self._size = [], 0

    def merged(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the distinct scores, ascending, and their counts."""
        fresh = np.concatenate([np.empty(0, np.float32), *self._pending])
        return merge([*self._tallies, np.unique(fresh, return_counts=True)])


def add_counts(counts: NDArray[np.int64], indices: NDArray[np.integer], base: int = 0) -> None:
    """Count indices from ``base`` on, without touching the rest of a long array."""
    increments = np.bincount(indices)
    counts[base : base + increments.size] += increments
