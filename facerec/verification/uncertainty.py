"""Intervals of one bench's figures: by subjects where they are known, else as if independent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from facerec.statistics.influences import ScoredComparisons
from facerec.statistics.intervals import INDEPENDENT, Interval, normal
from facerec.statistics.kfold import KFoldAccuracy
from facerec.statistics.rates import OperatingPoint
from facerec.verification.bench import Pairs


class Uncertainty:
    """Makes the intervals of one set of scored pairs.

    Pairs that share a subject are dependent where subjects are known
    (`facerec.statistics.clustered`); else every pair stands for itself. `subjects` becomes the
    number of different subjects among the scored pairs, None if unknown, and `basis` what the
    intervals rest on.
    """

    def __init__(
        self, pairs: Pairs, scores: NDArray[np.floating], subjects_from: str | None
    ) -> None:
        """Take scores ``(n,)``, NaN where there is none."""
        self._pairs, self._valid = pairs, ~np.isnan(scores)
        same = pairs.issame[self._valid]
        clusters = pairs.clusters(self._valid)
        self.subjects = None if clusters is None else clusters[2]
        self.basis, sides = INDEPENDENT, None
        if clusters is not None:
            sides = clusters[:2]
            origin = "" if subjects_from is None else f" (known from {subjects_from})"
            self.basis = f"pairs that share one of {self.subjects:,} subjects{origin} are dependent"
        self.scored = ScoredComparisons.of(scores[self._valid], same, sides)

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
        assert self._pairs.folds is not None
        thresholds = np.asarray(accuracy.thresholds)[self._pairs.folds[self._valid]]
        right = (self.scored.scores >= thresholds) == self.scored.same
        return self.scored.share(right, np.ones(right.size, bool)).interval()

    def operating_points(
        self, points: Sequence[OperatingPoint]
    ) -> list[tuple[Interval, Interval, Interval | None]]:
        """Return the intervals of TPR, realised FPR and threshold at each operating point."""
        found = []
        for point in points:
            accepted = self.scored.scores >= point.threshold
            fpr = self.scored.share(accepted, ~self.scored.same).interval()
            threshold = self.scored.threshold_interval(point) if point.resolvable else None
            found.append((self.scored.tpr_interval(point), fpr, threshold))
        return found

    def auc(self) -> Interval:
        """Return the interval of the area under the ROC."""
        return self.scored.interval(self.scored.auc())

    def eer(self) -> Interval:
        """Return the interval of the equal error rate."""
        return self.scored.interval(self.scored.eer())


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
