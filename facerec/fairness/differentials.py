"""How far the error rates of groups lie apart: four measures of the FMR and of the FNMR.

ISO/IEC 19795-10 calls these the false positive differential (FPD) and the false negative
differential (FND). The formulas take rates with the groups on the last axis, so that one call
serves all draws of noise. A ratio is infinite where its denominator is 0, and NaN at
0/0; `differentials` turns both into a reason.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from facerec.base.defaults import REPLICATES
from facerec.fairness import rows as names
from facerec.fairness.groupings import ALL_GROUPS
from facerec.fairness.rates import ErrorsAt, GivenThreshold, GroupErrors, Of
from facerec.report import words
from facerec.report.conclusions import ALPHA
from facerec.report.estimate import Estimate, Unit
from facerec.report.tidy import OF_PAIRS
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_points import RULE_OF_30, OperatingPoint

Values = NDArray[np.float64]

MIN_SUBJECTS = 10
"""Groups with fewer subjects take no part in a comparison."""

RATIO = "max/min"
"""The measure that findings and assertions quote, as it can be said in words."""

NAMES: dict[Of, str] = {"FMR": "FPD", "FNMR": "FND"}
"""What ISO/IEC 19795-10 calls the differential of a rate."""
_KINDS = {"FMR": ("false matches", "non-mated"), "FNMR": ("false non-matches", "mated")}
"""Errors of each rate, and the pairs that it needs."""

FEW_ERRORS = 3
"""Fewer errors than that say next to nothing."""

_SIZES = np.concatenate([np.linspace(0, 2, 41)[:-1], np.geomspace(2, 2.0**40, 200)])
"""Multiples of the difference observed among which the ends of an interval are sought."""

Formula = Callable[[ArrayLike], Values]
Shares = Mapping[str, ClusteredShare]
"""The rate of each group that is compared."""
Noise = Callable[[float | Values, bool], Values]
"""Rates of the groups ``(k,)`` at a size of their difference, from parity (0) to that observed (1)
and beyond, or at several, ``(n, 1)``, ``(n, k)``; with noise their replicates, ``(R, k)``."""


def max_over_geomean(rates: ArrayLike) -> Values:
    """Return max x / (Π x)^(1/n); 1 at parity."""
    values = np.asarray(rates, np.float64)
    # Logarithms of the quotients, so that equal rates give exactly 1.
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.exp(np.mean(np.log(values.max(axis=-1, keepdims=True) / values), axis=-1))


def max_over_min(rates: ArrayLike) -> Values:
    """Return max x / min x; 1 at parity."""
    values = np.asarray(rates, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return values.max(axis=-1) / values.min(axis=-1)


def max_minus_min(rates: ArrayLike) -> Values:
    """Return max x − min x; 0 at parity."""
    values = np.asarray(rates, np.float64)
    return values.max(axis=-1) - values.min(axis=-1)


def gini(rates: ArrayLike) -> Values:
    """Return G(x) = n/(n−1) · Σᵢⱼ |xᵢ − xⱼ| / (2 n² mean x), from 0 to 1; 0 where all are 0.

    Howard et al., 2022, arXiv 2203.05051.
    """
    values = np.asarray(rates, np.float64)
    count = values.shape[-1]
    gaps = np.abs(values[..., :, None] - values[..., None, :]).sum(axis=(-2, -1))
    scale = 2 * count * (count - 1) * values.mean(axis=-1)
    return np.divide(gaps, scale, out=np.zeros_like(gaps), where=scale != 0)


MEASURES: dict[str, tuple[Formula, Unit]] = {
    "max/min": (max_over_min, "times"),
    "max/geomean": (max_over_geomean, "times"),
    "max−min": (max_minus_min, "share"),
    "Gini": (gini, "number"),
}
"""Formula of each measure and its unit: ``times`` divides rates by each other, so that few errors
make it meaningless. To add a measure is to add a line."""


@dataclass(frozen=True, kw_only=True)
class Differential(Estimate):
    """One measure at one FMR target; ``events`` are those of the group with the fewest."""

    measure: str
    of: Of
    at: names.At
    """The threshold."""
    p_value: float | None = None
    """How often groups of equal rates would differ as much or more."""


def differentials(
    errors: GroupErrors, *, replicates: int = REPLICATES, seed: int = 0
) -> list[Differential]:
    """Compute every measure with its interval and its test of parity, of rates of two groups.

    Ratios are withheld where a group has no error, where it has fewer than 3, and where both the
    highest and the lowest rate rest on fewer than 30.

    The least and the most of several noisy rates differ even if the true rates are equal, and
    replicates differ more still. So ``p_value`` tells how often rates that are equal, and as noisy
    as those observed, differ as much; and the interval holds the differences, larger or smaller in
    the same proportions on a log scale, around which the measure observed is not among the 5 % of
    replicates furthest off. It reaches parity where ``p_value`` is at least 0.05, and nowhere else.

    The FMR needs non-mated pairs within a group, the FNMR mated ones: each is compared over its own
    set of groups, see `comparable`. Groups have no subject in common, so the noise of each rate is
    its own: that of its logarithm, by leaving out one subject at a time, with quantiles of t.

    Args:
        errors: from `facerec.fairness.rates`.
        replicates: draws of the noise.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    compared = {of: comparable(errors, of)[0] for of in NAMES}
    quantiles = {of: generator.random((replicates, len(used))) for of, used in compared.items()}
    rows: list[Differential] = []
    for at, (of, used) in itertools.product(errors.points, compared.items()):
        if len(used) < 2:
            continue
        groups = errors.grouping.names
        shares = {groups[code]: share for code in used if (share := at.of(of)[code])}
        withheld = _too_fine(at, of, shares)
        noise = None if withheld else _noise(list(shares.values()), quantiles[of])
        how: dict[str, Any] = {"of": of, "at": at.at, "unresolved": not at.point.resolvable}
        how["events"] = min(share.events for share in shares.values())
        for measure, (formula, unit) in MEASURES.items():
            how |= {"measure": measure, "unit": unit}
            if reason := withheld or (_no_ratio(of, shares) if unit == "times" else ""):
                rows.append(Differential(None, remark=reason, **how))
                continue
            value = float(formula([share.value for share in shares.values()]))
            p, interval = (None, None) if noise is None else _against_parity(noise, formula, value)
            remark = "" if interval else "no interval: a group has no error, or too few subjects"
            rows.append(Differential(value, interval, remark=remark, p_value=p, **how))
    return rows


def rate_rows(counted: Sequence[GroupErrors], replicates: int, seed: int) -> Iterator[names.Row]:
    """Yield the thresholds, and by grouping the error rates and their differentials."""
    most = max(counted, key=lambda errors: len(errors.points))
    for at in most.points:
        fixed = _threshold(at.point, most.thresholds.source)
        yield names.row("", names.THRESHOLD, fixed, at=at.at)
    for errors in counted:
        grouping, groups = errors.grouping.name, errors.grouping.names
        if errors.lacking:
            yield names.row(grouping, "FMR", Estimate(None, remark=errors.lacking))
            continue
        for at in errors.points:
            if at.point.resolvable:
                yield from _rows_at(grouping, groups, at)
        for row in differentials(errors, replicates=replicates, seed=seed):
            yield names.row(grouping, named(row.of, row.measure), row, at=row.at)
            if row.p_value is not None:
                yield names.p_row(grouping, named(row.of, row.measure), row.p_value, at=row.at)
        for of, name in NAMES.items():
            for group, remark in comparable(errors, of)[1].items():
                yield names.row(grouping, name, Estimate(None, remark=remark), group)


def _rows_at(grouping: str, groups: Sequence[str], at: ErrorsAt) -> Iterator[names.Row]:
    """Yield the error rates at one threshold."""
    nominal = at.at.nominal or 1  # a threshold that was given promises no rate
    kinds = {"FMR": at.fmr, "FNMR": at.fnmr, OF_PAIRS: at.fnmr_of_pairs}
    for name, *shares in zip((*groups, ALL_GROUPS), *kinds.values(), strict=True):
        for figure, share in zip(kinds, shares, strict=True):
            found = names.rate(share)
            if figure == "FMR" and found.total and nominal * found.total < 1:
                few = f"{found.total:,} non-mated pairs"
                found = replace(found, remark=few, unresolved=True)
            yield names.row(grouping, figure, found, name, at.at)
    for (group, other), share in at.between.items():
        where = groups[group], at.at
        yield names.row(
            grouping, names.BETWEEN_GROUPS, names.rate(share), *where, other=groups[other]
        )


def named(of: Of, measure: str) -> str:
    """Return the figure of a measure of a rate."""
    return f"{NAMES[of]} ({of} {measure})"


def _threshold(point: OperatingPoint, source: str) -> Estimate:
    if isinstance(point, GivenThreshold):
        return Estimate(point.threshold, remark="as given", unit="score")
    few = "" if point.resolvable else f"{point.non_mated:,} non-mated pairs"
    return names.threshold(point.threshold, point.false_accepts, point.non_mated, few, source)


def comparable(errors: GroupErrors, of: Of) -> tuple[list[int], dict[str, str]]:
    """Return the codes of the groups whose rates are compared, and why each other group is not.

    Without two of them the reason why none is compared has no name.
    """
    left_out, (_, pairs) = {}, _KINDS[of]
    groups, shares = errors.grouping.names, errors.points[0].of(of)
    for name, subjects, share in zip(groups, errors.group_subjects, shares, strict=False):
        if not share:
            left_out[name] = f"no {pairs} pairs within it"
        elif subjects < MIN_SUBJECTS:
            left_out[name] = f"{subjects} subjects, fewer than {MIN_SUBJECTS}"
    used = [code for code, name in enumerate(groups) if name not in left_out]
    if len(used) < 2:
        few = f"{words.counted(len(used), 'group')} with enough subjects and {pairs} pairs"
        left_out[""] = f"no comparison: {few}, two are needed"
    return used, left_out


def _counted(of: Of, shares: Shares, chosen: NDArray[np.bool_]) -> str:
    """Name the errors of some groups."""
    listed = [
        f"{share.events}/{share.comparisons:,} in {name}"
        for (name, share), one in zip(shares.items(), chosen, strict=True)
        if one
    ]
    return f"{_KINDS[of][0]} {', '.join(listed)}"


def _too_fine(at: ErrorsAt, of: Of, shares: Shares) -> str:
    """Say why the data cannot tell rates of groups at this threshold; nothing if they can."""
    fixed = at.point
    if not fixed.resolvable:
        return (
            f"FMR {fixed.target} with the {fixed.non_mated:,} non-mated pairs on which the "
            "threshold was fixed"
        )
    nominal = float(at.at.nominal or 1)
    small = np.array(
        [nominal * one.comparisons < 1 and one.events < FEW_ERRORS for one in shares.values()]
    )
    if of == "FMR" and small.any():
        return f"{_counted(of, shares, small)} at a nominal FMR of {fixed.target}"
    return ""


def _no_ratio(of: Of, shares: Shares) -> str:
    """Say why rates are not to be divided by each other; nothing if they are."""
    errors, rates = np.array([(one.events, one.value) for one in shares.values()]).T
    if not errors.all():
        high = max(share.interval().high for share in shares.values() if not share.events)
        return f"undefined: {_counted(of, shares, errors == 0)}, true rate at most {high:.2g}"
    extremes = np.isin(rates, (rates.min(), rates.max()))
    few = errors < FEW_ERRORS
    if not few.any() and (errors[extremes] < RULE_OF_30).all():
        few = extremes
    return _counted(of, shares, few) if few.any() else ""


def _noise(shares: Sequence[ClusteredShare], quantiles: Values) -> Noise | None:
    """Return rates between parity and those observed, with the noise of each group's subjects.

    None where a group has no error or too few subjects.
    """
    spreads = [share.test_variance for share in shares]
    if not all(share.events for share in shares) or not np.isfinite(spreads).all():
        return None
    rates = np.array([share.value for share in shares])
    factors = np.empty(quantiles.shape)
    for column, (share, variance) in enumerate(zip(shares, spreads, strict=True)):
        freedom = max(1.0, share.effective_subjects - 1)
        drawn = stdtrit(freedom, quantiles[:, column])
        factors[:, column] = np.exp(drawn * (math.sqrt(variance) / share.value))
    weights = [share.comparisons if share.crossing else share.subjects for share in shares]
    common = float(np.average(rates, weights=weights))
    direction = np.log(rates / common)
    if np.abs(direction).max() < 1e-9:
        # Equal rates have no direction; any will do.
        direction = np.where(np.arange(len(direction)) == 0, 1e-9, 0.0)

    def rates_at(size: float | Values, noisy: bool) -> Values:
        with np.errstate(over="ignore"):
            smooth = common * np.exp(size * direction)
            return np.minimum(smooth * factors if noisy else smooth, 1.0)

    return rates_at


def _against_parity(
    noise: Noise, formula: Formula, value: float
) -> tuple[float, Interval] | tuple[None, None]:
    """Return how often equal rates differ as much, and the interval of the measure."""

    def measured(size: float | Values, noisy: bool = False) -> Values:
        # Far from parity rates vanish, and their ratios with them.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return formula(noise(size, noisy))

    equal = measured(0.0, True)
    if np.isnan(equal).any():
        return None, None
    p_value = (1 + int(np.count_nonzero(equal >= value))) / (1 + equal.size)
    # Noise is alike at all sizes of the difference, but not at all values of the measure.
    scale = measured(_SIZES[:, None])
    usable = np.isfinite(scale)
    sizes, scale = _SIZES[usable], np.maximum.accumulate(scale[usable])

    def holds(size: float) -> bool:
        estimates = np.interp(measured(size, True), scale, sizes)
        off = np.abs(estimates - size) >= abs(1 - size)
        return bool((1 + np.count_nonzero(off)) / (1 + off.size) >= ALPHA)

    def end(inside: float, outside: float) -> float:
        for _ in range(30):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if holds(middle) else (inside, middle)
        return float(measured(inside))

    near = end(1.0, 0.0) if p_value < ALPHA - 1e-9 else float(measured(0.0))
    outside = next((size for size in sizes[sizes > 1] if not holds(size)), float(sizes[-1]))
    ends = near, end(1.0, outside), value
    return p_value, Interval(min(ends), max(ends))
