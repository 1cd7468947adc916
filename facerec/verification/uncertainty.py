"""Intervals of one bench's figures: by subjects where they are known, else as if independent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from facerec.statistics.bootstrap import OperatingReplicates, VertexBootstrap, percentile_interval
from facerec.statistics.clustered import (
    DEPENDENT,
    ClusteredFigure,
    fmr_interval,
    fnmr_interval,
    share_interval,
)
from facerec.statistics.intervals import INDEPENDENT, Interval, normal, wilson
from facerec.statistics.kfold import KFoldAccuracy
from facerec.statistics.operating_intervals import (
    realised_fpr_interval,
    threshold_interval,
    tpr_interval,
)
from facerec.statistics.rates import EqualErrorRate, OperatingPoint, SortedScores
from facerec.verification.bench import Pairs

MAX_CELLS = 4_000_000_000
"""Pairs × replicates; with more pairs there are fewer replicates, and below 200 none."""

MIN_SUBJECTS = 4
"""With fewer there are no two disjoint pairs of subjects, and no variance between subjects."""


class Uncertainty:
    """Makes the intervals of one set of scored pairs.

    Rates at a threshold, AUC and EER get an interval with the effective number of comparisons,
    TPR@FPR and its threshold a bootstrap over subjects. Where subjects are unknown, or no bootstrap
    is asked for, TPR@FPR and the threshold follow from order statistics. Scores ``(n,)`` are NaN
    where there is none; ``figures`` has them sorted. `subjects` becomes the number of different
    subjects among the scored pairs, None if unknown, and `basis` what the intervals rest on.
    """

    def __init__(
        self,
        pairs: Pairs,
        scores: NDArray[np.floating],
        figures: SortedScores,
        subjects_from: str | None,
        replicates: int,
        seed: int,
    ) -> None:
        self._pairs, self._figures = pairs, figures
        self._replicates, self._seed = min(replicates, MAX_CELLS // len(pairs)), seed
        if self._replicates < min(replicates, 200):
            self._replicates = 0
        self._valid = ~np.isnan(scores)
        self._scores = scores[self._valid]
        self._same = pairs.issame[self._valid]
        self.subjects: int | None = None
        self.basis = INDEPENDENT
        clusters = pairs.clusters(self._valid)
        if clusters is None:
            return
        self._first, self._second, self.subjects = clusters
        if not self._known:
            return
        origin = "" if subjects_from is None else f" (known from {subjects_from})"
        self.basis = f"pairs that share one of {self.subjects:,} subjects{origin} are dependent"
        if self._replicates:
            self.basis += f"; {self._replicates:,} bootstraps over subjects for TPR@FPR"

    @property
    def _known(self) -> bool:
        return self.subjects is not None and self.subjects >= MIN_SUBJECTS

    def notes(self) -> list[str]:
        """Say where labels and subjects contradict each other."""
        sides = self._pairs.subject_pairs()
        if sides is None:
            return []
        wrong = self._pairs.issame != (sides[0] == sides[1])
        doubts = []
        for label, kind, fact in ((1, "same", "two subjects"), (0, "different", "one subject")):
            odd = np.flatnonzero(wrong & (self._pairs.issame == label))
            if odd.size:
                doubts.append(
                    f"{odd.size} pairs labelled {kind} show {fact} by the names or the other "
                    f"labels, the first is pair {odd[0]}; their labels are taken as they are"
                )
        return doubts

    def accuracy(self, accuracy: KFoldAccuracy) -> Interval:
        """Return the interval of the share of held-out pairs judged rightly."""
        if not self._known:
            return wilson(accuracy.correct, accuracy.pairs)
        assert self._pairs.folds is not None
        thresholds = np.asarray(accuracy.thresholds)[self._pairs.folds[self._valid]]
        right = (self._scores >= thresholds) == self._same
        return share_interval(right, self._first, self._second)

    def operating_points(
        self, points: Sequence[OperatingPoint]
    ) -> list[tuple[Interval, Interval, Interval | None]]:
        """Return the intervals of TPR, realised FPR and threshold at each operating point."""
        if not self._known:
            roc = self._figures.roc()
            return [
                (
                    tpr_interval(roc, point),
                    realised_fpr_interval(point),
                    threshold_interval(roc, point) if point.resolvable else None,
                )
                for point in points
            ]
        drawn: dict[str, OperatingReplicates] = {}
        targets = [point.target for point in points if point.resolvable]
        if self._replicates and targets:
            replicates = self._bootstrap.tpr_at_fpr(self._scores, targets)
            drawn = dict(zip(targets, replicates, strict=True))
        return [self._operating_point(point, drawn.get(point.target)) for point in points]

    def _operating_point(
        self, point: OperatingPoint, drawn: OperatingReplicates | None
    ) -> tuple[Interval, Interval, Interval | None]:
        accepted = self._scores >= point.threshold
        same, other = self._same, ~self._same
        fpr = fmr_interval(accepted[other], self._first[other], self._second[other])
        fnmr = fnmr_interval(~accepted[same], self._first[same])
        tpr = replace(fnmr, low=1 - fnmr.high, high=1 - fnmr.low)
        if drawn is not None:
            # Without a miss or without a hit all replicates agree, and tell nothing.
            if 0 < point.true_accepts < point.mated:
                tpr = percentile_interval(point.tpr, drawn.tpr)
            return tpr, fpr, percentile_interval(point.threshold, drawn.threshold)
        if fpr.effective is None or fnmr.effective is None or not point.resolvable:
            return tpr, fpr, None
        roc = self._figures.roc()
        tpr = tpr_interval(roc, point, effective=(fnmr.effective, fpr.effective))
        threshold = threshold_interval(roc, point, effective=fpr.effective)
        return replace(tpr, assumption=DEPENDENT), fpr, replace(threshold, assumption=DEPENDENT)

    def auc(self) -> Interval:
        """Return the interval of the area under the ROC."""
        area = self._figures.auc()
        if not self._known:
            return self._figures.auc_interval()
        positives, negatives = self._figures.mated, self._figures.non_mated
        # Share of the other class that each score beats, ties counting one half.
        beaten = _below(negatives, self._scores) - area
        beaters = 1 - _below(positives, self._scores) - area
        influences = np.where(self._same, beaten / positives.size, beaters / negatives.size)
        return self._clustered(area, influences)

    def eer(self, eer: EqualErrorRate) -> Interval:
        """Return the interval of the equal error rate."""
        if not self._known:
            return eer.interval()
        # Small errors a of the FPR and b of the FNMR move the crossing by (s·a + b)/(s + 1).
        weight = 1.0 if np.isinf(eer.slope) else eer.slope / (eer.slope + 1)
        accepted = self._scores >= self._figures.roc().eer_threshold()
        misses = (1 - weight) * (~accepted - eer.rate) / eer.mated
        false_accepts = weight * (accepted - eer.rate) / eer.non_mated
        return self._clustered(eer.rate, np.where(self._same, misses, false_accepts))

    def _clustered(self, value: float, influences: NDArray[np.float64]) -> Interval:
        assert self.subjects is not None
        if value not in (0, 1):
            figure = ClusteredFigure.from_influences(value, influences, self._first, self._second)
            return figure.interval()
        # The scores do not overlap: disjoint pairs of subjects count.
        disjoint = self.subjects // 2
        return replace(
            wilson(value * disjoint, disjoint),
            assumption="conservative: disjoint pairs of subjects alone are counted",
            effective=float(disjoint),
        )

    @cached_property
    def _bootstrap(self) -> VertexBootstrap:
        return VertexBootstrap(
            self._first, self._second, self._same, replicates=self._replicates, seed=self._seed
        )


def _below(ascending: NDArray[np.floating], scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the share of some scores that lies below each score, equal ones counting one half."""
    ends = (np.searchsorted(ascending, scores, side=side) for side in ("left", "right"))
    return np.asarray(sum(ends) / (2 * ascending.size), np.float64)


def mean_interval(values: NDArray[np.floating], clusters: NDArray[np.integer]) -> Interval:
    """Return the 95 % interval of a mean of values that come in clusters.

    Values of one cluster (images of one subject) may depend on each other; clusters do not. The
    variance is that of the ratio estimator, Σ_c (Σ_{i∈c} (x_i − x̄))² / n² · C/(C − 1), the quantile
    that of t with C − 1 degrees of freedom (Cochran, Sampling Techniques, 1977, 9A).

    Both arrays are ``(n,)``.
    """
    mean = float(values.mean())
    _, cluster = np.unique(clusters, return_inverse=True)
    sums = np.bincount(cluster, values - mean)
    if sums.size < 2:
        return normal(mean, float("nan"))
    error = np.sqrt((sums @ sums) * sums.size / (sums.size - 1)) / values.size
    margin = float(stdtrit(sums.size - 1, 0.975) * error)
    return Interval(mean - margin, mean + margin, method="t over clusters", assumption="")
