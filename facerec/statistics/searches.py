"""Intervals of shares of searches (1:N), whose errors depend on subjects of both sides.

A search errs because of its probe and because of whom the gallery holds: one subject has many
probes, and one entry can be the false match of many of them. The variance of a share has a part
of the subjects behind the probes, which `ClusteredShare` gives, and a part of the subjects in the
gallery, from what each entry causes alone: leaving the entry out takes exactly these events away,
so that this is the jackknife over the gallery (Efron and Stein, Annals of Statistics 9, 1981).
Products of one probe subject with one entry are in both parts and are taken off once, as in
clustering by two ways (Cameron, Gelbach and Miller, JBES 29, 2011).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array
from scipy.special import stdtrit

from facerec.errors import MetricError
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.intervals import Interval, check_confidence

NOBODY = -1
"""In place of an entry: none of them alone causes the event."""

SEARCHES = "searches that share a subject, as probe or in the gallery, are dependent"


@dataclass(frozen=True, eq=False, kw_only=True)
class SearchShare(ClusteredShare):
    """Share of searches that are events, such as a candidate at or above a threshold.

    Attributes:
        by_probe: sum of the residuals of each subject's searches, ``(G,)``.
        by_entry: events that each subject's entry causes alone, less their mean over the gallery
            that it is in, ``(G,)``; 0 for whoever is in none.
        cells: the same events by pair of subjects, ``(G, G)``, probe and entry in either order,
            each once above the diagonal.
        entries: subjects in galleries.
    """

    by_probe: NDArray[np.float64]
    by_entry: NDArray[np.float64]
    cells: csr_array
    entries: int

    @classmethod
    def from_searches(
        cls,
        events: ArrayLike,
        probe: ArrayLike,
        entry: ArrayLike,
        gallery: ArrayLike,
        search_gallery: ArrayLike | None = None,
    ) -> SearchShare:
        """Sum up searches by subject.

        Args:
            events: whether each search is an event, ``(n,)``.
            probe: subject of its probe, ``(n,)``, 0 to G − 1.
            entry: subject whose entry causes the event alone, ``(n,)``; `NOBODY` where several do,
                none does, or there is no event.
            gallery: in which gallery each subject is enrolled, ``(G,)``; negative for none.
            search_gallery: the gallery that each search is made in, ``(n,)``; by default 0.

        Raises:
            MetricError: no search, or arrays that do not fit together.
        """
        happened = np.asarray(events, dtype=bool)
        subject, cause = np.asarray(probe, np.int64), np.asarray(entry, np.int64)
        placed = np.asarray(gallery, np.int64)
        where = np.zeros(happened.shape, np.int64)
        if search_gallery is not None:
            where = np.asarray(search_gallery, np.int64)
        if happened.ndim != 1 or not happened.shape == subject.shape == cause.shape == where.shape:
            raise MetricError(
                f"events, probes, entries and galleries of searches have shapes {happened.shape}, "
                f"{subject.shape}, {cause.shape} and {where.shape}; give one each a search"
            )
        size, alone = placed.size, cause != NOBODY
        if (
            np.any((subject < 0) | (subject >= size) | (cause >= size))
            or np.any(alone & ~happened)
            or np.any(placed[cause[alone]] != where[alone])
        ):
            raise MetricError(
                "a search names a subject that is not there, or an entry without an event or of "
                "another gallery; number subjects from 0 and entries by their subjects"
            )
        made = np.bincount(subject, minlength=size).astype(np.float64)
        hits = np.bincount(subject, happened, size)
        base = ClusteredShare.from_mated_counts(hits, made)
        caused = np.bincount(cause[alone], minlength=size).astype(np.float64)
        inside = placed >= 0
        for number in np.unique(placed[inside]):
            members = placed == number
            caused[members] -= caused[members].mean()
        low, high = np.minimum(subject, cause)[alone], np.maximum(subject, cause)[alone]
        ones = np.ones(int(alone.sum()))
        return cls(
            residuals=base.residuals,
            loads=base.loads,
            squares=base.squares,
            mated_squares=base.mated_squares,
            exchangeable=base.exchangeable,
            events=base.events,
            comparisons=base.comparisons,
            disjoint=base.disjoint,
            by_probe=hits - base.rate * made,
            by_entry=caused,
            cells=coo_array((ones, (low, high)), (size, size)).tocsr(),
            entries=int(inside.sum()),
        )

    @cached_property
    def entry_variance(self) -> float:
        """What the subjects in the gallery add to the variance of the share; never negative."""
        if self.entries < 2:
            return math.inf if self.cells.nnz else 0.0
        own = float((self.by_entry**2).sum()) * self.entries / (self.entries - 1)
        both = 2 * float(self.by_probe @ self.by_entry)
        return max(0.0, own + both - float((self.cells.data**2).sum())) * self._weight**2

    @property
    def test_variance(self) -> float:
        """The variance for tests of equal shares, see `ClusteredShare.test_variance`."""
        return super().test_variance + self.entry_variance

    @property
    def _estimates(self) -> list[tuple[float, float]]:
        # Degrees of freedom of a sum of two variances: Satterthwaite, Biometrics Bulletin 2, 1946.
        return [
            (variance + self.entry_variance, _satterthwaite((variance, freedom), self._of_entries))
            for variance, freedom in super()._estimates
        ]

    def _interval(self, confidence: float) -> Interval:
        interval = super()._interval(confidence)
        return (
            replace(interval, assumption=SEARCHES) if interval.effective is not None else interval
        )

    @property
    def _of_entries(self) -> tuple[float, float]:
        return self.entry_variance, max(1.0, self.entries - 1.0)

    def covariance(self, other: SearchShare) -> float:
        """Return the covariance with the share of other searches of the same subjects."""
        mine, theirs = self.by_probe + self.by_entry, other.by_probe + other.by_entry
        shared = float(mine @ theirs) - float(self.cells.multiply(other.cells).sum())
        return shared * self._weight * other._weight


def ratio_interval(
    share: SearchShare, reference: SearchShare, confidence: float = 0.95
) -> Interval:
    """Return the interval of the ratio of two shares, symmetric in its logarithm.

    It allows for subjects that both shares depend on, such as a gallery searched by two groups.

    Args:
        share: the numerator, with events.
        reference: the denominator, with events; of the same numbering of subjects.
        confidence: coverage, between 0 and 1.

    Raises:
        MetricError: a share without events, or an impossible confidence.
    """
    check_confidence(confidence)
    if not (share.events and reference.events):
        raise MetricError(
            f"{share.events} and {reference.events} events: a ratio needs some on both sides"
        )
    tail = (1 + confidence) / 2
    terms = []
    for one in (share, reference):
        variance, freedom = one._widest(tail)
        terms.append((variance / one.rate**2, freedom))
    total = terms[0][0] + terms[1][0]
    if math.isinf(total):
        few = "too few identities on one side for an interval"
        return Interval(0.0, math.inf, confidence, "none", few)
    freedom = _satterthwaite(*terms)
    common = share.covariance(reference) / (share.rate * reference.rate)
    # The estimate is noisy: it may not take more than what the galleries add to both.
    most = math.sqrt(share.entry_variance * reference.entry_variance)
    total -= 2 * min(max(common, 0.0), most / (share.rate * reference.rate))
    centre = math.log(share.rate / reference.rate)
    margin = float(stdtrit(freedom, tail)) * math.sqrt(max(total, 0.0))
    return Interval(
        math.exp(centre - margin), math.exp(centre + margin), confidence, "log ratio", SEARCHES
    )


def _satterthwaite(*terms: tuple[float, float]) -> float:
    """Return the degrees of freedom of a sum of variances, each with its own."""
    total = sum(variance for variance, _ in terms)
    if not 0 < total < math.inf:
        return min(freedom for _, freedom in terms)
    return total**2 / sum(variance**2 / freedom for variance, freedom in terms)
