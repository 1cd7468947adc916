"""The share of the variance of norms that lies between groups: its test, interval and power.

The test is Welch's, by permutation of the groups over subjects. Permuting groups is exact only
where they differ in nothing: if a small group spreads more (its subjects have fewer images, say),
the sum of squares between groups rejects equal means far too often, and far too seldom if it
spreads less. Permuted, a statistic that divides every mean by its own error keeps its level in
large samples whatever the groups spread (Janssen, Statistics & Probability Letters 36, 1997; Chung
and Romano, Annals of Statistics 41, 2013), and stays exact where they differ in nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigvalsh
from scipy.optimize import brentq
from scipy.special import fdtri, ncfdtr, ndtri, stdtrit

from facerec.fairness.norms import TAIL, Array
from facerec.report.conclusions import ALPHA
from facerec.statistics.intervals import Interval

DRAWN_AT_ONCE = 1 << 21
"""How often subjects are drawn in replicates: numbers held at once."""

POWER = 0.8
"""Chance to detect the minimum detectable effect."""

NO_INTERVAL = "no interval: a group has one subject, or groups are all alike or wholly apart"

_CELLS = 1 << 20
"""Labels held at once while permuting."""

_LEAST = 1e-12
"""Least variance within a group, as a share of the whole, so that ties do not divide by zero."""


@dataclass(frozen=True)
class Welch:
    """Weights and scale of Welch's analysis of variance (Biometrika 38, 1951), or of replicates."""

    weights: Array
    """1 / squared standard error of the mean of each group, ``(…, k)``."""
    scale: Array
    """Which turns Σ w (mean − weighted mean)² into F, ``(…)``."""
    within: Array
    """Degrees of freedom of the error, ``(…)``; those of the effect are k − 1."""

    @classmethod
    def of(cls, sizes: ArrayLike, squares: Array, total: float) -> Welch:
        """Take the errors of means of one value a subject.

        The variance in a group of one subject is that in all groups together.

        Args:
            sizes: n, subjects in each group, ``(k,)``.
            squares: sums of squares about the means of the groups, ``(…, k)``.
            total: sum of squares about the mean of all; it sets what counts as no variance.
        """
        n = np.asarray(sizes, dtype=np.float64)
        spare = n.sum() - len(n)
        pooled = squares.sum(axis=-1, keepdims=True) / spare
        single = n < 2
        variances = np.where(single, pooled, squares / np.where(single, 1, n - 1))
        weights = n / np.maximum(variances, _LEAST * total / n.sum())
        k = len(n)
        shares = weights / weights.sum(axis=-1, keepdims=True)
        uneven = ((1 - shares) ** 2 / np.where(single, spare, n - 1)).sum(axis=-1)
        scale = (k - 1) * (1 + 2 * (k - 2) / (k**2 - 1) * uneven)
        return cls(weights, scale, (k**2 - 1) / (3 * uneven))

    def f(self, means: Array, bends: Array | None = None) -> Array:
        """Return the statistic of means of the groups, ``(…, k)``.

        Args:
            means: of the groups.
            bends: third central moment over three times the squared variance of each group, where
                its mean's skewness is taken off by a cubic (Hall, JRSS B 54, 1992).
        """
        shares = self.weights / self.weights.sum(axis=-1, keepdims=True)
        centred = means - (shares * means).sum(axis=-1, keepdims=True)
        if bends is not None:
            rising = centred + bends * centred**2 + bends**2 * centred**3 / 3
            centred = rising + bends / (2 * self.weights)
        return (self.weights * centred**2).sum(axis=-1) / self.scale


def permute(
    values: ArrayLike, groups: ArrayLike, permutations: int = 9999, seed: int = 0
) -> tuple[float, float]:
    """Return Welch's statistic and its p-value, the groups given to other subjects at random.

    For the p-value skewness is taken off the means, which a small group that spreads more than the
    others would else bring into the statistic alone.
    The p-value is (1 + replicates that reach the observed) / (1 + replicates) (Phipson and Smyth,
    Statistical Applications in Genetics and Molecular Biology 9, 2010). Groups are numbered in the
    order of their first subjects, so that their names change nothing.

    Args:
        values: one a subject, ``(G,)``.
        groups: group 0 … k − 1 of each subject, ``(G,)``.
        permutations: how many.
        seed: equal seeds permute equally.
    """
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers - numbers.mean()
    spread = float(np.sqrt((numbers**2).mean()))
    numbers = numbers / (spread or 1.0)
    features = np.stack([numbers, numbers**2, numbers**3], axis=1)
    _, first, codes = np.unique(groups, return_index=True, return_inverse=True)
    codes = np.argsort(np.argsort(first))[codes]
    sizes = np.bincount(codes).astype(np.float64)

    def statistics(labels: NDArray[np.integer], straight: bool = True) -> Array:
        sums = np.empty((len(labels), len(sizes), 3))
        for g in range(len(sizes) - 1):
            sums[:, g] = (labels == g).astype(np.float64) @ features
        sums[:, -1] = features.sum(axis=0) - sums[:, :-1].sum(axis=1)
        means, squares, cubes = np.moveaxis(sums / sizes[:, None], 2, 0)
        left = np.maximum(squares - means**2, 0) * sizes
        welch, bends = Welch.of(sizes, left, len(codes)), np.zeros_like(means)
        if straight:
            third = cubes - 3 * means * squares + 2 * means**3
            bends = np.where(sizes > 2, third * (welch.weights / sizes) ** 2 / 3, 0)
        return welch.f(means, bends) * (spread > 0)

    small = codes.astype(np.min_scalar_type(len(sizes)))
    generator = np.random.default_rng([seed, 1])
    rows = np.tile(small, (max(1, min(permutations, _CELLS // len(codes))), 1))
    told, observed = (float(statistics(small[None], straight)[0]) for straight in (False, True))
    reached = 0
    for start in range(0, permutations, len(rows)):
        batch = rows[: permutations - start]
        generator.permuted(batch, axis=1, out=batch)
        # Equal ones differ by rounding.
        reached += int(np.count_nonzero(statistics(batch) >= observed * (1 - 1e-9)))
    return told, (1 + reached) / (1 + permutations)


def minimum_detectable_eta2(
    subjects: int,
    groups: int,
    *,
    within: float | None = None,
    efficiency: float = 1.0,
) -> float | None:
    """Return the η² of the population that an analysis of variance detects with `POWER`.

    F is noncentral with λ = G η² / (1 − η²) (Cohen, Statistical Power Analysis, 1988, chapter 8).
    With unequal groups η² is that of a population with the same shares.

    Args:
        subjects: G.
        groups: k.
        within: degrees of freedom of the error, G − k where groups spread alike.
        efficiency: λ over that of groups that spread alike.

    Returns:
        None without a group or a subject to spare.
    """
    between, within = groups - 1, subjects - groups if within is None else within
    if between < 1 or within <= 0:
        return None
    critical = float(fdtri(between, within, 1 - ALPHA))

    def shortfall(noncentrality: float) -> float:
        return POWER - 1 + float(ncfdtr(between, within, noncentrality, critical))

    high = 1.0
    while shortfall(high) > 0:
        high *= 2
    noncentrality = float(brentq(shortfall, 0.0, high, xtol=1e-10))
    return noncentrality / (noncentrality + efficiency * subjects)


def minimum_detectable(sizes: ArrayLike, within: float, test: Welch) -> float | None:
    """Return the η² that Welch's test detects, whichever groups differ.

    Args:
        sizes: subjects in each group, ``(k,)``.
        within: sum of squares within groups.
        test: of these.
    """
    n = np.asarray(sizes, dtype=np.float64)
    subjects, groups = int(n.sum()), len(n)
    if within == 0:
        return minimum_detectable_eta2(subjects, groups)
    # A difference is the same from whatever zero, so one group may have none.
    pooled = n / (within / (subjects - groups))
    alike, own = (_contrasts(w)[1:, 1:] for w in (pooled, test.weights))
    least = 1 / float(eigvalsh(alike, own)[-1])
    return minimum_detectable_eta2(subjects, groups, within=float(test.within), efficiency=least)


@dataclass(frozen=True)
class Moments:
    """Means and spread of one value a subject in the groups, and in their replicates."""

    sizes: Array
    """Subjects in the groups, ``(k,)``."""
    means: Array
    """Less that of all subjects, ``(k,)``."""
    squares: Array
    """Sums of squares about them, ``(k,)``."""
    deviations: Array
    """Means of replicates less ``means``, ``(R, k)``."""
    replicated: Array
    """``squares`` of replicates, ``(R, k)``."""


def resampled(values: Array, groups: ArrayLike, replicates: int = 2000, seed: int = 0) -> Moments:
    """Return means and spread of the groups, as they are and in resamples of their subjects.

    Groups draw in the order of their first subjects, so that their names change nothing.

    Args:
        values: one a subject, ``(G,)``.
        groups: group 0 … k − 1 of each, ``(G,)``, every one at least once.
        replicates: R, in each of which a group draws as many subjects as it has.
        seed: equal seeds draw alike.
    """
    codes = np.asarray(groups)
    # A common offset would eat the digits of the sums of squares.
    sizes, values = np.bincount(codes), values - values.mean()
    means, squares = np.empty((2, len(sizes)))
    deviations, replicated = np.empty((2, replicates, len(sizes)))
    generator = np.random.default_rng(seed)
    for g in np.argsort(np.unique(codes, return_index=True)[1]):
        own, size = values[codes == g], int(sizes[g])
        means[g] = own.mean()
        rest = own - means[g]
        squares[g] = rest @ rest
        features, step = np.stack([rest, rest**2], axis=1), max(1, DRAWN_AT_ONCE // size)
        for start in range(0, replicates, step):
            drawn = np.empty((min(step, replicates - start), size))
            for row in drawn:
                row[:] = np.bincount(generator.integers(size, size=size), minlength=size)
            sums = drawn @ features
            batch = slice(start, start + step)
            deviations[batch, g] = sums[:, 0] / size
            replicated[batch, g] = sums[:, 1] - sums[:, 0] ** 2 / size
    return Moments(sizes.astype(np.float64), means, squares, deviations, replicated)


def _contrasts(weights: Array) -> Array:
    """Return K with m' K m = Σ w (m − m̄)², ``(k, k)``."""
    return np.diag(weights) - np.outer(weights, weights) / weights.sum()


def eta2(moments: Moments, p: float) -> tuple[float, Interval | None]:
    """Return η² of one value a subject, and its 95 % interval by inversion of a test.

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
        moments: of the groups.
        p: of the test that there is no effect.

    Returns:
        No interval with one subject in a group, or without any variation within one.
    """
    sizes, means, within = moments.sizes, moments.means, float(moments.squares.sum())
    contrasts = _contrasts(sizes)
    between = float(means @ contrasts @ means)
    value = between / (between + within)
    if sizes.min() < 2 or within <= 1e-20 * (between + within):
        return value, None
    spare = float(sizes.sum() - len(sizes)) / float(sizes.sum())
    # Sums of squares about means of n draws are by (n − 1) / n too small, and so are the means.
    redrawn = moments.replicated @ (sizes / (sizes - 1))
    error, replicated = within / spare, np.maximum(redrawn, 1e-12 * within) / spare
    direction = means - means.mean()
    if between <= 1e-12 * error:
        # Without any effect there is no direction; any will do.
        direction = np.where(np.arange(len(sizes)) == sizes.argmin(), 1.0, 0.0)
    direction = direction * math.sqrt(error / (direction @ contrasts @ direction))
    drawn = moments.deviations * np.sqrt(sizes / (sizes - 1))
    weighted = drawn @ contrasts
    noise, product = np.einsum("ri,ri->r", weighted, drawn), 2 * weighted @ direction
    observed = math.sqrt(between / error)
    shorter = float(ndtri(TAIL) / stdtrit(sizes.min() - 1, TAIL))

    def off(size: float) -> float:
        """Return how far the mean replicate lies above the effect, 0 if not further than others."""
        squares = (noise + product * size + error * size**2) / replicated
        replicates = np.sqrt(np.maximum(squares, 0))
        away = float(replicates.mean()) - observed
        beyond = np.abs(replicates - replicates.mean()) >= shorter * abs(away)
        return 0.0 if (1 + beyond.sum()) / (1 + len(beyond)) >= ALPHA else away

    def end(inside: float, outside: float, sign: int) -> float:
        for _ in range(50):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if sign * off(middle) <= 0 else (inside, middle)
        return inside**2 / (1 + inside**2)

    low = end(observed, observed / 10, -1) if p < ALPHA else 0.0
    step = 1.0
    while off(observed + step) <= 0 and step < 1e6:
        step *= 2
    high = 1.0 if step >= 1e6 else end(0.0, observed + step, 1)
    return value, Interval(min(low, value), max(high, value))
