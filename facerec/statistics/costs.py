"""Costs of errors: detection cost at a threshold (DCF), and of log-likelihood ratios (Cllr)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.errors import MetricError
from facerec.statistics.curves import RocCurve
from facerec.statistics.rates import ErrorRates, check_scores


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
    return _cost(
        application,
        roc.cut(best),
        (roc.mated - int(roc.true_accepts[best]), roc.mated),
        (int(roc.false_accepts[best]), roc.non_mated),
    )


def act_dcf(errors: ErrorRates, application: Application) -> DetectionCost:
    """Return the detection cost at a threshold that was fixed beforehand (actDCF).

    Comparisons without a score are left out, as from FMR and FNMR.
    """
    return _cost(
        application,
        errors.threshold,
        (errors.false_non_matches, errors.mated),
        (errors.false_matches, errors.non_mated),
    )


def cllr(mated: ArrayLike, non_mated: ArrayLike) -> float:
    """Return the cost of log-likelihood ratios in bits (Brümmer and du Preez, CSL 20, 2006).

    ½ [mean log₂(1 + e^−positive) + mean log₂(1 + e^negative)]; 0 is perfect, 1 is what the
    constant 0 costs, and a ratio that is wrong without bounds costs infinity.

    Args:
        mated: natural-log likelihood ratios of same pairs, ``(P,)``.
        non_mated: those of different pairs, ``(N,)``.

    Raises:
        MetricError: ratios are empty or NaN.
    """
    same = check_scores(mated, "scores of same pairs")
    different = check_scores(non_mated, "scores of different pairs")
    return (_bits(-same) + _bits(different)) / 2


def min_cllr(roc: RocCurve) -> float:
    """Return the Cllr after the best monotone calibration, in bits.

    That calibration is PAV with tied scores pooled, less the prior odds: on a segment of the ROC's
    hull the likelihood ratio is the slope (Brümmer 2010).
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


def _bits(exponents: NDArray[np.floating]) -> float:
    """Return the mean of log₂(1 + e^x) without overflow."""
    return float(np.logaddexp(0, exponents.astype(np.float64)).mean()) / math.log(2)


def _cost(
    application: Application,
    threshold: float,
    misses: tuple[int, int],
    false_alarms: tuple[int, int],
) -> DetectionCost:
    """Weigh errors of both kinds, each with its number of comparisons."""
    weights = application.weights
    raw = weights[0] * misses[0] / misses[1] + weights[1] * false_alarms[0] / false_alarms[1]
    return DetectionCost(raw, raw / min(weights), threshold, *misses, *false_alarms)
