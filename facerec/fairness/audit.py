"""The audit: embeddings and recorded attributes in, everything that a report says out.

`audit` calls the pieces in order and puts them together; so does `facerec.fairness.scores` for
scores without embeddings. What cannot be computed is a `NoComparison` with its reason in the place
of the figures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from facerec.defaults import FMR_TARGETS, PERMUTATIONS, REPLICATES
from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError, MetricError
from facerec.fairness.association import associate
from facerec.fairness.attributes import (
    POOLED,
    Attributes,
    Grouping,
    Joined,
    join,
)
from facerec.fairness.baseline import BaselineComparison, RunPair, compare_runs
from facerec.fairness.channels import (
    FusionChange,
    NormChannels,
    channel_checklist,
    compare_fusion,
    norm_channels,
)
from facerec.fairness.comparisons import MOST_MATED, AllImages, Comparisons, ListedPairs, Rows
from facerec.fairness.covariates import AdjustedAssociation, adjust_for_covariates
from facerec.fairness.differentials import Differentials, differentials
from facerec.fairness.findings import caveats, find
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.norms import SubjectBootstrap, SubjectNorms, norm_table
from facerec.fairness.one_to_many import (
    OneToMany,
    OtherSubjects,
    SearchPlan,
    audit_searches,
)
from facerec.fairness.rate_results import UNKNOWN, Calibration, GlobalThreshold, GroupRates
from facerec.fairness.rates import GroupErrors
from facerec.fairness.result import Audit, GroupAudit, InputFile, Settings
from facerec.progress import Progress
from facerec.statistics.operating_points import parse_rate
from facerec.verification.bench import Bench
from facerec.verification.evaluation import select_embeddings

FIXED_HERE = (
    "In this comparison both models have thresholds fixed on the non-mated pairs of these data; "
    "rates elsewhere in the report are at thresholds fixed on other data, so the figures differ"
)
"""What a comparison with a baseline says where other data gave the thresholds of the audit."""

T = TypeVar("T")


def audit(
    embeddings: Embeddings,
    attributes: Attributes,
    *,
    intersect: bool = False,
    pairs: Bench | None = None,
    targets: Sequence[str] = FMR_TARGETS,
    calibration: Calibration | None = None,
    unit: NDArray[np.floating] | None = None,
    baseline: Embeddings | None = None,
    baseline_name: str = "the baseline",
    searches: SearchPlan | None = None,
    search_others: OtherSubjects | None = None,
    gating: bool = False,
    confidence: bool = False,
    permutations: int = PERMUTATIONS,
    replicates: int = REPLICATES,
    seed: int = 0,
    inputs: Sequence[InputFile] = (),
    remarks: Sequence[str] = (),
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
        baseline: embeddings of the same images by another model, from which changes by the primary
            attribute are stated.
        baseline_name: names it in errors.
        searches: also audit identification (1:N) in this way.
        search_others: on whom its thresholds are set, by default on the audited subjects.
        gating: declared: images are accepted or discarded by norm.
        confidence: declared: the norm is shown or returned as a confidence.
        permutations: of the tests on norms.
        replicates: resamples of the subjects.
        seed: of permutations and resamples.
        inputs: the files behind all this, for the report.
        remarks: warnings that these files gave rise to.
        source: names the embeddings in errors.
        device: where scores are computed.
        progress: called with what is being done, the steps that are done and the steps in all.

    Raises:
        DatasetError: images that do not join, normalised embeddings, no group with enough
            subjects, one attribute to intersect, or a reference group that is not shown.
        MetricError: an impossible target, arrays that do not fit together, or an audited image
            without an embedding in the baseline.
        DeviceError: the device is not there.
    """
    names = tuple(attributes.groups)
    check_request(names, intersect, targets, str(attributes.path))
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
    identification = None
    if searches is not None:
        identification = auditor.identification(searches, search_others)
    groupings = auditor.groupings(calibration, unit)
    comparison = None if baseline is None else auditor.compare(baseline, baseline_name)
    if comparison is not None and calibration is not None:
        comparison = replace(comparison, notes=(*comparison.notes, FIXED_HERE))
    notes = []
    if joined.single_images:
        notes.append(
            "Every subject has one image, so each image is a cluster of its own: nothing is "
            "known of the spread within subjects, and there are no mated pairs."
        )
    unknown = "The embeddings do not say whether mirror images took part."
    result = Audit(
        settings=settings,
        inputs=tuple(inputs),
        label_sources=joined.label_sources,
        banner=joined.banner,
        images=len(joined.rows),
        pairs=None,
        failures=int(np.count_nonzero(~joined.acquired)),
        subjects=len(np.unique(joined.subjects)),
        single_images=joined.single_images,
        exclusions=joined.exclusions,
        policy=auditor.policy,
        channels=channel_checklist(flip=embeddings.flip, gating=gating, confidence=confidence),
        groupings=groupings,
        warnings=(*remarks, *notes),
        comparison=comparison,
        one_to_many=identification,
    )
    return complete(
        result,
        joined.groupings,
        calibrated=calibration is not None,
        lfw=_is_lfw(embeddings, pairs),
        last=[unknown] if embeddings.flip is None else [],
    )


def check_request(
    groups: Sequence[str], intersect: bool, targets: Sequence[str], source: str
) -> None:
    """Refuse what no audit can do, before anything is computed.

    Raises:
        DatasetError: one attribute to intersect.
        MetricError: an impossible target.
    """
    for target in targets:
        parse_rate(target)
    if intersect and len(groups) < 2:
        raise DatasetError(
            f"{source}: an intersection needs two attributes or more, found "
            f"{', '.join(groups)}; name another one or leave it out"
        )


def shown(
    groupings: Sequence[Grouping], groups: Sequence[str], source: str = "", unit: str = "subjects"
) -> list[Grouping]:
    """Return the groupings with a group to show.

    Raises:
        DatasetError: there is none.
    """
    nonempty = [grouping for grouping in groupings if grouping.cells]
    if not nonempty:
        raise DatasetError(
            f"{source}{', '.join(groups)}: no group has the ten {unit} that it takes to be shown; "
            "there is nothing to audit"
        )
    return nonempty


def complete(
    audit: Audit,
    formed: Sequence[Grouping],
    *,
    calibrated: bool,
    lfw: bool = False,
    last: Sequence[str] = (),
) -> Audit:
    """Add what follows from the figures of an audit: thresholds, findings and what is said of them.

    Args:
        audit: with all figures.
        formed: all groupings, shown or not.
        calibrated: whether other data gave the thresholds.
        lfw: whether the images are those of LFW.
        last: warnings that come after those on thresholds.
    """
    rates = [one.rates for one in audit.groupings if isinstance(one.rates, GroupRates)]
    thresholds = tuple(point.threshold for point in rates[0].points) if rates else ()
    target = working_target(thresholds)
    warnings = [
        f"{one.name}: no value has ten subjects, so they are one group and nothing is compared; "
        "join values to bins, such as ages 18-29 and 30-44."
        for one in audit.groupings
        if one.names == (POOLED,)
    ]
    if thresholds and not calibrated:
        warnings.append(
            "The global thresholds were fixed on the non-mated pairs of these data themselves; "
            "thresholds from other data would give other rates."
        )
    warnings += [
        f"FMR {threshold.target} is not resolvable with the {threshold.non_mated:,} non-mated "
        "pairs on which the threshold was fixed."
        for threshold in thresholds
        if not threshold.resolvable
    ]
    return replace(
        audit,
        thresholds=thresholds,
        target=target,
        skipped=tuple(
            NoComparison(grouping.name, "no group has the ten subjects that it takes")
            for grouping in formed
            if not grouping.cells
        ),
        findings=find(audit.groupings, target, audit.comparison, audit.one_to_many),
        caveats=caveats(audit.label_sources, audit.policy, lfw=lfw, norms=not audit.of_scores),
        warnings=(*audit.warnings, *warnings, *last),
    )


def measure(errors: GroupErrors | NoComparison, settings: Settings) -> Differentials | NoComparison:
    """Return the differentials of errors, or why there are none."""
    if isinstance(errors, NoComparison):
        return errors
    return differentials(errors, replicates=settings.replicates, seed=settings.seed)


def attempt(name: str, compute: Callable[[], T]) -> T | NoComparison:
    """Return what is computed, or why it cannot be."""
    try:
        return compute()
    except MetricError as problem:
        return NoComparison(name, str(problem))


@contextlib.contextmanager
def stage(progress: Progress | None, name: str) -> Iterator[None]:
    """Say when something begins and when it is done."""
    if progress is not None:
        progress(name, 0, 1)
    yield
    if progress is not None:
        progress(name, 1, 1)


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
        self.policy = self._raw.policy

    def groupings(
        self, calibration: Calibration | None, unit: NDArray[np.floating] | None
    ) -> tuple[GroupAudit, ...]:
        """Audit every grouping that has a group to show."""
        chosen = shown(self._joined.groupings, self._settings.groups)
        mated = self._raw.mated()
        raw = self._errors(self._raw, chosen, calibration)
        other: Sequence[GroupErrors | NoComparison]
        if (lacking := self._no_unit(unit, calibration)) is not None:
            other = [NoComparison(grouping.name, lacking) for grouping in chosen]
        else:
            assert unit is not None
            other = self._errors(self._comparisons(unit), chosen, None)
        return tuple(
            self._grouping(grouping, errors, unit_errors, mated)
            for grouping, errors, unit_errors in zip(chosen, raw, other, strict=True)
        )

    def identification(
        self, plan: SearchPlan, others: OtherSubjects | None
    ) -> OneToMany | NoComparison:
        """Audit identification by every grouping that has a group to show."""
        chosen = shown(self._joined.groupings, self._settings.groups)
        vectors = self._embeddings.vectors
        return attempt(
            "one to many",
            lambda: audit_searches(vectors, self._joined, chosen, plan, self._progress, others),
        )

    def compare(self, baseline: Embeddings, name: str) -> BaselineComparison:
        """Return the changes from a baseline, by the primary attribute."""
        joined, settings, ids = self._joined, self._settings, self._embeddings.ids
        assert ids is not None  # else nothing would have been joined
        grouping = joined.groupings[0]
        codes = self._codes(grouping)
        chosen = ids[joined.rows] if self._bench is None else self._bench.images.ids
        rows = pd.Index(ids).get_indexer(pd.Index(chosen))
        with stage(self._progress, "comparing with the baseline"):
            return compare_runs(
                [
                    RunPair(
                        seed=0,
                        baseline=select_embeddings(baseline, chosen, name),
                        treated=select_embeddings(
                            self._embeddings, chosen, "the audited embeddings"
                        ),
                    )
                ],
                self._subject[rows],
                codes[rows],
                grouping.names,
                attribute=grouping.name,
                pairs=None if self._bench is None else self._bench.pairs,
                impostors=settings.impostors,
                targets=settings.targets,
                replicates=settings.replicates,
                seed=settings.seed,
            )

    def _comparisons(self, vectors: NDArray[np.floating]) -> Comparisons:
        if self._bench is None:
            return AllImages(vectors, self._subject, self._device, self._progress)
        assert self._embeddings.ids is not None  # else nothing would have been joined
        return ListedPairs.of_bench(vectors, self._subject, self._bench, self._embeddings.ids)

    def _errors(
        self,
        comparisons: Comparisons,
        groupings: Sequence[Grouping],
        calibration: Calibration | None,
    ) -> list[GroupErrors | NoComparison]:
        """Count errors by all groupings, or say why not."""
        chosen = [(self._codes(grouping), grouping.names) for grouping in groupings]
        return counted(comparisons, groupings, chosen, self._settings.targets, calibration)

    def _no_unit(
        self, unit: NDArray[np.floating] | None, calibration: Calibration | None
    ) -> str | None:
        """Say why raw and unit fusion cannot be compared."""
        if unit is None:
            return {
                True: "the embeddings hold the sum of two views, not each of them",
                False: "each embedding comes from one view; there is nothing to fuse",
                None: "the embeddings do not say whether two views were added",
            }[self._embeddings.flip]
        if calibration is not None:
            return "the thresholds come from other data, whose unit fusion is not known"
        return None

    def _grouping(
        self,
        grouping: Grouping,
        errors: GroupErrors | NoComparison,
        unit: GroupErrors | NoComparison,
        mated: tuple[NDArray[np.float32], Rows, Rows] | None,
    ) -> GroupAudit:
        joined, settings = self._joined, self._settings
        sample = SubjectNorms.of(joined, grouping)
        bootstrap = SubjectBootstrap(sample.groups, settings.replicates, settings.seed)
        primary = grouping.attributes == settings.groups[:1]
        with stage(self._progress, f"{grouping.name}: norms"):
            norms = norm_table(sample, bootstrap)
            association = associate(
                sample,
                bootstrap,
                role="primary" if primary else "exploratory",
                permutations=settings.permutations,
                seed=settings.seed,
            )
            adjusted = _adjusted(sample, bootstrap)
        with stage(self._progress, f"{grouping.name}: differentials"):
            measures = measure(errors, settings)
        with stage(self._progress, f"{grouping.name}: norms of pairs"):
            channels = self._channels(grouping, errors, mated)
        return GroupAudit(
            grouping=grouping,
            primary=primary,
            composition=joined.count(grouping),
            association=association,
            rates=errors if isinstance(errors, NoComparison) else errors.rates,
            differentials=measures,
            channels=channels,
            fusion=self._fusion(grouping, errors, unit),
            histograms=() if isinstance(errors, NoComparison) else errors.histograms,
            sample=sample,
            norms=norms,
            adjusted=adjusted,
        )

    def _channels(
        self,
        grouping: Grouping,
        errors: GroupErrors | NoComparison,
        mated: tuple[NDArray[np.float32], Rows, Rows] | None,
    ) -> NormChannels | NoComparison:
        if isinstance(errors, NoComparison):
            return errors
        thresholds = [point.threshold for point in errors.rates.points]
        target = working_target(thresholds)
        value = {threshold.target: threshold.value for threshold in thresholds}.get(str(target))
        if value is None:
            return NoComparison(grouping.name, "no target has a threshold on these data")
        if mated is None:
            return NoComparison(grouping.name, f"there are more than {MOST_MATED:,} mated pairs")
        return attempt(
            grouping.name,
            lambda: norm_channels(
                *mated,
                self._norms,
                self._subject,
                self._codes(grouping),
                grouping.names,
                threshold=value,
                replicates=self._settings.replicates,
                seed=self._settings.seed,
            ),
        )

    def _fusion(
        self,
        grouping: Grouping,
        raw: GroupErrors | NoComparison,
        unit: GroupErrors | NoComparison,
    ) -> tuple[FusionChange, ...] | NoComparison:
        if isinstance(raw, NoComparison):
            return raw
        if isinstance(unit, NoComparison):
            return unit
        settings = self._settings
        return attempt(
            grouping.name,
            lambda: compare_fusion(raw, unit, replicates=settings.replicates, seed=settings.seed),
        )

    def _codes(self, grouping: Grouping) -> NDArray[np.int64]:
        return self._over_rows(grouping.codes, np.int64(UNKNOWN))

    def _over_rows(self, values: NDArray[Any], missing: np.generic) -> NDArray[Any]:
        """Spread values of joined images over all rows of the embeddings."""
        full = np.full(len(self._embeddings.vectors), missing)
        full[self._joined.rows] = values
        return full


def counted(
    comparisons: Comparisons,
    groupings: Sequence[Grouping],
    chosen: Sequence[tuple[Rows, tuple[str, ...]]],
    targets: Sequence[str],
    calibration: Calibration | None,
) -> list[GroupErrors | NoComparison]:
    """Count errors by all groupings, or say why not.

    ``chosen`` are codes of groups over all rows, and names, of each grouping; ``calibration`` gives
    the thresholds, else these data.
    """
    results: Sequence[GroupErrors | MetricError]
    try:
        results = comparisons.errors(chosen, targets, calibration)
    except MetricError as problem:
        results = [problem] * len(groupings)
    return [
        NoComparison(grouping.name, str(errors)) if isinstance(errors, MetricError) else errors
        for grouping, errors in zip(groupings, results, strict=True)
    ]


def _is_lfw(embeddings: Embeddings, bench: Bench | None) -> bool:
    source = embeddings.note.get("source", {})
    names = [PurePath(str(source.get("path", ""))).stem]
    if bench is not None:
        names.append(bench.name)
    return any(name.lower() == "lfw" for name in names)


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
    return attempt(sample.name, lambda: adjust_for_covariates(sample, bootstrap))
