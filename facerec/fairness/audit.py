"""The audit: embeddings and recorded attributes in, one table of figures and its findings out.

`audit` calls the pieces in order; so does `facerec.fairness.scores` for scores without embeddings.
Every piece adds rows to one table; what cannot be computed is a row without a value that says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

import facerec
from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError, MetricError
from facerec.fairness import rows as names
from facerec.fairness.association import associate
from facerec.fairness.attributes import ALL_GROUPS, POOLED, Attributes, Grouping, Joined, join
from facerec.fairness.baseline import RunPair, compare_runs
from facerec.fairness.channels import mated_pairs, norm_errors
from facerec.fairness.differentials import NAMES, differentials
from facerec.fairness.findings import caveats, find
from facerec.fairness.norms import SubjectBootstrap, SubjectNorms, norm_figures
from facerec.fairness.one_to_many import OtherSubjects, SearchPlan, add_searches
from facerec.fairness.pair_counts import UNKNOWN
from facerec.fairness.rates import (
    Calibration,
    GroupErrors,
    PairList,
    all_pairs_rates,
    listed_rates,
)
from facerec.fairness.result import DEFAULTS, Audit, Settings
from facerec.fairness.rows import Rows
from facerec.progress import Progress
from facerec.report.estimate import Estimate
from facerec.statistics.operating_points import OperatingPoint, parse_rate
from facerec.verification.bench import Bench
from facerec.verification.evaluation import score_pairs, select_embeddings

MOST_MATED = 2**25
"""Mated pairs up to which norms and errors of pairs are held against each other."""

FIXED_HERE = (
    "In the comparison with the baseline both models have thresholds fixed on the non-mated pairs "
    "of these data; rates elsewhere are at thresholds fixed on other data, so the figures differ."
)

Errors = GroupErrors | MetricError
Codes = NDArray[np.int64]


def audit(
    embeddings: Embeddings,
    attributes: Attributes,
    *,
    settings: Settings = DEFAULTS,
    pairs: Bench | None = None,
    calibration: Calibration | None = None,
    baseline: Embeddings | None = None,
    searches: SearchPlan | None = None,
    others: OtherSubjects | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
    source: str = "the embeddings",
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Audit:
    """Audit norms and error rates by recorded groups.

    Args:
        embeddings: raw ones, with image ids.
        attributes: of these images; the first one's η² is the one test declared in advance.
        settings: targets, seed and the like.
        pairs: whose pairs are scored; without it every image is compared with every other.
        calibration: where the global thresholds were fixed, by default on all impostors of this
            data.
        baseline: embeddings of the same images by another model, from which changes by the first
            attribute are stated.
        searches: also audit identification (1:N) in this way.
        others: on whom its thresholds are set, by default on the audited subjects.
        inputs: the files behind all this, for the report.
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
    groups = tuple(attributes.groups)
    combinations = settings.combinations(groups, str(attributes.path))
    if embeddings.ids is None:
        raise DatasetError(f"{source}: embeddings without ids cannot be joined with attributes")
    joined = join(
        attributes,
        embeddings.ids,
        embeddings.norms,
        embeddings.failures,
        intersections=combinations[len(groups) :],
        source=source,
    )
    shown = with_groups(joined.groupings, groups)
    length = len(embeddings.vectors)
    subject = _over_rows(joined, joined.subjects, length)
    codes = [_over_rows(joined, one.codes, length) for one in shown]
    labels = [(code, one.names) for code, one in zip(codes, shown, strict=True)]
    listed = None if pairs is None else _listed(embeddings, subject, pairs)
    at: dict[str, Any] = {
        "targets": settings.targets,
        "calibration": calibration,
        "family": joined.family,
    }
    counted: Sequence[Errors]
    try:
        if listed is not None:
            counted = listed_rates(listed, labels, **at)
        else:
            counted = all_pairs_rates(
                embeddings.vectors, subject, labels, **at, device=device, progress=progress
            )
    except MetricError as problem:
        counted = [problem] * len(shown)
    rows, mated = Rows(), _mated(embeddings, subject) if listed is None else listed.mated()
    norms = np.full(length, np.nan)
    norms[joined.rows] = joined.norms
    samples = [SubjectNorms.of(joined, grouping) for grouping in shown]
    for number, (grouping, sample, errors) in enumerate(zip(shown, samples, counted, strict=True)):
        add_sizes(rows, grouping, joined.subjects, ~joined.acquired, images=True)
        _add_norms(rows, sample, settings)
        add_rates(rows, grouping.name, errors, settings, first=number == 0)
        _add_norm_errors(rows, grouping, errors, mated, (norms, subject, codes[number]))
        if progress is not None:
            progress("groups", number + 1, len(shown))
    protocol = None
    if searches is not None:
        try:
            protocol = add_searches(rows, embeddings.vectors, joined, shown, searches, others)
        except MetricError as problem:
            protocol = str(problem)
            rows.add("", "FPIR", Estimate(None, remark=protocol))
    notes = [] if listed is None else _left_out(listed, codes[0])
    if baseline is not None:
        first = subject, codes[0], shown[0]
        said = _add_changes(rows, embeddings, baseline, joined, first, pairs, settings)
        notes += [f"{note[0].upper()}{note[1:]}." for note in said]
        notes += [FIXED_HERE] if calibration is not None else []
    if embeddings.flip is None:
        notes.append("The embeddings do not say whether mirror images took part.")
    facts = {
        "inputs": list(inputs),
        "label_sources": list(joined.label_sources),
        "banner": joined.banner,
        "images": len(joined.rows),
        "pairs": None,
        "subjects": len(np.unique(joined.subjects)),
        "failures": int(np.count_nonzero(~joined.acquired)),
        "left_out": [vars(gone) for gone in joined.exclusions],
        "searches": protocol,
    }
    calibrated = calibration is not None
    policy = (
        f"from the pair list of {pairs.name}"
        if pairs
        else "from all pairs of images of two subjects"
    )
    return complete(facts, rows, joined.groupings, settings, policy, calibrated, notes, samples[0])


def complete(
    facts: Mapping[str, Any],
    rows: Rows,
    formed: Sequence[Grouping],
    settings: Settings,
    policy: str,
    calibrated: bool,
    notes: Sequence[str],
    norms: SubjectNorms | None = None,
) -> Audit:
    """Add what follows from the figures of an audit: findings, and what is said of them.

    Args:
        facts: what the caller knows of its data.
        rows: all figures.
        formed: all groupings, shown or not.
        settings: what was asked.
        policy: which impostors are compared, as words for a sentence.
        calibrated: whether other data gave the thresholds.
        notes: what a reader must know.
        norms: of the first attribute, for a picture.
    """
    table = rows.frame()
    warnings = [*notes]
    for one in formed:
        if not one.cells:
            warnings.append(f"{one.name}: no group has the ten subjects that it takes.")
        elif one.names == (POOLED,):
            warnings.append(
                f"{one.name}: no value has ten subjects, so they are one group and nothing is "
                "compared; join values to bins, such as ages 18-29 and 30-44."
            )
    thresholds = names.select(table, names.THRESHOLD)
    if len(thresholds) and not calibrated:
        warnings.append(
            "The global thresholds were fixed on the non-mated pairs of these data themselves; "
            "thresholds from other data would give other rates."
        )
    warnings += [
        f"FMR {row.target} is {row.remark}."
        for row in thresholds.itertuples()
        if "resolvable" in str(row.remark)
    ]
    groups = {
        one.name: {
            "shown": list(one.names),
            "pooled": [" × ".join(cell) for cell in one.pooled],
            "suppressed": [" × ".join(cell) for cell in one.suppressed],
        }
        for one in formed
        if one.cells
    }
    asked = {**vars(settings), "targets": list(settings.targets), "policy": policy}
    head = {"facerec": facerec.__version__, **facts, "groups": groups, "settings": asked}
    said = caveats(facts["label_sources"], policy, norms=norms is not None)
    return Audit(head, table, find(table, list(groups)), tuple(warnings), said, norms)


def with_groups(
    groupings: Sequence[Grouping], groups: Sequence[str], source: str = "", unit: str = "subjects"
) -> list[Grouping]:
    """Return the groupings with a group to show.

    Raises:
        DatasetError: there is none.
    """
    shown = [grouping for grouping in groupings if grouping.cells]
    if not shown:
        raise DatasetError(
            f"{source}{', '.join(groups)}: no group has the ten {unit} that it takes to be shown; "
            "there is nothing to audit"
        )
    return shown


# --- rows -------------------------------------------------------------------------------------


def add_sizes(
    rows: Rows,
    grouping: Grouping,
    subjects: NDArray[np.int64] | None,
    failed: NDArray[np.bool_],
    *,
    images: bool,
) -> None:
    """Add what each group consists of.

    Args:
        rows: to which they are added.
        grouping: whose codes are of images, or of sides of pairs, ``(n,)``.
        subjects: of these, ``(n,)``; None where they are not known.
        failed: whether each was not acquired, ``(n,)``.
        images: whether these are images.
    """
    for code, name in enumerate(grouping.names):
        inside = grouping.codes == code
        if subjects is not None:
            count = len(np.unique(subjects[inside]))
            rows.add(grouping.name, names.SUBJECTS, Estimate(count), name)
        total, lost = int(inside.sum()), int(failed[inside].sum())
        if images:
            rows.add(grouping.name, names.IMAGES, Estimate(total), name)
        rate = lost / total if total else None
        rows.add(grouping.name, names.FAILED, Estimate(rate, None, lost, total), name)


def add_rates(
    rows: Rows, grouping: str, errors: Errors, settings: Settings, *, first: bool
) -> None:
    """Add the error rates of a grouping and their differentials; of the first thresholds too."""
    if isinstance(errors, MetricError):
        rows.add(grouping, "FMR", Estimate(None, remark=str(errors)))
        return
    for at in errors.points:
        point, target = at.point, at.point.target
        if first:
            rows.add("", names.THRESHOLD, _threshold(point, errors.calibration.source), "", target)
        if not point.resolvable:
            continue
        nominal = float(parse_rate(target))
        for name, fmr, fnmr in zip(errors.names, at.fmr, at.fnmr, strict=True):
            few = bool(fmr.total) and nominal * (fmr.total or 0) < 1
            remark = f"not resolvable with {fmr.total:,} non-mated pairs" if few else fmr.remark
            shown = Estimate(fmr.value, fmr.interval, fmr.events, fmr.total, remark)
            rows.add(grouping, "FMR", shown, name, target)
            rows.add(grouping, "FNMR", fnmr, name, target)
        for (one, other), found in at.between.items():
            both = f"{errors.names[one]} – {errors.names[other]}"
            rows.add(grouping, names.BETWEEN_GROUPS, found, both, target)
        for figure, found in zip(("FMR", "FNMR"), at.overall, strict=True):
            rows.add(grouping, figure, found, ALL_GROUPS, target)
    measured = differentials(errors, replicates=settings.replicates, seed=settings.seed)
    for row in measured.rows:
        figure = f"{NAMES[row.of]} ({row.of} {row.measure})"
        rows.add(grouping, figure, row, "", row.target)
        if row.p_value is not None:
            rows.add(grouping, names.p_of(figure), Estimate(row.p_value), "", row.target)
    for remark in measured.remarks:
        rows.add(grouping, "FPD and FND", Estimate(None, remark=remark))


def _threshold(point: OperatingPoint, source: str) -> Estimate:
    if not point.resolvable:
        value, remark = None, f"not resolvable with {point.non_mated:,} non-mated pairs"
    elif np.isfinite(point.threshold):
        value, remark = point.threshold, source
    else:
        accepts = "everything" if point.threshold == -np.inf else "nothing"
        value, remark = None, f"it accepts {accepts}; {source}"
    return Estimate(value, None, point.false_accepts, point.non_mated, remark)


def _add_norms(rows: Rows, sample: SubjectNorms, settings: Settings) -> None:
    """Add the norms of each group, and their association with the groups."""
    for name, figures in norm_figures(sample).items():
        for figure, estimate in figures.items():
            rows.add(sample.name, figure, estimate, name)
    bootstrap = SubjectBootstrap(sample.groups, settings.replicates, settings.seed)
    try:
        found = associate(sample, bootstrap, permutations=settings.permutations, seed=settings.seed)
    except MetricError as problem:
        lacking = Estimate(None, total=len(sample.groups), remark=str(problem))
        rows.add(sample.name, names.ETA2, lacking)
        return
    rows.add(sample.name, names.ETA2, found.eta2)
    rows.add(sample.name, names.p_of(names.ETA2), Estimate(found.p))
    rows.add(sample.name, names.WELCH, Estimate(found.welch_f))
    rows.add(sample.name, names.DETECTABLE, Estimate(found.mde_eta2))
    for both, delta, p in found.pairs:
        rows.add(sample.name, names.DELTA, delta, both)
        rows.add(sample.name, names.p_of(names.DELTA), Estimate(p), both)


def _add_norm_errors(
    rows: Rows,
    grouping: Grouping,
    errors: Errors,
    mated: tuple[NDArray[np.floating], Codes, Codes] | None,
    images: tuple[NDArray[np.float64], Codes, Codes],
) -> None:
    """Add what norms have to do with errors of mated pairs at the working threshold.

    ``mated`` are scores and both images of mated pairs, None where there are too many; ``images``
    norm, subject and group of each row of the embeddings.
    """
    try:
        if isinstance(errors, MetricError):
            raise errors
        point = working_point([at.point for at in errors.points])
        if point is None:
            raise MetricError("no target has a threshold on these data")
        if mated is None:
            raise MetricError(f"there are more than {MOST_MATED:,} mated pairs")
        found = norm_errors(mated, *images, grouping.names, threshold=point.threshold)
        for group, figure, estimate in found:
            rows.add(grouping.name, figure, estimate, group)
    except MetricError as problem:
        rows.add(grouping.name, names.AREA, Estimate(None, remark=str(problem)))


def _add_changes(
    rows: Rows,
    embeddings: Embeddings,
    baseline: Embeddings,
    joined: Joined,
    first: tuple[Codes, Codes, Grouping],
    bench: Bench | None,
    settings: Settings,
) -> Sequence[str]:
    """Add what changed from the baseline by the first attribute; return what is to be said of it.

    ``first`` are subject and group of each row of the embeddings, and the grouping.
    """
    subject, codes, grouping = first
    ids = embeddings.ids
    assert ids is not None  # else nothing would have been joined
    chosen = ids[joined.rows] if bench is None else bench.images.ids
    at = pd.Index(ids).get_indexer(pd.Index(chosen))
    both = (
        select_embeddings(side, chosen, name)
        for side, name in ((baseline, "the baseline"), (embeddings, "the audited embeddings"))
    )
    comparison = compare_runs(
        [RunPair(0, *both)],
        subject[at],
        codes[at],
        grouping.names,
        attribute=grouping.name,
        pairs=None if bench is None else bench.pairs,
        impostors="all" if bench is None else "list",
        targets=settings.targets,
    )
    for change in comparison.changes:
        group = "" if change.groups is None else " − ".join(change.groups)
        for what, value in (("baseline", change.baseline), ("new", change.treated)):
            figure = f"{what}: {change.figure}"
            rows.add(grouping.name, figure, Estimate(value, remark=change.remark), group)
        rows.add(grouping.name, f"change: {change.figure}", change, group)
    return comparison.notes


# --- pieces -----------------------------------------------------------------------------------


def _over_rows(joined: Joined, values: NDArray[Any], length: int) -> Codes:
    """Spread values of joined images over all rows of the embeddings."""
    full = np.full(length, UNKNOWN)
    full[joined.rows] = values
    return full


def _mated(
    embeddings: Embeddings, subject: Codes
) -> tuple[NDArray[np.floating], Codes, Codes] | None:
    """Return scores and both images of all mated pairs; None where there are too many."""
    images = np.bincount(subject[subject != UNKNOWN])
    if (images * (images - 1) // 2).sum() > MOST_MATED:
        return None
    first, second = mated_pairs(subject)
    return score_pairs(embeddings.vectors, first, second), first, second


def _left_out(listed: PairList, group: Codes) -> list[str]:
    """Say how many pairs of a list are in no rate of the first grouping, and why."""
    known = (group[listed.sides] >= 0).all(axis=0)
    reasons = {
        "have an image without a group": ~known,
        "have a label that the subjects contradict": known & ~listed.usable,
    }
    return [
        f"{int(gone.sum()):,} of {known.size:,} pairs {why} and are in no rate."
        for why, gone in reasons.items()
        if gone.any()
    ]


def _listed(embeddings: Embeddings, subject: NDArray[np.int64], bench: Bench) -> PairList:
    """Score the pairs of a bench.

    Raises:
        DatasetError: an image of the bench has no embedding.
    """
    assert embeddings.ids is not None  # else nothing would have been joined
    rows = pd.Index(embeddings.ids).get_indexer(pd.Index(bench.images.ids)).astype(np.int64)
    absent = np.flatnonzero(rows < 0)
    if absent.size:
        raise DatasetError(
            f"{bench.name}: {absent.size:,} of its {rows.size:,} images have no embedding, the "
            f"first is {str(bench.images.ids[absent[0]])!r}; ids must be equal to the letter"
        )
    sides = rows[np.stack([bench.pairs.first, bench.pairs.second])]
    scores = score_pairs(embeddings.vectors, sides[0], sides[1])
    return PairList(bench.name, scores, sides, bench.pairs.issame, subject)


def working_point(points: Sequence[OperatingPoint]) -> OperatingPoint | None:
    """Return the point of the lowest target that leaves room for 30 false matches where it was set.

    Else that of the highest target that is resolvable; None without any.
    """
    usable = [point for point in points if point.resolvable and np.isfinite(point.threshold)]
    usable.sort(key=lambda point: parse_rate(point.target))
    return next((point for point in usable if point.reliable), usable[-1] if usable else None)
