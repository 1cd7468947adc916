"""Candidates for exact scores: the best products of all templates, or of those an index chooses."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from facerec.devices import exact_products
from facerec.errors import MissingExtraError

BLOCK = 8192
"""Templates in a block: with 64 probes their scores take 2 MiB."""

_SEED = 1234
"""Of the k-means that places the cells of an index."""


def nearest(
    templates: NDArray[np.float32], probes: NDArray[np.float32], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows with the highest float32 products, and the lowest of those products.

    Threads take blocks in turn and keep their own best; which block went to whom changes nothing,
    since each product is one thread's and has a fixed shape.

    Args:
        templates: ``(N, D)``.
        probes: ``(n, D)``.
        count: how many, no more than N.

    Returns:
        ``(n, count)`` in no order, and ``(n,)``: no other product is higher.
    """
    gallery, queries = torch.from_numpy(templates), torch.from_numpy(probes)
    starts: Iterator[int] = iter(range(0, len(templates), BLOCK))
    lock = threading.Lock()

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        torch.set_num_threads(1)
        best = torch.full((len(probes), count), -torch.inf)
        rows = torch.full((len(probes), count), -1, dtype=torch.int64)
        buffer = torch.empty(len(probes) * BLOCK)
        while True:
            with lock:
                start = next(starts, None)
            if start is None:
                return best, rows
            block = gallery[start : start + BLOCK]
            # Templates in rows: so it is a fifth faster than the other way round.
            scores = buffer[: len(probes) * len(block)].view(len(block), len(probes))
            torch.mm(block, queries.T, out=scores)
            # Most blocks have nobody better for many probes.
            better = torch.nonzero(scores.amax(dim=0) > best[:, -1])[:, 0]
            if not len(better):
                continue
            top, position = scores.T[better].topk(min(count, len(block)), dim=1)
            merged = torch.cat([best[better], top], dim=1)
            known = torch.cat([rows[better], position + start], dim=1)
            top, position = merged.topk(count, dim=1)
            best[better], rows[better] = top, known.gather(1, position)

    with exact_products() as threads:
        workers = max(1, min(threads, -(-len(templates) // BLOCK)))
        with ThreadPoolExecutor(workers) as pool:
            shortlists = [future.result() for future in [pool.submit(work) for _ in range(workers)]]
    best = torch.cat([shortlist[0] for shortlist in shortlists], dim=1)
    rows = torch.cat([shortlist[1] for shortlist in shortlists], dim=1)
    top, position = best.topk(count, dim=1)
    return rows.gather(1, position).numpy(), top[:, -1].numpy()


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
