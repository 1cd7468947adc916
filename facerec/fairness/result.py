"""What an audit consists of: figures by grouping, and what is said of them.

The page, the tables, the JSON file and the comparison with a baseline are made of these classes.
What cannot be computed is a `NoComparison` with its reason in the place of the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import facerec
from facerec.fairness.association import Association
from facerec.fairness.attributes import Exclusion, GroupCount, Grouping
from facerec.fairness.baseline import BaselineComparison
from facerec.fairness.channels import Channel, FusionChange, NormChannels
from facerec.fairness.covariates import AdjustedAssociation
from facerec.fairness.differentials import Differentials
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.norms import NormTable, SubjectNorms
from facerec.fairness.one_to_many import OneToMany
from facerec.fairness.rate_results import GlobalThreshold, GroupRates, ScoreHistogram
from facerec.report import words
from facerec.report.conclusions import Conclusion
from facerec.report.estimate import Estimate

Topic = Literal[
    "norm", "adjusted norm", "FMR", "FNMR", "FPIR", "FNIR", "norm and FNMR", "fusion", "baseline"
]


@dataclass(frozen=True)
class Settings:
    """What was asked for."""

    groups: tuple[str, ...]
    """Attributes in the order given; the first one is the primary one."""
    intersect: bool
    """Whether combinations of all of them are groups too."""
    targets: tuple[str, ...]
    """Nominal FMRs, as they were written."""
    impostors: Literal["all", "list"]
    """All pairs of images, or those of a pair list."""
    covariates: tuple[str, ...]
    gating: bool
    """Declared: images are accepted or discarded by norm."""
    confidence: bool
    """Declared: the norm is shown or returned as a confidence."""
    permutations: int
    replicates: int
    seed: int


@dataclass(frozen=True)
class InputFile:
    """A file that the audit read."""

    role: Literal[
        "embeddings",
        "attributes",
        "quality",
        "pairs",
        "scores",
        "calibration",
        "model",
        "baseline",
    ]
    name: str
    """Without its folder."""
    sha256: str
    details: Mapping[str, Any]
    """What is known of it, as JSON types: for embeddings ``images``, ``dim``, ``flip``,
    ``failures`` and ``model``; for attributes ``lines``."""


@dataclass(frozen=True, eq=False)
class GroupAudit:
    """Everything about one attribute, or about the intersection of several."""

    grouping: Grouping
    """Its attributes and groups, in the order of all tuples and tables below. The groups of images
    are not written to any file."""
    primary: bool
    """Whether its η² is the one test declared in advance."""
    composition: tuple[GroupCount, ...]
    """Subjects, images and failures of each group."""
    association: Association | NoComparison
    rates: GroupRates | NoComparison
    differentials: Differentials | NoComparison
    channels: NormChannels | NoComparison
    """At the threshold of `Audit.target`; its ``curves`` are those of error versus discard."""
    fusion: tuple[FusionChange, ...] | NoComparison
    """Raw against unit fusion of two views."""
    histograms: tuple[ScoreHistogram, ...]
    """One a group that has both kinds of pairs; empty without rates."""
    sample: SubjectNorms | None = None
    """Norms behind the tables; ``means`` and ``groups`` of subjects are for figures. Not written
    to any file. None where scores were audited, which have no norms."""
    norms: NormTable | None = None
    adjusted: AdjustedAssociation | NoComparison | None = None
    """None without covariates."""

    @property
    def name(self) -> str:
        """The attribute, or as in ``race × sex``."""
        return self.grouping.name

    @property
    def names(self) -> tuple[str, ...]:
        """The groups that are shown."""
        return self.grouping.names

    @property
    def slices(self) -> tuple[Mapping[str, str], ...]:
        """Value by attribute of each group."""
        return tuple(self.grouping.slice(code) for code in range(len(self.grouping.cells)))

    @property
    def pooled(self) -> tuple[str, ...]:
        """Cells under ten subjects that make up the group ``other (pooled)``."""
        return tuple(" × ".join(cell) for cell in self.grouping.pooled)

    @property
    def suppressed(self) -> tuple[str, ...]:
        """Cells left out: under ten subjects, or else such a cell would follow from totals."""
        return tuple(" × ".join(cell) for cell in self.grouping.suppressed)


@dataclass(frozen=True, kw_only=True)
class Finding(Estimate):
    """One line of the findings box.

    It rests on ``total``; ``remark`` is the minimum detectable effect, or why the data do not
    suffice.
    """

    in_files: ClassVar = (
        "topic grouping figure value interval n=total unit conclusion detail=remark p exploratory"
    )
    total: int
    said: str
    """What was found, as a sentence in plain words with the figure."""
    topic: Topic
    grouping: str
    """The attribute, or the intersection."""
    figure: str
    """What was estimated, as words, such as ``η² of subjects' mean norms``."""
    unit: str
    """What is counted by ``total``: ``subjects``, ``non-mated pairs`` …"""
    conclusion: Conclusion
    p: float | None
    """Of the test behind the conclusion."""
    exploratory: bool
    """Whether it is anything but the one test declared in advance; marked E."""

    @property
    def text(self) -> str:
        """The whole line: the sentence, then what was measured."""
        conclusion = f"{self.conclusion} ({self.remark})" if self.remark else self.conclusion
        return f"{self.said} ({self.measured}): {conclusion}{' [E]' if self.exploratory else ''}"

    @property
    def measured(self) -> str:
        """What was estimated, what it rests on, and the p-value of its test."""
        p = "" if self.p is None else f", p = {words.p_value(self.p)}"
        return f"{self.grouping}: {self.figure}, {self.total:,} {self.unit}{p}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Audit:
    """Everything that a report says; what has a default is added by `facerec.fairness.audit`."""

    settings: Settings
    inputs: tuple[InputFile, ...]
    label_sources: tuple[str, ...]
    """Where labels come from."""
    banner: str | None
    """What every page must carry, if anything."""
    images: int | None
    """Joined images, acquired or not; None with scores."""
    pairs: int | None
    """Scored pairs; None with embeddings."""
    failures: int
    """Failures to acquire among images or pairs."""
    subjects: int | None
    """Subjects of joined images or of scores; None where these do not name them."""
    single_images: bool = False
    """Whether each subject has one image, so that each image is a cluster of its own."""
    exclusions: tuple[Exclusion, ...]
    """Images and lines left out, counted."""
    policy: str
    """Which impostors are compared, as words for a sentence."""
    channels: tuple[Channel, ...] = ()
    """Ways for norms to reach decisions."""
    groupings: tuple[GroupAudit, ...]
    """Attributes in the order asked for, then the intersection."""
    warnings: tuple[str, ...]
    """What a reader must know of these data, one sentence each."""
    comparison: BaselineComparison | None = None
    """With a baseline."""
    one_to_many: OneToMany | NoComparison | None = None
    """Identification, if it was asked for."""
    thresholds: tuple[GlobalThreshold, ...] = ()
    """One a target, the same for all groupings; empty without rates."""
    target: str | None = None
    """The target of channels, and of findings that compare no groups: the lowest that leaves room
    for 30 false matches where the threshold was fixed, or else the highest that is resolvable; None
    without any."""
    skipped: tuple[NoComparison, ...] = ()
    """Groupings of which no group has enough subjects."""
    findings: tuple[Finding, ...] = ()
    """At most eight."""
    caveats: tuple[str, ...] = ()
    """Fixed sentences that belong to every report."""
    version: str = facerec.__version__
    """Of facerec."""

    @property
    def of_scores(self) -> bool:
        """Whether scores were audited, which come without images, norms and baseline."""
        return self.images is None

    @property
    def lead(self) -> str:
        """What was audited, in a few words."""
        things = f"{self.pairs:,} scored pairs" if self.of_scores else f"{self.images:,} images"
        who = (
            "subjects who are not named"
            if self.subjects is None
            else words.counted(self.subjects, "subject")
        )
        return f"{things} of {who}"
