"""The share of the variance of norms that lies between groups: estimates, intervals, power."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigvalsh
from scipy.optimize import brentq
from scipy.special import fdtri, ncfdtr, ndtri, stdtrit

from facerec.fairness.norms import INDEPENDENT_SUBJECTS, Array, SubjectBootstrap
from facerec.fairness.welch import Welch
from facerec.report.conclusions import ALPHA
from facerec.statistics.intervals import Interval

POWER = 0.8
"""Chance to detect the minimum detectable effect."""

INVERTED = "test inverted by a cluster bootstrap over subjects"

NO_INTERVAL = "no interval: a group has one subject, or groups are all alike or wholly apart"


@dataclass(frozen=True)
class Anova:
    """A one-way analysis of variance of single values."""

    between: float
    """Sum of squares between groups."""
    within: float
    """Sum of squares within groups."""
    groups: int
    """k."""
    values: int
    """G."""

    @property
    def eta2(self) -> float:
        """SSB / SST."""
        return self.between / (self.between + self.within)


def anova(values: ArrayLike, groups: ArrayLike) -> Anova:
    """Return the analysis of variance of one value a subject.

    Args:
        values: ``(G,)``.
        groups: group 0 … k − 1 of each, ``(G,)``.
    """
    codes = np.asarray(groups)
    numbers = np.asarray(values, dtype=np.float64)
    centred = numbers - numbers.mean()
    sizes = np.bincount(codes)
    means = np.bincount(codes, weights=centred) / sizes
    grand = float(centred.mean())
    between = float(sizes @ (means - grand) ** 2)
    within = float(((centred - means[codes]) ** 2).sum())
    return Anova(between, within, len(sizes), len(numbers))


def minimum_detectable_eta2(
    subjects: int,
    groups: int,
    power: float = POWER,
    alpha: float = ALPHA,
    *,
    within: float | None = None,
    efficiency: float = 1.0,
) -> float | None:
    """Return the η² of the population that an analysis of variance detects with some power.

    F is noncentral with λ = G η² / (1 − η²) (Cohen, Statistical Power Analysis, 1988, chapter 8).
    With unequal groups η² is that of a population with the same shares.

    Args:
        subjects: G.
        groups: k.
        power: chance to detect it.
        alpha: level of the test.
        within: degrees of freedom of the error, G − k where groups spread alike.
        efficiency: λ over that of groups that spread alike.

    Returns:
        None without a group or a subject to spare.
    """
    between, within = groups - 1, subjects - groups if within is None else within
    if between < 1 or within <= 0:
        return None
    critical = float(fdtri(between, within, 1 - alpha))

    def shortfall(noncentrality: float) -> float:
        return power - 1 + float(ncfdtr(between, within, noncentrality, critical))

    high = 1.0
    while shortfall(high) > 0:
        high *= 2
    noncentrality = float(brentq(shortfall, 0.0, high, xtol=1e-10))
    return noncentrality / (noncentrality + efficiency * subjects)


def minimum_detectable(sizes: ArrayLike, analysis: Anova, test: Welch) -> float | None:
    """Return the η² that Welch's test detects, whichever groups differ."""
    n = np.asarray(sizes, dtype=np.float64)
    if analysis.within == 0:
        return minimum_detectable_eta2(analysis.values, analysis.groups)
    error = analysis.within / (analysis.values - analysis.groups)
    # A difference is the same from whatever zero, so one group may have none.
    alike, own = (_contrasts(w)[1:, 1:] for w in (n / error, test.weights))
    least = 1 / float(eigvalsh(alike, own)[-1])
    return minimum_detectable_eta2(
        analysis.values, analysis.groups, within=float(test.within), efficiency=least
    )


@dataclass(frozen=True)
class Moments:
    """Means and spread of one value a subject in the groups, and in their replicates."""

    sizes: Array
    """Subjects in the groups, ``(k,)``."""
    means: Array
    """``(k,)``."""
    squares: Array
    """Sums of squares about them, ``(k,)``."""
    deviations: Array
    """Means of replicates less ``means``, ``(R, k)``."""
    replicated: Array
    """``squares`` of replicates, ``(R, k)``."""


def moments_of(values: Array, bootstrap: SubjectBootstrap) -> Moments:
    """Return means and spread of the groups, as they are and in resamples of subjects."""
    sizes = np.array([len(ids) for ids in bootstrap.members], dtype=np.float64)
    means, squares = np.empty((2, len(sizes)))
    deviations, replicated = np.empty((2, bootstrap.replicates, len(sizes)))
    for g, ids in enumerate(bootstrap.members):
        means[g] = values[ids].mean()
        rest = values[ids] - means[g]
        squares[g] = rest @ rest
        sums = bootstrap.sums(g, np.stack([rest, rest**2], axis=1))
        deviations[:, g] = sums[:, 0] / sizes[g]
        replicated[:, g] = sums[:, 1] - sums[:, 0] ** 2 / sizes[g]
    return Moments(sizes, means, squares, deviations, replicated)


def _contrasts(weights: Array) -> Array:
    """Return K with m' K m = Σ w (m − m̄)², ``(k, k)``."""
    return np.diag(weights) - np.outer(weights, weights) / weights.sum()


def eta2_interval(moments: Moments, p: float) -> Interval | None:
    """Return the interval of η² of one value a subject, whose test has this p.

    Returns:
        None with one subject in a group, or without any variation.
    """
    n, spread = moments.sizes, float(moments.squares.sum())
    contrasts = _contrasts(n)
    between = float(moments.means @ contrasts @ moments.means)
    if n.min() < 2 or spread <= 1e-20 * (between + spread):
        return None
    # Sums of squares about means of n draws are by (n − 1) / n too small.
    errors = spread, moments.replicated @ (n / (n - 1))
    spare = float(n.sum() - len(n)) / float(n.sum())
    return share_interval(
        moments.means, moments.deviations, contrasts, errors, n, spare, detected=p < ALPHA
    )


def share_interval(
    means: Array,
    deviations: Array,
    contrasts: Array,
    errors: tuple[float, Array],
    sizes: Array,
    spare: float,
    *,
    detected: bool,
    confidence: float = 0.95,
) -> Interval:
    """Return the interval of the share of variance between groups, by inversion of a test.

    Such a share is never negative, and its replicates lie above it: percentile and BCa intervals
    miss a small share nearly always. So effects of every size θ (Cohen's f, the root of the
    variance between over that within) are put to the test (Davison and Hinkley, Bootstrap Methods
    and their Application, Cambridge 1997, section 5.4), with their direction held: the interval
    holds those from whose mean replicate the effect observed lies no further than replicates do,
    which takes its upward bias off. Distances are those of normal noise, so they are made longer as
    a quantile of t is, with the smallest group's degrees of freedom. The interval holds 0 where the
    test keeps the hypothesis of no effect, and nowhere else: where it is rejected, effects below a
    tenth of that observed are left out. It always holds the share observed.

    Args:
        means: of the groups, ``(k,)``.
        deviations: of the means of replicates from them, ``(R, k)``.
        contrasts: K with m' K m the sum of squares between groups of means m, ``(k, k)``.
        errors: sum of squares within groups, observed and in replicates, ``(R,)``.
        sizes: subjects in the groups, two or more, ``(k,)``.
        spare: degrees of freedom of the observed errors over the number of values.
        detected: whether the test rejects that there is no effect.
        confidence: coverage, between 0 and 1.
    """
    error, replicated = errors[0] / spare, np.maximum(errors[1], 1e-12 * errors[0]) / spare
    between = float(means @ contrasts @ means)
    direction = means - means.mean()
    if between <= 1e-12 * error:
        # Without any effect there is no direction; any will do.
        direction = np.where(np.arange(len(sizes)) == sizes.argmin(), 1.0, 0.0)
    direction = direction * math.sqrt(error / (direction @ contrasts @ direction))
    # Means of n draws vary by (n − 1) / n too little.
    drawn = deviations * np.sqrt(sizes / (sizes - 1))
    weighted = drawn @ contrasts
    noise, product = np.einsum("ri,ri->r", weighted, drawn), 2 * weighted @ direction
    observed, tail = math.sqrt(between / error), (1 + confidence) / 2
    shorter = float(ndtri(tail) / stdtrit(sizes.min() - 1, tail))

    def off(size: float) -> float:
        """Return how far the mean replicate lies above the effect, 0 if not further than others."""
        squares = (noise + product * size + error * size**2) / replicated
        replicates = np.sqrt(np.maximum(squares, 0))
        away = float(replicates.mean()) - observed
        beyond = np.abs(replicates - replicates.mean()) >= shorter * abs(away)
        return 0.0 if (1 + beyond.sum()) / (1 + len(beyond)) >= 1 - confidence else away

    def end(inside: float, outside: float, sign: int) -> float:
        for _ in range(50):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if sign * off(middle) <= 0 else (inside, middle)
        return inside**2 / (1 + inside**2)

    low = end(observed, observed / 10, -1) if detected else 0.0
    step = 1.0
    while off(observed + step) <= 0 and step < 1e6:
        step *= 2
    high = 1.0 if step >= 1e6 else end(0.0, observed + step, 1)
    value = between / (between + errors[0])
    ends = min(low, value), max(high, value)
    return Interval(*ends, confidence, INVERTED, INDEPENDENT_SUBJECTS)
