"""Whether one arm differs from another, over seeds, over test classes, and over both.

The unit is the paired difference of one seed: arm − base with equal splits and data order. Its
spread over seeds says what another training would give on these test classes; leaving out one class
at a time says what other test classes would give with these trainings; together they say both.
Figures of single queries are kept, so nothing is searched anew; the set of references is held
fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import stdtrit
from scipy.stats import binom, nct, rankdata

from facerec.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import paired_difference
from facerec.statistics.intervals import Interval, check_confidence
from facerec.statistics.multiplicity import holm

ONE_SEED = "one seed tells nothing of the spread over trainings"
ONE_CLASS = "one test class tells nothing of the spread over classes"

_POWER = 0.8
"""Share of repetitions of a design that shall find a difference, where one is stated."""

_EXACT_SEEDS = 16
"""Up to so many seeds every combination of signs is tried."""

_SIMULATED_SEEDS = 12
"""Up to so many seeds the power of the sign-flip test is simulated."""

_DRAWS = 4000
"""Samples of such a simulation: the power is known to 0.006."""

_CELLS = 1 << 22
"""Weights that are held at once as float64."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SeedMean(Estimate):
    """A mean over seeds and, where figures of single queries are given, over test queries.

    The headline interval is the joint one, or that over seeds where no class is known.
    """

    value: float
    total: int
    """Seeds."""
    over_seeds: Interval | None
    """Student's t; None for one seed."""
    over_classes: Interval | None
    """Leaving out one class at a time; None for one class or without figures of single queries."""
    joint: Interval | None
    """Both together; None where either is."""


@dataclass(frozen=True, kw_only=True)
class PairedDifference(SeedMean):
    """An arm minus its base; the value is the mean of the paired differences."""

    differences: tuple[float, ...]
    """Of each seed."""
    p: float | None
    """Two-sided, see `sign_flip_p`; None for one seed."""
    p_holm: float | None = None
    """Adjusted for the family, see `adjust`."""


def mean_over_seeds(
    values: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    confidence: float = 0.95,
) -> SeedMean:
    """Return the mean of a figure with its intervals over seeds, over test classes and over both.

    One test class is left out at a time; variances over classes and over seeds are added
    (`facerec.statistics.clustered.paired_difference`).

    Args:
        values: of each seed, ``(n,)``, or of each seed and query, ``(n, q)``.
        labels: class of each query, ``(q,)``; needed for the latter.
        confidence: coverage, between 0 and 1.

    Raises:
        MetricError: shapes that do not fit, a value that is not finite, an impossible confidence.
    """
    check_confidence(confidence)
    known = _checked(values, axes=1 if labels is None else 2)
    of_seeds = known if labels is None else known.mean(axis=1)
    reasons = [] if len(of_seeds) > 1 else [ONE_SEED]
    over_seeds = paired_difference(of_seeds, [], confidence)
    over_classes = joint = None
    if labels is not None:
        left_out = _without_each(known, labels)
        over_classes = paired_difference([of_seeds.mean()], left_out, confidence)
        if len(of_seeds) > 1 and over_classes:
            joint = paired_difference(of_seeds, left_out, confidence)
        reasons += [] if left_out.size else [ONE_CLASS]
    return SeedMean(
        value=float(of_seeds.mean()),
        interval=over_seeds if over_classes is None else joint,
        total=len(of_seeds),
        remark="; ".join(reasons),
        over_seeds=over_seeds,
        over_classes=over_classes,
        joint=joint,
    )


def compare_paired(
    arm: ArrayLike,
    base: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> PairedDifference:
    """Return arm − base, paired by seed and by query, with its intervals and p.

    Args:
        arm: of each seed, ``(n,)``, or of each seed and query, ``(n, q)``.
        base: the same seeds and queries in the same order.
        labels: class of each query, ``(q,)``.
        confidence: coverage, between 0 and 1.
        seed: of random signs.

    Raises:
        MetricError: shapes that differ, or as for `mean_over_seeds`.
    """
    first, second = (np.asarray(side, dtype=np.float64) for side in (arm, base))
    if first.shape != second.shape:
        raise MetricError(
            f"figures of shapes {first.shape} and {second.shape} cannot be paired; both arms need "
            "the same seeds and the same queries"
        )
    values = first - second
    mean = mean_over_seeds(values, labels, confidence=confidence)
    differences = values if values.ndim == 1 else values.mean(axis=1)
    return PairedDifference(
        **vars(mean),
        differences=tuple(differences.tolist()),
        p=sign_flip_p(differences, seed=seed) if mean.total > 1 else None,
    )


def sign_flip_p(differences: ArrayLike, draws: int = 99_999, seed: int = 0) -> float:
    """Return the two-sided p-value of the sign-flip permutation test (Fisher 1935).

    Under the null hypothesis each difference is as likely as its negative. p is the share of sign
    combinations whose mean is at least as far from 0: of all for up to 16 differences, so that it
    cannot be below 2^(1−n), else of random ones, the given one among them.

    Args:
        differences: one a seed, ``(n,)``.
        draws: random combinations for more than 16 differences.
        seed: of these.

    Raises:
        MetricError: no difference, or one that is not finite.
    """
    values = _checked(differences)
    # Sums that are equal but for rounding are equal.
    least = abs(values.sum()) - 1e-12 * np.abs(values).sum()
    if len(values) <= _EXACT_SEEDS:
        return float((np.abs(_signs(len(values)) @ values) >= least).mean())
    generator = np.random.default_rng(seed)
    step = max(1, _CELLS // len(values))
    beyond = 0
    for start in range(0, draws, step):
        signs = 1 - 2.0 * generator.integers(2, size=(min(step, draws - start), len(values)))
        beyond += int(np.count_nonzero(np.abs(signs @ values) >= least))
    return (beyond + 1) / (draws + 1)


def _signs(count: int) -> Array:
    """Return every combination of signs, ``(2^(n−1), n)``; by symmetry the last sign may stay."""
    combinations = np.arange(2 ** (count - 1))[:, None] >> np.arange(count) & 1
    return (1 - 2 * combinations).astype(np.float64)


def level_of(confidence: float) -> float:
    """Return the level of tests that goes with the confidence of intervals, such as 0.05."""
    return round(1 - confidence, 12)  # 1 − 0.95 is not 0.05


def least_p(seeds: int) -> float:
    """Return the lowest p that `sign_flip_p` can give for so many seeds, if all are enumerated."""
    return 2.0 ** (1 - seeds)


def smallest_difference(
    differences: ArrayLike, level: float = 0.05, seeds: int | None = None
) -> float | None:
    """Return the true difference that the sign-flip test of such a design finds with 80 % power.

    The paired differences are taken for normal, with the spread that was seen; what the design
    could have found is asked, not what it did find, so their mean does not matter. Up to 12 seeds
    the power is that of the test itself, simulated; for more that of Student's paired t, which it
    comes close to.

    Args:
        differences: one a seed, ``(n,)``.
        level: of the test, such as 0.05 over the number of pairs where Holm's adjustment follows.
        seeds: of the design that is asked about; as many as there are differences by default. A
            few trained seeds so tell what more of them would find.

    Returns:
        In the unit of the differences; None where n seeds cannot give so small a p.

    Raises:
        MetricError: no difference, or one that is not finite.
    """
    values = _checked(differences)
    factor = _needed(len(values) if seeds is None else seeds, level)
    return None if factor is None else factor * float(values.std(ddof=1))


@lru_cache(maxsize=256)
def _needed(count: int, level: float) -> float | None:
    """Return that difference in standard deviations of the paired differences."""
    if count < 2 or least_p(count) > level:
        return None
    if count > _SIMULATED_SEEDS:
        least = float(stdtrit(count - 1, 1 - level / 2))
        root = brentq(lambda shift: nct.sf(least, count - 1, shift) - _POWER, 0, 100)
        return float(root) / math.sqrt(count)
    samples = np.random.default_rng(count).normal(size=(_DRAWS, count))
    signs = _signs(count)
    step = max(1, _CELLS // len(signs))

    def share(shift: float) -> float:
        detected = 0
        for start in range(0, _DRAWS, step):
            rows = samples[start : start + step] + shift
            sums = np.abs(rows @ signs.T)
            p = (sums >= sums[:, :1] * (1 - 1e-12)).mean(axis=1)
            detected += int(np.count_nonzero(p <= level))
        return detected / _DRAWS

    low, high = 0.0, 8.0
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (low, middle) if share(middle) >= _POWER else (middle, high)
    return high


def adjust(family: Sequence[PairedDifference | None]) -> list[PairedDifference | None]:
    """Fill in ``p_holm`` for all comparisons of one claim, such as all losses × data sets.

    A comparison that failed, None, or without p counts as one with p = 1, so that it cannot make
    the others easier.
    """
    p = [None if each is None else each.p for each in family]
    adjusted = holm([1.0 if each is None else each for each in p])
    return [
        each if each is None or each.p is None else replace(each, p_holm=p_holm)
        for each, p_holm in zip(family, adjusted, strict=True)
    ]


def spearman(
    first: ArrayLike,
    second: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return Spearman's rank correlation with a percentile bootstrap interval.

    Its total is that of the groups that are resampled; there is no value where a side is constant.

    Args:
        first: such as gains, ``(n,)``.
        second: such as reductions of variance, ``(n,)``.
        groups: what is resampled as a whole, such as the loss of each point, ``(n,)``; points by
            default.
        confidence: coverage, between 0 and 1.
        replicates: resamples.
        seed: of the resamples.

    Raises:
        MetricError: lengths that differ, a value that is not finite, or an impossible confidence.
    """
    check_confidence(confidence)
    x, y = map(_checked, (first, second))
    own = np.arange(len(x)) if groups is None else np.asarray(groups)
    if x.shape != y.shape or own.shape != x.shape:
        raise MetricError(
            f"{len(x)} and {len(y)} values in groups of shape {own.shape} are not paired; give "
            "one of each a point"
        )
    names, index = np.unique(own, return_inverse=True)
    count = len(names)
    estimate = _rank_correlation(x, y)
    if count < 3:
        remark = f"{count} {'group is' if count == 1 else 'groups are'} too few"
        value = None if math.isnan(estimate) else estimate
        return Estimate(value, total=count, remark=remark)
    if math.isnan(estimate):
        return Estimate(None, total=count, remark="one side is constant, so ranks tell nothing")
    draws = np.random.default_rng(seed).integers(count, size=(replicates, count))
    times = np.stack([np.bincount(each, minlength=count)[index] for each in draws])
    rows = [np.repeat(np.arange(len(x)), each) for each in times]
    drawn = np.array([_rank_correlation(x[each], y[each]) for each in rows])
    lost = int(np.isnan(drawn).sum())
    if lost == replicates:
        return Estimate(estimate, total=count, remark="a side is constant in all resamples")
    low, high = np.nanquantile(drawn, ((1 - confidence) / 2, (1 + confidence) / 2))
    assumption = f"{count} groups drawn at random"
    if lost:
        assumption += f"; {lost:,} of {replicates:,} replicates constant and left out"
    method = "bootstrap over groups, percentile"
    interval = Interval(float(low), float(high), confidence, method, assumption)
    return Estimate(estimate, interval, total=count)


def _rank_correlation(x: Array, y: Array) -> float:
    """Return Spearman's correlation, NaN where a side is constant."""
    if not (np.ptp(x) and np.ptp(y)):
        return math.nan
    first, second = (rankdata(side) - (len(side) + 1) / 2 for side in (x, y))
    return float(first @ second / math.sqrt((first @ first) * (second @ second)))


Curve = tuple[NDArray[np.int64], Array]
"""Steps of the validations, positive and ascending, and their scores, ``(t,)`` each."""


def compare_steps(
    arm: Sequence[Curve], base: Sequence[Curve], share: float, confidence: float = 0.95
) -> Estimate:
    """Return the median over seeds of steps to a share of the base's final score, arm over base.

    The level of each seed is that share of its base's last score. A run that never comes so far is
    kept: its ratio is at least that of its last step, which bounds the median and its interval from
    below, and taken for infinite in the upper limit. The interval goes from one ordered ratio to
    another, and its coverage is exact whatever their distribution; five seeds attain 93.75 %.

    Args:
        arm: of each seed.
        base: of the same seeds.
        share: such as 0.9, 0.95 or 0.99.
        confidence: coverage that the interval should have.

    Raises:
        MetricError: a final score of the base is not positive.
    """
    lowest, highest = np.empty((2, len(arm)))
    for index, (run, reference) in enumerate(zip(arm, base, strict=True)):
        level = share * float(reference[1][-1])
        if level <= 0:
            raise MetricError(
                f"the final score {level} of run {index} of the base is not positive, so a share "
                "of it means nothing"
            )
        needed, taken = (_steps_to_reach(*each, level) for each in (reference, run))
        highest[index] = taken / needed
        lowest[index] = min(taken, float(run[0][-1])) / needed
    never = int(np.isinf(highest).sum())
    value = _median_ratio(lowest)
    bound = "it is a lower bound: " if value < _median_ratio(highest) else ""
    remark = f"{bound}{never} of {len(arm)} runs never came so far" if never else ""
    interval = _order_interval(lowest, highest, confidence) if len(arm) > 1 else None
    return Estimate(value, interval, total=len(arm), remark=remark)


def _steps_to_reach(steps: NDArray[np.int64], scores: Array, level: float) -> float:
    reached = np.flatnonzero(scores >= level)
    return float(steps[reached[0]]) if reached.size else math.inf


def _without_each(values: Array, labels: ArrayLike) -> Array:
    """Return what leaving out each test class adds to the mean of seeds and queries, ``(C,)``."""
    names = np.asarray(labels)
    if names.shape != values.shape[1:]:
        raise MetricError(f"{values.shape[1]} queries need one class each, found {names.shape}")
    _, index, counts = np.unique(names, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        return np.empty(0)
    of_query = values.mean(axis=0)
    return (of_query.sum() - np.bincount(index, of_query)) / (len(names) - counts) - of_query.mean()


def _checked(values: ArrayLike, axes: int = 1) -> Array:
    """Return finite values of each seed, or on two axes of each seed and query."""
    array = np.asarray(values, dtype=np.float64)
    if not array.size or array.ndim != axes:
        raise MetricError(
            f"values of shape {array.shape} must be one a seed, (n,), or with labels of classes "
            "one a seed and query, (n, q)"
        )
    if not np.isfinite(array).all():
        wrong = tuple(int(axis) for axis in np.argwhere(~np.isfinite(array))[0])
        raise MetricError(
            f"value {array[wrong]} at {wrong} is not finite; leave failed runs out of both arms"
        )
    return array


def _median_ratio(ratios: Array) -> float:
    """Return the median; between two it is their geometric mean, which treats 2 and ½ alike."""
    ordered = np.sort(ratios)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(low) if low == high else math.sqrt(low * high)


def _order_interval(lowest: Array, highest: Array, confidence: float) -> Interval:
    """Return the narrowest interval of a median between ordered values that covers enough."""
    count = len(lowest)
    beyond = binom.cdf(np.arange(count), count, 0.5)  # P(at most 0, 1, … values below the median)
    index = max(0, int(np.count_nonzero(1 - 2 * beyond >= confidence)) - 1)
    return Interval(
        float(np.sort(lowest)[index]),
        float(np.sort(highest)[count - 1 - index]),
        float(1 - 2 * beyond[index]),
        "order statistics",
        f"{count} seeds drawn at random; runs that never came so far count as infinite above",
    )
