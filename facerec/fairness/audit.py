"""The audit: embeddings and recorded attributes in, everything that a report says out.

`audit` calls the pieces in order; the dataclasses here are what the page, the tables, the JSON file
and the comparison with a baseline are made of. What cannot be computed is a `NoComparison` with its
reason in the place of the figures.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

import facerec
from facerec.embedding.extract import Embeddings
from facerec.errors import DatasetError, MetricError
from facerec.fairness.association import (
    AdjustedAssociation,
    Association,
    NoComparison,
    adjust_for_covariates,
    associate,
)
from facerec.fairness.attributes import Attributes, Exclusion, GroupCount, Grouping, Joined, join
from facerec.fairness.baseline import BaselineComparison, RunPair, compare_runs
from facerec.fairness.channels import (
    Channel,
    FusionChange,
    NormChannels,
    channel_checklist,
    compare_fusion,
    mated_pairs,
    norm_channels,
)
from facerec.fairness.differentials import REPLICATES, Differentials, differentials
from facerec.fairness.findings import Finding, caveats, find
from facerec.fairness.norms import NormTable, SubjectBootstrap, SubjectNorms, norm_table
from facerec.fairness.rates import (
    TARGETS,
    UNKNOWN,
    Calibration,
    GlobalThreshold,
    GroupErrors,
    GroupRates,
    ScoreHistogram,
    all_pairs_group_rates,
    pair_group_rates,
)
from facerec.statistics.operating_points import OperatingPoint, parse_rate
from facerec.statistics.rates import operating_points
from facerec.verification.bench import Bench
from facerec.verification.evaluate import score_pairs, select_embeddings
from facerec.verification.protocols import ScoredPairs
from facerec.verification.scoring import Progress, score_all_pairs

PERMUTATIONS = 9999

MOST_MATED = 2**25
"""Mated pairs up to which norms and scores of pairs are held against each other."""


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

    role: Literal["embeddings", "attributes", "pairs", "scores", "calibration", "model", "baseline"]
    name: str
    """Without its folder."""
    sha256: str
    details: Mapping[str, Any]
    """What is known of it, as JSON types: for embeddings ``images``, ``dim``, ``flip``,
    ``failures`` and ``model``; for attributes ``lines``."""


@dataclass(frozen=True, eq=False)
class GroupAudit:
    """Everything about one attribute, or about the intersection of several."""

    name: str
    """The attribute, or as in ``race × sex``."""
    attributes: tuple[str, ...]
    primary: bool
    """Whether its η² is the one test declared in advance."""
    names: tuple[str, ...]
    """The groups that are shown, in the order of all tuples and tables below."""
    slices: tuple[Mapping[str, str], ...]
    """Value by attribute of each group."""
    pooled: tuple[str, ...]
    """Cells under ten subjects that make up the group ``other (pooled)``."""
    suppressed: tuple[str, ...]
    """Cells left out: under ten subjects, or else such a cell would follow from totals."""
    composition: tuple[GroupCount, ...]
    """Subjects, images and failures of each group."""
    sample: SubjectNorms | None
    """Norms behind the tables; ``means`` and ``groups`` of subjects are for figures. Not written
    to any file. None where scores were audited, which have no norms."""
    norms: NormTable | None
    association: Association | NoComparison
    adjusted: AdjustedAssociation | NoComparison | None
    """None without covariates."""
    rates: GroupRates | NoComparison
    differentials: Differentials | NoComparison
    channels: NormChannels | NoComparison
    """At the threshold of `Audit.target`; its ``curves`` are those of error versus discard."""
    fusion: tuple[FusionChange, ...] | NoComparison
    """Raw against unit fusion of two views."""
    histograms: tuple[ScoreHistogram, ...]
    """One a group that has both kinds of pairs; empty without rates."""
    errors: GroupErrors | None
    """Counts by person behind the rates, for joint resamples with other embeddings. Not written
    to any file."""


@dataclass(frozen=True, eq=False)
class Audit:
    """Everything that a report says."""

    version: str
    """Of facerec."""
    settings: Settings
    inputs: tuple[InputFile, ...]
    label_sources: tuple[str, ...]
    """Where labels come from."""
    banner: str | None
    """What every page must carry, if anything."""
    joined: Joined | None
    """Images behind the figures, for comparisons. Not written to any file. None with scores."""
    images: int | None
    """Joined images, acquired or not; None with scores."""
    pairs: int | None
    """Scored pairs; None with embeddings."""
    failures: int
    """Failures to acquire among images or pairs."""
    subjects: int | None
    """Subjects of joined images or of scores; None where these do not name them."""
    single_images: bool
    """Whether each subject has one image, so that each image is a cluster of its own."""
    exclusions: tuple[Exclusion, ...]
    """Images and lines left out, counted."""
    policy: str
    """Which impostors are compared, as words for a sentence."""
    thresholds: tuple[GlobalThreshold, ...]
    """One a target, the same for all groupings; empty without rates."""
    target: str | None
    """The target of findings and channels: the lowest that leaves room for 30 false matches where
    the threshold was fixed, or else the highest that is resolvable; None without any."""
    channels: tuple[Channel, ...]
    """Ways for norms to reach decisions."""
    groupings: tuple[GroupAudit, ...]
    """Attributes in the order asked for, then the intersection."""
    skipped: tuple[NoComparison, ...]
    """Groupings of which no group has enough subjects."""
    findings: tuple[Finding, ...]
    """At most six."""
    caveats: tuple[str, ...]
    """Fixed sentences that belong to every report."""
    warnings: tuple[str, ...]
    """What a reader must know of these data, one sentence each."""
    comparison: BaselineComparison | None
    """With a baseline."""

    @property
    def of_scores(self) -> bool:
        """Whether scores were audited, which come without images, norms and baseline."""
        return self.images is None

    @property
    def lead(self) -> str:
        """What was audited, in a few words."""
        things = f"{self.pairs:,} scored pairs" if self.of_scores else f"{self.images:,} images"
        people = "subjects who are not named" if self.subjects is None else _people(self.subjects)
        return f"{things} of {people}"


def _people(count: int) -> str:
    return f"{count:,} subject{'' if count == 1 else 's'}"


def audit(
    embeddings: Embeddings,
    attributes: Attributes,
    *,
    intersect: bool = False,
    pairs: Bench | None = None,
    targets: Sequence[str] = TARGETS,
    calibration: Calibration | None = None,
    unit: NDArray[np.floating] | None = None,
    gating: bool = False,
    confidence: bool = False,
    permutations: int = PERMUTATIONS,
    replicates: int = REPLICATES,
    seed: int = 0,
    inputs: Sequence[InputFile] = (),
    source: str = "the embeddings",
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Audit:
    """Audit norms and error rates by recorded groups.

    Args:
        embeddings: raw ones, with image ids.
        attributes: of these images; the first one's η² is the one test declared in advance.
        intersect: make the combinations of all attributes groups too.
        pairs: whose pairs are scored; without it every image is compared with every other.
        targets: nominal FMRs, taken exactly.
        calibration: where the global thresholds were fixed, by default on all impostors of this
            data.
        unit: the same embeddings with each of the two views normalised before they were added,
            ``(N, D)``, to compare raw with unit fusion.
        gating: declared: images are accepted or discarded by norm.
        confidence: declared: the norm is shown or returned as a confidence.
        permutations: of the tests on norms.
        replicates: resamples of the subjects.
        seed: of permutations and resamples.
        inputs: the files behind all this, for the report.
        source: names the embeddings in errors.
        device: where scores are computed.
        progress: called with what is being done, the steps that are done and the steps in all.

    Raises:
        DatasetError: images that do not join, normalised embeddings, no group with enough
            subjects, or one attribute to intersect.
        MetricError: an impossible target, or arrays that do not fit together.
        DeviceError: the device is not there.
    """
    for target in targets:
        parse_rate(target)
    names = tuple(attributes.groups)
    if intersect and len(names) < 2:
        raise DatasetError(
            f"{attributes.path}: an intersection needs two attributes or more, found "
            f"{', '.join(names)}; name another one or leave it out"
        )
    if embeddings.ids is None:
        raise DatasetError(f"{source}: embeddings without ids cannot be joined with attributes")
    joined = join(
        attributes,
        embeddings.ids,
        embeddings.norms,
        embeddings.failures,
        intersections=[names] if intersect else [],
        source=source,
    )
    settings = Settings(
        groups=names,
        intersect=intersect,
        targets=tuple(targets),
        impostors="all" if pairs is None else "list",
        covariates=tuple(attributes.covariates),
        gating=gating,
        confidence=confidence,
        permutations=permutations,
        replicates=replicates,
        seed=seed,
    )
    auditor = _Auditor(embeddings, joined, settings, pairs, device, progress)
    return auditor.run(calibration, unit, inputs)


def compare_with(
    found: Audit,
    embeddings: Embeddings,
    baseline: Embeddings,
    *,
    pairs: Bench | None = None,
    name: str = "the baseline",
) -> Audit:
    """Add to an audit the changes from a baseline, by its primary attribute.

    Args:
        found: audit of ``embeddings``.
        embeddings: that were audited.
        baseline: of the same images by the other model.
        pairs: that were scored; None if every image was compared with every other.
        name: of the baseline, for errors.

    Raises:
        DatasetError: the baseline was normalised.
        MetricError: an audited image has no embedding in the baseline.
    """
    assert embeddings.ids is not None  # else nothing would have been joined
    joined, settings = found.joined, found.settings
    assert joined is not None  # as embeddings were audited
    grouping = joined.groupings[0]
    full = np.full((2, len(embeddings.ids)), UNKNOWN)
    full[:, joined.rows] = joined.subjects, grouping.codes
    ids = embeddings.ids[joined.rows] if pairs is None else pairs.images.ids
    rows = pd.Index(embeddings.ids).get_indexer(pd.Index(ids))
    comparison = compare_runs(
        [
            RunPair(
                seed=0,
                baseline=select_embeddings(baseline, ids, name),
                treated=select_embeddings(embeddings, ids, "the audited embeddings"),
            )
        ],
        full[0, rows],
        full[1, rows],
        grouping.names,
        attribute=grouping.name,
        pairs=None if pairs is None else pairs.pairs,
        impostors=settings.impostors,
        targets=settings.targets,
        replicates=settings.replicates,
        seed=settings.seed,
    )
    findings = find(found.groupings, found.target, comparison)
    return replace(found, comparison=comparison, findings=findings)


def calibrate_on_embeddings(
    embeddings: Embeddings,
    targets: Sequence[str] = TARGETS,
    *,
    name: str,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Calibration:
    """Fix thresholds on all pairs of other images.

    Args:
        embeddings: with subjects; images without one are passed over.
        targets: nominal FMRs.
        name: of these data, for reports and errors.
        device: where scores are computed.
        progress: see `audit`.

    Raises:
        DatasetError: the embeddings do not say who is on the images.
        MetricError: no mated or no impostor pair, or an impossible target.
        DeviceError: the device is not there.
    """
    subjects = embeddings.subjects
    known = np.zeros(len(embeddings.vectors), bool) if subjects is None else subjects != ""
    if subjects is None or not known.any():
        raise DatasetError(
            f"{name}: these embeddings do not say who is on the images, so no threshold can be "
            "fixed on them; embed record files or a folder of identity/image.jpg, or give scores"
        )
    found = score_all_pairs(
        embeddings.vectors[known],
        subjects[known],
        fpr=targets,
        tables_at_points=False,
        device=device,
        progress=progress,
    )
    return _calibration(f"calibration on {name}", found.points)


def calibrate_on_scores(
    scored: ScoredPairs, targets: Sequence[str] = TARGETS, *, name: str
) -> Calibration:
    """Fix thresholds on labelled scores.

    Args:
        scored: a larger score means more alike.
        targets: nominal FMRs.
        name: of these data, for reports.

    Raises:
        MetricError: no mated or no impostor score, or an impossible target.
    """
    points = _points(scored.scores, scored.issame, targets)
    return _calibration(f"calibration on {name}", points)


def _points(
    scores: NDArray[np.floating], same: NDArray[np.bool_], targets: Sequence[str]
) -> tuple[OperatingPoint, ...]:
    there = ~np.isnan(scores)
    return operating_points(scores[there & same], scores[there & ~same], targets)


def _calibration(source: str, points: Sequence[OperatingPoint]) -> Calibration:
    pairs = points[0].non_mated if points else 0
    return Calibration(f"{source}: {pairs:,} impostor pairs pooled", tuple(points))


Rows = NDArray[np.int64]


class _Comparisons(ABC):
    """Pairs of rows of the embeddings, and their scores."""

    policy: str
    """Which impostors there are, see `Audit.policy`."""

    @abstractmethod
    def calibrate(self, targets: Sequence[str], group: Rows, names: Sequence[str]) -> Calibration:
        """Fix thresholds on the impostors of these pairs.

        Args:
            targets: nominal FMRs.
            group: code of the group of each row, ``(N,)``, by which errors are asked for first.
            names: of the groups.
        """

    @abstractmethod
    def errors(
        self, group: Rows, names: Sequence[str], targets: Sequence[str], calibration: Calibration
    ) -> GroupErrors:
        """Count errors by group.

        Args:
            group: code of the group of each row, ``(N,)``.
            names: of the groups.
            targets: nominal FMRs.
            calibration: gives the thresholds.
        """

    @abstractmethod
    def mated(self) -> tuple[NDArray[np.float32], Rows, Rows] | None:
        """Return scores and sides of the mated pairs; None if there are too many."""


class _AllImages(_Comparisons):
    """Every image with every other one."""

    policy = "from all pairs of images of two persons"

    def __init__(
        self,
        vectors: NDArray[np.floating],
        subject: Rows,
        device: str | torch.device,
        progress: Progress | None,
    ) -> None:
        self._vectors, self._subject = vectors, subject
        self._device, self._progress = device, progress
        self._counted: tuple[Rows, tuple[str, ...], GroupErrors] | None = None

    def calibrate(self, targets: Sequence[str], group: Rows, names: Sequence[str]) -> Calibration:
        known = self._subject != UNKNOWN
        if (group[known] != UNKNOWN).all():
            # The same comparison of all pairs gives thresholds and errors.
            errors = self._errors(group, names, targets)
            self._counted = group, tuple(names), errors
            return errors.calibration
        found = score_all_pairs(
            self._vectors[known],
            self._subject[known],
            fpr=targets,
            tables_at_points=False,
            device=self._device,
            progress=self._progress,
        )
        return _calibration("this data", found.points)

    def errors(
        self, group: Rows, names: Sequence[str], targets: Sequence[str], calibration: Calibration
    ) -> GroupErrors:
        if self._counted is not None:
            counted, known_names, errors = self._counted
            if np.array_equal(group, counted) and tuple(names) == known_names:
                return errors
        return self._errors(group, names, targets, calibration)

    def _errors(
        self,
        group: Rows,
        names: Sequence[str],
        targets: Sequence[str],
        calibration: Calibration | None = None,
    ) -> GroupErrors:
        return all_pairs_group_rates(
            self._vectors,
            self._subject,
            group,
            names,
            targets=targets,
            calibration=calibration,
            device=self._device,
            progress=self._progress,
        )

    def mated(self) -> tuple[NDArray[np.float32], Rows, Rows] | None:
        images = np.bincount(self._subject[self._subject != UNKNOWN])
        if (images * (images - 1) // 2).sum() > MOST_MATED:
            return None
        first, second = mated_pairs(self._subject)
        return score_pairs(self._vectors, first, second), first, second


class _ListedPairs(_Comparisons):
    """The pairs of a bench."""

    def __init__(
        self, vectors: NDArray[np.floating], subject: Rows, bench: Bench, ids: NDArray[np.str_]
    ) -> None:
        rows = pd.Index(ids).get_indexer(pd.Index(bench.images.ids)).astype(np.int64)
        absent = np.flatnonzero(rows < 0)
        if absent.size:
            raise DatasetError(
                f"{bench.name}: {absent.size:,} of its {rows.size:,} images have no embedding, the "
                f"first is {str(bench.images.ids[absent[0]])!r}; ids must be equal to the letter"
            )
        self.policy = f"from the pair list of {bench.name}"
        self._name, self._subject = bench.name, subject
        self._same = bench.pairs.issame
        self._first, self._second = rows[bench.pairs.first], rows[bench.pairs.second]
        self._scores = score_pairs(vectors, self._first, self._second)
        self._failed = ~np.isfinite(vectors).all(axis=1)

    def calibrate(self, targets: Sequence[str], group: Rows, names: Sequence[str]) -> Calibration:
        points = _points(self._scores, self._same, targets)
        return _calibration(f"this data, {self._name}", points)

    def errors(
        self, group: Rows, names: Sequence[str], targets: Sequence[str], calibration: Calibration
    ) -> GroupErrors:
        return pair_group_rates(
            self._scores,
            self._first,
            self._second,
            self._same,
            self._subject,
            group,
            names,
            targets=targets,
            calibration=calibration,
            failed=self._failed,
        )

    def mated(self) -> tuple[NDArray[np.float32], Rows, Rows] | None:
        sides = self._subject[self._first], self._subject[self._second]
        # A label that the subjects contradict is counted with the rates and used nowhere.
        one = (sides[0] == sides[1]) | (sides[0] == UNKNOWN) | (sides[1] == UNKNOWN)
        used = self._same & one
        return self._scores[used], self._first[used], self._second[used]


class _Auditor:
    """Calls the pieces on one set of joined images."""

    def __init__(
        self,
        embeddings: Embeddings,
        joined: Joined,
        settings: Settings,
        bench: Bench | None,
        device: str | torch.device,
        progress: Progress | None,
    ) -> None:
        self._embeddings, self._joined, self._settings = embeddings, joined, settings
        self._bench, self._device, self._progress = bench, device, progress
        self._subject = self._over_rows(joined.subjects, np.int64(UNKNOWN))
        self._norms = self._over_rows(joined.norms, np.float64(np.nan))
        self._raw = self._comparisons(embeddings.vectors)

    def run(
        self,
        calibration: Calibration | None,
        unit: NDArray[np.floating] | None,
        inputs: Sequence[InputFile],
    ) -> Audit:
        """Audit every grouping and put the rest around it."""
        joined, settings = self._joined, self._settings
        shown = [grouping for grouping in joined.groupings if grouping.cells]
        if not shown:
            raise DatasetError(
                f"{', '.join(settings.groups)}: no group has the ten subjects that it takes to be "
                "shown; there is nothing to audit"
            )
        self._mated = self._raw.mated()
        fixed = self._calibrate(self._raw, shown[0]) if calibration is None else calibration
        other = self._unit(unit, calibration, shown[0])
        groupings = tuple(self._grouping(grouping, fixed, other) for grouping in shown)
        found = [part.rates for part in groupings if isinstance(part.rates, GroupRates)]
        thresholds = tuple(point.threshold for point in found[0].points) if found else ()
        target = working_target(thresholds)
        return Audit(
            version=facerec.__version__,
            settings=settings,
            inputs=tuple(inputs),
            label_sources=joined.label_sources,
            banner=joined.banner,
            joined=joined,
            images=len(joined.rows),
            pairs=None,
            failures=int(np.count_nonzero(~joined.acquired)),
            subjects=len(np.unique(joined.subjects)),
            single_images=joined.single_images,
            exclusions=joined.exclusions,
            policy=self._raw.policy,
            thresholds=thresholds,
            target=target,
            channels=channel_checklist(
                flip=self._embeddings.flip,
                norm_weighting=None,
                gating=settings.gating,
                confidence=settings.confidence,
            ),
            groupings=groupings,
            skipped=tuple(
                NoComparison(grouping.name, "no group has the ten subjects that it takes")
                for grouping in joined.groupings
                if not grouping.cells
            ),
            findings=find(groupings, target),
            caveats=caveats(joined.label_sources, self._raw.policy, lfw=self._is_lfw()),
            warnings=self._warnings(thresholds, calibration),
            comparison=None,
        )

    def _comparisons(self, vectors: NDArray[np.floating]) -> _Comparisons:
        if self._bench is None:
            return _AllImages(vectors, self._subject, self._device, self._progress)
        assert self._embeddings.ids is not None  # else nothing would have been joined
        return _ListedPairs(vectors, self._subject, self._bench, self._embeddings.ids)

    def _calibrate(self, comparisons: _Comparisons, first: Grouping) -> Calibration | NoComparison:
        codes = self._over_rows(first.codes, np.int64(UNKNOWN))
        try:
            return comparisons.calibrate(self._settings.targets, codes, first.names)
        except MetricError as problem:
            return NoComparison("", str(problem))

    def _unit(
        self,
        unit: NDArray[np.floating] | None,
        calibration: Calibration | None,
        first: Grouping,
    ) -> tuple[_Comparisons, Calibration | NoComparison] | str:
        """Return the comparisons with unit fusion and their thresholds, or why there are none."""
        if unit is None and self._embeddings.flip is False:
            return "each embedding comes from one view; there is nothing to fuse"
        if unit is None:
            return "the embeddings hold the sum of two views, not each of them"
        if calibration is not None:
            return "the thresholds come from other data, whose unit fusion is not known"
        comparisons = self._comparisons(unit)
        return comparisons, self._calibrate(comparisons, first)

    def _grouping(
        self,
        grouping: Grouping,
        fixed: Calibration | NoComparison,
        unit: tuple[_Comparisons, Calibration | NoComparison] | str,
    ) -> GroupAudit:
        joined, settings = self._joined, self._settings
        sample = SubjectNorms.of(joined, grouping)
        bootstrap = SubjectBootstrap(sample.groups, settings.replicates, settings.seed)
        primary = grouping.attributes == settings.groups[:1]
        with self._stage(f"{grouping.name}: norms"):
            norms = norm_table(sample, bootstrap)
            association = associate(
                sample,
                bootstrap,
                role="primary" if primary else "exploratory",
                permutations=settings.permutations,
                seed=settings.seed,
            )
            adjusted = _adjusted(sample, bootstrap)
        codes = self._over_rows(grouping.codes, np.int64(UNKNOWN))
        errors = self._errors(self._raw, codes, grouping, fixed)
        rates: GroupRates | NoComparison
        channels: NormChannels | NoComparison
        measures: Differentials | NoComparison
        counted: GroupErrors | None = None
        histograms: tuple[ScoreHistogram, ...] = ()
        if isinstance(errors, NoComparison):
            rates = measures = channels = errors
        else:
            counted, rates, histograms = errors, errors.rates, errors.histograms
            with self._stage(f"{grouping.name}: differentials"):
                measures = differentials(errors, replicates=settings.replicates, seed=settings.seed)
            with self._stage(f"{grouping.name}: norms of pairs"):
                channels = self._channels(rates, codes, grouping)
        return GroupAudit(
            name=grouping.name,
            attributes=grouping.attributes,
            primary=primary,
            names=grouping.names,
            slices=tuple(grouping.slice(code) for code in range(len(grouping.cells))),
            pooled=tuple(" × ".join(cell) for cell in grouping.pooled),
            suppressed=tuple(" × ".join(cell) for cell in grouping.suppressed),
            composition=joined.count(grouping),
            sample=sample,
            norms=norms,
            association=association,
            adjusted=adjusted,
            rates=rates,
            differentials=measures,
            channels=channels,
            fusion=self._fusion(errors, codes, grouping, unit),
            histograms=histograms,
            errors=counted,
        )

    def _errors(
        self,
        comparisons: _Comparisons,
        codes: Rows,
        grouping: Grouping,
        fixed: Calibration | NoComparison,
    ) -> GroupErrors | NoComparison:
        if isinstance(fixed, NoComparison):
            return NoComparison(grouping.name, fixed.reason)
        try:
            return comparisons.errors(codes, grouping.names, self._settings.targets, fixed)
        except MetricError as problem:
            return NoComparison(grouping.name, str(problem))

    def _channels(
        self, rates: GroupRates, codes: Rows, grouping: Grouping
    ) -> NormChannels | NoComparison:
        thresholds = [point.threshold for point in rates.points]
        target = working_target(thresholds)
        value = {threshold.target: threshold.value for threshold in thresholds}.get(str(target))
        if value is None:
            return NoComparison(grouping.name, "no target has a threshold on these data")
        if self._mated is None:
            return NoComparison(grouping.name, f"there are more than {MOST_MATED:,} mated pairs")
        scores, first, second = self._mated
        try:
            return norm_channels(
                scores,
                first,
                second,
                self._norms,
                self._subject,
                codes,
                grouping.names,
                threshold=value,
                replicates=self._settings.replicates,
                seed=self._settings.seed,
            )
        except MetricError as problem:
            return NoComparison(grouping.name, str(problem))

    def _fusion(
        self,
        raw: GroupErrors | NoComparison,
        codes: Rows,
        grouping: Grouping,
        unit: tuple[_Comparisons, Calibration | NoComparison] | str,
    ) -> tuple[FusionChange, ...] | NoComparison:
        if isinstance(raw, NoComparison):
            return raw
        if isinstance(unit, str):
            return NoComparison(grouping.name, unit)
        comparisons, fixed = unit
        other = self._errors(comparisons, codes, grouping, fixed)
        if isinstance(other, NoComparison):
            return other
        settings = self._settings
        try:
            return compare_fusion(raw, other, replicates=settings.replicates, seed=settings.seed)
        except MetricError as problem:
            return NoComparison(grouping.name, str(problem))

    def _warnings(
        self, thresholds: Sequence[GlobalThreshold], calibration: Calibration | None
    ) -> tuple[str, ...]:
        found = []
        if self._joined.single_images:
            found.append(
                "Every subject has one image, so each image is a cluster of its own: nothing is "
                "known of the spread within subjects, and there are no mated pairs."
            )
        if thresholds and calibration is None:
            found.append(
                "The global thresholds were fixed on the impostor pairs of these data themselves; "
                "thresholds from other data would give other rates."
            )
        found += [
            f"FMR {threshold.target} is not resolvable with the {threshold.non_mated:,} impostor "
            "pairs on which the threshold was fixed."
            for threshold in thresholds
            if not threshold.resolvable
        ]
        if self._embeddings.flip is None:
            found.append("The embeddings do not say whether mirror images took part.")
        return tuple(found)

    def _is_lfw(self) -> bool:
        source = self._embeddings.note.get("source", {})
        names = [PurePath(str(source.get("path", ""))).stem]
        if self._bench is not None:
            names.append(self._bench.name)
        return any(name.lower() == "lfw" for name in names)

    def _over_rows(self, values: NDArray[Any], missing: np.generic) -> NDArray[Any]:
        """Spread values of joined images over all rows of the embeddings."""
        full = np.full(len(self._embeddings.vectors), missing)
        full[self._joined.rows] = values
        return full

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        if self._progress is not None:
            self._progress(name, 0, 1)
        yield
        if self._progress is not None:
            self._progress(name, 1, 1)


def working_target(thresholds: Sequence[GlobalThreshold]) -> str | None:
    """Return the target that findings and channels look at, see `Audit.target`."""
    usable = [threshold for threshold in thresholds if threshold.value is not None]
    ascending = sorted(usable, key=lambda threshold: parse_rate(threshold.target))
    for threshold in ascending:
        if threshold.reliable:
            return threshold.target
    for threshold in reversed(ascending):
        if threshold.resolvable:
            return threshold.target
    return None


def _adjusted(
    sample: SubjectNorms, bootstrap: SubjectBootstrap
) -> AdjustedAssociation | NoComparison | None:
    if not sample.covariates:
        return None
    try:
        return adjust_for_covariates(sample, bootstrap)
    except MetricError as problem:
        return NoComparison(sample.name, str(problem))
