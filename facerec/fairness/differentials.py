"""How far the error rates of groups lie apart: four measures of the FMR and of the FNMR.

ISO/IEC 19795-10 calls these the false positive differential (FPD) and the false negative
differential (FND). The formulas take rates with the groups on the last axis, so that one call
serves all draws of noise. A ratio is infinite where its denominator is 0, and NaN at
0/0; `differentials` turns both into a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from facerec.defaults import REPLICATES
from facerec.errors import MetricError
from facerec.fairness.pair_counts import Values
from facerec.fairness.rates import ErrorsAt, GroupErrors
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_points import RULE_OF_30, parse_rate

MIN_SUBJECTS = 10
"""Groups with fewer subjects take no part in a comparison."""

RATIO = "max/min"
"""The measure that findings and assertions quote, as it can be said in words."""

NAMES = {"FMR": "FPD", "FNMR": "FND"}
"""What ISO/IEC 19795-10 calls the differential of a rate."""

FEW_ERRORS = 3
"""Fewer errors than that say next to nothing."""

CONFIDENCE = 0.95
INVERTED = "test of parity inverted"
SCALED = "comparisons that share a subject are dependent; the rates keep their order"

_SIZES = np.concatenate([np.linspace(0, 2, 41)[:-1], np.geomspace(2, 2.0**40, 200)])
"""Multiples of the difference observed among which the ends of an interval are sought."""

Of = Literal["FMR", "FNMR"]
Formula = Callable[[ArrayLike], Values]


def max_over_geomean(rates: ArrayLike) -> Values:
    """Return max x / (Π x)^(1/n); 1 at parity."""
    values = _rates(rates)
    # Logarithms of the quotients, so that equal rates give exactly 1.
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.exp(np.mean(np.log(values.max(axis=-1, keepdims=True) / values), axis=-1))


def max_over_min(rates: ArrayLike) -> Values:
    """Return max x / min x; 1 at parity."""
    values = _rates(rates)
    with np.errstate(divide="ignore", invalid="ignore"):
        return values.max(axis=-1) / values.min(axis=-1)


def max_minus_min(rates: ArrayLike) -> Values:
    """Return max x − min x; 0 at parity."""
    values = _rates(rates)
    return values.max(axis=-1) - values.min(axis=-1)


def gini(rates: ArrayLike) -> Values:
    """Return G(x) = n/(n−1) · Σᵢⱼ |xᵢ − xⱼ| / (2 n² mean x), from 0 to 1; 0 where all are 0.

    Howard et al., 2022, arXiv 2203.05051.
    """
    values = _rates(rates)
    count = values.shape[-1]
    gaps = np.abs(values[..., :, None] - values[..., None, :]).sum(axis=(-2, -1))
    scale = 2 * count * (count - 1) * values.mean(axis=-1)
    return np.divide(gaps, scale, out=np.zeros_like(gaps), where=scale != 0)


MEASURES: dict[str, tuple[Formula, bool]] = {
    "max/min": (max_over_min, True),
    "max/geomean": (max_over_geomean, True),
    "max−min": (max_minus_min, False),
    "Gini": (gini, False),
}
"""Formula of each measure, and whether it divides rates by each other, so that few errors make it
meaningless. To add a measure is to add a line."""


@dataclass(frozen=True, kw_only=True)
class Differential(Estimate):
    """One measure at one FMR target; ``events`` are those of the group with the fewest."""

    measure: str
    of: Of
    target: str
    """Nominal FMR."""
    p_value: float | None = None
    """How often groups of equal rates would differ as much or more."""


@dataclass(frozen=True)
class Differentials:
    """All measures at all targets."""

    groups: tuple[str, ...]
    """Groups that are compared."""
    rows: tuple[Differential, ...]
    remarks: tuple[str, ...]
    """Which groups are not compared and why, or why there are no rows, a sentence each."""

    def heading(self, of: Of) -> Differential | None:
        """Return the ratio at the smallest target at which all groups carry one, if there is any.

        Else the one at the largest target, which says why there is none.
        """
        rows = [row for row in self.rows if (row.measure, row.of) == (RATIO, of)]
        rows.sort(key=lambda row: parse_rate(row.target))
        return next((row for row in rows if row.p_value is not None), rows[-1] if rows else None)


def differentials(
    errors: GroupErrors, *, replicates: int = REPLICATES, seed: int = 0
) -> Differentials:
    """Compute every measure with its interval and its test of parity.

    Ratios are withheld where a group has no error, where it has fewer than 3, and where both the
    highest and the lowest rate rest on fewer than 30.

    The least and the most of several noisy rates differ even if the true rates are equal, and
    replicates differ more still. So ``p_value`` tells how often rates that are equal, and as noisy
    as those observed, differ as much; and the interval holds the differences, larger or smaller in
    the same proportions on a log scale, around which the measure observed is not among the 5 % of
    replicates furthest off. It reaches parity where ``p_value`` is at least 0.05, and nowhere else.

    Groups have no subject in common, so the noise of each rate is its own: that of its logarithm,
    by leaving out one subject at a time, with quantiles of t.

    Args:
        errors: from `facerec.fairness.rates`.
        replicates: draws of the noise.
        seed: of the draws.
    """
    used, remarks = _compared(errors)
    names = tuple(errors.names[index] for index in used)
    if len(used) < 2:
        few = f"no comparison: {len(used)} groups with enough subjects and pairs, two are needed"
        return Differentials(names, (), (*remarks, few))
    generator = np.random.default_rng(seed)
    quantiles = generator.random((2, replicates, len(used)))
    rows = [row for point in errors.points for row in _at(point, used, names, quantiles)]
    return Differentials(names, tuple(rows), tuple(remarks))


def _compared(errors: GroupErrors) -> tuple[list[int], list[str]]:
    """Return the indices of the groups that are compared, and a sentence for each other one."""
    used, left_out = [], []
    for index, (name, subjects) in enumerate(zip(errors.names, errors.group_subjects, strict=True)):
        point = errors.points[0] if errors.points else None
        mated, non_mated = (
            (point.fnmr[index].total, point.fmr[index].total) if point else (None, None)
        )
        if subjects < MIN_SUBJECTS:
            left_out.append(f"{name}: {subjects} subjects, fewer than {MIN_SUBJECTS}")
        elif not (mated and non_mated):
            left_out.append(
                f"{name}: {mated or 0} mated and {non_mated or 0} non-mated pairs within it"
            )
        else:
            used.append(index)
    return used, left_out


def _at(
    point: ErrorsAt, used: Sequence[int], names: tuple[str, ...], quantiles: Values
) -> list[Differential]:
    """Return all measures at one threshold."""
    kinds = [
        _Rates.of(
            what,
            names,
            [rates[index] for index in used],
            [point.shares[index][kind] for index in used],
            quantiles[kind],
        )
        for kind, (what, rates) in enumerate(
            (("false matches", point.fmr), ("false non-matches", point.fnmr))
        )
    ]
    ofs: tuple[Of, Of] = ("FMR", "FNMR")
    return [
        _differential(point, of, kinds, kind, measure)
        for kind, of in enumerate(ofs)
        for measure in MEASURES
    ]


def _differential(
    point: ErrorsAt, of: Of, kinds: Sequence[_Rates], kind: int, measure: str
) -> Differential:
    rates, (formula, ratio) = kinds[kind], MEASURES[measure]
    reason = _withheld(point, of, kinds[0]) or (rates.too_few() if ratio else None)
    value = interval = p_value = None
    if reason is None:
        value = float(formula(rates.rates))
        found = rates.against_parity(formula, value)
        if found is None:
            reason = "no interval: a group has no error, or too few subjects"
        else:
            p_value, interval = found
    return Differential(
        value,
        interval,
        events=int(rates.errors.min()),
        remark=reason or "",
        measure=measure,
        of=of,
        target=point.point.target,
        p_value=p_value,
    )


def _withheld(point: ErrorsAt, of: Of, fmr: _Rates) -> str | None:
    """Say why a measure has no value at this threshold."""
    fixed = point.point
    if not fixed.resolvable:
        return (
            f"not resolvable: FMR {fixed.target} with the {fixed.non_mated:,} non-mated pairs on "
            "which the threshold was fixed"
        )
    small = (float(parse_rate(fixed.target)) * fmr.comparisons < 1) & (fmr.errors < FEW_ERRORS)
    if of == "FMR" and small.any():
        return f"insufficient data: {fmr.counted(small)} at a nominal FMR of {fixed.target}"
    return None


@dataclass(frozen=True)
class _Noise:
    """Rates from parity (size 0) to those observed (size 1) and beyond, with noise."""

    common: float
    """Of all groups together."""
    direction: Values
    """Logarithms of the rates over the common one, ``(k,)``."""
    factors: Values
    """On the rates in every replicate, ``(R, k)``."""

    def at(self, size: float | Values, noise: bool) -> Values:
        """Return the rates, ``(k,)``, or with noise their replicates, ``(R, k)``.

        Args:
            size: of the difference, or several, ``(n, 1)``, for rates ``(n, k)``.
            noise: whether to add it.
        """
        with np.errstate(over="ignore"):
            rates = self.common * np.exp(size * self.direction)
            return np.minimum(rates * self.factors if noise else rates, 1.0)


@dataclass(frozen=True)
class _Rates:
    """Rates of one kind in all groups."""

    what: str
    names: tuple[str, ...]
    errors: NDArray[np.int64]
    comparisons: NDArray[np.int64]
    rates: Values
    noise: _Noise | None
    """None where a group has no error or too few subjects."""
    upper: float | None
    """The highest upper limit among groups without an error."""

    @classmethod
    def of(
        cls,
        what: str,
        names: tuple[str, ...],
        cells: Sequence[Estimate],
        shares: Sequence[ClusteredShare | None],
        quantiles: Values,
    ) -> _Rates:
        errors = np.array([cell.events for cell in cells])
        comparisons = np.array([cell.total for cell in cells])
        bounds = [cell.interval.high for cell in cells if not cell.events and cell.interval]
        return cls(
            what,
            names,
            errors,
            comparisons,
            errors / comparisons,
            _noise(errors, comparisons, shares, quantiles),
            max(bounds, default=None),
        )

    def too_few(self) -> str | None:
        """Say why rates are not to be divided by each other."""
        if not self.errors.all():
            limit = "" if self.upper is None else f", true rate at most {self.upper:.2g}"
            return f"undefined: {self.counted(self.errors == 0)}{limit}"
        extremes = np.isin(self.rates, (self.rates.min(), self.rates.max()))
        few = self.errors < FEW_ERRORS
        if not few.any() and (self.errors[extremes] < RULE_OF_30).all():
            few = extremes
        return f"insufficient data: {self.counted(few)}" if few.any() else None

    def counted(self, chosen: NDArray[np.bool_]) -> str:
        """Name the errors of some groups."""
        listed = [
            f"{self.errors[index]}/{self.comparisons[index]:,} in {self.names[index]}"
            for index in np.flatnonzero(chosen)
        ]
        return f"{self.what} {', '.join(listed)}"

    def against_parity(self, formula: Formula, value: float) -> tuple[float, Interval] | None:
        """Return how often equal rates differ as much, and the interval; None without noise."""
        noise = self.noise
        if noise is None:
            return None

        def measured(size: float | Values, noisy: bool = False) -> Values:
            # Far from parity rates vanish, and their ratios with them.
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                return formula(noise.at(size, noisy))

        equal = measured(0.0, True)
        if np.isnan(equal).any():
            return None
        level = 1 - CONFIDENCE
        p_value = (1 + int(np.count_nonzero(equal >= value))) / (1 + equal.size)
        # Noise is alike at all sizes of the difference, but not at all values of the measure.
        scale = measured(_SIZES[:, None])
        usable = np.isfinite(scale)
        sizes, scale = _SIZES[usable], np.maximum.accumulate(scale[usable])

        def holds(size: float) -> bool:
            estimates = np.interp(measured(size, True), scale, sizes)
            off = np.abs(estimates - size) >= abs(1 - size)
            return bool((1 + np.count_nonzero(off)) / (1 + off.size) >= level)

        def end(inside: float, outside: float) -> float:
            for _ in range(30):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if holds(middle) else (inside, middle)
            return float(measured(inside))

        near = end(1.0, 0.0) if p_value < level - 1e-9 else float(measured(0.0))
        outside = next((size for size in sizes[sizes > 1] if not holds(size)), float(sizes[-1]))
        ends = near, end(1.0, outside), value
        return p_value, Interval(min(ends), max(ends), CONFIDENCE, INVERTED, SCALED)


def _noise(
    errors: NDArray[np.int64],
    comparisons: NDArray[np.int64],
    shares: Sequence[ClusteredShare | None],
    quantiles: Values,
) -> _Noise | None:
    """Return the noise of each group, from its subjects, around rates between parity and these."""
    if not errors.all():
        return None
    factors = np.empty(quantiles.shape)
    for column, share in enumerate(shares):
        if share is None or not math.isfinite(share.test_variance):
            return None
        spread = math.sqrt(share.test_variance) / share.value
        factors[:, column] = np.exp(
            stdtrit(max(1.0, share.effective_subjects - 1), quantiles[:, column]) * spread
        )
    common = float(errors.sum() / comparisons.sum())
    direction = np.log(errors / comparisons / common)
    if np.abs(direction).max() < 1e-9:
        # Equal rates have no direction; any will do.
        direction = np.where(np.arange(len(direction)) == 0, 1e-9, 0.0)
    return _Noise(common, direction, factors)


def _rates(rates: ArrayLike) -> Values:
    values = np.asarray(rates, dtype=np.float64)
    if not values.ndim or values.shape[-1] < 2:
        raise MetricError(
            f"rates of shape {values.shape} are of fewer than two groups; there is nothing to "
            "compare"
        )
    return values
