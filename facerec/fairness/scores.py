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
    NO_VALUE,
    NOT_SAID,
    SEVERAL,
    Attributes,
    Exclusion,
    changing,
    check_sources,
    check_values,
)
from facerec.fairness.audit import conclude, size_rows, with_groups
from facerec.fairness.differentials import rate_rows
from facerec.fairness.groupings import UNKNOWN, contradictory, form_groupings
from facerec.fairness.rates import ListedPairs, Thresholds, listed_rates
from facerec.fairness.result import DEFAULTS, Audit, AuditSettings
from facerec.fairness.rows import Row
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
    settings: AuditSettings = DEFAULTS,
    attributes: Attributes | None = None,
    thresholds: Thresholds | None = None,
    allow_inferred: bool = False,
    inputs: Sequence[Mapping[str, Any]] = (),
) -> Audit:
    """Audit the error rates of scored pairs by recorded groups.

    Args:
        scored: pairs, with subjects if they are known.
        groups: attributes, the first one is the primary one.
        name: of the file, for reports and errors.
        settings: targets, seed and the like.
        attributes: where the groups of subjects are recorded, by subject; by default they are
            columns of the scores.
        thresholds: fixed on other data; by default on all impostors of these scores.
        allow_inferred: take labels whose source does not say how they were recorded.
        inputs: the files behind all this, for the report.

    Raises:
        DatasetError: a group is recorded nowhere or nobody says how, no group can be shown, or one
            attribute to intersect.
        MetricError: an impossible target, or no mated or no impostor score.
    """
    groups = tuple(dict.fromkeys(groups))
    combinations = settings.combinations(groups, name)
    sides = _Sides(scored, name)
    labels = sides.labels(groups, attributes)
    if attributes is None:
        # Tables of scores that others write have no such column: the banner says so.
        sources = dict(scored.label_sources) or {"": len(scored)}
        allowed = allow_inferred or not scored.label_sources
        inferred = check_sources(Path(name), sources, allow_inferred=allowed)
        label_sources = [source or NOT_SAID for source in sources]
    else:
        inferred, label_sources = attributes.inferred, list(attributes.label_sources)
    subjects, groupings = form_groupings(combinations, labels, sides.subjects, sides.scored)
    left, known = subjects != UNKNOWN, sides.subjects_known
    unit = "subjects" if known else "pairs"
    chosen = with_groups(groupings, sides.exclusions, f"{name}: ", unit)
    both = np.arange(2 * len(scored)).reshape(-1, 2).T
    pairs = ListedPairs(name, scored.scores, both, scored.issame, subjects, not known)
    spread = [(grouping.codes, grouping.names) for grouping in chosen]
    how: dict[str, Any] = {"thresholds": thresholds, "given": settings.threshold}
    counted = listed_rates(pairs, spread, targets=settings.targets, **how)
    rows: list[Row] = []
    for number, (grouping, errors) in enumerate(zip(chosen, counted, strict=True)):
        rows += size_rows(grouping, subjects if known else None, ~sides.scored, images=False)
        rows += rate_rows(
            grouping.name, errors, settings.replicates, settings.seed, first=not number
        )
    stay = left.reshape(-1, 2).all(axis=1)
    facts = {
        "inputs": list(inputs),
        "label_sources": label_sources,
        "banner": INFERRED if inferred else None,
        "images": None,
        "pairs": int(np.count_nonzero(stay)),
        "subjects": int(subjects.max()) + 1 if known else None,
        "failures": int(np.count_nonzero(stay & np.isnan(scored.scores))),
        "left_out": [vars(gone) for gone in sides.exclusions],
        "searches": None,
    }
    notes = [
        f"This is an audit of error rates alone: {NO_NORMS}.",
        *changing(sides.exclusions, groupings),
        *(f"{note}." for note in scored.notes),
        *([] if known else [NO_SUBJECTS]),
    ]
    policy = f"from the pair list of {name}"
    return conclude(facts, rows, groupings, settings, policy, thresholds is not None, notes)


class _Sides:
    """The two sides of every pair, ``(2n,)``: those of pair i are 2i and 2i + 1.

    Attributes:
        subjects: number of the subject. Where subjects are not known the sides of a mated pair have
            one number, and all others have one each.
        scored: whether the pair has a score.
        exclusions: pairs left out so far.
    """

    def __init__(self, scored: ScoredPairs, name: str) -> None:
        self._pairs, self._name = scored, name
        self.subjects_known = scored.subjects is not None
        if scored.subjects is not None:
            self.subjects = _interleave(*scored.subjects)
        else:
            first = 2 * np.arange(len(scored))
            self.subjects = _interleave(first, np.where(scored.issame, first, first + 1))
        self.scored = np.repeat(~np.isnan(scored.scores), 2)
        self.exclusions: list[Exclusion] = []

    def labels(
        self, groups: Sequence[str], attributes: Attributes | None
    ) -> dict[str, NDArray[np.str_]]:
        """Return the value of every attribute, ``(2n,)``, empty where it cannot be used."""
        labels: dict[str, NDArray[np.str_]] = {}
        for group in groups:
            if attributes is not None:
                values = self._of_subjects(group, attributes)
            elif group in self._pairs.groups:
                values = _interleave(*self._pairs.groups[group])
                check_values(Path(self._name), group, values)
                values = self._without_contradictions(group, values)
            else:
                raise DatasetError(
                    f"{self._name}: no column says which group a pair is of: write {group} (both "
                    f"sides), {group}_1 and {group}_2, or bio_ref_{group} and probe_{group}; or "
                    "name a table of subjects with --attributes"
                )
            self._exclude(NO_VALUE, values == "", group)
            labels[group] = values
        return labels

    def _of_subjects(self, group: str, attributes: Attributes) -> NDArray[np.str_]:
        names = self._pairs.names
        if names is None:
            raise DatasetError(
                f"{self._name}: it does not name the subjects of its pairs, so {attributes.path} "
                "cannot tell their groups; add the columns subject_id_1 and subject_id_2"
            )
        recorded = attributes.groups[group] != ""
        subjects, values = attributes.subjects[recorded], attributes.groups[group][recorded]
        if not np.isin(subjects, names).any():
            raise DatasetError(
                f"{attributes.path}: none of its subjects (as {str(attributes.subjects[0])[:60]!r})"
                f" is in {self._name} (as {str(names[0])[:60]!r}); they must be equal to the letter"
            )
        conflict = np.isin(names, contradictory(subjects, values))
        self._exclude(f"subject {SEVERAL}", conflict[self.subjects], group)
        of_name = dict(zip(subjects.tolist(), values.tolist(), strict=True))
        by_name = np.array([of_name.get(name, "") for name in names.tolist()], np.str_)
        return np.where(conflict, "", by_name)[self.subjects]

    def _without_contradictions(self, group: str, values: NDArray[np.str_]) -> NDArray[np.str_]:
        """Take the value from subjects who have two."""
        conflict = np.isin(self.subjects, contradictory(self.subjects, values))
        reason = "subject" if self.subjects_known else "mated pair"
        self._exclude(f"{reason} {SEVERAL}", conflict, group)
        return np.where(conflict, "", values)

    def _exclude(self, reason: str, sides: NDArray[np.bool_], group: str) -> None:
        """Count the pairs with such a side, if they are not counted for this group already."""
        counted = sum(gone.images for gone in self.exclusions if gone.attribute == group)
        pairs = int(np.count_nonzero(sides.reshape(-1, 2).any(axis=1))) - counted
        if pairs > 0:
            number = len(np.unique(self.subjects[sides])) if self.subjects_known else None
            self.exclusions.append(Exclusion(reason, pairs, number, group))


def _interleave(first: NDArray, second: NDArray) -> NDArray:
    """Return what is said of the first and the second sides as one array of all sides."""
    return np.stack([first, second], axis=1).reshape(-1)
