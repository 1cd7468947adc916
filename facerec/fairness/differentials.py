"""Summary measures of how error rates differ between groups, with intervals and reasons.

The formulas take rates with the groups on the last axis, so that one call serves all replicates of
a bootstrap. A ratio is infinite where its denominator is 0, and NaN at 0/0; `differentials` turns
both into a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.special import stdtrit
from scipy.stats import rankdata

from facerec.defaults import REPLICATES
from facerec.errors import MetricError
from facerec.fairness.pair_counts import PairCounts, SubjectCounts
from facerec.fairness.rate_results import (
    ErrorRate,
    GlobalThreshold,
    Share,
    error_rate,
)
from facerec.fairness.rates import GroupErrors
from facerec.report.estimate import Estimate
from facerec.statistics.bootstrap import VertexBootstrap, percentile_interval
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_points import RULE_OF_30, parse_rate

Values = NDArray[np.float64]

ALPHA = 0.5
"""Weight of the FMR against the FNMR in measures of both."""

WERM_EPSILON = 1e-5
"""The constant that WERM adds to rates before their geometric mean, as published."""

MIN_SUBJECTS = 10
"""Groups with fewer subjects take no part in a comparison."""

RATIO = "max/min"
"""The measure that findings and assertions quote, as it can be said in words."""

FEW_ERRORS = 3
"""Fewer errors than that say next to nothing."""

CONFIDENCE = 0.95
INVERTED = "test of parity inverted by resampled subjects"
SCALED = "comparisons that share a subject are dependent; the rates keep their order"

_CHUNK = 256
"""Replicates held at once."""

_SIZES = np.concatenate([np.linspace(0, 2, 41)[:-1], np.geomspace(2, 2.0**40, 200)])
"""Multiples of the difference observed among which the ends of an interval are sought."""

Of = Literal["FMR", "FNMR", "FMR and FNMR", "accuracy"]
Better = Literal["lower", "higher"]


def max_over_geomean(rates: ArrayLike) -> Values:
    """Return max x / (Π x)^(1/n), the headline measure; 1 at parity."""
    values = _rates(rates)
    # Logarithms of the quotients, so that equal rates give exactly 1.
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.exp(np.mean(np.log(_max(values) / values), axis=-1))


def max_over_min(rates: ArrayLike) -> Values:
    """Return max x / min x; 1 at parity."""
    values = _rates(rates)
    with np.errstate(divide="ignore", invalid="ignore"):
        return values.max(axis=-1) / values.min(axis=-1)


def max_over_mean(rates: ArrayLike) -> Values:
    """Return max x / mean x, between 1 and n."""
    values = _rates(rates)
    with np.errstate(invalid="ignore"):
        return values.max(axis=-1) / values.mean(axis=-1)


def max_minus_min(rates: ArrayLike) -> Values:
    """Return max x − min x; 0 at parity."""
    values = _rates(rates)
    return values.max(axis=-1) - values.min(axis=-1)


def gini(rates: ArrayLike) -> Values:
    """Return G(x) = n/(n−1) · Σᵢⱼ |xᵢ − xⱼ| / (2 n² mean x), from 0 to 1; 0 where all are 0."""
    values = _rates(rates)
    count = values.shape[-1]
    gaps = np.abs(values[..., :, None] - values[..., None, :]).sum(axis=(-2, -1))
    scale = 2 * count * (count - 1) * values.mean(axis=-1)
    return np.divide(gaps, scale, out=np.zeros_like(gaps), where=scale != 0)


def fdr(fmr: ArrayLike, fnmr: ArrayLike, alpha: float = ALPHA) -> Values:
    """Return the fairness discrepancy rate 1 − [α max|ΔFMR| + (1 − α) max|ΔFNMR|]; 1 at parity.

    De Freitas Pereira and Marcel, IEEE T-BIOM 4, 2022.
    """
    return 1 - (alpha * max_minus_min(fmr) + (1 - alpha) * max_minus_min(fnmr))


def inequity_rate(fmr: ArrayLike, fnmr: ArrayLike, alpha: float = ALPHA) -> Values:
    """Return IR = (max FMR / min FMR)^α · (max FNMR / min FNMR)^(1−α); 1 at parity.

    Grother, NIST, 2021.
    """
    return max_over_min(fmr) ** alpha * max_over_min(fnmr) ** (1 - alpha)


def garbe(fmr: ArrayLike, fnmr: ArrayLike, alpha: float = ALPHA) -> Values:
    """Return the Gini aggregation rate α G(FMR) + (1 − α) G(FNMR), from 0 to 1; 0 at parity.

    Howard et al., 2022, arXiv 2203.05051.
    """
    return alpha * gini(fmr) + (1 - alpha) * gini(fnmr)


def werm(
    fmr: ArrayLike, fnmr: ArrayLike, alpha: float = ALPHA, epsilon: float = WERM_EPSILON
) -> Values:
    """Return the worst-case error-rate ratio to the geometric means, with its published constant.

    WERM = (max A / geo(A + ε))^α · (max B / geo(B + ε))^(1−α); Linghu et al., IJCB 2024.
    """
    ratios = []
    for rates in (fmr, fnmr):
        values = _rates(rates)
        with np.errstate(divide="ignore"):  # a maximum of 0 has the logarithm −∞, and gives 0
            ratios.append(np.exp(np.mean(np.log(_max(values) / (values + epsilon)), axis=-1)))
    return ratios[0] ** alpha * ratios[1] ** (1 - alpha)


def mape(fmr: ArrayLike, nominal: float) -> Values:
    """Return the mean absolute error of the FMR in percent of its nominal value."""
    return 100 * np.mean(np.abs(_rates(fmr) - nominal), axis=-1) / nominal


def accuracies(fmr: ArrayLike, fnmr: ArrayLike) -> Values:
    """Return 100 · (1 − (FMR + FNMR)/2), the accuracy on as many mated as non-mated pairs, in %."""
    return 100 * (1 - (_rates(fmr) + _rates(fnmr)) / 2)


def std(accuracy: ArrayLike) -> Values:
    """Return the standard deviation of accuracies, ddof 0, as papers on RFW report it."""
    return _rates(accuracy).std(axis=-1)


def ser(accuracy: ArrayLike) -> Values:
    """Return the skewed error ratio (100 − min) / (100 − max) of accuracies in percent."""
    return max_over_min(100 - _rates(accuracy))


@dataclass(frozen=True, kw_only=True)
class Differential(Estimate):
    """One measure at one FMR target; ``events`` are those of the group with the fewest."""

    in_files: ClassVar = (
        "measure of target definition better value interval reason=remark upper smoothed mark "
        "p_value at_parity"
    )
    measure: str
    of: Of
    target: str
    """Nominal FMR; several for a mean over them."""
    definition: str
    better: Better
    upper: float | None = None
    """Where a group has no error: the upper limit of its rate, the largest if there are several."""
    smoothed: float | None = None
    """Where there is no value: the measure of (k + ½)/(N + 1), Jeffreys' estimate of each rate."""
    p_value: float | None = None
    """How often groups of equal rates would differ as much or more."""
    at_parity: float | None = None
    """What groups of equal rates exceed (fall below, if higher is better) in 5 % of cases."""


@dataclass(frozen=True)
class Differentials:
    """All measures at all targets, from one joint resample of subjects."""

    groups: tuple[str, ...]
    """Groups that are compared."""
    left_out: tuple[str, ...]
    """Groups that are not, and why, one sentence each."""
    rows: tuple[Differential, ...]
    replicates: int
    seed: int
    reason: str | None
    """Why there are no rows."""
    independent: bool = False
    """Whether pairs were resampled, since subjects are not known."""

    def heading(self, of: str) -> Differential | None:
        """Return the ratio at the smallest target at which all groups carry one, if there is any.

        Else the one at the largest target, which says why there is none.
        """
        rows = [row for row in self.rows if (row.measure, row.of) == (RATIO, of)]
        rows.sort(key=lambda row: parse_rate(row.target))
        return next((row for row in rows if row.p_value is not None), rows[-1] if rows else None)


@dataclass(frozen=True)
class Measure:
    """How a measure is computed, and when it has no value."""

    name: str
    of: Of
    definition: str
    compute: Callable[[Values, Values, float], Values]
    """Of FMR, FNMR (groups on the last axis) and the nominal FMR."""
    ratio: bool = False
    """Whether rates are divided by each other, so that few errors make it meaningless."""
    better: Better = "lower"
    parity: bool = True
    """Whether it is best where all groups have the same rates."""


_OF_ONE: tuple[tuple[str, str, Callable[[ArrayLike], Values], bool], ...] = (
    ("max/geomean", "max x / (Π x)^(1/n)", max_over_geomean, True),
    ("max/min", "max x / min x", max_over_min, True),
    ("max/mean", "max x / mean x", max_over_mean, True),
    ("max−min", "max x − min x", max_minus_min, False),
    ("Gini", "n/(n−1) · Σᵢⱼ |xᵢ − xⱼ| / (2 n² mean x)", gini, False),
)

_ACCURACY = "100 (1 − (FMR + FNMR)/2)"


def _of_fmr(compute: Callable[[ArrayLike], Values]) -> Callable[[Values, Values, float], Values]:
    return lambda fmr, fnmr, nominal: compute(fmr)


def _of_fnmr(compute: Callable[[ArrayLike], Values]) -> Callable[[Values, Values, float], Values]:
    return lambda fmr, fnmr, nominal: compute(fnmr)


MEASURES: tuple[Measure, ...] = (
    *(Measure(name, "FMR", text, _of_fmr(f), ratio) for name, text, f, ratio in _OF_ONE),
    *(Measure(name, "FNMR", text, _of_fnmr(f), ratio) for name, text, f, ratio in _OF_ONE),
    Measure(
        "FDR",
        "FMR and FNMR",
        f"1 − [α max|ΔFMR| + (1 − α) max|ΔFNMR|], α = {ALPHA:g}",
        lambda fmr, fnmr, nominal: fdr(fmr, fnmr),
        better="higher",
    ),
    Measure(
        "IR",
        "FMR and FNMR",
        f"(max A / min A)^α · (max B / min B)^(1−α), A = FMR, B = FNMR, α = {ALPHA:g}",
        lambda fmr, fnmr, nominal: inequity_rate(fmr, fnmr),
        ratio=True,
    ),
    Measure(
        "GARBE",
        "FMR and FNMR",
        f"α Gini(FMR) + (1 − α) Gini(FNMR), α = {ALPHA:g}",
        lambda fmr, fnmr, nominal: garbe(fmr, fnmr),
    ),
    Measure(
        "WERM",
        "FMR and FNMR",
        "(max A / geo(A + ε))^α · (max B / geo(B + ε))^(1−α), A = FMR, B = FNMR, "
        f"α = {ALPHA:g}, ε = {WERM_EPSILON:g} as published",
        lambda fmr, fnmr, nominal: werm(fmr, fnmr),
    ),
    Measure(
        "MAPE",
        "FMR",
        "100/n · Σ |FMR − f| / f in %, f = nominal FMR",
        lambda fmr, fnmr, nominal: mape(fmr, nominal),
        parity=False,
    ),
    Measure(
        "STD",
        "accuracy",
        f"standard deviation, ddof 0, of {_ACCURACY}",
        lambda fmr, fnmr, nominal: std(accuracies(fmr, fnmr)),
    ),
    Measure(
        "SER",
        "accuracy",
        f"(100 − min) / (100 − max) of {_ACCURACY}",
        lambda fmr, fnmr, nominal: ser(accuracies(fmr, fnmr)),
        ratio=True,
    ),
)
"""All measures, the headline first."""


def differentials(
    errors: GroupErrors,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
    min_subjects: int = MIN_SUBJECTS,
) -> Differentials:
    """Compute every measure with its interval, from one joint resample of all subjects.

    Ratios are withheld where a group has no error (with an upper limit of its rate), where it has
    fewer than 3, and where both the highest and the lowest rate rest on fewer than 30.

    The least and the most of several noisy rates differ even if the true rates are equal, and
    replicates differ more still. So ``p_value`` tells how often rates that are equal, and as noisy
    as those observed, differ as much; and the interval holds the differences, larger or smaller in
    the same proportions on a log scale, around which the measure observed is not among the 5 % of
    replicates furthest off. It reaches parity where ``p_value`` is at least 0.05, and nowhere else.

    The noise of a rate is that of its logarithm, with the variance that allows for comparisons
    that share a subject and a quantile of t: replicates of the bootstrap spread too much where
    false matches are rare, and too little where subjects are few. They keep their order, so that
    what the rates of a group have in common remains.

    Args:
        errors: from `facerec.fairness.rates`.
        replicates: resamples of the subjects.
        seed: of the resampling.
        min_subjects: groups with fewer subjects are left out.
    """
    used, left_out = _compared(errors, min_subjects)
    names = tuple(errors.rates.names[index] for index in used)
    rows: list[Differential] = []
    reason = None
    if len(used) < 2:
        reason = f"no comparison: {len(used)} groups with enough subjects and pairs, two are needed"
    else:
        weights = resample(errors.subjects, replicates, seed)
        targets = [
            _Target(
                point.threshold,
                names,
                (
                    [point.groups[index].fmr for index in used],
                    [point.groups[index].fnmr for index in used],
                ),
                chosen,
                [rate_replicates(group, weights) for group in chosen],
            )
            for point, counts in zip(errors.rates.points, errors.counts, strict=True)
            for chosen in [[counts[index] for index in used]]
        ]
        rows = [target.row(measure) for target in targets for measure in MEASURES]
        rows += _area_under_fdr(targets)
    return Differentials(
        names, tuple(left_out), tuple(rows), replicates, seed, reason, not errors.subjects
    )


def parity_p_value(
    groups: Sequence[SubjectCounts],
    target: str,
    of: Literal["FMR", "FNMR"],
    generator: np.random.Generator,
    *,
    replicates: int = REPLICATES,
) -> float | None:
    """Return the p-value of max/geomean at one threshold, for groups drawn independently.

    It is that of `differentials`, which takes nothing but their order from resamples of subjects;
    for groups known to be independent any order will do, and no subject need be drawn.

    Args:
        groups: all images of each compared with all, `MIN_SUBJECTS` subjects or more.
        target: nominal FMR of the threshold.
        of: which rate.
        generator: draws the orders.
        replicates: of the noise of each group.

    Returns:
        None where `differentials` withholds the measure, or cannot simulate equal rates.
    """
    fmr, fnmr = [], []
    for group in groups:
        assert group.false_matches is not None and group.images is not None  # as all is compared
        non_mated = (group.images.sum() ** 2 - (group.images**2).sum()) // 2
        fmr.append(error_rate(None, group.false_matches.sum(), non_mated))
        fnmr.append(error_rate(None, group.missed.sum(), group.mated.sum()))
    orders = generator.random((len(groups), replicates))
    threshold = GlobalThreshold(target, 0.0, "drawn", 0, 0, True, True, None)
    names = ("drawn",) * len(groups)
    drawn = _Target(threshold, names, (fmr, fnmr), groups, [(order, order) for order in orders])
    headline = next(measure for measure in MEASURES if measure.of == of)
    return drawn.p_value(headline)


def _compared(errors: GroupErrors, min_subjects: int) -> tuple[list[int], list[str]]:
    """Return the indices of the groups that are compared, and a sentence for each other one."""
    used, left_out = [], []
    for index, group in enumerate(errors.rates.composition):
        if group.subjects < min_subjects:
            left_out.append(f"{group.name}: {group.subjects} subjects, fewer than {min_subjects}")
        elif not (group.mated and group.non_mated):
            left_out.append(
                f"{group.name}: {group.mated} mated and {group.non_mated} non-mated pairs within it"
            )
        else:
            used.append(index)
    return used, left_out


def resample(subjects: int, replicates: int, seed: int) -> NDArray[np.uint8]:
    """Return how often each subject is drawn in each replicate, ``(R, G)``.

    The draws are those of a `VertexBootstrap` of the same subjects and seed.

    Raises:
        MetricError: no replicate.
    """
    if not subjects:
        return np.empty((replicates, 0), np.uint8)
    everyone = np.arange(subjects)
    one_each = VertexBootstrap(
        everyone, everyone, np.ones(subjects, bool), replicates=replicates, seed=seed
    )
    return one_each.multiplicities


def rate_replicates(
    counts: SubjectCounts | PairCounts, weights: NDArray[np.uint8]
) -> tuple[Values | None, Values]:
    """Return FMR and FNMR within a group in every replicate, ``(R,)`` each.

    A subject drawn W times brings its mated comparisons W times, and those with a subject drawn V
    times W · V times. Replicates without comparisons are NaN; the FMR is None if false matches are
    not known by subject.

    Args:
        counts: of the group.
        weights: of all subjects, ``(R, G)``, see `resample`.
    """
    if isinstance(counts, PairCounts):
        return counts.resample(len(weights))
    own = weights[:, counts.members]
    drawn = own.astype(np.float64)
    fnmr = quotients(drawn @ counts.missed, drawn @ counts.mated)
    if counts.false_matches is None:
        return None, fnmr
    false_matches = _pairs_drawn(counts.false_matches, own)
    if counts.non_mated is not None:
        comparisons = _pairs_drawn(counts.non_mated, own)
    else:
        assert counts.images is not None
        # Copies of one subject are never compared as impostors.
        comparisons = ((drawn @ counts.images) ** 2 - drawn**2 @ counts.images**2) / 2
    return quotients(false_matches, comparisons), fnmr


@dataclass(frozen=True)
class _Kind:
    """Errors of one kind in all groups."""

    what: str
    names: tuple[str, ...]
    errors: NDArray[np.int64]
    comparisons: NDArray[np.int64]
    rates: Values
    upper: float | None
    """The highest upper limit among groups without an error."""

    @classmethod
    def of(cls, what: str, names: tuple[str, ...], cells: Sequence[ErrorRate]) -> _Kind:
        errors = np.array([cell.events for cell in cells])
        comparisons = np.array([cell.total for cell in cells])
        bounds = [cell.interval.high for cell in cells if not cell.events and cell.interval]
        return cls(
            what, names, errors, comparisons, errors / comparisons, max(bounds, default=None)
        )

    def __add__(self, other: _Kind) -> _Kind:
        bounds = [bound for bound in (self.upper, other.upper) if bound is not None]
        return _Kind(
            "errors",
            self.names,
            self.errors + other.errors,
            self.comparisons + other.comparisons,
            (self.rates + other.rates) / 2,
            max(bounds, default=None),
        )

    def smoothed(self) -> Values:
        """Return Jeffreys' estimates of the rates."""
        return (self.errors + 0.5) / (self.comparisons + 1)

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


class _Target:
    """Rates of the groups at one threshold, and their replicates."""

    def __init__(
        self,
        threshold: GlobalThreshold,
        names: tuple[str, ...],
        cells: tuple[Sequence[ErrorRate], Sequence[ErrorRate]],
        counts: Sequence[SubjectCounts | PairCounts],
        drawn: Sequence[tuple[Values | None, Values]],
    ) -> None:
        self.target, self._threshold = threshold.target, threshold
        self._nominal = float(parse_rate(self.target))
        fmr = _Kind.of("false matches", names, cells[0])
        fnmr = _Kind.of("false non-matches", names, cells[1])
        self._fmr, self._fnmr = fmr, fnmr
        self._kinds: dict[Of, tuple[_Kind, ...]] = {
            "FMR": (fmr,),
            "FNMR": (fnmr,),
            "FMR and FNMR": (fmr, fnmr),
            "accuracy": (fmr + fnmr,),
        }
        known = [group[0] for group in drawn if group[0] is not None]
        self._drawn: tuple[Values, Values] | None = None
        self._noisy: tuple[_NoisyRates | None, _NoisyRates | None] = None, None
        if len(known) == len(drawn):
            missed = [group[1] for group in drawn]
            self._drawn = np.stack(known, axis=-1), np.stack(missed, axis=-1)
            shares = [group.fmr_share() for group in counts], [g.fnmr_share() for g in counts]
            self._noisy = (
                _NoisyRates.of(fmr, self._drawn[0], shares[0]),
                _NoisyRates.of(fnmr, self._drawn[1], shares[1]),
            )

    def row(self, measure: Measure) -> Differential:
        """Compute a measure, or say why not."""
        kinds = self._kinds[measure.of]
        reason = self.withheld(measure)
        value = interval = smoothed = p_value = at_parity = None
        if reason is None:
            value, drawn = self.value(measure), self.replicates(measure)
            against = self._against_parity(measure, value) if measure.parity else None
            if against is None:
                interval, reason = _percentiles(value, drawn)
            else:
                p_value, at_parity, interval = against
        elif self._nominal:
            estimates = self._fmr.smoothed(), self._fnmr.smoothed()
            smoothed = float(measure.compute(*estimates, self._nominal))
        return Differential(
            measure=measure.name,
            of=measure.of,
            target=self.target,
            definition=measure.definition,
            better=measure.better,
            value=value,
            interval=interval,
            events=self.fewest(measure),
            remark=reason or "",
            upper=max((kind.upper for kind in kinds if kind.upper is not None), default=None),
            smoothed=smoothed,
            p_value=p_value,
            at_parity=at_parity,
        )

    def value(self, measure: Measure) -> float:
        """Return a measure of the rates as they are."""
        return float(measure.compute(self._fmr.rates, self._fnmr.rates, self._nominal))

    def replicates(self, measure: Measure) -> Values | None:
        """Return a measure in every replicate, ``(R,)``; None if they are not known."""
        return None if self._drawn is None else measure.compute(*self._drawn, self._nominal)

    def fewest(self, measure: Measure) -> int:
        """Return the fewest errors of a group on which a measure rests."""
        return int(min(kind.errors.min() for kind in self._kinds[measure.of]))

    def withheld(self, measure: Measure) -> str | None:
        """Say why a measure has no value."""
        if not self._threshold.resolvable:
            return (
                f"not resolvable: FMR {self.target} with the {self._threshold.non_mated:,} "
                "non-mated pairs on which the threshold was fixed"
            )
        small = (self._nominal * self._fmr.comparisons < 1) & (self._fmr.errors < FEW_ERRORS)
        if measure.of != "FNMR" and small.any():
            return (
                f"insufficient data: {self._fmr.counted(small)} at a nominal FMR of {self.target}"
            )
        if not measure.ratio:
            return None
        return next(filter(None, (kind.too_few() for kind in self._kinds[measure.of])), None)

    def p_value(self, measure: Measure) -> float | None:
        """Return how often equal rates differ as much as these; None where there is no value."""
        if self.withheld(measure) is not None:
            return None
        parity_test = self._parity(measure, self.value(measure))
        return None if parity_test is None else parity_test[0]

    def _measured(self, measure: Measure, size: float | Values, noise: bool = False) -> Values:
        """Return a measure of rates that differ by ``size`` times what is observed."""
        rates = [
            fixed if noisy is None else noisy.at(size, noise)
            for fixed, noisy in zip((self._fmr.rates, self._fnmr.rates), self._noisy, strict=True)
        ]
        # Far from parity rates vanish, and their ratios with them.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return measure.compute(rates[0], rates[1], self._nominal)

    def _parity(self, measure: Measure, value: float) -> tuple[float, float] | None:
        """Return how often equal rates differ as much, and what 5 % of them exceed.

        Returns:
            None where a group has no error of a kind that counts, or the rates have no replicates.
        """
        needed = (measure.of != "FNMR", measure.of != "FMR")
        if any(use and noisy is None for use, noisy in zip(needed, self._noisy, strict=True)):
            return None
        higher, level = measure.better == "higher", 1 - CONFIDENCE
        equal = self._measured(measure, 0.0, noise=True)
        if np.isnan(equal).any():
            return None
        beyond = int(np.count_nonzero(equal <= value if higher else equal >= value))
        p_value = (1 + beyond) / (1 + equal.size)
        limit = float(np.quantile(equal, level if higher else 1 - level, method="inverted_cdf"))
        return p_value, limit

    def _against_parity(
        self, measure: Measure, value: float
    ) -> tuple[float, float, Interval] | None:
        """Return what `_parity` does and the interval; None where there is nothing to return."""
        parity_test = self._parity(measure, value)
        if parity_test is None:
            return None
        p_value, limit = parity_test
        higher, level = measure.better == "higher", 1 - CONFIDENCE

        def measured(size: float | Values, noise: bool = False) -> Values:
            return self._measured(measure, size, noise)

        # Noise is alike at all sizes of the difference, but not at all values of the measure.
        sign = -1 if higher else 1
        scale = sign * measured(_SIZES[:, None])
        usable = np.isfinite(scale)
        sizes, scale = _SIZES[usable], np.maximum.accumulate(scale[usable])

        def holds(size: float) -> bool:
            estimates = np.interp(sign * measured(size, noise=True), scale, sizes)
            off = np.abs(estimates - size) >= abs(1 - size)
            return bool((1 + np.count_nonzero(off)) / (1 + off.size) >= level)

        def end(inside: float, outside: float) -> float:
            for _ in range(30):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if holds(middle) else (inside, middle)
            return float(measured(inside))

        parity = float(measured(0.0))
        near = end(1.0, 0.0) if p_value < level - 1e-9 else parity
        outside = next((size for size in sizes[sizes > 1] if not holds(size)), float(sizes[-1]))
        ends = near, end(1.0, outside), value
        return p_value, limit, Interval(min(ends), max(ends), CONFIDENCE, INVERTED, SCALED)


@dataclass(frozen=True)
class _NoisyRates:
    """Rates of one kind, from parity (size 0) to those observed (size 1) and beyond, with noise."""

    common: float
    """Of all groups together."""
    direction: Values
    """Logarithms of the rates over the common one, ``(k,)``."""
    noise: Values
    """Factors on the rates in every replicate, ``(R, k)``."""

    @classmethod
    def of(cls, kind: _Kind, drawn: Values, shares: Sequence[Share | None]) -> _NoisyRates | None:
        """Take the noise of each group from its subjects.

        Args:
            kind: counts and rates.
            drawn: rates in every replicate, ``(R, k)``.
            shares: of the groups.

        Returns:
            None where a group has no error or too few subjects, or false matches are not known by
            subject.
        """
        if not kind.errors.all():
            return None
        noise = np.empty(drawn.shape)
        for column, share in enumerate(shares):
            if share is None or not math.isfinite(share.test_variance):
                return None
            # Ties are broken by their place, or few errors would make lumps of replicates.
            ranks = rankdata(np.nan_to_num(drawn[:, column]), method="ordinal")
            freedom = max(1.0, share.effective_subjects - 1)
            quantiles = stdtrit(freedom, (ranks - 0.5) / len(ranks))
            noise[:, column] = np.exp(quantiles * math.sqrt(share.test_variance) / share.rate)
        common = float(kind.errors.sum() / kind.comparisons.sum())
        direction = np.log(kind.rates / common)
        if np.abs(direction).max() < 1e-9:
            # Equal rates have no direction; any will do.
            direction = np.where(np.arange(len(direction)) == 0, 1e-9, 0.0)
        return cls(common, direction, noise)

    def at(self, size: float | Values, noise: bool) -> Values:
        """Return the rates, ``(k,)``, or with noise their replicates, ``(R, k)``.

        Args:
            size: of the difference, or several, ``(n, 1)``, for rates ``(n, k)``.
            noise: whether to add it.
        """
        with np.errstate(over="ignore"):
            rates = self.common * np.exp(size * self.direction)
            return np.minimum(rates * self.noise if noise else rates, 1.0)


def _area_under_fdr(targets: Sequence[_Target]) -> list[Differential]:
    """Return the mean FDR over the targets at which it has a value, if there are several."""
    measure = next(measure for measure in MEASURES if measure.name == "FDR")
    known = [target for target in targets if target.withheld(measure) is None]
    if len(known) < 2:
        return []
    value = float(np.mean([target.value(measure) for target in known]))
    drawn = [target.replicates(measure) for target in known]
    complete = [replicates for replicates in drawn if replicates is not None]
    joint = np.mean(complete, axis=0) if len(complete) == len(drawn) else None
    interval, reason = _percentiles(value, joint)
    return [
        Differential(
            measure="area under FDR",
            of=measure.of,
            target=", ".join(target.target for target in known),
            definition=f"mean over these FMR targets of {measure.definition}",
            better=measure.better,
            value=value,
            interval=interval,
            events=min(target.fewest(measure) for target in known),
            remark=reason or "",
        )
    ]


def _percentiles(value: float, replicates: Values | None) -> tuple[Interval | None, str | None]:
    """Return the percentile interval, widened to the value, or why there is none.

    Noise moves rates apart, so that all replicates may differ more than the rates observed.
    """
    if replicates is None:
        return None, "no interval: false matches are too many to be counted by subject"
    if np.isnan(replicates).all():
        return None, "no interval: it is undefined in all replicates"
    interval = percentile_interval(value, replicates)
    if not math.isfinite(interval.high):
        unbounded = np.count_nonzero(np.isinf(replicates)) / replicates.size
        return None, (
            f"no interval: a group has no error in {unbounded:.0%} of the replicates; the lower "
            f"limit is {interval.low:.4g}"
        )
    return replace(interval, low=min(interval.low, value), high=max(interval.high, value)), None


def _rates(rates: ArrayLike) -> Values:
    values = np.asarray(rates, dtype=np.float64)
    if not values.ndim or values.shape[-1] < 2:
        raise MetricError(
            f"rates of shape {values.shape} are of fewer than two groups; there is nothing to "
            "compare"
        )
    return values


def _max(values: Values) -> Values:
    return values.max(axis=-1, keepdims=True)


def _pairs_drawn(counts: csr_array, weights: NDArray[np.uint8]) -> Values:
    """Return Σ W_i W_j c_ij in every replicate, ``(R,)``."""
    matrix = counts.astype(np.float64)
    sums = np.empty(len(weights))
    for start in range(0, len(weights), _CHUNK):
        chunk = np.ascontiguousarray(weights[start : start + _CHUNK].T, dtype=np.float64)
        sums[start : start + _CHUNK] = np.einsum("gr,gr->r", chunk, matrix @ chunk)
    return sums


def quotients(numerator: NDArray[Any], denominator: NDArray[Any]) -> Values:
    """Return the quotients, NaN where the denominator is not positive."""
    result = np.full(np.shape(denominator), np.nan)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result
