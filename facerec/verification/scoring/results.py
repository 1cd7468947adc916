"""What the comparison of all pairs gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.curves import RocCurve, roc_from_counts
from facerec.statistics.operating_points import OperatingPoint
from facerec.verification.scoring.bins import BIN_EDGES


@dataclass(frozen=True, eq=False)
class ErrorTable:
    """Errors of all pairs at one threshold: in all, by identity, and by group of images."""

    threshold: float
    """Match if ``score >= threshold``; a float32 number."""
    target: str | None
    """The FPR that it realises, as it was asked for; None for a threshold that was given."""
    false_matches: int
    non_mated: int
    false_non_matches: int
    mated: int
    images: NDArray[np.int64]
    """Images of each identity, ``(G,)``."""
    missed: NDArray[np.int64]
    """False non-matches of each identity, ``(G,)``."""
    involved: NDArray[np.int64]
    """False matches in which each identity takes part, ``(G,)``; they sum to twice their number."""
    identities: csr_array | None
    """False matches between identities, ``(G, G)``: each counted once, above the diagonal (E + Eᵀ
    is the symmetric matrix); None if there are more than ``identity_limit`` false matches."""
    group_false_matches: NDArray[np.int64] | None
    """False matches between an image of group d and one of group e, ``(D, D)``, symmetric."""
    group_false_non_matches: NDArray[np.int64] | None
    """False non-matches between an image of group d and one of group e, ``(D, D)``, symmetric."""
    within: csr_array | None = None
    """Those of ``identities`` that are within a group, however many; None unless each group is
    looked at alone."""

    @property
    def fmr(self) -> float:
        """False match rate."""
        return self.false_matches / self.non_mated

    @property
    def fnmr(self) -> float:
        """False non-match rate."""
        return self.false_non_matches / self.mated

    def fmr_share(self) -> ClusteredShare:
        """Return the FMR with the sums over identities that its interval needs.

        Without the counts by pair of identities the sums within such pairs are taken for 0, which
        gives Hájek's variance: wider, and conservative for rare false matches.
        """
        if self.identities is not None:
            return ClusteredShare.from_images(self.identities, self.images)
        images = self.images.astype(np.float64)
        loads = images * (images.sum() - images)
        identities = images.size
        return ClusteredShare(
            events=self.false_matches,
            comparisons=self.non_mated,
            residuals=self.involved - self.fmr * loads,
            loads=loads,
            squares=0.0,
            mated_squares=0.0,
            disjoint=lambda: identities // 2,
        )

    def fnmr_share(self) -> ClusteredShare:
        """Return the FNMR with the sums over identities that its interval needs."""
        return ClusteredShare.from_mated_counts(self.missed, self.images * (self.images - 1) // 2)


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of images, and how many pairs there are between them."""

    names: tuple[str, ...]
    images: NDArray[np.int64]
    """Images in each group, ``(D,)``."""
    mated: NDArray[np.int64]
    """Mated pairs with one image in group d and the other in e, ``(D, D)``, symmetric."""
    non_mated: NDArray[np.int64]
    """Non-mated pairs with one image in group d and the other in e, ``(D, D)``, symmetric."""
    of_identity: NDArray[np.int64] | None
    """Group of each identity, ``(G,)``; None if an identity has images in several groups."""

    def fmr_share(self, table: ErrorTable, first: int, second: int) -> ClusteredShare | None:
        """Return the FMR between two groups, or within one, with its sums over identities.

        None where they are not known: an identity is in several groups, or the table has no counts
        by pair of identities; also where there are no such pairs.
        """
        counts = table.identities
        if counts is None and first == second:
            counts = table.within
        if self.of_identity is None or counts is None or not self.non_mated[first, second]:
            return None
        left, right = (np.flatnonzero(self.of_identity == group) for group in (first, second))
        if first == second:
            return ClusteredShare.from_images(counts[left][:, left], table.images[left])
        between = counts[left][:, right] + counts[right][:, left].T
        return ClusteredShare.from_images(between, table.images[left], table.images[right])

    def fnmr_share(self, table: ErrorTable, group: int) -> ClusteredShare | None:
        """Return the FNMR within a group with its sums over identities; None as for the FMR."""
        if self.of_identity is None or not self.mated[group, group]:
            return None
        members = self.of_identity == group
        images = table.images[members]
        return ClusteredShare.from_mated_counts(table.missed[members], images * (images - 1) // 2)


@dataclass(frozen=True, eq=False)
class GroupAlone:
    """What the comparison of the images of one group with each other found."""

    points: tuple[OperatingPoint, ...]
    """At the FPR targets for groups, in their order."""
    images: NDArray[np.int64]
    """Images of each identity of the group, ``(G,)``."""
    missed: NDArray[np.int64]
    """False non-matches of each identity at each point, ``(T, G)``."""
    genuine_histogram: NDArray[np.int64]
    """Mated scores in each bin of `BIN_EDGES`."""
    impostor_histogram: NDArray[np.int64]
    """Non-mated scores in each bin of `BIN_EDGES`."""

    def fnmr_share(self, point: int) -> ClusteredShare:
        """Return the FNMR at a point, given by its place, with the sums over identities."""
        comparisons = self.images * (self.images - 1) // 2
        return ClusteredShare.from_mated_counts(self.missed[point], comparisons)

    def roc(self) -> RocCurve:
        """Return the ROC at the lower edges of the bins, where it is exact."""
        return roc_from_counts(BIN_EDGES, self.genuine_histogram, self.impostor_histogram)


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
    """Label of each identity with a usable image, ``(G,)``, ascending."""
    images_per_subject: NDArray[np.int64]
    """Usable images of each identity, ``(G,)``."""
    points: tuple[OperatingPoint, ...]
    """At the FPR targets, in their order."""
    tables: tuple[ErrorTable, ...]
    """At the thresholds given, then at the operating points, in their order."""
    groups: Groups | None
    alone: tuple[GroupAlone | None, ...]
    """Each group by itself, None if it lacks mated or non-mated pairs; none of them without FPR
    targets for groups."""
    genuine: NDArray[np.float32] | None
    """All mated scores, ascending; None if there are more than ``genuine_limit``."""
    genuine_histogram: NDArray[np.int64]
    """Mated scores in each bin of `BIN_EDGES`."""
    impostor_histogram: NDArray[np.int64] | None
    """Non-mated scores in each bin of `BIN_EDGES`; None if no FPR target was given."""

    def roc(self) -> RocCurve | None:
        """Return the ROC at the lower edges of the bins, where it is exact; None without one."""
        if self.impostor_histogram is None:
            return None
        return roc_from_counts(BIN_EDGES, self.genuine_histogram, self.impostor_histogram)
