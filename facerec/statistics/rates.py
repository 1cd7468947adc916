"""Verification rates from two sets of similarity scores.

A pair matches if ``score >= threshold``. Curves and what follows from them are in
`facerec.statistics.curves`; `SortedScores` reaches them from scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import MetricError
from facerec.statistics.curves import RocCurve, roc_from_sorted
from facerec.statistics.operating_points import (
    RULE_OF_30,
    OperatingPoint,
    Rate,
    allowed_accepts,
    operating_point,
    parse_rate,
    step_threshold,
)

__all__ = [
    "RULE_OF_30",
    "OperatingPoint",
    "Rate",
    "RocCurve",
    "SortedScores",
    "check_scores",
    "operating_points",
    "parse_rate",
    "sort_scores",
    "tpr_at_fpr",
    "turned",
]


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

    def d_prime(self) -> float:
        """Return d′ = (μ₊ − μ₋) / √(½(σ₊² + σ₋²)), variances with ddof 0.

        It is below 0 where non-mated scores are higher, and NaN if both variances are 0, or if a
        score is infinite.
        """
        if not all(np.isfinite(side[[0, -1]]).all() for side in (self.mated, self.non_mated)):
            return math.nan
        mated = self.mated.astype(np.float64)
        non_mated = self.non_mated.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # scores may be infinite
            spread = math.sqrt((float(mated.var()) + float(non_mated.var())) / 2)
            gap = float(mated.mean()) - float(non_mated.mean())
        return gap / spread if spread > 0 else math.nan


def sort_scores(mated: ArrayLike, non_mated: ArrayLike) -> SortedScores:
    """Check and sort two sets of scores, ``(P,)`` and ``(N,)``.

    Raises:
        MetricError: a set is empty, not one-dimensional, not real numbers, or holds NaN.
    """
    mated, non_mated = _common(mated, non_mated)
    return SortedScores(np.sort(mated), np.sort(non_mated))


def operating_points(
    mated: ArrayLike, non_mated: ArrayLike, fprs: Sequence[Rate]
) -> tuple[OperatingPoint, ...]:
    """Return `tpr_at_fpr` for several targets, in O(P + N) each: only the top is sorted.

    Raises:
        MetricError: scores are empty or NaN, or a target is no rate.
    """
    mated, non_mated = _common(mated, non_mated)
    counts = mated.size, non_mated.size
    allowed = [allowed_accepts(fpr, counts[1]) for fpr in fprs]
    lowest = max(0, counts[1] - 1 - max(allowed, default=0))
    highest = np.partition(non_mated, lowest)[lowest:]
    highest.sort()
    points = []
    for fpr, accepts in zip(fprs, allowed, strict=True):
        threshold = step_threshold(highest[::-1], accepts, mated)
        true_accepts = int(np.count_nonzero(mated >= threshold))
        false_accepts = highest.size - int(np.searchsorted(highest, threshold))
        points.append(operating_point(fpr, threshold, (true_accepts, false_accepts), counts))
    return tuple(points)


def tpr_at_fpr(mated: ArrayLike, non_mated: ArrayLike, fpr: Rate) -> OperatingPoint:
    """Return max { TPR(t) : FPR(t) ≤ fpr } over all thresholds, in O(P + N).

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
    return operating_points(mated, non_mated, [fpr])[0]


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


def _common(
    mated: ArrayLike, non_mated: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    first = check_scores(mated, "scores of same pairs")
    second = check_scores(non_mated, "scores of different pairs")
    dtype = np.result_type(first, second)
    return first.astype(dtype, copy=False), second.astype(dtype, copy=False)
