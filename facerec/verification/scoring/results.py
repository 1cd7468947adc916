"""What the comparison of all pairs gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from facerec.base.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.operating_points import OperatingPoint
from facerec.verification.result import TprEstimate

Members = NDArray[np.intp]
"""Places of some subjects among all of them."""


@dataclass(frozen=True, eq=False)
class ErrorTable:
    """Errors of all pairs at one threshold, by subject."""

    threshold: float
    """Match if ``score >= threshold``."""
    target: str | None
    """The FPR that it realises, as it was asked for; None for a threshold that was given."""
    false_matches: int
    images: NDArray[np.int64]
    """Images of each subject, ``(G,)``."""
    missed: NDArray[np.int64]
    """False non-matches of each subject, ``(G,)``."""
    involved: NDArray[np.int64]
    """False matches in which each subject takes part, ``(G,)``; twice their number in all."""
    by_pair: csr_array | None
    """False matches between subjects, ``(G, G)``: each counted once, above the diagonal (E + Eᵀ
    is the symmetric matrix); None if there are more than ``pair_limit`` false matches."""

    @property
    def point(self) -> OperatingPoint:
        """The operating point of the target that there is."""
        images, mated = int(self.images.sum()), int(_mated(self.images).sum())
        accepts = mated - int(self.missed.sum()), mated, self.false_matches
        pairs = images * (images - 1) // 2
        return OperatingPoint(str(self.target), self.threshold, *accepts, pairs - mated)

    def estimate(self) -> TprEstimate:
        """Return the operating point with the intervals of its rates."""
        pairs, people = (_tpr(self.fnmr_share(alike)) for alike in (False, True))
        found = TprEstimate.of(self.point, pairs.interval, self.fmr_share().interval())
        return replace(found, alike=people)

    def fmr_share(self) -> ClusteredShare:
        """Return the FMR with what its interval needs."""
        if self.by_pair is not None:
            return ClusteredShare.from_images(self.by_pair, self.images)
        return ClusteredShare.from_involved(self.false_matches, self.involved, self.images)

    def fmr_among(self, first: Members, second: Members | None = None) -> ClusteredShare | None:
        """Return the FMR of pairs of some subjects, or of these with others; None without any.

        Raises:
            MetricError: there are too many errors to have been counted by pair of subjects.
        """
        if self.by_pair is None:
            raise MetricError(
                f"{self.false_matches:,} false matches are too many to count them by pair of "
                "people; ask for lower false match rates only"
            )
        images = self.images[first]
        if second is None:
            events = self.by_pair[first][:, first]
            return ClusteredShare.from_images(events, images) if first.size > 1 else None
        if not first.size or not second.size:
            return None
        events = self.by_pair[first][:, second] + self.by_pair[second][:, first].T
        return ClusteredShare.from_images(events, images, self.images[second])

    def fnmr_share(self, alike: bool = False) -> ClusteredShare:
        """Return the FNMR with the sums over subjects that its interval needs.

        Each pair weighs alike, or with ``alike`` each person, however many images they have.
        """
        return ClusteredShare.from_mated_counts(self.missed, _mated(self.images), alike=alike)

    def fnmr_among(self, members: Members, alike: bool = False) -> ClusteredShare | None:
        """Return the FNMR of some subjects, as `fnmr_share` does; None without mated pairs."""
        some = replace(self, missed=self.missed[members], images=self.images[members])
        return some.fnmr_share(alike) if _mated(some.images).any() else None


@dataclass(frozen=True, eq=False)
class AllPairs:
    """What the comparison of every image with every other found."""

    images: int
    """Images with a usable embedding."""
    failures: NDArray[np.int64]
    """Indices of images without one (zero or not finite): failures to acquire."""
    lost_mated: int
    """Mated pairs that failures took part in; they are in no count and no rate."""
    lost_non_mated: int
    mated: int
    non_mated: int
    subjects: NDArray[Any]
    """Label of each subject with a usable image, ``(G,)``, ascending."""
    tables: tuple[ErrorTable, ...]
    """At the thresholds given, then at the operating points, in their order."""
    mated_scores: NDArray[np.float32]
    """All mated scores, ascending."""

    @property
    def points(self) -> tuple[OperatingPoint, ...]:
        """Those at the FPR targets, in their order."""
        return tuple(table.point for table in self.tables if table.target is not None)


def _tpr(share: ClusteredShare) -> Estimate:
    """Return the TPR that an FNMR leaves."""
    own, total = share.interval(), share.comparisons
    interval = replace(own, low=1 - own.high, high=1 - own.low)
    return Estimate(1 - share.value, interval, total - share.events, total)


def _mated(images: NDArray[np.int64]) -> NDArray[np.int64]:
    return images * (images - 1) // 2
