"""The audit of scores: labelled pairs with recorded groups, and no embeddings.

The rates, their differentials, the tables and the page are those of the audit of embeddings; norms
and all that hangs on them are left out. Each side of a pair stands for an image. Where the file
names the subjects they are the unit of all intervals; elsewhere pairs are taken as independent, and
the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.fairness.attributes import (
    INFERRED,
    Attributes,
    Exclusion,
    changing,
    check_sources,
    check_values,
    usable_values,
)
from facerec.fairness.audit import conclude, sentences, size_rows, with_groups
from facerec.fairness.differentials import rate_rows
from facerec.fairness.groupings import UNKNOWN, contradictory, form_groupings
from facerec.fairness.rates import ListedPairs, Thresholds, listed_rates
from facerec.fairness.result import Audit
from facerec.fairness.rows import Row
from facerec.fairness.settings import SETTINGS, AuditSettings
from facerec.verification.bench import infer_subjects
from facerec.verification.protocols import ScoredPairs

NO_NORMS = "a file of scores holds no embeddings, so a norm audit is impossible"

NO_SUBJECTS = (
    "The file does not name the subjects, so all intervals and tests take its pairs as "
    "independent; where pairs share subjects, as they mostly do, they are too narrow, and groups "
    "of few subjects cannot be told from groups of few pairs."
)


def audit_scores(
    scored: ScoredPairs,
    groups: Sequence[str],
    *,
    name: str,
    settings: AuditSettings = SETTINGS,
    threshold: float | None = None,
    thresholds: Thresholds | None = None,
    attributes: Attributes | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
) -> Audit:
    """Audit the error rates of scored pairs by recorded groups.

    Args:
        scored: pairs, with subjects if they are known.
        groups: attributes, the first one is the primary one.
        name: of the file, for reports and errors.
        settings: targets, seed and the like.
        threshold: a score at which rates are counted too, and which all sentences are about.
        thresholds: fixed on other data; by default on all impostors of these scores.
        attributes: where the groups of subjects are recorded, by subject; by default they are
            columns of the scores.
        inputs: the files behind all this, for the report.

    Raises:
        DatasetError: a group is recorded nowhere or nobody says how, or no group can be shown.
        MetricError: an impossible target, or no mated or no impostor score.
    """
    groups = tuple(dict.fromkeys(groups))
    combinations = settings.combinations(groups)
    pairs, unscored = scored.pairs(), np.repeat(np.isnan(scored.scores), 2)
    known = pairs.subjects is not None
    who = infer_subjects(pairs, 2 * len(pairs)) if pairs.subjects is None else pairs.subjects
    labels, exclusions = {}, list[Exclusion]()
    for group in groups:
        values, torn = _recorded(scored, group, who, attributes, name)
        place, people = np.arange(len(who)) // 2, who if known else None
        labels[group] = usable_values(
            group, values, np.isin(who, torn), place, people, exclusions, "pair"
        )
    if attributes is None:
        # Tables of scores that others write have no such column: the banner says so.
        sources = scored.label_sources or {"": len(scored)}
        allowed = settings.allow_inferred_labels or not scored.label_sources
        label_sources, inferred = check_sources(Path(name), sources, allow_inferred=allowed)
    else:
        label_sources, inferred = attributes.label_sources, attributes.inferred
    subjects, groupings = form_groupings(combinations, labels, who, ~unscored)
    chosen = with_groups(groupings, exclusions, f"{name}: ", "subjects" if known else "pairs")
    sides = np.stack([pairs.first, pairs.second])
    listed = ListedPairs(name, scored.scores, sides, scored.issame, subjects, not known)
    how: dict[str, Any] = {"thresholds": thresholds, "given": threshold}
    counted = listed_rates(listed, chosen, targets=settings.fmr, **how)
    rows: list[Row] = []
    for grouping in chosen:
        rows += size_rows(grouping, subjects if known else None, unscored, images=False)
    rows += rate_rows(counted, settings.replicates, settings.seed)
    stay = (subjects[sides] != UNKNOWN).all(axis=0)
    facts = {
        "inputs": list(inputs),
        "label_sources": list(label_sources),
        "banner": INFERRED if inferred else "",
        "pairs": int(np.count_nonzero(stay)),
        "subjects": int(subjects.max()) + 1 if known else None,
        "failures": int(np.count_nonzero(stay & np.isnan(scored.scores))),
        "left_out": [vars(gone) for gone in exclusions],
    }
    notes = [
        f"This is an audit of error rates alone: {NO_NORMS}.",
        *changing(exclusions, groupings),
        *sentences(*scored.notes, "" if known else NO_SUBJECTS),
    ]
    return conclude(facts, rows, groupings, settings, name, thresholds is not None, notes)


def _recorded(
    scored: ScoredPairs,
    group: str,
    subjects: NDArray[np.int64],
    attributes: Attributes | None,
    name: str,
) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Return the value of an attribute on both sides of each pair, and who has several, by number.

    The sides of pair i are 2i and 2i + 1; ``subjects`` are theirs, ``(2n,)``.
    """
    if attributes is None:
        if group not in scored.groups:
            raise DatasetError(
                f"{name}: no column says which group a pair is of: write {group} (both sides), "
                f"{group}_1 and {group}_2, or bio_ref_{group} and probe_{group}; or name a table "
                "of subjects with --attributes"
            )
        values = np.stack(scored.groups[group], axis=1).reshape(-1)
        check_values(Path(name), group, values)
        return values, contradictory(subjects, values)
    if scored.names is None:
        raise DatasetError(
            f"{name}: it does not name the subjects of its pairs, so {attributes.path} cannot tell "
            "their groups; add the columns subject_id_1 and subject_id_2"
        )
    recorded = attributes.groups[group] != ""
    people, values = attributes.subjects[recorded], attributes.groups[group][recorded]
    if not np.isin(people, scored.names).any():
        raise DatasetError(
            f"{attributes.path}: none of its subjects (as {str(attributes.subjects[0])[:60]!r}) is "
            f"in {name} (as {str(scored.names[0])[:60]!r}); they must be equal to the letter"
        )
    of_name = dict(zip(people.tolist(), values.tolist(), strict=True))
    by_number = np.array([of_name.get(one, "") for one in scored.names.tolist()], np.str_)
    torn = np.isin(scored.names, contradictory(people, values))
    return by_number[subjects], np.flatnonzero(torn)
