"""Sums of the vectors of each subject, and the best products with them: of all, or by an index."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.large_arrays import empty, group_blocks
from facerec.base.libraries import Library
from facerec.base.progress import Progress

if TYPE_CHECKING:  # identification alone needs no torch
    import torch
    from torch import Tensor

faiss = Library("faiss", "'facerec[faiss]', or search with index exact")

BLOCK = 8192
"""Templates in a block: with 64 probes their scores take 2 MiB."""


def group_sums(
    vectors: NDArray[np.floating],
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    weights: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Return the weighted sum of the vectors of each group, ``(G, D)``, in a file if it is large.

    Args:
        vectors: ``(N, D)``.
        rows: of the vectors that take part, group by group, ``(n,)``.
        starts: first of each group among ``rows``, and n at the end, ``(G + 1,)``.
        weights: of ``rows``, ``(n,)``.
    """
    sums = empty((len(starts) - 1, vectors.shape[1]), np.float32)
    for first, last in group_blocks(starts):
        sums[first:last] = 0
        block = slice(starts[first], starts[last])
        some = np.flatnonzero(np.diff(starts[first : last + 1]))
        if some.size:
            weighted = vectors[rows[block]].astype(np.float64) * weights[block, None]
            begins = starts[first + some] - starts[first]
            sums[first + some] = np.add.reduceat(weighted, begins)
    return sums


def nearest(
    templates: NDArray[np.float32], probes: NDArray[np.float32], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows with the highest float32 products, and the lowest of those products.

    Args:
        templates: ``(N, D)``.
        probes: ``(n, D)``.
        count: how many, no more than N.

    Returns:
        ``(n, count)`` in no order, and ``(n,)``: no other product is higher.
    """
    best = np.full((len(probes), count), -np.inf, np.float32)
    rows = np.full((len(probes), count), -1, np.int64)
    for start in range(0, len(templates), BLOCK):
        scores = templates[start : start + BLOCK] @ probes.T
        worst = best.min(axis=1)
        # Most blocks have nobody better for many probes, and few for the others.
        for probe in np.flatnonzero(scores.max(axis=0) > worst):
            better = np.flatnonzero(scores[:, probe] > worst[probe])
            merged = np.concatenate([best[probe], scores[better, probe]])
            known = np.concatenate([rows[probe], start + better])
            top = np.argpartition(merged, -count)[-count:]
            best[probe], rows[probe] = merged[top], known[top]
    return rows, best.min(axis=1)


def best_columns(
    rows: NDArray[np.float32],
    columns: NDArray[np.float32],
    ranks: int,
    device: torch.device,
    stage: str,
    progress: Progress | None,
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return the highest products of each row with columns, and which these are.

    Args:
        rows: ``(R, D)``.
        columns: ``(C, D)``.
        ranks: how many, k; no more than there are columns are returned.
        device: where to compute.
        stage: what that is called.
        progress: called with the tiles done.

    Returns:
        ``(R, k)`` each, the best first, and of equal ones the first.
    """
    from facerec.verification.scoring.tiles import CrossTiles

    shape = len(rows), min(ranks, len(columns))
    tiles = CrossTiles(rows, columns, device, progress=progress)
    first, *others = tiles.visit(lambda: _Best(shape), stage)
    best = first.scores, first.columns
    for kernel in others:
        best = _merged(*best, kernel.scores, kernel.columns)
    return best


class _Best:
    """Keeps the best columns of every row."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.scores = np.full(shape, -np.inf, np.float32)
        self.columns = np.full(shape, -1, np.int32)

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        import torch

        top, column = torch.topk(scores, min(self.scores.shape[1], scores.shape[1]), dim=1)
        new = top.cpu().numpy()
        # Rows that hold better ones already need no more work: nearly all, after a while.
        better = np.flatnonzero(new[:, 0] > self.scores[rows, -1])
        at, more = rows.start + better, columns.start + column.cpu().numpy()[better]
        self.scores[at], self.columns[at] = _merged(
            self.scores[at], self.columns[at], new[better], more.astype(np.int32)
        )


def _merged(
    scores: NDArray[np.float32],
    columns: NDArray[np.int32],
    more: NDArray[np.float32],
    others: NDArray[np.int32],
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return the best of two lists of each row."""
    values = np.concatenate([scores, more], axis=1)
    names = np.concatenate([columns, others], axis=1)
    order = np.lexsort((names, -values), axis=1)[:, : scores.shape[1]]
    return np.take_along_axis(values, order, 1), np.take_along_axis(names, order, 1)


class FaissIndex:
    """An index by inner product over unit templates (extra ``faiss``).

    It compares with those in the nearest of about 4√N cells, of which it looks at a sixteenth, 8 at
    the least.

    Args:
        templates: float32 ``(N, D)`` of length 1.

    Raises:
        MissingExtraError: FAISS is not installed.
    """

    def __init__(self, templates: NDArray[np.float32]) -> None:
        count, size = templates.shape
        # k-means wants some dozens of templates a cell.
        cells = max(1, min(round(4 * math.sqrt(count)), count // 39))
        quantizer = faiss.IndexFlatIP(size)
        self._index: Any = faiss.IndexIVFFlat(quantizer, size, cells, faiss.METRIC_INNER_PRODUCT)
        self._index.cp.seed = 1234  # of the k-means that places the cells
        self._index.train(templates)
        self._index.nprobe = min(cells, max(8, cells // 16))
        self._index.add(templates)

    def search(
        self, probes: NDArray[np.float32], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return rows ``(n, count)``, −1 where fewer were seen, and lowest products ``(n,)``."""
        scores, rows = self._index.search(np.ascontiguousarray(probes), count)
        return rows.astype(np.int64), scores[:, -1]
