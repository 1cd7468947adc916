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
from scipy.stats import nct, rankdata

from facerec.report.estimate import Estimate
from facerec.statistics.clustered import paired_difference
from facerec.statistics.intervals import Interval
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
"""Samples of a simulation of the power, which is so known to 0.006."""

_RESAMPLES = 2000
"""Bootstrap samples of groups, for the interval of a rank correlation."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SeedMean(Estimate):
    """A mean over seeds and, where figures of single queries are given, over test queries.

    The headline interval is the joint one, or that over seeds where no class is known.
    """

    value: float
    total: int
    """Number of seeds."""
    over_seeds: Interval | None
    """Student's t; None for one seed."""
    over_classes: Interval | None
    """Leaving out one class at a time; None for one class or without figures of single queries."""
    differences: tuple[float, ...] = ()
    """Difference at each seed, where an arm is compared with its base; the value is their mean."""
    p: float | None = None
    """The two-sided p of that comparison, see `sign_flip_p`; None for one seed."""
    p_holm: float | None = None
    """The p adjusted for the family, see `adjust`."""


def mean_over_seeds(
    values: ArrayLike, labels: ArrayLike | None = None, *, confidence: float = 0.95
) -> SeedMean:
    """Return the mean of a figure with its intervals over seeds, over test classes and over both.

    One test class is left out at a time; variances over classes and over seeds are added
    (`facerec.statistics.clustered.paired_difference`).

    Args:
        values: of each seed, ``(n,)``, or of each seed and query, ``(n, q)``.
        labels: class of each query, ``(q,)``; needed for the latter.
        confidence: coverage, between 0 and 1.
    """
    known = np.asarray(values, np.float64)
    of_seeds = known if labels is None else known.mean(axis=1)
    reasons = [] if len(of_seeds) > 1 else [ONE_SEED]
    over_seeds = interval = paired_difference(of_seeds, [], confidence)
    over_classes = None
    if labels is not None:
        left_out = _without_each(known.mean(axis=0), labels)
        reasons += [] if left_out.size else [ONE_CLASS]
        over_classes = paired_difference([of_seeds.mean()], left_out, confidence)
        if over_seeds and over_classes:
            interval = paired_difference(of_seeds, left_out, confidence)
    return SeedMean(
        value=float(of_seeds.mean()),
        interval=interval,
        total=len(of_seeds),
        remark="; ".join(reasons),
        over_seeds=over_seeds,
        over_classes=over_classes,
    )


def _without_each(of_query: Array, labels: ArrayLike) -> Array:
    """Return what leaving out each test class adds to the mean over queries, ``(C,)``."""
    _, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        return np.empty(0)
    left = of_query.sum() - np.bincount(index, of_query)
    return left / (len(of_query) - counts) - of_query.mean()


def compare_paired(
    arm: ArrayLike, base: ArrayLike, labels: ArrayLike | None = None, *, confidence: float = 0.95
) -> SeedMean:
    """Return arm − base, paired by seed and by query, with its intervals and p.

    Args:
        arm: of each seed, ``(n,)``, or of each seed and query, ``(n, q)``.
        base: the same seeds and queries in the same order.
        labels: class of each query, ``(q,)``.
        confidence: coverage, between 0 and 1.
    """
    values = np.asarray(arm, np.float64) - np.asarray(base, np.float64)
    mean = mean_over_seeds(values, labels, confidence=confidence)
    differences = values if values.ndim == 1 else values.mean(axis=1)
    p = sign_flip_p(differences) if mean.total > 1 else None
    return replace(mean, differences=tuple(differences.tolist()), p=p)


def sign_flip_p(differences: ArrayLike) -> float:
    """Return the two-sided p-value of the sign-flip permutation test (Fisher 1935).

    Under the null hypothesis each difference is as likely as its negative. p is the share of sign
    combinations whose mean is at least as far from 0: of all for up to 16 differences, so that it
    cannot be below 2^(1−n), else of random ones, the given one among them.

    Args:
        differences: one a seed, ``(n,)``.
    """
    values = np.asarray(differences, np.float64)
    # Sums that are equal but for rounding are equal.
    least = abs(values.sum()) - 1e-12 * np.abs(values).sum()
    if len(values) <= _EXACT_SEEDS:
        return float((np.abs(_signs(len(values)) @ values) >= least).mean())
    signs = 1 - 2.0 * np.random.default_rng(0).integers(2, size=(99_999, len(values)))
    return (np.count_nonzero(np.abs(signs @ values) >= least) + 1) / (len(signs) + 1)


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


def smallest_difference(differences: ArrayLike, level: float = 0.05) -> float | None:
    """Return the true difference that the sign-flip test of such a design finds with 80 % power.

    The paired differences are taken for normal, with the spread that was seen; what the design
    could have found is asked, not what it did find, so their mean does not matter. Up to 12 seeds
    the power is that of the test itself, simulated; for more that of Student's paired t, which it
    comes close to.

    Args:
        differences: one a seed, ``(n,)``.
        level: of the test, such as 0.05 over the number of pairs where Holm's adjustment follows.

    Returns:
        In the unit of the differences; None where n seeds cannot give so small a p.
    """
    values = np.asarray(differences, np.float64)
    factor = _needed(len(values), level)
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
    low, high = 0.0, 8.0
    while high - low > 0.005:
        middle = (low + high) / 2
        sums = np.abs((samples + middle) @ signs.T)
        p = (sums >= sums[:, :1] * (1 - 1e-12)).mean(axis=1)
        power = np.count_nonzero(p <= level) / _DRAWS
        low, high = (low, middle) if power >= _POWER else (middle, high)
    return high


def adjust(family: Sequence[SeedMean | None]) -> list[SeedMean | None]:
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


def rank_correlation(
    first: ArrayLike,
    second: ArrayLike,
    groups: ArrayLike,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Return Spearman's rank correlation with a percentile bootstrap interval over groups.

    Its total is that of the groups; there is no value where a side is constant.

    Args:
        first: such as gains, ``(n,)``.
        second: such as reductions of variance, ``(n,)``.
        groups: what is resampled as a whole, such as the loss of each point, ``(n,)``.
        confidence: coverage, between 0 and 1.
        seed: of the resamples.
    """
    x, y = (np.asarray(side, np.float64) for side in (first, second))
    names, index = np.unique(groups, return_inverse=True)
    value, count = _spearman(x, y), len(names)
    if count < 3 or math.isnan(value):
        remark = "fewer than three groups, or a side that is constant"
        return Estimate(None if math.isnan(value) else value, total=count, remark=remark)
    members = [np.flatnonzero(index == group) for group in range(count)]
    resamples = np.random.default_rng(seed).integers(count, size=(_RESAMPLES, count))
    rows = (np.concatenate([members[group] for group in each]) for each in resamples)
    drawn = [_spearman(x[each], y[each]) for each in rows]
    low, high = np.nanquantile(drawn, ((1 - confidence) / 2, (1 + confidence) / 2))
    return Estimate(value, Interval(float(low), float(high)), total=count)


def _spearman(x: Array, y: Array) -> float:
    """Return Spearman's correlation, NaN where a side is constant."""
    if not (np.ptp(x) and np.ptp(y)):
        return math.nan
    first, second = (rankdata(side) - (len(side) + 1) / 2 for side in (x, y))
    return float(first @ second / math.sqrt((first @ first) * (second @ second)))
