"""Verification rates from two sets of similarity scores.

A pair matches if ``score >= threshold``. Curves and what follows from them are in
`facerec.statistics.curves`; `SortedScores` reaches them from scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import MetricError
from facerec.statistics.curves import RocCurve, roc_from_sorted
from facerec.statistics.operating_points import OperatingPoint, Rate


@dataclass(frozen=True)
class SortedScores:
    """Mated and non-mated scores, ascending and of one dtype: many figures from one sort.

    Build it with `sort_scores`.
    """

    mated: NDArray[np.floating]
    non_mated: NDArray[np.floating]

    @cached_property
    def roc(self) -> RocCurve:
        """The ROC over all distinct scores, none dropped."""
        return roc_from_sorted(self.mated, self.non_mated)


def sort_scores(mated: ArrayLike, non_mated: ArrayLike) -> SortedScores:
    """Check and sort two sets of scores, ``(P,)`` and ``(N,)``.

    Raises:
        MetricError: a set is empty, not one-dimensional, not real numbers, or holds NaN.
    """
    first = check_scores(mated, "scores of same pairs")
    second = check_scores(non_mated, "scores of different pairs")
    dtype = np.result_type(first, second)
    return SortedScores(np.sort(first.astype(dtype)), np.sort(second.astype(dtype)))


def tpr_at_fpr(mated: ArrayLike, non_mated: ArrayLike, fpr: Rate) -> OperatingPoint:
    """Return max { TPR(t) : FPR(t) ≤ fpr } over all thresholds.

    It is the value of a step function: nothing is interpolated, no nearest point is taken, and
    the realised FPR never exceeds the target.

    Args:
        mated: scores of same pairs, ``(P,)``; infinities are legal.
        non_mated: scores of different pairs, ``(N,)``.
        fpr: the target as text, fraction or float.

    Raises:
        MetricError: scores are empty or NaN, or the target is no rate.

    Examples:
        >>> tpr_at_fpr([0.8, 0.7, 0.6], [0.9, 0.5], "1/2").tpr
        1.0
    """
    return sort_scores(mated, non_mated).roc.tpr_at_fpr(fpr)


def turned(scores: NDArray[np.floating], same: NDArray[np.bool_]) -> str:
    """Return a sentence if non-mated pairs tend to score higher than mated ones; else an empty one.

    Args:
        scores: similarities, ``(N,)``, NaN where there is none.
        same: whether each pair is mated, ``(N,)``.
    """
    mated, others = (scores[kind & ~np.isnan(scores)] for kind in (same, ~same))
    if not mated.size or not others.size or (auc := sort_scores(mated, others).roc.auc()) >= 0.5:
        return ""
    return f"different pairs tend to score higher than same pairs (AUC {auc:.4f})"


def check_scores(scores: ArrayLike, what: str) -> NDArray[np.floating]:
    """Return scores as a one-dimensional float32 or float64 array.

    Args:
        scores: ``(N,)`` real numbers; half precision becomes float32, integers float64.
        what: what they are, for the error.

    Raises:
        MetricError: empty, not one-dimensional, not real numbers, or NaN among them.
    """
    array = np.asarray(scores)
    if array.ndim != 1:
        raise MetricError(f"{what} have shape {array.shape}; give one score a pair, shape (N,)")
    if array.size == 0:
        raise MetricError(f"there are no {what}; a rate needs at least one")
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype.kind != "f":
        raise MetricError(f"{what} have type {array.dtype}; scores are real numbers")
    if array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    missing = np.isnan(array)
    if missing.any():
        raise MetricError(
            f"{int(missing.sum())} of {array.size} {what} are NaN, the first at index "
            f"{int(missing.argmax())}; count them as failures to acquire and leave them out"
        )
    return array
