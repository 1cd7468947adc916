"""Association of norms with a recorded group, with the subject as the unit.

Tests and effect sizes compare mean norms of subjects; images of one subject are never taken for
independent. A test that finds nothing comes with the least effect that it would have found, and
with a test of equivalence, so that "no difference" has a size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigvalsh
from scipy.optimize import brentq
from scipy.special import fdtrc, fdtri, ncfdtr, ndtri, stdtr, stdtrit
from scipy.stats import kruskal, rankdata

from facerec.errors import MetricError
from facerec.fairness.norms import (
    INDEPENDENT_SUBJECTS,
    Array,
    SubjectBootstrap,
    SubjectNorms,
    estimate_of,
    percentile,
)
from facerec.fairness.welch import PermutationTest, Welch, largest_kept, permute
from facerec.report.conclusions import ALPHA
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval, check_confidence
from facerec.statistics.multiplicity import holm

Role = Literal["primary", "exploratory"]

NEGLIGIBLE_DELTA = 0.147
"""Absolute Cliff's delta below which a difference is called negligible (Romano, Kromrey, Coraggio
and Skowronek, Florida Association of Institutional Research, 2006)."""
POWER = 0.8
"""Chance to detect the minimum detectable effect."""

INVERTED = "test inverted by a cluster bootstrap over subjects"
FENG_CLIFF = "Feng–Cliff with Brunner–Munzel variance"
ONE_TO_ONE = "from disjoint pairs of subjects"
LEHMANN = "Lehmann, normal approximation of the rank sum"
SHIFT = "subjects are independent; distributions differ in location only"

_NO_INTERVAL = "no interval: a group has one subject, or groups are all alike or wholly apart"

_CELLS = 1 << 18
"""Numbers held at once while permuting or resampling."""


@dataclass(frozen=True)
class NoComparison:
    """Why groups cannot be compared."""

    name: str
    """The attribute, or the intersection."""
    reason: str
    """As words."""


@dataclass(frozen=True)
class SpreadTest:
    """Welch's test of deviations, one a subject."""

    f: float | None
    """Its statistic; None if nothing varies within groups."""
    p: float
    """By permutation of the groups over subjects."""
    subjects: int
    """Subjects that it rests on."""


@dataclass(frozen=True)
class PairDifference:
    """How the subjects of one group differ from those of another in their mean norm."""

    first: str
    """X."""
    second: str
    """Y."""
    subjects: tuple[int, int]
    """Of both."""
    delta: Estimate
    """Cliff's delta, P(X > Y) − P(X < Y)."""
    shift: Estimate
    """Hodges–Lehmann estimate of X − Y, in units of the norm."""
    wasserstein: Estimate
    """Wasserstein-1 distance in pooled standard deviations of subjects."""
    p: float
    """Of delta = 0: where the interval of ``delta`` ends at 0, this is 1 − its confidence."""
    p_holm: float
    """Adjusted for all pairs of this attribute."""
    equivalence_p: float | None
    """Larger p of two one-sided tests against ± the bound; None if nothing varies."""
    equivalent: bool
    """Whether abs(delta) below the bound is established at the 5 % level."""


@dataclass(frozen=True)
class Association:
    """Association of subjects' mean norms with their group."""

    name: str
    """The attribute, or the intersection."""
    role: Role
    """``primary`` for the one test declared in advance; all others are exploratory."""
    subjects: int
    """Of all groups."""
    eta2: Estimate
    """η², the share of the variance of subject means that lies between groups."""
    omega2: Estimate
    """ω², the same with its upward bias removed; may be negative."""
    epsilon2: Estimate
    """ε² = H / (G − 1), the share of the variance of ranks."""
    eta2_h: float
    """(H − k + 1) / (G − k), ε² with its upward bias removed."""
    f: float | None
    """ANOVA F; None if subjects differ between groups only."""
    welch_f: float | None
    """Welch's F, which does not take the groups to spread alike; None as for ``f``."""
    welch_df: tuple[float, float]
    """Its degrees of freedom."""
    p: float
    """Permutation test of Welch's F, the primary test; the interval of η² holds 0 where this is
    at least 1 − confidence, and nowhere else."""
    permutations: int
    """Of that test."""
    seed: int
    """Of that test."""
    kruskal_h: float
    """Kruskal–Wallis H, corrected for ties."""
    rank_p: float
    """Permutation test of Welch's F of the ranks, which belongs to ε² as ``p`` does to η²."""
    spread_between: SpreadTest
    """Do subject means lie equally far from the median of their group? The noise of few images
    counts."""
    spread_within: SpreadTest | None
    """Do two images of one subject differ equally in all groups? None with single images."""
    pairs: tuple[PairDifference, ...]
    """All pairs of groups."""
    mde_eta2: float | None
    """η² that Welch's test would detect with 80 % power at the 5 % level, in whatever groups the
    difference lies."""
    bound: float
    """Of the equivalence tests, on abs(delta)."""
    equivalence_p: float | None
    """That all pairs are equivalent: the largest p of theirs."""
    equivalent: bool
    """Whether all pairs are equivalent."""


@dataclass(frozen=True)
class AdjustedAssociation:
    """Association of the norms of images with the group, covariates held fixed."""

    name: str
    """The attribute, or the intersection."""
    covariates: tuple[str, ...]
    """In the model, linearly."""
    images: int
    """With all covariates."""
    subjects: int
    """With such an image."""
    dropped: int
    """Images without some covariate."""
    eta2: Estimate
    """η² over these images before adjustment."""
    partial_eta2: Estimate
    """Share of the variance that the covariates leave which the group explains."""
    wald_f: float | None
    """Wald statistic with subject-clustered errors, Welch's F if there were no covariates; None
    if these errors have no inverse."""
    df: tuple[float, float]
    """Its degrees of freedom, k − 1 and Welch's."""
    p: float | None
    """Of the Wald test; the interval of partial η² holds 0 where this is at least 1 − confidence,
    and nowhere else."""


def associate(
    sample: SubjectNorms,
    bootstrap: SubjectBootstrap,
    *,
    role: Role = "exploratory",
    permutations: int = 9999,
    seed: int = 0,
    bound: float = NEGLIGIBLE_DELTA,
    confidence: float = 0.95,
) -> Association | NoComparison:
    """Compare the mean norms of the subjects of all groups.

    Args:
        sample: the norms.
        bootstrap: of its groups.
        role: whether this is the one test declared in advance.
        permutations: of the groups over subjects.
        seed: of the permutations.
        bound: on abs(delta), below which groups count as equivalent.
        confidence: coverage of the intervals.

    Raises:
        MetricError: an impossible confidence, bound or number of permutations.
    """
    check_confidence(confidence)
    if not 0 < bound < 1:
        raise MetricError(f"equivalence bound {bound} is not between 0 and 1; the usual is 0.147")
    means, groups, sizes = sample.means, sample.groups, sample.sizes
    subjects, k = len(groups), len(sizes)
    refusal = _refusal(sample)
    if refusal is not None:
        return NoComparison(sample.name, refusal)
    analysis = anova(means, groups)
    ranks, deviations = rankdata(means), _deviations(means, groups)
    tests = permute([means, ranks, deviations], groups, permutations, seed)
    moments = _moments(means, bootstrap)
    interval = _share_interval(_effect(moments, tests[0].replicates, confidence), confidence)
    of_ranks = _effect(_rank_moments(means, bootstrap), tests[1].replicates, confidence)
    rank_interval = _share_interval(of_ranks, confidence)
    statistic = float(kruskal(*_split(means, groups)).statistic)
    test = Welch.of(sizes, moments.squares, analysis.between + analysis.within)
    pairs = _pairs(sample, bootstrap, bound, confidence)
    equivalence = [pair.equivalence_p for pair in pairs]
    known = [p for p in equivalence if p is not None]
    largest = max(known) if len(known) == len(pairs) else None
    return Association(
        name=sample.name,
        role=role,
        subjects=subjects,
        eta2=estimate_of(analysis.eta2, interval, subjects, _NO_INTERVAL),
        omega2=estimate_of(analysis.omega2, interval, subjects, _NO_INTERVAL),
        epsilon2=estimate_of(statistic / (subjects - 1), rank_interval, subjects, _NO_INTERVAL),
        eta2_h=(statistic - k + 1) / (subjects - k),
        f=analysis.f,
        welch_f=None if analysis.within == 0 else tests[0].observed,
        welch_df=(k - 1, float(test.within)),
        p=tests[0].p,
        permutations=permutations,
        seed=seed,
        kruskal_h=statistic,
        rank_p=tests[1].p,
        spread_between=_spread(deviations, groups, tests[2]),
        spread_within=_spread_within(sample, permutations, seed),
        pairs=pairs,
        mde_eta2=_minimum_detectable(sizes, analysis, test),
        bound=bound,
        equivalence_p=largest,
        equivalent=largest is not None and largest < ALPHA,
    )


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

    @property
    def omega2(self) -> float:
        """(SSB − (k − 1) MSW) / (SST + MSW) (Hays, Statistics, 1963)."""
        error = self.within / (self.values - self.groups)
        return (self.between - (self.groups - 1) * error) / (self.between + self.within + error)

    @property
    def f(self) -> float | None:
        """MSB / MSW; None where nothing varies within groups."""
        if self.within == 0:
            return None
        return self.between / (self.groups - 1) / (self.within / (self.values - self.groups))


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


def _minimum_detectable(sizes: ArrayLike, analysis: Anova, test: Welch) -> float | None:
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


def cliffs_delta(first: ArrayLike, second: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Return P(X > Y) − P(X < Y) with its interval.

    The variance is that of Brunner and Munzel (Biometrical Journal 42, 2000), which lets
    distributions differ in anything; the asymmetric limits are those of Feng and Cliff (Journal of
    Modern Applied Statistical Methods 3, 2004) with a quantile of t. Where the groups are apart, no
    variance can be estimated: then the limit is that of as many independent pairs as the smaller
    group has subjects.

    Args:
        first: X, one value a subject, ``(n,)``.
        second: Y, ``(m,)``.
        confidence: coverage of the interval.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    win, error, freedom = _placements(x, y)
    delta, subjects = 2 * win - 1, len(x) + len(y)
    if abs(delta) == 1:
        least = 2 * (1 - confidence) ** (1 / min(len(x), len(y))) - 1
        low, high = sorted((delta, delta * least))
        apart = Interval(low, high, confidence, ONE_TO_ONE, INDEPENDENT_SUBJECTS)
        return Estimate(delta, apart, total=subjects)
    if not (error > 0 and freedom > 0):
        return Estimate(delta, total=subjects, remark="no interval: subjects do not differ enough")
    t = float(stdtrit(freedom, (1 + confidence) / 2))
    margin = t * 2 * error
    room = 1 - delta**2
    width = margin * math.sqrt(room**2 + margin**2)
    low, high = ((delta - delta**3 + sign * width) / (room + margin**2) for sign in (-1, 1))
    interval = Interval(low, high, confidence, FENG_CLIFF, INDEPENDENT_SUBJECTS)
    return Estimate(delta, interval, total=subjects)


def difference_p(first: ArrayLike, second: ArrayLike) -> float:
    """Return the p-value of delta = 0, at which the interval of `cliffs_delta` ends at 0.

    Args:
        first: X, one value a subject, ``(n,)``.
        second: Y, ``(m,)``.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    win, error, freedom = _placements(x, y)
    delta = 2 * win - 1
    if abs(delta) == 1:
        return float(0.5 ** min(len(x), len(y)))
    if not (error > 0 and freedom > 0):
        return 1.0
    # The margin m at which δ (1 − δ²) = m √((1 − δ²)² + m²).
    room = (1 - delta**2) ** 2
    margin = math.sqrt((math.sqrt(room**2 + 4 * delta**2 * room) - room) / 2)
    return float(2 * stdtr(freedom, -margin / (2 * error)))


def equivalence_p(
    first: ArrayLike, second: ArrayLike, bound: float = NEGLIGIBLE_DELTA
) -> float | None:
    """Return the p-value of abs(delta) >= bound, the larger of two one-sided tests.

    Two one-sided tests (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987) with
    the statistic and the degrees of freedom of Brunner and Munzel (2000).

    Args:
        first: X, one value a subject, ``(n,)``.
        second: Y, ``(m,)``.
        bound: on abs(delta).

    Returns:
        None if nothing varies, so that no error can be estimated.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    win, error, freedom = _placements(x, y)
    if abs(2 * win - 1) == 1:
        return 1.0
    if not (error > 0 and freedom > 0):
        return None
    above, below = ((win - 0.5 + side * bound / 2) / error for side in (1, -1))
    return float(max(stdtr(freedom, -above), stdtr(freedom, below)))


def hodges_lehmann(first: ArrayLike, second: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Return the median of all differences x − y, with order statistics of these as its interval.

    The interval inverts the rank sum test under a pure shift (Hollander, Wolfe and Chicken,
    Nonparametric Statistical Methods, 2014, section 4.3). Differences are counted, never listed.

    Args:
        first: X, one value a subject, ``(n,)``.
        second: Y, ``(m,)``.
        confidence: coverage of the interval.
    """
    x, y = np.sort(np.asarray(first, np.float64)), np.sort(np.asarray(second, np.float64))
    differences, subjects = len(x) * len(y), len(x) + len(y)
    middle = {(differences + 1) // 2, differences // 2 + 1}
    value = float(np.mean([_difference(x, y, rank) for rank in middle]))
    spread = math.sqrt(differences * (subjects + 1) / 12)
    rank = math.floor(differences / 2 - float(ndtri((1 + confidence) / 2)) * spread + 0.5)
    if rank < 1:
        return Estimate(value, total=subjects, remark="no interval: too few subjects")
    low, high = _difference(x, y, rank), _difference(x, y, differences + 1 - rank)
    return Estimate(value, Interval(low, high, confidence, LEHMANN, SHIFT), total=subjects)


def wasserstein(
    first: ArrayLike,
    second: ArrayLike,
    first_drawn: NDArray[np.integer],
    second_drawn: NDArray[np.integer],
    confidence: float = 0.95,
) -> Estimate:
    """Return the area between two distribution functions over their pooled standard deviation.

    Replicates of a distance lie above it, so its lower limit is 0 where replicates of equal
    distributions reach it.

    Args:
        first: X, one value a subject, ``(n,)``.
        second: Y, ``(m,)``.
        first_drawn: how often each of X is drawn in each replicate, ``(R, n)``.
        second_drawn: how often each of Y, ``(R, m)``.
        confidence: coverage of the interval.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    subjects = len(x) + len(y)
    if subjects < 3 or np.ptp(x) == np.ptp(y) == 0:
        return Estimate(None, total=subjects, remark="subjects do not vary within the groups")
    grid = np.sort(np.concatenate([x, y]))
    widths = np.diff(grid)
    ranks = [np.searchsorted(np.sort(side), grid[:-1], side="right") for side in (x, y)]
    shares = [rank / len(side) for rank, side in zip(ranks, (x, y), strict=True)]
    area = float(np.abs(shares[0] - shares[1]) @ widths)
    orders = np.argsort(x), np.argsort(y)
    features = [np.stack([side - grid[0], (side - grid[0]) ** 2], axis=1) for side in (x, y)]
    sizes = len(x), len(y)

    def pooled_sd(sums: Sequence[Array]) -> Array:
        squares = [s[..., 1] - s[..., 0] ** 2 / n for s, n in zip(sums, sizes, strict=True)]
        return np.sqrt(np.maximum(squares[0] + squares[1], 0) / (subjects - 2))

    value = area / float(pooled_sd([feature.sum(axis=0) for feature in features]))
    if min(sizes) < 2:
        return Estimate(value, total=subjects, remark="no interval: a group has one subject")
    replicates = np.empty(len(first_drawn))
    under_equality = np.empty(len(first_drawn))
    step = max(1, _CELLS // subjects)
    for start in range(0, len(replicates), step):
        batch = slice(start, start + step)
        drawn = [matrix[batch].astype(np.float64) for matrix in (first_drawn, second_drawn)]
        steps = [
            _cumulative(matrix[:, order]).take(rank, axis=1) / len(order)
            for matrix, order, rank in zip(drawn, orders, ranks, strict=True)
        ]
        sums = [matrix @ feature for matrix, feature in zip(drawn, features, strict=True)]
        with np.errstate(divide="ignore", invalid="ignore"):
            replicates[batch] = np.abs(steps[0] - steps[1]) @ widths / pooled_sd(sums)
        errors = [
            (replicate - share) * math.sqrt(n / (n - 1))
            for replicate, share, n in zip(steps, shares, sizes, strict=True)
        ]
        under_equality[batch] = np.abs(errors[0] - errors[1]) @ widths
    replicates[~np.isfinite(replicates)] = np.nan
    interval = percentile(replicates, min(sizes), confidence)
    if interval is None:
        return Estimate(value, total=subjects, remark="no interval: subjects do not differ enough")
    alike = np.mean(under_equality >= area) > (1 - confidence) / 2
    low = 0.0 if alike else min(interval.low, value)
    return Estimate(value, replace(interval, low=low), total=subjects)


def adjust_for_covariates(
    sample: SubjectNorms, bootstrap: SubjectBootstrap, confidence: float = 0.95
) -> AdjustedAssociation | NoComparison:
    """Fit ``norm ~ group + covariates`` to images, with errors clustered by subject.

    The Wald test uses a sandwich of sums by subject (Cameron and Miller, Journal of Human Resources
    50, 2015) with corrections for groups of few subjects, different spread and uneven numbers of
    images (Welch; Bell and McCaffrey, Survey Methodology 28, 2002); with as many images
    of every subject and no covariate it is Welch's test. Everything is computed from sums of
    products over the images of each subject.

    Args:
        sample: the norms, with covariates.
        bootstrap: of its groups.
        confidence: coverage of the intervals.

    Raises:
        MetricError: no covariate, one that does not vary, or several that follow from another.
    """
    check_confidence(confidence)
    names = tuple(sample.covariates)
    if not names:
        raise MetricError(f"{sample.name}: there are no covariates to adjust for")
    columns = np.stack(list(sample.covariates.values()), axis=1)
    complete = np.asarray(np.isfinite(columns).all(axis=1))
    present = np.unique(sample.subjects[complete])
    held = np.bincount(sample.groups[present], minlength=len(sample.names))
    if len(held) < 2:
        return NoComparison(sample.name, "all subjects are in one group")
    if not held.all():
        lacking = sample.names[int(held.argmin())]
        return NoComparison(sample.name, f"no image of group {lacking} has all covariates")
    fit = _Fit(sample, complete, columns[complete])
    if len(present) <= len(held) or fit.error <= 1e-20 * fit.total:
        return NoComparison(sample.name, "there is nothing left to estimate errors from")
    plain, adjusted = fit.intervals(bootstrap, confidence)
    wald = fit.wald()
    subjects = len(present)
    return AdjustedAssociation(
        name=sample.name,
        covariates=names,
        images=fit.images,
        subjects=subjects,
        dropped=len(complete) - fit.images,
        eta2=estimate_of(fit.eta2, plain, subjects, _NO_INTERVAL),
        partial_eta2=estimate_of(fit.partial_eta2, adjusted, subjects, _NO_INTERVAL),
        wald_f=None if wald is None else wald.f,
        df=(len(held) - 1, float(subjects - 1 if wald is None else wald.within)),
        p=None if wald is None else wald.p,
    )


def _refusal(sample: SubjectNorms) -> str | None:
    """Say why groups cannot be compared; None if they can."""
    if len(sample.sizes) < 2:
        return "all subjects are in one group"
    if len(sample.groups) <= len(sample.sizes):
        return "there are no more subjects than groups"
    means = sample.means
    if np.ptp(means) <= 16 * np.finfo(np.float64).eps * np.abs(means).max():
        return "all subjects have the same mean norm"
    return None


def _split(values: Array, groups: NDArray[np.int64]) -> list[Array]:
    return [values[groups == g] for g in range(int(groups.max()) + 1)]


@dataclass(frozen=True)
class _Moments:
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


def _moments(values: Array, bootstrap: SubjectBootstrap) -> _Moments:
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
    return _Moments(sizes, means, squares, deviations, replicated)


def _rank_moments(values: Array, bootstrap: SubjectBootstrap) -> _Moments:
    """Return moments of ranks; every replicate is ranked anew."""
    order = np.argsort(values, kind="stable")
    starts = np.unique(values[order], return_index=True)[1]
    block = np.searchsorted(starts, np.arange(len(values)), side="right") - 1
    blocks = np.empty(len(values), dtype=np.int64)
    blocks[order] = block
    ranks = rankdata(values)
    by_group = [ranks[ids] for ids in bootstrap.members]
    sizes = np.array([len(group) for group in by_group], dtype=np.float64)
    means = np.array([group.mean() for group in by_group])
    squares = np.array([float(((group - group.mean()) ** 2).sum()) for group in by_group])
    deviations, replicated = np.empty((2, bootstrap.replicates, len(sizes)))
    step = max(1, _CELLS // len(values))
    for start in range(0, bootstrap.replicates, step):
        rows = slice(start, start + step)
        drawn = [matrix[rows].astype(np.float64) for matrix in bootstrap.multiplicities]
        weights = np.empty((len(drawn[0]), len(values)))
        for ids, matrix in zip(bootstrap.members, drawn, strict=True):
            weights[:, ids] = matrix
        tied = np.add.reduceat(weights[:, order], starts, axis=1)
        midranks = np.cumsum(tied, axis=1) - (tied - 1) / 2
        for g, ids in enumerate(bootstrap.members):
            own = midranks[:, blocks[ids]] - means[g]
            sums = np.einsum("rn,rn->r", drawn[g], own)
            deviations[rows, g] = sums / sizes[g]
            replicated[rows, g] = np.einsum("rn,rn,rn->r", drawn[g], own, own) - sums**2 / sizes[g]
    return _Moments(sizes, means, squares, deviations, replicated)


def _contrasts(weights: Array) -> Array:
    """Return K with m' K m = Σ w (m − m̄)², ``(k, k)``."""
    return np.diag(weights) - np.outer(weights, weights) / weights.sum()


@dataclass(frozen=True)
class _Effect:
    """A statistic F of the effects of groups, what it is in replicates, and its test.

    The effects point in the direction observed; their size θ is the √F they have by themselves.
    """

    f: float
    """Observed."""
    replicates: Array
    """a, b and c of F = a + b θ + c θ² in replicates around effects of size θ, ``(R, 3)``."""
    keeps: float
    """The largest F at which the test keeps the hypothesis of no effect."""
    explained: float
    """Sum of squares between groups of effects of size 1."""
    error: float
    """Sum of squares within groups."""
    population: float
    """The same of the population, G times its variance."""


def _effect(moments: _Moments, permuted: Array, confidence: float) -> _Effect | None:
    """Describe the effects on one value a subject, whose test permutes groups.

    Returns:
        None with one subject in a group, or without any variation.
    """
    n, spread = moments.sizes, moments.squares.sum()
    contrasts = _contrasts(n)
    between = float(moments.means @ contrasts @ moments.means)
    if n.min() < 2 or spread <= 1e-20 * (between + spread):
        return None
    if np.abs(moments.deviations).max() <= 1e-9 * np.ptp(moments.means):
        return None  # the ranks of groups that are wholly apart do not vary
    test = Welch.of(n, moments.squares, between + spread)
    f = float(test.f(moments.means))
    direction = moments.means - moments.means.mean()
    if f <= 1e-12:
        # Without any effect there is no direction; any will do.
        f, direction = 0.0, np.where(np.arange(len(n)) == n.argmin(), 1.0, 0.0)
    direction = direction / math.sqrt(test.f(direction))
    # Means of n draws vary by (n − 1) / n too little, and so do sums of squares about them.
    expansion = n / (n - 1)
    deviations = moments.deviations * np.sqrt(expansion)
    drawn = Welch.of(n, moments.replicated * expansion, between + spread)
    terms = (
        drawn.f(deviations),
        2 * drawn.product(direction, deviations),
        drawn.product(direction, direction),
    )
    return _Effect(
        f=f,
        replicates=np.stack(terms, axis=1),
        keeps=largest_kept(permuted, 1 - confidence),
        explained=float(direction @ contrasts @ direction),
        error=float(spread),
        population=float(spread * n.sum() / (n.sum() - len(n))),
    )


def _share_interval(effect: _Effect | None, confidence: float) -> Interval | None:
    """Return the interval of the share of variance between groups, by inversion of a test.

    Such a share is never negative, and its replicates lie above it: percentile and BCa intervals
    miss a small share nearly always. So effects of every size θ are put to the test (Davison and
    Hinkley, Bootstrap Methods and their Application, Cambridge 1997, section 5.4), with their
    direction held: the interval holds those from which √F lies no further than it does in
    replicates around them. At θ = 0 that is the test of no effect itself, whose critical value
    serves to scale the distance. So the interval holds 0 where the test keeps the hypothesis of no
    effect, and nowhere else; and it always holds the effect observed.
    """
    if effect is None:
        return None
    observed, level = math.sqrt(effect.f), 1 - confidence
    kept = math.sqrt(max(0.0, largest_kept(effect.replicates[:, 0], level)))
    scale = kept / math.sqrt(effect.keeps) if 0 < effect.keeps < math.inf else 1.0
    if not 0 < scale < math.inf:
        scale = 1.0

    def holds(size: float) -> bool:
        replicates = effect.replicates @ np.array([1.0, size, size**2])
        distances = np.abs(np.sqrt(np.maximum(replicates, 0)) - size)
        beyond = np.count_nonzero(distances >= scale * abs(observed - size))
        return bool((1 + beyond) / (1 + len(distances)) >= level)

    def end(inside: float, outside: float) -> float:
        for _ in range(50):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if holds(middle) else (inside, middle)
        return inside

    def share(size: float) -> float:
        explained = size**2 * effect.explained
        return explained / (explained + effect.population)

    detected = effect.f * (1 - 1e-9) > effect.keeps
    low = share(end(observed, 0.0)) if detected else 0.0
    step = 1.0
    while holds(observed + step) and step < 1e6:
        step *= 2
    high = 1.0 if step >= 1e6 else share(end(observed, observed + step))
    explained = effect.f * effect.explained
    value = explained / (explained + effect.error)
    return Interval(min(low, value), max(high, value), confidence, INVERTED, INDEPENDENT_SUBJECTS)


def _pairs(
    sample: SubjectNorms, bootstrap: SubjectBootstrap, bound: float, confidence: float
) -> tuple[PairDifference, ...]:
    """Compare the subjects of every two groups."""
    means = sample.means
    differences = []
    for i, j in itertools.combinations(range(len(sample.names)), 2):
        x, y = means[bootstrap.members[i]], means[bootstrap.members[j]]
        p = difference_p(x, y)
        equivalence = equivalence_p(x, y, bound)
        differences.append(
            PairDifference(
                first=sample.names[i],
                second=sample.names[j],
                subjects=(len(x), len(y)),
                delta=cliffs_delta(x, y, confidence),
                shift=hodges_lehmann(x, y, confidence),
                wasserstein=wasserstein(
                    x, y, bootstrap.multiplicities[i], bootstrap.multiplicities[j], confidence
                ),
                p=p,
                p_holm=p,
                equivalence_p=equivalence,
                equivalent=equivalence is not None and equivalence < ALPHA,
            )
        )
    adjusted = holm([pair.p for pair in differences])
    return tuple(replace(pair, p_holm=p) for pair, p in zip(differences, adjusted, strict=True))


def _deviations(means: Array, groups: NDArray[np.int64]) -> Array:
    """Return how far subject means lie from the median of their group.

    Brown and Forsythe, Journal of the American Statistical Association 69, 1974.
    """
    centres = np.array([np.median(group) for group in _split(means, groups)])
    return np.abs(means - centres[groups])


def _spread_within(sample: SubjectNorms, permutations: int, seed: int) -> SpreadTest | None:
    """Test whether images of one subject spread equally, by Gini's mean difference of each subject.

    The mean of |x − y| over pairs of images is unbiased for any number of images and any
    distribution, so groups whose subjects have other numbers of images can be compared.
    """
    counts = sample.counts
    several = counts > 1
    _, groups = np.unique(sample.groups[several], return_inverse=True)
    if len(np.unique(groups)) < 2 or len(groups) <= len(np.unique(groups)):
        return None
    order = np.lexsort((sample.norms, sample.subjects))
    starts = np.append(0, np.cumsum(counts)[:-1])
    subjects = sample.subjects[order]
    # An image above j others of its subject and below m − 1 − j of them.
    balance = 2 * (np.arange(len(order)) - starts[subjects]) - counts[subjects] + 1
    centred = sample.norms[order] - sample.means[subjects]
    sums = np.bincount(subjects, weights=balance * centred)[several]
    pairs = counts[several] * (counts[several] - 1) / 2
    gini = sums / pairs
    return _spread(gini, groups, permute(gini, groups, permutations, seed)[0])


def _spread(deviations: Array, groups: NDArray[np.int64], test: PermutationTest) -> SpreadTest:
    alike = anova(deviations, groups).within == 0
    return SpreadTest(None if alike else test.observed, test.p, len(groups))


def _placements(x: Array, y: Array) -> tuple[float, float, float]:
    """Return P(X > Y) + P(X = Y) / 2, its standard error and its degrees of freedom.

    Brunner and Munzel, Biometrical Journal 42, 2000.
    """
    n, m = len(x), len(y)
    ordered = np.sort(x), np.sort(y)
    over = _share_below(ordered[1], x), _share_below(ordered[0], y)
    win = float(over[0].mean())
    if min(n, m) < 2:
        return win, 0.0, 0.0
    variances = [float(share.var(ddof=1)) / len(share) for share in over]
    total = sum(variances)
    if total == 0:
        return win, 0.0, 0.0
    freedom = total**2 / (variances[0] ** 2 / (n - 1) + variances[1] ** 2 / (m - 1))
    return win, math.sqrt(total), freedom


def _share_below(ordered: Array, values: Array) -> Array:
    """Return the share of ``ordered`` that lies below each value, equal ones counted half."""
    below = np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right")
    return below / (2 * len(ordered))


def _difference(x: Array, y: Array, rank: int) -> float:
    """Return the difference x − y of some rank among all, from 1; both are sorted."""

    def reach(limit: float) -> int:
        return x.size * y.size - int(np.searchsorted(y, x - limit).sum())

    low, high = float(x[0] - y[-1]), float(x[-1] - y[0])
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (low, middle) if reach(middle) >= rank else (middle, high)
    # The limit is close to a difference; return that itself.
    index = np.searchsorted(y, x - high)
    near = [x - y[np.clip(index + step, 0, y.size - 1)] for step in (-1, 0)]
    candidates = np.concatenate(near)
    return float(candidates[np.abs(candidates - high).argmin()])


def _cumulative(weights: Array) -> Array:
    """Return sums of the first 0, 1, … columns, ``(R, n + 1)``."""
    sums = np.zeros((weights.shape[0], weights.shape[1] + 1))
    np.cumsum(weights, axis=1, out=sums[:, 1:])
    return sums


class _Fit:
    """Least squares of norms on groups and covariates, from sums of products by subject."""

    def __init__(self, sample: SubjectNorms, complete: NDArray[np.bool_], columns: Array) -> None:
        """Fit images with all covariates.

        Args:
            sample: the norms.
            complete: which images, ``(N,)``.
            columns: their covariates, ``(n, q)``.

        Raises:
            MetricError: a covariate does not vary within groups, or follows from others.
        """
        norms = sample.norms[complete]
        spread = columns.std(axis=0)
        scaled = (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1)
        self.groups = sample.groups
        self.subjects = sample.subjects[complete]
        self.images = len(norms)
        self.vectors = np.column_stack([np.ones(len(norms)), norms - norms.mean(), scaled])
        width = self.vectors.shape[1]
        self.products = np.empty((len(sample.groups), width, width))
        """Sums of products of 1, norm and covariates over the images of a subject, (G, d, d)."""
        for i, j in itertools.combinations_with_replacement(range(width), 2):
            terms = self.vectors[:, i] * self.vectors[:, j]
            sums = np.bincount(self.subjects, weights=terms, minlength=len(sample.groups))
            self.products[:, i, j] = self.products[:, j, i] = sums
        self.by_group = np.zeros((len(sample.names), width, width))
        np.add.at(self.by_group, sample.groups, self.products)
        within = _within(self.by_group)[1:, 1:]
        if np.linalg.eigvalsh(within)[0] <= 1e-10 * self.images:
            raise MetricError(
                f"{sample.name}: the covariates {', '.join(sample.covariates)} do not all vary "
                "within groups, or one follows from the others; leave it out"
            )
        self.intercepts, self.slopes, self.error = _regress(self.by_group)
        self.reduced = _regress(self.by_group.sum(axis=0)[None])[2]
        self.unadjusted = _regress(self.by_group[:, :2, :2])[2]
        self.total = _regress(self.by_group.sum(axis=0)[None, :2, :2])[2]

    @property
    def eta2(self) -> float:
        """Share of the variance between groups, without covariates."""
        return float(1 - self.unadjusted / self.total)

    @property
    def partial_eta2(self) -> float:
        """Share of what covariates leave."""
        return float(1 - self.error / self.reduced)

    def intervals(
        self, bootstrap: SubjectBootstrap, confidence: float
    ) -> tuple[Interval | None, Interval | None]:
        """Return the intervals of `eta2` and `partial_eta2`."""
        flat = self.products.reshape(len(self.products), -1)
        drawn = [bootstrap.sums(g, flat[ids]) for g, ids in enumerate(bootstrap.members)]
        shape = (bootstrap.replicates, len(drawn), *self.products.shape[1:])
        moments = np.stack(drawn, axis=1).reshape(shape)
        return (
            self._interval(moments[..., :2, :2], confidence),
            self._interval(moments, confidence),
        )

    def _interval(self, moments: Array, confidence: float) -> Interval | None:
        width = moments.shape[-1]
        observed = self.by_group[:, :width, :width]
        effects, slopes, error = _regress(observed)
        with np.errstate(divide="ignore", invalid="ignore"):
            replicated, _, errors = _regress(moments)
        wald = self._wald(width)
        sizes = self._sizes()
        if wald is None or sizes.min() < 2:
            return None
        # Group and covariates overlap; K is what covariates do not explain of the groups.
        shared = np.delete(observed[:, 0], 1, axis=1)
        total = np.delete(np.delete(observed.sum(axis=0), 1, axis=0), 1, axis=1)
        contrasts = np.diag(observed[:, 0, 0]) - shared @ np.linalg.solve(total, shared.T)
        direction = effects - effects.mean()
        direction = direction / math.sqrt(direction @ wald.precision @ direction)
        deviations = (replicated - effects) * np.sqrt(sizes / (sizes - 1))
        weighted = deviations @ wald.precision
        terms = (
            np.einsum("ri,ri->r", weighted, deviations),
            2 * weighted @ direction,
            np.ones(len(deviations)),
        )
        effect = _Effect(
            f=wald.f,
            replicates=np.stack(terms, axis=1) * (error / errors)[:, None],
            keeps=float(fdtri(len(effects) - 1, wald.within, confidence)),
            explained=float(direction @ contrasts @ direction),
            error=float(error),
            population=float(error * self.images / (self.images - len(effects) - len(slopes))),
        )
        return _share_interval(effect, confidence)

    def wald(self) -> _Wald | None:
        """Test equal intercepts; None if their errors have no inverse."""
        return self._wald(self.vectors.shape[1])

    def _sizes(self) -> Array:
        """Return the numbers of subjects in the groups, ``(k,)``."""
        return np.bincount(self.groups[np.unique(self.subjects)]).astype(np.float64)

    def _wald(self, width: int) -> _Wald | None:
        """Test equal intercepts given the first ``width`` − 2 covariates.

        The squared sum of a subject is divided by 1 − its share of the images of its group, as in
        `clustered_mean`, and the degrees of freedom are Welch's from the effective numbers of
        subjects of the groups, whose errors may differ.
        """
        moments = self.by_group[:, :width, :width]
        intercepts, slopes, _ = _regress(moments)
        k, q, sizes = len(intercepts), len(slopes), self._sizes()
        images = np.bincount(self.subjects, minlength=len(self.groups)).astype(np.float64)
        shares = images / moments[self.groups, 0, 0]
        covariates = self.vectors[:, 2:width]
        residuals = (
            self.vectors[:, 1] - intercepts[self.groups[self.subjects]] - covariates @ slopes
        )
        sums = [
            np.bincount(self.subjects, weights=column, minlength=len(self.groups))
            for column in (residuals, *(residuals[:, None] * covariates).T)
        ]
        scores = np.zeros((len(self.groups), k + q))
        scores[np.arange(len(scores)), self.groups] = sums[0]
        scores[:, k:] = np.stack(sums, axis=1)[:, 1:]
        scores /= np.sqrt(np.where(shares < 1, 1 - shares, 1))[:, None]
        products = np.zeros((k + q, k + q))
        products[:k, :k] = np.diag(moments[:, 0, 0])
        products[:k, k:] = moments[:, 0, 2:]
        products[k:, :k] = products[:k, k:].T
        products[k:, k:] = moments[:, 2:, 2:].sum(axis=0)
        bread = np.linalg.inv(products)
        correction = (self.images - k) / (self.images - k - q)
        covariance = correction * (bread @ (scores.T @ scores) @ bread)[:k, :k]
        differences = np.column_stack([-np.ones(k - 1), np.eye(k - 1)])
        spread, variances = differences @ covariance @ differences.T, covariance.diagonal()
        if np.linalg.matrix_rank(spread, hermitian=True) < k - 1 or variances.min() <= 0:
            return None
        squares, fourths = (np.bincount(self.groups, shares**power) for power in (2, 4))
        freedom = np.maximum(1, squares**2 / fourths * (sizes - 1) / sizes)
        test = Welch.of_weights(1 / variances, freedom)
        precision = differences.T @ np.linalg.solve(spread, differences) / float(test.scale)
        f, within = float(intercepts @ precision @ intercepts), float(test.within)
        return _Wald(f, within, precision, float(fdtrc(k - 1, within, f)))


@dataclass(frozen=True)
class _Wald:
    """A test of equal intercepts."""

    f: float
    within: float
    """Degrees of freedom of the error."""
    precision: Array
    """P with f = intercepts' P intercepts, ``(k, k)``."""
    p: float


def _within(moments: Array) -> Array:
    """Return sums of products about the means of groups, ``(…, k, d, d)`` → ``(…, d−1, d−1)``."""
    images, sums = moments[..., :1, :1], moments[..., 1:, :1]
    return (moments[..., 1:, 1:] - sums * np.swapaxes(sums, -1, -2) / images).sum(axis=-3)


def _regress(moments: Array) -> tuple[Array, Array, Array]:
    """Regress norms on covariates with an intercept for each group.

    Args:
        moments: sums of products of 1, norm and q covariates, ``(…, k, q + 2, q + 2)``.

    Returns:
        Intercepts ``(…, k)``, slopes ``(…, q)`` and the sum of squared errors ``(…)``.
    """
    within = _within(moments)
    slopes = np.einsum(
        "...ij,...j->...i", np.linalg.pinv(within[..., 1:, 1:], hermitian=True), within[..., 1:, 0]
    )
    error = within[..., 0, 0] - np.einsum("...i,...i->...", slopes, within[..., 1:, 0])
    sums = moments[..., 0, 1] - np.einsum("...ki,...i->...k", moments[..., 0, 2:], slopes)
    return sums / moments[..., 0, 0], slopes, np.maximum(error, 0)
