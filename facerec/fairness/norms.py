"""Norms by group: means, spread between and within subjects, and their intervals.

Images of one subject resemble each other, so the subject is the unit of every interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from facerec.fairness import rows as names
from facerec.fairness.groupings import Grouping, members
from facerec.report.estimate import Estimate, Unit
from facerec.statistics.intervals import Interval
from facerec.verification.evaluation import mean_interval

TAIL = 0.975
"""Share of a distribution below the upper end of a 95 % interval."""
NO_SPREAD = "no interval: there are fewer than two subjects, or they do not differ"

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SubjectNorms:
    """Norms of acquired images, with the subject of each and the group of each subject."""

    name: str
    """The attribute, or the intersection."""
    names: tuple[str, ...]
    """The k groups."""
    groups: NDArray[np.int64]
    """Group of each subject, ``(G,)``, every one of 0 … k − 1 at least once."""
    norms: Array
    """Raw norm of each image, ``(N,)``."""
    subjects: NDArray[np.int64]
    """Subject 0 … G − 1 of each image, ``(N,)``."""

    @classmethod
    def of(
        cls,
        norms: NDArray[np.floating],
        subjects: NDArray[np.integer],
        grouping: Grouping,
    ) -> SubjectNorms:
        """Take the images that were acquired and have a group.

        Args:
            norms: ``(N,)``, NaN where there is none.
            subjects: their numbers, ``(N,)``.
            grouping: of these images.
        """
        inside = (grouping.codes >= 0) & (norms > 0)
        _, first, index = np.unique(subjects[inside], return_index=True, return_inverse=True)
        groups, values = grouping.codes[inside][first], norms[inside].astype(np.float64)
        return cls(grouping.name, grouping.names, groups, values, index.astype(np.int64))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Images of each subject, ``(G,)``."""
        return np.bincount(self.subjects)

    @property
    def means(self) -> Array:
        """Mean norm of each subject, ``(G,)``."""
        # Taken about a centre, or a common offset would eat the digits.
        centre = float(self.norms.mean())
        return centre + np.bincount(self.subjects, weights=self.norms - centre) / self.counts

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Subjects in each group, ``(k,)``."""
        return np.bincount(self.groups)


def norm_figures(sample: SubjectNorms) -> dict[str, dict[str, Estimate]]:
    """Return the figures of norms by group, and of all groups: name → figure → estimate.

    The mean is that of subjects' means, in which everybody counts once and which tests compare. The
    SD between subjects is beyond what few images each explain.
    """
    counts, means = sample.counts.astype(np.float64), sample.means
    squares = (sample.norms - means[sample.subjects]) ** 2
    squares = np.bincount(sample.subjects, squares).astype(np.float64)
    return {
        name: _figures(means[own], squares[own], counts[own])
        for name, own in members(sample.names, sample.groups)
    }


def _figures(means: Array, squares: Array, counts: Array) -> dict[str, Estimate]:
    """Return the figures of some subjects from their means, sums of squares and images."""
    subjects, spare = len(means), int(counts.sum()) - len(means)
    between, around = between_sd(means, squares, counts)
    error = math.sqrt(float(squares.sum()) / spare) if spare else math.nan
    limits = within_interval(squares, counts) if spare else None
    within = Interval(math.sqrt(limits[0]), math.sqrt(limits[1])) if limits else None
    centre = float(means.mean())
    differ = np.ptp(means) > 1e-12 * centre
    lacking = "one subject" if subjects < 2 and spare else "one image a subject"

    def estimate(value: float, interval: Interval | None) -> Estimate:
        if not math.isfinite(value):
            return Estimate(None, total=subjects, remark=lacking, unit="norm")
        if interval is not None and interval.low < 0:
            interval = replace(interval, low=0.0)  # no norm is negative
        return figure_of(value, interval, subjects, unit="norm")

    return {
        names.NORM: estimate(centre, mean_interval(means, np.arange(subjects)) if differ else None),
        names.BETWEEN: estimate(between, around),
        names.WITHIN: estimate(error, within),
    }


def variance_interval(values: Array) -> tuple[float, float] | None:
    """Return the 95 % limits of the variance of values of subjects, whatever their kurtosis.

    Bonett, Computational Statistics & Data Analysis 50, 2006, with a quantile of t in place of the
    normal one for the error.

    Args:
        values: one a subject, ``(n,)``.

    Returns:
        None with fewer than three subjects, or values that are all equal.
    """
    count, normal = len(values), float(ndtri(TAIL))
    if count < 3 or count <= normal:
        return None
    squares = (values - values.mean()) ** 2
    total = float(squares.sum())
    if total <= 1e-24 * float(values @ values):
        return None
    # The share trimmed off either end is below one half.
    cut = math.floor(count / (2 * math.sqrt(count - 4))) if count > 5 else (count - 1) // 2
    ordered = np.sort(values)
    centre = ordered[cut : count - cut].mean()
    kurtosis = count * float(((values - centre) ** 4).sum()) / total**2
    factor = count / (count - normal)
    error = factor * math.sqrt((kurtosis - (count - 3) / count) / (count - 1))
    middle = math.log(factor * total / (count - 1))
    margin = float(stdtrit(count - 1, TAIL)) * error
    return math.exp(middle - margin), math.exp(min(middle + margin, 700.0))


def within_interval(squares: Array, counts: Array) -> tuple[float, float] | None:
    """Return the 95 % limits of the variance between images of one subject.

    A jackknife over subjects of the logarithm (Miller, Biometrika 61, 1974), with the degrees of
    freedom of the effective number of subjects by images beyond the first.

    Args:
        squares: sum of squares about the subject's own mean, ``(n,)``.
        counts: images, ``(n,)``.

    Returns:
        None where it cannot be had without each subject in turn.
    """
    spare = counts - 1.0
    used = spare > 0
    squares, spare = squares[used], spare[used]
    count = len(spare)
    left, freedom = squares.sum() - squares, spare.sum() - spare
    if count < 2 or not (left > 1e-12 * squares.sum()).all():
        return None
    logarithms = np.log(left / freedom)
    whole = math.log(squares.sum() / spare.sum())
    mean = float(logarithms.mean())
    error = math.sqrt((count - 1) / count * float(((logarithms - mean) ** 2).sum()))
    effective = float(spare.sum() ** 2 / (spare**2).sum())
    margin = float(stdtrit(max(1.0, effective - 1), TAIL)) * error
    middle = count * whole - (count - 1) * mean
    # The jackknife moves the middle; the figure itself stays inside.
    ends = min(middle - margin, whole), max(middle + margin, whole)
    return math.exp(ends[0]), math.exp(min(ends[1], 700.0))


def between_sd(means: Array, squares: Array, counts: Array) -> tuple[float, Interval | None]:
    """Return the standard deviation between subjects with its 95 % interval.

    Everybody counts once.

    From the variance of the subjects' means is taken what the noise of their images explains
    (Thomas and Hultquist, Annals of Statistics 6, 1978); limits of both are joined by MOVER (Zou
    and Donner, Statistics in Medicine 27, 2008).

    Args:
        means: of the images of each subject, ``(n,)``.
        squares: sum of squares about it, ``(n,)``.
        counts: images, ``(n,)``.

    Returns:
        The figure, NaN where no subject has two images or there is one subject; its interval, None
        where there is none.
    """
    spare = float((counts - 1).sum())
    if len(means) < 2 or spare <= 0:
        return math.nan, None
    share = float((1 / counts).mean())
    spread, noise = float(means.var(ddof=1)), float(squares.sum()) / spare * share
    variance = spread - noise
    value = math.sqrt(max(variance, 0.0))
    around, within = variance_interval(means), within_interval(squares, counts)
    if within is None and noise == 0:
        within = 0.0, 0.0
    if around is None or within is None:
        return value, None
    low, high = (share * limit for limit in within)
    below = math.hypot(spread - min(around[0], spread), high - noise)
    above = math.hypot(max(around[1], spread) - spread, noise - low)
    lower, upper = (math.sqrt(max(0.0, x)) for x in (variance - below, variance + above))
    return value, Interval(lower, upper)


def figure_of(
    value: float | None,
    interval: Interval | None,
    subjects: int,
    missing: str = NO_SPREAD,
    unit: Unit = "number",
) -> Estimate:
    """Return a figure of some subjects, with why it has no interval if it has none."""
    remark = "" if interval else missing
    return Estimate(value, interval, total=subjects, remark=remark, unit=unit)


def variation_without(norms: Array, subject: NDArray[np.integer]) -> Array:
    """Return the coefficient of variation (ddof 1) of norms of all, and without each subject."""
    centre = float(norms.mean())
    rest = norms - centre
    count, total, squares = _left_out(
        np.stack([np.bincount(subject, values) for values in (np.ones(len(rest)), rest, rest**2)])
    )
    spread = np.maximum(squares - total**2 / count, 0) / np.maximum(count - 1, 1)
    return _quotients(np.sqrt(spread), centre + total / count)


def eta2_without(means: Array, groups: NDArray[np.integer]) -> Array:
    """Return SSB / SST of the mean norms of subjects, and without each of them."""
    rest = means - means.mean()
    member = (groups == np.arange(int(groups.max()) + 1)[:, None]).astype(np.float64)
    counts, totals = _left_out(member), _left_out(member * rest)
    grand = _quotients(totals.sum(axis=0) ** 2, counts.sum(axis=0))
    explained = np.divide(totals**2, counts, out=np.zeros_like(totals), where=counts > 0)
    return _quotients(explained.sum(axis=0) - grand, _left_out(rest**2) - grand)


def delta_without(first: Array, second: Array) -> Array:
    """Return P(X > Y) − P(X < Y) of X ``(n,)`` and Y ``(m,)``, and without each of both."""
    signs = np.sign(first[:, None] - second)
    won = np.concatenate([[0.0], signs.sum(axis=1), signs.sum(axis=0)])
    pairs = np.concatenate(
        [[0], np.full(len(first), len(second)), np.full(len(second), len(first))]
    )
    return _quotients(signs.sum() - won, signs.size - pairs)


def _quotients(numerator: Array, denominator: Array) -> Array:
    """Return the quotients, NaN where the denominator is not positive."""
    result = np.full(np.shape(denominator), np.nan)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result


def _left_out(values: Array) -> Array:
    """Return sums over the last axis: of all, and without each, ``(…, G + 1)``."""
    whole = values.sum(axis=-1, keepdims=True)
    return np.concatenate([whole, whole - values], axis=-1)
