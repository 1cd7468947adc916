"""How the values of two groups of subjects differ: effect sizes with their intervals and tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtr, stdtrit

from facerec.fairness.norms import INDEPENDENT_SUBJECTS, Array, percentile
from facerec.fairness.variance_shares import CELLS
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval

NEGLIGIBLE_DELTA = 0.147
"""Absolute Cliff's delta below which a difference is called negligible (Romano, Kromrey, Coraggio
and Skowronek, Florida Association of Institutional Research, 2006)."""

FENG_CLIFF = "Feng–Cliff with Brunner–Munzel variance"

ONE_TO_ONE = "from disjoint pairs of subjects"

LEHMANN = "Lehmann, normal approximation of the rank sum"

SHIFT = "subjects are independent; distributions differ in location only"


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
    step = max(1, CELLS // subjects)
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
