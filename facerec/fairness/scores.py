"""The audit of scores: labelled pairs with recorded groups, and no embeddings.

The rates, their differentials, the tables and the page are those of the audit of embeddings; norms
and all that hangs on them are left out. Each side of a pair stands for an image. Where the file
names the persons they are the unit of all intervals; elsewhere pairs are taken as independent, and
the report says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import facerec
from facerec.errors import DatasetError, MetricError
from facerec.fairness.association import NoComparison
from facerec.fairness.attributes import (
    INFERRED,
    Attributes,
    Exclusion,
    GroupCount,
    Grouping,
    check_sources,
    check_values,
    form_groupings,
)
from facerec.fairness.audit import (
    Audit,
    GroupAudit,
    InputFile,
    Settings,
    calibrate_on_scores,
    working_target,
)
from facerec.fairness.differentials import REPLICATES, differentials
from facerec.fairness.findings import caveats, find
from facerec.fairness.rates import (
    TARGETS,
    UNKNOWN,
    Calibration,
    GroupErrors,
    GroupRates,
    pair_group_rates,
)
from facerec.statistics.operating_points import parse_rate
from facerec.verification.protocols import ScoredPairs
from facerec.verification.scoring import Progress

NO_NORMS = "a file of scores holds no embeddings, so a norm audit is impossible"

NO_PERSONS = (
    "The file does not name the persons, so all intervals and tests take its pairs as independent; "
    "where pairs share persons, as they mostly do, they are too narrow, and groups of few people "
    "cannot be told from groups of few pairs."
)

Labels = dict[str, NDArray[np.str_]]


def audit_scores(
    scored: ScoredPairs,
    groups: Sequence[str],
    *,
    name: str,
    attributes: Attributes | None = None,
    intersect: bool = False,
    targets: Sequence[str] = TARGETS,
    calibration: Calibration | None = None,
    allow_inferred: bool = False,
    replicates: int = REPLICATES,
    seed: int = 0,
    inputs: Sequence[InputFile] = (),
    progress: Progress | None = None,
) -> Audit:
    """Audit the error rates of scored pairs by recorded groups.

    Args:
        scored: pairs, with persons if they are known.
        groups: attributes, the first one is the primary one.
        name: of the file, for reports and errors.
        attributes: where the groups of persons are recorded, by subject; by default they are
            columns of the scores.
        intersect: make the combinations of all attributes groups too.
        targets: nominal FMRs, taken exactly.
        calibration: where the global thresholds were fixed, by default on all impostors of these
            scores.
        allow_inferred: take labels whose source says that they are inferred.
        replicates: resamples of the persons, or of the pairs where these are not known.
        seed: of the resamples.
        inputs: the files behind all this, for the report.
        progress: called with what is being done, the steps that are done and the steps in all.

    Raises:
        DatasetError: a group is recorded nowhere, labels are inferred, no group can be shown, or
            one attribute to intersect.
        MetricError: an impossible target, or no mated or no impostor score.
    """
    for wanted in targets:
        parse_rate(wanted)
    if intersect and len(groups) < 2:
        raise DatasetError(
            f"{name}: an intersection needs two attributes or more, found {', '.join(groups)}; "
            "name another one or leave it out"
        )
    sides = _Sides(scored, name)
    labels = sides.labels(groups, attributes)
    sources = (
        dict(scored.label_sources)
        if attributes is None
        else dict.fromkeys(attributes.label_sources, len(attributes.lines))
    )
    inferred = check_sources(Path(name), sources, allow_inferred=allow_inferred)
    label_sources = tuple(sources) or (f"{name}, which does not say where its groups come from",)
    combinations = [(group,) for group in groups] + ([tuple(groups)] if intersect else [])
    left, groupings = form_groupings(combinations, labels, sides.subjects, sides.scored)
    shown = [grouping for grouping in groupings if grouping.cells]
    if not shown:
        raise DatasetError(
            f"{name}: {', '.join(groups)}: no group has the ten "
            f"{'subjects' if sides.persons_known else 'pairs'} that it takes to be shown; there is "
            "nothing to audit"
        )
    own = calibrate_on_scores(scored, targets, name=name)
    fixed = calibration or Calibration(
        own.source.replace("calibration on", "this data,"), own.points
    )
    auditor = _ScoreAuditor(scored, sides, left, fixed, tuple(targets), replicates, seed, progress)
    audited = tuple(auditor.group(grouping, grouping is shown[0]) for grouping in shown)
    found = [part.rates for part in audited if isinstance(part.rates, GroupRates)]
    thresholds = tuple(point.threshold for point in found[0].points) if found else ()
    target = working_target(thresholds)
    policy = f"from the pair list of {name}"
    warnings = [
        f"This is an audit of error rates alone: {NO_NORMS}; the sections on norms are left out.",
        *_sentences(scored.notes),
    ]
    if not sides.persons_known:
        warnings.append(NO_PERSONS)
    if calibration is None:
        warnings.append(
            "The global thresholds were fixed on the impostor pairs of these data themselves; "
            "thresholds from other data would give other rates."
        )
    warnings += [
        f"FMR {point.target} is not resolvable with the {point.non_mated:,} impostor pairs on "
        "which the threshold was fixed."
        for point in thresholds
        if not point.resolvable
    ]
    return Audit(
        version=facerec.__version__,
        settings=Settings(
            groups=tuple(groups),
            intersect=intersect,
            targets=tuple(targets),
            impostors="list",
            covariates=(),
            gating=False,
            confidence=False,
            permutations=0,
            replicates=replicates,
            seed=seed,
        ),
        inputs=tuple(inputs),
        label_sources=label_sources,
        banner=INFERRED if inferred else None,
        joined=None,
        images=None,
        pairs=len(scored),
        failures=int(np.count_nonzero(np.isnan(scored.scores))),
        subjects=len(np.unique(sides.subjects)) if sides.persons_known else None,
        single_images=False,
        exclusions=tuple(sides.exclusions),
        policy=policy,
        thresholds=thresholds,
        target=target,
        channels=(),
        groupings=audited,
        skipped=tuple(
            NoComparison(grouping.name, "no group has the ten subjects that it takes")
            for grouping in groupings
            if not grouping.cells
        ),
        findings=find(audited, target),
        caveats=caveats(label_sources, policy, norms=False),
        warnings=tuple(warnings),
        comparison=None,
    )


class _Sides:
    """The two sides of every pair, ``(2n,)``: those of pair i are 2i and 2i + 1.

    Attributes:
        subjects: number of the person. Where persons are not known the sides of a mated pair have
            one number, and all others have one each.
        scored: whether the pair has a score.
        exclusions: pairs left out so far.
    """

    def __init__(self, scored: ScoredPairs, name: str) -> None:
        self._pairs, self._name = scored, name
        self.persons_known = scored.subjects is not None
        if scored.subjects is not None:
            self.subjects = _interleave(*scored.subjects)
        else:
            first = 2 * np.arange(len(scored))
            self.subjects = _interleave(first, np.where(scored.issame, first, first + 1))
        self.scored = np.repeat(~np.isnan(scored.scores), 2)
        self.exclusions: list[Exclusion] = []

    def labels(self, groups: Sequence[str], attributes: Attributes | None) -> Labels:
        """Return the value of every attribute, ``(2n,)``, empty where it cannot be used."""
        found: Labels = {}
        for group in dict.fromkeys(groups):
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
            self._exclude("no value", values == "", group)
            found[group] = values
        return found

    def _of_subjects(self, group: str, attributes: Attributes) -> NDArray[np.str_]:
        names = self._pairs.names
        if names is None:
            raise DatasetError(
                f"{self._name}: it does not name the persons of its pairs, so {attributes.path} "
                "cannot tell their groups; add the columns subject_id_1 and subject_id_2"
            )
        table = pd.DataFrame({"subject": attributes.subjects, "value": attributes.groups[group]})
        table = table[table["value"] != ""].drop_duplicates()
        if not table["subject"].isin(names).any():
            raise DatasetError(
                f"{attributes.path}: none of its subjects (as {str(attributes.subjects[0])[:60]!r})"
                f" is in {self._name} (as {str(names[0])[:60]!r}); they must be equal to the letter"
            )
        torn = table["subject"].duplicated(keep=False)
        of_name: dict[str, str] = dict(table[~torn].itertuples(index=False))
        values = np.array([of_name.get(name, "") for name in names.tolist()], np.str_)
        conflict = np.isin(names, table["subject"][torn].to_numpy().astype(np.str_))
        self._exclude("subject in several groups", conflict[self.subjects], group)
        return values[self.subjects]

    def _without_contradictions(self, group: str, values: NDArray[np.str_]) -> NDArray[np.str_]:
        """Take the value from persons who have two."""
        table = pd.DataFrame({"subject": self.subjects, "value": values})[values != ""]
        table = table.drop_duplicates()
        torn = table["subject"][table["subject"].duplicated()].to_numpy()
        conflict = np.isin(self.subjects, torn)
        reason = "subject" if self.persons_known else "mated pair"
        self._exclude(f"{reason} in several groups", conflict, group)
        return np.where(conflict, "", values)

    def _exclude(self, reason: str, sides: NDArray[np.bool_], group: str) -> None:
        """Count the pairs with such a side, if they are not counted for this group already."""
        counted = sum(gone.images for gone in self.exclusions if gone.attribute == group)
        pairs = int(np.count_nonzero(sides.reshape(-1, 2).any(axis=1))) - counted
        if pairs > 0:
            people = len(np.unique(self.subjects[sides])) if self.persons_known else None
            self.exclusions.append(Exclusion(reason, pairs, people, group))


class _ScoreAuditor:
    """Audits one grouping after the other."""

    def __init__(
        self,
        scored: ScoredPairs,
        sides: _Sides,
        left: NDArray[np.bool_],
        calibration: Calibration,
        targets: tuple[str, ...],
        replicates: int,
        seed: int,
        progress: Progress | None,
    ) -> None:
        self._scored, self._sides, self._left = scored, sides, left
        self._calibration, self._targets = calibration, targets
        self._replicates, self._seed = replicates, seed
        self._progress = progress
        self._subjects = np.where(left, sides.subjects, UNKNOWN)
        acquired = scored.scores[~np.isnan(scored.scores)]
        self._cosines = bool(acquired.size and np.abs(acquired).max() <= 1)

    def group(self, grouping: Grouping, first: bool) -> GroupAudit:
        """Return all that scores tell about a grouping."""
        if self._progress is not None:
            self._progress(f"{grouping.name}: error rates", 0, 1)
        codes = np.full(self._left.size, UNKNOWN)
        codes[self._left] = grouping.codes
        absent = NoComparison(grouping.name, NO_NORMS)
        errors = self._errors(grouping, codes)
        part = GroupAudit(
            name=grouping.name,
            attributes=grouping.attributes,
            primary=first,
            names=grouping.names,
            slices=tuple(grouping.slice(code) for code in range(len(grouping.cells))),
            pooled=tuple(" × ".join(cell) for cell in grouping.pooled),
            suppressed=tuple(" × ".join(cell) for cell in grouping.suppressed),
            composition=tuple(
                self._count(grouping, codes, code) for code in range(len(grouping.cells))
            ),
            sample=None,
            norms=None,
            association=absent,
            adjusted=None,
            rates=errors.rates if isinstance(errors, GroupErrors) else errors,
            differentials=differentials(errors, replicates=self._replicates, seed=self._seed)
            if isinstance(errors, GroupErrors)
            else errors,
            channels=absent,
            fusion=absent,
            # Their bins are those of cosines.
            histograms=errors.histograms
            if isinstance(errors, GroupErrors) and self._cosines
            else (),
            errors=errors if isinstance(errors, GroupErrors) else None,
        )
        if self._progress is not None:
            self._progress(f"{grouping.name}: error rates", 1, 1)
        return part

    def _errors(self, grouping: Grouping, codes: NDArray[np.int64]) -> GroupErrors | NoComparison:
        first = 2 * np.arange(len(self._scored))
        try:
            return pair_group_rates(
                self._scored.scores,
                first,
                first + 1,
                self._scored.issame,
                self._subjects,
                codes,
                grouping.names,
                targets=self._targets,
                calibration=self._calibration,
                persons_known=self._sides.persons_known,
                seed=self._seed,
            )
        except MetricError as problem:
            return NoComparison(grouping.name, str(problem))

    def _count(self, grouping: Grouping, codes: NDArray[np.int64], code: int) -> GroupCount:
        inside = codes == code
        subjects = None
        if self._sides.persons_known:
            subjects = len(np.unique(self._subjects[inside]))
        return GroupCount(
            grouping.slice(code),
            subjects,
            None,
            int(np.count_nonzero(inside & ~self._sides.scored)),
        )


def _interleave(first: NDArray, second: NDArray) -> NDArray:
    """Return what is said of the first and the second sides as one array of all sides."""
    return np.stack([first, second], axis=1).reshape(-1)


def _sentences(notes: Sequence[str]) -> list[str]:
    return [f"{note}." for note in notes]
