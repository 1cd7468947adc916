"""The ROC as counts over distinct thresholds, and every figure that follows from such counts.

A histogram of scores gives the same figures as the scores themselves. Counts are integers: tied
scores are never told apart, and no point of the curve is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from facerec.statistics.operating_points import (
    OperatingPoint,
    Rate,
    allowed_accepts,
    between,
    just_above,
    parse_rate,
)


@dataclass(frozen=True)
class RocCurve:
    """The whole ROC, one entry a distinct threshold, from "reject all" to "accept all"."""

    thresholds: NDArray[np.floating]
    """Descending, ``(M + 1,)``; the first one rejects everything."""
    false_accepts: NDArray[np.int64]
    true_accepts: NDArray[np.int64]
    non_mated: int
    mated: int

    @property
    def fpr(self) -> NDArray[np.float64]:
        """False positive rates, ascending, ``(M + 1,)``."""
        return self.false_accepts / self.non_mated

    @property
    def tpr(self) -> NDArray[np.float64]:
        """True positive rates, ascending, ``(M + 1,)``."""
        return self.true_accepts / self.mated

    @property
    def fnmr(self) -> NDArray[np.float64]:
        """False non-match rates, descending, ``(M + 1,)``."""
        return (self.mated - self.true_accepts) / self.mated

    def cut(self, index: int) -> float:
        """Return the threshold of a point, midway between the scores that it separates.

        On other scores it errs to neither side. It is −inf where everything is accepted.
        """
        if index == 0:
            return float(self.thresholds[0])
        if index == self.thresholds.size - 1:
            return -math.inf
        return float(midpoint(self.thresholds[index + 1], self.thresholds[index]))

    def tpr_at_fpr(self, fpr: Rate) -> OperatingPoint:
        """Return max { TPR(t) : FPR(t) ≤ fpr }; logarithmic in the number of thresholds.

        Raises:
            MetricError: the target is no rate.
        """
        allowed = allowed_accepts(fpr, self.non_mated)
        last = int(np.searchsorted(self.false_accepts, allowed, side="right")) - 1
        threshold = -math.inf
        if last + 1 < self.thresholds.size:
            higher = self.thresholds[last] if last else None
            threshold = between(self.thresholds[last + 1], higher)
        accepts = int(self.true_accepts[last]), int(self.false_accepts[last])
        return OperatingPoint(
            str(fpr), threshold, accepts[0], self.mated, accepts[1], self.non_mated
        )

    def auc(self) -> float:
        """Return the area under the ROC as the Mann–Whitney statistic; ties count one half."""
        whole = 2 * self.mated * self.non_mated
        exact: type = np.int64 if whole < 2**63 else object
        steps, heights = np.diff(self.false_accepts), self.true_accepts[1:] + self.true_accepts[:-1]
        return int(np.dot(steps.astype(exact), heights.astype(exact))) / whole

    def partial_auc(self, max_fpr: Rate) -> float:
        """Return the area under the ROC up to an FPR above 0, standardised: 1/2 is chance.

        Between the points that a tie separates the curve is a straight line, as for the AUC
        (McClish, Medical Decision Making 9, 1989).
        """
        end = float(parse_rate(max_fpr))
        last = int(np.searchsorted(self.false_accepts, end * self.non_mated, side="right"))
        x = np.append(self.fpr[:last], end)
        y = np.append(self.tpr[:last], np.interp(end, self.fpr, self.tpr))
        chance = end**2 / 2
        return (1 + (float(np.trapezoid(y, x)) - chance) / (end - chance)) / 2

    def hull(self) -> RocCurve:
        """Return the vertices of the upper convex hull, from "reject all" to "accept all".

        It is found by pooling adjacent violators (PAV) along distinct scores; the share of
        mated in the pooled blocks is the calibrated probability (Fawcett and Niculescu-Mizil,
        Machine Learning 68, 2007).
        """
        mated, non_mated = np.diff(self.true_accepts), np.diff(self.false_accepts)
        weights = mated + non_mated
        # PAV wants a monotone target; along the ROC the likelihood ratio falls.
        pooled = isotonic_regression(mated / weights, weights=weights, increasing=False)
        blocks = pooled.blocks
        # Rounding may have kept points on a straight line apart; integers tell.
        vertices = blocks[_convex(self.false_accepts[blocks], self.true_accepts[blocks])]
        return replace(
            self,
            thresholds=self.thresholds[vertices],
            false_accepts=self.false_accepts[vertices],
            true_accepts=self.true_accepts[vertices],
        )

    def eer_rocch(self) -> tuple[float, float]:
        """Return the rate at which FPR and FNMR meet on the convex hull, and its slope dTPR/dFPR.

        The slope is the likelihood ratio of the scores at that threshold (Bosaris; Brümmer 2010).
        """
        hull = self.hull()
        after = int(np.argmax(hull.fpr >= hull.fnmr))
        x, y = hull.fpr[after - 1 : after + 1], hull.fnmr[after - 1 : after + 1]
        gap = y - x
        share = gap[0] / (gap[0] - gap[1])
        rate = float(x[0] + share * (x[1] - x[0]))
        rise, run = float(y[0] - y[1]), float(x[1] - x[0])
        return rate, rise / run if run > 0 else math.inf

    def eer_step(self) -> tuple[float, float]:
        """Return between which rates FPR and FNMR of the step functions meet (FVC2000, Maio 2002).

        The middle is the equal error rate that FVC2000 reports.
        """
        fmr, fnmr = self._exact_rates()
        # Thresholds descend: the last one with FMR <= FNMR is FVC's t2, the next one is t1.
        second = int(np.searchsorted(fmr - fnmr, 0, side="right")) - 1
        first = second if fmr[second] == fnmr[second] else second + 1
        chosen = min((first, second), key=lambda index: fmr[index] + fnmr[index])
        low, high = sorted([float(self.fpr[chosen]), float(self.fnmr[chosen])])
        return low, high

    def eer_threshold(self) -> float:
        """Return the threshold at which FMR and FNMR are closest; of two the higher one."""
        fmr, fnmr = self._exact_rates()
        # "Reject all" has FMR 0 and FNMR 1, so there is a point before the first with FMR >= FNMR.
        above = int(np.argmax(fmr >= fnmr))
        return self.cut(min((above - 1, above), key=lambda index: abs(fmr[index] - fnmr[index])))

    def _exact_rates(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return FMR and FNMR over the common denominator P·N, in integers."""
        exact: type = np.int64 if self.mated * self.non_mated < 2**62 else object
        misses = self.mated - self.true_accepts
        return self.false_accepts.astype(exact) * self.mated, misses.astype(exact) * self.non_mated


def roc_from_sorted(mated: NDArray[np.floating], non_mated: NDArray[np.floating]) -> RocCurve:
    """Return the ROC over all distinct scores, none dropped, of two ascending arrays."""
    merged = np.concatenate([mated, non_mated])
    merged.sort(kind="stable")  # two ascending runs are merged, not sorted anew
    first = np.flatnonzero(np.concatenate([[True], merged[1:] != merged[:-1]]))[::-1]
    distinct = merged[first]
    accepts = merged.size - first
    false_accepts = non_mated.size - np.searchsorted(non_mated, distinct)
    return RocCurve(
        np.concatenate([[just_above(distinct[0])], distinct]).astype(distinct.dtype),
        np.concatenate([[0], false_accepts]),
        np.concatenate([[0], accepts - false_accepts]),
        non_mated.size,
        mated.size,
    )


def midpoint(below: np.floating, above: np.floating) -> np.floating:
    """Return a threshold of the same dtype that rejects ``below`` and accepts ``above``."""
    with np.errstate(invalid="ignore"):  # −inf and +inf have no middle: NaN, hence `above`
        middle = below / 2 + above / 2
    return middle if below < middle <= above else above


def _convex(x: NDArray[np.int64], y: NDArray[np.int64]) -> list[int]:
    """Return the indices of points at which a curve turns right; its ends count."""
    points = list(zip(x.tolist(), y.tolist(), strict=True))
    kept: list[int] = []
    for index, (right, top) in enumerate(points):
        while len(kept) > 1:
            (x0, y0), (x1, y1) = points[kept[-2]], points[kept[-1]]
            if (y1 - y0) * (right - x1) > (top - y1) * (x1 - x0):
                break
            kept.pop()
        kept.append(index)
    return kept
