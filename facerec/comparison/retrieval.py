"""Retrieval and clustering figures of embeddings, exact and in bounded memory.

Definitions are those of "A Metric Learning Reality Check" (Musgrave, Belongie and Lim, ECCV 2020).
With R the number of references of a query's class::

    R-Precision = r / R,  r = right ones among the R nearest
    MAP@R       = 1/R · Σ_{i=1..R} P(i),  P(i) = precision at i if neighbour i is right, else 0
    P@1         = is the nearest one right
    Recall@K    = is there a right one among the K nearest

Similarities are cosines (`facerec.cosines`). Of equal scores that of the first reference counts as
the higher.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.defaults import ClusterMetric
from facerec.base.errors import MetricError
from facerec.base.libraries import Library
from facerec.cosines.searches import best
from facerec.cosines.unit_rows import UnitRows, row_norms, unit_rows
from facerec.statistics.identification import count_equal

_CLUSTER = Library("sklearn.cluster", "'facerec[compare]'")
_RATINGS = Library("sklearn.metrics", "'facerec[compare]'")

_QUERIES = 1024
"""Queries that are searched together."""


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Figures of every query that has a reference of its class, ``(q,)`` each.

    Means over queries, and bootstraps of them, need no new search.
    """

    figures: dict[str, NDArray[np.float64]]
    """``precision_at_1``, ``r_precision``, ``map_at_r`` and ``recall@K``."""
    labels: NDArray[np.int64]
    """Class of each query."""
    dropped: int
    """Queries without a reference of their class."""

    def means(self) -> dict[str, float]:
        """Return the mean of each figure over the queries, by name."""
        return {name: float(each.mean()) for name, each in self.figures.items()}


def retrieve(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    references: tuple[ArrayLike, ArrayLike] | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
) -> Retrieval:
    """Search the nearest references of every query and rate them.

    A query needs R neighbours, or the largest K if that is more.

    Args:
        embeddings: queries, raw or normalised, ``(N, D)``.
        labels: class of each query, ``(N,)`` integers.
        references: vectors ``(M, D)`` and their classes ``(M,)``; by default every query is
            compared with all others.
        ks: for Recall@K.

    Raises:
        MetricError: an embedding that is zero or not finite, or no query with a reference of its
            class.
    """
    itself = references is None
    raw, own, norms = _checked(embeddings, labels, "query")
    others, known, lengths = raw, own, norms
    if references is not None:
        others, known, lengths = _checked(*references, "reference")
    relevant = count_equal(own, known) - itself
    kept = relevant > 0
    if not kept.any():
        raise MetricError(
            f"none of the {len(kept)} queries has a reference of its class; retrieval needs "
            "classes with at least two images"
        )
    available, count, right_side = len(known) - itself, len(own), UnitRows(others, norms=lengths)
    needed = np.minimum(np.maximum(relevant, max(ks, default=1)), available)
    figures: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(count))
    # Queries that need many neighbours share a block.
    order = np.argsort(needed, kind="stable")
    for rows in np.split(order, range(_QUERIES, count, _QUERIES)):
        width = int(needed[rows].max())
        apart = (rows, np.arange(len(known))) if itself else None
        chosen, _ = best(UnitRows(raw, rows, norms), right_side, width, apart=apart)
        right = known[chosen] == own[rows, None]
        rank, total = np.arange(1, width + 1), np.maximum(relevant[rows], 1)
        among = right & (rank <= total[:, None])
        figures["precision_at_1"][rows] = right[:, 0]
        figures["r_precision"][rows] = among.sum(axis=1) / total
        # The last of running sums, unlike a sum, does not depend on how many zeros follow.
        precision = np.where(among, among.cumsum(axis=1) / rank, 0).cumsum(axis=1)
        figures["map_at_r"][rows] = precision[:, -1] / total
        for k in ks:
            figures[f"recall@{k}"][rows] = right[:, :k].any(axis=1)
    return Retrieval(
        figures={name: found[kept] for name, found in figures.items()},
        labels=own[kept],
        dropped=int(np.count_nonzero(~kept)),
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
    raw, known, norms = _checked(embeddings, labels, "image")
    unit, classes = unit_rows(raw, norms, np.arange(len(raw))), len(np.unique(known))
    clusters = _CLUSTER.KMeans(classes, n_init=1, random_state=seed).fit_predict(unit)
    (_, false), (missed, true) = _RATINGS.cluster.pair_confusion_matrix(labels, clusters).tolist()
    # Without a pair to be put together, or put together, nothing is wrong.
    f1 = 2 * true / (2 * true + false + missed) if true + false + missed else 1.0
    return {"nmi": float(_RATINGS.normalized_mutual_info_score(labels, clusters)), "f1": f1}


def _checked(
    embeddings: ArrayLike, labels: ArrayLike, noun: str
) -> tuple[NDArray[np.floating], NDArray[np.int64], NDArray[np.float64]]:
    """Return embeddings, their labels and their norms."""
    raw = np.asarray(embeddings)
    norms = row_norms(raw)
    if (wrong := np.isnan(norms)).any():
        raise MetricError(
            f"the embedding of {noun} {wrong.argmax()} is zero or not finite; cosines need vectors "
            "with a direction"
        )
    return raw, np.asarray(labels, np.int64), norms
