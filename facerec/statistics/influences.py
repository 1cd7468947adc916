"""What each comparison adds to a figure of labelled scores: AUC, EER, TPR at an FPR.

The influences of all comparisons sum to the error of a figure, so that summed by subject they give
its interval (`facerec.statistics.clustered`), and their differences that of a difference.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.special import logit as _logit

from facerec.statistics.clustered import (
    Array,
    ClusteredFigure,
    ClusteredShare,
    sum_by_subject,
)
from facerec.statistics.curves import roc_from_sorted
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_points import OperatingPoint
from facerec.statistics.rates import sort_scores

Influence = tuple[float, Array]
"""A figure, and what each comparison adds to its error, ``(N,)``."""

MOST_STEPS, LEAST_STEPS = 1.5, 0.05
"""Limits of the logarithmic reach in FPR over which the slope of the ROC is taken."""


TAIL = 10
"""Highest different scores that tell how fast their tail falls."""


class ScoredComparisons:
    """Labelled scores whose subjects may be known.

    Args:
        scores: similarities, ``(N,)``.
        same: whether each comparison is mated, ``(N,)``.
        subjects: subject, or family, on both sides, ``(N,)`` each, from 0; without them every
            comparison is a unit of its own.

    Attributes:
        mated: scores of mated comparisons, ascending.
        non_mated: those of the others.
        roc: of both.

    Raises:
        MetricError: one class of comparisons only, or NaN among the scores.
    """

    def __init__(
        self,
        scores: NDArray[np.floating],
        same: NDArray[np.bool_],
        subjects: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    ) -> None:
        self.scores, self.same = scores, same
        self.first, self.second = subjects or (np.arange(scores.size),) * 2
        self.mated, self.non_mated = sort_scores(scores[same], scores[~same])
        self.roc = roc_from_sorted(self.mated, self.non_mated)

    def figure(self, influence: Influence) -> ClusteredFigure:
        """Return a figure with what each subject adds to it."""
        value, added = influence
        size = int(max(self.first.max(), self.second.max())) + 1
        kinds = [
            sum_by_subject(added[kind], self.first[kind], self.second[kind], size)
            for kind in (self.same, ~self.same)
        ]
        return ClusteredFigure.of_kinds(value, kinds)

    def interval(self, influence: Influence) -> Interval:
        """Return the 95 % interval of a figure."""
        return self.figure(influence).interval()

    def share(
        self, events: NDArray[np.bool_], among: NDArray[np.bool_], alike: bool = False
    ) -> ClusteredShare:
        """Return the share of events among some comparisons; ``alike`` is that of `from_pairs`."""
        units = self.first[among], self.second[among]
        return ClusteredShare.from_pairs(events[among], *units, alike=alike)

    def mean(self, values: NDArray) -> Influence:
        """Return the mean of a value per comparison, such as 1 for a right decision."""
        # How many comparisons are mated is given: each kind varies around its own mean.
        means = np.where(self.same, values[self.same].mean(), values[~self.same].mean())
        return float(values.mean()), (values - means) / values.size

    def auc(self) -> Influence:
        """Return the area under the ROC."""
        area = self.roc.auc()
        # Share of the other class that each score beats, ties counting one half.
        beaten = share_below(self.non_mated, self.scores) - area
        beaters = 1 - share_below(self.mated, self.scores) - area
        counts = self.mated.size, self.non_mated.size
        return area, np.where(self.same, beaten / counts[0], beaters / counts[1])

    def d_prime(self) -> Influence:
        """Return d′ = (μ₊ − μ₋) / √(½(σ₊² + σ₋²)), variances with ddof 0.

        It is below 0 where non-mated scores are higher, and NaN if both variances are 0, or if a
        score is infinite.
        """
        scores, added = self.scores.astype(np.float64), np.zeros(self.scores.size)
        mated, others = scores[self.same], scores[~self.same]
        with np.errstate(invalid="ignore", over="ignore"):  # scores may be infinite, or huge
            spread = math.sqrt((mated.var() + others.var()) / 2)
            gap = float(mated.mean() - others.mean())
            if not 0 < spread < math.inf:
                return math.nan, added
            for kind, sign in ((self.same, 1), (~self.same, -1)):
                rest = scores[kind] - scores[kind].mean()
                of_spread = gap * (rest**2 - (rest**2).mean()) / (4 * spread**3)
                added[kind] = (sign * rest / spread - of_spread) / rest.size
        return gap / spread, added

    def eer(self) -> Influence:
        """Return the equal error rate on the convex hull of the ROC.

        Small errors a of the FPR and b of the FNMR move the crossing by (s·a + b)/(s + 1), s the
        slope of the ROC.
        """
        rate, slope = self.roc.eer_rocch()
        weight = 1.0 if math.isinf(slope) else slope / (slope + 1)
        accepted = self.scores >= self.roc.eer_threshold()
        return rate, self._rates(accepted, (1 - weight) * -1.0, weight)

    def tpr(self, point: OperatingPoint) -> Influence:
        """Return the TPR at an FPR target, for the uncertainty of both rates.

        An error a of the FPR moves the threshold, and the TPR by s·a, s the slope of the ROC. It is
        taken over as many false accepts as the FPR is uncertain by.
        """
        accepted = self.scores >= point.threshold
        share = self.share(accepted, ~self.same)
        reach = math.inf if not share.value else math.sqrt(share.variance) / share.value
        slope = self._slope(point, min(max(reach, LEAST_STEPS), MOST_STEPS))
        return point.tpr, self._rates(accepted, 1.0, -slope)

    def tpr_interval(self, point: OperatingPoint, alike: bool = False) -> Interval:
        """Return the interval of the TPR at an FPR target, for the uncertainty of both rates.

        On the logit scale, distances of two kinds add as squares: of the limits of the TPR at the
        threshold found, and of the TPRs that the ROC has at the limits of the FPR (MOVER; Zou and
        Donner, Statistics in Medicine 27, 2008). Few false accepts leave a wide and lopsided range
        of thresholds, which a slope would not follow. Above the highest different score their tail
        is taken for exponential, if three were accepted. With ``alike`` each subject weighs alike.
        """
        accepted = self.scores >= point.threshold
        share = self.share(accepted, self.same, alike)
        own = share.interval()
        if not 0 < point.true_accepts < point.mated or own.lacking:
            return own
        fpr = self.share(accepted, ~self.same).interval()
        roc = self.roc
        steps = np.append(0, np.flatnonzero(np.diff(roc.false_accepts)) + 1)
        false_accepts = np.append(roc.false_accepts[steps], roc.non_mated + 1) / (roc.non_mated + 1)
        of_accepts, different = self._reached(alike), self.non_mated
        reached = np.append(of_accepts[roc.true_accepts[steps]], 1.0)
        few = min(TAIL, different.size - 1)
        scale = float(different[-few:].mean() - different[-1 - few]) if few else 0.0
        least, centre = 1 / (2 * point.mated), _logit(share.value)
        limits = []
        for limit, rate in ((own.low, fpr.low), (own.high, fpr.high)):
            moved = float(np.interp(rate, false_accepts, reached))
            # One or two false accepts tell nothing of a tail: then the ROC is a line to the origin.
            if 0 < rate < false_accepts[1] and point.false_accepts > 2:
                beyond = different[-1] + scale * math.log(false_accepts[1] / rate)
                moved = float(of_accepts[np.count_nonzero(self.mated >= beyond)])
            ends = _logit(np.clip([limit, moved], least, 1 - least))
            limits.append(math.hypot(*(ends - centre)))
        low, high = expit([centre - limits[0], centre + limits[1]])
        return replace(own, low=float(low), high=float(high))

    def _reached(self, alike: bool) -> Array:
        """Return the TPR at which so many mated comparisons are accepted, ``(P + 1,)``."""
        who = self.first[self.same]
        weights = 1 / np.bincount(who)[who] if alike else np.ones(who.size)
        descending = np.argsort(-self.scores[self.same], kind="stable")
        return np.append(0, np.cumsum(weights[descending])) / weights.sum()

    def threshold_interval(self, point: OperatingPoint) -> Interval | None:
        """Return the interval of the threshold of an FPR target (Woodruff, JASA 47, 1952).

        Its limits are the scores at which the FPR reaches the limits of the interval of the FPR at
        the threshold found; the upper one is +inf where no different pair scores so high.
        """
        fpr = self.share(self.scores >= point.threshold, ~self.same).interval()
        if fpr.lacking or math.isnan(point.threshold):
            return None
        descending = self.non_mated[::-1]
        low, high = (
            float(descending[rank - 1]) if rank > 0 else math.inf
            for rank in (
                math.ceil(fpr.high * descending.size),
                math.floor(fpr.low * descending.size),
            )
        )
        limits = min(low, point.threshold), max(high, point.threshold)
        return replace(fpr, low=limits[0], high=limits[1])

    def _rates(self, accepted: NDArray[np.bool_], of_tpr: float, of_fpr: float) -> Array:
        """Return the influences of a weighted sum of TPR and FPR at one threshold."""
        influences = np.empty(self.scores.size)
        for kind, weight in ((self.same, of_tpr), (~self.same, of_fpr)):
            count = int(np.count_nonzero(kind))
            influences[kind] = weight * (accepted[kind] - accepted[kind].mean()) / count
        return influences

    def _slope(self, point: OperatingPoint, reach: float) -> float:
        """Return dTPR/dFPR of the ROC around a point, over a factor of exp(±reach) in FPR."""
        total = point.non_mated
        middle = max(point.false_accepts, 1)
        most = min(total, math.ceil(middle * math.exp(reach)))
        least = max(1, math.floor(middle * math.exp(-reach)))
        edges = self.non_mated[[total - most, total - least]]
        fpr = np.searchsorted(self.non_mated, edges) / total
        tpr = np.searchsorted(self.mated, edges) / point.mated
        return float((tpr[1] - tpr[0]) / (fpr[1] - fpr[0])) if fpr[1] > fpr[0] else 0.0


def share_below(ascending: NDArray[np.floating], scores: NDArray[np.floating]) -> Array:
    """Return the share of some scores that lies below each score, equal ones counting one half."""
    ends = (np.searchsorted(ascending, scores, side=side) for side in ("left", "right"))
    return np.asarray(sum(ends) / (2 * ascending.size), np.float64)
