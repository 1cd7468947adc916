"""Association of norms with a recorded group, with the subject as the unit.

Tests and effect sizes compare mean norms of subjects; images of one subject are never taken for
independent. A test that finds nothing comes with the least effect that it would have found.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from facerec.base.defaults import PERMUTATIONS, REPLICATES
from facerec.fairness import rows as names
from facerec.fairness.norms import Array, SubjectNorms, figure_of
from facerec.fairness.variance_shares import (
    NO_INTERVAL,
    Welch,
    eta2,
    minimum_detectable,
    permute,
    resampled,
)
from facerec.report.estimate import Estimate
from facerec.statistics.influences import share_below
from facerec.statistics.intervals import Interval
from facerec.statistics.multiplicity import holm


def associate(
    sample: SubjectNorms,
    permutations: int = PERMUTATIONS,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> list[names.Row]:
    """Compare the mean norms of the subjects of all groups.

    Rows are η², the share of the variance of subject means that lies between groups, and the
    p-value of the permutation test of Welch's F, the primary test: the interval of η² holds 0 where
    p is at least 1 − confidence, and nowhere else; Welch's F, which does not take the groups to
    spread alike, without a value if subjects differ between groups only; the η² that the test would
    detect with 80 % power at the 5 % level, in whatever groups the difference lies; and Cliff's
    delta of all pairs of groups, with its p-value after Holm. It takes two groups, more subjects
    than groups, and norms that differ; else one row says so.

    Args:
        sample: the norms.
        permutations: of the groups over subjects.
        replicates: resamples of the subjects.
        seed: of both.
    """
    means, groups, sizes = sample.means, sample.groups, sample.sizes
    equal = np.ptp(means) <= 16 * np.finfo(np.float64).eps * np.abs(means).max()
    if equal or not 2 <= len(sizes) < len(groups):
        why = "it takes two groups, more subjects than groups, and norms that differ"
        lacking = Estimate(None, total=len(groups), remark=f"no comparison: {why}")
        return [names.row(sample.name, names.ETA2, lacking)]
    f, p = permute(means, groups, permutations, seed)
    moments = resampled(means, groups, replicates, seed)
    share, interval = eta2(moments, p)
    within = float(moments.squares.sum())
    welch = Welch.of(sizes, moments.squares, float(((means - means.mean()) ** 2).sum()))
    values = [means[groups == g] for g in range(len(sizes))]
    both = [*itertools.combinations(range(len(sizes)), 2)]
    deltas = [cliffs_delta(values[i], values[j]) for i, j in both]
    ps = holm([p for _, p in deltas])
    found = figure_of(share, interval, len(groups), NO_INTERVAL)
    least = minimum_detectable(sizes, within, welch)
    rows = [
        names.row(sample.name, names.ETA2, found),
        names.p_row(sample.name, names.ETA2, p),
        names.row(sample.name, names.WELCH, Estimate(f if within else None, unit="number")),
        names.row(sample.name, names.DETECTABLE, Estimate(least, unit="number")),
    ]
    for (i, j), (delta, _), adjusted in zip(both, deltas, ps, strict=True):
        group, other = sample.names[i], sample.names[j]
        rows.append(names.row(sample.name, names.DELTA, delta, group, other=other))
        rows.append(names.p_row(sample.name, names.DELTA, float(adjusted), group, other=other))
    return rows


def cliffs_delta(
    first: ArrayLike, second: ArrayLike, confidence: float = 0.95
) -> tuple[Estimate, float]:
    """Return P(X > Y) − P(X < Y) with its interval, and the p-value of 0, at which that ends at 0.

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
    delta, subjects, pairs = 2 * win - 1, len(x) + len(y), min(len(x), len(y))
    if abs(delta) == 1:
        least = 2 * (1 - confidence) ** (1 / pairs) - 1
        low, high = sorted((delta, delta * least))
        return figure_of(delta, Interval(low, high), subjects), 0.5**pairs
    if not (error > 0 and freedom > 0):
        return figure_of(delta, None, subjects, "no interval: subjects do not differ enough"), 1.0
    t, room = float(stdtrit(freedom, (1 + confidence) / 2)), 1 - delta**2
    margin = t * 2 * error
    width = margin * math.sqrt(room**2 + margin**2)
    low, high = ((delta - delta**3 + sign * width) / (room + margin**2) for sign in (-1, 1))
    # The margin m at which δ (1 − δ²) = m √((1 − δ²)² + m²).
    reach = math.sqrt((math.sqrt(room**4 + 4 * delta**2 * room**2) - room**2) / 2)
    p = float(2 * stdtr(freedom, -reach / (2 * error)))
    return figure_of(delta, Interval(low, high), subjects), p


def _placements(x: Array, y: Array) -> tuple[float, float, float]:
    """Return P(X > Y) + P(X = Y) / 2, its standard error and its degrees of freedom.

    Brunner and Munzel, Biometrical Journal 42, 2000.
    """
    n, m = len(x), len(y)
    over = share_below(np.sort(y), x), share_below(np.sort(x), y)
    win = float(over[0].mean())
    if min(n, m) < 2:
        return win, 0.0, 0.0
    variances = [float(share.var(ddof=1)) / len(share) for share in over]
    total = sum(variances)
    if total == 0:
        return win, 0.0, 0.0
    freedom = total**2 / (variances[0] ** 2 / (n - 1) + variances[1] ** 2 / (m - 1))
    return win, math.sqrt(total), freedom
