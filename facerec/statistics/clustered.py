"""Intervals of figures whose comparisons are dependent because they share subjects.

Comparisons that share a subject are correlated, so a thousand comparisons of sixty subjects say
less than a thousand coin tosses. The variance is the sum of the products of residuals over all
ordered pairs of comparisons with a subject in common (Fogliato, Patil and Perona, IJCV 2024,
arXiv 2306.01198); rate · (1 − rate) over that variance is the effective number of comparisons.
Intervals are symmetric in the logit of the rate. The AUC and the EER follow, since they err by a
sum over comparisons as well (`ClusteredFigure`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, sparray
from scipy.special import stdtrit

from facerec.errors import MetricError
from facerec.statistics.intervals import Interval, check_confidence, logit

DEPENDENT = "comparisons that share a subject are dependent"


@dataclass(frozen=True)
class Bound(Interval):
    """The interval of a share of which no comparison, or every one, is an event.

    No variance can be estimated there. The finite limit is that of as many independent trials as
    there are disjoint pairs of subjects (or subjects, for mated comparisons): the share cannot
    exceed the chance that such a pair has any event, if all pairs have equally many comparisons.
    """

    if_independent: float = math.nan
    """The same limit if all comparisons were independent: the rule of three, 3/N at 95 %."""


@dataclass(frozen=True, eq=False, kw_only=True)
class _Clustered(ABC):
    """What comparisons add to a figure in [0, 1], summed over subjects, and its variance.

    A cell is an unordered pair of subjects, or a subject with itself for mated comparisons.
    """

    residuals: NDArray[np.float64]
    """Sum of the residuals of all comparisons in which each subject takes part, ``(G,)``."""
    loads: NDArray[np.float64]
    """Comparisons in which each subject takes part, all positive, ``(G,)``."""
    squares: float
    """Sum over cells of the squared sum of residuals."""
    mated_squares: float
    """The part of ``squares`` in cells of one subject."""
    exchangeable: float = 0.0
    """What ``mated_squares`` would be if subjects with many comparisons were like the others."""

    @property
    @abstractmethod
    def rate(self) -> float:
        """The figure."""

    @property
    @abstractmethod
    def _weight(self) -> float:
        """What a residual of 1 adds to the figure."""

    @property
    @abstractmethod
    def _independent(self) -> float:
        """Variance if all comparisons were independent."""

    @property
    @abstractmethod
    def _crossing(self) -> bool:
        """Whether different subjects are compared."""

    @property
    def subjects(self) -> int:
        """Subjects that take part."""
        return self.loads.size

    @property
    def effective_subjects(self) -> float:
        """Kish's effective number of subjects, (Σ load)² / Σ load².

        It equals their number where all take part in equally many comparisons, and is small where
        a few of them take part in most.
        """
        return float(self.loads.sum() ** 2 / (self.loads**2).sum())

    @property
    def plug_in(self) -> float:
        """Plug-in variance of the figure: Σ residual · residual over comparisons that share."""
        # Products within a cell, and products of different cells with one subject in common.
        shared = float((self.residuals**2).sum()) + self.mated_squares - 2 * self.squares
        return (self.squares + max(0.0, shared)) * self._weight**2

    @property
    def variance(self) -> float:
        """The plug-in variance corrected for few and for uneven subjects; infinite for too few.

        The factor for few is (G/(G−2))² where different subjects are compared and G/(G−1) for
        mated comparisons, G the effective number of subjects. Where a few subjects have most
        mated comparisons, the plug-in knows the spread between subjects from those few alone and
        is too small whenever they happen to agree; so their squares are taken for no less than
        the spread between all subjects suggests. Nor is the variance ever taken for less than
        that of independent comparisons.
        """
        return max(variance for variance, _ in self._estimates)

    @property
    def test_variance(self) -> float:
        """The variance for tests of equal figures; infinite for two effective subjects or fewer.

        It is `variance` where different subjects are compared. Of mated comparisons it is the
        plug-in, or that of independent comparisons if that is larger: `variance` is wide enough
        for an interval to cover where few subjects have most images, and a test with it would
        hardly ever reject.
        """
        if self._crossing:
            return self.variance
        least = max(self.plug_in, self._independent)
        return least if self.effective_subjects > 2 else math.inf

    @property
    def _estimates(self) -> list[tuple[float, float]]:
        """Return estimates of the variance with their degrees of freedom; the wider one counts."""
        count = self.effective_subjects
        uneven = max(0.0, self.exchangeable - self.mated_squares) * self._weight**2
        if count <= 2:
            return [(math.inf, 1.0)]
        least = max(self.plug_in, self._independent)
        if self._crossing:
            least = max(self.plug_in + uneven, self._independent)
            return [(least * (count / (count - 2)) ** 2, count - 1)]
        # All subjects count alike where the spread comes from all.
        return [
            (least * count / (count - 1), count - 1),
            (self.plug_in + uneven, self.subjects - 1),
        ]

    def _widest(self, tail: float) -> tuple[float, float]:
        """Return the estimate with the largest variance × squared quantile of Student's t."""
        return max(self._estimates, key=lambda one: one[0] * stdtrit(one[1], tail) ** 2)

    def _interval(self, confidence: float) -> Interval:
        tail = (1 + confidence) / 2
        variance, freedom = self._widest(tail)
        if math.isinf(variance):
            few = (
                f"{self.subjects} identities, effectively {self.effective_subjects:.1f}, "
                "are too few for an interval"
            )
            return Interval(0.0, 1.0, confidence, "none", few)
        interval = logit(self.rate, math.sqrt(variance), confidence, freedom)
        return replace(
            interval,
            method="logit with effective n",
            assumption=DEPENDENT,
            effective=self.rate * (1 - self.rate) / variance,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class ClusteredFigure(_Clustered):
    """A figure that errs by a sum over comparisons, such as the AUC, with sums over subjects.

    The residual of a comparison is its influence: what it adds to the error of the figure.
    """

    value: float
    independent: float
    """Sum of the squared influences."""

    @classmethod
    def from_influences(
        cls, value: float, influences: ArrayLike, first: ArrayLike, second: ArrayLike
    ) -> ClusteredFigure:
        """Sum up influences by subject; equal subjects make a mated comparison.

        Args:
            value: the figure, between 0 and 1.
            influences: what each comparison adds to the figure's error, ``(N,)``.
            first: subject on one side, ``(N,)`` integers.
            second: subject on the other side, ``(N,)`` integers.
        """
        added = np.asarray(influences, dtype=np.float64)
        names, index = np.unique(np.concatenate([first, second]), return_inverse=True)
        rows, columns = index.reshape(2, -1)
        cells = _Cells(rows, columns, names.size)
        sums, made = cells.add(added), cells.add(np.ones(added.size))
        own, single = cells.mated, np.asarray(first) == np.asarray(second)
        loads = cells.by_subject(made)
        return cls(
            value=value,
            independent=float((added**2).sum()),
            residuals=cells.by_subject(sums),
            loads=loads,
            squares=float((sums**2).sum()),
            mated_squares=float((sums[own] ** 2).sum()),
            exchangeable=_exchangeable(sums[own], made[own], float((added[single] ** 2).sum())),
        )

    @property
    def rate(self) -> float:
        """The figure."""
        return self.value

    @property
    def _weight(self) -> float:
        return 1.0

    @property
    def _independent(self) -> float:
        return self.independent

    @property
    def _crossing(self) -> bool:
        return True

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return the interval that is symmetric in the logit of the figure.

        The quantile is Student's with G − 1 degrees of freedom. Where two subjects or fewer take
        part, nothing can be said and the interval is [0, 1].

        Raises:
            MetricError: an impossible confidence, or a figure that is not between 0 and 1.
        """
        check_confidence(confidence)
        return self._interval(confidence)


@dataclass(frozen=True, eq=False, kw_only=True)
class ClusteredShare(_Clustered):
    """Share of comparisons that are events, with the sums over subjects that its variance needs.

    The residual of a comparison is 1 − rate for an event and −rate for any other.
    """

    events: int
    comparisons: int
    disjoint: Callable[[], int]
    """Counts cells no two of which share a subject."""

    @classmethod
    def from_pairs(cls, events: ArrayLike, first: ArrayLike, second: ArrayLike) -> ClusteredShare:
        """Sum up single comparisons; equal subjects make a mated one.

        Args:
            events: whether each comparison is an event, ``(N,)``, boolean or 0/1.
            first: subject on one side, ``(N,)`` integers.
            second: subject on the other side, ``(N,)`` integers.

        Raises:
            MetricError: no comparison, lengths that differ, or events other than 0/1.
        """
        happened, left, right = np.asarray(events), np.asarray(first), np.asarray(second)
        if happened.ndim != 1 or happened.shape != left.shape or happened.shape != right.shape:
            raise MetricError(
                f"events of shape {happened.shape} need one identity a side each, found shapes "
                f"{left.shape} and {right.shape}"
            )
        if happened.dtype != bool and not np.isin(happened, (0, 1)).all():
            raise MetricError("an event must be true or false (1 or 0) for every comparison")
        names, index = np.unique(np.concatenate([left, right]), return_inverse=True)
        rows, columns = index.reshape(2, -1)
        ones = np.ones(happened.size)
        return cls._from_cells(rows, columns, happened.astype(np.float64), ones, names.size)

    @classmethod
    def from_mated_counts(cls, events: ArrayLike, comparisons: ArrayLike) -> ClusteredShare:
        """Sum up mated comparisons counted by subject, ``(G,)`` each.

        Raises:
            MetricError: no comparison, lengths that differ, or more events than comparisons.
        """
        happened, made = (np.asarray(x, dtype=np.float64) for x in (events, comparisons))
        if happened.ndim != 1 or happened.shape != made.shape:
            raise MetricError(
                f"events of shape {happened.shape} and comparisons of shape {made.shape} must be "
                "one count per identity"
            )
        index = np.arange(made.size)
        return cls._from_cells(index, index, happened, made, made.size)

    @classmethod
    def from_counts(cls, events: sparray, comparisons: sparray) -> ClusteredShare:
        """Sum up comparisons counted by pair of subjects, in O(non-zeros).

        Each comparison is counted once, at (i, j) or at (j, i); the two entries are added. Mated
        comparisons, if any, lie on the diagonal.

        Args:
            events: ``(G, G)`` sparse counts.
            comparisons: ``(G, G)`` sparse counts.

        Raises:
            MetricError: no comparison, shapes that differ, or more events than comparisons.
        """
        size = comparisons.shape[0]
        if events.shape != (size, size) or comparisons.shape != (size, size):
            raise MetricError(
                f"events of shape {events.shape} and comparisons of shape {comparisons.shape} "
                "must be (identities, identities)"
            )
        matrices = [coo_array(matrix) for matrix in (events, comparisons)]
        rows, columns = (np.concatenate([coo.coords[k] for coo in matrices]) for k in (0, 1))
        counts = np.concatenate([coo.data for coo in matrices]).astype(np.float64)
        is_event = np.arange(counts.size) < matrices[0].nnz
        happened, made = np.where(is_event, counts, 0), np.where(is_event, 0, counts)
        return cls._from_cells(rows, columns, happened, made, size)

    @classmethod
    def from_images(
        cls, events: sparray, images: ArrayLike, others: ArrayLike | None = None
    ) -> ClusteredShare:
        """Sum up the events among all image pairs of different subjects, in O(non-zeros).

        Args:
            events: ``(G, G)`` sparse counts, each comparison counted once, at (i, j) or at (j, i);
                with ``others`` ``(G, H)``.
            images: number of images of each subject, ``(G,)``.
            others: images of other subjects, ``(H,)``, for the comparisons between two groups
                that have no subject in common.

        Raises:
            MetricError: no comparison, shapes that differ, or more events than comparisons.
        """
        left = np.asarray(images, dtype=np.float64)
        right = left if others is None else np.asarray(others, dtype=np.float64)
        if left.ndim != 1 or right.ndim != 1 or events.shape != (left.size, right.size):
            raise MetricError(
                f"events of shape {events.shape} do not fit {left.size} and {right.size} "
                "identities with images"
            )
        entries = coo_array(events)
        rows, columns = entries.coords
        if others is None:
            rows, columns = np.minimum(rows, columns), np.maximum(rows, columns)
            if np.any((rows == columns) & (entries.data != 0)):
                raise MetricError("events of an identity with itself are no false matches")
        entries = coo_array((entries.data.astype(np.float64), (rows, columns)), events.shape)
        entries.sum_duplicates()
        rows, columns = entries.coords
        possible = left[rows] * right[columns]

        by_row, by_column = entries.sum(axis=1), entries.sum(axis=0)
        if others is None:
            loads, touched = left * (left.sum() - left), by_row + by_column
            made = loads.sum() / 2
            made_squares = ((left**2).sum() ** 2 - (left**4).sum()) / 2
        else:
            loads = np.concatenate([left * right.sum(), right * left.sum()])
            touched = np.concatenate([by_row, by_column])
            made = left.sum() * right.sum()
            made_squares = (left**2).sum() * (right**2).sum()
        happened = entries.data.sum()
        rate = _rate(happened, made, entries.data, possible)
        cross = (entries.data**2).sum() - 2 * rate * (entries.data * possible).sum()
        present = loads > 0
        sides = int(np.count_nonzero(left)), int(np.count_nonzero(right))
        return cls(
            events=round(happened),
            comparisons=round(made),
            residuals=(touched - rate * loads)[present],
            loads=loads[present],
            squares=float(cross + rate**2 * made_squares),
            mated_squares=0.0,
            disjoint=lambda: sides[0] // 2 if others is None else min(sides),
        )

    @classmethod
    def _from_cells(
        cls,
        rows: NDArray[np.integer],
        columns: NDArray[np.integer],
        events: NDArray[np.float64],
        comparisons: NDArray[np.float64],
        size: int,
    ) -> ClusteredShare:
        """Sum up counts at (row, column); entries of one cell are added."""
        cells = _Cells(rows, columns, size)
        happened, made = cells.add(events), cells.add(comparisons)
        rate = _rate(happened.sum(), made.sum(), happened, made)
        residuals = happened - rate * made
        mated = cells.mated
        loads = cells.by_subject(made)
        present = loads > 0
        misses = made[mated] - happened[mated]
        single = (happened[mated] * (1 - rate) ** 2 + misses * rate**2).sum()
        return cls(
            events=round(happened.sum()),
            comparisons=round(made.sum()),
            residuals=cells.by_subject(residuals)[present],
            loads=loads[present],
            squares=float((residuals**2).sum()),
            mated_squares=float((residuals[mated] ** 2).sum()),
            exchangeable=_exchangeable(residuals[mated], made[mated], float(single)),
            disjoint=lambda: _disjoint_cells(cells.low[made > 0], cells.high[made > 0], size),
        )

    @property
    def rate(self) -> float:
        """Events over comparisons."""
        return self.events / self.comparisons

    @property
    def _weight(self) -> float:
        return 1 / self.comparisons

    @property
    def _independent(self) -> float:
        return self.rate * (1 - self.rate) / self.comparisons

    @property
    def _crossing(self) -> bool:
        # A subject's comparisons are counted once if mated, on both sides if not.
        return bool(self.loads.sum() > self.comparisons)

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return the interval of the share that is symmetric in its logit.

        The quantile is Student's, with one degree of freedom less than there are subjects (their
        effective number where the plug-in variance counts). Where no comparison or every one is an
        event, the interval is a `Bound`. Where two subjects or fewer take part, or one has nearly
        all mated comparisons, nothing can be said and the interval is [0, 1].

        Raises:
            MetricError: an impossible confidence.
        """
        check_confidence(confidence)
        if self.events in (0, self.comparisons):
            return self._bound(confidence)
        return self._interval(confidence)

    def _bound(self, confidence: float) -> Bound:
        trials = self.disjoint()
        limit = 1 - (1 - confidence) ** (1 / trials)
        rule = min(1.0, -math.log1p(-confidence) / self.comparisons)
        none = self.events == 0
        return Bound(
            low=0.0 if none else 1 - limit,
            high=limit if none else 1.0,
            confidence=confidence,
            method=f"bound from {trials:,} disjoint identities or pairs of them",
            assumption=f"{DEPENDENT}; {'no' if none else 'every'} event among "
            f"{self.comparisons:,} comparisons",
            effective=float(trials),
            if_independent=rule if none else 1 - rule,
        )


def fnmr_interval(errors: ArrayLike, subject: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the interval of a share of mated comparisons (FNMR; TPR if accepts are counted).

    Args:
        errors: whether each comparison is a false non-match, ``(P,)``.
        subject: of each comparison, ``(P,)`` integers.
        confidence: coverage, between 0 and 1.

    Raises:
        MetricError: no comparison, lengths that differ, or an impossible confidence.
    """
    return ClusteredShare.from_pairs(errors, subject, subject).interval(confidence)


def fmr_interval(
    errors: ArrayLike, first: ArrayLike, second: ArrayLike, confidence: float = 0.95
) -> Interval:
    """Return the interval of a share of non-mated comparisons.

    Args:
        errors: whether each comparison is a false match, ``(N,)``.
        first: subject on one side, ``(N,)`` integers.
        second: another subject on the other side, ``(N,)`` integers.
        confidence: coverage, between 0 and 1.

    Raises:
        MetricError: as for `ClusteredShare.from_pairs`, or a comparison of a subject with itself.

    Examples:
        >>> accepted = [True, False, False, True, False, False]
        >>> interval = fmr_interval(accepted, [0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 3, 3])
        >>> interval.low < 2 / 6 < interval.high
        True
    """
    equal = np.asarray(first) == np.asarray(second)
    if np.any(equal):
        raise MetricError(
            f"comparison {int(np.argmax(equal))} has one identity on both sides; false matches "
            "are counted among different identities"
        )
    return share_interval(errors, first, second, confidence)


def share_interval(
    events: ArrayLike, first: ArrayLike, second: ArrayLike, confidence: float = 0.95
) -> Interval:
    """Return the interval of a share of mated and non-mated comparisons, such as accuracy.

    Arguments and errors are those of `ClusteredShare.from_pairs` and `ClusteredShare.interval`.
    """
    return ClusteredShare.from_pairs(events, first, second).interval(confidence)


class _Cells:
    """Cells that occur among comparisons of subjects 0, 1, …, ``size`` − 1.

    Attributes:
        low: smaller subject of each cell.
        high: larger subject of each cell.
        mated: whether they are one.
    """

    def __init__(self, rows: NDArray[np.integer], columns: NDArray[np.integer], size: int) -> None:
        code = np.minimum(rows, columns).astype(np.int64) * size + np.maximum(rows, columns)
        cells, self._index = np.unique(code, return_inverse=True)
        self.low, self.high = np.divmod(cells, size)
        self.mated = self.low == self.high
        self._size = size

    def add(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add up the values of the entries of each cell."""
        return _sums(self._index, values, self.low.size)

    def by_subject(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add up the values of the cells in which each subject takes part."""
        other = ~self.mated
        own = _sums(self.low, values, self._size)
        return own + _sums(self.high[other], values[other], self._size)


def _exchangeable(
    sums: NDArray[np.float64], comparisons: NDArray[np.float64], single: float
) -> float:
    """Return the expected Σ sum² if the subjects differ in nothing but their comparisons.

    A sum of m residuals of variance s² and correlation ρ has variance m s² (1 + (m − 1) ρ); ρ is
    found from Pearson's Σ sum²/(m s²), in which each subject counts alike (Kleinman, JASA 68,
    1973).

    Args:
        sums: of the residuals of each subject's mated comparisons, ``(G,)``.
        comparisons: their numbers, ``(G,)``.
        single: sum of the squares of all residuals, one by one.
    """
    made, sums = comparisons[comparisons > 0], sums[comparisons > 0]
    more, count = float((made - 1).sum()), made.size
    if count < 2 or more == 0 or single == 0:
        return 0.0
    spread = single / made.sum()
    pearson = float((sums**2 / made).sum()) / spread * count / (count - 1)
    correlation = min(max((pearson - count) / more, 0.0), 1.0)
    return float(spread * (made * (1 + (made - 1) * correlation)).sum())


def _sums(
    index: NDArray[np.integer], values: NDArray[np.float64], size: int
) -> NDArray[np.float64]:
    return np.bincount(index, values, size).astype(np.float64, copy=False)


def _rate(
    events: float,
    comparisons: float,
    events_by_cell: NDArray[np.float64],
    comparisons_by_cell: NDArray[np.float64],
) -> float:
    if comparisons == 0:
        raise MetricError("there are no comparisons; a rate needs at least one")
    if np.any((events_by_cell < 0) | (events_by_cell > comparisons_by_cell)):
        raise MetricError(
            "a pair of identities has more events than comparisons or a negative count; count "
            "both over the same comparisons"
        )
    return float(events / comparisons)


def _disjoint_cells(low: NDArray[np.integer], high: NDArray[np.integer], size: int) -> int:
    """Count the cells of a greedy matching: mated cells first, then those of rare subjects."""
    degrees = np.bincount(low, minlength=size) + np.bincount(high, minlength=size)
    key = np.where(low == high, 0, degrees[low] + degrees[high])
    # Random among equals, so that the number of rounds below grows like a logarithm.
    shuffle = np.random.default_rng(0).permutation(low.size)
    rank = np.empty(low.size, dtype=np.int64)
    rank[np.lexsort((shuffle, key))] = np.arange(low.size)
    count = 0
    while low.size:
        best = np.full(size, rank.max() + 1)
        np.minimum.at(best, low, rank)
        np.minimum.at(best, high, rank)
        chosen = (best[low] == rank) & (best[high] == rank)
        count += int(chosen.sum())
        taken = np.zeros(size, dtype=bool)
        taken[low[chosen]] = taken[high[chosen]] = True
        free = ~(taken[low] | taken[high])
        low, high, rank = low[free], high[free], rank[free]
    return count
