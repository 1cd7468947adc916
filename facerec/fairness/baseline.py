"""What changes, for the same images, from one model to another, such as its twin with SEC.

Each subject is left out of both models at once, so what they share cancels out. Intervals are of
these two models; ``examples/sec_fairness_study.py`` takes several seeds of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import paired_difference
from facerec.statistics.influences import Influence
from facerec.statistics.intervals import Interval
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
TWO_MODELS = (
    "one seed: the intervals are of these two models; how much of a change is training noise is "
    "unknown"
)

TARGETS = ("1e-2", "1e-3")
FEWEST_SUBJECTS = 3
"""In a group, from which on a change has an interval."""

Key = tuple[str, str, str, str]
"""A figure, the nominal FMR that it is read at, a group and the one that it is compared with; empty
where there is none."""
ETA2: Key = ("η²", "", "", "")


def geomean_of(rate: str, target: str) -> Key:
    """Return the key of the differential of a rate."""
    return f"max/geomean of {rate}", target, "", ""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Figure(Estimate):
    """A figure of one model; without a value it says why."""

    subjects: int
    """In the smallest part that is compared."""
    added: Array = field(default_factory=lambda: np.empty(0), repr=False)
    """What leaving each subject out adds to it, ``(G,)``; empty without a value."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Change(_Figure):
    """How one figure changes from the baseline to the new model, with its interval."""

    key: Key
    baseline: Estimate
    new: Estimate


_Figures = dict[Key, _Figure]


@dataclass(frozen=True, eq=False)
class _Shared:
    """What both models share: images that take part, their subjects, groups and pairs."""

    rows: Codes
    """Rows of the embeddings that take part, ``(n,)``."""
    subject: Codes
    """0 to G − 1, ``(n,)``."""
    group: Codes
    """``(n,)``, `UNKNOWN` without one."""
    names: tuple[str, ...]
    """Names of the groups."""
    pairs: Pairs | None
    """Pairs of these images."""
    of_list: bool
    """Whether error rates are those of ``pairs``."""
    targets: tuple[str, ...]

    @property
    def count(self) -> int:
        return int(self.subject.max()) + 1


def compare_models(
    baseline: Embeddings,
    new: Embeddings,
    subject: Codes,
    group: Codes,
    names: Sequence[str],
    *,
    pairs: Pairs | None = None,
    impostors: Literal["all", "list"] = "all",
    targets: Sequence[str] = TARGETS,
) -> tuple[list[Change], list[str]]:
    """Return what changes from a baseline to a new model, and what a reader must know of it.

    Args:
        baseline: of m images.
        new: embeddings of the same images in the same order.
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
    for arm, side in (("baseline", baseline), ("new", new)):
        if baseline.ids is None or side.ids is None or not np.array_equal(baseline.ids, side.ids):
            raise MetricError(
                f"{arm}: the ids of its images are not those of the baseline; embed the same "
                "images in the same order"
            )
        check_raw(side.norms, arm)
        embedded = embedded & np.isfinite(side.vectors).all(axis=1) & side.vectors.any(axis=1)
    rows = np.flatnonzero(embedded)
    if not rows.size:
        raise MetricError("no image has a subject and an embedding in both models")
    notes = [TWO_MODELS]
    codes = np.unique(subject[rows], return_inverse=True)[1].reshape(-1)
    kept = None if pairs is None else _kept_pairs(pairs, rows, codes, notes)
    shared = _Shared(
        rows, codes, group[rows], tuple(names), kept, impostors == "list", tuple(targets)
    )
    one, other = _figures(shared, baseline), _figures(shared, new)
    # A figure that one of them lacks is of no use.
    return [_change(key, one[key], other[key]) for key in one if key in other], notes


def interval_of(values: ArrayLike, added: ArrayLike, subjects: int) -> tuple[Interval | None, str]:
    """Return the interval of the mean change of several pairs of models, or why it has none.

    Args:
        values: the change of each pair, one a seed, ``(S,)``.
        added: what leaving each subject out adds to their mean, ``(G,)``.
        subjects: in the smallest part that is compared.
    """
    if subjects < FEWEST_SUBJECTS:
        return None, f"no interval: {subjects} subjects in a group"
    # Seeds alone do not tell of other subjects.
    changed = np.isfinite(added).all() and np.count_nonzero(added) > 1
    interval = paired_difference(values, added) if changed else None
    return interval, "" if interval else "no interval: no subject makes a difference"


def _change(key: Key, one: _Figure, other: _Figure) -> Change:
    how: dict[str, Any] = {"key": key, "baseline": one, "new": other, "unit": one.unit}
    how["subjects"] = one.subjects
    if one.value is None or other.value is None:
        sides = (("baseline", one), ("new", other))
        lacking = {arm: side for arm, side in sides if side.value is None}
        why = "; ".join(f"{arm}: {side.remark}" for arm, side in lacking.items())
        few = any(side.unresolved for side in lacking.values())
        return Change(None, remark=why, unresolved=few, **how)
    value, added = other.value - one.value, other.added - one.added
    interval, why = interval_of([value], added, one.subjects)
    return Change(value, interval, remark=why, added=added, **how)


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
        return _Figure(None, remark=why, unit="number", subjects=fewest)
    added = np.zeros(count)
    added[of] = values[1:] - values[0]
    return _Figure(float(values[0]), unit="number", subjects=fewest, added=added)


def _norm_figures(shared: _Shared, norms: Array) -> _Figures:
    """Return the spread of norms, η² and Cliff's δ of the groups."""
    count, everyone = shared.count, np.arange(shared.count)
    spread = variation_without(norms, shared.subject)
    figures = _Figures()
    why = "the mean norm is zero"
    figures["CV of norms", "", "", ""] = _without(spread, everyone, count, count, why)
    present = [code for code in range(len(shared.names)) if (shared.group == code).any()]
    if len(present) < 2:
        few = "no comparison: fewer than two groups have a subject"
        return figures | {ETA2: _Figure(None, remark=few, unit="number", subjects=count)}
    sample = SubjectNorms.of(norms, shared.subject, shared.group, shared.names)
    means, grouped = sample.means, np.unique(shared.subject[shared.group >= 0])
    shares, why = eta2_without(means, sample.groups), "the mean norms of subjects do not vary"
    figures[ETA2] = _without(shares, grouped, count, count, why)
    members = {code: np.flatnonzero(sample.groups == code) for code in present}
    for i, j in itertools.combinations(present, 2):
        both = grouped[np.concatenate([members[i], members[j]])]
        deltas = delta_without(means[members[i]], means[members[j]])
        fewest = min(len(members[i]), len(members[j]))
        key = "Cliff's δ", "", shared.names[i], shared.names[j]
        figures[key] = _without(deltas, both, count, fewest, "a group has no subject")
    return figures


def _list_figures(shared: _Shared, pairs: Pairs, scores: NDArray[np.floating]) -> _Figures:
    """Return accuracy and TPR on the pairs of the list."""
    count, figures = shared.count, _Figures()
    scored, _ = pairs.comparisons(scores)

    def figure(influence: Influence) -> _Figure:
        found = scored.figure(influence).changes
        added = np.pad(found, (0, count - found.size))
        return _Figure(influence[0], subjects=count, added=added)

    if pairs.folds is not None:
        _, right = held_out(scored, pairs.folds)
        figures["accuracy", "", "", ""] = figure(scored.mean(right))
    for point in map(scored.roc.tpr_at_fpr, shared.targets):
        few = f"{point.non_mated:,} different pairs"
        lacking = _Figure(None, remark=few, unresolved=True, subjects=count)
        found = figure(scored.tpr(point)) if point.resolvable else lacking
        figures["TPR@FPR", point.target, "", ""] = found
    return figures


def _rate_figures(shared: _Shared, errors: GroupErrors, with_tpr: bool) -> _Figures:
    """Return max/geomean of the rates of groups, thresholds as given, and the TPR of all pairs."""
    # For the values and the rule that withholds them.
    summary, figures = differentials(errors, replicates=1), _Figures()
    rows = {(row.measure, row.of, row.at.target): row for row in summary.rows}
    for at in errors.points if with_tpr else ():
        point, fnmr = at.point, at.fnmr_of_pairs[-1]
        few = f"{point.non_mated:,} non-mated pairs"
        found = _Figure(None, remark=few, unresolved=True, subjects=shared.count)
        if point.resolvable and fnmr is not None:
            found = _Figure(1 - fnmr.value, subjects=shared.count, added=-fnmr.changes)
        figures["TPR@FPR", point.target, "", ""] = found
    for at, of in itertools.product(errors.points, NAMES):
        compared = [shared.names.index(name) for name in summary.groups[of]]
        fewest = min((errors.group_subjects[group] for group in compared), default=0)
        row = rows.get(("max/geomean", of, at.point.target))
        how: dict[str, Any] = {"unit": "times", "subjects": fewest}
        if row is None:
            found = _Figure(None, remark=summary.remarks[of][""], **how)
        elif row.value is None:
            found = _Figure(None, remark=row.remark, unresolved=row.unresolved, **how)
        else:
            shares = [share for group in compared if (share := at.of(of)[group])]
            # A subject is in one group: it moves one of the rates.
            rates = np.stack([share.value + share.changes for share in shares], axis=-1)
            added = max_over_geomean(np.maximum(rates, 0)) - row.value
            found = _Figure(row.value, added=added, **how)
        figures[geomean_of(of, at.point.target)] = found
    return figures
