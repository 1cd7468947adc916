"""Association of norms with a recorded group, with the subject as the unit.

Tests and effect sizes compare mean norms of subjects; images of one subject are never taken for
independent. A test that finds nothing comes with the least effect that it would have found, and
with a test of equivalence, so that "no difference" has a size.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kruskal, rankdata

from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.norms import Array, SubjectBootstrap, SubjectNorms, estimate_of
from facerec.fairness.two_groups import (
    NEGLIGIBLE_DELTA,
    cliffs_delta,
    difference_p,
    equivalence_p,
    hodges_lehmann,
    wasserstein,
)
from facerec.fairness.variance_shares import (
    NO_INTERVAL,
    anova,
    eta2_interval,
    minimum_detectable,
    moments_of,
    rank_moments_of,
    split_by_group,
)
from facerec.fairness.welch import PermutationTest, Welch, permute
from facerec.report.conclusions import ALPHA
from facerec.report.estimate import Estimate
from facerec.statistics.multiplicity import holm

Role = Literal["primary", "exploratory"]


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


def associate(
    sample: SubjectNorms,
    bootstrap: SubjectBootstrap,
    *,
    role: Role = "exploratory",
    permutations: int = 9999,
    seed: int = 0,
) -> Association | NoComparison:
    """Compare the mean norms of the subjects of all groups.

    Args:
        sample: the norms.
        bootstrap: of its groups.
        role: whether this is the one test declared in advance.
        permutations: of the groups over subjects.
        seed: of the permutations.

    Raises:
        MetricError: no permutation.
    """
    means, groups, sizes = sample.means, sample.groups, sample.sizes
    subjects, k = len(groups), len(sizes)
    refusal = _refusal(sample)
    if refusal is not None:
        return NoComparison(sample.name, refusal)
    analysis = anova(means, groups)
    ranks, deviations = rankdata(means), _deviations(means, groups)
    tests = permute([means, ranks, deviations], groups, permutations, seed)
    moments = moments_of(means, bootstrap)
    interval = eta2_interval(moments, tests[0].p)
    rank_interval = eta2_interval(rank_moments_of(means, bootstrap), tests[1].p)
    statistic = float(kruskal(*split_by_group(means, groups)).statistic)
    test = Welch.of(sizes, moments.squares, analysis.between + analysis.within)
    pairs = _pairs(sample, bootstrap)
    equivalence = [pair.equivalence_p for pair in pairs]
    known = [p for p in equivalence if p is not None]
    largest = max(known) if len(known) == len(pairs) else None
    return Association(
        name=sample.name,
        role=role,
        subjects=subjects,
        eta2=estimate_of(analysis.eta2, interval, subjects, NO_INTERVAL),
        omega2=estimate_of(analysis.omega2, interval, subjects, NO_INTERVAL),
        epsilon2=estimate_of(statistic / (subjects - 1), rank_interval, subjects, NO_INTERVAL),
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
        pairs=pairs,
        mde_eta2=minimum_detectable(sizes, analysis, test),
        bound=NEGLIGIBLE_DELTA,
        equivalence_p=largest,
        equivalent=largest is not None and largest < ALPHA,
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


def _pairs(sample: SubjectNorms, bootstrap: SubjectBootstrap) -> tuple[PairDifference, ...]:
    """Compare the subjects of every two groups."""
    means, differences = sample.means, []
    values = [means[ids] for ids in bootstrap.members]
    compared = [*itertools.combinations(range(len(values)), 2)]
    ps = [difference_p(values[i], values[j]) for i, j in compared]
    for (i, j), p, adjusted in zip(compared, ps, holm(ps), strict=True):
        x, y = values[i], values[j]
        equivalence = equivalence_p(x, y)
        differences.append(
            PairDifference(
                first=sample.names[i],
                second=sample.names[j],
                subjects=(len(x), len(y)),
                delta=cliffs_delta(x, y),
                shift=hodges_lehmann(x, y),
                wasserstein=wasserstein(
                    x, y, bootstrap.multiplicities[i], bootstrap.multiplicities[j]
                ),
                p=p,
                p_holm=adjusted,
                equivalence_p=equivalence,
                equivalent=equivalence is not None and equivalence < ALPHA,
            )
        )
    return tuple(differences)


def _deviations(means: Array, groups: NDArray[np.int64]) -> Array:
    """Return how far subject means lie from the median of their group.

    Brown and Forsythe, Journal of the American Statistical Association 69, 1974.
    """
    centres = np.array([np.median(group) for group in split_by_group(means, groups)])
    return np.abs(means - centres[groups])


def _spread(deviations: Array, groups: NDArray[np.int64], test: PermutationTest) -> SpreadTest:
    alike = anova(deviations, groups).within == 0
    return SpreadTest(None if alike else test.observed, test.p, len(groups))
