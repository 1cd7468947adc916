"""An index that searches templates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.libraries import Library

faiss = Library("faiss", "'facerec[faiss]', or search with index exact")


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
