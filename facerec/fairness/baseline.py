"""Baseline against SEC: what changes, for the same images, from one model to its treated twin.

Every pair of runs shares a seed and differs in the treatment alone. Each subject is left out of
both models at once, so what they share cancels out. Seeds tell how much of a change is training
noise; the interval of the mean over seeds allows for both.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import MetricError
from facerec.cosines.unit_rows import score_pairs
from facerec.embedding.extraction import Embeddings
from facerec.fairness.attributes import check_raw
from facerec.fairness.differentials import NAMES, differentials, max_over_geomean
from facerec.fairness.norms import (
    Array,
    SubjectNorms,
    delta_without,
    eta2_without,
    variation_without,
)
from facerec.fairness.rates import Codes, GroupErrors, ListedPairs, all_pairs_rates, listed_rates
from facerec.report.conclusions import DirectedConclusion, of_change
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import paired_difference
from facerec.statistics.influences import Influence
from facerec.verification.bench import Pairs
from facerec.verification.evaluation import held_out

READING = (
    "SEC shrinks all norm variance by construction, so a smaller absolute norm gap is expected and "
    "proves nothing about groups. Only the standardised association (eta², delta) or the "
    "error-rate differentials can.",
    "A weaker norm association does not imply smaller FMR or FNMR differentials. These are "
    "separate results, and either may move the other way.",
    "Thresholds are re-fixed per model at the same nominal FMR; comparing at one numeric threshold "
    "is meaningless.",
)
"""How a comparison is to be read, whatever it finds."""

TARGETS = ("1e-2", "1e-3")
FEWEST_SEEDS = 3
"""Seeds an arm from which on training noise can be judged."""

FEWEST_SUBJECTS = 3
"""In a group, from which on a change has an interval."""


@dataclass(frozen=True, eq=False)
class RunPair:
    """Embeddings of the same images, in the same order, by two runs of one seed."""

    seed: int
    """Of training, in both arms."""
    baseline: Embeddings
    """Of the run without the treatment."""
    treated: Embeddings
    """Of the run with it."""


@dataclass(frozen=True, kw_only=True)
class Change(Estimate):
    """How one figure changes from baseline to treated: the mean over all seeds.

    The interval is over other subjects, and with several seeds over other seeds too.
    """

    figure: str
    """As in ``TPR@FPR=1e-2``."""
    groups: tuple[str, ...]
    """X and Y of Cliff's delta P(X > Y) − P(X < Y); empty for all others."""
    seeds: tuple[float | None, ...]
    """The change of each seed; None where the data cannot tell."""
    baseline: float | None = None
    """Mean over seeds; None if a seed lacks the figure."""
    treated: float | None = None
    same_sign: int = 0
    """Seeds whose change has the sign of the mean change."""

    @property
    def conclusion(self) -> DirectedConclusion:
        """Whether ``interval`` excludes zero; with one seed that speaks of two models alone."""
        return of_change(self)

    @property
    def name(self) -> str:
        """The figure, and the groups that it compares."""
        return ", ".join(filter(None, (self.figure, " − ".join(self.groups))))


@dataclass(frozen=True)
class BaselineComparison:
    """All changes from the baseline to its treated twin."""

    images: int
    """Images with an embedding in all runs and a known subject."""
    left_out: int
    """Other images."""
    subjects: int
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    """What a reader must know of these runs, one sentence each."""


@dataclass(frozen=True, eq=False)
class _Figure:
    """A figure of one model, and what leaving each subject out adds to it."""

    value: float | None
    changes: Array
    """``(G,)``; empty without a value."""
    subjects: int
    """In the smallest part that is compared."""
    reason: str = ""
    """Why there is no value."""


_Figures = dict[tuple[str, ...], _Figure]
"""By their names, with the groups that they compare."""


@dataclass(frozen=True, eq=False)
class _Shared:
    """What all runs share: images that take part, their subjects, groups and pairs."""

    rows: Codes
    """Of the embeddings, ``(n,)``."""
    subject: Codes
    """0 to G − 1, ``(n,)``."""
    group: Codes
    """``(n,)``, `UNKNOWN` without one."""
    names: tuple[str, ...]
    """Of the groups."""
    pairs: Pairs | None
    """Of these images."""
    of_list: bool
    """Whether error rates are those of ``pairs``."""
    targets: tuple[str, ...]

    @property
    def count(self) -> int:
        return int(self.subject.max()) + 1


def compare_runs(
    runs: Sequence[RunPair],
    subject: Codes,
    group: Codes,
    names: Sequence[str],
    *,
    pairs: Pairs | None = None,
    impostors: Literal["all", "list"] = "all",
    targets: Sequence[str] = TARGETS,
) -> BaselineComparison:
    """Compare runs without and with a treatment on the same images.

    Args:
        runs: one a seed.
        subject: code of the subject on each image, ``(m,)``; −1 where not known.
        group: code of the group of each image, ``(m,)``; −1 where not known. Such images count in
            figures of everybody.
        names: of the groups.
        pairs: labelled pairs of the images; without them there is no accuracy, and the TPR is that
            of all pairs.
        impostors: whether error rates by group come from all pairs of images or from ``pairs``.
        targets: nominal FMRs, taken exactly.

    Raises:
        MetricError: images that differ or take no part.
        DatasetError: embeddings that were normalised.
    """
    embedded = subject >= 0
    for run in runs:
        for arm, side in (("baseline", run.baseline), ("treated", run.treated)):
            where, first = f"seed {run.seed}, {arm}", runs[0].baseline
            if first.ids is None or side.ids is None or not np.array_equal(first.ids, side.ids):
                raise MetricError(
                    f"{where}: the ids of its images are not those of the first baseline; embed "
                    "the same images in the same order"
                )
            check_raw(side.norms, where)
            embedded = embedded & np.isfinite(side.vectors).all(axis=1) & side.vectors.any(axis=1)
    rows = np.flatnonzero(embedded)
    if not rows.size:
        raise MetricError("no image has a subject and an embedding in all runs")
    notes = _notes_on_seeds(len(runs))
    codes = np.unique(subject[rows], return_inverse=True)[1].reshape(-1)
    kept = None if pairs is None else _kept_pairs(pairs, rows, codes, notes)
    shared = _Shared(
        rows, codes, group[rows], tuple(names), kept, impostors == "list", tuple(targets)
    )
    sides = [(_figures(shared, run.baseline), _figures(shared, run.treated)) for run in runs]
    # A figure that some seed lacks is of no use.
    keys = [key for key in sides[0][0] if all(key in one for pair in sides for one in pair)]
    seeds = [run.seed for run in runs]
    return BaselineComparison(
        images=rows.size,
        left_out=len(subject) - rows.size,
        subjects=shared.count,
        changes=tuple(
            _change(key, seeds, [(one[key], other[key]) for one, other in sides]) for key in keys
        ),
        notes=tuple(notes),
    )


def _notes_on_seeds(seeds: int) -> list[str]:
    if seeds == 1:
        return [
            "one seed: the intervals are of these two models; how much of a change is training "
            "noise is unknown"
        ]
    few = f"{seeds} seeds: at least {FEWEST_SEEDS} an arm are needed to judge noise"
    return [few] if seeds < FEWEST_SEEDS else []


def _kept_pairs(pairs: Pairs, rows: Codes, subject: Codes, notes: list[str]) -> Pairs:
    """Return the pairs of images that take part, unless subjects contradict their label."""
    place = np.full(1 + max(pairs.first.max(), pairs.second.max(), rows.max()), -1)
    place[rows] = np.arange(rows.size)
    sides = place[np.stack([pairs.first, pairs.second])]
    present, two = (sides >= 0).all(axis=0), sides[0] != sides[1]
    there = present & two
    agree = (subject[sides[0]] == subject[sides[1]]) == pairs.issame
    for count, what in (
        (np.count_nonzero(~present), "have an image that takes no part"),
        (np.count_nonzero(present & ~two), "compare an image with itself"),
        (np.count_nonzero(there & ~agree), "have a label that contradicts the subjects"),
    ):
        if count:
            notes.append(f"{count:,} of {len(pairs):,} pairs {what} and are left out")
    kept = there & agree
    folds = None if pairs.folds is None else pairs.folds[kept]
    return Pairs(sides[0, kept], sides[1, kept], pairs.issame[kept], subject, folds)


def _figures(shared: _Shared, embeddings: Embeddings) -> _Figures:
    """Compute all figures of one model."""
    norms = embeddings.norms[shared.rows].astype(np.float64)
    vectors = embeddings.vectors[shared.rows]
    figures = _norm_figures(shared, norms)
    listed = None
    if shared.pairs is not None:
        sides = np.stack([shared.pairs.first, shared.pairs.second])
        scores = score_pairs(vectors, *sides)
        figures |= _list_figures(shared, shared.pairs, scores)
        listed = ListedPairs("this list", scores, sides, shared.pairs.issame, shared.subject)
    if (shared.group >= 0).any():
        groups = [(shared.group, shared.names)]
        found: GroupErrors | MetricError
        # As in an audit, thresholds are fixed on everybody, also on images without a group.
        if listed is not None and shared.of_list:
            (found,) = listed_rates(listed, groups, targets=shared.targets)
        else:
            (found,) = all_pairs_rates(vectors, shared.subject, groups, targets=shared.targets)
        if isinstance(found, MetricError):
            raise found
        figures |= _rate_figures(shared, found, with_tpr=listed is None)
    return figures


def _without(values: Array, of: NDArray[np.integer], count: int, fewest: int, why: str) -> _Figure:
    """Take the figure of everybody, which comes first, and of all but each subject."""
    if np.isnan(values[0]):
        return _Figure(None, np.empty(0), fewest, why)
    changes = np.zeros(count)
    changes[of] = values[1:] - values[0]
    return _Figure(float(values[0]), changes, fewest)


def _norm_figures(shared: _Shared, norms: Array) -> _Figures:
    """Return the spread of norms, η² and Cliff's δ of the groups."""
    count, everyone = shared.count, np.arange(shared.count)
    spread = variation_without(norms, shared.subject)
    figures = _Figures()
    figures["CV of norms",] = _without(spread, everyone, count, count, "the mean norm is zero")
    present = [code for code in range(len(shared.names)) if (shared.group == code).any()]
    if len(present) < 2:
        why = "no comparison: fewer than two groups have a subject"
        return figures | {("η²",): _Figure(None, np.empty(0), count, why)}
    sample = SubjectNorms.of(norms, shared.subject, shared.group, shared.names)
    means, grouped = sample.means, np.unique(shared.subject[shared.group >= 0])
    figures["η²",] = _without(
        eta2_without(means, sample.groups),
        grouped,
        count,
        count,
        "the mean norms of subjects do not vary",
    )
    members = {code: np.flatnonzero(sample.groups == code) for code in present}
    for i, j in itertools.combinations(present, 2):
        both = grouped[np.concatenate([members[i], members[j]])]
        deltas = delta_without(means[members[i]], means[members[j]])
        fewest = min(len(members[i]), len(members[j]))
        key = "Cliff's δ", shared.names[i], shared.names[j]
        figures[key] = _without(deltas, both, count, fewest, "a group has no subject")
    return figures


def _list_figures(shared: _Shared, pairs: Pairs, scores: NDArray[np.floating]) -> _Figures:
    """Return accuracy and TPR on the pairs of the list."""
    count, figures = shared.count, _Figures()
    scored, _ = pairs.comparisons(scores, np.ones(len(pairs), bool))

    def figure(influence: Influence) -> _Figure:
        found = scored.figure(influence).changes
        return _Figure(influence[0], np.pad(found, (0, count - found.size)), count)

    if pairs.folds is not None:
        _, right = held_out(scored, pairs.folds)
        figures["accuracy",] = figure(scored.mean(right))
    for point in map(scored.figures.roc.tpr_at_fpr, shared.targets):
        few = f"not resolvable with {point.non_mated:,} different pairs"
        lacking = _Figure(None, np.empty(0), count, few)
        found = figure(scored.tpr(point)) if point.resolvable else lacking
        figures[f"TPR@FPR={point.target}",] = found
    return figures


def _rate_figures(shared: _Shared, errors: GroupErrors, with_tpr: bool) -> _Figures:
    """Return max/geomean of the rates of groups, thresholds as given, and the TPR of all pairs."""
    # For the values and the rule that withholds them.
    summary, figures = differentials(errors, replicates=1), _Figures()
    rows = {(row.measure, row.of, row.target): row for row in summary.rows}
    for target, at in zip(shared.targets, errors.points, strict=True):
        point, fnmr, tpr = at.point, at.fnmr_of_pairs[-1], f"TPR@FPR={target}"
        if with_tpr and point.resolvable and fnmr is not None:
            figures[tpr,] = _Figure(1 - fnmr.value, -fnmr.changes, shared.count)
        elif with_tpr:
            few = f"not resolvable with {point.non_mated:,} non-mated pairs"
            figures[tpr,] = _Figure(None, np.empty(0), shared.count, few)
    for target, at in zip(shared.targets, errors.points, strict=True):
        for of in NAMES:
            compared = [shared.names.index(name) for name in summary.groups[of]]
            fewest = min((errors.group_subjects[group] for group in compared), default=0)
            row = rows.get(("max/geomean", of, target))
            if row is None or row.value is None:
                why = summary.remarks[of][""] if row is None else row.remark
                found = _Figure(None, np.empty(0), fewest, why)
            else:
                shares = [share for group in compared if (share := at.of(of)[group])]
                # A subject is in one group: it moves one of the rates.
                rates = np.stack([share.value + share.changes for share in shares], axis=-1)
                changes = max_over_geomean(np.maximum(rates, 0)) - row.value
                found = _Figure(row.value, changes, fewest)
            figures[f"max/geomean {of} at FMR={target}",] = found
    return figures


def _change(
    key: tuple[str, ...], seeds: Sequence[int], sides: Sequence[tuple[_Figure, _Figure]]
) -> Change:
    """Compare both models of each seed in one figure, and the mean over seeds."""
    changes = tuple(
        None if one.value is None or other.value is None else other.value - one.value
        for one, other in sides
    )
    figure, *groups = key
    for number, pair in zip(seeds, sides, strict=True):
        reasons = [
            f"{arm}: {side.reason}"
            for arm, side in zip(("baseline", "new"), pair, strict=True)
            if side.value is None
        ]
        if reasons:
            why = f"seed {number}: " * (len(seeds) > 1) + "; ".join(reasons)
            return Change(None, remark=why, figure=figure, groups=tuple(groups), seeds=changes)
    values = np.array(changes, np.float64)
    mean = float(values.mean())
    if abs(mean) < 1e-9 * np.abs(values).max():
        mean = 0.0  # of changes that cancel, rounding is left
    left_out = np.mean([other.changes - one.changes for one, other in sides], axis=0)
    subjects = sides[0][0].subjects
    interval, remark = None, f"no interval: {subjects} subjects in a group"
    if subjects >= FEWEST_SUBJECTS:
        # Seeds alone do not tell of other subjects.
        changed = np.isfinite(left_out).all() and np.count_nonzero(left_out) > 1
        interval = paired_difference(values, left_out) if changed else None
        remark = "" if interval else "no interval: no subject makes a difference"
    before, after = (
        float(np.mean([value for pair in sides if (value := pair[arm].value) is not None]))
        for arm in (0, 1)
    )
    return Change(
        mean,
        interval,
        remark=remark,
        figure=figure,
        groups=tuple(groups),
        seeds=changes,
        baseline=before,
        treated=after,
        same_sign=int(np.count_nonzero(np.sign(values) == np.sign(mean))) if mean else 0,
    )
