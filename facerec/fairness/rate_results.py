"""What error rates by group consist of: thresholds, rates, curves, and what they rest on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from facerec.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.intervals import Interval, wilson
from facerec.statistics.operating_points import RULE_OF_30, OperatingPoint, parse_rate

DIAGNOSTIC = "diagnostic, not deployable: a threshold of its own for every group"

POOLED = "this data: non-mated pairs within and between all groups pooled"
"""Source of thresholds that were not fixed on other data."""

UNKNOWN = -1
"""Code of an image whose subject or group is not known."""

SCORE_EDGES = np.arange(-256, 257) / 256
"""Edges of the bins of `ScoreHistogram`, −1 to 1, ``(513,)``: multiples of a power of two, so that
a float32 score falls into exactly one bin and counts at or above an edge are exact."""


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

    @property
    def log10(self) -> float | None:
        """Of the rate, +1 means ten times as many; None where there is no error."""
        return math.log10(self.value) if self.value else None


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
    """Among pairs of two subjects of the group."""
    fnmr: ErrorRate
    own_threshold: GroupThreshold


@dataclass(frozen=True)
class RatesAtThreshold:
    """Everything at one global threshold."""

    threshold: GlobalThreshold
    fmr: ErrorRate
    """Of all impostors, within and between groups."""
    fnmr: ErrorRate
    groups: tuple[GroupPoint, ...]
    matrix: tuple[tuple[ErrorRate, ...], ...]
    """FMR between groups, symmetric ``(D, D)``. Without a value where two groups have no
    comparison; without an interval too where false matches are too many to be counted by
    subject."""


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
    mated: int
    """Mated pairs with a score."""
    non_mated: int
    """Pairs of two subjects of the group with a score."""
    lost_mated: int = 0
    """Mated pairs without a score, in no rate."""
    lost_non_mated: int = 0
    """Non-mated pairs within the group without a score."""

    @property
    def smallest_fmr(self) -> float | None:
        """The smallest FMR that can be observed, one in all impostors; None without any."""
        return 1 / self.non_mated if self.non_mated else None


@dataclass(frozen=True)
class Exclusions:
    """What takes no part, because a subject or a group is missing or contradicts a label."""

    mated: int
    """Mated pairs with an image without a subject or a group."""
    non_mated: int
    """Non-mated pairs with such an image."""
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

    in_files: ClassVar = "name genuine=mated impostor=non_mated"
    name: str
    """The group."""
    mated: tuple[int, ...]
    """Mated pairs in each bin of `SCORE_EDGES`, ``(512,)``; a score of 1 is in the last bin."""
    non_mated: tuple[int, ...]
    """Pairs of two subjects of the group in each bin, ``(512,)``."""


@dataclass(frozen=True)
class IndependentShare:
    """Events among comparisons of which none is known to share a subject with another."""

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
        interval = wilson(self.events, self.comparisons)
        return replace(
            interval,
            assumption="pairs taken as independent, since their subjects are not known",
            effective=float(self.comparisons),
        )


def usable_threshold(threshold: float) -> tuple[float | None, str | None]:
    """Return a threshold that tells scores apart, or else None and why it does not."""
    if math.isfinite(threshold):
        return threshold, None
    return None, "it accepts everything" if threshold == -math.inf else "it accepts nothing"


Share = ClusteredShare | IndependentShare


def rate_of(share: Share | None, target: str | None = None) -> ErrorRate:
    """Describe the rate of a share, None where there is no comparison; see `error_rate`."""
    events, comparisons = (0, 0) if share is None else (share.events, share.comparisons)
    return error_rate(share, events, comparisons, target)


def error_rate(
    share: Share | None, errors: int, comparisons: int, target: str | None = None
) -> ErrorRate:
    """Describe a rate.

    Args:
        share: its sums by subject, if known; they carry the interval.
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
        remark = "no interval: errors are too many to be counted by subject"
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
