"""Retrieval and clustering figures of embeddings, exact and in bounded memory.

Definitions are those of "A Metric Learning Reality Check" (Musgrave, Belongie and Lim, ECCV 2020).
With R the number of references of a query's class::

    R-Precision = r / R,  r = right ones among the R nearest
    MAP@R       = 1/R · Σ_{i=1..R} P(i),  P(i) = precision at i if neighbour i is right, else 0
    P@1         = is the nearest one right
    Recall@K    = is there a right one among the K nearest

Similarities are float32 cosines, computed for a block of queries at a time. Of equal scores that of
the first reference counts as the higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from facerec.base.defaults import ClusterMetric
from facerec.base.devices import exact_products
from facerec.base.errors import MetricError
from facerec.base.libraries import Library
from facerec.statistics.identification import count_equal
from facerec.verification.unit_rows import row_norms, unit_rows

_CLUSTER = Library("sklearn.cluster", "'facerec[compare]'")
_RATINGS = Library("sklearn.metrics", "'facerec[compare]'")

_CELLS = 1 << 23
"""Scores that a thread holds at once."""


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Figures of every query that has a reference of its class, ``(q,)`` each.

    Means over queries, and bootstraps of them, need no new search.
    """

    precision_at_1: NDArray[np.float64]
    r_precision: NDArray[np.float64]
    map_at_r: NDArray[np.float64]
    recall_at: dict[int, NDArray[np.bool_]]
    """By K."""
    labels: NDArray[np.int64]
    """Class of each query."""
    dropped: int
    """Queries without a reference of their class."""
    tied: float
    """Share of queries with equal scores among the neighbours that they need, or between the last
    of these and the next: the index decided."""

    def means(self) -> dict[str, float]:
        """Return the mean of each figure over the queries, by name."""
        names = ("precision_at_1", "r_precision", "map_at_r")
        recalls = {f"recall_at_{k}": float(each.mean()) for k, each in self.recall_at.items()}
        return {name: float(getattr(self, name).mean()) for name in names} | recalls


def retrieve(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    references: ArrayLike | None = None,
    reference_labels: ArrayLike | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
) -> Retrieval:
    """Search the nearest references of every query and rate them.

    Memory is that of the normalised embeddings and of some million scores a thread. A query needs R
    neighbours, or the largest K if that is more.

    Args:
        embeddings: queries, raw or normalised, ``(N, D)``.
        labels: class of each query, ``(N,)`` integers.
        references: ``(M, D)``; by default every query is compared with all others.
        reference_labels: class of each reference, ``(M,)``.
        ks: for Recall@K.

    Raises:
        MetricError: an embedding that is zero or not finite, or no query with a reference of its
            class.
    """
    itself = references is None
    unit, own = _unit(embeddings, "query"), np.asarray(labels, np.int64)
    others, known = unit, own
    if references is not None:
        others, known = _unit(references, "reference"), np.asarray(reference_labels, np.int64)
    relevant = count_equal(own, known) - itself
    kept = relevant > 0
    if not kept.any():
        raise MetricError(
            f"none of the {len(kept)} queries has a reference of its class; retrieval needs "
            "classes with at least two images"
        )
    available, count = len(known) - itself, len(own)
    needed = np.minimum(np.maximum(relevant, max(ks, default=1)), available)
    precision_at_1, r_precision, map_at_r = np.zeros((3, count))
    recall_at = {k: np.zeros(count, bool) for k in sorted(set(ks))}
    tied = np.zeros(count, bool)

    def rate(rows: NDArray[np.int64]) -> None:
        width = min(int(needed[rows].max()) + 1, available)  # one more tells whether there is a tie
        queries = torch.nn.functional.pad(unit[rows], (0, 0, 0, height - len(rows)))
        scores = torch.mm(queries, others.T)[: len(rows), : len(known)]
        if itself:
            scores[torch.arange(len(rows)), torch.from_numpy(rows)] = -torch.inf
        # What equals the last that is needed is near too, as the order of the references decides.
        near = scores >= scores.topk(width).values[:, -1:]
        score, (row, column) = scores[near].numpy(), near.numpy().nonzero()
        ranked = np.lexsort((column, -score, row))
        starts = np.searchsorted(row, np.arange(len(rows)))
        chosen = ranked[starts[:, None] + np.arange(width)]
        score, right = score[chosen], known[column[chosen]] == own[rows, None]
        rank, total = np.arange(1, width + 1), np.maximum(relevant[rows], 1)
        among = right & (rank <= total[:, None])
        precision_at_1[rows] = right[:, 0]
        r_precision[rows] = among.sum(axis=1) / total
        # The last of running sums, unlike a sum, does not depend on how many zeros follow.
        precision = np.where(among, among.cumsum(axis=1) / rank, 0).cumsum(axis=1)
        map_at_r[rows] = precision[:, -1] / total
        for k, found in recall_at.items():
            found[rows] = right[:, :k].any(axis=1)
        equal = score[:, 1:] == score[:, :-1]
        tied[rows] = (equal & (rank[:-1] <= needed[rows, None])).any(axis=1)

    # All products have one shape, a multiple of 16: single rows would be rounded otherwise, and
    # equal references must score equally. Queries that need many neighbours share a block.
    height = 16 * max(1, _CELLS // (16 * len(others)))
    order = np.argsort(needed, kind="stable")
    blocks = np.split(order, range(height, count, height))
    with (
        exact_products() as threads,
        # OpenMP keeps a number for every thread.
        ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        list(pool.map(rate, blocks))
    return Retrieval(
        precision_at_1=precision_at_1[kept],
        r_precision=r_precision[kept],
        map_at_r=map_at_r[kept],
        recall_at={k: found[kept] for k, found in recall_at.items()},
        labels=own[kept],
        dropped=int(np.count_nonzero(~kept)),
        tied=float(tied[kept].mean()),
    )


def clustering(embeddings: ArrayLike, labels: ArrayLike, seed: int) -> dict[ClusterMetric, float]:
    """Return how well k-means on the normalised embeddings finds the classes, as NMI and F1.

    k-means runs from one start, so that an unlucky seed gives lower figures. NMI divides by the
    arithmetic mean of the entropies, as scikit-learn and the Reality Check do; F1 is that over
    pairs of Manning, Raghavan and Schütze, "Introduction to Information Retrieval" (2008), section
    16.3.

    Args:
        embeddings: raw or normalised, ``(N, D)``.
        labels: class of each, ``(N,)`` integers; their number is that of the clusters.
        seed: of the first centres.

    Raises:
        MetricError: an embedding that is zero or not finite.
        MissingExtraError: scikit-learn is not installed.
    """
    unit = _unit(embeddings, "image").numpy()[: len(np.asarray(labels))]
    classes = len(np.unique(labels))
    clusters = _CLUSTER.KMeans(classes, n_init=1, random_state=seed).fit_predict(unit)
    (_, false), (missed, true) = _RATINGS.cluster.pair_confusion_matrix(labels, clusters).tolist()
    # Without a pair to be put together, or put together, nothing is wrong.
    f1 = 2 * true / (2 * true + false + missed) if true + false + missed else 1.0
    return {"nmi": float(_RATINGS.normalized_mutual_info_score(labels, clusters)), "f1": f1}


def _unit(embeddings: ArrayLike, noun: str) -> Tensor:
    """Return the embeddings normalised, float32, with rows of zeros up to a multiple of 16."""
    raw = np.asarray(embeddings)
    norms = row_norms(raw)
    if (wrong := np.isnan(norms)).any():
        raise MetricError(
            f"the embedding of {noun} {wrong.argmax()} is zero or not finite; cosines need vectors "
            "with a direction"
        )
    unit = np.zeros((-(-len(raw) // 16) * 16, raw.shape[1]), np.float32)
    unit[: len(raw)] = unit_rows(raw, norms, np.arange(len(raw)))
    return torch.from_numpy(unit)
