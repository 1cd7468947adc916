"""Error rates by group of subjects at one threshold for all, from scored pairs or from all pairs.

A pair matches if ``score >= threshold``. FMR and FNMR of a group count pairs within the group. One
global threshold comes from calibration data, or else from the impostors of everybody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from facerec.defaults import FMR_TARGETS
from facerec.errors import MetricError
from facerec.fairness.pair_counts import (
    UNKNOWN,
    GroupedImages,
    rate,
)
from facerec.progress import Progress
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.operating_points import OperatingPoint, parse_rate
from facerec.statistics.rates import operating_points
from facerec.verification.scoring import AllPairs, ErrorTable, score_all_pairs

POOLED = "this data: non-mated pairs within and between all groups pooled"
"""Source of thresholds that were not fixed on other data."""

Rows = NDArray[np.int64]
Shares = tuple[ClusteredShare | None, ClusteredShare | None]
Labels = tuple[ArrayLike, Sequence[str]]
"""Code of the group of each image, 0 to D − 1 or `UNKNOWN`, ``(m,)``, and names of the groups."""


@dataclass(frozen=True)
class Calibration:
    """Operating points at which the global thresholds are fixed."""

    source: str
    """What they come from, such as a file."""
    points: tuple[OperatingPoint, ...]

    def at(self, targets: Sequence[str]) -> Calibration:
        """Return the operating points of these targets.

        Raises:
            MetricError: one is not among the points.
        """
        known = {parse_rate(point.target): point for point in self.points}
        lacking = [target for target in targets if parse_rate(target) not in known]
        if lacking:
            raise MetricError(
                f"{self.source}: it has no threshold for FMR {lacking[0]}; found "
                f"{', '.join(point.target for point in self.points) or 'none'}"
            )
        return replace(self, points=tuple(known[parse_rate(target)] for target in targets))


@dataclass(frozen=True, eq=False)
class ErrorsAt:
    """Errors by group at one global threshold."""

    point: OperatingPoint
    """Target, threshold, and what it was fixed on."""
    fmr: tuple[Estimate, ...]
    """Of each group, among pairs of two of its subjects."""
    fnmr: tuple[Estimate, ...]
    between: Mapping[tuple[int, int], Estimate]
    """FMR of pairs of two groups d < e."""
    overall: tuple[Estimate, Estimate]
    """FMR and FNMR of everybody."""
    shares: tuple[Shares, ...]
    """FMR and FNMR of each group and of everybody, with what each subject adds to them."""

    @classmethod
    def of(
        cls,
        point: OperatingPoint,
        shares: Sequence[Shares],
        between: Mapping[tuple[int, int], Estimate],
    ) -> ErrorsAt:
        """Give rates their intervals; the last shares are those of everybody."""
        fmr, fnmr = (tuple(rate(share) for share in kind) for kind in zip(*shares, strict=True))
        return cls(point, fmr[:-1], fnmr[:-1], between, (fmr[-1], fnmr[-1]), tuple(shares))


@dataclass(frozen=True, eq=False)
class GroupErrors:
    """Errors by group at all targets."""

    names: tuple[str, ...]
    group_subjects: tuple[int, ...]
    """Subjects of each group that take part."""
    points: tuple[ErrorsAt, ...]
    calibration: Calibration
    """That fixes the thresholds, to use them for other groups too."""
    subjects: int
    """Subjects in all, as shares number them; 0 where they are not known."""


@dataclass(frozen=True, eq=False)
class PairList:
    """Scored pairs of images."""

    name: str
    scores: NDArray[np.floating]
    """``(n,)``, NaN where there is none."""
    sides: Rows
    """Images of each pair, ``(2, n)``."""
    same: NDArray[np.bool_]
    """Whether each pair is labelled mated, ``(n,)``."""
    subject: Rows
    """Code of the subject of each image, ``(m,)``; `UNKNOWN` where not known."""
    independent: bool = False
    """Whether subjects tell mated pairs from others and nothing more, so that every pair stands for
    itself."""

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Pairs of known subjects that do not contradict the label, ``(n,)``."""
        sides = self.subject[self.sides]
        return (sides != UNKNOWN).all(axis=0) & ((sides[0] == sides[1]) == self.same)

    def mated(self) -> tuple[NDArray[np.floating], Rows, Rows]:
        """Return scores and sides of the mated pairs whose label the subjects do not contradict."""
        used = self.usable & self.same
        return self.scores[used], self.sides[0, used], self.sides[1, used]


def fix_thresholds(
    scores: NDArray[np.floating], same: NDArray[np.bool_], targets: Sequence[str], source: str
) -> Calibration:
    """Fix thresholds on labelled scores, ``(n,)`` each.

    Raises:
        MetricError: no mated or no impostor score, or an impossible target.
    """
    there = ~np.isnan(scores)
    points = operating_points(scores[there & same], scores[there & ~same], targets)
    pairs = points[0].non_mated if points else 0
    return Calibration(f"{source}: {pairs:,} non-mated pairs pooled", tuple(points))


def calibrate(
    vectors: NDArray[np.floating],
    subject: ArrayLike,
    targets: Sequence[str],
    source: str = "this data",
    *,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Calibration:
    """Fix thresholds on the impostors among all pairs of images.

    Args:
        vectors: raw embeddings, ``(m, D)``.
        subject: number or name of the subject on each image, ``(m,)``.
        targets: nominal FMRs.
        source: names these data in reports.
        device: where scores are computed.
        progress: see `facerec.progress.Progress`.

    Raises:
        MetricError: no mated or no non-mated pair, or an impossible target.
        DeviceError: the device is not there.
    """
    pairs = score_all_pairs(vectors, subject, fpr=targets, device=device, progress=progress)
    return Calibration(f"{source}: {pairs.non_mated:,} non-mated pairs pooled", pairs.points)


# --- pairs of a list --------------------------------------------------------------------------


def listed_rates(
    pairs: PairList,
    groupings: Sequence[Labels],
    *,
    targets: Sequence[str] = FMR_TARGETS,
    calibration: Calibration | None = None,
    family: Rows | None = None,
) -> list[GroupErrors | MetricError]:
    """Count errors by the groups of each grouping among the pairs of a list.

    By default the thresholds are fixed on all pairs of known subjects of the list. Families of
    subjects, ``(G,)``, are left out as a whole for the intervals.

    Returns:
        One a grouping; an error where it has no mated or no non-mated pair.

    Raises:
        MetricError: a subject in two groups, a target that is no rate or that the calibration
            lacks, or no mated or no non-mated pair.
    """
    if calibration is None:
        used = pairs.usable
        source = f"this data, {pairs.name}"
        calibration = fix_thresholds(pairs.scores[used], pairs.same[used], targets, source)
    fixed = calibration.at(targets)
    results: list[GroupErrors | MetricError] = []
    for group, names in groupings:
        labelled = GroupedImages(pairs.subject, group, names)
        try:
            results.append(_ListedErrors(pairs, labelled, family).errors(fixed))
        except MetricError as problem:
            results.append(problem)
    return results


class _ListedErrors:
    """The pairs of a list whose subjects and groups are known, and that have a score."""

    def __init__(self, pairs: PairList, labelled: GroupedImages, family: Rows | None) -> None:
        known = labelled.known[pairs.sides].all(axis=0)
        used = known & pairs.usable & ~np.isnan(pairs.scores)
        self.names, self.independent = labelled.names, pairs.independent
        self.scores, self.same = pairs.scores[used], pairs.same[used]
        if self.same.all() or not self.same.any():
            raise MetricError(
                f"{int(self.same.sum())} mated and {int((~self.same).sum())} non-mated pairs have "
                f"a score and known groups ({len(pairs.same)} pairs in the list); error rates by "
                "group need both kinds"
            )
        sides = pairs.sides[:, used]
        numbers, index = np.unique(labelled.subject[sides], return_inverse=True)
        self.left, self.right = index.reshape(2, -1)
        self.family = None if family is None or pairs.independent else family[numbers]
        self.group_of = np.empty(numbers.size, np.int64)
        self.group_of[index.reshape(2, -1)] = labelled.group[sides]
        first, second = self.group_of[self.left], self.group_of[self.right]
        self.low, self.high = np.minimum(first, second), np.maximum(first, second)

    def errors(self, fixed: Calibration) -> GroupErrors:
        """Count the errors at all thresholds."""
        size = len(self.names)
        return GroupErrors(
            self.names,
            tuple(np.bincount(self.group_of, minlength=size).tolist()),
            tuple(self._at(point) for point in fixed.points),
            fixed,
            0 if self.independent else self.group_of.size,
        )

    def _at(self, point: OperatingPoint) -> ErrorsAt:
        # A float32 score is widened; the threshold is never rounded to it.
        accepted = self.scores >= np.float64(point.threshold)
        other, same, size = ~self.same, self.same, len(self.names)

        def fmr(d: int, e: int) -> ClusteredShare | None:
            return self._share(accepted, other & (self.low == d) & (self.high == e))

        def fnmr(d: int) -> ClusteredShare | None:
            return self._share(~accepted, same & (self.low == d))

        shares = [(fmr(d, d), fnmr(d)) for d in range(size)]
        shares.append((self._share(accepted, other), self._share(~accepted, same)))
        pairs = itertools.combinations(range(size), 2)
        return ErrorsAt.of(point, shares, {cell: rate(fmr(*cell)) for cell in pairs})

    def _share(self, events: NDArray[np.bool_], of: NDArray[np.bool_]) -> ClusteredShare | None:
        if not of.any():
            return None
        sides = self.left[of], self.right[of]
        if self.independent:
            return ClusteredShare.from_pairs(events[of], *(np.arange(sides[0].size),) * 2)
        share = ClusteredShare.from_pairs(events[of], *sides)
        return _among(share, np.arange(share.changes.size), self.group_of.size, self.family)


# --- all pairs --------------------------------------------------------------------------------


def all_pairs_rates(
    vectors: ArrayLike,
    subject: ArrayLike,
    groupings: Sequence[Labels],
    *,
    targets: Sequence[str] = FMR_TARGETS,
    calibration: Calibration | None = None,
    family: Rows | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> list[GroupErrors | MetricError]:
    """Compare every image with every other once, and count errors by the groups of each grouping.

    By default the thresholds are fixed on the impostors of all images with a subject, whether they
    have a group or not.

    Args:
        vectors: raw embeddings, ``(m, D)``; rows that are zero or not finite are failures.
        subject: code of the subject on each image, ``(m,)``; `UNKNOWN` where not known.
        groupings: codes of groups, and their names; images without one take no part.
        targets: nominal FMRs, taken exactly.
        calibration: where the thresholds were fixed.
        family: of each subject, ``(G,)``, left out as a whole for the intervals; by default each
            subject alone.
        device: where scores are computed.
        progress: see `facerec.progress.Progress`.

    Returns:
        One a grouping; an error where it has no mated or no non-mated pair.

    Raises:
        MetricError: arrays that do not fit, a subject in two groups of a grouping, a target that is
            no rate, or no mated or no non-mated pair at all.
        DeviceError: the device is not there.
    """
    labelled = [GroupedImages(subject, group, names) for group, names in groupings]
    raw, of = np.asarray(vectors), labelled[0].subject
    if raw.shape[:1] != of.shape:
        raise MetricError(
            f"there are {raw.shape[:1]} embeddings but {of.size} subjects and groups; give one "
            "each an image"
        )
    if calibration is not None:
        calibration = calibration.at(targets)
    if calibration is None and (len(labelled) > 1 or not labelled[0].known[of >= 0].all()):
        calibration = calibrate(
            raw[of >= 0], of[of >= 0], targets, device=device, progress=progress
        )
        if labelled[0].known[of >= 0].all():
            calibration = replace(calibration, source=POOLED)
    results: list[GroupErrors | MetricError] = []
    for one in labelled:
        try:
            results.append(_grouped_rates(raw, one, targets, calibration, family, device, progress))
        except MetricError as problem:
            # Without a calibration its pairs are all that there are.
            if calibration is None:
                raise
            results.append(problem)
    return results


def _grouped_rates(
    raw: NDArray,
    labelled: GroupedImages,
    targets: Sequence[str],
    calibration: Calibration | None,
    family: Rows | None,
    device: str | torch.device,
    progress: Progress | None,
) -> GroupErrors:
    """Compare the images with a group with each other."""
    points = () if calibration is None else calibration.points
    rows = np.flatnonzero(labelled.known)
    pairs = score_all_pairs(
        raw[rows],
        labelled.subject[rows],
        fpr=targets if calibration is None else (),
        # Both +∞ and NaN, which is not taken, reject every cosine.
        thresholds=[
            math.inf if math.isnan(point.threshold) else point.threshold for point in points
        ],
        groups=labelled.group[rows],
        device=device,
        progress=progress,
    )
    calibration = calibration or Calibration(POOLED, pairs.points)
    codes = range(len(labelled.names))
    members = [labelled.subject[labelled.group == code] for code in codes]
    return GroupErrors(
        labelled.names,
        tuple(np.unique(subjects[subjects >= 0]).size for subjects in members),
        tuple(
            _every_pair(labelled.names, pairs, table, point, family)
            for table, point in zip(pairs.tables, calibration.points, strict=True)
        ),
        calibration,
        pairs.subjects.size,
    )


def _every_pair(
    names: tuple[str, ...],
    pairs: AllPairs,
    table: ErrorTable,
    point: OperatingPoint,
    family: Rows | None,
) -> ErrorsAt:
    """Take the counts at one threshold out of a table."""
    groups = pairs.groups
    assert groups is not None and groups.of_subject is not None  # a subject is in one group
    assert table.within is not None
    of_subject, within, size = groups.of_subject, table.within, len(names)
    of_family = None if family is None else family[pairs.subjects.astype(np.int64)]
    # A group whose images all failed to be acquired has no position.
    positions = {int(name): position for position, name in enumerate(groups.names)}

    def between(first: int, second: int) -> Estimate:
        if first not in positions or second not in positions:
            return rate(None)
        at = positions[first], positions[second]
        share = groups.fmr_share(table, *at)
        return rate(share, table.group_false_matches[at], groups.non_mated[at])

    def shares(code: int) -> Shares:
        at = positions.get(code, UNKNOWN)
        if at == UNKNOWN:
            return None, None
        members = np.flatnonzero(of_subject == at)
        whole = of_subject.size
        images = table.images[members]
        fmr = None
        if groups.non_mated[at, at]:
            fmr = ClusteredShare.from_images(within[members][:, members], images)
        fnmr = groups.fnmr_share(table, at)
        return _among(fmr, members, whole, of_family), _among(fnmr, members, whole, of_family)

    of_groups = [shares(code) for code in range(size)]
    all_of_them = np.arange(of_subject.size)
    everybody = (
        _among(table.fmr_share(), all_of_them, of_subject.size, of_family),
        _among(table.fnmr_share(), all_of_them, of_subject.size, of_family),
    )
    crossing = {cell: between(*cell) for cell in itertools.combinations(range(size), 2)}
    return ErrorsAt.of(point, [*of_groups, everybody], crossing)


def _among(
    share: ClusteredShare | None, members: Rows, whole: int, family: Rows | None
) -> ClusteredShare | None:
    """Number what each subject adds among all subjects, or their families."""
    if share is None:
        return None
    changes = np.zeros(whole)
    changes[members] = share.changes
    share = replace(share, changes=changes)
    return share if family is None else share.by_family(family)
