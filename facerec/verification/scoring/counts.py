"""What is looked at in the scores: thresholds, false matches and false non-matches."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from facerec.base.errors import MetricError
from facerec.statistics.operating_points import between, just_above
from facerec.verification.scoring.tiles import Sample, Tiles, images_of, total

Window = tuple[np.float32, np.float32]
"""Scores from the first one on and below the second one; none if both are equal."""

LOWEST = np.float32(-1.125)
"""Every score of a pair is above it."""

# Takes the place of the score where a pair is not to be counted.
_EXCLUDED = -1.25

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


class _PairCounts:
    """Counts events by pair of subjects in a sparse matrix that threads share, up to a limit."""

    def __init__(self, subjects: int, limit: int) -> None:
        self._shape = subjects, subjects
        self._limit, self._total, self._size = limit, 0, 0
        self._merged = csr_array(self._shape, dtype=np.int32)
        self._pending: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        self._lock = threading.Lock()

    def add(self, first: NDArray[np.int32], second: NDArray[np.int32]) -> None:
        with self._lock:
            self._total += first.size
            if self.full:
                self._pending, self._merged = [], csr_array(self._shape, dtype=np.int32)
                return
            self._pending.append((first, second))
            self._size += first.size
            # A larger matrix takes longer to add to, so it is done more rarely.
            if self._size >= max(PENDING, self._merged.nnz // 2):
                self._merge()

    @property
    def full(self) -> bool:
        """Whether there were more than the limit."""
        return self._total > self._limit

    def matrix(self) -> csr_array | None:
        """Return the counts, or None if there were more than the limit."""
        self._merge()
        return None if self.full else self._merged

    def _merge(self) -> None:
        if self._pending:
            rows, columns = (np.concatenate(side) for side in zip(*self._pending, strict=True))
            ones = np.ones(rows.size, np.int32)
            self._merged = self._merged + coo_array((ones, (rows, columns)), self._shape).tocsr()
            self._pending, self._size = [], 0


class _NonMated:
    """Counts the non-mated scores above windows, and keeps the pairs whose score is in one.

    Pairs of subjects are counted in ``pairs``.
    """

    def __init__(
        self,
        tiles: Tiles,
        sample: Sample,
        windows: Sequence[Window],
        pairs: Sequence[_PairCounts],
    ) -> None:
        self._tiles, self._sample, self._windows, self._pairs = tiles, sample, windows, pairs
        self._ascending = np.argsort([high for _, high in windows], kind="stable").tolist()
        self._lowest = min([low for low, _ in windows], default=np.float32(np.inf))
        self.count = np.zeros(len(windows), np.int64)
        self.least = np.full(len(windows), np.inf, np.float32)
        """Lowest of the scores that are counted above each window."""
        self.involved = np.zeros((len(windows), sample.images.size), np.int64)
        self.kept: list[tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]] = []
        self.size = 0
        self._hits = torch.empty(tiles.size**2, dtype=torch.bool, device=tiles.device)

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        if self._lowest > 1 or self.size > KEPT:
            return
        if (masks := self._tiles.mated(rows, columns)) is not None:
            scores.masked_fill_(torch.from_numpy(masks[1]).to(scores.device), _EXCLUDED)
        flat = scores.view(-1)
        positions = _at_least(flat, self._lowest, self._hits[: flat.numel()])
        if not positions.numel():
            return
        cosines = np.clip(flat[positions].cpu().numpy(), -1, 1)
        first, second = images_of(positions.cpu().numpy(), rows, columns)
        inside = np.zeros(cosines.size, bool)
        for low, high in self._windows:
            if low < high:
                inside |= (cosines >= low) & (cosines < high)
        left, right = (side[inside].astype(np.int32) for side in (first, second))
        self.kept.append((cosines[inside], left, right))
        self.size += left.size
        for line in self._ascending:  # what one rejects the next ones do too
            passed = cosines >= self._windows[line][1]
            if not passed.all():
                cosines, first, second = cosines[passed], first[passed], second[passed]
            self.least[line] = min(self.least[line], cosines.min(initial=np.float32(np.inf)))
            self._add(line, first, second)

    def settle(self, line: int, threshold: np.float32) -> None:
        """Count the pairs that are kept and reach a threshold in a window."""
        for scores, first, second in self.kept:
            inside = (scores >= threshold) & (scores < self._windows[line][1])
            self._add(line, first[inside], second[inside])

    def _add(self, line: int, first: NDArray[np.integer], second: NDArray[np.integer]) -> None:
        if not first.size:
            return
        left, right = self._sample.subject[first], self._sample.subject[second]
        self.count[line] += first.size
        _add_counts(self.involved[line], left)
        _add_counts(self.involved[line], right)
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
    tiles: Tiles,
    sample: Sample,
    given: Sequence[np.float32],
    allowed: Sequence[int],
    pair_limit: int,
) -> list[FalseMatches]:
    """Count false matches at given thresholds, and where so many are ``allowed``.

    A random sample of pairs tells between which edges a threshold will lie. What reaches the upper
    edge is counted at once; what lies between them is kept until the threshold is known. Edges that
    were wrong cost another pass over all pairs.

    Raises:
        MetricError: so many pairs lie about a threshold that they cannot be kept.
    """
    known = [(edge, edge) for edge in map(_within_cosines, given)]
    reach, size, stage = 4, sample.images.size, "comparing all pairs"
    while True:
        windows = [*known, *_guess(tiles, sample, allowed, reach)]
        pairs = [_PairCounts(size, pair_limit) for _ in windows]
        kernels = tiles.visit(lambda: _NonMated(tiles, sample, windows, pairs), stage)  # noqa: B023
        if sum(kernel.size for kernel in kernels) > KEPT:
            raise MetricError(
                f"more than {KEPT:,} non-mated pairs have a score about the threshold of a false "
                "positive rate, which is more than is kept; ask for lower rates"
            )
        count = total(kernels, "count")
        kept = [scores for kernel in kernels for scores, *_ in kernel.kept]
        scores = np.sort(np.concatenate([np.empty(0, np.float32), *kept]))[::-1]
        found = [(edge, (edge, edge)) for edge in given]
        for line, more in enumerate(allowed, start=len(given)):
            least = np.float32(min(kernel.least[line] for kernel in kernels))
            place = _place(scores, windows[line], more - int(count[line]), least)
            if more >= sample.non_mated:
                place = np.float32(-np.inf), least
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
    descending: NDArray[np.float32], window: Window, index: int, least: np.float32
) -> tuple[np.float32, np.float32] | None:
    """Return the score that is so many places down a window, and the next higher one.

    ``least`` is the lowest score above the window. None where the window does not reach so far.
    """
    low, high = window
    inside = descending[(descending >= low) & (descending < high)]
    if not 0 <= index < inside.size:
        return None
    higher = inside[inside > inside[index]]
    return inside[index], higher[-1] if higher.size else least


def _guess(tiles: Tiles, sample: Sample, allowed: Sequence[int], reach: int) -> list[Window]:
    """Guess where the scores with so many higher ones are: so many standard deviations about."""
    non_mated = sample.non_mated
    # The sample are all pairs of some random images with some others, many times over.
    blocks = min(_SAMPLED, non_mated // _SHARE) // _BLOCK**2
    generator = np.random.default_rng(0)
    found = [np.empty(0, np.float32)]
    for start in range(0, blocks if allowed else 0, 16):
        shape = 2, min(16, blocks - start), _BLOCK
        sides = generator.integers(tiles.subject.size, size=shape)
        left, right = (
            tiles.unit[torch.from_numpy(side).to(tiles.device).view(-1)].view(*side.shape, -1)
            for side in sides
        )
        scores = torch.bmm(left, right.transpose(1, 2)).cpu().numpy()
        subject = tiles.subject[sides]
        found.append(scores[subject[0][:, :, None] != subject[1][:, None, :]])
    descending = np.sort(np.clip(np.concatenate(found), -1, 1))[::-1]
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
        top = just_above(descending[high]) if high >= 0 else np.float32(np.inf)
        windows.append((_within_cosines(bottom), top))
    return windows


class _Mated:
    """Collects mated scores and the subject of each."""

    def __init__(self, tiles: Tiles, sample: Sample) -> None:
        self._tiles, self._sample = tiles, sample
        self.found: list[tuple[NDArray[np.float32], NDArray[np.int32]]] = []

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        masks = self._tiles.mated(rows, columns)
        assert masks is not None  # no other tiles come here
        positions = np.flatnonzero(masks[0])
        flat = scores.view(-1)
        mated = np.clip(flat[torch.from_numpy(positions).to(flat.device)].cpu().numpy(), -1, 1)
        first, _ = images_of(positions, rows, columns)
        self.found.append((mated, self._sample.subject[first]))


def count_mated(
    tiles: Tiles, sample: Sample, edges: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Count the mated scores below thresholds, ``(E,)``.

    Returns:
        All mated scores, ascending; those below each threshold by subject, ``(E, G)``.
    """
    kernels = tiles.visit(lambda: _Mated(tiles, sample), "comparing mated pairs", near_only=True)
    found = [part for kernel in kernels for part in kernel.found]
    scores, subject = (np.concatenate(side) for side in zip(*found, strict=True))
    size = sample.images.size
    missed = [np.bincount(subject[scores < edge], minlength=size) for edge in edges]
    return np.sort(scores), np.array(missed, np.int64)


def float32_at_least(threshold: float) -> np.float32:
    """Return the lowest float32 that is no less: it decides float32 scores alike."""
    rounded = np.float32(threshold)
    return just_above(rounded) if float(rounded) < threshold else rounded


def _within_cosines(edge: np.float32) -> np.float32:
    """Return a threshold that treats scores beyond ±1 as ±1."""
    if edge > 1:
        return np.float32(np.inf)
    return LOWEST if edge <= -1 else edge


def _add_counts(counts: NDArray[np.int64], indices: NDArray[np.integer]) -> None:
    increments = np.bincount(indices)
    counts[: increments.size] += increments


def _at_least(values: Tensor, edge: np.float32, marks: Tensor) -> Tensor:
    """Return the places of values from ``edge`` on, ``(K,)``, using memory for their marks."""
    if values.device.type != "cpu":
        return torch.ge(values, float(edge), out=marks).nonzero().view(-1)
    # On the CPU numpy is ten times as fast as torch.
    hits = np.greater_equal(values.numpy(), edge, out=marks.numpy())
    return torch.from_numpy(np.flatnonzero(hits))
