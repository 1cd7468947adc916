"""Error rates by group of subjects at one threshold for all, from scored pairs or from all pairs.

A pair matches if ``score >= threshold``. FMR and FNMR of a group count pairs within the group. One
global threshold comes from other data, or else from the impostors of everybody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from facerec.base.defaults import FMR_TARGETS
from facerec.base.errors import MetricError
from facerec.base.large_arrays import take
from facerec.base.progress import Progress
from facerec.fairness.groupings import UNKNOWN, Grouping
from facerec.fairness.rows import GIVEN, At
from facerec.report import words
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.operating_points import OperatingPoint
from facerec.statistics.rates import roc_curve
from facerec.verification.scoring import AllPairs, score_all_pairs
from facerec.verification.scoring.all_pairs import MOST_BY_PAIR

HERE = "this data"
"""Source of thresholds that were not fixed on other data."""

Of = Literal["FMR", "FNMR"]
Codes = NDArray[np.int64]
GroupShare = ClusteredShare | None
"""A rate with what leaving each subject out adds to it, ``(G,)``; None without comparisons."""


@dataclass(frozen=True)
class GivenThreshold(OperatingPoint):
    """A threshold that was given: of its target, itself as text, no rate is known."""

    resolvable = True


@dataclass(frozen=True)
class Thresholds:
    """Operating points at which the global thresholds are fixed."""

    source: str
    """What they come from, such as a file."""
    points: tuple[OperatingPoint, ...]


@dataclass(frozen=True, eq=False)
class ErrorsAt:
    """Errors by group at one global threshold; a group's are those of pairs within it."""

    point: OperatingPoint
    """Target, threshold, and what it was fixed on."""
    fmr: tuple[GroupShare, ...]
    """FMR of each group, and at last of all that have one."""
    fnmr: tuple[GroupShare, ...]
    """Each person weighs alike, however many photos there are of them."""
    fnmr_of_pairs: tuple[GroupShare, ...]
    """Each mated pair weighs alike: who has many photos outweighs others."""
    between: Mapping[tuple[int, int], GroupShare]
    """FMR of pairs of two groups d < e."""

    @property
    def at(self) -> At:
        """What rows of these errors say of the threshold."""
        return At(self.point.target, GIVEN if isinstance(self.point, GivenThreshold) else "")

    def of(self, rate: Of) -> tuple[GroupShare, ...]:
        """Return one of the rates."""
        return self.fmr if rate == "FMR" else self.fnmr


@dataclass(frozen=True, eq=False)
class GroupErrors:
    """Errors by group at all targets."""

    grouping: Grouping
    group_subjects: tuple[int, ...]
    """Subjects of each group that take part."""
    points: tuple[ErrorsAt, ...]
    thresholds: Thresholds
    lacking: str = ""
    """Why nothing could be counted."""


@dataclass(frozen=True, eq=False)
class ListedPairs:
    """Scored pairs of images."""

    name: str
    scores: NDArray[np.floating]
    """``(n,)``, NaN where there is none."""
    sides: Codes
    """Images of each pair, ``(2, n)``."""
    same: NDArray[np.bool_]
    """Whether each pair is labelled mated, ``(n,)``."""
    subject: Codes
    """Code of the subject of each image, ``(N,)``; `UNKNOWN` where not known."""
    independent: bool = False
    """Whether subjects tell mated pairs from others and nothing more, so that every pair stands for
    itself."""

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which pairs are `usable`, ``(n,)``."""
        return usable(self.sides, self.same, self.subject)

    def mated(self) -> tuple[NDArray[np.floating], Codes]:
        """Return scores and sides of the mated pairs whose label the subjects do not contradict."""
        used = self.usable & self.same
        return self.scores[used], self.sides[:, used]


def usable(sides: Codes, same: NDArray[np.bool_], subject: Codes) -> NDArray[np.bool_]:
    """Return which pairs have two images of known subjects that do not contradict the label."""
    first, second = subject[sides]
    known = (first != UNKNOWN) & (second != UNKNOWN)
    return (sides[0] != sides[1]) & known & ((first == second) == same)


def pooled(source: str, points: Sequence[OperatingPoint]) -> Thresholds:
    """Return the thresholds of points that all have the same non-mated pairs.

    Args:
        source: names these data in reports.
        points: of their ROC.
    """
    pairs = points[0].non_mated if points else 0
    return Thresholds(f"{source}: {pairs:,} non-mated pairs pooled", tuple(points))


def fix_thresholds(
    scores: NDArray[np.floating], same: NDArray[np.bool_], targets: Sequence[str], source: str
) -> Thresholds:
    """Return the thresholds that labelled scores, ``(n,)`` each, fix.

    Raises:
        MetricError: no mated or no impostor score, or an impossible target.
    """
    there = ~np.isnan(scores)
    roc = roc_curve(scores[there & same], scores[there & ~same])
    return pooled(source, list(map(roc.tpr_at_fpr, targets)))


def listed_rates(
    pairs: ListedPairs,
    groupings: Sequence[Grouping],
    *,
    targets: Sequence[str] = FMR_TARGETS,
    thresholds: Thresholds | None = None,
    given: float | None = None,
    family: Codes | None = None,
) -> list[GroupErrors]:
    """Count errors by the groups of each grouping among the pairs of a list.

    By default the thresholds are fixed on all pairs of known subjects of the list; one that was
    ``given`` comes before them. Families of subjects, ``(G,)``, are left out as a whole for the
    intervals.

    Raises:
        MetricError: a target that is no rate, or no mated or no non-mated pair.
    """
    if thresholds is None:
        used = pairs.usable
        source = f"{HERE}, {pairs.name}"
        thresholds = fix_thresholds(pairs.scores[used], pairs.same[used], targets, source)
    fixed = _with(given, thresholds)
    return [_of_list(pairs, grouping, fixed, family) for grouping in groupings]


def _of_list(
    pairs: ListedPairs, grouping: Grouping, thresholds: Thresholds, family: Codes | None
) -> GroupErrors:
    used = (grouping.codes[pairs.sides] >= 0).all(axis=0) & pairs.usable & ~np.isnan(pairs.scores)
    scores, same, images = pairs.scores[used], pairs.same[used], pairs.sides[:, used]
    subjects, groups = pairs.subject[images], np.sort(grouping.codes[images], axis=0)
    number, whole = len(grouping.names), int(pairs.subject.max()) + 1
    inside = [(groups == code).all(axis=0) for code in range(number)]

    def share(
        events: NDArray[np.bool_], among: NDArray[np.bool_], alike: bool = False
    ) -> GroupShare:
        if not among.any():
            return None
        if pairs.independent:
            own = np.arange(int(among.sum()))
            return ClusteredShare.from_pairs(events[among], own, own, alike=alike)
        found = ClusteredShare.from_pairs(events[among], *subjects[:, among], alike=alike)
        return _spread(found, slice(len(found.changes)), whole, family)

    def within(
        events: NDArray[np.bool_], kind: NDArray[np.bool_], alike: bool = False
    ) -> tuple[GroupShare, ...]:
        return tuple(share(events, kind & part, alike) for part in (*inside, np.True_))

    points = []
    for point in thresholds.points:
        # A float32 score is widened; the threshold is never rounded to it.
        accepted = scores >= np.float64(point.threshold)
        between = {
            (d, e): share(accepted, ~same & (groups[0] == d) & (groups[1] == e))
            for d, e in itertools.combinations(range(number), 2)
        }
        rates = within(accepted, ~same), within(~accepted, same, True), within(~accepted, same)
        points.append(ErrorsAt(point, *rates, between))
    of = np.full(whole, UNKNOWN)
    of[subjects] = grouping.codes[images]
    return _errors(grouping, of, points, thresholds)


def all_pairs_rates(
    vectors: NDArray[np.floating],
    subject: Codes,
    groupings: Sequence[Grouping],
    *,
    targets: Sequence[str] = FMR_TARGETS,
    thresholds: Thresholds | None = None,
    given: float | None = None,
    family: Codes | None = None,
    progress: Progress | None = None,
) -> list[GroupErrors]:
    """Compare every image with every other once, and count errors by the groups of each grouping.

    By default the thresholds are fixed on the impostors of all images with a subject, whether they
    have a group or not.

    Args:
        vectors: raw embeddings, ``(N, D)``; rows that are zero or not finite are failures.
        subject: code of the subject on each image, ``(N,)``; `UNKNOWN` where not known.
        groupings: of the images; those without a group take no part. A subject has one group of a
            grouping at most.
        targets: nominal FMRs, taken exactly.
        thresholds: fixed on other data.
        given: a threshold that comes before these.
        family: of each subject, ``(G,)``, left out as a whole for the intervals; by default each
            subject alone.
        progress: see `facerec.base.progress.Progress`.

    Raises:
        MetricError: a target that is no rate, or no mated or no non-mated pair at all; where images
            with a group of one grouping make none, its errors say so.
    """

    def compare(images: NDArray[np.bool_], fixed: Thresholds | None) -> AllPairs:
        # Both +∞ and NaN, which is not taken, reject every cosine.
        known = [point.threshold for point in fixed.points] if fixed else own
        return score_all_pairs(
            vectors if images.all() else take(vectors, np.flatnonzero(images)),
            subject[images],
            fpr=() if fixed else targets,
            thresholds=[math.inf if math.isnan(threshold) else threshold for threshold in known],
            pair_limit=MOST_BY_PAIR,
            progress=progress,
        )

    own = [] if given is None else [given]
    everybody = compare(subject >= 0, thresholds and _with(given, thresholds))
    thresholds = _with(given, thresholds or pooled(HERE, everybody.points))
    results = []
    for grouping in groupings:
        known = (subject >= 0) & (grouping.codes >= 0)
        torn = np.isin(subject[(subject >= 0) & ~known], subject[known]).any()
        # Images without a group, of subjects who have one, would be counted with these.
        try:
            found = compare(known, thresholds) if torn else everybody
        except MetricError as problem:
            results.append(GroupErrors(grouping, (), (), thresholds, str(problem)))
            continue
        of = np.full(int(subject.max()) + 1, UNKNOWN)
        of[subject[known]] = grouping.codes[known]
        results.append(_of_all(found, grouping, of, thresholds, family))
    return results


def _of_all(
    pairs: AllPairs, grouping: Grouping, of: Codes, thresholds: Thresholds, family: Codes | None
) -> GroupErrors:
    """Take the counts of each group out of all pairs, given that of each subject, ``(G,)``."""
    group = of[pairs.subjects]
    members = [np.flatnonzero(group == code) for code in range(len(grouping.names))]
    parts = [*members, np.flatnonzero(group >= 0)]

    def spread(shares: Iterable[GroupShare]) -> tuple[GroupShare, ...]:
        return tuple(
            _spread(share, pairs.subjects[part], of.size, family)
            for share, part in zip(shares, parts, strict=True)
        )

    points = [
        ErrorsAt(
            point,
            spread(map(table.fmr_among, parts)),
            spread(table.fnmr_among(part, alike=True) for part in parts),
            spread(map(table.fnmr_among, parts)),
            {
                (d, e): table.fmr_among(members[d], members[e])
                for d, e in itertools.combinations(range(len(members)), 2)
            },
        )
        for table, point in zip(pairs.tables, thresholds.points, strict=True)
    ]
    return _errors(grouping, of, points, thresholds)


def _errors(
    grouping: Grouping, of: Codes, points: Sequence[ErrorsAt], thresholds: Thresholds
) -> GroupErrors:
    """Put together what was counted, given the group of each subject, ``(G,)``."""
    counted = np.bincount(of[of >= 0], minlength=len(grouping.names))
    return GroupErrors(grouping, tuple(counted.tolist()), tuple(points), thresholds)


def _spread(
    share: GroupShare, subjects: Codes | slice, whole: int, family: Codes | None
) -> GroupShare:
    """Number what each subject adds among all subjects, or their families."""
    if share is None:
        return None
    changes = np.zeros(whole)
    changes[subjects] = share.changes
    share = replace(share, changes=changes)
    return share if family is None else share.by_family(family)


def _with(given: float | None, thresholds: Thresholds) -> Thresholds:
    """Put a threshold that was given before those that were fixed."""
    if given is None:
        return thresholds
    # Nothing is known of what it was fixed on.
    first = GivenThreshold(words.threshold(given), given, 1, 1, 1, 1)
    return replace(thresholds, points=(first, *thresholds.points))
