"""The FPIR that a threshold has in a gallery of N subjects, and the threshold for an FPIR.

FPIR(N, t) is the chance that somebody who is not in a gallery of N entries scores t or more with
one of them. A `Calibration` holds the highest non-mated scores of P probes with M entries.

*Up to M*, the FPIR of a random sub-gallery follows without any drawing: of the M entries that probe
p may meet, K reach t, so N drawn without replacement miss them all with probability
C(M − K, N) / C(M, N), and FPIR(N, t) is the mean over probes of what is left to 1.

*Beyond M, or where too few probes raise an alarm*, the threshold lies where the data has hardly a
score. Probes differ in how many subjects resemble them, and few of them raise most alarms; so each
is measured from its own K + 1-th best score u_p, which a random entry exceeds with the mean chance
(K + 1)/(M + 1) (David and Nagaraja, Order Statistics, 2003, 2.5), and how the scores fall off from
there is learned from many probes at once:

* It is learned from the tenth of the probes with the highest u_p, for they raise most alarms. The
  choice says nothing of their scores above u_p.
* The excess y of w = √(−log(1 − t²)) over that of u_p has the hazard a + b·y, b ≥ 0. A normal w of
  any mean and spread falls off so in the far tail (Mills' ratio), and so do the cosines of
  directions spread evenly over a sphere, for their tail is (1 − t²)^((D − 1)/2) up to a slowly
  varying factor. b = 0 is an exponential tail.
* E = a·y + b·y²/2 would then be exponential with mean 1. Beyond E = 2 it may be a generalised
  Pareto tail (Pickands, Annals of Statistics 3, 1975) of that scale whose shape has a prior
  N(0, 0.05²) (as in Martins and Stedinger, Water Resources Research 36, 2000).

With p_p(t) the chance of an entry to reach t, FPIR(N, t) is the mean over probes of
1 − (1 − p_p(t))^N.

Intervals of shares of sub-galleries follow the influence of every subject, as a probe and as an
entry, in one clustered variance, with Student's quantile at Satterthwaite's degrees of freedom.
Beyond M all is repeated without a twentieth of the subjects at a time, in both roles (the grouped
jackknife: Shao and Tu, The Jackknife and Bootstrap, 1995, 2.2), and the squared difference to what
half as many scores of a probe give is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from facerec.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import DEPENDENT, ClusteredFigure
from facerec.statistics.intervals import Interval, check_confidence, logit
from facerec.statistics.operating_points import Rate, between, just_above, parse_rate

DEPTH = 256
"""Highest scores that are kept of a probe."""

FEWEST_ALARMS = 10
"""Probes with an alarm from which on a threshold is read from the data itself."""

_SHAPE_PRIOR = 0.05
"""Standard deviation of the prior of the tail's shape."""

_RANKS = 16
"""Best scores of a probe that its tail is learned from, and no more than an eighth of all."""

_LEARNED = 0.1
"""Share of the probes, those with the highest K + 1-th score, that the tail is learned from."""

_LEAST_LEARNED = 100
"""Probes that it is learned from at the least, if there are so many."""

_BEND = 2.0
"""Cumulative hazard from which on the tail may have a shape."""

_LEAST_TAIL = 20
"""Scores that a tail is fitted to at the least."""

_FOLDS = 20
"""Groups of subjects that are left out in turn."""

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

    Subjects have numbers, and a probe's entries are those of all other subjects.

    Raises:
        MetricError: shapes that do not fit, no probe, or a probe that may meet no entry.
    """

    scores: NDArray[np.float32]
    """``(P, m)``: the highest first; −inf where there are fewer."""
    entries: NDArray[np.int64]
    """``(P, m)``: the entry of each score, 0 to M − 1; −1 where there are fewer."""
    probe_subjects: NDArray[np.int64]
    """Subject of each probe, ``(P,)``."""
    entry_subjects: NDArray[np.int64]
    """Subject of each entry, ``(M,)``."""
    note: dict[str, Any] = field(default_factory=dict)
    """Where the probes come from, as JSON types."""

    def __post_init__(self) -> None:
        shapes = self.scores.shape, self.entries.shape, self.probe_subjects.shape
        size = self.entry_subjects.size
        fits = len(shapes[0]) == 2 and shapes[1:] == (shapes[0], shapes[0][:1])
        if not fits or (self.entries >= size).any() or np.isnan(self.scores).any():
            raise MetricError(
                f"a calibration has scores and entries (P, m) and a subject for each probe, found "
                f"{shapes} and {size} entries; calibrate again"
            )
        if not (shapes[0][0] and self.eligible.min() > 0):
            raise MetricError(
                "a calibration needs probes, and entries of other subjects for each of them; enrol "
                "at least two subjects, or give embeddings of impostors"
            )

    @classmethod
    def from_scores(
        cls,
        scores: ArrayLike,
        probe_subjects: ArrayLike,
        entry_subjects: ArrayLike,
        depth: int = DEPTH,
    ) -> Calibration:
        """Take a matrix of scores; those of a subject with itself are left out.

        Args:
            scores: similarities, ``(P, M)``.
            probe_subjects: numbers of subjects, ``(P,)``.
            entry_subjects: the same, ``(M,)``.
            depth: scores kept of each probe.
        """
        probes = np.asarray(probe_subjects, np.int64)
        subjects = np.asarray(entry_subjects, np.int64)
        matrix = np.array(scores, np.float32)
        if matrix.shape != (probes.size, subjects.size):
            raise MetricError(
                f"scores of shape {matrix.shape} do not fit {probes.size} probes and "
                f"{subjects.size} entries; give one row a probe and one column an entry"
            )
        matrix[probes[:, None] == subjects] = -np.inf
        kept = np.argsort(-matrix, axis=1, kind="stable")[:, :depth]
        best = np.take_along_axis(matrix, kept, axis=1)
        return cls(best, np.where(best > -np.inf, kept, -1), probes, subjects)

    @property
    def eligible(self) -> NDArray[np.int64]:
        """Entries that each probe may meet, ``(P,)``: those of other subjects."""
        counts = pd.Series(self.entry_subjects).value_counts()
        own = np.asarray(counts.reindex(self.probe_subjects, fill_value=0), np.int64)
        return self.entry_subjects.size - own

    @property
    def size(self) -> int:
        """Largest gallery that exact resampling carries: all entries.

        A probe meets those of others alone; where that are fewer by more than a hundredth for some
        probe, it is what every probe can meet.
        """
        least, entries = int(self.eligible.min()), self.entry_subjects.size
        return entries if least >= (1 - _NEGLIGIBLE) * entries or least == entries - 1 else least

    @cached_property
    def tail(self) -> _Tail | None:
        """How scores fall off beyond the data; None where there are too few."""
        return self._tail(_RANKS)

    @cached_property
    def other_tails(self) -> tuple[_Tail | None, list[_Tail]]:
        """The tail from half as many scores of a probe, and those without a group of subjects each.

        Subjects are dealt out by chance, those of probes and those of entries alone alike.
        """
        subjects, index = np.unique(
            np.concatenate([self.probe_subjects, self.entry_subjects]), return_inverse=True
        )
        shuffled = np.random.default_rng(0).permutation(subjects.size)
        searching = np.isin(subjects, self.probe_subjects)[shuffled]
        dealt = np.empty(subjects.size, np.int64)
        dealt[shuffled[np.argsort(searching, kind="stable")]] = np.arange(subjects.size) % _FOLDS
        of_probe = dealt[index[: self.probe_subjects.size]]
        of_entry = dealt[index[self.probe_subjects.size :]]
        # Deeper scores than these are hardly ever needed.
        kept = min(2 * _RANKS + 16, self.scores.shape[1])
        folds = []
        for fold in range(_FOLDS):
            stay = of_probe != fold
            entries = self.entries[stay, :kept]
            gone = (entries < 0) | (of_entry[entries] == fold)
            _, scores = left_out(entries, self.scores[stay, :kept], gone, kept)
            left = np.bincount(of_entry, minlength=_FOLDS)[fold]
            # A probe's own entries are of its own group, which stays.
            eligible = np.maximum(self.eligible[stay] - left, 1)
            tail = _tail(scores, eligible, _RANKS)
            folds.extend([] if tail is None else [tail])
        return self._tail(_RANKS // 2), folds

    def _tail(self, ranks: int) -> _Tail | None:
        return _tail(self.scores, self.eligible, ranks)

    def without(self, entry: int) -> Calibration | None:
        """Return what is left without an entry and its subject's probes; None if nothing is.

        Subjects of entries are their numbers, here and in what is left.
        """
        entries = self.entry_subjects.size - 1
        # Whoever is left with nobody else to meet goes too.
        gone = [entry, 1 - entry] if entries == 1 else [entry]
        stay = ~np.isin(self.probe_subjects, gone)
        if not stay.any() or not entries:
            return None
        kept, scores = self.entries[stay], self.scores[stay]
        kept, scores = left_out(kept, scores, kept == entry, kept.shape[1])
        probes = self.probe_subjects[stay]
        return Calibration(
            scores,
            kept - (kept > entry),
            probes - (probes > entry),
            np.arange(entries),
            self.note,
        )

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
        return _Resampling(self).fpir(np.float64(threshold), size, confidence)

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


def left_out(
    entries: NDArray[np.int64],
    scores: NDArray[np.float32],
    gone: NDArray[np.bool_],
    depth: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return entries and scores, ``(P, depth)`` each, as if some of ``(P, m)`` were not there."""
    order = np.argsort(gone, axis=1, kind="stable")[:, :depth]
    entries = np.take_along_axis(np.where(gone, -1, entries), order, axis=1)
    return entries, np.take_along_axis(np.where(gone, np.float32(-np.inf), scores), order, axis=1)


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

    def hits(self, threshold: np.float64) -> NDArray[np.int64]:
        """Return for every probe the entries that reach a threshold, ``(P,)``, as far as kept."""
        return np.count_nonzero(self.scores >= threshold, axis=1)

    def misses(self, hits: NDArray[np.int64], size: float) -> NDArray[np.float64]:
        """Return log C(M − K, N)/C(M, N) of every probe; N need not be whole."""
        drawn = np.arange(max(int(hits.max()), 1))
        with np.errstate(divide="ignore"):
            left = np.log1p(np.maximum(-1.0, -size / (self._sizes[:, None] - drawn)))
        table = np.concatenate([np.zeros((len(left), 1)), np.cumsum(left, axis=1)], axis=1)
        return table[self._kind, hits]

    def share(self, threshold: np.float64, size: float) -> float:
        """Return FPIR(N, t) of random sub-galleries of N ≤ M entries."""
        # From 0, as −0 would be printed with its sign.
        return float(0.0 - np.expm1(self.misses(self.hits(threshold), size)).mean())

    def unknown(self, threshold: np.float64, size: float) -> float:
        """Return by how much the FPIR may be higher for scores that were not kept."""
        cut = threshold < self.floor
        if not cut.any():
            return 0.0
        hits = self.hits(threshold)
        return float(np.exp(self.misses(hits, size))[cut].sum()) / self.probes

    def fpir(self, threshold: np.float64, size: int, confidence: float) -> Fpir:
        alarms = int((self.scores[:, 0] >= threshold).sum())
        if size <= self.size and alarms >= FEWEST_ALARMS:
            return self._exact(threshold, size, confidence)
        tail = self.calibration.tail
        if tail is not None:
            return self._extrapolated(tail, threshold, size, confidence)
        if size <= self.size:
            return self._exact(threshold, size, confidence)
        least = self.share(threshold, self.size)
        return Fpir(
            None,
            None,
            alarms,
            self.probes,
            f"at least {least:.3g}, the FPIR among {self.size:,} entries; the calibration is too "
            f"small to tell of {size:,}",
            float(threshold),
            size,
            "none",
        )

    def threshold(self, target: float, size: int, confidence: float) -> Fpir:
        lowest = self._step(target, min(size, self.size))
        if size <= self.size and int((self.scores[:, 0] >= lowest).sum()) >= FEWEST_ALARMS:
            return self._exact(lowest, size, confidence)
        alarms = min(FEWEST_ALARMS, self.probes)
        reached = np.partition(self.scores[:, 0], -alarms)[-alarms]
        # The tail has no say in scores at which the data itself breaks the target.
        broken = np.float64(-np.inf)
        if alarms == FEWEST_ALARMS:
            broken = min(lowest, np.float64(just_above(reached)))
        tail = self.calibration.tail
        low, high = max(float(self.scores[np.isfinite(self.scores)].min()), float(broken)), 1.0
        if tail is None or not (low == broken or tail.fpir(low, size) > target):
            raise MetricError(
                f"{self.probes:,} probes with {self.size:,} entries carry no threshold for FPIR "
                f"{target:g} in a gallery of {size:,}; calibrate with more impostors, or give a "
                "threshold"
            )
        if low > high or tail.fpir(high, size) > target:
            raise MetricError(
                f"no threshold up to a cosine of 1 has FPIR {target:g} in a gallery of {size:,}: "
                f"{alarms} of {self.probes:,} probes score {reached:.4g} or more with somebody "
                "else, as people do who are enrolled under two names; take those out, calibrate "
                "with other impostors, or give a threshold"
            )
        if not tail.fpir(low, size) > target:
            return self._extrapolated(tail, broken, size, confidence)
        for _ in range(40):
            middle = (low + high) / 2
            above = tail.fpir(middle, size) > target
            low, high = (middle, high) if above else (low, middle)
        # Upwards, so as not to break the target, to digits that can be printed.
        return self._extrapolated(tail, np.float64(math.ceil(high * 1e6) / 1e6), size, confidence)

    def _step(self, target: float, size: float) -> np.float64:
        """Return the lowest threshold whose exact FPIR does not exceed the target."""
        steps = np.unique(self.scores[np.isfinite(self.scores)])
        low, high = 0, steps.size  # of the steps from `high` on the FPIR keeps to the target
        while low < high:
            middle = (low + high) // 2
            if self.share(steps[middle], size) > target:
                low = middle + 1
            else:
                high = middle
        # Above the highest score whose acceptance would break the target.
        higher = np.append(steps, np.float32(np.inf))[low]
        return np.float64(-np.inf if low == 0 else between(steps[low - 1], higher))

    def _exact(self, threshold: np.float64, size: int, confidence: float) -> Fpir:
        hits = self.hits(threshold)
        value = self.share(threshold, size)
        interval = self._interval(threshold, size, value, confidence)
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
        self, tail: _Tail, threshold: np.float64, size: int, confidence: float
    ) -> Fpir:
        value = tail.fpir(float(threshold), size)
        alarms = int((self.scores[:, 0] >= threshold).sum())
        if size > self.size and alarms >= FEWEST_ALARMS:  # it grows with the gallery
            value = max(value, self.share(threshold, self.size))
        interval, remark = None, "beyond the end of the fitted tail"
        if 0 < value < 1:
            interval, remark = self._jackknife(threshold, size, value, confidence), ""
        return Fpir(
            value, interval, alarms, self.probes, remark, float(threshold), size, tail.words
        )

    def _jackknife(
        self, threshold: np.float64, size: int, value: float, confidence: float
    ) -> Interval:
        """Return the interval of logits from tails without a group of subjects each."""
        half, folds = self.calibration.other_tails
        rates = np.array([tail.fpir(float(threshold), size) for tail in folds])
        rates = rates[(rates > 0) & (rates < 1)]
        if rates.size < _FOLDS / 2:
            return Interval(0.0, 1.0, confidence, "none", "too few subjects for an interval")
        logits = np.log(rates / (1 - rates))
        variance = (rates.size - 1) * float(logits.var()) * (value * (1 - value)) ** 2
        if half is not None:
            variance += (half.fpir(float(threshold), size) - value) ** 2
        interval = logit(value, math.sqrt(variance), confidence, rates.size - 1)
        effective = value * (1 - value) / variance if variance > 0 else math.inf
        return replace(
            interval,
            method="logit, jackknife of groups of subjects",
            assumption=DEPENDENT,
            effective=effective,
        )

    def _interval(
        self, threshold: np.float64, size: float, value: float, confidence: float
    ) -> Interval:
        """Return the clustered interval of the share of sub-galleries with an alarm.

        An entry's influence through a probe is the alarm that it alone causes,
        C(M − K, N − 1)/C(M, N).
        """
        calibration = self.calibration
        hits = self.hits(threshold)
        alarm = -np.expm1(self.misses(hits, size))
        own = (alarm - value) / self.probes
        probe, rank = np.nonzero(self.scores >= threshold)
        entry = calibration.entries[probe, rank]
        alone = alarm - -np.expm1(self.misses(np.maximum(hits - 1, 0), size))
        through_entry = alone[probe] / self.probes
        subjects, index = np.unique(
            np.concatenate([calibration.probe_subjects, calibration.entry_subjects]),
            return_inverse=True,
        )
        of_probe, of_entry = index[: self.probes], index[self.probes :]
        entries = of_entry.size
        by_entry = np.bincount(entry, through_entry, entries) - through_entry.sum() / entries
        both_sides = np.concatenate([of_probe, of_entry])
        added = _sums(both_sides, np.concatenate([own, by_entry]), subjects.size)
        met = np.full(entries, float(self.probes))
        loads = _sums(both_sides, np.concatenate([self.eligible, met]), subjects.size)
        return ClusteredFigure(
            value=value,
            changes=-added,
            subjects=subjects.size,
            effective_subjects=float(loads.sum() ** 2 / (loads**2).sum()),
            noise=float((through_entry**2).sum()),
            surplus=0.0,
            independent=float((own**2).sum()),
            cells=0.0,
        ).interval(confidence)


def _sums(index: NDArray[np.integer], values: NDArray[np.floating], size: int) -> _Floats:
    return np.bincount(index, values, size).astype(np.float64, copy=False)


def _tail(scores: NDArray[np.float32], eligible: NDArray[np.int64], ranks: int) -> _Tail | None:
    """Learn a tail from the best scores; None where there are too few of them."""
    if not scores.size:
        return None
    ranks = min(max(min(ranks, int(eligible.min()) // 8), 1), scores.shape[1] - 1)
    if ranks < 1 or ranks * len(scores) < _LEAST_TAIL:
        return None
    if not np.isfinite(scores[:, ranks]).all():
        return None
    return _Tail(scores, eligible, ranks)


class _Tail:
    """How every probe's best scores fall off from its own K + 1-th, learned from many at once.

    Args:
        scores: the highest first, ``(P, m)``; at least K + 1 of each probe are finite.
        eligible: entries that each probe may meet, ``(P,)``.
        ranks: K.
    """

    def __init__(
        self, scores: NDArray[np.float32], eligible: NDArray[np.int64], ranks: int
    ) -> None:
        best = _bent(scores[:, : ranks + 1].astype(np.float64))
        self._best, self._eligible, self._ranks = best, eligible, ranks
        # Who has many alike raises most alarms and may have another tail than who has few.
        learned = min(max(math.ceil(_LEARNED * len(best)), _LEAST_LEARNED), len(best))
        highest = best[np.argsort(-best[:, ranks], kind="stable")[:learned]]
        excess = highest[:, :ranks] - highest[:, ranks:]
        self._unit = max(float(excess.mean()), 1e-12)
        excess = (excess / self._unit).ravel()
        self.rise, self.first = _fit_hazard(excess)
        beyond = self._cumulative(excess) - _BEND
        self.shape = _fit_shape(beyond[beyond > 0])
        self.count = excess.size

    @property
    def words(self) -> str:
        """Say what it rests on."""
        return f"tail of {self.count:,} scores, {self._ranks} of a probe, shape {self.shape:+.2f}"

    def _cumulative(self, excess: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.first * excess + self.rise * excess**2 / 2

    def chances(self, threshold: float) -> NDArray[np.float64]:
        """Return for every probe the chance of an entry to reach a threshold, ``(P,)``."""
        reached = float(_bent(threshold))
        cumulative = self._cumulative(np.maximum(reached - self._best[:, -1], 0.0) / self._unit)
        beyond = np.maximum(cumulative - _BEND, 0.0)
        bent = np.minimum(cumulative, _BEND) + _pareto(beyond, self.shape)
        tail = (self._ranks + 1) / (self._eligible + 1) * np.exp(-bent)
        # Below its own tail a probe is known to have at least so many entries.
        hits = np.count_nonzero(self._best >= reached, axis=1)
        return np.where(reached > self._best[:, -1], tail, hits / self._eligible)

    def fpir(self, threshold: float, size: int) -> float:
        """Return the FPIR of a threshold in a gallery of a size."""
        with np.errstate(divide="ignore"):
            return float(0.0 - np.expm1(size * np.log1p(-self.chances(threshold))).mean())


def _bent(scores: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return w = √(−log(1 − t²)), with the sign of t."""
    cosine = np.clip(scores, -1 + 1e-9, 1 - 1e-9)
    return np.asarray(np.sign(cosine) * np.sqrt(-np.log1p(-(cosine**2))))


def _pareto(excess: NDArray[np.float64], shape: float) -> NDArray[np.float64]:
    """Return −log of the survival of a generalised Pareto tail of scale 1; ∞ beyond its end."""
    if abs(shape) < 1e-8:
        return excess
    with np.errstate(divide="ignore"):
        return np.asarray(np.log1p(np.maximum(shape * excess, -1.0)) / shape)


def _fit_hazard(excess: NDArray[np.float64]) -> tuple[float, float]:
    """Return the likeliest rise b ≥ 0 and beginning a of the hazard a + b·y.

    The likelihood ∏ (a + b·y) exp(−a·y − b·y²/2) is highest where a = 1 − b·q, with q the mean of
    y²/2, and where the mean of (y − q)/(1 + b·(y − q)), which falls as b rises, is 0.

    Args:
        excess: y ≥ 0, of mean 1.
    """
    from scipy.optimize import brentq

    middle = float((excess**2).mean() / 2)
    away = excess - middle
    high = (1 - 1e-6) / middle if middle > 0 else 0.0

    def slope(rise: float) -> float:
        return float((away / (1 + rise * away)).mean())

    if not 0 < middle < 1:  # no lighter than exponential
        return 0.0, 1.0
    rise = high if slope(high) > 0 else float(brentq(slope, 0.0, high, xtol=1e-7))
    return rise, 1 - rise * middle


def _fit_shape(excess: NDArray[np.float64]) -> float:
    """Return the shape of the highest posterior density of a generalised Pareto tail of scale 1."""
    from scipy.optimize import minimize_scalar

    if excess.size < _LEAST_TAIL:
        return 0.0

    def cost(shape: float) -> float:
        density = np.log1p(shape * excess) + _pareto(excess, shape)
        return float(density.sum()) + shape**2 / (2 * _SHAPE_PRIOR**2)

    low = max(-0.45, -(1 - 1e-6) / float(excess.max()))
    minimum = minimize_scalar(cost, bounds=(low, 0.9), method="bounded", options={"xatol": 1e-5})
    return float(minimum.x)
