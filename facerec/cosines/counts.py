"""All pairs of a set of images: exact thresholds, false matches and false non-matches."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array

from facerec.base.errors import MetricError
from facerec.base.progress import Progress
from facerec.cosines.tiles import Tile, Tiles, blocks, total
from facerec.cosines.unit_rows import UnitRows, on_grid, real_matrix, row_norms
from facerec.statistics.operating_points import between, just_above

Window = tuple[np.float32, np.float32]
"""Scores from the first one on and below the second one; none if both are equal."""

LOWEST = np.float32(-1.125)
"""Every score of a pair is above it."""

_SHARE = 1024
"""One of so many pairs is in the sample, so that it takes little time beside all pairs."""
_BLOCK = 32
"""Images a side of the blocks of pairs in the sample: a compromise of speed and independence."""
_SAMPLED = 2**26
"""Pairs in the sample, at most."""

PENDING = 2**21
"""Pairs that are collected before they are merged."""
KEPT = 2**26
"""Pairs that are kept until their thresholds are known, at most: 800 MB."""


class Sample:
    """The usable images, sorted by subject, ``(N,)``, and the tiles of all their pairs.

    Args:
        vectors: raw embeddings, ``(M, D)``.
        subjects: of the images, ``(M,)``: numbers or text.
        device: where scores are computed, see `facerec.base.devices.choose_device`.
        tile: rows and columns of a tile; by default 1024 on the CPU, 8192 elsewhere.
        progress: see `facerec.base.progress.Progress`.

    Raises:
        MetricError: shapes that do not fit, or no mated or no non-mated pair of usable images.
    """

    SIZE = 1024
    """Rows and columns of a tile on the CPU."""

    def __init__(
        self,
        vectors: ArrayLike,
        subjects: ArrayLike,
        device: object = "cpu",
        tile: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        raw, names = real_matrix(vectors, "embeddings"), np.asarray(subjects)
        norms = row_norms(raw)
        usable = ~np.isnan(norms)
        self.failures = np.flatnonzero(~usable)
        self.labels, subject, self.images = np.unique(
            names[usable], return_inverse=True, return_counts=True
        )
        self.mated, self.non_mated = pair_counts(self.images)
        mated, non_mated = pair_counts(np.unique(names, return_counts=True)[1])
        self.lost = mated - self.mated, non_mated - self.non_mated
        if not self.mated or not self.non_mated:
            raise MetricError(
                f"{subject.size} usable images of {len(self.images)} subjects make {self.mated} "
                f"mated and {self.non_mated} non-mated pairs ({len(self.failures)} images have no "
                "usable embedding); error rates need at least one of each"
            )
        order = np.argsort(subject, kind="stable")
        self.subject = subject[order].astype(np.int32)
        self.rows = UnitRows(raw, np.flatnonzero(usable)[order], norms, device)
        size = tile or (self.SIZE if self.rows.device == "cpu" else 8192)
        spans = blocks(len(order), size)
        first, second = np.triu_indices(len(spans))
        near = self.subject[spans[first, 1] - 1] == self.subject[spans[second, 0]]
        near |= first == second
        every = np.stack([spans[first], spans[second]], axis=1)
        # Tiles with mated pairs come first, so that those alone can be visited.
        self.near = every[near]
        every = np.concatenate([self.near, every[~near]])
        self.tiles = Tiles(self.rows, self.rows, (size, size), every, progress)

    def mated_pairs(self, tile: Tile) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
        """Return which pairs of a tile are mated and which are not to be counted as non-mated.

        The latter are mated pairs and, on the diagonal, pairs of an image with itself or an earlier
        one. None if all pairs are non-mated.
        """
        rows, columns = tile.rows, tile.columns
        diagonal = rows.start == columns.start
        if not diagonal and self.subject[rows.stop - 1] != self.subject[columns.start]:
            return None
        mated = np.equal.outer(self.subject[rows], self.subject[columns])
        if not diagonal:
            return mated, mated
        later = np.triu(np.ones(mated.shape, bool), 1)
        mated &= later
        return mated, mated | ~later


def pair_counts(images: NDArray[np.integer]) -> tuple[int, int]:
    """Return the numbers of mated and non-mated pairs, given the images of each subject."""
    count = int(images.sum())
    mated = int((images.astype(np.int64) * (images - 1) // 2).sum())
    return mated, count * (count - 1) // 2 - mated


class _PairCounts:
    """Counts events by pair of subjects in a sparse matrix that threads share, up to a limit."""

    def __init__(self, subjects: int, limit: int) -> None:
        self._shape, self._limit, self._total, self._size = (subjects, subjects), limit, 0, 0
        self._merged = csr_array(self._shape, dtype=np.int32)
        self._pending: list[NDArray[np.int32]] = []
        self._lock = threading.Lock()

    def add(self, first: NDArray[np.int32], second: NDArray[np.int32]) -> None:
        with self._lock:
            self._total += first.size
            self._size += first.size
            self._pending.append(np.stack([first, second]))
            # A larger matrix takes longer to add to, so it is done more rarely.
            if self._size >= max(PENDING, self._merged.nnz // 2):
                self._merge()

    def matrix(self) -> csr_array | None:
        """Return the counts, or None if there were more than the limit."""
        self._merge()
        return None if self._total > self._limit else self._merged

    def _merge(self) -> None:
        if self._total > self._limit:
            self._merged = csr_array(self._shape, dtype=np.int32)
        elif self._pending:
            ones, sides = np.ones(self._size, np.int32), np.concatenate(self._pending, axis=1)
            self._merged = self._merged + coo_array((ones, tuple(sides)), self._shape).tocsr()
        self._pending, self._size = [], 0


class _NonMated:
    """Counts the non-mated scores above windows, and keeps the pairs whose score is in one.

    Pairs of subjects are counted in ``pairs``.
    """

    def __init__(
        self, sample: Sample, windows: Sequence[Window], pairs: Sequence[_PairCounts]
    ) -> None:
        self._sample, self._windows, self._pairs = sample, windows, pairs
        self._low, self._high = np.array(windows, np.float64).reshape(-1, 2, 1).transpose(1, 0, 2)
        self._ascending = np.argsort(self._low[:, 0], kind="stable").tolist()
        self.count = np.zeros(len(windows), np.int64)
        self.involved = np.zeros((len(windows), sample.images.size), np.int64)
        self.kept: list[list[tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]]]
        self.kept = [[] for _ in windows]
        self.size = 0

    def __call__(self, tile: Tile) -> None:
        if self._low.min(initial=np.inf) > 1 or self.size > KEPT:
            return
        masks = self._sample.mated_pairs(tile)
        without = None if masks is None else masks[1]
        row, column, scores = tile.reaching(self._low, self._high, without)
        left = self._sample.subject[tile.rows][row]
        right = self._sample.subject[tile.columns][column]
        for line in self._ascending:
            low, high = self._windows[line]
            above = scores >= low
            if not above.all():  # what is below one window is below the next
                scores, left, right = scores[above], left[above], right[above]
            passed = scores >= high
            self._add(line, left[passed], right[passed])
            if low < high:
                inside = np.flatnonzero(~passed)
                self.kept[line].append(
                    (scores[inside].astype(np.float32), left[inside], right[inside])
                )
                self.size += inside.size

    def settle(self, line: int, threshold: np.float32) -> None:
        """Count the pairs that are kept and reach a threshold in a window."""
        for scores, left, right in self.kept[line]:
            self._add(line, left[scores >= threshold], right[scores >= threshold])

    def _add(self, line: int, left: NDArray[np.int32], right: NDArray[np.int32]) -> None:
        if left.size:
            self.count[line] += left.size
            both = np.concatenate([left, right])
            self.involved[line] += np.bincount(both, minlength=self.involved.shape[1])
            self._pairs[line].add(left, right)


@dataclass(frozen=True, eq=False)
class FalseMatches:
    """False matches at one threshold; see `ErrorTable`."""

    cut: np.float32
    """Lowest score that matches."""
    between: tuple[np.float32, np.float32]
    """The highest non-mated score that does not match, and the lowest one that does, −∞ or ∞ where
    there is none; the cut twice where the threshold was given."""
    count: int
    involved: NDArray[np.int64]
    by_pair: csr_array | None

    def threshold(self, mated: NDArray[np.float32]) -> float:
        """Return the threshold to tell people, which accepts what ``cut`` does.

        Args:
            mated: scores, ascending, which it tells apart too.
        """
        score, above = self.between
        if score == -np.inf:
            return -math.inf
        higher = mated[np.searchsorted(mated, score, side="right") :][:1]
        nearest = min([above, *higher])
        return between(score, None if nearest == np.inf else nearest)


def count_non_mated(
    sample: Sample, given: Sequence[np.float32], allowed: Sequence[int], pair_limit: int
) -> list[FalseMatches]:
    """Count false matches at given thresholds, and where so many are ``allowed``.

    A random sample of pairs tells between which edges a threshold will lie. What reaches the upper
    edge is counted at once; what lies between them is kept until the threshold is known. Edges that
    were wrong cost another pass over all pairs.

    Raises:
        MetricError: so many pairs lie about a threshold that they cannot be kept.
    """
    known = [(edge, edge) for edge in given]
    reach, size, stage = 4, sample.images.size, "comparing all pairs"
    while True:
        windows = [*known, *_guess(sample, allowed, reach)]
        # What will be too many is not even begun.
        limits = [pair_limit if more <= pair_limit else 0 for more in (*[0] * len(given), *allowed)]
        pairs = [_PairCounts(size, limit) for limit in limits]
        kernels = sample.tiles.visit(lambda: _NonMated(sample, windows, pairs), stage)  # noqa: B023
        if sum(kernel.size for kernel in kernels) > KEPT:
            raise MetricError(
                f"more than {KEPT:,} non-mated pairs have a score about the threshold of a false "
                "positive rate, which is more than is kept; ask for lower rates"
            )
        count = total(kernels, "count")
        found = [(edge, (edge, edge)) for edge in given]
        for line, more in enumerate(allowed, start=len(given)):
            kept = [scores for kernel in kernels for scores, *_ in kernel.kept[line]]
            inside = np.sort(np.concatenate([np.empty(0, np.float32), *kept]))[::-1]
            place = _place(inside, windows[line][1], more - int(count[line]))
            if more >= sample.non_mated:
                place = np.float32(-np.inf), np.float32(np.inf)
            if place is None:
                break
            found.append((just_above(place[0]), place))
        else:
            break
        reach, stage = 8 * reach, "comparing all pairs again"
    for line in range(len(given), len(windows)):
        for kernel in kernels:
            kernel.settle(line, found[line][0])
    count, involved = total(kernels, "count"), total(kernels, "involved")
    return [
        FalseMatches(cut, ends, int(count[line]), involved[line], pairs[line].matrix())
        for line, (cut, ends) in enumerate(found)
    ]


def _place(
    inside: NDArray[np.float32], top: np.float32, index: int
) -> tuple[np.float32, np.float32] | None:
    """Return the score that is so many places down a window, and the next higher one.

    None where the window does not reach so far, down or up: its scores, descending, are those below
    ``top``.
    """
    if not 0 <= index < inside.size:
        return None
    higher = inside[inside > inside[index]]
    if not higher.size and top <= 1:
        return None
    return inside[index], higher[-1] if higher.size else np.float32(np.inf)


def _guess(sample: Sample, allowed: Sequence[int], reach: int) -> list[Window]:
    """Guess where the scores with so many higher ones are: so many standard deviations about."""
    non_mated = sample.non_mated
    # The sample are all pairs of some random images with some others, many times over.
    count = min(_SAMPLED, non_mated // _SHARE) // _BLOCK**2
    generator = np.random.default_rng(0)
    found = [np.empty(0, np.float32)]
    for _ in range(count if allowed else 0):
        sides = generator.integers(sample.subject.size, size=(2, _BLOCK))
        left, right = (sample.rows.unit(side) for side in sides)
        subject = sample.subject[sides]
        found.append(on_grid(left @ right.T)[np.not_equal.outer(*subject)])
    descending = np.sort(np.concatenate(found))[::-1]
    windows = []
    for count in allowed:
        if count >= non_mated:
            windows.append((LOWEST, LOWEST))
            continue
        middle = (count + 1) / non_mated * descending.size
        # Some more for the smallest counts.
        spread = reach * (math.sqrt(middle) + 1)
        low, high = math.ceil(middle + spread), math.floor(middle - spread)
        bottom = descending[low] if low < descending.size else LOWEST
        # A score above is in the window too: the threshold lies below it.
        above = descending[descending > descending[high]] if high >= 0 else descending[:0]
        windows.append((bottom, just_above(above[-1]) if above.size else np.float32(np.inf)))
    return windows


class _Mated:
    """Collects mated scores and the subject of each."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self.found: list[tuple[NDArray[np.float32], NDArray[np.int32]]] = []

    def __call__(self, tile: Tile) -> None:
        masks = self._sample.mated_pairs(tile)
        assert masks is not None  # no other tiles come here
        row, column = np.nonzero(masks[0])
        subject = self._sample.subject[tile.rows.start + row]
        self.found.append((tile.of(row, column), subject))


def count_mated(
    sample: Sample, edges: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Count the mated scores below thresholds, ``(E,)``.

    Returns:
        All mated scores, ascending; those below each threshold by subject, ``(E, G)``.
    """
    kernels = sample.tiles.visit(lambda: _Mated(sample), "comparing mated pairs", sample.near)
    found = [part for kernel in kernels for part in kernel.found]
    scores, subject = (np.concatenate(side) for side in zip(*found, strict=True))
    size = sample.images.size
    missed = [np.bincount(subject[scores < edge], minlength=size) for edge in edges]
    return np.sort(scores), np.array(missed, np.int64)


def float32_at_least(threshold: float) -> np.float32:
    """Return the lowest float32 that is no less: it decides float32 scores alike."""
    rounded = np.float32(threshold)
    return just_above(rounded) if float(rounded) < threshold else rounded
