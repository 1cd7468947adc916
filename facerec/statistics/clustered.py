"""Intervals of figures whose comparisons are dependent because they share subjects.

Comparisons that share a subject are correlated, so a thousand comparisons of sixty subjects say
less than a thousand coin tosses. One engine serves every figure: it leaves out one subject at a
time, with all its comparisons, and takes the spread of what remains (the jackknife; Efron and
Stein, Annals of Statistics 9, 1981; for pairs of nodes Snijders and Borgatti, Connections 22, 1999)
on the logit scale with Student's t. What a subject adds to a figure is the sum of the influences of
its comparisons, so nothing is computed again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # whose parts are loaded where they are first used
from numpy.typing import ArrayLike, NDArray

from facerec.statistics.intervals import Bound, Interval, wilson

Array = NDArray[np.float64]

MIN_EFFECTIVE = 3.0
"""With fewer effective subjects nothing can be said of the spread between subjects."""

LEFT = 0.2
"""Share of a rate that is taken to be left, at least, where a subject is left out."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Comparisons of one kind, summed by subject; a subject counts on both sides."""

    influences: Array
    """What the comparisons of each subject add to the figure, ``(G,)``."""
    loads: Array
    """Comparisons in which each subject takes part, ``(G,)``."""
    total: float
    """Comparisons."""
    squares: float
    """Sum of the squared influences of single comparisons."""
    crossing: float
    """The part of ``squares`` of comparisons of two units."""
    cells: float = 0.0
    """Sum of the squared sums of influences of each pair of units, where they are counted."""

    @property
    def effective(self) -> float:
        """Kish's effective number of subjects, (Σ load)² / Σ load².

        It equals their number where all take part in equally many comparisons, and is small where
        a few of them take part in most.
        """
        return float(self.loads.sum() ** 2 / (self.loads**2).sum())

    @property
    def surplus(self) -> float:
        """What the squares of mated sums lack if subjects with many comparisons are like others.

        Where a few subjects have most mated comparisons, those few alone tell of the spread, and
        may happen to agree. A sum of m influences of variance s² and correlation ρ has variance
        m s² (1 + (m − 1) ρ); ρ is found from Pearson's Σ sum²/(m s²), in which each subject counts
        alike (Kleinman, JASA 68, 1973).
        """
        some = self.loads > 0
        made, sums = self.loads[some], self.influences[some]
        more, count = float((made - 1).sum()), made.size
        if self.crossing or count < 2 or more == 0 or self.squares == 0:
            return 0.0
        spread = self.squares / made.sum()
        pearson = float((sums**2 / made).sum()) / spread * count / (count - 1)
        correlation = min(max((pearson - count) / more, 0.0), 1.0)
        expected = spread * float((made * (1 + (made - 1) * correlation)).sum())
        return max(0.0, expected - float((sums**2).sum()))


def sum_by_subject(
    influences: Array, first: NDArray[np.integer], second: NDArray[np.integer], size: int
) -> Sums:
    """Sum single comparisons by subject.

    Args:
        influences: of each comparison, ``(N,)``.
        first: subject on one side, ``(N,)``, 0 to ``size`` − 1.
        second: subject on the other side; equal subjects make one mated comparison.
        size: number of subjects.
    """
    two = first != second
    sums = _add(first, influences, size) + _add(second[two], influences[two], size)
    ones = np.ones(first.size)
    loads = _add(first, ones, size) + _add(second[two], ones[two], size)
    squares = influences**2
    return Sums(sums, loads, first.size, float(squares.sum()), float(squares[two].sum()))


@dataclass(frozen=True, eq=False)
class ClusteredFigure:
    """A figure in [0, 1] that errs by a sum over comparisons, and what each subject adds to it."""

    value: float
    changes: Array
    """What leaving each subject out adds to the figure, ``(G,)``; 0 where it takes no part."""
    subjects: int
    """Subjects that take part."""
    effective_subjects: float
    """The smallest effective number among mated and non-mated comparisons."""
    noise: float
    """Variance of non-mated comparisons themselves, which two subjects' changes both contain."""
    surplus: float
    """Variance beyond that of independent comparisons, see `Sums.surplus`."""
    independent: float
    """Variance if all comparisons were independent."""
    cells: float
    """Variance of pairs of subjects, which two subjects' changes both contain."""

    @classmethod
    def of_kinds(cls, value: float, kinds: Sequence[Sums]) -> ClusteredFigure:
        """Combine mated and non-mated comparisons of the same subjects."""
        loads = np.sum([kind.loads for kind in kinds], axis=0)
        changes = np.zeros(loads.shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            for kind in kinds:
                changes -= kind.influences / (1 - kind.loads / kind.total)
        return cls(
            value=value,
            changes=changes,
            subjects=int(np.count_nonzero(loads)),
            effective_subjects=min(kind.effective for kind in kinds),
            noise=sum(kind.crossing for kind in kinds),
            surplus=sum(kind.surplus for kind in kinds),
            independent=sum(kind.squares for kind in kinds),
            cells=sum(kind.cells for kind in kinds),
        )

    def _jackknife(self, twice: float) -> float:
        """Return the variance by leaving out one subject at a time, less what counts twice."""
        if self.effective_subjects < MIN_EFFECTIVE or not np.isfinite(self.changes).all():
            return math.inf
        return max(_spread(self.changes, self.subjects) - twice, self.independent)

    @property
    def jackknife(self) -> float:
        """Variance by leaving out one subject at a time, without the noise counted twice."""
        return self._jackknife(self.noise)

    @property
    def stretch(self) -> float:
        """How much more logits vary by leaving out subjects than their slope tells.

        Where few subjects have most events, a set without them would have shown far fewer, and
        nothing of the spread between subjects.
        """
        spread, slope = _spread(self.changes, self.subjects), self.value * (1 - self.value)
        if slope == 0 or not spread > 0:
            return 1.0
        # A subject with nearly all events would alone make the spread endless.
        least, most = self.value * LEFT, 1 - (1 - self.value) * LEFT
        steps = scipy.special.logit(
            np.clip(self.value + self.changes, least, most)
        ) - scipy.special.logit(self.value)
        return _spread(steps, self.subjects) * slope**2 / spread

    @property
    def test_variance(self) -> float:
        """The variance for tests of equal figures, without pairs of subjects counted twice.

        An interval may rather be too wide; a test with its variance would hardly ever reject.
        """
        stretch = self.stretch
        return self._jackknife(max(self.noise, self.cells) / stretch) * stretch

    @property
    def skewness(self) -> float:
        """Skewness of the logit's error that its interval allows for."""
        return 0.0

    @property
    def variance(self) -> float:
        """The jackknife's variance and `Sums.surplus`; infinite where subjects are too few."""
        return self.jackknife + self.surplus

    @property
    def freedom(self) -> float:
        """Degrees of freedom of Student's t."""
        return max(1.0, self.subjects - 1.0)

    def interval(self) -> Interval:
        """Return the 95 % interval on the scale of the figure's logit (Agresti, 2013, 3.1).

        A rate near 0 that was estimated too low has too small a standard error as well; on this
        scale the two make up for each other. Where sums remain skewed on it, both quantiles are
        moved as Johnson does (JASA 73, 1978); else it is symmetric.

        Where there are fewer than `MIN_EFFECTIVE` effective subjects it is [0, 1] and says so.
        A figure of 0 or 1 has the limit of as many trials as there are disjoint pairs of subjects.
        """
        value, variance = self.value, self.variance
        if value in (0, 1):
            limit = 1 - 0.05 ** (1 / self.trials)
            low, high = (0.0, limit) if value == 0 else (1 - limit, 1.0)
            return Bound(low, high, self.trials)
        if math.isinf(variance):
            few = (
                f"{self.subjects} subjects, effectively {self.effective_subjects:.1f}, "
                "are too few for an interval"
            )
            return Interval(0.0, 1.0, lacking=few)
        error = math.sqrt(max(self.jackknife * self.stretch, variance)) / (value * (1 - value))
        quantile = float(scipy.special.stdtrit(self.freedom, 0.975))
        moved = self.skewness * (2 * quantile**2 + 1) / 6
        reach = error * np.array([-max(quantile - moved, 0.0), max(quantile + moved, 0.0)])
        low, high = scipy.special.expit(scipy.special.logit(value) + reach).tolist()
        effective = value * (1 - value) / variance if variance > 0 else None
        # Rounding must not move the rate out of an interval without width.
        return Interval(min(low, value), max(high, value), effective)

    @property
    def trials(self) -> float:
        """Independent trials that these comparisons stand for if no event tells of a spread."""
        return max(1.0, self.effective_subjects / 2)


@dataclass(frozen=True, eq=False)
class ClusteredShare(ClusteredFigure):
    """Share of comparisons, one at least, that are events: FMR, FNMR, accuracy."""

    events: int
    comparisons: int
    crossing: bool
    """Whether different subjects are compared."""

    @property
    def skewness(self) -> float:
        """Skewness of what subjects add to the share of comparisons of two of them.

        The logarithm of a rate that depends on both, as a product does, is a sum over subjects as
        skewed as what each adds; of single subjects it takes the skewness off. What comparisons add
        twice is none, and a few subjects with most comparisons tell nothing of the others.
        """
        if not self.crossing or self.noise == 0:
            return 0.0
        doubled = 2 * self.noise * (1 - 2 * self.value) / self.comparisons
        third = max(-float((self.changes**3).sum()) - doubled, 0.0)
        return third / self.jackknife**1.5 * self.effective_subjects / self.subjects

    @classmethod
    def _of(cls, events: float, kind: Sums, crossing: bool) -> ClusteredShare:
        rate = events / kind.total
        return cls(
            **vars(ClusteredFigure.of_kinds(rate, [kind])),
            events=round(events),
            comparisons=round(kind.total),
            crossing=crossing,
        )

    @classmethod
    def _counted(cls, events: float, touched: Array, loads: Array, cells: float) -> ClusteredShare:
        """Take comparisons of different subjects, each of which counts at both."""
        total = float(loads.sum()) / 2
        rate = events / total
        squares = events * (1 - rate) / total**2
        kind = Sums((touched - rate * loads) / total, loads, total, squares, squares, cells)
        return cls._of(events, kind, True)

    @classmethod
    def from_pairs(
        cls, events: ArrayLike, first: ArrayLike, second: ArrayLike, *, alike: bool = False
    ) -> ClusteredShare:
        """Sum up single comparisons; equal subjects make a mated one.

        Args:
            events: whether each comparison is an event, ``(N,)``, boolean or 0/1.
            first: subject or family on one side, ``(N,)`` integers from 0.
            second: the one on the other side, ``(N,)``.
            alike: of mated comparisons, see `from_mated_counts`.
        """
        happened = np.asarray(events, dtype=np.float64)
        left, right = np.asarray(first), np.asarray(second)
        if alike:
            return cls.from_mated_counts(np.bincount(left, happened), np.bincount(left), alike=True)
        influences = (happened - happened.mean()) / happened.size
        size = int(max(left.max(), right.max())) + 1
        kind = sum_by_subject(influences, left, right, size)
        if (two := left != right).any():
            sides = np.sort([left[two], right[two]], axis=0)
            cells = scipy.sparse.coo_array((influences[two], tuple(sides)), (size, size)).tocsr()
            kind = replace(kind, cells=float((cells.data**2).sum()))
        return cls._of(happened.sum(), kind, bool((left != right).any()))

    @classmethod
    def from_mated_counts(
        cls, events: ArrayLike, comparisons: ArrayLike, *, alike: bool = False
    ) -> ClusteredShare:
        """Sum up mated comparisons counted by subject, ``(G,)`` each.

        Args:
            events: events of each subject.
            comparisons: comparisons of each.
            alike: let each subject weigh alike, and not each comparison: the mean of the shares of
                subjects. n images make n (n − 1)/2 comparisons, so that in a set such as LFW one
                person may have most of them, and comparisons that weigh alike tell of that person.
        """
        happened, made = (np.asarray(x, dtype=np.float64) for x in (events, comparisons))
        scale = np.maximum(made, 1) if alike else np.ones_like(made)
        sums, loads = happened / scale, made / scale
        total = float(loads.sum())
        rate = float(sums.sum()) / total
        # Of single comparisons, each of which weighs 1 / (scale · total).
        squares = float(((sums * (1 - 2 * rate) + loads * rate**2) / scale).sum()) / total**2
        kind = Sums((sums - rate * loads) / total, loads, total, squares, 0.0)
        share = cls._of(float(sums.sum()), kind, False)
        return replace(share, events=round(happened.sum()), comparisons=round(made.sum()))

    @classmethod
    def from_images(
        cls,
        events: scipy.sparse.sparray,
        images: ArrayLike,
        others: ArrayLike | None = None,
    ) -> ClusteredShare:
        """Sum up the events among all image pairs of different subjects, in O(non-zeros).

        Args:
            events: ``(G, G)`` sparse counts, each comparison counted once, at (i, j) or at (j, i);
                with ``others`` ``(G, H)``.
            images: number of images of each subject, ``(G,)``.
            others: images of other subjects, ``(H,)``, for the comparisons between two groups
                that have no subject in common.
        """
        left = np.asarray(images, dtype=np.float64)
        right = left if others is None else np.asarray(others, dtype=np.float64)
        entries = scipy.sparse.coo_array(events)
        rows, columns = entries.coords
        counts = entries.data.astype(np.float64)
        if others is None:
            loads = left * (left.sum() - left)
        else:
            loads = np.concatenate([left * right.sum(), right * left.sum()])
            columns = columns + left.size
        total = loads.sum() / 2
        touched = _add(rows, counts, loads.size) + _add(columns, counts, loads.size)
        rate, possible = counts.sum() / total, left[rows] * right[entries.coords[1]]
        made = (left**2).sum() * (right**2).sum()
        if others is None:
            made = (made - (left**4).sum()) / 2
        # Σ (e − rate·m)² over all pairs of subjects, most of which have no event.
        squares = (counts**2).sum() - 2 * rate * (counts * possible).sum() + rate**2 * made
        cells = float(squares) / total**2
        return cls._counted(float(counts.sum()), touched, loads, cells)

    @classmethod
    def from_involved(cls, events: int, involved: ArrayLike, images: ArrayLike) -> ClusteredShare:
        """Take the events in which each subject is involved, among all image pairs of subjects.

        Args:
            events: of all pairs.
            involved: events of each subject with others, ``(G,)``; they sum to twice ``events``.
            images: number of images of each, ``(G,)``.
        """
        left = np.asarray(images, dtype=np.float64)
        return cls._counted(events, np.asarray(involved) * 1.0, left * (left.sum() - left), 0.0)

    def by_family(self, family: NDArray[np.integer]) -> ClusteredShare:
        """Return the share with families of people who are related or alike as what is left out.

        To first order, leaving a family out changes the figure as much as its subjects together.

        Args:
            family: of each subject, ``(G,)`` integers from 0.
        """
        # A share of 0 or 1 does not tell who takes part: at worst everybody who has relatives.
        relatives = family.size - np.unique(family).size
        taking_part = np.unique(family[: self.changes.size][self.changes != 0]).size
        taking_part = taking_part or max(1, self.subjects - relatives)
        return replace(
            self,
            changes=_add(family[: self.changes.size], self.changes, int(family.max()) + 1),
            subjects=taking_part,
            effective_subjects=min(self.effective_subjects, float(taking_part)),
        )

    @property
    def trials(self) -> float:
        """Independent trials that these comparisons stand for if no event tells of a spread."""
        return max(1.0, self.effective_subjects / (2 if self.crossing else 1))

    def interval(self) -> Interval:
        """Return the interval of the share; a `Bound` where no comparison or every one is an event.

        Where every comparison is of a subject of its own, it is Wilson's.
        """
        if not self.crossing and self.subjects == self.comparisons:
            return replace(wilson(self.events, self.comparisons), effective=self.comparisons)
        found = super().interval()
        if isinstance(found, Bound):
            rule = min(1.0, -math.log(0.05) / self.comparisons)
            return replace(found, if_independent=rule if not self.events else 1 - rule)
        return found


def _spread(changes: Array, count: int) -> float:
    """Return the jackknife's variance; subjects that take no part have no change."""
    return (count - 1) / count * (float((changes**2).sum()) - float(changes.sum()) ** 2 / count)


def _add(index: NDArray[np.integer], values: Array, size: int) -> Array:
    return np.bincount(index, values, size).astype(np.float64, copy=False)


def paired_difference(
    values: ArrayLike, changes: ArrayLike, confidence: float = 0.95, noise: float = 0.0
) -> Interval | None:
    """Return the interval of the mean of paired differences, over subjects and over seeds.

    One function serves two verification results, the models of an audit, and the arms of a
    comparison: what both sides share cancels out in the changes. Variances over subjects and over
    seeds are added, with the degrees of freedom of their sum (Satterthwaite, Biometrics Bulletin 2,
    1946), that over subjects with those of its own variance.

    Args:
        values: the difference of each seed, ``(S,)``; one value for two models.
        changes: what leaving each subject (or test class) out adds to the mean difference,
            ``(G,)``; empty where no subject is known.
        confidence: coverage, between 0 and 1.
        noise: variance of single comparisons that the changes of two subjects both contain.

    Returns:
        None where nothing varies: one seed and fewer than two subjects, or no change at all.
    """
    seeds, left_out = (np.asarray(x, dtype=np.float64) for x in (values, changes))
    mean = float(seeds.mean())
    left_out = left_out[left_out != 0]
    terms = []
    centre = mean
    if (count := left_out.size) > 1:
        centre -= (count - 1) * float(left_out.mean())
        squares = (left_out - left_out.mean()) ** 2
        spread = float(squares.sum())
        # Comparisons count at least once, whatever two subjects have in common.
        among = (count - 1) / count * spread
        # A sum of squares of which few subjects make the most tells as little as so few do.
        least = 2 / (count - 1)
        shares = float((squares**2).sum()) / spread**2 if spread else math.inf
        own = 2 / min(max(shares - 1 / count, least), 2.0)
        terms.append((max(among - noise, among / 2), own))
    if seeds.size > 1:
        terms.append((float(seeds.var(ddof=1)) / seeds.size, seeds.size - 1))
    total = sum(variance for variance, _ in terms)
    if not 0 < total < math.inf:
        return None
    freedom = total**2 / sum(variance**2 / own for variance, own in terms)
    margin = float(scipy.special.stdtrit(freedom, (1 + confidence) / 2)) * math.sqrt(total)
    # The jackknife takes its bias off the middle; the figure itself stays inside.
    inside = 0.0
    if len(terms) == 2:
        # Few seeds may by chance lie so close that only their few degrees of freedom tell.
        inside = math.sqrt(terms[1][0]) * float(
            scipy.special.stdtrit(terms[1][1], (1 + confidence) / 2)
        )
    ends = min(centre - margin, mean - inside), max(centre + margin, mean + inside)
    return Interval(*ends)
