"""The audit: embeddings and recorded attributes in, one table of figures and its findings out.

`audit_embeddings` calls the pieces in order; so does `facerec.fairness.scores` for scores without
embeddings. Every piece gives rows of one table; what cannot be computed is a row without a value
that says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import facerec
from facerec.base.errors import DatasetError, MetricError
from facerec.base.progress import Progress
from facerec.cosines.unit_rows import score_pairs
from facerec.embedding.extraction import Embeddings, constant
from facerec.embedding.placement import alike_note
from facerec.fairness import rows as names
from facerec.fairness.association import associate
from facerec.fairness.attributes import (
    INFERRED,
    Attributes,
    Exclusion,
    Joined,
    alike,
    changing,
    join,
)
from facerec.fairness.baseline import Change, compare_models
from facerec.fairness.differentials import rate_rows
from facerec.fairness.findings import (
    caveats,
    findings_of,
    not_compared,
    working_searches,
    working_threshold,
)
from facerec.fairness.groupings import POOLED, UNKNOWN, Grouping, members
from facerec.fairness.norm_errors import MOST_MATED, mated_pairs, norm_errors
from facerec.fairness.norms import SubjectNorms, norm_figures
from facerec.fairness.one_to_many import OtherSubjects, search_groups
from facerec.fairness.rates import (
    ListedPairs,
    Thresholds,
    all_pairs_rates,
    listed_rates,
    pooled,
)
from facerec.fairness.result import Audit
from facerec.fairness.settings import SETTINGS, AuditSettings, SearchPlan
from facerec.records.quality import Quality
from facerec.report.estimate import Estimate
from facerec.report.tidy import Kind, tidy
from facerec.report.words import UNRESOLVED
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.rates import turned
from facerec.verification.bench import Bench, Pairs
from facerec.verification.evaluation import rows_of
from facerec.verification.scoring import score_all_pairs

FIXED_HERE = (
    "In the comparison with the baseline both models have thresholds fixed on the non-mated pairs "
    "of these data; rates elsewhere are at thresholds fixed on other data, so the figures differ."
)


def audit_embeddings(
    embeddings: Embeddings,
    attributes: Attributes,
    *,
    settings: AuditSettings = SETTINGS,
    threshold: float | None = None,
    thresholds: Thresholds | OtherSubjects | None = None,
    pairs: Bench | None = None,
    baseline: Embeddings | None = None,
    searches: SearchPlan | None = None,
    quality: Quality | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
    source: str = "the embeddings",
    progress: Progress | None = None,
) -> Audit:
    """Audit norms and error rates by recorded groups.

    Args:
        embeddings: raw ones, with image ids.
        attributes: of these images; the first one's η² is the one test declared in advance.
        settings: targets, seed and the like.
        threshold: a score at which rates are counted too, and which all sentences are about.
        thresholds: fixed on other data, or other people on whom they are fixed, those of searches
            too; by default on all impostors of this data.
        pairs: whose pairs are scored; without it every image is compared with every other.
        baseline: embeddings of the same images by another model, from which changes by the first
            attribute are stated.
        searches: also audit identification (1:N) in this way.
        quality: of the images of the embeddings, held against errors as the norms are.
        inputs: the files behind all this, for the report.
        source: names the embeddings in errors.
        progress: called with what is being done, the steps that are done and the steps in all.

    Raises:
        DatasetError: images that do not join, normalised embeddings, no group with enough
            subjects, or a reference group that is not shown.
        MetricError: an impossible target, arrays that do not fit together, or an image that is
            needed and has no embedding.
    """
    groups = tuple(attributes.groups)
    combinations, others = settings.combinations(groups), None
    if isinstance(thresholds, OtherSubjects):
        others = thresholds
        scored = score_all_pairs(
            others.vectors, others.subjects, fpr=settings.fmr, progress=progress
        )
        thresholds = pooled(f"threshold setting on {others.name}", scored.points)
    joined = join(attributes, embeddings, combinations[len(groups) :], source)
    shown = with_groups(joined.groupings, joined.exclusions)
    subjects, notes = joined.subjects, changing(joined.exclusions, joined.groupings)
    listed = of_images = None
    if pairs is not None:
        rows_of_pairs = rows_of(embeddings, pairs.images.ids, pairs.name)
        first, second = (rows_of_pairs[side] for side in (pairs.pairs.first, pairs.pairs.second))
        of_images = Pairs(first, second, pairs.pairs.issame, folds=pairs.pairs.folds)
        scores = score_pairs(embeddings.vectors, first, second)
        sides = np.stack([first, second])
        listed = ListedPairs(pairs.name, scores, sides, of_images.issame, subjects)
        notes += _left_out(listed, shown[0])
        notes += sentences(turned(scores, of_images.issame), *of_images.doubts())
    rows: list[names.Row] = []
    for grouping in shown:
        rows += size_rows(grouping, subjects, ~joined.acquired, images=True)
        rows += _refused_rows(grouping, embeddings, joined)
        sample = SubjectNorms.of(joined.norms, subjects, grouping)
        for group, figures in norm_figures(sample).items():
            rows += [names.row(grouping.name, *one, group) for one in figures.items()]
        rows += associate(sample, settings.permutations, settings.replicates, settings.seed)
    how: dict[str, Any] = {"targets": settings.fmr, "thresholds": thresholds}
    how |= {"family": joined.family, "given": threshold}
    try:
        if listed is None:
            counted = all_pairs_rates(embeddings.vectors, subjects, shown, **how, progress=progress)
        else:
            counted = listed_rates(listed, shown, **how)
        rows += rate_rows(counted, settings.replicates, settings.seed)
    except MetricError as problem:
        lacking = Estimate(None, remark=str(problem))
        rows += [names.row(grouping.name, "FMR", lacking) for grouping in shown]
    at = working_threshold(table := tidy(rows), shown[0].name)
    working = names.value_of(table, names.THRESHOLD, "threshold", at=at)
    mated = _mated(embeddings, subjects) if listed is None else listed.mated()
    measured = {names.NORMS: joined.norms}
    if quality is not None:
        measured[names.QUALITY] = quality.values
        notes += sentences(quality.note)
    for grouping, (of, values) in itertools.product(shown, measured.items()):
        rows += norm_errors(grouping, mated, values, subjects, working, of)
    protocol = None
    if searches is not None:
        found, protocol = search_groups(embeddings, joined, shown, searches, settings.seed, others)
        rows += found
    if baseline is not None:
        changes, remarks = compare_models(
            baseline,
            embeddings,
            subjects,
            shown[0],
            pairs=of_images,
            impostors="all" if listed is None else "list",
            targets=settings.fmr,
        )
        rows += itertools.chain.from_iterable(_change_rows(shown[0], one) for one in changes)
        notes += sentences(*remarks, FIXED_HERE if thresholds else "")
    if embeddings.flip is None:
        notes.append("The embeddings do not say whether mirror images took part.")
    notes += _looked_at(embeddings, joined)
    facts = {
        "inputs": list(inputs),
        "label_sources": list(attributes.label_sources),
        "banner": INFERRED if attributes.inferred else "",
        "images": int(np.count_nonzero(subjects != UNKNOWN)),
        "subjects": int(subjects.max()) + 1,
        "failures": int(np.count_nonzero((subjects != UNKNOWN) & ~joined.acquired)),
        "left_out": [vars(gone) for gone in joined.exclusions],
        "searches": protocol,
    }
    norms = SubjectNorms.of(joined.norms, subjects, shown[0])
    source = "" if pairs is None else pairs.name
    fixed = thresholds is not None
    return conclude(facts, rows, joined.groupings, settings, source, fixed, notes, norms)


def sentences(*notes: str | None) -> list[str]:
    """Return notes as sentences, those that say something."""
    return [f"{note[0].upper()}{note[1:].rstrip('.')}." for note in notes if note]


def conclude(
    facts: Mapping[str, Any],
    rows: Sequence[names.Row],
    formed: Sequence[Grouping],
    settings: AuditSettings,
    listed: str,
    fixed: bool,
    notes: Sequence[str],
    norms: SubjectNorms | None = None,
) -> Audit:
    """Return an audit: its figures, and the findings and sentences that follow from them.

    Args:
        facts: what the caller knows of its data.
        rows: all figures.
        formed: all groupings, shown or not.
        settings: what was asked.
        listed: name of the list of pairs that are compared; empty where all pairs are.
        fixed: whether other data gave the thresholds.
        notes: what a reader must know.
        norms: of the first attribute, for a picture.
    """
    table, warnings = tidy(rows), [*notes]
    among = f"the pair list of {listed}" if listed else "all pairs of images of two subjects"
    policy = f"from {among}"
    for one in formed:
        every = (*one.names, *one.pooled, *one.suppressed) if len(one.attributes) == 1 else ()
        warnings += [
            f"{one.name}: {' and '.join(same)} look like one group in several spellings, which are "
            "compared as if they were several groups; write a group in one way."
            for same in alike(every)
        ]
        if not one.names:
            warnings.append(f"{one.name}: no group has the ten subjects that it takes.")
        elif one.names == (POOLED,):
            warnings.append(
                f"{one.name}: no value has ten subjects, so they are one group and nothing is "
                "compared; join values to bins, such as ages 18-29 and 30-44."
            )
    thresholds = names.select(table, names.THRESHOLD, "threshold")
    if len(thresholds) and not fixed and (thresholds["basis"] != names.GIVEN).all():
        warnings.append(
            "The global thresholds were fixed on the non-mated pairs of these data themselves; "
            "thresholds from other data would give other rates."
        )
    warnings += [
        f"FMR {row.target} is {UNRESOLVED} with {row.remark}."
        for row in thresholds[thresholds["status"] == "unresolved"].itertuples()
    ]
    groups = {
        one.name: {"shown": one.names, "pooled": one.pooled, "suppressed": one.suppressed}
        for one in formed
        if one.names
    }
    at = working_threshold(table, next(iter(groups)))
    absent = [said for name in groups for said in not_compared(table, name, at)]
    warnings += absent
    head = {
        "facerec": facerec.__version__,
        **dict.fromkeys(("images", "pairs", "searches")),
        **facts,
        "groups": groups,
        "not_compared": absent,
        "settings": {**vars(settings), "policy": policy},
    }
    said = caveats(facts["label_sources"], policy, norms=norms is not None)
    searches = {name: working_searches(table, name) for name in groups}
    findings = findings_of(table, list(groups))
    return Audit(head, table, at, searches, findings, tuple(warnings), said, norms)


def with_groups(
    groupings: Sequence[Grouping],
    exclusions: Sequence[Exclusion],
    source: str = "",
    unit: str = "subjects",
) -> list[Grouping]:
    """Return the groupings with a group to show.

    Raises:
        DatasetError: there is none.
    """
    shown = [grouping for grouping in groupings if grouping.names]
    if not shown:
        why = " ".join(["", *changing(exclusions, groupings)])
        raise DatasetError(
            f"{source}{', '.join(one.name for one in groupings)}: no group has the ten {unit} that "
            f"it takes to be shown; there is nothing to audit.{why}"
        )
    return shown


def size_rows(
    grouping: Grouping,
    subjects: NDArray[np.int64] | None,
    failed: NDArray[np.bool_],
    *,
    images: bool,
) -> Iterator[names.Row]:
    """Yield what each group consists of.

    Args:
        grouping: whose codes are of images, or of sides of pairs, ``(N,)``.
        subjects: of these, ``(N,)``; None where they are not known.
        failed: whether each was not acquired, ``(N,)``.
        images: whether these are images.
    """
    for code, name in enumerate(grouping.names):
        inside = grouping.codes == code
        if subjects is not None:
            count = Estimate(len(np.unique(subjects[inside])), unit="count")
            yield names.row(grouping.name, names.SUBJECTS, count, name)
        total, lost = int(inside.sum()), int(failed[inside].sum())
        if images:
            yield names.row(grouping.name, names.IMAGES, Estimate(total, unit="count"), name)
        rate = lost / total if total else None
        yield names.row(grouping.name, names.FAILED, Estimate(rate, None, lost, total), name)


def _refused_rows(
    grouping: Grouping, embeddings: Embeddings, joined: Joined
) -> Iterator[names.Row]:
    """Yield the share of images of each group whose face score is below the limit, and of all."""
    if embeddings.face_limit is None:
        return
    for name, inside in members(grouping.names, grouping.codes):
        used = inside & joined.acquired
        if not used.any():
            continue
        who = joined.subjects[used]
        share = ClusteredShare.from_pairs(embeddings.unlike[used], who, who)
        share = share if joined.family is None else share.by_family(joined.family)
        yield names.row(grouping.name, names.REFUSED, names.rate(share), name)


def _looked_at(embeddings: Embeddings, joined: Joined) -> Iterator[str]:
    """Say how many images look like no face, and whether different people are too much alike."""
    if embeddings.face_limit is None:
        yield (
            "Not looked at whether the images are faces: the embeddings have no face scores, which "
            "facerec embed writes with a calibrated model."
        )
    else:
        refused = np.count_nonzero(embeddings.unlike & joined.acquired)
        yield (
            f"{refused:,} of {np.count_nonzero(joined.acquired):,} images are below the limit of "
            f"the face score, {embeddings.face_limit:.1f}; all other figures count them."
        )
    subjects = np.where(joined.subjects == UNKNOWN, "", joined.subjects.astype(np.str_))
    yield from sentences(constant(embeddings), alike_note(embeddings, subjects))


def _change_rows(grouping: Grouping, change: Change) -> Iterator[names.Row]:
    """Yield a figure of both models and what changed."""
    figure, target, group, other = change.key
    sides = {names.BASELINE: change.baseline, names.NEW: change.new, names.CHANGE: change}
    for model, side in sides.items():
        kind: Kind | None = "change" if side is change else None
        where = group, names.At(target)
        yield names.row(grouping.name, figure, side, *where, kind=kind, other=other, model=model)


def _mated(
    embeddings: Embeddings, subject: NDArray[np.int64]
) -> tuple[NDArray[np.floating], NDArray[np.int64]] | None:
    """Return scores and sides of all mated pairs; None where there are too many."""
    images = np.bincount(subject[subject != UNKNOWN])
    if (images * (images - 1) // 2).sum() > MOST_MATED:
        return None
    sides = mated_pairs(subject)
    return score_pairs(embeddings.vectors, *sides), sides


def _left_out(listed: ListedPairs, grouping: Grouping) -> list[str]:
    """Say how many pairs of a list are in no rate of the first grouping, and why."""
    known = (grouping.codes[listed.sides] >= 0).all(axis=0)
    two = listed.sides[0] != listed.sides[1]
    reasons = {
        "have an image without a group": two & ~known,
        "have a label that the subjects contradict": two & known & ~listed.usable,
    }
    return [
        f"{int(gone.sum()):,} of {known.size:,} pairs {why} and are in no rate."
        for why, gone in reasons.items()
        if gone.any()
    ]
