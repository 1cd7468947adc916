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
there is learned from many probes at once: from the tenth of them with the highest u_p, for they
raise most alarms, and the choice says nothing of their scores above u_p. The excess y of
w = √(−log(1 − t²)) over that of u_p has the hazard a + b·y, b ≥ 0. A normal w of any mean and
spread falls off so in the far tail (Mills' ratio), and so do the cosines of directions spread
evenly over a sphere, for their tail is (1 − t²)^((D − 1)/2) up to a slowly varying factor. With
p_p(t) the chance of an entry to reach t, FPIR(N, t) is the mean over probes of 1 − (1 − p_p(t))^N.

Intervals leave out a twentieth of the subjects at a time, as probes and as entries, and compute
everything anew (the grouped jackknife: Shao and Tu, The Jackknife and Bootstrap, 1995, 2.2).
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import ClusteredFigure
from facerec.statistics.identification import count_equal
from facerec.statistics.operating_points import Rate, between, just_above, parse_rate

DEPTH = 64
"""Highest scores that are kept of a probe."""

FEWEST_ALARMS = 10
"""Probes with an alarm from which on a threshold is read from the data itself."""

_RANKS = 16
"""Best scores of a probe that its tail is learned from, and no more than an eighth of all."""

_LEARNED = 0.1
"""Share of the probes, those with the highest K + 1-th score, that the tail is learned from."""

_LEAST_LEARNED = 100
"""Probes that it is learned from at the least, if there are so many."""

_LEAST_TAIL = 20
"""Scores that a tail is fitted to at the least."""

_FOLDS = 20
"""Groups of subjects that are left out in turn."""

_GRID = 1e-6
"""Steps of thresholds beyond the data."""

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
            "threshold": self.threshold,
            "method": self.method,
            "alarms": self.events,
            "probes": self.total,
            "remark": self.remark,
        }


@dataclass(frozen=True, eq=False)
class Calibration:
    """The highest non-mated scores of P probes with M entries of a gallery.

    Subjects have numbers, and a probe's entries are those of all other subjects.
    """

    scores: NDArray[np.float32]
    """``(P, m)``: the highest first; −inf where there are fewer."""
    entries: NDArray[np.int64]
    """``(P, m)``: the entry of each score, 0 to M − 1; −1 where there are fewer."""
    probe_subjects: NDArray[np.int64]
    """Subject of each probe, ``(P,)``."""
    entry_subjects: NDArray[np.int64]
    """Subject of each entry, ``(M,)``."""
    source: str = "unknown"
    """Where the probes come from."""

    @cached_property
    def eligible(self) -> NDArray[np.int64]:
        """Entries that each probe may meet, ``(P,)``: those of other subjects."""
        own = count_equal(self.probe_subjects, self.entry_subjects)
        return np.asarray(self.entry_subjects.size - own)

    @cached_property
    def tail(self) -> Tail | None:
        """How scores fall off beyond the data; None where there are too few."""
        most = min(_RANKS, int(self.eligible.min()) // 8)
        ranks = min(max(most, 1), self.scores.shape[1] - 1)
        if ranks * len(self.scores) < _LEAST_TAIL or np.isneginf(self.scores[:, ranks]).any():
            return None
        return Tail(self.scores[:, : ranks + 1], self.eligible)

    def without(self, subjects: ArrayLike) -> Calibration | None:
        """Return what is left without some subjects, as probes and entries; None if nothing is.

        Entries and subjects have the numbers then that they have among those who are left.
        """
        gone = np.unique(subjects)
        stay, left = (~np.isin(s, gone) for s in (self.probe_subjects, self.entry_subjects))
        lost = (self.entries < 0) | ~left[self.entries]
        entries, scores = left_out((np.cumsum(left) - 1)[self.entries], self.scores, lost)
        new = [s - np.searchsorted(gone, s) for s in (self.probe_subjects, self.entry_subjects)]
        # Whoever is left with nobody else to meet goes too.
        if left.sum() == 1:
            stay &= new[0] != new[1][left][0]
        if not (stay.any() and left.any()):
            return None
        return Calibration(scores[stay], entries[stay], new[0][stay], new[1][left], self.source)

    def by_group(self, point: Fpir, groups: NDArray[np.str_]) -> list[tuple[str, Fpir, Fpir]]:
        """Return what the FPIR of a threshold is for strangers of each group, the worst first.

        Args:
            point: that threshold, and the size of the gallery.
            groups: of the entries, who stand in for strangers too, ``(M,)``; empty where unknown.

        Returns:
            of each group of `FEWEST_ALARMS` probes or more its name, and the FPIR before entries of
            all groups, and before those of that group alone.
        """
        rows = []
        for name in np.unique(groups[groups != ""]).tolist():
            stay = groups[self.probe_subjects] == name
            alone = self.without(np.flatnonzero(groups != name))
            if alone is not None and stay.sum() >= FEWEST_ALARMS:
                kept = self.scores[stay], self.entries[stay], self.probe_subjects[stay]
                mixed = Calibration(*kept, self.entry_subjects, self.source)
                size = min(point.size, alone.entry_subjects.size)
                found = mixed.fpir(point.threshold, point.size), alone.fpir(point.threshold, size)
                rows.append((name, *found))
        return sorted(rows, key=lambda row: -max(part.value or 0.0 for part in row[1:]))

    def fpir(self, threshold: float, size: int) -> Fpir:
        """Return the FPIR that a threshold has in a gallery of another size.

        Args:
            threshold: candidates score at least this.
            size: entries of the gallery.
        """
        counts, most = (self._alarming(threshold), len(self.scores)), self.entry_subjects.size
        counted = size <= most and (counts[0] >= FEWEST_ALARMS or self.tail is None)
        if not counted and self.tail is None:
            remark = (
                f"at least {self._rate(threshold, most, True):.3g}, the FPIR among {most:,} "
                f"entries; the calibration is too small to tell of {size:,}"
            )
            return Fpir(None, None, *counts, remark, float(threshold), size, "none")
        value = self._rate(threshold, size, counted)
        interval = self._figure(value, threshold, size, counted).interval()
        method = "exact resampling" if counted or self.tail is None else self.tail.words
        return Fpir(value, interval, *counts, "", float(threshold), size, method)

    def _figure(self, value: float, threshold: float, size: int, counted: bool) -> ClusteredFigure:
        """Return the FPIR with what leaving out each group of subjects adds to it."""
        subjects = np.unique(np.concatenate([self.probe_subjects, self.entry_subjects]))
        groups = np.array_split(np.random.default_rng(0).permutation(subjects), _FOLDS)
        parts = [part for group in groups if (part := self.without(group)) is not None]
        parts = [part for part in parts if counted or part.tail is not None]
        changes = [part._rate(threshold, size, counted) - value for part in parts]
        alarms = self._alarms(threshold, size, counted)
        loads = np.unique(self.probe_subjects, return_counts=True)[1]
        effective = float(loads.sum() ** 2 / (loads**2).sum())
        independent = float(((alarms - value) ** 2).sum()) / alarms.size**2
        figure = value, np.array(changes), len(parts), effective
        return ClusteredFigure(*figure, noise=0.0, surplus=0.0, independent=independent, cells=0.0)

    def threshold(self, fpir: Rate, size: int) -> Fpir:
        """Return the lowest threshold whose FPIR in a gallery of a size does not exceed a target.

        Args:
            fpir: the target, such as ``"1e-2"``; above 0 and below 1.
            size: entries of the gallery.

        Raises:
            MetricError: no rate between 0 and 1, or data that carries no such threshold.
        """
        if not 0 < (target := float(parse_rate(fpir))) < 1:
            raise MetricError(f"an FPIR of {fpir} is no target; give a rate between 0 and 1")
        # Above the highest score whose acceptance would break the target.
        steps = np.unique(self.scores[np.isfinite(self.scores)]).tolist()
        most = target * (1 + 1e-12)
        first = bisect.bisect_left(steps, True, key=lambda at: self._rate(at, size, True) <= most)
        higher = steps[first] if first < len(steps) else None
        lowest = between(np.float32(steps[first - 1]), higher) if first else -1.0
        if size <= self.entry_subjects.size and self._alarming(lowest) >= FEWEST_ALARMS:
            return self.fpir(lowest, size)
        if self.tail is not None and len(self.scores) >= FEWEST_ALARMS:
            # The tail has no say in scores at which the data itself breaks the target.
            reached = np.partition(self.scores[:, 0], -FEWEST_ALARMS)[-FEWEST_ALARMS]
            begin = max(-1.0, min(float(just_above(reached)), lowest))
            # Upwards, so as not to break the target, to digits that can be printed.
            places = range(math.ceil(begin / _GRID), round(1 / _GRID) + 1)
            place = bisect.bisect_left(
                places, True, key=lambda place: self._rate(place * _GRID, size, False) <= target
            )
            if place < len(places):
                return self.fpir(round(places[place] * _GRID, 6), size)
        few = f"{len(self.scores):,} probes with {self.entry_subjects.size:,} entries carry no"
        raise MetricError(
            f"{few} threshold for FPIR {target:g} in a gallery of {size:,}; calibrate with more "
            "impostors, take out who is enrolled under two names, or give a threshold"
        )

    def _alarming(self, threshold: float) -> int:
        """Return how many probes raise an alarm."""
        return int(np.count_nonzero(self.scores[:, 0] >= threshold))

    def _rate(self, threshold: float, size: int, counted: bool) -> float:
        return float(self._alarms(threshold, size, counted).mean())

    def _alarms(self, threshold: float, size: int, counted: bool) -> _Floats:
        """Return the chance of each probe to raise an alarm, ``(P,)``.

        Args:
            threshold: candidates score at least this.
            size: entries of the gallery; from all that there are on, that of those is counted.
            counted: from the scores themselves, in place of the tail.
        """
        if not counted:
            assert self.tail is not None
            chances = self.tail.chances(threshold)
            with np.errstate(divide="ignore"):
                return np.asarray(0.0 - np.expm1(size * np.log1p(-chances)))
        hits = np.count_nonzero(self.scores >= threshold, axis=1)
        entries, drawn = self.eligible[:, None], np.arange(max(int(hits.max()), 1))
        missed = 1 - np.minimum(size, entries) / np.maximum(entries - drawn, 1)
        missed = np.cumprod(np.maximum(missed, 0), axis=1)
        alarm = np.where(hits > 0, 1 - missed[np.arange(hits.size), hits - 1], 0.0)
        # As if all others reached the threshold where all that are kept do.
        kept = np.count_nonzero(self.entries >= 0, axis=1)
        return np.where((hits == kept) & (hits < self.eligible), 1.0, alarm)


def left_out(
    entries: NDArray[np.int64], scores: NDArray[np.float32], gone: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return entries and scores, ``(P, m)`` each, as if some were not there."""
    order = np.argsort(gone, axis=1, kind="stable")
    entries = np.take_along_axis(np.where(gone, -1, entries), order, axis=1)
    return entries, np.take_along_axis(np.where(gone, np.float32(-np.inf), scores), order, axis=1)


class Tail:
    """How every probe's best scores fall off from its own K + 1-th, learned from many at once.

    Args:
        scores: the highest first, ``(P, K + 1)``.
        eligible: entries that each probe may meet, ``(P,)``.
    """

    def __init__(self, scores: NDArray[np.float32], eligible: NDArray[np.int64]) -> None:
        self.best, self.eligible = _bent(scores.astype(np.float64)), eligible
        # Who has many alike raises most alarms and may have another tail than who has few.
        learned = max(math.ceil(_LEARNED * len(scores)), _LEAST_LEARNED)
        highest = self.best[np.argsort(-self.best[:, -1], kind="stable")[:learned]]
        excess = (highest[:, :-1] - highest[:, -1:]).ravel()
        self.unit = max(float(excess.mean()), 1e-12)
        self.rise, self.first = fit_hazard(excess / self.unit)
        ranks = scores.shape[1] - 1
        self.words = f"tail of {excess.size:,} scores, {ranks} of a probe"

    def chances(self, threshold: float) -> _Floats:
        """Return for every probe the chance of an entry to reach a threshold, ``(P,)``."""
        reached, begin = float(_bent(threshold)), self.best[:, -1]
        excess = np.maximum(reached - begin, 0.0) / self.unit
        hazard = self.first * excess + self.rise * excess**2 / 2
        tail = self.best.shape[1] / (self.eligible + 1) * np.exp(-hazard)
        # Below its own tail a probe is known to have at least so many entries.
        hits = np.count_nonzero(self.best >= reached, axis=1)
        return np.where(reached > begin, tail, hits / self.eligible)


def _bent(scores: float | _Floats) -> _Floats:
    """Return w = √(−log(1 − t²)), with the sign of t."""
    cosine = np.clip(scores, -1 + 1e-9, 1 - 1e-9)
    return np.asarray(np.sign(cosine) * np.sqrt(-np.log1p(-(cosine**2))))


def fit_hazard(excess: _Floats) -> tuple[float, float]:
    """Return the likeliest rise b ≥ 0 and beginning a of the hazard a + b·y.

    The likelihood ∏ (a + b·y) exp(−a·y − b·y²/2) is highest where a = 1 − b·q, with q the mean of
    y²/2, and where the mean of (y − q)/(1 + b·(y − q)), which falls as b rises, is 0.

    Args:
        excess: y ≥ 0, of mean 1.
    """
    from scipy.optimize import brentq

    middle = float((excess**2).mean() / 2)
    if not 0 < middle < 1:  # no lighter than exponential
        return 0.0, 1.0
    away, high = excess - middle, (1 - 1e-6) / middle

    def slope(rise: float) -> float:
        return float((away / (1 + rise * away)).mean())

    rise = high if slope(high) > 0 else float(brentq(slope, 0.0, high, xtol=1e-7))
    return rise, 1 - rise * middle
