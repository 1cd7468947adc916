"""What is looked at in mated scores: histograms and false non-matches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facerec.verification.scoring.bins import BIN_EDGES, add_counts, bins_of
from facerec.verification.scoring.sample import Sample
from facerec.verification.scoring.tiles import Tiles, images_of


class _MatedScores:
    """Counts the mated scores below thresholds ``(E,)``, and collects the scores."""

    def __init__(
        self, tiles: Tiles, sample: Sample, edges: NDArray[np.float32], keep: bool
    ) -> None:
        self._tiles, self._sample, self._edges, self._keep = tiles, sample, edges, keep
        squares = 0 if sample.groups is None else len(sample.groups.names) ** 2
        self.histogram = np.zeros(BIN_EDGES.size, np.int64)
        self.mated_scores = [np.empty(0, np.float32)]
        self.missed = np.zeros((len(edges), sample.images.size), np.int64)
        self.by_group = np.zeros((len(edges), squares), np.int64)

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        masks = self._tiles.mated(rows, columns)
        assert masks is not None  # no other tiles come here
        positions = np.flatnonzero(masks[0])
        flat, sample = scores.view(-1), self._sample
        mated_scores = flat[torch.from_numpy(positions).to(flat.device)].cpu().numpy()
        mated_scores = np.clip(mated_scores, -1, 1)
        if self._keep:
            self.mated_scores.append(mated_scores)
        self.histogram += np.bincount(bins_of(mated_scores), minlength=BIN_EDGES.size)
        first, second = images_of(positions, rows, columns)
        subject = sample.subject[first]
        for index, edge in enumerate(self._edges):
            below = mated_scores < edge
            add_counts(self.missed[index], subject[below])
            if sample.groups is not None:
                groups = sample.group[first[below]], sample.group[second[below]]
                add_counts(self.by_group[index], groups[0] * len(sample.groups.names) + groups[1])


@dataclass(frozen=True, eq=False)
class Mated:
    """What there is to know of the mated scores; see `_MatedScores`."""

    mated_scores: NDArray[np.float32] | None
    histogram: NDArray[np.int64]
    missed: NDArray[np.int64]
    by_group: NDArray[np.int64]


def count_mated(
    tiles: Tiles, sample: Sample, edges: NDArray[np.float32], mated_limit: int
) -> Mated:
    """Count the mated scores below thresholds, ``(E,)``."""
    keep = sample.mated <= mated_limit
    kernels = tiles.visit(
        lambda: _MatedScores(tiles, sample, edges, keep), "comparing mated pairs", near_only=True
    )
    mated_scores = None
    if keep:
        own = np.concatenate([scores for kernel in kernels for scores in kernel.mated_scores])
        mated_scores = np.sort(np.concatenate(tiles.gather([own])))
    histogram, missed, by_group = (
        tiles.total([getattr(kernel, name) for kernel in kernels])
        for name in ("histogram", "missed", "by_group")
    )
    return Mated(mated_scores, histogram, missed, by_group)
