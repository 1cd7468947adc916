"""Comparisons of all pairs of a set, counted for a calibration, and how well one holds there."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from facerec.devices import choose_device
from facerec.progress import Progress
from facerec.statistics.calibration import CELLS, CENTRES, LikelihoodRatio, ScoreCounts, cllr
from facerec.statistics.costs import min_cllr
from facerec.statistics.curves import RocCurve
from facerec.verification.scoring.tiles import Sample, Tiles, tile_size, total

MOST_SUBJECTS = 5000
"""Subjects that are compared, at most; others add little to what so many tell."""
MOST_IMAGES = 5
"""Images of a subject that are compared, at most, so that nobody's comparisons outweigh others'."""


class _Cells:
    """Counts scores by cell and subject."""

    def __init__(self, tiles: Tiles, subjects: int) -> None:
        self._tiles = tiles
        self.mated = np.zeros((subjects, CELLS), np.int32)
        self.non_mated = np.zeros((subjects, CELLS), np.int32)

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        cells = scores.add(1).mul_(CELLS / 2).floor_().clamp_(0, CELLS - 1).to(torch.int64)
        cell = cells.cpu().numpy()
        sides = self._tiles.subject[rows], self._tiles.subject[columns]
        masks = self._tiles.mated(rows, columns)
        if masks is not None:
            mated, excluded = masks
            self._add(self.mated, sides[0][np.nonzero(mated)[0]], cell[mated])
            kept = np.nonzero(~excluded)
            self._add(self.non_mated, sides[0][kept[0]], cell[kept])
            self._add(self.non_mated, sides[1][kept[1]], cell[kept])
            return
        self._add(self.non_mated, np.repeat(sides[0], cell.shape[1]), cell.ravel())
        self._add(self.non_mated, np.repeat(sides[1], cell.shape[0]), cell.T.ravel())

    @staticmethod
    def _add(
        counts: NDArray[np.int32], subject: NDArray[np.integer], cell: NDArray[np.int64]
    ) -> None:
        if subject.size:
            first = int(subject.min())  # a tile holds few subjects
            size = int(subject.max()) + 1 - first
            flat = np.bincount((subject - first) * CELLS + cell, minlength=size * CELLS)
            counts[first : first + size] += flat.reshape(size, CELLS).astype(np.int32)


def count_scores(
    vectors: ArrayLike,
    subjects: ArrayLike,
    *,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> ScoreCounts:
    """Compare every image with every other and count the scores by subject.

    Args:
        vectors: raw embeddings, ``(N, D)``.
        subjects: of the images, ``(N,)``.
        device: where scores are computed.
        progress: see `facerec.progress.Progress`.

    Raises:
        MetricError: no mated or no non-mated pair of usable images.
    """
    sample = Sample(vectors, subjects)
    chosen = choose_device(device)
    tiles = Tiles(sample, chosen, tile_size(chosen), progress)
    kernels = tiles.visit(lambda: _Cells(tiles, len(sample.labels)), "comparing")
    return ScoreCounts(total(kernels, "mated"), total(kernels, "non_mated"), sample.images)


def draw_images(subjects: ArrayLike, seed: int = 0) -> NDArray[np.int64]:
    """Return the rows of at most `MOST_IMAGES` images of at most `MOST_SUBJECTS` subjects.

    Args:
        subjects: of the images, ``(N,)``.
        seed: of the draw.
    """
    order = np.random.default_rng(seed).permutation(len(np.asarray(subjects)))
    names, subject = np.unique(np.asarray(subjects)[order], return_inverse=True)
    rank = np.empty(order.size, np.int64)
    sorted_ = np.argsort(subject, kind="stable")
    starts = np.searchsorted(subject[sorted_], np.arange(len(names)))
    rank[sorted_] = np.arange(order.size) - starts[subject[sorted_]]
    firsts = np.flatnonzero(rank == 0)[:MOST_SUBJECTS]
    taken = np.isin(subject, subject[firsts]) & (rank < MOST_IMAGES)
    return np.sort(order[taken])


def cross_validate(
    vectors: NDArray[np.floating],
    subjects: ArrayLike,
    *,
    folds: int = 10,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> tuple[float, float]:
    """Return the Cllr of people whom the calibration does not know, and the least possible there.

    Each fold of subjects is calibrated on all others; the least is that of the best monotone
    calibration of the comparisons within folds.

    Args:
        vectors: raw embeddings, ``(N, D)``.
        subjects: of the images, ``(N,)``.
        folds: their number.
        seed: of the draw of folds.
        device: where scores are computed.
        progress: see `facerec.progress.Progress`.

    Raises:
        MetricError: too few subjects, or scores that hardly overlap.
    """
    names, subject = np.unique(np.asarray(subjects), return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(names))[subject] % folds
    values, found = [], []
    for number in range(folds):
        inside = fold == number
        if progress is not None:
            progress("calibrating folds", number, folds)
        sides = (
            count_scores(vectors[part], subject[part], device=device) for part in (~inside, inside)
        )
        known, new = sides
        values.append(LikelihoodRatio.fit(known).log_ratio(CENTRES))
        found.append(new.totals)
    mated, non_mated = (np.concatenate(side) for side in zip(*found, strict=True))
    return cllr(np.concatenate(values), mated, non_mated), least_cllr(*np.sum(found, axis=0))


def least_cllr(mated: NDArray[np.float64], non_mated: NDArray[np.float64]) -> float:
    """Return the least Cllr of comparisons counted by cell of the score, ``(CELLS,)`` each."""
    there = np.flatnonzero(mated + non_mated)[::-1]
    accepts = [
        np.concatenate([[0], np.cumsum(side[there])]).astype(np.int64)
        for side in (mated, non_mated)
    ]
    thresholds = np.concatenate([[np.inf], CENTRES[there]])
    curve = RocCurve(thresholds, accepts[1], accepts[0], int(accepts[1][-1]), int(accepts[0][-1]))
    return min_cllr(curve)
