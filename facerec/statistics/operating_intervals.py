"""Intervals at an operating point whose threshold comes from the same scores.

The threshold of a target FPR f is itself an estimate. Of N different pairs the true threshold
accepts a number J that is binomial with N and f, whatever the scores are distributed like: it lies
between the J-th and the (J + 1)-th highest of their scores (the interval of a quantile from order
statistics; David and Nagaraja, Order Statistics, 2003, 7.1). Of P same pairs it accepts a number
that is binomial with P and the TPR. Both together give the TPR's confidence distribution.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv

from facerec.statistics.curves import RocCurve
from facerec.statistics.intervals import INDEPENDENT, Interval, check_confidence
from facerec.statistics.operating_points import OperatingPoint, parse_rate

METHOD = "order statistics and binomial, shortest"
THRESHOLD_METHOD = "order statistics"

# Cells of the threshold's position among the scores, values of the TPR, and ways to share out the
# tails: enough for limits that are right to a hundredth of the interval.
_CELLS, _VALUES, _TAILS = 128, 129, 101


def tpr_interval(
    roc: RocCurve,
    point: OperatingPoint,
    confidence: float = 0.95,
    effective: tuple[float, float] | None = None,
) -> Interval:
    """Return the interval of the TPR at a target FPR, for the uncertainty of both rates.

    It is the shortest of its confidence. Above the highest score of a different pair the ROC is
    taken for a straight line to the origin, below which a concave ROC cannot fall; with few false
    accepts the lower limit rests on that.

    Args:
        roc: of all scores.
        point: `RocCurve.tpr_at_fpr` at the target.
        confidence: coverage, between 0 and 1.
        effective: effective numbers of same and different pairs; by default their numbers.

    Raises:
        MetricError: an impossible confidence.
    """
    check_confidence(confidence)
    same, different = effective or (float(point.mated), float(point.non_mated))
    edges, shares = _threshold_cells(parse_rate(point.target), different)
    # The j-th highest score of a different pair stands for an FPR of j/(N + 1).
    steps = np.append(0, np.flatnonzero(np.diff(roc.false_accepts)) + 1)
    fpr = np.append(roc.false_accepts[steps], roc.non_mated + 1) / (roc.non_mated + 1)
    tpr = np.append(roc.true_accepts[steps], roc.mated) / roc.mated
    tpr_of_cell = np.interp((edges[1:] + edges[:-1]) / 2, fpr, tpr)
    # Jeffreys' prior Beta(½, ½).
    hits, misses = tpr_of_cell * same + 0.5, (1 - tpr_of_cell) * same + 0.5
    values = np.linspace(
        betaincinv(hits[0], misses[0], 1e-4), betaincinv(hits[-1], misses[-1], 1 - 1e-4), _VALUES
    )
    below = shares @ betainc(hits[:, np.newaxis], misses[:, np.newaxis], values)
    tails = np.linspace(0, 1 - confidence, _TAILS)
    lows, highs = np.interp(tails, below, values), np.interp(tails + confidence, below, values)
    shortest = int(np.argmin(highs - lows))
    return Interval(
        min(float(lows[shortest]), point.tpr),
        max(float(highs[shortest]), point.tpr),
        confidence,
        METHOD,
        INDEPENDENT,
        None if effective is None else same,
    )


def threshold_interval(
    roc: RocCurve,
    point: OperatingPoint,
    confidence: float = 0.95,
    effective: float | None = None,
) -> Interval:
    """Return the interval of the threshold that belongs to a target FPR.

    Its limits are scores of different pairs, the upper one +inf where there are too few above.
    With independent comparisons it covers at least as often as it says.

    Args:
        roc: of all scores.
        point: `RocCurve.tpr_at_fpr` at the target.
        confidence: coverage, between 0 and 1.
        effective: effective number of different pairs; by default their number.

    Raises:
        MetricError: an impossible confidence.
    """
    check_confidence(confidence)
    rate, different = parse_rate(point.target), effective or float(point.non_mated)
    tail = (1 - confidence) / 2
    # Rounding must not take a whole number for the next one.
    first, last = (
        _threshold_quantile(rate, different, chance) * (roc.non_mated + 1)
        for chance in (tail, 1 - tail)
    )
    above, below = int(np.floor(first + 1e-9)), int(np.ceil(last - 1e-9))
    return Interval(
        _score(roc, below), _score(roc, above), confidence, THRESHOLD_METHOD, INDEPENDENT, effective
    )


def realised_fpr_interval(point: OperatingPoint, confidence: float = 0.95) -> Interval:
    """Return the interval of the FPR of a threshold just above an observed score.

    Above the (k + 1)-th highest of N independent scores the true FPR has the distribution
    Beta(k + 1, N − k), whatever the scores are distributed like.

    Raises:
        MetricError: an impossible confidence.
    """
    check_confidence(confidence)
    accepted, rejected = point.false_accepts, point.non_mated - point.false_accepts
    tail = (1 - confidence) / 2
    if rejected == 0:  # all are accepted
        return Interval(
            float(betaincinv(accepted, 1, 1 - confidence)), 1.0, confidence, THRESHOLD_METHOD
        )
    low, high = (float(betaincinv(accepted + 1, rejected, q)) for q in (tail, 1 - tail))
    # A limit may pass the observed rate where nothing is accepted.
    return Interval(
        min(low, point.fpr_realised), max(high, point.fpr_realised), confidence, THRESHOLD_METHOD
    )


def _before(
    position: NDArray[np.float64] | float, rate: Fraction, count: float
) -> NDArray[np.float64]:
    """Return the chance that the true threshold's position is not beyond ``position``, from 0 to 1.

    At j/(N + 1) it is the chance that a binomial number is below j; in between it is continuous.
    """
    share = np.clip(position, 0.0, 1.0)
    inside = (share > 0) & (share < 1)
    total = count + 1
    beta = betainc(
        np.where(inside, total * (1 - share), 1),
        np.where(inside, total * share, 1),
        float(1 - rate),
    )
    return np.where(inside, beta, share >= 1)


def _threshold_cells(
    rate: Fraction, count: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return edges of cells of the threshold's position, and how likely each cell is."""
    f = float(rate)
    reach = 6 * np.sqrt(f * (1 - f) / count) + 12 / count
    edges = np.linspace(max(0.0, f - reach), min(1.0, f + reach), _CELLS + 1)
    shares = np.diff(_before(edges, rate, count))
    return edges, shares / shares.sum()


def _threshold_quantile(rate: Fraction, count: float, chance: float) -> float:
    """Return the position before which the true threshold lies with a chance."""
    if rate in (0, 1):
        return float(rate)
    return float(brentq(lambda position: float(_before(position, rate, count)) - chance, 0.0, 1.0))


def _score(roc: RocCurve, rank: int) -> float:
    """Return the score of the different pair of a rank; those beyond the ends are infinite."""
    if rank < 1:
        return float("inf")
    if rank > roc.non_mated:
        return float("-inf")
    return float(roc.thresholds[np.searchsorted(roc.false_accepts, rank)])
