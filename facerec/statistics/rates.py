"""Verification rates from two sets of similarity scores.

A pair matches if ``score >= threshold``. Curves and what follows from them are in
`facerec.statistics.curves`; `roc_curve` reaches them from scores.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import MetricError
from facerec.statistics.curves import RocCurve, roc_from_sorted

Scores = NDArray[np.floating]


def roc_curve(mated: ArrayLike, non_mated: ArrayLike) -> RocCurve:
    """Return the ROC over all distinct scores of two sets, ``(P,)`` and ``(N,)``, none dropped.

    Raises:
        MetricError: a set is empty or holds NaN.

    Examples:
        >>> roc_curve([0.8, 0.7, 0.6], [0.9, 0.5]).tpr_at_fpr("1/2").tpr
        1.0
    """
    return roc_from_sorted(*sort_scores(mated, non_mated))


def sort_scores(mated: ArrayLike, non_mated: ArrayLike) -> tuple[Scores, Scores]:
    """Return two sets of scores ascending and of one dtype; raises as `roc_curve` does."""
    first = check_scores(mated, "scores of same pairs")
    second = check_scores(non_mated, "scores of different pairs")
    dtype = np.result_type(first, second)
    return np.sort(first.astype(dtype)), np.sort(second.astype(dtype))


def turned(scores: NDArray[np.floating], same: NDArray[np.bool_]) -> str:
    """Return a sentence if non-mated pairs tend to score higher than mated ones; else an empty one.

    Args:
        scores: similarities, ``(N,)``, NaN where there is none.
        same: whether each pair is mated, ``(N,)``.
    """
    mated, others = (scores[kind & ~np.isnan(scores)] for kind in (same, ~same))
    if not mated.size or not others.size or (auc := roc_curve(mated, others).auc()) >= 0.5:
        return ""
    return f"different pairs tend to score higher than same pairs (AUC {auc:.4f})"


def check_scores(scores: ArrayLike, what: str) -> Scores:
    """Return scores as an array of single or double precision.

    Args:
        scores: ``(N,)`` real numbers; half precision becomes float32, integers float64.
        what: what they are, for the error.

    Raises:
        MetricError: empty, or NaN among them.
    """
    array = np.asarray(scores)
    if array.size == 0:
        raise MetricError(f"there are no {what}; a rate needs at least one")
    if array.dtype.kind != "f" or array.dtype.itemsize < 4:
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.float64)
    missing = np.isnan(array)
    if missing.any():
        raise MetricError(
            f"{int(missing.sum())} of {array.size} {what} are NaN, the first at index "
            f"{int(missing.argmax())}; count them as failures to acquire and leave them out"
        )
    return array
