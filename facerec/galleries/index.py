"""FAISS as the index of a large gallery (extra ``faiss``): it chooses whom to score exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.errors import MissingExtraError

_SEED = 1234
"""Of the k-means that places the cells of ``ivf``."""


class FaissIndex:
    """An index by inner product over unit templates.

    Args:
        templates: float32 ``(N, D)`` of length 1.
        kind: ``flat`` compares with all; ``ivf`` with those in the nearest of about 4√N cells, of
            which it looks at a sixteenth, 8 at the least; ``hnsw`` walks a graph of 32 neighbours
            each.

    Raises:
        MissingExtraError: FAISS is not installed.
    """

    def __init__(self, templates: NDArray[np.float32], kind: str) -> None:
        try:
            import faiss
        except ImportError as problem:
            raise MissingExtraError(
                f"searching by {kind} needs FAISS; run: pip install 'facerec[faiss]', or search "
                "with index exact"
            ) from problem
        self.kind = kind
        count, size = templates.shape
        self._index: Any
        if kind == "flat":
            self._index = faiss.IndexFlatIP(size)
        elif kind == "hnsw":
            self._index = faiss.IndexHNSWFlat(size, 32, faiss.METRIC_INNER_PRODUCT)
            self._index.hnsw.efConstruction = 80
            self._index.hnsw.efSearch = 128
        else:
            # k-means wants some dozens of templates a cell.
            cells = max(1, min(round(4 * math.sqrt(count)), count // 39))
            quantizer = faiss.IndexFlatIP(size)
            self._index = faiss.IndexIVFFlat(quantizer, size, cells, faiss.METRIC_INNER_PRODUCT)
            self._index.cp.seed = _SEED
            self._index.train(templates)
            self._index.nprobe = min(cells, max(8, cells // 16))
        self._index.add(templates)

    def search(
        self, probes: NDArray[np.float32], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return rows ``(n, count)``, −1 where fewer were seen, and lowest products ``(n,)``."""
        if self.kind == "hnsw":
            self._index.hnsw.efSearch = max(128, 2 * count)
        scores, rows = self._index.search(np.ascontiguousarray(probes), count)
        return rows.astype(np.int64), scores[:, -1]
