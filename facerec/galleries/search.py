"""Candidates for exact scores: the best products of all templates, or of those an index chooses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.errors import MissingExtraError

BLOCK = 8192
"""Templates in a block: with 64 probes their scores take 2 MiB."""

_SEED = 1234
"""Of the k-means that places the cells of an index."""


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
        try:
            import faiss
        except ImportError as problem:
            raise MissingExtraError(
                "searching by faiss needs FAISS; run: pip install 'facerec[faiss]', or search with "
                "index exact"
            ) from problem
        count, size = templates.shape
        # k-means wants some dozens of templates a cell.
        cells = max(1, min(round(4 * math.sqrt(count)), count // 39))
        quantizer = faiss.IndexFlatIP(size)
        self._index: Any = faiss.IndexIVFFlat(quantizer, size, cells, faiss.METRIC_INNER_PRODUCT)
        self._index.cp.seed = _SEED
        self._index.train(templates)
        self._index.nprobe = min(cells, max(8, cells // 16))
        self._index.add(templates)

    def search(
        self, probes: NDArray[np.float32], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return rows ``(n, count)``, −1 where fewer were seen, and lowest products ``(n,)``."""
        scores, rows = self._index.search(np.ascontiguousarray(probes), count)
        return rows.astype(np.int64), scores[:, -1]
