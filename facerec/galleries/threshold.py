"""The FPIR that a threshold has in a gallery of N people, and the threshold for an FPIR.

FPIR(N, t) is the chance that somebody who is not in a gallery of N entries scores t or more with
one of them. A `Calibration` holds the highest non-mated scores of P probes with M entries.

*Up to M*, the FPIR of a random sub-gallery follows without any drawing: of the M entries that probe
p may meet, K reach t, so N drawn without replacement miss them all with probability
C(M − K, N) / C(M, N), and FPIR(N, t) is the mean over probes of what is left to 1.

*Beyond M, or where too few probes raise an alarm*, the threshold lies where the data has hardly a
score. Let u be a lower score, and R the share of the scores above u that reach t. Of the entries
that reach u, each reaches t with probability R, so at t a gallery of N acts like a random
sub-gallery of N·R entries at u: FPIR(N, t) = FPIR(N·R, u), which the formula above gives, whatever
the probes differ in. R is a generalised Pareto tail (Pickands, Annals of Statistics 3, 1975) of
z = −½ log(1 − t²), in which the cosines of directions spread evenly over a sphere of D dimensions
fall off exponentially at a rate of D − 1, up to a slowly varying factor. The tail's shape has a
prior N(0, 0.05²) at that case (as in Martins and Stedinger, Water Resources Research 36, 2000).

Intervals allow for probes that share a person and for entries that all probes meet: the influence
of every person, as a probe and as an entry, on FPIR and tail goes into one clustered variance, with
Student's quantile at Satterthwaite's degrees of freedom. Beyond M the squared difference to what a
lower beginning of the tail gives is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import DEPENDENT, ClusteredFigure
from facerec.statistics.intervals import Interval, check_confidence, logit
from facerec.statistics.operating_points import Rate, just_above, parse_rate

DEPTH = 256
"""Highest scores that are kept of a probe."""

FEWEST_ALARMS = 10
"""Probes with an alarm from which on a threshold is read from the data itself."""

_SHAPE_PRIOR = 0.05
"""Standard deviation of the prior of the tail's shape."""

_TAIL_LEVELS = (0.1, 0.2, 0.4, 0.7, 0.9)
"""Shares of the probes whose best score lies in the tail that is fitted; the first that serves."""

_LEAST_TAIL = 20
"""Scores that a tail is fitted to at the least."""

_NEGLIGIBLE = 0.01
"""Share of an FPIR that may hang on scores that were not kept, or of entries on who they are."""


_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fpir(Estimate):
    """An FPIR with its interval, and what it is the FPIR of."""

    threshold: float = math.nan
    """Score from which on a candidate is an alarm."""
    size: int = 0
    """Entries of the gallery."""
    method: str = ""
    """``exact resampling``, or ``tail`` with what it rests on."""

    def to_json(self) -> dict[str, Any]:
        """Return its fields as JSON types."""
        return {
            "fpir": self.value,
            "low": self.low,
            "high": self.high,
            "gallery_size": self.size,
            "threshold": self.threshold if math.isfinite(self.threshold) else None,
            "method": self.method,
            "alarms": self.events,
            "probes": self.total,
            "remark": self.remark,
        }


@dataclass(frozen=True, eq=False)
class Calibration:
    """The highest non-mated scores of P probes with M entries of a gallery.

    Persons have numbers, and a probe's entries are those of all other persons.

    Raises:
        MetricError: shapes that do not fit, no probe, or a probe that may meet no entry.
    """

    scores: NDArray[np.float32]
    """``(P, m)``: the highest first; −inf where there are fewer."""
    entries: NDArray[np.int64]
    """``(P, m)``: the entry of each score, 0 to M − 1; −1 where there are fewer."""
    probe_subjects: NDArray[np.int64]
    """Person of each probe, ``(P,)``."""
    entry_subjects: NDArray[np.int64]
    """Person of each entry, ``(M,)``."""
    note: dict[str, Any] = field(default_factory=dict)
    """Where the probes come from, as JSON types."""

    def __post_init__(self) -> None:
        shape = self.scores.shape
        if (
            len(shape) != 2
            or self.entries.shape != shape
            or self.probe_subjects.shape != shape[:1]
            or self.entry_subjects.ndim != 1
            or (self.entries >= self.entry_subjects.size).any()
            or np.isnan(self.scores).any()
        ):
            raise MetricError(
                f"a calibration has scores and entries (P, m) and a person for each probe and "
                f"entry, found {shape}, {self.entries.shape}, {self.probe_subjects.shape} and "
                f"{self.entry_subjects.shape}; calibrate again"
            )
        if not (shape[0] and self.eligible.min() > 0):
            raise MetricError(
                "a calibration needs probes, and entries of other people for each of them; enrol "
                "at least two people, or give embeddings of impostors"
            )

    @classmethod
    def from_scores(
        cls,
        scores: ArrayLike,
        probe_subjects: ArrayLike,
        entry_subjects: ArrayLike,
        depth: int = DEPTH,
    ) -> Calibration:
        """Take a matrix of scores; those of a person with itself are left out.

        Args:
            scores: similarities, ``(P, M)``.
            probe_subjects: numbers of persons, ``(P,)``.
            entry_subjects: the same, ``(M,)``.
            depth: scores kept of each probe.
        """
        probes = np.asarray(probe_subjects, np.int64)
        people = np.asarray(entry_subjects, np.int64)
        matrix = np.array(scores, np.float32)
        if matrix.shape != (probes.size, people.size):
            raise MetricError(
                f"scores of shape {matrix.shape} do not fit {probes.size} probes and {people.size} "
                "entries; give one row a probe and one column an entry"
            )
        matrix[probes[:, None] == people] = -np.inf
        kept = np.argsort(-matrix, axis=1, kind="stable")[:, :depth]
        best = np.take_along_axis(matrix, kept, axis=1)
        return cls(best, np.where(best > -np.inf, kept, -1), probes, people)

    @property
    def eligible(self) -> NDArray[np.int64]:
        """Entries that each probe may meet, ``(P,)``: those of other persons."""
        people, counts = np.unique(self.entry_subjects, return_counts=True)
        place = np.minimum(np.searchsorted(people, self.probe_subjects), max(people.size - 1, 0))
        if not people.size:
            return np.zeros(self.probe_subjects.size, np.int64)
        own = np.where(people[place] == self.probe_subjects, counts[place], 0)
        return self.entry_subjects.size - own

    @property
    def size(self) -> int:
        """Largest gallery that exact resampling carries: all entries.

        A probe meets those of others alone; where that are fewer by more than a hundredth for some
        probe, it is what every probe can meet.
        """
        least, entries = int(self.eligible.min()), self.entry_subjects.size
        return entries if least >= (1 - _NEGLIGIBLE) * entries or least == entries - 1 else least

    def without(self, entry: int) -> Calibration | None:
        """Return what is left when an entry and the probes of its person go; None if nothing is."""
        person = self.entry_subjects[entry]
        stay = self.probe_subjects != person
        entries, scores = self.entries[stay], self.scores[stay]
        gone = entries == entry
        order = np.argsort(gone, axis=1, kind="stable")
        entries = np.take_along_axis(np.where(gone, -1, entries), order, axis=1)
        scores = np.take_along_axis(np.where(gone, np.float32(-np.inf), scores), order, axis=1)
        people = np.delete(self.entry_subjects, entry)
        if not stay.any() or not people.size:
            return None
        try:
            return Calibration(
                scores,
                np.where(entries > entry, entries - 1, entries),
                self.probe_subjects[stay],
                people,
                self.note,
            )
        except MetricError:  # somebody is left with nobody else to meet
            return None

    def fpir(self, threshold: float, size: int, confidence: float = 0.95) -> Fpir:
        """Return the FPIR that a threshold has in a gallery of another size.

        Args:
            threshold: candidates score at least this.
            size: entries of the gallery.
            confidence: of the interval.

        Raises:
            MetricError: a size below 1, a threshold that is NaN, or an impossible confidence.
        """
        check_confidence(confidence)
        if size < 1 or math.isnan(threshold):
            raise MetricError(
                f"a gallery of {size} entries at threshold {threshold} has no FPIR; give at least "
                "one entry and a number"
            )
        return _Resampling(self).fpir(np.float32(threshold), size, confidence)

    def threshold(self, fpir: Rate, size: int, confidence: float = 0.95) -> Fpir:
        """Return the lowest threshold whose FPIR in a gallery of a size does not exceed a target.

        Args:
            fpir: the target, such as ``"1e-2"``; above 0 and below 1.
            size: entries of the gallery.
            confidence: of the interval of the FPIR at that threshold.

        Raises:
            MetricError: an impossible target or size, or data that carries no such threshold.
        """
        check_confidence(confidence)
        target = float(parse_rate(fpir))
        if not 0 < target < 1 or size < 1:
            raise MetricError(
                f"FPIR {fpir} in a gallery of {size} is no target; give a rate above 0 and below 1 "
                "and at least one entry"
            )
        return _Resampling(self).threshold(target, size, confidence)


class _Resampling:
    """The arithmetic of a calibration: shares of sub-galleries, their tail, their influences."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.scores = calibration.scores
        self.eligible = calibration.eligible
        self.size = calibration.size
        self.probes = len(self.scores)
        listed = (calibration.entries >= 0).sum(axis=1)
        last = self.scores[np.arange(self.probes), np.maximum(listed - 1, 0)]
        # What is below this is not known of a probe.
        self.floor = np.where(listed < self.eligible, last, np.float32(-np.inf))
        self._sizes, self._kind = np.unique(self.eligible, return_inverse=True)

    def hits(self, threshold: np.float32) -> NDArray[np.int64]:
        """Return for every probe the entries that reach a threshold, ``(P,)``, as far as kept."""
        return np.count_nonzero(self.scores >= threshold, axis=1)

    def misses(self, hits: NDArray[np.int64], size: float) -> NDArray[np.float64]:
        """Return log C(M − K, N)/C(M, N) of every probe; N need not be whole."""
        drawn = np.arange(max(int(hits.max()), 1))
        with np.errstate(divide="ignore"):
            left = np.log1p(np.maximum(-1.0, -size / (self._sizes[:, None] - drawn)))
        table = np.concatenate([np.zeros((len(left), 1)), np.cumsum(left, axis=1)], axis=1)
        return table[self._kind, hits]

    def share(self, threshold: np.float32, size: float) -> float:
        """Return FPIR(N, t) of random sub-galleries of N ≤ M entries."""
        return float(-np.expm1(self.misses(self.hits(threshold), size)).mean())

    def unknown(self, threshold: np.float32, size: float) -> float:
        """Return by how much the FPIR may be higher for scores that were not kept."""
        cut = threshold < self.floor
        if not cut.any():
            return 0.0
        hits = self.hits(threshold)
        return float(np.exp(self.misses(hits, size))[cut].sum()) / self.probes

    def fpir(self, threshold: np.float32, size: int, confidence: float) -> Fpir:
        alarms = int((self.scores[:, 0] >= threshold).sum())
        if size <= self.size and alarms >= FEWEST_ALARMS:
            return self._exact(threshold, size, confidence)
        tail = self._tail_below(threshold, size)
        if tail is None:
            if size <= self.size:
                return self._exact(threshold, size, confidence)
            least = self.share(threshold, self.size)
            return Fpir(
                None,
                None,
                alarms,
                self.probes,
                f"at least {least:.3g}, the FPIR among {self.size:,} entries; the calibration does "
                f"not carry {size:,} at so low a threshold",
                float(threshold),
                size,
                "none",
            )
        return self._extrapolated(tail, threshold, size, confidence)

    def threshold(self, target: float, size: int, confidence: float) -> Fpir:
        if size <= self.size:
            found = self._step(target, size)
            if int((self.scores[:, 0] >= found).sum()) >= FEWEST_ALARMS:
                return self._exact(found, size, confidence)
        tails = (self._tail(level) for level in _TAIL_LEVELS)
        fit = (tail for tail in tails if tail and self.share(tail.cut, self.size) > target)
        tail = next(fit, None)
        if tail is None:
            raise MetricError(
                f"{self.probes:,} probes with {self.size:,} entries carry no threshold for FPIR "
                f"{target:g} in a gallery of {size:,}; calibrate with more impostors"
            )
        # The sub-gallery that has the target at the tail's beginning: the FPIR rises with its size.
        low, high = 0.0, float(min(size, self.size))
        hits = self.hits(tail.cut)
        for _ in range(100):
            middle = (low + high) / 2
            above = float(-np.expm1(self.misses(hits, middle)).mean()) > target
            low, high = (low, middle) if above else (middle, high)
        return self._extrapolated(tail, np.float32(tail.quantile(low / size)), size, confidence)

    def _step(self, target: float, size: float) -> np.float32:
        """Return the lowest threshold whose exact FPIR does not exceed the target."""
        steps = np.unique(self.scores[np.isfinite(self.scores)])
        low, high = 0, steps.size  # of the steps from `high` on the FPIR keeps to the target
        while low < high:
            middle = (low + high) // 2
            if self.share(steps[middle], size) > target:
                low = middle + 1
            else:
                high = middle
        # Just above the highest score whose acceptance would break the target.
        return np.float32(-np.inf) if low == 0 else np.float32(just_above(steps[low - 1]))

    def _exact(self, threshold: np.float32, size: int, confidence: float) -> Fpir:
        hits = self.hits(threshold)
        value = float(-np.expm1(self.misses(hits, size)).mean())
        interval = self._interval(threshold, size, value, confidence, None)
        unknown, remark = self.unknown(threshold, size), ""
        if unknown > _NEGLIGIBLE * value:
            interval = Interval(
                interval.low,
                min(1.0, interval.high + unknown),
                confidence,
                interval.method,
                interval.assumption,
            )
            remark = f"up to {value + unknown:.3g} for scores too low to be kept"
        return Fpir(
            value,
            interval,
            int((hits > 0).sum()),
            self.probes,
            remark,
            float(threshold),
            size,
            "exact resampling",
        )

    def _extrapolated(
        self, tail: _Tail, threshold: np.float32, size: int, confidence: float
    ) -> Fpir:
        reduced = size * tail.survival(float(threshold))
        value = self.share(tail.cut, reduced)
        if not 0 < value < 1:
            return Fpir(
                value,
                None,
                0,
                self.probes,
                "beyond the end of the fitted tail",
                float(threshold),
                size,
                tail.words,
            )
        # What another beginning of the tail would give: a tail that does not fit shows in that.
        lower = next(
            (
                found
                for level in _TAIL_LEVELS
                if (found := self._tail(level)) is not None and found.cut < tail.cut
            ),
            None,
        )
        spread = 0.0
        if lower is not None:
            other = min(size * lower.survival(float(threshold)), float(self.size))
            spread = self.share(lower.cut, other) - value
        interval = self._interval(threshold, reduced, value, confidence, tail, spread)
        alarms = int((self.scores[:, 0] >= threshold).sum())
        return Fpir(value, interval, alarms, self.probes, "", float(threshold), size, tail.words)

    def _tail_below(self, threshold: np.float32, size: int) -> _Tail | None:
        """Return the highest tail that begins below a threshold and carries a size."""
        for level in _TAIL_LEVELS:
            tail = self._tail(level)
            if tail is None:
                continue
            if tail.cut < threshold and size * tail.survival(float(threshold)) <= self.size:
                return tail
        return None

    def _tail(self, level: float) -> _Tail | None:
        """Fit the scores above the one that a share of the probes' best scores reaches.

        Returns:
            None if scores that were not kept belong there, or there are too few.
        """
        best = np.sort(self.scores[:, 0])[::-1]
        rank = min(max(math.ceil(level * self.probes), _LEAST_TAIL), self.probes - 1)
        begin = best[rank]
        cut = np.float32(just_above(begin))
        probe, place = np.nonzero(self.scores >= cut)
        if probe.size < _LEAST_TAIL or not np.isfinite(begin):
            return None
        if self.unknown(cut, self.size) > _NEGLIGIBLE:
            return None
        tail = _Tail(float(begin), cut, self.scores[probe, place].astype(np.float64))
        tail.probe, tail.entry = probe, self.calibration.entries[probe, place]
        return tail

    def _interval(
        self,
        threshold: np.float32,
        size: float,
        value: float,
        confidence: float,
        tail: _Tail | None,
        spread: float = 0.0,
    ) -> Interval:
        """Return the clustered interval of the FPIR at a threshold, or at the tail's beginning.

        An entry's influence through a probe is the alarm that it alone causes,
        C(M − K, N − 1)/C(M, N); the influence of a score on the tail is that of its likelihood.
        """
        calibration = self.calibration
        cut = threshold if tail is None else tail.cut
        hits = self.hits(cut)
        alarm = -np.expm1(self.misses(hits, size))
        if value in (0, 1):
            return self._bound(value, confidence)
        own = (alarm - value) / self.probes
        probe, place = np.nonzero(self.scores >= cut)
        entry = calibration.entries[probe, place]
        alone = alarm - -np.expm1(self.misses(np.maximum(hits - 1, 0), size))
        through_entry = alone[probe] / self.probes
        through_tail = np.zeros(probe.size)
        prior = 0.0
        if tail is not None:
            step = 1e-4 * size
            ends = [
                float(-np.expm1(self.misses(hits, size + sign * step)).mean()) for sign in (-1, 1)
            ]
            # dFPIR = dFPIR/dlog N · dlog R
            slope = (ends[1] - ends[0]) / (2 * step) * size
            through_tail, prior = tail.influence(float(threshold))
            through_tail, prior = slope * through_tail, slope * prior
        people, index = np.unique(
            np.concatenate([calibration.probe_subjects, calibration.entry_subjects]),
            return_inverse=True,
        )
        of_probe, of_entry = index[: self.probes], index[self.probes :]
        entries = of_entry.size
        by_entry = np.bincount(entry, through_entry + through_tail, entries)
        by_entry -= through_entry.sum() / entries
        by_probe = own + np.bincount(probe, through_tail, self.probes)
        both_sides = np.concatenate([of_probe, of_entry])
        residuals = _sums(both_sides, np.concatenate([by_probe, by_entry]), people.size)
        met = np.full(entries, float(self.probes))
        loads = _sums(both_sides, np.concatenate([self.eligible, met]), people.size)
        cells = of_probe[probe].astype(np.int64) * people.size + of_entry[entry]
        _, cell = np.unique(cells, return_inverse=True)
        both = np.bincount(cell, through_entry + through_tail)
        if prior:  # what the prior says counts as one more person
            residuals, loads = np.append(residuals, prior), np.append(loads, loads.mean())
        figure = ClusteredFigure(
            value=value,
            independent=float((own**2).sum()),
            residuals=residuals,
            loads=loads,
            squares=float((both**2).sum()),
            mated_squares=0.0,
        )
        if not math.isfinite(figure.variance):
            few = f"{figure.effective_subjects:.1f} effective persons are too few for an interval"
            return Interval(0.0, 1.0, confidence, "none", few)
        # Few persons may carry most of the variance: Satterthwaite's degrees of freedom.
        squares = residuals**2
        kurtosis = float((squares**2).sum()) - float(squares.sum()) ** 2 / squares.size
        freedom = max(2 * float(squares.sum()) ** 2 / max(kurtosis, 1e-300), 2.0)
        variance = figure.variance + spread**2
        found = logit(value, math.sqrt(variance), confidence, min(freedom, 1e9))
        return replace(
            found,
            method="logit, clustered by person",
            assumption=DEPENDENT,
            effective=value * (1 - value) / variance,
        )

    def _bound(self, value: float, confidence: float) -> Interval:
        """Return the interval where no probe, or every one, raises an alarm: as for its persons."""
        people = np.unique(self.calibration.probe_subjects).size
        limit = 1 - (1 - confidence) ** (1 / people)
        return Interval(
            0.0 if value == 0 else 1 - limit,
            limit if value == 0 else 1.0,
            confidence,
            f"bound from {people:,} persons",
            f"{'no' if value == 0 else 'every'} probe raises an alarm",
        )


def _sums(index: NDArray[np.integer], values: NDArray[np.floating], size: int) -> _Floats:
    return np.bincount(index, values, size).astype(np.float64, copy=False)


class _Tail:
    """A generalised Pareto tail of z = −½ log(1 − t²) above a score.

    Args:
        begin: the score.
        cut: the lowest score above it.
        scores: all scores above it, ``(k,)``.
    """

    probe: NDArray[np.int64]
    entry: NDArray[np.int64]

    def __init__(self, begin: float, cut: np.float32, scores: NDArray[np.float64]) -> None:
        self.cut = cut
        self._origin = float(_bent(begin))
        self._excess = _bent(scores) - self._origin
        self.scale, self.shape = _fit(self._excess)
        self.count = scores.size

    @property
    def words(self) -> str:
        """Say what it rests on."""
        return f"tail of {self.count:,} scores from {float(self.cut):.4g}, shape {self.shape:+.2f}"

    def survival(self, threshold: float) -> float:
        """Return the share R of its scores that reach a threshold."""
        excess = max(float(_bent(threshold)) - self._origin, 0.0)
        return float(np.exp(-_cumulative(excess / self.scale, self.shape)))

    def quantile(self, share: float) -> float:
        """Return the threshold that a share of its scores reaches."""
        cumulative = -math.log(share)
        shape = self.shape
        reach = cumulative if abs(shape) < 1e-8 else math.expm1(shape * cumulative) / shape
        z = self._origin + self.scale * reach
        return math.copysign(math.sqrt(-math.expm1(-2 * abs(z))), z)

    def influence(self, threshold: float) -> tuple[NDArray[np.float64], float]:
        """Return what each score adds to the error of log R, ``(k,)``, and what the prior adds."""
        shape = self.shape
        information = (
            1
            / (1 + 2 * shape)
            * np.array([[1.0, 1 / (1 + shape)], [1 / (1 + shape), 2 / (1 + shape)]])
        )
        total = self.count * information
        total[1, 1] += 1 / _SHAPE_PRIOR**2
        excess = max(float(_bent(threshold)) - self._origin, 0.0)
        weights = np.linalg.solve(total, -np.array(_slopes(excess / self.scale, shape)))
        scale_slope, shape_slope = _slopes(self._excess / self.scale, shape)
        ratio = self._excess / self.scale
        # d log density = −d cumulative − d log(1 + ξ y/σ) − d log σ
        width = 1 + shape * ratio
        by_scale = -scale_slope + shape * ratio / width - 1
        by_shape = -shape_slope - ratio / width
        return weights[0] * by_scale + weights[1] * by_shape, float(weights[1] / _SHAPE_PRIOR)


def _bent(scores: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return z = −½ log(1 − t²), with the sign of t."""
    cosine = np.clip(scores, -1 + 1e-9, 1 - 1e-9)
    return np.asarray(np.sign(cosine) * -0.5 * np.log1p(-(cosine**2)))


def _cumulative(ratio: float | NDArray[np.float64], shape: float) -> NDArray[np.float64]:
    """Return −log of the survival at y/σ; infinite beyond the end of the tail."""
    ratio = np.asarray(ratio, np.float64)
    if abs(shape) < 1e-8:
        return ratio
    with np.errstate(divide="ignore"):
        return np.asarray(np.log1p(np.maximum(shape * ratio, -1.0)) / shape)


def _slopes(
    ratio: float | NDArray[np.float64], shape: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the derivatives of `_cumulative` by log σ and by ξ."""
    ratio = np.asarray(ratio, np.float64)
    width = 1 + shape * ratio
    by_scale = -ratio / width
    if abs(shape) < 1e-4:
        return by_scale, -(ratio**2) / 2 + 2 * shape * ratio**3 / 3
    return by_scale, (ratio / width - np.log(width) / shape) / shape


def _fit(excess: NDArray[np.float64]) -> tuple[float, float]:
    """Return scale and shape of the highest posterior density."""
    from scipy.optimize import minimize

    mean = float(excess.mean())
    ratio = excess / mean
    highest = float(ratio.max())

    def cost(at: NDArray[np.float64]) -> float:
        scale, shape = math.exp(at[0]), float(at[1])
        if shape * highest / scale <= -1 + 1e-9:
            return 1e300
        tail = ratio / scale
        width = np.log1p(shape * tail)
        density = width + _cumulative(tail, shape) + at[0]
        return float(density.sum()) + shape**2 / (2 * _SHAPE_PRIOR**2)

    found = minimize(
        cost, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-8}
    )
    return mean * math.exp(found.x[0]), float(np.clip(found.x[1], -0.45, 0.9))
