"""Searches: the best of one side for every row of the other, and what scores above its mate."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.progress import Progress
from facerec.cosines.tiles import Tile, Tiles
from facerec.cosines.unit_rows import UnitRows, cosines, real_matrix, row_norms
from facerec.statistics.identification import Searches, count_equal

Labels = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Of the rows of both sides; those below 0 equal no other."""

SHAPE = 128, 8192
"""Of a tile on the CPU: the wider, the fewer are among the best of a tile and not of all."""


def best(
    left: UnitRows,
    right: UnitRows,
    count: int,
    *,
    apart: Labels | None = None,
    stage: str = "searching",
    progress: Progress | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows of ``right`` that score highest with each of ``left``, and their scores.

    Args:
        left: ``(n, D)``.
        right: ``(m, D)``.
        count: k, how many; no more than m are returned.
        apart: leave out pairs of equal labels.
        stage: what that is called.
        progress: called with the tiles done.

    Returns:
        ``(n, k)`` each, the best first, and of equal ones the first; −1 and −∞ where there are
        fewer.
    """
    keeper = _Best(len(left), min(count, len(right)), apart)
    Tiles(left, right, _shape(left), progress=progress).visit(lambda: keeper, stage)
    return keeper.columns, keeper.scores


def _shape(left: UnitRows) -> tuple[int, int]:
    return SHAPE if left.device == "cpu" else (8192, 8192)


class _Best:
    """Keeps the best of every row, for all threads together."""

    def __init__(self, rows: int, count: int, apart: Labels | None) -> None:
        self._apart, self._lock = apart, threading.Lock()
        self.scores = np.full((rows, count), -np.inf, np.float32)
        self.columns = np.full((rows, count), -1, np.int64)

    def __call__(self, tile: Tile) -> None:
        count = self.scores.shape[1]
        held = self.scores[tile.rows, -1]
        without = _equal(self._apart, tile)
        row, column, found = tile.reaching(held[None], _INFINITE, without, count)
        better = found >= held[row]
        row, column, found = row[better], column[better], found[better].astype(np.float32)
        if not row.size:
            return
        who, owner = np.unique(row, return_inverse=True)
        at = tile.rows.start + who
        with self._lock:
            owner = np.concatenate([np.repeat(np.arange(who.size), count), owner])
            scores = np.concatenate([self.scores[at].ravel(), found])
            columns = np.concatenate([self.columns[at].ravel(), tile.columns.start + column])
            order = np.lexsort((columns, -scores, owner))
            firsts = np.searchsorted(owner[order], np.arange(who.size))
            chosen = order[firsts[:, None] + np.arange(count)]
            self.scores[at], self.columns[at] = scores[chosen], columns[chosen]


class _Above:
    """Counts the pairs of every row that score at least its edge, for all threads together."""

    def __init__(self, edges: NDArray[np.float32], apart: Labels) -> None:
        self._edges, self._apart, self._lock = edges, apart, threading.Lock()
        self.count = np.zeros(len(edges), np.int64)

    def __call__(self, tile: Tile) -> None:
        edge = self._edges[tile.rows]
        row, _, found = tile.reaching(edge[None], edge[None], _equal(self._apart, tile))
        counts = np.bincount(row[found >= edge[row]], minlength=len(edge))
        with self._lock:
            self.count[tile.rows] += counts


_INFINITE = np.full((1, 1), np.inf)


def _equal(labels: Labels | None, tile: Tile) -> NDArray[np.bool_] | None:
    """Return which pairs of a tile have equal labels; None if none has."""
    if labels is None:
        return None
    mine, theirs = labels[0][tile.rows], labels[1][tile.columns]
    if mine.max() < theirs.min() or theirs.max() < mine.min():
        return None
    equal = (mine[:, None] == theirs) & (theirs >= 0)
    return equal if equal.any() else None


@dataclass(frozen=True, eq=False)
class NearestEntries:
    """The two best entries of other subjects, and the mate, of every probe; ``(P,)`` each.

    An entry alone causes a false alarm at a threshold if the best score reaches it and the second
    one does not.
    """

    best: NDArray[np.float32]
    """Best score with another subject; −inf if there is none."""
    entry: NDArray[np.int64]
    """Row of the gallery with that score, the first of several; −1 if there is none."""
    second: NDArray[np.float32]
    """Second best score with another subject; equals the best one where two tie."""
    mate: NDArray[np.float32]
    """Best score with the same subject; −inf if there is none."""


def search_gallery(
    probes: ArrayLike, probe_subjects: ArrayLike, gallery: ArrayLike, gallery_subjects: ArrayLike
) -> Searches:
    """Search a gallery ``(G, D)`` with every probe ``(P, D)``.

    Scores are cosines. A vector that is zero or not finite has score −∞ with all others: a failed
    probe raises no alarm, and a mate without a score has the last rank. A subject, ``(P,)`` and
    ``(G,)``, may be several times in the gallery; a negative number there is nobody's mate.

    Raises:
        MetricError: no matrix of real numbers.
    """
    pair = _Sides(probes, probe_subjects, gallery, gallery_subjects)
    nearest, entries = pair.nearest(1), len(pair.subjects[1])
    lost = np.isneginf(nearest.mate)
    # The best mate must be known before anyone can be counted as scoring above it.
    above = _Above(np.where(lost, np.float32(np.inf), nearest.mate)[pair.usable[0]], pair.labels)
    Tiles(pair.left, pair.right, SHAPE).visit(lambda: above, "ranking")
    theirs = pair.subjects[1]
    mates = count_equal(pair.subjects[0], theirs[theirs >= 0])
    rank = np.where(lost, entries - mates, 0) + 1
    rank[pair.usable[0]] += above.count
    return Searches(
        nearest.best,
        np.where(mates > 0, nearest.mate, np.float32(np.nan)),
        np.where(mates > 0, rank, 0),
    )


def nearest_entries(
    probes: ArrayLike, probe_subjects: ArrayLike, gallery: ArrayLike, gallery_subjects: ArrayLike
) -> NearestEntries:
    """Search a gallery, which may be empty, as `search_gallery` does, for the two best entries.

    Raises:
        MetricError: no matrix of real numbers.
    """
    return _Sides(probes, probe_subjects, gallery, gallery_subjects).nearest(2)


class _Sides:
    """Probes and a gallery, with the rows of each that have a direction, subject by subject."""

    def __init__(self, *given: ArrayLike) -> None:
        self.subjects = tuple(np.asarray(each, dtype=np.int64) for each in given[1::2])
        self.usable: list[NDArray[np.int64]] = []
        rows = []
        for vectors, subjects in zip(given[::2], self.subjects, strict=True):
            matrix = real_matrix(vectors, "vectors to be searched")
            norms, order = row_norms(matrix), np.argsort(subjects, kind="stable")
            self.usable.append(order[~np.isnan(norms[order])])
            rows.append(UnitRows(matrix, self.usable[-1], norms))
        self.left, self.right = rows
        mine, theirs = (
            subjects[usable] for subjects, usable in zip(self.subjects, self.usable, strict=True)
        )
        self.labels = mine, theirs

    def nearest(self, count: int) -> NearestEntries:
        found = np.full((3, len(self.subjects[0])), -np.inf, np.float32)
        entry = np.full(found.shape[1], -1, np.int64)
        columns, scores = best(self.left, self.right, count, apart=self.labels)
        mine, theirs = self.usable
        found[: scores.shape[1], mine] = scores.T
        if scores.shape[1]:
            entry[mine] = np.where(columns[:, 0] >= 0, theirs[columns[:, 0]], -1)
        # Both sides are sorted, so that the mates of a probe are neighbours.
        first = np.searchsorted(self.labels[1], self.labels[0], "left")
        last = np.searchsorted(self.labels[1], self.labels[0], "right")
        mates = np.where(self.labels[0] >= 0, last - first, 0)
        row = np.repeat(np.arange(len(mine)), mates)
        column = np.arange(row.size) + np.repeat(first - (np.cumsum(mates) - mates), mates)
        np.maximum.at(found[2], mine[row], cosines(self.left, self.right, row, column))
        return NearestEntries(found[0], entry, found[1], found[2])
