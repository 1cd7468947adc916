"""Searches: the best of one side for every row of the other."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pandas as pd
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
    shape = SHAPE if left.device == "cpu" else (8192, 8192)
    Tiles(left, right, shape, progress=progress).visit(lambda: keeper, stage)
    return keeper.columns, keeper.scores


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
    """The best entries of other subjects, and the mate, of every probe."""

    scores: NDArray[np.float32]
    """Of the best with other subjects, the best first, ``(P, k)``; −inf where there are fewer."""
    entries: NDArray[np.int64]
    """Rows of the gallery with these scores, ``(P, k)``; −1 where there are fewer."""
    mate: NDArray[np.float32]
    """Best score with the same subject, ``(P,)``; −inf if there is none."""


def nearest_entries(
    probes: ArrayLike,
    probe_subjects: ArrayLike,
    gallery: ArrayLike,
    gallery_subjects: ArrayLike,
    count: int = 2,
) -> NearestEntries:
    """Search a gallery ``(G, D)``, which may be empty, with every probe ``(P, D)``.

    Scores are cosines. A vector that is zero or not finite has score −∞ with all others. A subject,
    ``(P,)`` and ``(G,)``, may be several times in the gallery; a negative number there is nobody's
    mate.

    Args:
        probes: raw embeddings.
        probe_subjects: numbers.
        gallery: raw embeddings.
        gallery_subjects: numbers.
        count: k, how many entries of other subjects.

    Raises:
        MetricError: no matrix of real numbers.
    """
    usable, sides, labels = [], [], []
    for vectors, subjects in ((probes, probe_subjects), (gallery, gallery_subjects)):
        matrix, own = real_matrix(vectors, "vectors to be searched"), np.asarray(subjects, np.int64)
        norms, order = row_norms(matrix), np.argsort(own, kind="stable")
        usable.append(order[~np.isnan(norms[order])])
        sides.append(UnitRows(matrix, usable[-1], norms))
        labels.append(own[usable[-1]])
    (mine, theirs), (left, right) = usable, sides
    columns, found = best(left, right, count, apart=(labels[0], labels[1]))
    scores = np.full((len(np.asarray(probes)), count), -np.inf, np.float32)
    entries, mate = np.full(scores.shape, -1), np.full(len(scores), -np.inf, np.float32)
    scores[mine, : found.shape[1]] = found
    entries[mine, : found.shape[1]] = np.append(theirs, -1)[columns]
    one, other = (pd.DataFrame({"subject": each, "row": np.arange(len(each))}) for each in labels)
    mates = one[one["subject"] >= 0].merge(other, on="subject")
    row, column = mates["row_x"].to_numpy(), mates["row_y"].to_numpy()
    np.maximum.at(mate, mine[row], cosines(left, right, row, column))
    return NearestEntries(scores, entries, mate)


def search_gallery(
    probes: ArrayLike,
    probe_subjects: ArrayLike,
    gallery: ArrayLike,
    gallery_subjects: ArrayLike,
    ranks: int,
) -> Searches:
    """Search a gallery as `nearest_entries` does, for the rank of every probe's mate.

    A failed probe raises no alarm, and a mate without a score has the last rank. Ranks beyond
    ``ranks`` are one more than that.

    Raises:
        MetricError: no matrix of real numbers.
    """
    found = nearest_entries(probes, probe_subjects, gallery, gallery_subjects, max(ranks, 1))
    subjects = np.asarray(gallery_subjects, np.int64)
    mates = count_equal(np.asarray(probe_subjects, np.int64), subjects[subjects >= 0])
    better = np.count_nonzero(found.scores >= found.mate[:, None], axis=1)
    rank = 1 + np.where(np.isneginf(found.mate), len(subjects) - mates, better)
    return Searches(
        found.scores[:, 0],
        np.where(mates > 0, found.mate, np.float32(np.nan)),
        np.where(mates > 0, rank, 0),
    )
