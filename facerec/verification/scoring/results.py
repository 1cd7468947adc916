"""What the comparison of all pairs gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from facerec.errors import MetricError
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.operating_points import OperatingPoint


@dataclass(frozen=True, eq=False)
class ErrorTable:
    """Errors of all pairs at one threshold: in all, by subject, and by group of images."""

    threshold: float
    """Match if ``score >= threshold``."""
    target: str | None
    """The FPR that it realises, as it was asked for; None for a threshold that was given."""
    false_matches: int
    non_mated: int
    false_non_matches: int
    mated: int
    images: NDArray[np.int64]
    """Images of each subject, ``(G,)``."""
    missed: NDArray[np.int64]
    """False non-matches of each subject, ``(G,)``."""
    involved: NDArray[np.int64]
    """False matches in which each subject takes part, ``(G,)``; twice their number in all."""
    by_pair: csr_array | None
    """False matches between subjects, ``(G, G)``: each counted once, above the diagonal (E + Eᵀ
    is the symmetric matrix); None if there are more than ``pair_limit`` false matches."""
    group_false_matches: NDArray[np.int64]
    """False matches between an image of group d and one of group e, ``(D, D)``, symmetric."""
    group_false_non_matches: NDArray[np.int64]
    """False non-matches between an image of group d and one of group e, ``(D, D)``, symmetric."""
    within: csr_array | None
    """Those between subjects of one group, however many; None unless each subject is in one."""

    def fmr_share(self) -> ClusteredShare:
        """Return the FMR with what its interval needs."""
        if self.by_pair is not None:
            return ClusteredShare.from_images(self.by_pair, self.images)
        return ClusteredShare.from_involved(self.false_matches, self.involved, self.images)

    def fnmr_share(self) -> ClusteredShare:
        """Return the FNMR with the sums over subjects that its interval needs."""
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
    of_subject: NDArray[np.int64] | None
    """Group of each subject, ``(G,)``; None if a subject has images in several groups."""

    @classmethod
    def count(
        cls, names: Sequence[str], subject: NDArray[np.int64], group: NDArray[np.int64]
    ) -> Groups:
        """Count the pairs between groups, given subject and group of each image, ``(N,)``."""
        ones = np.ones(group.size, np.int64)
        shape = int(subject.max()) + 1, len(names)
        members = csr_array((ones, (subject, group)), shape)
        images = np.bincount(group, minlength=len(names))
        # Ordered pairs of images, each with itself among them, by the groups of the two.
        same = np.asarray((members.T @ members).todense())
        total = np.multiply.outer(images, images)
        mated, pairs = same.copy(), total.copy()
        for counts in (mated, pairs):
            np.fill_diagonal(counts, (counts.diagonal() - images) // 2)
        one_each = members.nnz == shape[0]
        return cls(
            names=tuple(names),
            images=images,
            mated=mated,
            non_mated=pairs - mated,
            of_subject=members.indices.astype(np.int64) if one_each else None,
        )

    def fmr_share(self, table: ErrorTable, first: int, second: int) -> ClusteredShare | None:
        """Return the FMR between two groups, or within one, with its sums over subjects.

        None where they are not known: a subject is in several groups, or the table has no counts
        by pair of subjects; also where there are no such pairs.
        """
        counts = table.by_pair
        if counts is None and first == second:
            counts = table.within
        if self.of_subject is None or counts is None or not self.non_mated[first, second]:
            return None
        left, right = (np.flatnonzero(self.of_subject == group) for group in (first, second))
        if first == second:
            return ClusteredShare.from_images(counts[left][:, left], table.images[left])
        between = counts[left][:, right] + counts[right][:, left].T
        return ClusteredShare.from_images(between, table.images[left], table.images[right])

    def fnmr_share(self, table: ErrorTable, group: int) -> ClusteredShare | None:
        """Return the FNMR within a group with its sums over subjects; None as for the FMR."""
        if self.of_subject is None or not self.mated[group, group]:
            return None
        members = self.of_subject == group
        images = table.images[members]
        return ClusteredShare.from_mated_counts(table.missed[members], images * (images - 1) // 2)


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
    images_per_subject: NDArray[np.int64]
    """Usable images of each subject, ``(G,)``."""
    points: tuple[OperatingPoint, ...]
    """At the FPR targets, in their order."""
    tables: tuple[ErrorTable, ...]
    """At the thresholds given, then at the operating points, in their order."""
    groups: Groups | None
    mated_scores: NDArray[np.float32]
    """All mated scores, ascending."""


def pair_counts(images: NDArray[np.integer]) -> tuple[int, int]:
    """Return the numbers of mated and non-mated pairs, given the images of each subject."""
    total = int(images.sum())
    mated = int((images.astype(np.int64) * (images - 1) // 2).sum())
    return mated, total * (total - 1) // 2 - mated


def check_pairs(images: NDArray[np.integer], failures: int) -> None:
    """Refuse usable images, counted by subject, without a mated or without a non-mated pair."""
    mated, non_mated = pair_counts(images)
    if not mated or not non_mated:
        raise MetricError(
            f"{int(images.sum())} usable images of {len(images)} identities make {mated} mated and "
            f"{non_mated} non-mated pairs ({failures} images have no usable embedding); error "
            "rates need at least one of each"
        )


def symmetric(ordered: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return counts of unordered pairs of groups from those by (first, second), ``(D²,)``."""
    square = ordered.reshape([math.isqrt(ordered.size)] * 2)
    both = square + square.T
    np.fill_diagonal(both, square.diagonal())
    return both
