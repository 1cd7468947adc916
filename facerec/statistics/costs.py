"""Least costs of errors: of decisions (DCF), and of log-likelihood ratios (Cllr)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from facerec.errors import MetricError
from facerec.statistics.curves import RocCurve


@dataclass(frozen=True)
class Application:
    """What an application expects and what errors cost there."""

    prior: float
    """Probability that a comparison is mated, between 0 and 1."""
    miss: float = 1.0
    """Cost of a false non-match."""
    false_alarm: float = 1.0
    """Cost of a false match."""

    def __post_init__(self) -> None:
        costs = (self.miss, self.false_alarm)
        if not (0 < self.prior < 1 and all(0 < cost < math.inf for cost in costs)):
            raise MetricError(
                f"no detection cost for prior {self.prior} and costs {self.miss} and "
                f"{self.false_alarm}: the prior lies between 0 and 1, costs are above 0"
            )

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of FNMR and FMR: C_miss·π and C_fa·(1 − π)."""
        return self.miss * self.prior, self.false_alarm * (1 - self.prior)


@dataclass(frozen=True)
class DetectionCost:
    """Expected cost of a decision, C_miss·π·FNMR + C_fa·(1 − π)·FMR."""

    raw: float
    normalised: float
    """Over the cost of accepting or rejecting everything, whichever is less; 1 is useless."""
    threshold: float
    false_non_matches: int
    mated: int
    false_matches: int
    non_mated: int


def min_dcf(roc: RocCurve, application: Application) -> DetectionCost:
    """Return the least detection cost over all thresholds (NIST's minDCF).

    The threshold lies midway between the scores that it separates; of equally good ones it is the
    highest.
    """
    miss, false_alarm = application.weights
    best = int(np.argmin(miss * roc.fnmr + false_alarm * roc.fpr))
    misses = roc.mated - int(roc.true_accepts[best])
    false_alarms = int(roc.false_accepts[best])
    raw = miss * misses / roc.mated + false_alarm * false_alarms / roc.non_mated
    normalised = raw / min(miss, false_alarm)
    threshold = roc.cut(best)
    return DetectionCost(raw, normalised, threshold, misses, roc.mated, false_alarms, roc.non_mated)


def min_cllr(roc: RocCurve) -> float:
    """Return the cost of log-likelihood ratios after the best monotone calibration, in bits.

    Cllr is ½ [mean log₂(1 + e^−mated) + mean log₂(1 + e^non-mated)] (Brümmer and du Preez, CSL 20,
    2006): 0 is perfect, 1 is what the constant 0 costs. That calibration is PAV with tied scores
    pooled, less the prior odds: on a segment of the ROC's hull the likelihood ratio is the slope
    (Brümmer 2010).
    """
    hull = roc.hull()
    same, different = np.diff(hull.tpr), np.diff(hull.fpr)
    with np.errstate(divide="ignore", invalid="ignore"):
        misses = same * np.log1p(different / same)
        false_alarms = different * np.log1p(same / different)
    # A block of one class is calibrated to certainty and costs nothing: 0 · ∞.
    pure = (same == 0) | (different == 0)
    total = np.where(pure, 0, misses + false_alarms).sum()
    return float(total) / (2 * math.log(2))
