"""K-fold verification accuracy: the threshold for each fold is chosen on the others (LFW View 2).

Folds are contiguous blocks in the order of the pairs, never shuffled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.statistics.curves import midpoint
from facerec.statistics.rates import check_scores

Folds = NDArray[np.integer]
"""Fold of every pair, ``(N,)``; 0, 1, …, none of them empty."""

INSIGHTFACE_GRID = np.arange(0, 4, 0.01)
"""Thresholds of the compatibility mode on squared Euclidean distances of unit vectors."""


@dataclass(frozen=True)
class KFoldAccuracy:
    """Accuracy on held-out folds; ± figures are meaningless without their names."""

    mean: float
    sem: float
    """Standard error of the mean, s/√K with ddof 1, as LFW's technical report asks."""
    std: float
    """Standard deviation over folds with ddof 0, as insightface prints; √(K−1) times the SEM."""
    accuracies: tuple[float, ...]
    thresholds: tuple[float, ...]
    """Of cosine, accept if ``>=``; in the compatibility mode of squared distance, if ``<``."""
    correct: int
    """Pairs judged rightly while held out."""
    pairs: int
    folds: int
    method: str


def fold_indices(pairs: int, folds: int = 10) -> NDArray[np.int64]:
    """Return the fold of every pair, ``(pairs,)``: the first ``pairs % folds`` get one more.

    Examples:
        >>> fold_indices(7, folds=3).tolist()
        [0, 0, 0, 1, 1, 2, 2]
    """
    size, longer = divmod(pairs, folds)
    return np.repeat(np.arange(folds), [size + (fold < longer) for fold in range(folds)])


def kfold_accuracy(scores: ArrayLike, issame: ArrayLike, folds: Folds) -> KFoldAccuracy:
    """Return K-fold accuracy over all distinct cut points, exactly.

    For each fold the threshold maximises accuracy on the other folds over the midpoints between
    consecutive distinct scores there, "accept all" (−inf) and "reject all" (+inf); the lowest of
    equally good ones wins. One sort of all scores serves every fold.

    Args:
        scores: similarities, ``(N,)``.
        issame: whether each pair shows one subject, ``(N,)``.
        folds: see `Folds`.

    Raises:
        MetricError: NaN or no scores.

    Examples:
        >>> result = kfold_accuracy([0.9, 0.2, 0.8, 0.1], [True, False] * 2, fold_indices(4, 2))
        >>> result.mean, result.correct, result.pairs
        (1.0, 4, 4)
    """
    values = check_scores(scores, "scores")
    same = np.asarray(issame, dtype=bool)
    distinct, index = np.unique(values, return_inverse=True)

    # Column j is the cut that accepts distinct[j:]; passing a value gains its different pairs and
    # loses its same pairs.
    count = int(folds.max()) + 1
    gains = _sums((folds, index), (count, distinct.size), np.where(same, -1, 1))
    present = _sums((folds, index), (count, distinct.size))
    correct = np.pad(np.cumsum(gains, axis=1), ((0, 0), (1, 0)))
    # Constant offsets (each fold's same pairs) do not move the maximum.
    others = correct.sum(axis=0) - correct
    seen = present.sum(axis=0) - present > 0

    thresholds = np.empty(count, values.dtype)
    for fold in range(count):
        cut = int(others[fold].argmax())
        known = np.flatnonzero(seen[fold])
        below, above = known[known < cut], known[known >= cut]
        if below.size == 0:
            thresholds[fold] = -np.inf
        elif above.size == 0:
            # NaN rejects even a score of +inf.
            thresholds[fold] = np.nan if distinct[-1] == np.inf else np.inf
        else:
            thresholds[fold] = midpoint(distinct[below[-1]], distinct[above[0]])
    right = (values >= thresholds[folds]) == same
    return _summary(right, folds, thresholds, "exact cut points on cosine")


def insightface_accuracy(
    embeddings_a: ArrayLike, embeddings_b: ArrayLike, issame: ArrayLike, folds: Folds
) -> KFoldAccuracy:
    """Return the accuracy that insightface's ``arcface_torch/eval/verification.py`` prints.

    Raw embeddings (with flip: the sum over both views) are L2-normalised; a pair is accepted if
    its squared Euclidean distance is strictly below a threshold of 0, 0.01, …, 3.99; the first
    best threshold on the other folds is used. Report ``mean`` ± ``std``.

    Args:
        embeddings_a: first images of the pairs, ``(N, D)``.
        embeddings_b: second images, ``(N, D)``.
        issame: whether each pair shows one subject, ``(N,)``.
        folds: see `Folds`.
    """
    first, second = (
        side / np.linalg.norm(side, axis=1, keepdims=True)
        for side in (np.asarray(each, np.float64) for each in (embeddings_a, embeddings_b))
    )
    same = np.asarray(issame, dtype=bool)
    difference = first - second
    distances = np.einsum("nd,nd->n", difference, difference)

    grid = INSIGHTFACE_GRID
    # The first threshold that accepts the pair (strictly above its distance), if any.
    index = np.searchsorted(grid, distances, side="right")
    gains = _sums((folds, index), (int(folds.max()) + 1, grid.size + 1), np.where(same, 1, -1))
    correct = np.cumsum(gains[:, :-1], axis=1)
    best = (correct.sum(axis=0) - correct).argmax(axis=1)
    right = (distances < grid[best][folds]) == same
    return _summary(right, folds, grid[best], "insightface: squared distance, grid of 0.01")


def check_folds(
    issame: ArrayLike,
    folds: Folds,
    things: Mapping[str, tuple[NDArray[np.integer], NDArray[Any]]],
) -> list[str]:
    """Say what makes K-fold accuracy on these pairs doubtful; an empty list is good news.

    Args:
        issame: whether each pair shows one subject, ``(N,)``.
        folds: see `Folds`.
        things: what each pair is of, such as "subject" or "image": numbers from 0 on, ``(N, 2)``,
            and a name for each of them.

    Returns:
        One sentence each for folds of a single class, folds whose share of same pairs differs by
        more than five points from the whole set's, and subjects or images that occur in several
        folds (they bias accuracy upwards, arXiv 2405.15965).
    """
    same = np.asarray(issame, dtype=bool)
    sizes = np.bincount(folds)
    count, same_counts = sizes.size, np.bincount(folds, same).astype(int)
    shares = same_counts / sizes
    sentences = []

    single = np.flatnonzero((same_counts == 0) | (same_counts == sizes))
    if single.size:
        sentences.append(
            f"{_folds(single)} of {count} hold pairs of one class only; order the pairs so that "
            "every fold has same and different ones"
        )
    unbalanced = np.setdiff1d(np.flatnonzero(np.abs(shares - same.mean()) > 0.05), single)
    if unbalanced.size:
        worst = unbalanced[np.argmax(np.abs(shares[unbalanced] - same.mean()))]
        sentences.append(
            f"the share of same pairs varies over the folds ({_folds(unbalanced)} of {count}): "
            f"fold {worst + 1} has {same_counts[worst]} of {sizes[worst]}, the whole set "
            f"{int(same.sum())} of {same.size}"
        )
    for noun, (numbers, names) in things.items():
        where = np.zeros((names.size, count), dtype=bool)
        where[numbers, folds[:, np.newaxis]] = True
        shared = np.flatnonzero(where.sum(axis=1) > 1)
        if shared.size:
            in_folds = np.flatnonzero(where[shared[0]])[:2] + 1
            example = f"{names[shared[0]]} in folds {' and '.join(map(str, in_folds))}"
            found = f"{noun} occurs" if shared.size == 1 else f"{noun}s occur"
            sentences.append(
                f"{shared.size} {found} in more than one fold ({example}); this biases accuracy "
                "upwards"
            )
    return sentences


def _sums(
    cells: tuple[Folds, NDArray[np.int64]],
    shape: tuple[int, int],
    values: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return the sum of values, or the count of pairs, in each cell of fold and cut."""
    flat = np.ravel_multi_index(cells, shape)
    return np.bincount(flat, values, shape[0] * shape[1]).astype(np.int64).reshape(shape)


def _summary(
    right: NDArray[np.bool_],
    folds: Folds,
    thresholds: NDArray[np.floating],
    method: str,
) -> KFoldAccuracy:
    count = thresholds.size
    correct = np.bincount(folds, right)
    accuracies = correct / np.bincount(folds)
    return KFoldAccuracy(
        mean=float(accuracies.mean()),
        sem=float(accuracies.std(ddof=1) / np.sqrt(count)),
        std=float(accuracies.std(ddof=0)),
        accuracies=tuple(accuracies.tolist()),
        thresholds=tuple(thresholds.tolist()),
        correct=int(correct.sum()),
        pairs=right.size,
        folds=count,
        method=method,
    )


def _folds(indices: Sequence[int] | NDArray[np.integer]) -> str:
    numbers = [str(index + 1) for index in indices[:10]]
    more = ", …" if len(indices) > 10 else ""
    return ("fold " if len(indices) == 1 else "folds ") + ", ".join(numbers) + more
