"""Verification rates from two sets of similarity scores: ROC, TPR at an FPR, AUC, EER.

A pair matches if ``score >= threshold``. Everything is computed from integer counts over the
distinct scores, so tied scores are never told apart and no point of a curve is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from facerec.errors import MetricError
from facerec.statistics.intervals import Interval, wilson

Rate = str | Fraction | float
"""A rate in [0, 1]; a literal such as ``"1e-3"`` or ``"1/3"`` is taken exactly."""

RULE_OF_30 = 30
"""Below 30 expected errors a rate is uncertain by more than ±30 % (Doddington's rule)."""


@dataclass(frozen=True)
class OperatingPoint:
    """One point of the ROC: the best TPR whose FPR does not exceed a target."""

    target: str
    """The FPR asked for, as it was written."""
    tpr: float
    """Share of positives at or above the threshold."""
    threshold: float
    """Accept if ``score >= threshold``; NaN, which nothing reaches, if all must be rejected."""
    fpr_realised: float
    """Share of negatives at or above the threshold, never more than the target."""
    true_accepts: int
    positives: int
    false_accepts: int
    negatives: int
    resolvable: bool
    """Whether the target leaves room for one false accept at all (target · N ≥ 1)."""
    reliable: bool
    """Whether it leaves room for 30, so that the rule of 30 holds."""


@dataclass(frozen=True)
class RocCurve:
    """The whole ROC, one entry a distinct threshold, from "reject all" to "accept all"."""

    thresholds: NDArray[np.floating]
    """Descending, ``(M + 1,)``; the first one rejects everything."""
    false_accepts: NDArray[np.int64]
    true_accepts: NDArray[np.int64]
    negatives: int
    positives: int

    @property
    def fpr(self) -> NDArray[np.float64]:
        """False positive rates, ascending, ``(M + 1,)``."""
        return self.false_accepts / self.negatives

    @property
    def tpr(self) -> NDArray[np.float64]:
        """True positive rates, ascending, ``(M + 1,)``."""
        return self.true_accepts / self.positives


@dataclass(frozen=True)
class EqualErrorRate:
    """The rate at which FPR and FNMR meet on the convex hull of the ROC."""

    rate: float
    slope: float
    """Slope dTPR/dFPR of the hull there: the likelihood ratio of the scores at that threshold."""
    positives: int
    negatives: int

    def interval(self, confidence: float = 0.95) -> Interval:
        """Wilson interval with the effective number of comparisons at the crossing.

        With the slope s, a small error a of the FPR and b of the FNMR move the crossing by
        (s·a + b)/(s + 1); hence n_eff = (s + 1)² / (s²/N + 1/P).
        """
        if math.isinf(self.slope):
            effective = float(self.negatives)
        else:
            scale = (self.slope + 1) ** 2
            effective = scale / (self.slope**2 / self.negatives + 1 / self.positives)
        return wilson(self.rate * effective, effective, confidence)


@dataclass(frozen=True)
class StepEqualErrorRate:
    """The equal error rate of the step functions, as FVC2000 reports it: an interval."""

    low: float
    high: float

    @property
    def rate(self) -> float:
        """Middle of the interval."""
        return (self.low + self.high) / 2


@dataclass(frozen=True)
class ErrorRates:
    """Errors at one fixed threshold, with failures to acquire (ISO/IEC 19795-1 names)."""

    threshold: float
    false_matches: int
    non_mated: int
    false_non_matches: int
    mated: int
    failures: int
    """Comparisons without a score (NaN), mated and non-mated together."""

    @property
    def fmr(self) -> float:
        """False match rate among the non-mated comparisons that have a score."""
        return self.false_matches / self.non_mated

    @property
    def fnmr(self) -> float:
        """False non-match rate among the mated comparisons that have a score."""
        return self.false_non_matches / self.mated

    @property
    def fta(self) -> float:
        """Failure to acquire rate."""
        return self.failures / (self.failures + self.mated + self.non_mated)

    @property
    def far(self) -> float:
        """False accept rate: FMR · (1 − FTA)."""
        return self.fmr * (1 - self.fta)

    @property
    def frr(self) -> float:
        """False reject rate: FTA + FNMR · (1 − FTA)."""
        return self.fta + self.fnmr * (1 - self.fta)

    @property
    def hter(self) -> float:
        """Half total error rate: the mean of FAR and FRR."""
        return (self.far + self.frr) / 2


def parse_rate(rate: Rate) -> Fraction:
    """Return a rate as an exact fraction; a float counts as its shortest decimal text.

    Binary products are wrong at the edges (``int(0.29 * 100)`` is 28), fractions are not.

    Raises:
        MetricError: not a number between 0 and 1.
    """
    text = str(rate).strip()
    try:
        if "/" in text:
            value = Fraction(text)
        else:
            decimal = Decimal(text)
            # Fraction writes the exponent out in digits, so an absurd one must not get there.
            absurd = not decimal.is_finite() or (decimal != 0 and decimal.adjusted() < -400)
            value = Fraction(-1) if absurd or decimal > 1 else Fraction(decimal)
    except (ValueError, ZeroDivisionError, InvalidOperation):
        value = Fraction(-1)
    if not 0 <= value <= 1:
        raise MetricError(
            f"FPR target {text!r} is not a rate between 0 and 1; write it as 1e-3, 0.001 or 1/1000"
        )
    return value


@dataclass(frozen=True)
class SortedScores:
    """Positive and negative scores, ascending and of one dtype: many figures from one sort.

    Build it with `sort_scores`.
    """

    positives: NDArray[np.floating]
    negatives: NDArray[np.floating]

    def tpr_at_fpr(self, fpr: Rate) -> OperatingPoint:
        """See `tpr_at_fpr`; logarithmic in the number of scores."""
        return _operating_point(
            fpr,
            self.positives.size,
            self.negatives.size,
            boundary=lambda rank: self.negatives[self.negatives.size - 1 - rank],
            accepts=lambda threshold: (
                self.positives.size - int(np.searchsorted(self.positives, threshold)),
                self.negatives.size - int(np.searchsorted(self.negatives, threshold)),
            ),
        )

    def roc(self) -> RocCurve:
        """Return the ROC over all distinct scores, none dropped."""
        distinct = np.unique(np.concatenate([self.positives, self.negatives]))[::-1]
        thresholds = np.concatenate([[_just_above(distinct[0])], distinct]).astype(distinct.dtype)
        return RocCurve(
            thresholds,
            self.negatives.size - np.searchsorted(self.negatives, thresholds),
            self.positives.size - np.searchsorted(self.positives, thresholds),
            self.negatives.size,
            self.positives.size,
        )

    def auc(self) -> float:
        """Return the area under the ROC as the Mann–Whitney statistic; ties count one half."""
        below = np.searchsorted(self.negatives, self.positives, side="left")
        not_above = np.searchsorted(self.negatives, self.positives, side="right")
        doubled = int(below.sum(dtype=np.int64)) + int(not_above.sum(dtype=np.int64))
        return doubled / (2 * self.positives.size * self.negatives.size)

    def auc_interval(self, confidence: float = 0.95) -> Interval:
        """Return Wilson's interval of the AUC with an effective number of comparisons.

        The number is AUC · (1 − AUC) over DeLong's variance (DeLong et al., Biometrics 44, 1988).
        It cannot be less than min(P, N) (van Dantzig 1951), which is taken where the estimated
        variance says nothing, as on separated scores.
        """
        counts = self.positives.size, self.negatives.size
        area, least = self.auc(), min(counts)
        variance = 0.0
        if least > 1:
            variance = sum(
                float(np.var(_placements(of, among), ddof=1)) / of.size
                for of, among in (
                    (self.positives, self.negatives),
                    (self.negatives, self.positives),
                )
            )
        effective = area * (1 - area) / variance if variance > 0 else 0.0
        effective = max(effective, float(least))
        return wilson(area * effective, effective, confidence)

    def eer_rocch(self) -> EqualErrorRate:
        """Return where the convex hull of the ROC crosses FPR = FNMR (Bosaris; Brümmer 2010).

        The hull comes from the pool-adjacent-violators algorithm on scores with ties pooled.
        """
        roc = self.roc()
        positives, negatives = np.diff(roc.true_accepts), np.diff(roc.false_accepts)
        weights = positives + negatives
        # PAV wants a non-decreasing target; along the ROC the likelihood ratio falls.
        pooled = isotonic_regression(positives / weights, weights=weights, increasing=False)
        hull_fpr = roc.fpr[pooled.blocks]
        hull_fnmr = 1 - roc.tpr[pooled.blocks]
        after = int(np.argmax(hull_fpr >= hull_fnmr))
        x, y = hull_fpr[after - 1 : after + 1], hull_fnmr[after - 1 : after + 1]
        gap = y - x
        share = gap[0] / (gap[0] - gap[1])
        rate = float(x[0] + share * (x[1] - x[0]))
        rise, run = float(y[0] - y[1]), float(x[1] - x[0])
        slope = rise / run if run > 0 else math.inf
        return EqualErrorRate(rate, slope, self.positives.size, self.negatives.size)

    def eer_step(self) -> StepEqualErrorRate:
        """Return the equal error rate of the step functions (FVC2000, Maio et al. 2002)."""
        roc = self.roc()
        # Over the common denominator P·N the comparisons are exact.
        fmr = [int(count) for count in roc.false_accepts]
        fnmr = [roc.positives - int(count) for count in roc.true_accepts]
        scaled_fmr = roc.false_accepts.astype(object) * roc.positives
        scaled_fnmr = (roc.positives - roc.true_accepts).astype(object) * roc.negatives
        # Thresholds descend: the last one with FMR <= FNMR is FVC's t2, the next one is t1.
        second = int(np.flatnonzero(scaled_fmr <= scaled_fnmr)[-1])
        first = second if scaled_fmr[second] == scaled_fnmr[second] else second + 1
        costs = [scaled_fmr[i] + scaled_fnmr[i] for i in (first, second)]
        chosen = first if costs[0] <= costs[1] else second
        low, high = sorted([fmr[chosen] / roc.negatives, fnmr[chosen] / roc.positives])
        return StepEqualErrorRate(low, high)

    def d_prime(self) -> float:
        """Return d′ = abs(μ₊ − μ₋) / √(½(σ₊² + σ₋²)), variances with ddof 0; NaN if both are 0."""
        positives = self.positives.astype(np.float64)
        negatives = self.negatives.astype(np.float64)
        spread = math.sqrt((float(positives.var()) + float(negatives.var())) / 2)
        gap = abs(float(positives.mean()) - float(negatives.mean()))
        return gap / spread if spread > 0 else math.nan


def sort_scores(positives: ArrayLike, negatives: ArrayLike) -> SortedScores:
    """Check and sort two sets of scores, ``(P,)`` and ``(N,)``.

    Raises:
        MetricError: a set is empty, not one-dimensional, not real numbers, or holds NaN.
    """
    positives, negatives = _common(positives, negatives)
    return SortedScores(np.sort(positives), np.sort(negatives))


def tpr_at_fpr(positives: ArrayLike, negatives: ArrayLike, fpr: Rate) -> OperatingPoint:
    """Return max { TPR(t) : FPR(t) ≤ fpr } over all thresholds, in O(P + N).

    It is the value of a step function: nothing is interpolated, no nearest point is taken, and
    the realised FPR never exceeds the target.

    Args:
        positives: scores of same pairs, ``(P,)``; infinities are legal.
        negatives: scores of different pairs, ``(N,)``.
        fpr: the target as text, fraction or float.

    Raises:
        MetricError: scores are empty or NaN, or the target is no rate.

    Example:
        >>> tpr_at_fpr([0.8, 0.7, 0.6], [0.9, 0.5], "1/2").tpr
        1.0
    """
    positives, negatives = _common(positives, negatives)

    def boundary(rank: int) -> np.floating:
        index = negatives.size - 1 - rank
        return np.partition(negatives, index)[index]

    def accepts(threshold: np.floating) -> tuple[int, int]:
        return (
            int(np.count_nonzero(positives >= threshold)),
            int(np.count_nonzero(negatives >= threshold)),
        )

    return _operating_point(fpr, positives.size, negatives.size, boundary, accepts)


def roc_curve(positives: ArrayLike, negatives: ArrayLike) -> RocCurve:
    """Return the ROC over all distinct scores; see `SortedScores.roc`."""
    return sort_scores(positives, negatives).roc()


def auc(positives: ArrayLike, negatives: ArrayLike) -> float:
    """Return the area under the ROC; see `SortedScores.auc`."""
    return sort_scores(positives, negatives).auc()


def eer_rocch(positives: ArrayLike, negatives: ArrayLike) -> float:
    """Return the equal error rate on the convex hull; see `SortedScores.eer_rocch`."""
    return sort_scores(positives, negatives).eer_rocch().rate


def eer_step(positives: ArrayLike, negatives: ArrayLike) -> StepEqualErrorRate:
    """Return the equal error rate of the step functions; see `SortedScores.eer_step`."""
    return sort_scores(positives, negatives).eer_step()


def d_prime(positives: ArrayLike, negatives: ArrayLike) -> float:
    """Return the separation d′ of two score sets; see `SortedScores.d_prime`."""
    return sort_scores(positives, negatives).d_prime()


def error_rates(positives: ArrayLike, negatives: ArrayLike, threshold: float) -> ErrorRates:
    """Count errors at a fixed threshold; NaN scores are failures to acquire.

    Raises:
        MetricError: no positive or no negative comparison has a score.
    """
    mated, non_mated = np.asarray(positives), np.asarray(negatives)
    failures = int(np.isnan(mated).sum() + np.isnan(non_mated).sum())
    mated, non_mated = _common(mated[~np.isnan(mated)], non_mated[~np.isnan(non_mated)])
    return ErrorRates(
        threshold=float(threshold),
        false_matches=int(np.count_nonzero(non_mated >= threshold)),
        non_mated=non_mated.size,
        false_non_matches=int(np.count_nonzero(mated < threshold)),
        mated=mated.size,
        failures=failures,
    )


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
    positives: ArrayLike, negatives: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    first = check_scores(positives, "scores of same pairs")
    second = check_scores(negatives, "scores of different pairs")
    dtype = np.result_type(first, second)
    return first.astype(dtype, copy=False), second.astype(dtype, copy=False)


def _placements(of: NDArray[np.floating], among: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return for every score of ``of`` the share of ``among`` below it, ties counting one half."""
    left, right = np.searchsorted(among, of, side="left"), np.searchsorted(among, of, side="right")
    return (left + right) / (2 * among.size)


def _just_above(score: np.floating) -> np.floating:
    """Return the lowest threshold that rejects ``score``, in its own dtype; NaN above +inf."""
    if score == np.inf:
        return score.dtype.type(np.nan)
    with np.errstate(over="ignore"):  # above the largest number comes +inf, as it should
        return np.nextafter(score, score.dtype.type(np.inf))


def _operating_point(
    fpr: Rate,
    positives: int,
    negatives: int,
    boundary: Callable[[int], np.floating],
    accepts: Callable[[np.floating], tuple[int, int]],
) -> OperatingPoint:
    """Apply the step rule; ``boundary(k)`` gives the negative that k others exceed or equal."""
    rate = parse_rate(fpr)
    allowed = math.floor(rate * negatives)
    threshold = np.float64(-np.inf) if allowed >= negatives else _just_above(boundary(allowed))
    true_accepts, false_accepts = accepts(threshold)
    return OperatingPoint(
        target=str(fpr),
        tpr=true_accepts / positives,
        threshold=float(threshold),
        fpr_realised=false_accepts / negatives,
        true_accepts=true_accepts,
        positives=positives,
        false_accepts=false_accepts,
        negatives=negatives,
        resolvable=rate * negatives >= 1,
        reliable=allowed >= RULE_OF_30,
    )
