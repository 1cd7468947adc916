"""Sums of the vectors of each subject, and an index that searches them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.large_arrays import empty, group_blocks
from facerec.base.libraries import Library

faiss = Library("faiss", "'facerec[faiss]', or search with index exact")


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

    def search(self, probes: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the rows that score highest, ``(n, count)``, −1 where fewer were seen."""
        return np.asarray(self._index.search(np.ascontiguousarray(probes), count)[1], np.int64)
