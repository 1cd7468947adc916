"""Errors and comparisons by group and by subject, counted among scored pairs or all pairs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array
from scipy.stats import binom

from facerec.errors import MetricError
from facerec.fairness.rate_results import (
    SCORE_EDGES,
    UNKNOWN,
    Exclusions,
    GroupComposition,
    IndependentShare,
    Share,
)
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.curves import RocCurve
from facerec.statistics.operating_points import OperatingPoint
from facerec.statistics.rates import sort_scores
from facerec.verification.scoring import AllPairs, ErrorTable, Groups, check_pairs


@dataclass(frozen=True, eq=False)
class SubjectCounts:
    """Errors and comparisons within one group at one threshold, by subject."""

    members: NDArray[np.int64]
    """Number of each subject of the group among all subjects, ``(G,)``."""
    false_matches: csr_array | None
    """``(G, G)``, each counted once; None if they are not known by subject."""
    non_mated: csr_array | None
    """Comparisons ``(G, G)``, each counted once; None if all images were compared with all."""
    images: NDArray[np.int64] | None
    """Images, ``(G,)``, where all were compared with all; None where ``non_mated`` is given."""
    missed: NDArray[np.int64]
    """False non-matches, ``(G,)``."""
    mated: NDArray[np.int64]
    """Mated comparisons, ``(G,)``."""

    def fmr_share(self) -> ClusteredShare | None:
        """Return the share of false matches; None if they are not known by subject."""
        if self.false_matches is None:
            return None
        if self.non_mated is not None:
            return ClusteredShare.from_counts(self.false_matches, self.non_mated)
        assert self.images is not None
        return ClusteredShare.from_images(self.false_matches, self.images)

    def fnmr_share(self) -> ClusteredShare:
        """Return the share of false non-matches."""
        return ClusteredShare.from_mated_counts(self.missed, self.mated)


@dataclass(frozen=True)
class PairCounts:
    """Errors and comparisons within one group at one threshold, where subjects are not known."""

    false_matches: int
    non_mated: int
    missed: int
    mated: int
    seed: tuple[int, ...]
    """Of the resamples of pairs, the same at all thresholds."""

    def resample(self, replicates: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return FMR and FNMR in resamples of the pairs, ``(R,)`` each.

        The errors among N pairs drawn with replacement are binomial. One set of quantiles serves
        all thresholds, so that a replicate is a high or low one at all of them.
        """
        quantiles = np.random.default_rng(self.seed).random((2, replicates))
        counts = (self.false_matches, self.non_mated), (self.missed, self.mated)
        fmr, fnmr = (
            binom.ppf(drawn, pairs, errors / pairs) / pairs
            for drawn, (errors, pairs) in zip(quantiles, counts, strict=True)
        )
        return fmr, fnmr

    def fmr_share(self) -> IndependentShare:
        """Return the share of false matches."""
        return IndependentShare(self.false_matches, self.non_mated)

    def fnmr_share(self) -> IndependentShare:
        """Return the share of false non-matches."""
        return IndependentShare(self.missed, self.mated)


class LabelledImages:
    """Subjects and groups of images, checked."""

    def __init__(self, subject: ArrayLike, group: ArrayLike, names: Sequence[str]) -> None:
        self.subject, self.group = np.asarray(subject), np.asarray(group)
        self.names = tuple(names)
        for codes, what in ((self.subject, "subjects"), (self.group, "groups")):
            if codes.ndim != 1 or codes.dtype.kind not in "iu":
                raise MetricError(
                    f"{what} of images must be whole numbers (m,), found {codes.dtype} of shape "
                    f"{codes.shape}"
                )
        if self.subject.shape != self.group.shape:
            raise MetricError(
                f"{self.subject.size} images have a subject but {self.group.size} a group; give "
                "one each an image"
            )
        if self.group.size and not UNKNOWN <= self.group.min() <= self.group.max() < len(names):
            raise MetricError(
                f"groups {self.group.min()} to {self.group.max()} do not fit {len(names)} names; "
                f"codes run from 0, and {UNKNOWN} is unknown"
            )
        self.known = (self.subject >= 0) & (self.group >= 0)
        self._refuse_two_groups()

    def _refuse_two_groups(self) -> None:
        subject, group = self.subject[self.known], self.group[self.known]
        pairs = np.unique(np.stack([subject, group], axis=1), axis=0)
        repeated = np.flatnonzero(pairs[1:, 0] == pairs[:-1, 0])
        if repeated.size:
            at = int(repeated[0])
            one, other = (self.names[code] for code in pairs[at : at + 2, 1])
            raise MetricError(
                f"subject {pairs[at, 0]} has images in the groups {one!r} and {other!r}; a subject "
                "counts in one group, so correct the table or leave the subject out"
            )


@dataclass(frozen=True, eq=False)
class ErrorCounts:
    """Errors at one threshold, counted."""

    false_matches: NDArray[np.int64]
    """Between groups, symmetric ``(D, D)``."""
    non_mated: NDArray[np.int64]
    missed: NDArray[np.int64]
    """Within groups, ``(D,)``."""
    mated: NDArray[np.int64]
    fmr_shares: Mapping[tuple[int, int], Share | None]
    """By groups d ≤ e."""
    fnmr_shares: Sequence[Share | None]
    overall: tuple[Share, Share]
    """FMR and FNMR of everybody."""
    counts: tuple[SubjectCounts | PairCounts, ...]


@dataclass(frozen=True, eq=False)
class GroupAlone:
    """A group compared with itself only."""

    roc: RocCurve
    mated: NDArray[np.int64]
    """Mated pairs in each bin of `SCORE_EDGES`."""
    non_mated: NDArray[np.int64]
    points: Sequence[OperatingPoint]
    shares: Sequence[Share | None]
    """FNMR at the points."""


class ScoredPairs:
    """The pairs of a list whose subjects and groups are known, and that have a score."""

    def __init__(
        self,
        scores: ArrayLike,
        first: ArrayLike,
        second: ArrayLike,
        issame: ArrayLike,
        labelled: LabelledImages,
        independent: int | None,
    ) -> None:
        self._independent = independent
        values, sides, same = _check_pairs(scores, first, second, issame, labelled.subject.size)
        known = labelled.known[sides].all(axis=0)
        one = labelled.subject[sides[0]] == labelled.subject[sides[1]]
        contradictory = known & (one != same)
        used = known & ~contradictory
        self.excluded = Exclusions(
            mated=int(np.count_nonzero(~known & same)),
            non_mated=int(np.count_nonzero(~known & ~same)),
            unknown=0,
            contradictory=int(np.count_nonzero(contradictory)),
        )
        self._labelled = labelled
        scored = used & ~np.isnan(values)
        self._lost = sides[:, used & ~scored], same[used & ~scored]
        self._images = np.unique(sides[:, used])
        self.scores, self.same = values[scored], same[scored]
        self._sides = sides[:, scored]
        if self.same.all() or not self.same.any():
            raise MetricError(
                f"{int(self.same.sum())} mated and {int((~self.same).sum())} non-mated pairs have "
                f"a score and known groups ({len(same)} pairs in the list); error rates by group "
                "need both kinds"
            )
        numbers, index = np.unique(labelled.subject[self._sides], return_inverse=True)
        self._left, self._right = index.reshape(2, -1)
        self.group_of = np.empty(numbers.size, np.int64)
        self.group_of[index.reshape(2, -1)] = labelled.group[self._sides]
        self._groups = self.group_of[self._left], self.group_of[self._right]

    def composition(self) -> tuple[GroupComposition, ...]:
        """Describe all groups."""
        labelled = self._labelled
        lost, lost_same = self._lost
        described = []
        for code, name in enumerate(labelled.names):
            members = self._images[labelled.group[self._images] == code]
            subjects = np.unique(labelled.subject[members]).size
            scored = _kinds(self._within(code), self.same)
            unscored = _kinds((labelled.group[lost] == code).all(axis=0), lost_same)
            described.append(GroupComposition(name, subjects, *scored, *unscored))
        return tuple(described)

    def errors(self, threshold: float) -> ErrorCounts:
        """Count the errors at a threshold."""
        # A float32 score is widened; the threshold is never rounded to it.
        accepted = self.scores >= np.float64(threshold)
        left, right, size = self._left, self._right, len(self._labelled.names)
        other, same = ~self.same, self.same
        low, high = np.minimum(*self._groups), np.maximum(*self._groups)
        shares: dict[tuple[int, int], Share | None] = {}
        for cell in itertools.combinations_with_replacement(range(size), 2):
            mask = other & (low == cell[0]) & (high == cell[1])
            shares[cell] = self._share(accepted[mask], left[mask], right[mask])
        mated = [same & (low == code) for code in range(size)]
        return ErrorCounts(
            false_matches=_between(low, high, other & accepted, size),
            non_mated=_between(low, high, other, size),
            missed=np.array([np.count_nonzero(~accepted[mask]) for mask in mated]),
            mated=np.array([np.count_nonzero(mask) for mask in mated]),
            fmr_shares=shares,
            fnmr_shares=[self._share(~accepted[mask], left[mask], left[mask]) for mask in mated],
            overall=(
                self._known_share(accepted[other], left[other], right[other]),
                self._known_share(~accepted[same], left[same], left[same]),
            ),
            counts=tuple(self._counts(code, accepted) for code in range(size)),
        )

    def _known_share(
        self,
        events: NDArray[np.bool_],
        first: NDArray[np.integer],
        second: NDArray[np.integer],
    ) -> Share:
        if self._independent is not None:
            return IndependentShare(int(events.sum()), events.size)
        return ClusteredShare.from_pairs(events, first, second)

    def _share(
        self,
        events: NDArray[np.bool_],
        first: NDArray[np.integer],
        second: NDArray[np.integer],
    ) -> Share | None:
        return self._known_share(events, first, second) if events.size else None

    def _counts(self, code: int, accepted: NDArray[np.bool_]) -> SubjectCounts | PairCounts:
        within = self._within(code)
        if self._independent is not None:
            mated, other = within & self.same, within & ~self.same
            return PairCounts(
                false_matches=int(np.count_nonzero(other & accepted)),
                non_mated=int(np.count_nonzero(other)),
                missed=int(np.count_nonzero(mated & ~accepted)),
                mated=int(np.count_nonzero(mated)),
                seed=(self._independent, code),
            )
        members = np.flatnonzero(self.group_of == code)
        position = np.zeros(self.group_of.size, np.int64)
        position[members] = np.arange(members.size)
        shape = members.size, members.size

        def by_pair(mask: NDArray[np.bool_]) -> csr_array:
            cells = position[self._left[mask]], position[self._right[mask]]
            return coo_array((np.ones(cells[0].size, np.int64), cells), shape).tocsr()

        def by_subject(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
            return np.bincount(position[self._left[mask]], minlength=members.size)

        return SubjectCounts(
            members=members,
            false_matches=by_pair(within & ~self.same & accepted),
            non_mated=by_pair(within & ~self.same),
            images=None,
            missed=by_subject(within & self.same & ~accepted),
            mated=by_subject(within & self.same),
        )

    def _within(self, code: int) -> NDArray[np.bool_]:
        return (self._groups[0] == code) & (self._groups[1] == code)

    def alone(self, code: int, targets: Sequence[str]) -> GroupAlone | None:
        """Look at the pairs within one group only; None if it lacks one kind of pairs."""
        within = self._within(code)
        mated, non_mated = within & self.same, within & ~self.same
        if not mated.any() or not non_mated.any():
            return None
        figures = sort_scores(self.scores[mated], self.scores[non_mated])
        points = [figures.tpr_at_fpr(target) for target in targets]
        left = self._left[mated]
        # A cosine may be rounded to just above 1.
        cosines = np.clip(self.scores, -1, 1)
        return GroupAlone(
            figures.roc(),
            np.histogram(cosines[mated], SCORE_EDGES)[0],
            np.histogram(cosines[non_mated], SCORE_EDGES)[0],
            points,
            # NaN, which nothing reaches, rejects all.
            [
                self._share(~(self.scores[mated] >= np.float64(point.threshold)), left, left)
                for point in points
            ],
        )


class EveryPair:
    """All pairs of the images whose subject and group are known."""

    def __init__(
        self, labelled: LabelledImages, failures: NDArray[np.int64], pairs: AllPairs
    ) -> None:
        self._labelled, self.pairs = labelled, pairs
        self._failed = np.zeros(labelled.subject.size, bool)
        self._failed[failures] = True
        check_pairs(pairs.images_per_subject, int(np.count_nonzero(self._failed & labelled.known)))
        assert pairs.groups is not None
        self._groups: Groups = pairs.groups
        self._positions = {int(name): position for position, name in enumerate(self._groups.names)}

    def excluded(self) -> Exclusions:
        """Count the pairs that images without subject or group would make."""
        subject, known = self._labelled.subject, self._labelled.known
        named = subject >= 0
        of_named, of_known = (
            _pair_counts(np.unique(subject[mask], return_counts=True)[1]) for mask in (named, known)
        )
        total = len(subject) * (len(subject) - 1) // 2
        return Exclusions(
            mated=of_named[0] - of_known[0],
            non_mated=of_named[1] - of_known[1],
            unknown=total - sum(of_named),
            contradictory=0,
        )

    def composition(self) -> tuple[GroupComposition, ...]:
        """Describe all groups."""
        labelled = self._labelled
        described = []
        for code, name in enumerate(labelled.names):
            members = np.flatnonzero(labelled.known & (labelled.group == code))
            subject, gone = labelled.subject[members], self._failed[members]
            pairs, scored = (
                _pair_counts(np.unique(codes, return_counts=True)[1])
                for codes in (subject, subject[~gone])
            )
            lost = pairs[0] - scored[0], pairs[1] - scored[1]
            described.append(GroupComposition(name, np.unique(subject).size, *scored, *lost))
        return tuple(described)

    def alone(self, code: int) -> GroupAlone | None:
        """Return what one group alone gives; None if it lacks a kind of pairs."""
        at = self._positions.get(code)
        group = None if at is None else self.pairs.alone[at]
        if group is None:
            return None
        return GroupAlone(
            group.roc(),
            _coarse(group.mated_histogram),
            _coarse(group.non_mated_histogram),
            group.points,
            [group.fnmr_share(point) for point in range(len(group.points))],
        )

    def errors(self, table: ErrorTable) -> ErrorCounts:
        """Take the counts at one threshold out of a table."""
        size = len(self._labelled.names)
        present = np.array(sorted(self._positions), np.int64)
        assert table.group_false_matches is not None and table.group_false_non_matches is not None
        cells = np.ix_(present, present)
        square = np.zeros((3, size, size), np.int64)
        square[0][cells] = table.group_false_matches
        square[1][cells] = self._groups.non_mated
        square[2][cells] = self._groups.mated
        missed = np.zeros(size, np.int64)
        missed[present] = table.group_false_non_matches.diagonal()
        shares: dict[tuple[int, int], ClusteredShare | None] = {}
        for first, second in itertools.combinations_with_replacement(range(size), 2):
            share = None
            if first in self._positions and second in self._positions:
                at = self._positions[first], self._positions[second]
                share = self._groups.fmr_share(table, *at)
            shares[first, second] = share
        return ErrorCounts(
            false_matches=square[0],
            non_mated=square[1],
            missed=missed,
            mated=square[2].diagonal(),
            fmr_shares=shares,
            fnmr_shares=[
                self._groups.fnmr_share(table, self._positions[code])
                if code in self._positions
                else None
                for code in range(size)
            ],
            overall=(table.fmr_share(), table.fnmr_share()),
            counts=tuple(self._counts(code, table) for code in range(size)),
        )

    def _counts(self, code: int, table: ErrorTable) -> SubjectCounts:
        of_subject = self._groups.of_subject
        assert of_subject is not None  # a subject is in one group
        members = np.flatnonzero(of_subject == self._positions.get(code, UNKNOWN))
        assert table.within is not None  # as groups are looked at alone
        images = table.images[members]
        return SubjectCounts(
            members=members,
            false_matches=table.within[members][:, members],
            non_mated=None,
            images=images,
            missed=table.missed[members],
            mated=images * (images - 1) // 2,
        )


def _check_pairs(
    scores: ArrayLike, first: ArrayLike, second: ArrayLike, issame: ArrayLike, images: int
) -> tuple[NDArray[np.floating], NDArray[np.integer], NDArray[np.bool_]]:
    values, same = np.asarray(scores), np.asarray(issame, dtype=bool)
    left, right = np.asarray(first), np.asarray(second)
    if values.ndim != 1 or not values.shape == left.shape == right.shape == same.shape:
        raise MetricError(
            f"scores, sides and labels of pairs have shapes {values.shape}, {left.shape}, "
            f"{right.shape} and {same.shape}; give one each a pair"
        )
    sides = np.stack([left, right])
    if sides.size and not 0 <= sides.min() <= sides.max() < images:
        raise MetricError(
            f"pairs name the images {sides.min()} to {sides.max()}, but {images} images have a "
            "subject and a group"
        )
    return values, sides, same


def _between(
    low: NDArray[np.integer], high: NDArray[np.integer], mask: NDArray[np.bool_], size: int
) -> NDArray[np.int64]:
    """Count pairs between groups, symmetric ``(D, D)``."""
    counts = np.bincount(low[mask] * size + high[mask], minlength=size * size).reshape(size, size)
    return counts + np.triu(counts, 1).T


def _kinds(mask: NDArray[np.bool_], same: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the numbers of mated and non-mated pairs in a part of them."""
    return int(np.count_nonzero(mask & same)), int(np.count_nonzero(mask & ~same))


def _pair_counts(images: NDArray[np.integer]) -> tuple[int, int]:
    """Return the numbers of mated and non-mated pairs, given the images of each subject."""
    total = int(images.sum())
    mated = int((images * (images - 1) // 2).sum())
    return mated, total * (total - 1) // 2 - mated


def _coarse(histogram: NDArray[np.int64]) -> NDArray[np.int64]:
    """Join bins of `facerec.verification.scoring.BIN_EDGES` to those of `SCORE_EDGES`."""
    counts = histogram[:-1].reshape(SCORE_EDGES.size - 1, -1).sum(axis=1)
    counts[-1] += histogram[-1]
    return counts
