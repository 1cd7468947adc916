"""Error rates by group of persons at one threshold for all, from scored pairs or from all pairs.

A pair matches if ``score >= threshold``. FMR and FNMR of a group count pairs within the group. One
global threshold comes from calibration data, or else from the impostors of all groups pooled.
Thresholds fixed for one group alone are a diagnostic and never the basis of a decision.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array
from scipy.special import ndtri
from scipy.stats import binom

from facerec.errors import MetricError
from facerec.progress import Progress
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.curves import RocCurve
from facerec.statistics.intervals import Interval, complement, wilson
from facerec.statistics.operating_points import RULE_OF_30, OperatingPoint, parse_rate
from facerec.statistics.rates import operating_points, sort_scores
from facerec.verification.scoring import (
    AllPairs,
    ErrorTable,
    Groups,
    check_pairs,
    score_all_pairs,
)

TARGETS = ("1e-2", "1e-3", "1e-4", "1e-5")

DIAGNOSTIC = "diagnostic, not deployable: a threshold of its own for every group"

POOLED = "this data: impostors within and between all groups pooled"
"""Source of thresholds that were not fixed on other data."""

UNKNOWN = -1
"""Code of an image whose subject or group is not known."""

SCORE_EDGES = np.arange(-256, 257) / 256
"""Edges of the bins of `ScoreHistogram`, −1 to 1, ``(513,)``: multiples of a power of two, so that
a float32 score falls into exactly one bin and counts at or above an edge are exact."""

_DET_POINTS = 200
"""Points kept of a DET curve."""


@dataclass(frozen=True, kw_only=True)
class ErrorRate(Estimate):
    """Errors among comparisons, with an interval that allows for shared subjects.

    At no error the interval is a `facerec.statistics.clustered.Bound`.
    """

    in_files: ClassVar = (
        "k=events n=total value interval n_eff=effective identities=subjects resolvable reliable "
        "mark reason=remark"
    )
    events: int
    total: int
    subjects: int
    """Subjects that take part."""
    resolvable: bool
    """Whether the comparisons leave room for one error at the nominal rate, if there is one."""
    reliable: bool
    """Whether at least 30 errors remain after allowing for dependence (rule of 30)."""


@dataclass(frozen=True)
class Calibration:
    """Operating points of other data, at which the global thresholds are fixed."""

    source: str
    """What they come from, such as a file."""
    points: tuple[OperatingPoint, ...]

    def point(self, target: str) -> OperatingPoint:
        """Return the operating point of a target.

        Raises:
            MetricError: it is not among the points.
        """
        for point in self.points:
            if parse_rate(point.target) == parse_rate(target):
                return point
        raise MetricError(
            f"{self.source}: it has no threshold for FMR {target}; found "
            f"{', '.join(point.target for point in self.points) or 'none'}"
        )


@dataclass(frozen=True)
class GlobalThreshold:
    """The one threshold of an FMR target, and what it was fixed on."""

    target: str
    """Nominal FMR as it was written."""
    value: float | None
    """None if it accepts everything or nothing, see ``reason``."""
    source: str
    false_matches: int
    """Among the impostors on which it was fixed."""
    non_mated: int
    """Impostors on which it was fixed."""
    resolvable: bool
    """Whether these leave room for one false match at the target."""
    reliable: bool
    """Whether they leave room for 30."""
    reason: str | None


@dataclass(frozen=True)
class GroupThreshold:
    """What a threshold fixed on one group alone would give: never a basis of decisions."""

    in_files: ClassVar = (
        "value tmr=tmr.value tmr_interval=tmr.interval false_matches non_mated "
        "resolvable reason use"
    )
    value: float | None
    """The lowest threshold at which the group's own FMR does not exceed the target."""
    tmr: Estimate
    """Share of the group's mated pairs at or above it, with the threshold taken as given; without
    a value where the target is not resolvable."""
    false_matches: int
    non_mated: int
    resolvable: bool
    reason: str | None
    use: str = DIAGNOSTIC


@dataclass(frozen=True)
class GroupPoint:
    """One group at one global threshold."""

    name: str
    fmr: ErrorRate
    """Among pairs of two persons of the group."""
    fnmr: ErrorRate
    own_threshold: GroupThreshold


@dataclass(frozen=True)
class FmrMatrix:
    """FMR between groups at one threshold."""

    cells: tuple[tuple[ErrorRate, ...], ...]
    """Symmetric ``(D, D)``. Without a value where two groups have no comparison; without an
    interval too where false matches are too many to be counted by subject."""

    @property
    def log10(self) -> tuple[tuple[float | None, ...], ...]:
        """Of the FMR, +1 means ten times as many; None where there is no false match."""
        return tuple(
            tuple(math.log10(cell.value) if cell.value else None for cell in row)
            for row in self.cells
        )


@dataclass(frozen=True)
class RatesAtThreshold:
    """Everything at one global threshold."""

    threshold: GlobalThreshold
    fmr: ErrorRate
    """Of all impostors, within and between groups."""
    fnmr: ErrorRate
    groups: tuple[GroupPoint, ...]
    matrix: FmrMatrix


@dataclass(frozen=True)
class DetMark:
    """Where a global threshold lies on the DET curve of a group."""

    target: str
    threshold: float | None
    fmr: float | None
    fnmr: float | None
    x: float | None
    """Φ⁻¹(FMR); None at rates of 0 and 1, which have no place on probit axes."""
    y: float | None
    """Φ⁻¹(FNMR)."""


@dataclass(frozen=True)
class GroupDet:
    """DET curve of a group on probit axes, thinned evenly along its length."""

    name: str
    thresholds: tuple[float, ...]
    """Descending, ``(K,)``."""
    x: tuple[float, ...]
    """Φ⁻¹(FMR), ``(K,)``."""
    y: tuple[float, ...]
    """Φ⁻¹(FNMR), ``(K,)``."""
    marks: tuple[DetMark, ...]
    """At the global thresholds, in their order."""
    reason: str | None
    """Why there are no points."""


@dataclass(frozen=True)
class GroupComposition:
    """What a group's figures rest on."""

    name: str
    subjects: int
    images: int
    mated: int
    """Mated pairs with a score."""
    non_mated: int
    """Pairs of two persons of the group with a score."""
    smallest_fmr: float | None
    """The smallest FMR that can be observed, one in all impostors; None without any."""
    fta: ErrorRate | None
    """Images that were not acquired among all images; None if that is not known."""
    lost_mated: int
    """Mated pairs without a score, in no rate."""
    lost_non_mated: int
    """Impostor pairs within the group without a score."""


@dataclass(frozen=True)
class Exclusions:
    """What takes no part, because a subject or a group is missing or contradicts a label."""

    images: int
    """Images without a subject or a group."""
    mated: int
    """Mated pairs with such an image."""
    non_mated: int
    """Impostor pairs with such an image."""
    unknown: int
    """Pairs with an image without a subject, so that nobody knows whether they are mated."""
    contradictory: int
    """Pairs labelled same with two subjects, or different with one."""


@dataclass(frozen=True)
class GroupRates:
    """Error rates of all groups at all targets."""

    names: tuple[str, ...]
    policy: str
    """Which impostors were compared."""
    excluded: Exclusions
    composition: tuple[GroupComposition, ...]
    points: tuple[RatesAtThreshold, ...]
    det: tuple[GroupDet, ...]


@dataclass(frozen=True)
class ScoreHistogram:
    """Scores of the pairs within one group, for a threshold of the reader's choice."""

    name: str
    """The group."""
    genuine: tuple[int, ...]
    """Mated pairs in each bin of `SCORE_EDGES`, ``(512,)``; a score of 1 is in the last bin."""
    impostor: tuple[int, ...]
    """Pairs of two persons of the group in each bin, ``(512,)``."""


@dataclass(frozen=True, eq=False)
class SubjectCounts:
    """Errors and comparisons within one group at one threshold, by person."""

    members: NDArray[np.int64]
    """Number of each person of the group among all persons, ``(G,)``."""
    false_matches: csr_array | None
    """``(G, G)``, each counted once; None if they are not known by person."""
    non_mated: csr_array | None
    """Comparisons ``(G, G)``, each counted once; None if all images were compared with all."""
    images: NDArray[np.int64] | None
    """Images, ``(G,)``, where all were compared with all; None where ``non_mated`` is given."""
    missed: NDArray[np.int64]
    """False non-matches, ``(G,)``."""
    mated: NDArray[np.int64]
    """Mated comparisons, ``(G,)``."""

    def fmr_share(self) -> ClusteredShare | None:
        """Return the share of false matches; None if they are not known by person."""
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
    """Errors and comparisons within one group at one threshold, where persons are not known."""

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


@dataclass(frozen=True)
class IndependentShare:
    """Events among comparisons of which none is known to share a person with another."""

    events: int
    comparisons: int
    subjects: int = 0

    @property
    def rate(self) -> float:
        """Events over comparisons."""
        return self.events / self.comparisons

    @property
    def test_variance(self) -> float:
        """Of the rate: binomial."""
        return self.rate * (1 - self.rate) / self.comparisons

    @property
    def effective_subjects(self) -> float:
        """How many independent units there are: every comparison is one."""
        return float(self.comparisons)

    def interval(self) -> Interval:
        """Return Wilson's interval."""
        found = wilson(self.events, self.comparisons)
        return replace(
            found,
            assumption="pairs taken as independent, since their persons are not known",
            effective=float(self.comparisons),
        )


Share = ClusteredShare | IndependentShare


@dataclass(frozen=True, eq=False)
class GroupErrors:
    """Rates to be reported, and the counts by person that a joint resample needs."""

    rates: GroupRates
    counts: tuple[tuple[SubjectCounts | PairCounts, ...], ...]
    """One a target and group."""
    subjects: int
    """Persons in all; `SubjectCounts.members` counts among them. 0 where they are not known."""
    histograms: tuple[ScoreHistogram, ...]
    """One a group that has both kinds of pairs."""
    calibration: Calibration
    """The operating points that fix the global thresholds, to use them for other groups too."""

    @property
    def by_subject(self) -> tuple[tuple[SubjectCounts, ...], ...]:
        """``counts`` where persons are known.

        Raises:
            MetricError: they are not.
        """
        known = tuple(
            tuple(count for count in row if isinstance(count, SubjectCounts)) for row in self.counts
        )
        if not self.subjects:
            raise MetricError("persons are not known, so nothing can be counted by person")
        return known


def pair_group_rates(
    scores: ArrayLike,
    first: ArrayLike,
    second: ArrayLike,
    issame: ArrayLike,
    subject: ArrayLike,
    group: ArrayLike,
    names: Sequence[str],
    *,
    targets: Sequence[str] = TARGETS,
    calibration: Calibration | None = None,
    failed: ArrayLike | None = None,
    subjects_known: bool = True,
    seed: int = 0,
) -> GroupErrors:
    """Count errors by group among scored pairs.

    Args:
        scores: similarities, ``(n,)``, NaN where there is none.
        first: image on the first side of each pair, ``(n,)``.
        second: image on the second side, ``(n,)``.
        issame: label of each pair, ``(n,)``.
        subject: code of the person on each image, ``(m,)``; `UNKNOWN` where not known.
        group: code of the group of each image, 0 to D − 1, ``(m,)``; `UNKNOWN` where not known.
        names: of the groups, D of them.
        targets: nominal FMRs, taken exactly.
        calibration: where the thresholds were fixed; by default on the impostors of the list.
        failed: images that were not acquired, ``(m,)`` booleans.
        subjects_known: otherwise the subjects tell mated pairs from others and nothing more, and
            pairs are taken as independent.
        seed: of resamples of pairs, where persons are not known.

    Raises:
        MetricError: arrays that do not fit, a person in two groups, a target that is no rate or
            that the calibration lacks, or no mated or no impostor pair that is left.
    """
    people = _People(subject, group, names)
    pairs = _ScoredPairs(
        scores, first, second, issame, people, failed, None if subjects_known else seed
    )
    found = pairs.scores[~pairs.same]
    if calibration is None:
        fixed = operating_points(pairs.scores[pairs.same], found, targets)
        source = POOLED
    else:
        fixed = tuple(calibration.point(target) for target in targets)
        source = calibration.source
    return _assemble(
        people.names,
        "different pairs of the list, within and between groups",
        pairs.excluded,
        pairs.composition(),
        Calibration(source, tuple(fixed)),
        [pairs.errors(point.threshold) for point in fixed],
        [pairs.alone(place, targets) for place in range(len(people.names))],
        pairs.group_of.size if subjects_known else 0,
    )


def all_pairs_group_rates(
    vectors: ArrayLike,
    subject: ArrayLike,
    group: ArrayLike,
    names: Sequence[str],
    *,
    targets: Sequence[str] = TARGETS,
    calibration: Calibration | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> GroupErrors:
    """Compare every image with every other and count errors by group.

    Args:
        vectors: raw embeddings, ``(m, D)``; rows that are zero or not finite are failures.
        subject: see `pair_group_rates`.
        group: see `pair_group_rates`; images without one take no part.
        names: of the groups.
        targets: nominal FMRs, taken exactly.
        calibration: where the thresholds were fixed; by default on all impostors of this data.
        device: where scores are computed.
        progress: see `facerec.progress.Progress`.

    Raises:
        MetricError: as for `pair_group_rates`.
        DeviceError: the device is not there.
    """
    people = _People(subject, group, names)
    rows = np.flatnonzero(people.known)
    (errors,) = _score_once(vectors, [people], rows, targets, calibration, device, progress)
    if isinstance(errors, MetricError):
        raise errors
    return errors


def all_pairs_rates(
    vectors: ArrayLike,
    subject: ArrayLike,
    groupings: Sequence[tuple[ArrayLike, Sequence[str]]],
    *,
    targets: Sequence[str] = TARGETS,
    calibration: Calibration | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> list[GroupErrors | MetricError]:
    """Compare every image with every other once, and count errors by the groups of each grouping.

    By default the thresholds are fixed on the impostors of all images with a subject, whether they
    have a group or not.

    Args:
        vectors: see `all_pairs_group_rates`.
        subject: see `pair_group_rates`.
        groupings: codes of groups, and their names, see `pair_group_rates`.
        targets: see `all_pairs_group_rates`.
        calibration: see `all_pairs_group_rates`.
        device: see `all_pairs_group_rates`.
        progress: see `all_pairs_group_rates`.

    Returns:
        One a grouping; an error where it has no mated or no impostor pair.

    Raises:
        MetricError: arrays that do not fit, a person in two groups of a grouping, a target that is
            no rate, or no mated or no impostor pair at all.
        DeviceError: the device is not there.
    """
    people = [_People(subject, group, names) for group, names in groupings]
    rows = np.flatnonzero(people[0].subject >= 0)
    codes = np.stack([people[0].subject, *(one.group for one in people)])[:, rows]
    if np.unique(codes, axis=1).shape[1] == np.unique(codes[0]).size:
        return _score_once(vectors, people, rows, targets, calibration, device, progress)
    # Some images of a person lack a label that others have: no cell of groups holds the person.
    raw = np.asarray(vectors)
    if calibration is None:
        pooled = score_all_pairs(
            raw[rows],
            codes[0],
            fpr=targets,
            tables_at_points=False,
            device=device,
            progress=progress,
        )
        calibration = Calibration(_pooled(people[0], rows, pooled), pooled.points)
    return [
        _score_once(raw, [one], np.flatnonzero(one.known), targets, calibration, device, progress)[
            0
        ]
        for one in people
    ]


def _score_once(
    vectors: ArrayLike,
    people: Sequence[_People],
    rows: NDArray[np.int64],
    targets: Sequence[str],
    calibration: Calibration | None,
    device: str | torch.device,
    progress: Progress | None,
) -> list[GroupErrors | MetricError]:
    """Compare some images with each other, and count errors by every grouping."""
    raw = np.asarray(vectors)
    if raw.shape[:1] != people[0].subject.shape:
        raise MetricError(
            f"there are {raw.shape[:1]} embeddings but {people[0].subject.size} subjects and "
            "groups; give one each an image"
        )
    thresholds = []
    if calibration is not None:
        points = tuple(calibration.point(target) for target in targets)
        calibration = Calibration(calibration.source, points)
        thresholds = [_reachable(point.threshold) for point in points]
    everyone = score_all_pairs(
        raw[rows],
        people[0].subject[rows],
        fpr=targets if calibration is None else (),
        thresholds=thresholds,
        groupings=[one.group[rows] for one in people],
        group_fpr=targets,
        device=device,
        progress=progress,
    )
    if calibration is None:
        calibration = Calibration(_pooled(people[0], rows, everyone), everyone.points)
    results: list[GroupErrors | MetricError] = []
    for grouping, one in enumerate(people):
        try:
            found = _Everyone(one, rows[everyone.failures], everyone.by(grouping))
        except MetricError as problem:
            results.append(problem)
            continue
        results.append(
            _assemble(
                one.names,
                "every image with every image of another person, within and between groups",
                found.excluded(),
                found.composition(),
                calibration,
                [found.errors(table) for table in found.pairs.tables],
                [found.alone(place) for place in range(len(one.names))],
                found.pairs.subjects.size,
            )
        )
    return results


def _pooled(people: _People, rows: NDArray[np.int64], pairs: AllPairs) -> str:
    """Say what thresholds were fixed on: the impostors of all rows."""
    if people.known[rows].all():
        return POOLED
    return f"this data: {pairs.non_mated:,} impostor pairs pooled"


class _People:
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
                f"subject {pairs[at, 0]} has images in the groups {one!r} and {other!r}; a person "
                "counts in one group, so correct the table or leave the person out"
            )


@dataclass(frozen=True, eq=False)
class _Errors:
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
class _Alone:
    """A group compared with itself only."""

    roc: RocCurve
    genuine: NDArray[np.int64]
    """Mated pairs in each bin of `SCORE_EDGES`."""
    impostor: NDArray[np.int64]
    points: Sequence[OperatingPoint]
    shares: Sequence[Share | None]
    """FNMR at the points."""


class _ScoredPairs:
    """The pairs of a list whose subjects and groups are known, and that have a score."""

    def __init__(
        self,
        scores: ArrayLike,
        first: ArrayLike,
        second: ArrayLike,
        issame: ArrayLike,
        people: _People,
        failed: ArrayLike | None,
        independent: int | None,
    ) -> None:
        self._independent = independent
        values, sides, same = _check_pairs(scores, first, second, issame, people.subject.size)
        known = people.known[sides].all(axis=0)
        one = people.subject[sides[0]] == people.subject[sides[1]]
        contradictory = known & (one != same)
        used = known & ~contradictory
        named = np.zeros(people.subject.size, bool)
        named[sides] = True
        self.excluded = Exclusions(
            images=int(np.count_nonzero(named & ~people.known)),
            mated=int(np.count_nonzero(~known & same)),
            non_mated=int(np.count_nonzero(~known & ~same)),
            unknown=0,
            contradictory=int(np.count_nonzero(contradictory)),
        )
        self._people, self._failed = people, _failures(failed, people.subject.size)
        scored = used & ~np.isnan(values)
        self._lost = sides[:, used & ~scored], same[used & ~scored]
        self._images = np.unique(sides[:, used])
        self.scores, self.same = values[scored], same[scored]
        self._sides = sides[:, scored]
        if self.same.all() or not self.same.any():
            raise MetricError(
                f"{int(self.same.sum())} mated and {int((~self.same).sum())} impostor pairs have a "
                f"score and known groups ({len(same)} pairs in the list); error rates by group "
                "need both kinds"
            )
        numbers, index = np.unique(people.subject[self._sides], return_inverse=True)
        self._left, self._right = index.reshape(2, -1)
        self.group_of = np.empty(numbers.size, np.int64)
        self.group_of[index.reshape(2, -1)] = people.group[self._sides]
        self._groups = self.group_of[self._left], self.group_of[self._right]

    def composition(self) -> tuple[GroupComposition, ...]:
        """Describe all groups."""
        people = self._people
        lost, lost_same = self._lost
        described = []
        for place, name in enumerate(people.names):
            members = self._images[people.group[self._images] == place]
            failed = None if self._failed is None else self._failed[members]
            scored = _kinds(self._within(place), self.same)
            unscored = _kinds((people.group[lost] == place).all(axis=0), lost_same)
            described.append(_composition(name, people.subject[members], failed, scored, unscored))
        return tuple(described)

    def errors(self, threshold: float) -> _Errors:
        """Count the errors at a threshold."""
        # A float32 score is widened; the threshold is never rounded to it.
        accepted = self.scores >= np.float64(threshold)
        left, right, size = self._left, self._right, len(self._people.names)
        other, same = ~self.same, self.same
        low, high = np.minimum(*self._groups), np.maximum(*self._groups)
        shares: dict[tuple[int, int], Share | None] = {}
        for cell in itertools.combinations_with_replacement(range(size), 2):
            part = other & (low == cell[0]) & (high == cell[1])
            shares[cell] = self._share(accepted[part], left[part], right[part])
        mated = [same & (low == place) for place in range(size)]
        return _Errors(
            false_matches=_between(low, high, other & accepted, size),
            non_mated=_between(low, high, other, size),
            missed=np.array([np.count_nonzero(~accepted[part]) for part in mated]),
            mated=np.array([np.count_nonzero(part) for part in mated]),
            fmr_shares=shares,
            fnmr_shares=[self._share(~accepted[part], left[part], left[part]) for part in mated],
            overall=(
                self._known_share(accepted[other], left[other], right[other]),
                self._known_share(~accepted[same], left[same], left[same]),
            ),
            counts=tuple(self._counts(place, accepted) for place in range(size)),
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

    def _counts(self, place: int, accepted: NDArray[np.bool_]) -> SubjectCounts | PairCounts:
        within = self._within(place)
        if self._independent is not None:
            mated, other = within & self.same, within & ~self.same
            return PairCounts(
                false_matches=int(np.count_nonzero(other & accepted)),
                non_mated=int(np.count_nonzero(other)),
                missed=int(np.count_nonzero(mated & ~accepted)),
                mated=int(np.count_nonzero(mated)),
                seed=(self._independent, place),
            )
        members = np.flatnonzero(self.group_of == place)
        position = np.zeros(self.group_of.size, np.int64)
        position[members] = np.arange(members.size)
        shape = members.size, members.size

        def by_pair(part: NDArray[np.bool_]) -> csr_array:
            cells = position[self._left[part]], position[self._right[part]]
            return coo_array((np.ones(cells[0].size, np.int64), cells), shape).tocsr()

        def by_subject(part: NDArray[np.bool_]) -> NDArray[np.int64]:
            return np.bincount(position[self._left[part]], minlength=members.size)

        return SubjectCounts(
            members=members,
            false_matches=by_pair(within & ~self.same & accepted),
            non_mated=by_pair(within & ~self.same),
            images=None,
            missed=by_subject(within & self.same & ~accepted),
            mated=by_subject(within & self.same),
        )

    def _within(self, place: int) -> NDArray[np.bool_]:
        return (self._groups[0] == place) & (self._groups[1] == place)

    def alone(self, place: int, targets: Sequence[str]) -> _Alone | None:
        """Look at the pairs within one group only; None if it lacks one kind of pairs."""
        within = self._within(place)
        mated, other = within & self.same, within & ~self.same
        if not mated.any() or not other.any():
            return None
        figures = sort_scores(self.scores[mated], self.scores[other])
        points = [figures.tpr_at_fpr(target) for target in targets]
        left = self._left[mated]
        # A cosine may be rounded to just above 1.
        cosines = np.clip(self.scores, -1, 1)
        genuine, impostor = (np.histogram(cosines[x], SCORE_EDGES)[0] for x in (mated, other))
        return _Alone(
            figures.roc(),
            genuine,
            impostor,
            points,
            # NaN, which nothing reaches, rejects all.
            [
                self._share(~(self.scores[mated] >= np.float64(point.threshold)), left, left)
                for point in points
            ],
        )


class _Everyone:
    """All pairs of the images whose subject and group are known."""

    def __init__(self, people: _People, failures: NDArray[np.int64], pairs: AllPairs) -> None:
        self._people, self.pairs = people, pairs
        self._failed = np.zeros(people.subject.size, bool)
        self._failed[failures] = True
        check_pairs(pairs.images_per_subject, int(np.count_nonzero(self._failed & people.known)))
        assert pairs.groups is not None
        self._groups: Groups = pairs.groups
        self._places = {int(name): place for place, name in enumerate(self._groups.names)}

    def excluded(self) -> Exclusions:
        """Count the pairs that images without subject or group would make."""
        subject, known = self._people.subject, self._people.known
        named = subject >= 0
        of_named, of_known = (
            _pair_counts(np.unique(subject[part], return_counts=True)[1]) for part in (named, known)
        )
        total = len(subject) * (len(subject) - 1) // 2
        return Exclusions(
            images=int(np.count_nonzero(~known)),
            mated=of_named[0] - of_known[0],
            non_mated=of_named[1] - of_known[1],
            unknown=total - sum(of_named),
            contradictory=0,
        )

    def composition(self) -> tuple[GroupComposition, ...]:
        """Describe all groups."""
        people = self._people
        described = []
        for place, name in enumerate(people.names):
            members = np.flatnonzero(people.known & (people.group == place))
            subject, gone = people.subject[members], self._failed[members]
            pairs, scored = (
                _pair_counts(np.unique(part, return_counts=True)[1])
                for part in (subject, subject[~gone])
            )
            lost = pairs[0] - scored[0], pairs[1] - scored[1]
            described.append(_composition(name, subject, gone, scored, lost))
        return tuple(described)

    def alone(self, place: int) -> _Alone | None:
        """Return what one group alone gives; None if it lacks a kind of pairs."""
        at = self._places.get(place)
        part = None if at is None else self.pairs.alone[at]
        if part is None:
            return None
        return _Alone(
            part.roc(),
            _coarse(part.mated_histogram),
            _coarse(part.non_mated_histogram),
            part.points,
            [part.fnmr_share(point) for point in range(len(part.points))],
        )

    def errors(self, table: ErrorTable) -> _Errors:
        """Take the counts at one threshold out of a table."""
        size = len(self._people.names)
        present = np.array(sorted(self._places), np.int64)
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
            if first in self._places and second in self._places:
                at = self._places[first], self._places[second]
                share = self._groups.fmr_share(table, *at)
            shares[first, second] = share
        return _Errors(
            false_matches=square[0],
            non_mated=square[1],
            missed=missed,
            mated=square[2].diagonal(),
            fmr_shares=shares,
            fnmr_shares=[
                self._groups.fnmr_share(table, self._places[place])
                if place in self._places
                else None
                for place in range(size)
            ],
            overall=(table.fmr_share(), table.fnmr_share()),
            counts=tuple(self._counts(place, table) for place in range(size)),
        )

    def _counts(self, place: int, table: ErrorTable) -> SubjectCounts:
        of_subject = self._groups.of_subject
        assert of_subject is not None  # a person is in one group
        members = np.flatnonzero(of_subject == self._places.get(place, UNKNOWN))
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


def _assemble(
    names: tuple[str, ...],
    policy: str,
    excluded: Exclusions,
    composition: tuple[GroupComposition, ...],
    fixed: Calibration,
    errors: Sequence[_Errors],
    alone: Sequence[_Alone | None],
    subjects: int,
) -> GroupErrors:
    points = tuple(
        RatesAtThreshold(
            threshold=_global_threshold(point, fixed.source),
            fmr=_overall(found.overall[0], point.target),
            fnmr=_overall(found.overall[1]),
            groups=tuple(
                GroupPoint(
                    name,
                    error_rate(
                        found.fmr_shares[place, place],
                        found.false_matches[place, place],
                        found.non_mated[place, place],
                        point.target,
                    ),
                    error_rate(found.fnmr_shares[place], found.missed[place], found.mated[place]),
                    _own_threshold(alone[place], index),
                )
                for place, name in enumerate(names)
            ),
            matrix=_matrix(found),
        )
        for index, (point, found) in enumerate(zip(fixed.points, errors, strict=True))
    )
    det = tuple(_det(name, alone[place], points, place) for place, name in enumerate(names))
    return GroupErrors(
        GroupRates(names, policy, excluded, composition, points, det),
        tuple(found.counts for found in errors),
        subjects,
        tuple(
            ScoreHistogram(name, tuple(part.genuine.tolist()), tuple(part.impostor.tolist()))
            for name, part in zip(names, alone, strict=True)
            if part is not None
        ),
        fixed,
    )


def error_rate(
    share: Share | None, errors: int, comparisons: int, target: str | None = None
) -> ErrorRate:
    """Describe a rate.

    Args:
        share: its sums by person, if known; they carry the interval.
        errors: counted.
        comparisons: counted.
        target: nominal rate, if there is one.
    """
    errors, comparisons = int(errors), int(comparisons)
    interval = None if share is None else share.interval()
    n_eff = None if interval is None else interval.effective
    value = errors / comparisons if comparisons else None
    nominal = 1 if target is None else parse_rate(target)
    remark = ""
    if not comparisons:
        remark = "no comparison"
    elif interval is None:
        remark = "no interval: errors are too many to be counted by person"
    return ErrorRate(
        value=value,
        interval=interval,
        events=errors,
        total=comparisons,
        remark=remark,
        subjects=0 if share is None else share.subjects,
        resolvable=nominal * comparisons >= 1,
        reliable=errors >= RULE_OF_30
        and value is not None
        and n_eff is not None
        and value * n_eff >= RULE_OF_30,
    )


def _overall(share: Share, target: str | None = None) -> ErrorRate:
    return error_rate(share, share.events, share.comparisons, target)


def _global_threshold(point: OperatingPoint, source: str) -> GlobalThreshold:
    value, reason = _finite(point.threshold)
    return GlobalThreshold(
        target=point.target,
        value=value,
        source=source,
        false_matches=point.false_accepts,
        non_mated=point.non_mated,
        resolvable=point.resolvable,
        reliable=point.reliable,
        reason=reason,
    )


def _own_threshold(alone: _Alone | None, index: int) -> GroupThreshold:
    if alone is None:
        lacking = "the group lacks mated pairs or impostor pairs"
        return GroupThreshold(None, Estimate(None), 0, 0, False, lacking)
    point, share = alone.points[index], alone.shares[index]
    counts = point.false_accepts, point.non_mated
    if not point.resolvable:
        few = f"not resolvable with {point.non_mated:,} impostor pairs"
        return GroupThreshold(None, Estimate(None), *counts, False, few)
    value, reason = _finite(point.threshold)
    missed = None if share is None else share.interval()
    tmr = Estimate(
        point.tpr,
        None if missed is None else complement(missed),
        events=point.true_accepts,
        total=point.mated,
    )
    return GroupThreshold(value, tmr, *counts, True, reason)


def _matrix(found: _Errors) -> FmrMatrix:
    size = range(len(found.non_mated))
    cells = {
        cell: error_rate(share, found.false_matches[cell], found.non_mated[cell])
        for cell, share in found.fmr_shares.items()
    }
    return FmrMatrix(
        tuple(
            tuple(cells[min(first, second), max(first, second)] for second in size)
            for first in size
        )
    )


def _det(
    name: str, alone: _Alone | None, points: Sequence[RatesAtThreshold], place: int
) -> GroupDet:
    marks = tuple(
        DetMark(
            target=point.threshold.target,
            threshold=point.threshold.value,
            fmr=(group := point.groups[place]).fmr.value,
            fnmr=group.fnmr.value,
            x=_probit(group.fmr.value),
            y=_probit(group.fnmr.value),
        )
        for point in points
    )
    if alone is None:
        lacking = "the group lacks mated pairs or impostor pairs"
        return GroupDet(name, (), (), (), marks, lacking)
    curve = alone.roc.det_points()
    reason = None if curve.x.size else "FMR or FNMR is 0 at every threshold"
    steps = np.abs(np.diff(curve.x)) + np.abs(np.diff(curve.y))
    length = np.concatenate([[0.0], np.cumsum(steps)])[: curve.x.size]
    kept = np.arange(curve.x.size)
    if kept.size > _DET_POINTS:
        # Even steps along the curve, so that rare errors keep their points.
        kept = np.unique(np.searchsorted(length, np.linspace(0, length[-1], _DET_POINTS)))
    return GroupDet(
        name,
        tuple(curve.thresholds[kept].tolist()),
        tuple(curve.x[kept].tolist()),
        tuple(curve.y[kept].tolist()),
        marks,
        reason,
    )


def _composition(
    name: str,
    subjects: NDArray[np.integer],
    failed: NDArray[np.bool_] | None,
    pairs: tuple[int, int],
    lost: tuple[int, int],
) -> GroupComposition:
    """Describe a group.

    Args:
        name: of the group.
        subjects: of its images.
        failed: which of its images were not acquired, if known.
        pairs: mated and impostor pairs with a score.
        lost: mated and impostor pairs without one.
    """
    _, index = np.unique(subjects, return_inverse=True)
    images = np.bincount(index)
    fta = None
    if failed is not None:
        share = None
        if subjects.size:
            share = ClusteredShare.from_mated_counts(np.bincount(index, failed), images)
        fta = error_rate(share, int(failed.sum()), subjects.size)
    return GroupComposition(
        name=name,
        subjects=images.size,
        images=subjects.size,
        mated=pairs[0],
        non_mated=pairs[1],
        smallest_fmr=1 / pairs[1] if pairs[1] else None,
        fta=fta,
        lost_mated=lost[0],
        lost_non_mated=lost[1],
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


def _failures(failed: ArrayLike | None, images: int) -> NDArray[np.bool_] | None:
    if failed is None:
        return None
    marks = np.asarray(failed, dtype=bool)
    if marks.shape != (images,):
        raise MetricError(
            f"failures of shape {marks.shape} must be one for each of {images} images"
        )
    return marks


def _between(
    low: NDArray[np.integer], high: NDArray[np.integer], part: NDArray[np.bool_], size: int
) -> NDArray[np.int64]:
    """Count pairs between groups, symmetric ``(D, D)``."""
    counts = np.bincount(low[part] * size + high[part], minlength=size * size).reshape(size, size)
    return counts + np.triu(counts, 1).T


def _kinds(part: NDArray[np.bool_], same: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the numbers of mated and impostor pairs in a part of them."""
    return int(np.count_nonzero(part & same)), int(np.count_nonzero(part & ~same))


def _pair_counts(images: NDArray[np.integer]) -> tuple[int, int]:
    """Return the numbers of mated and impostor pairs, given the images of each person."""
    total = int(images.sum())
    mated = int((images * (images - 1) // 2).sum())
    return mated, total * (total - 1) // 2 - mated


def _coarse(histogram: NDArray[np.int64]) -> NDArray[np.int64]:
    """Join bins of `facerec.verification.scoring.BIN_EDGES` to those of `SCORE_EDGES`."""
    counts = histogram[:-1].reshape(SCORE_EDGES.size - 1, -1).sum(axis=1)
    counts[-1] += histogram[-1]
    return counts


def _finite(threshold: float) -> tuple[float | None, str | None]:
    if math.isfinite(threshold):
        return threshold, None
    return None, "it accepts everything" if threshold == -math.inf else "it accepts nothing"


def _reachable(threshold: float) -> float:
    """Return +inf for NaN: both reject every cosine."""
    return math.inf if math.isnan(threshold) else threshold


def _probit(rate: float | None) -> float | None:
    return None if rate is None or rate in (0, 1) else float(ndtri(rate))
