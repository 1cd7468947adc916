"""What is looked at in non-mated scores: histograms, thresholds, false matches."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from facerec.verification.scoring.bins import (
    BIN_EDGES,
    BIN_WIDTH,
    PENDING,
    DistinctScores,
    Window,
    add_counts,
    merge,
    within_cosines,
)
from facerec.verification.scoring.sample import Sample
from facerec.verification.scoring.search import Search, check_passes
from facerec.verification.scoring.tiles import Tiles, images_of

# Takes the place of the score where a pair is not to be counted.
_EXCLUDED = -1.25
_BIN_OF_EXCLUDED = round(-_EXCLUDED / BIN_WIDTH)
_BIN_OF_LOWEST = _BIN_OF_EXCLUDED - BIN_EDGES.size // 2

_KEPT = 2**24
"""Pairs that a thread keeps until their thresholds are known, at most."""


class _PairCounts:
    """Counts events by pair of subjects in a sparse matrix that threads share, up to a limit."""

    def __init__(self, subjects: int, limit: int) -> None:
        self._shape = subjects, subjects
        self._limit, self._total = limit, 0
        self._merged = csr_array(self._shape, dtype=np.int32)
        self._pending: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        self._size = 0
        self._lock, self._merging = threading.Lock(), threading.Lock()

    def add(self, first: NDArray[np.int32], second: NDArray[np.int32]) -> None:
        with self._lock:
            self._total += first.size
            if self._total > self._limit:
                self._pending, self._merged = [], csr_array(self._shape, dtype=np.int32)
                return
            self._pending.append((first, second))
            self._size += first.size
            # A larger matrix takes longer to add to, so it is done more rarely.
            if self._size < max(PENDING, self._merged.nnz // 2):
                return
            pending, self._pending, self._size = self._pending, [], 0
        self._merge(pending)

    def matrix(self) -> csr_array | None:
        """Return the counts, or None if there were more than the limit."""
        if self._total > self._limit:
            return None
        self._merge(self._pending)
        self._pending = []
        return self._merged

    def _merge(self, pending: Sequence[tuple[NDArray[np.int32], NDArray[np.int32]]]) -> None:
        if pending:
            rows, columns = (np.concatenate(side) for side in zip(*pending, strict=True))
            ones = np.ones(rows.size, np.int32)
            fresh = coo_array((ones, (rows, columns)), self._shape).tocsr()
            with self._merging:
                self._merged = self._merged + fresh


class _Scan:
    """Looks at the non-mated scores: histograms, false matches, and scores that may be thresholds.

    False matches are counted on ``lines``, thresholds or where each will be, and by subject in
    ``pairs``: within groups, and all others. Scores in ``windows`` are kept, and with ``binned``
    there is a histogram.
    """

    def __init__(
        self,
        tiles: Tiles,
        sample: Sample,
        lines: Sequence[Window],
        windows: Sequence[Window],
        binned: bool,
        pairs: Sequence[tuple[_PairCounts, _PairCounts]],
    ) -> None:
        self._tiles, self._sample, self._pairs = tiles, sample, pairs
        self._windows, self._binned = windows, binned
        self._highs = [high for _, high in lines]
        self._ascending = np.argsort(self._highs, kind="stable").tolist()
        self._keeps = any(low < high for low, high in lines)
        self._in_all = [low for low, _ in lines]
        squares = 0 if sample.groups is None else len(sample.groups.names) ** 2
        self.histogram = np.zeros(BIN_EDGES.size, np.int64)
        self.scores = DistinctScores()
        self.dropped = False
        """Whether pairs are lost whose score is in a window."""
        self._kept: list[tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]] = []
        self._size = 0
        self.count = np.zeros(len(lines), np.int64)
        self.involved = np.zeros((len(lines), sample.kinds * sample.images.size), np.int64)
        self.by_group = np.zeros((len(lines), squares), np.int64)
        cells = tiles.size**2
        self._hits = torch.empty(cells, dtype=torch.bool, device=tiles.device)
        if binned:
            self._scaled = torch.empty(cells, device=tiles.device)
            self._bins = torch.empty(cells, dtype=torch.int16, device=tiles.device)

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        if (masks := self._tiles.mated(rows, columns)) is not None:
            scores.masked_fill_(torch.from_numpy(masks[1]).to(scores.device), _EXCLUDED)
        flat = scores.view(-1)
        if self._binned:
            self._bin(flat)
        edge = min([*self._in_all, *(low for low, _ in self._windows)], default=np.float32(np.inf))
        if edge > 1:
            return
        positions = _at_least(flat, edge, self._hits[: flat.numel()])
        if positions.numel():
            cosines = np.clip(flat[positions].cpu().numpy(), -1, 1)
            first, second = images_of(positions.cpu().numpy(), rows, columns)
            self._keep(cosines, first, second)
            for line in self._ascending:  # what one rejects the next ones do too
                passed = cosines >= self._highs[line]
                if not passed.all():
                    cosines, first, second = cosines[passed], first[passed], second[passed]
                self._add(line, first, second)

    def settle(self, line: int, threshold: np.float32) -> None:
        """Count the pairs that are kept and reach a threshold between its edges."""
        for scores, first, second in self._kept:
            inside = (scores >= threshold) & (scores < self._highs[line])
            self._add(line, first[inside], second[inside])

    def _bin(self, flat: Tensor) -> None:
        scaled, bins = self._scaled[: flat.numel()], self._bins[: flat.numel()]
        torch.mul(flat, 1 / BIN_WIDTH, out=scaled).floor_()
        bins.copy_(scaled).add_(_BIN_OF_EXCLUDED)
        counts = torch.bincount(bins, minlength=_BIN_OF_LOWEST + BIN_EDGES.size).cpu().numpy()
        self.histogram += counts[_BIN_OF_LOWEST:]
        # Scores that rounding carries below −1 count as −1.
        self.histogram[0] += counts[1:_BIN_OF_LOWEST].sum()

    def _keep(
        self, cosines: NDArray[np.float32], first: NDArray[np.int64], second: NDArray[np.int64]
    ) -> None:
        inside = np.zeros(cosines.size, bool)
        for low, high in self._windows:
            inside |= (cosines >= low) & (cosines < high)
        scores = cosines[inside]
        self.scores.add(scores)
        if self._keeps and not self.dropped:
            left, right = (side[inside].astype(np.int32) for side in (first, second))
            self._kept.append((scores, left, right))
            self._size += scores.size
            if self._size > _KEPT:
                self._kept, self.dropped = [], True

    def _add(self, line: int, first: NDArray[np.integer], second: NDArray[np.integer]) -> None:
        if not first.size:
            return
        sample = self._sample
        left, right = sample.subject[first], sample.subject[second]
        self.count[line] += first.size
        for side, other in ((left, second), (right, first)):
            kind = sample.kind[sample.group[other]]
            add_counts(self.involved[line], kind * sample.images.size + side)
        # Above the diagonal, whatever the order of the groups.
        low, high = np.minimum(left, right), np.maximum(left, right)
        if sample.groups is not None:
            groups = sample.group[first], sample.group[second]
            add_counts(self.by_group[line], groups[0] * len(sample.groups.names) + groups[1])
            if sample.by_group:
                within = sample.shared[groups]
                self._pairs[line][0].add(low[within], high[within])
                low, high = low[~within], high[~within]
        self._pairs[line][1].add(low, high)


@dataclass(frozen=True, eq=False)
class FalseMatches:
    """False matches at one threshold; see `ErrorTable`."""

    count: int
    involved: NDArray[np.int64]
    """By kind of the other image and by subject, ``(kinds · G,)``."""
    by_group: NDArray[np.int64]
    """By the groups of the first and of the second image, ``(D²,)``."""
    by_pair: csr_array | None
    within: csr_array | None


def count_non_mated(
    tiles: Tiles,
    sample: Sample,
    given: Sequence[np.float32],
    sought: Sequence[int],
    search: Search,
    pair_limit: int,
) -> tuple[NDArray[np.int64], list[FalseMatches]]:
    """Find the operating points of a ``search``, and count false matches at thresholds.

    These are ``given``, or those with so many false accepts as are ``sought``.

    Returns:
        A histogram over `BIN_EDGES`, and the false matches at each threshold.
    """
    known = [within_cosines(edge) for edge in given]

    def line(position: int) -> Window:
        if position < len(known):
            return known[position], known[position]
        return search.window(sought[position - len(known)])

    binned = bool(search.allowed)
    histogram = np.zeros(BIN_EDGES.size, np.int64)
    tables: dict[int, FalseMatches] = {}
    open_lines = {position: line(position) for position in range(len(given) + len(sought))}
    stage = "comparing all pairs"
    while open_lines or binned or search.windows:
        windows = search.windows
        lines = list(open_lines.values())
        size = sample.images.size
        pairs = [
            (_PairCounts(size, sample.non_mated), _PairCounts(size, pair_limit)) for _ in lines
        ]
        kernels = tiles.visit(
            lambda: _Scan(tiles, sample, lines, windows, binned, pairs),  # noqa: B023
            stage,
        )
        histogram += tiles.total([kernel.histogram for kernel in kernels])
        if windows:
            scores = tiles.gather([kernel.scores.merged() for kernel in kernels])
            search.settle(histogram, *merge(scores))
        dropped = tiles.total([np.array([kernel.dropped], np.int64) for kernel in kernels])[0]
        settled = {}
        for index, (position, (low, high)) in enumerate(open_lines.items()):
            threshold, end = line(position)
            if low == high or (threshold == end and not dropped):
                settled[index] = position
                for kernel in kernels:
                    kernel.settle(index, threshold)
        for position, table in _false_matches(tiles, kernels, pairs, settled, pair_limit):
            if position >= len(given):
                expected = search.accepts(sought[position - len(given)])
                check_passes(table.count, expected, tiles.device)
            tables[position] = table
        open_lines = {position: line(position) for position in open_lines if position not in tables}
        binned, stage = False, "comparing all pairs again"
    return histogram, [tables[position] for position in sorted(tables)]


def _false_matches(
    tiles: Tiles,
    kernels: Sequence[_Scan],
    pairs: Sequence[tuple[_PairCounts, _PairCounts]],
    settled: Mapping[int, int],
    pair_limit: int,
) -> Iterator[tuple[int, FalseMatches]]:
    """Add up what all ranks counted on some lines; ``settled`` has what to call each."""
    count, involved, by_group = (
        tiles.total([getattr(kernel, name) for kernel in kernels])
        for name in ("count", "involved", "by_group")
    )
    for index, position in settled.items():
        within, others = pairs[index]
        inside, by_pair = sum(tiles.gather([within.matrix()])), None
        if count[index] <= pair_limit:
            by_pair = inside + sum(tiles.gather([others.matrix()]))
        of_line = int(count[index]), involved[index], by_group[index]
        yield position, FalseMatches(*of_line, by_pair, inside)


def _at_least(values: Tensor, edge: np.float32, marks: Tensor) -> Tensor:
    """Return the places of values from ``edge`` on, ``(K,)``, using memory for their marks."""
    if values.device.type != "cpu":
        return torch.ge(values, float(edge), out=marks).nonzero().view(-1)
    # On the CPU numpy is ten times as fast as torch.
    hits = np.greater_equal(values.numpy(), edge, out=marks.numpy())
    return torch.from_numpy(np.flatnonzero(hits))
