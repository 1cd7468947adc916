"""Retrieval and clustering figures of embeddings, exact and in bounded memory.

Definitions are those of "A Metric Learning Reality Check" (Musgrave, Belongie and Lim, ECCV 2020).
With R the number of references of a query's class::

    R-Precision = r / R,  r = right ones among the R nearest
    MAP@R       = 1/R · Σ_{i=1..R} P(i),  P(i) = precision at i if neighbour i is right, else 0
    P@1         = is the nearest one right
    Recall@K    = is there a right one among the K nearest

Similarities are float32 cosines, computed tile by tile and never stored. A neighbour is one whole
number, the score above the index, so that one sort orders neighbours and breaks ties by index.
Where the queries are the references, each product serves both sides of its tile.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from facerec.devices import exact_products
from facerec.errors import MetricError, MissingExtraError
from facerec.progress import Progress
from facerec.statistics.identification import count_equal

_NO_SCORE = -0x7F800001 << 32
"""The key of score −∞ and the last index: below every other."""

_LAST = 0xFFFFFFFF
"""The index in `_NO_SCORE`; no set of references is so large."""

_SPARE = 64
"""Places, at least, for neighbours that wait to be sorted in."""

_HELD = 2**24
"""Up to so many neighbours of all queries are held together."""

Rate = Callable[[NDArray[np.int64], NDArray[np.int64]], None]
"""Takes indices of queries, ``(n,)``, and keys of their neighbours, ``(n, W)``."""


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
        figures: dict[str, NDArray[np.float64] | NDArray[np.bool_]] = {
            "precision_at_1": self.precision_at_1,
            "r_precision": self.r_precision,
            "map_at_r": self.map_at_r,
        }
        figures |= {f"recall_at_{k}": values for k, values in self.recall_at.items()}
        return {name: float(values.mean()) for name, values in figures.items()}


@dataclass(frozen=True)
class Clustering:
    """How well k-means with as many clusters as classes finds the classes."""

    nmi: float
    """Mutual information of clusters and classes over the mean of their entropies."""
    f1: float
    """Harmonic mean of precision and recall over pairs of images that are put together."""


def retrieve(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    references: ArrayLike | None = None,
    reference_labels: ArrayLike | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    block: int = 512,
    progress: Progress | None = None,
) -> Retrieval:
    """Search the nearest references of every query and rate them.

    Memory is that of the normalised embeddings, of block · (block + neighbours needed) numbers a
    thread, and at most 128 MB of neighbours that are held. A query needs R neighbours, or the
    largest K if that is more.

    Args:
        embeddings: queries, raw or normalised, ``(N, D)``.
        labels: class of each query, ``(N,)`` integers.
        references: ``(M, D)``; by default every query is compared with all others.
        reference_labels: class of each reference, ``(M,)``.
        ks: for Recall@K.
        block: queries and references in one product; more memory, hardly less time.
        progress: called with what is done and the products done and in all.

    Raises:
        MetricError: shapes that do not fit, an embedding that is zero or not finite, K below 1, or
            no query with a reference of its class.
    """
    itself = references is None
    queries = _Side(embeddings, labels, "query")
    if (references is None) != (reference_labels is None):
        raise MetricError("references and their labels must be given together")
    others = queries
    if references is not None and reference_labels is not None:
        others = _Side(references, reference_labels, "reference")
    if queries.raw.shape[1] != others.raw.shape[1]:
        raise MetricError(
            f"queries of {queries.raw.shape[1]} dimensions cannot be compared with references of "
            f"{others.raw.shape[1]}"
        )
    if block < 1 or any(k < 1 for k in ks):
        raise MetricError(f"block {block} and the numbers of neighbours {tuple(ks)} must be ≥ 1")

    relevant = count_equal(queries.labels, others.labels) - itself
    kept = relevant > 0
    if not kept.any():
        raise MetricError(
            f"none of the {len(kept)} queries has a reference of its class; retrieval needs "
            "classes with at least two images"
        )
    available = len(others.raw) - itself
    needed = np.minimum(np.maximum(relevant, max(ks, default=1)), available)
    figures = _Figures(relevant, needed, ks, queries.labels, others.labels)
    search = _Search(queries, others, needed, available, itself, block)
    search.run(figures.rate, progress)
    return figures.result(kept)


def clustering(embeddings: ArrayLike, labels: ArrayLike, seed: int) -> Clustering:
    """Cluster the normalised embeddings by k-means and compare with the classes.

    k-means runs from one start, so that an unlucky seed gives lower figures. NMI divides by the
    arithmetic mean of the entropies, as scikit-learn and the Reality Check do; F1 is that over
    pairs of Manning, Raghavan and Schütze, "Introduction to Information Retrieval" (2008), section
    16.3.

    Args:
        embeddings: raw or normalised, ``(N, D)``.
        labels: class of each, ``(N,)`` integers; their number is that of the clusters.
        seed: of the first centres.

    Raises:
        MetricError: shapes that do not fit, or an embedding that is zero or not finite.
        MissingExtraError: scikit-learn is not installed.
    """
    check_clustering()
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score
    from sklearn.metrics.cluster import pair_confusion_matrix

    side = _Side(embeddings, labels, "image")
    unit = side.unit(np.arange(len(side.raw)), 1).numpy()
    classes = len(np.unique(side.labels))
    clusters = KMeans(classes, n_init=1, random_state=seed).fit_predict(unit)
    (_, false), (missed, true) = pair_confusion_matrix(side.labels, clusters).tolist()
    # Without a pair to be put together, or put together, nothing is wrong.
    f1 = 2 * true / (2 * true + false + missed) if true + false + missed else 1.0
    return Clustering(float(normalized_mutual_info_score(side.labels, clusters)), f1)


def check_clustering() -> None:
    """Refuse to begin what will need `clustering` where it cannot be had.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    try:
        importlib.import_module("sklearn.cluster")
    except ImportError as error:
        raise MissingExtraError(
            "clustering scores need scikit-learn; install it with: pip install 'facerec[compare]'"
        ) from error


class _Side:
    """Embeddings with their labels, checked.

    Args:
        embeddings: ``(N, D)``.
        labels: ``(N,)``.
        noun: what one of them is called.
    """

    def __init__(self, embeddings: ArrayLike, labels: ArrayLike, noun: str) -> None:
        self.raw, self.labels, self._noun = np.asarray(embeddings), np.asarray(labels), noun
        if self.raw.ndim != 2 or self.raw.dtype.kind != "f" or not self.raw.size:
            raise MetricError(
                f"{noun} embeddings must have shape (N, D) and real values, found "
                f"{self.raw.dtype} of shape {self.raw.shape}"
            )
        if self.labels.shape != (len(self.raw),) or self.labels.dtype.kind not in "iu":
            raise MetricError(
                f"{len(self.raw)} {noun} embeddings need one whole number each as label, found "
                f"{self.labels.dtype} of shape {self.labels.shape}"
            )
        self.labels = self.labels.astype(np.int64)

    def unit(self, order: NDArray[np.int64], multiple: int) -> torch.Tensor:
        """Return the embeddings in another order, normalised, with zeros up to a full block."""
        height = -(-len(order) // multiple) * multiple
        unit = np.zeros((height, self.raw.shape[1]), np.float32)
        for start in range(0, len(order), 1024):
            rows = order[start : start + 1024]
            values = self.raw[rows].astype(np.float64)
            norms = np.sqrt(np.einsum("nd,nd->n", values, values))
            wrong = ~(np.isfinite(norms) & (norms > 0))
            if wrong.any():
                first = int(wrong.argmax())
                raise MetricError(
                    f"the embedding of {self._noun} {rows[first]} has norm {norms[first]}; "
                    "cosines need finite vectors that are not zero"
                )
            unit[start : start + len(rows)] = values / norms[:, None]
        return torch.from_numpy(unit)


class _Figures:
    """The figures of all queries, filled block by block."""

    def __init__(
        self,
        relevant: NDArray[np.int64],
        needed: NDArray[np.int64],
        ks: Sequence[int],
        labels: NDArray[np.int64],
        reference_labels: NDArray[np.int64],
    ) -> None:
        self._relevant, self._needed, self._ks = relevant, needed, sorted(set(ks))
        self._labels, self._reference_labels = labels, reference_labels
        self._precision_at_1, self._r_precision, self._map_at_r = np.zeros((3, len(labels)))
        self._recall_at = np.zeros((len(self._ks), len(labels)), bool)
        self._tied = np.zeros(len(labels), bool)

    def rate(self, queries: NDArray[np.int64], keys: NDArray[np.int64]) -> None:
        """Take in the neighbours of some queries, as keys from the nearest on, ``(n, W)``."""
        right = self._reference_labels[_index(keys)] == self._labels[queries, None]
        rank = np.arange(1, keys.shape[1] + 1)
        relevant = np.maximum(self._relevant[queries], 1)  # those without any are dropped later
        among = right & (rank <= relevant[:, None])
        self._precision_at_1[queries] = right[:, 0]
        self._r_precision[queries] = among.sum(axis=1) / relevant
        precision = np.where(among, among.cumsum(axis=1) / rank, 0)
        # The last of running sums, unlike a sum, does not depend on how many zeros follow.
        self._map_at_r[queries] = precision.cumsum(axis=1)[:, -1] / relevant
        for row, k in zip(self._recall_at, self._ks, strict=True):
            row[queries] = right[:, :k].any(axis=1)
        equal = (keys[:, 1:] >> 32) == (keys[:, :-1] >> 32)
        self._tied[queries] = (equal & (rank[:-1] <= self._needed[queries, None])).any(axis=1)

    def result(self, kept: NDArray[np.bool_]) -> Retrieval:
        """Return the figures of the queries kept."""
        return Retrieval(
            precision_at_1=self._precision_at_1[kept],
            r_precision=self._r_precision[kept],
            map_at_r=self._map_at_r[kept],
            recall_at={k: row[kept] for k, row in zip(self._ks, self._recall_at, strict=True)},
            labels=self._labels[kept],
            dropped=int(np.count_nonzero(~kept)),
            tied=float(self._tied[kept].mean()),
        )


class _Nearest:
    """The nearest references so far of the queries of one block.

    Args:
        rows: queries.
        width: neighbours wanted.
    """

    def __init__(self, rows: int, width: int) -> None:
        self._lock, self._width = threading.Lock(), width
        self._keys = np.full((rows, _slots(width)), _NO_SCORE)
        self._used = np.zeros(rows, np.int64)
        self._least = np.full(rows, -np.inf, np.float32)

    def add(self, scores: NDArray[np.float32], index: NDArray[np.int64]) -> None:
        """Take in the scores with some references, ``(rows, n)``, and their indices, ``(n,)``."""
        rows, columns = scores.shape
        # Another thread may raise the least meanwhile; a lower one only lets more pass.
        least = self._least
        if columns > self._width and not self._used.any():
            least = torch.from_numpy(scores).topk(self._width).values[:, -1].numpy()
        # What equals the least passes too, as the index may favour it.
        passed = _at_least(scores, least)
        row = passed // columns  # np.divmod takes ten times as long
        column = passed - row * columns
        keys = _keys(scores[row, column], index[column])
        counts = np.bincount(row, minlength=rows)
        offsets = np.arange(len(row)) - (counts.cumsum() - counts)[row]
        with self._lock:
            slot = self._used[row] + offsets
            self._used += counts
            most = int(self._used.max())
            if most <= self._keys.shape[1]:
                self._keys[row, slot] = keys
                return
            every = np.full((rows, most), _NO_SCORE)
            every[:, : self._keys.shape[1]] = self._keys
            every[row, slot] = keys
            self._keep_nearest(every)

    def sorted(self) -> NDArray[np.int64]:
        """Return the keys of the neighbours wanted, the nearest first, ``(rows, width)``."""
        self._keep_nearest(self._keys.copy())
        return self._keys[:, self._width - 1 :: -1]

    def _keep_nearest(self, keys: NDArray[np.int64]) -> None:
        """Put the nearest of ``keys`` into the first places, ascending, and free the others."""
        keys.sort(axis=1)
        self._keys[:, : self._width] = keys[:, -self._width :]
        self._keys[:, self._width :] = _NO_SCORE
        self._used[:] = self._width
        self._least = _scores(self._keys[:, 0])


class _Search:
    """Finds the nearest references of all queries, a block of them at a time.

    Queries that need many neighbours share blocks with their like. Where the queries are the
    references, products below the diagonal are those above it, unless the neighbours of all queries
    are too many to be held together.

    Args:
        queries: sought for.
        others: references.
        needed: neighbours of each query, ``(N,)``.
        available: references that each query has.
        itself: whether the queries are the references; none is its own neighbour.
        block: queries, and references, in one product.
    """

    def __init__(
        self,
        queries: _Side,
        others: _Side,
        needed: NDArray[np.int64],
        available: int,
        itself: bool,
        block: int,
    ) -> None:
        order = np.argsort(needed, kind="stable")
        columns = order if itself else np.arange(len(others.raw))
        self._itself = itself
        # All products have one shape: that of a single row or column would be rounded otherwise,
        # and equal references must score equally. Blocks of nearly one size leave little to fill.
        height, width = (_divide(len(side), block) for side in (order, columns))
        self._unit = queries.unit(order, height).split(height)
        self._others = self._unit if itself else others.unit(columns, width).split(width)
        self._rows, self._columns = (
            [side[start : start + size] for start in range(0, len(side), size)]
            for side, size in ((order, height), (columns, width))
        )
        # One more than needed tells whether the last of them is tied.
        self._wanted = [min(int(needed[rows].max()) + 1, available) for rows in self._rows]
        held = sum(_slots(wanted) for wanted in self._wanted) * height
        self._mirrored = itself and held <= _HELD
        self._nearest: dict[int, _Nearest] = {}

    def run(self, rate: Rate, progress: Progress | None) -> None:
        """Hand queries and the keys of their neighbours, the nearest first, to ``rate``."""
        blocks, done = len(self._rows), 0
        total = blocks * (blocks + 1) // 2 if self._mirrored else blocks * len(self._columns)
        with (
            exact_products() as threads,
            # OpenMP keeps a number for every thread.
            ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool,
        ):
            for i, rows in enumerate(self._rows):
                if i not in self._nearest:
                    for j in range(blocks) if self._mirrored else [i]:
                        self._nearest[j] = _Nearest(len(self._rows[j]), self._wanted[j])
                others = range(i if self._mirrored else 0, len(self._columns))
                for _ in pool.map(partial(self._multiply, i), others):
                    done += 1
                    if progress is not None:
                        progress("searching neighbours", done, total)
                rate(rows, self._nearest.pop(i).sorted())

    def _multiply(self, i: int, j: int) -> None:
        """Score one block of queries with one of references."""
        product = torch.mm(self._unit[i], self._others[j].T).numpy()
        scores = product[: len(self._rows[i]), : len(self._columns[j])]
        if self._itself and i == j:
            np.fill_diagonal(scores, -np.inf)
        self._nearest[i].add(scores, self._columns[j])
        if self._mirrored and i != j:
            self._nearest[j].add(scores.T, self._rows[i])


def _divide(count: int, block: int) -> int:
    """Return the size of the fewest blocks of nearly one size, a multiple of 16."""
    blocks = -(-count // block)
    return -(-count // (16 * blocks)) * 16


def _slots(width: int) -> int:
    """Return for how many neighbours of a query there is room when so many are wanted."""
    return width + max(width, _SPARE)


def _at_least(scores: NDArray[np.float32], least: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return where the scores of each row reach its least one, as indices of the flattened scores.

    Scores that were transposed are compared in the order of memory, which is far faster.
    """
    if scores.strides[0] >= scores.strides[1]:
        return np.flatnonzero(scores >= least[:, None])
    rows, columns = scores.shape
    passed = np.flatnonzero(np.greater_equal(scores.T, least))
    column = passed // rows
    return np.sort((passed - column * rows) * columns + column)


def _keys(scores: NDArray[np.float32], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return whole numbers that ascend with the score and, for equal scores, with a lower index."""
    bits = (scores + np.float32(0)).view(np.int32)  # −0 becomes 0, which it equals
    # The bits of negative numbers descend.
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ascending.astype(np.int64) << 32) | (_LAST - index)


def _scores(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the scores in keys."""
    ascending = (keys >> 32).astype(np.int32)
    return (ascending ^ ((ascending >> 31) & 0x7FFFFFFF)).view(np.float32)


def _index(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices in keys."""
    return _LAST - (keys & _LAST)
