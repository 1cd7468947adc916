"""What changes, for the same images, from one model to another, such as its twin with SEC.

Each subject is left out of both models at once, so what they share cancels out. Intervals are of
these two models; ``examples/sec_fairness_study.py`` takes several seeds of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import MetricError
from facerec.cosines.unit_rows import score_pairs
from facerec.embedding.extraction import Embeddings
from facerec.fairness.attributes import check_raw
from facerec.fairness.differentials import NAMES, comparable, differentials, max_over_geomean
from facerec.fairness.groupings import UNKNOWN, Grouping
from facerec.fairness.norms import (
    Array,
    SubjectNorms,
    delta_without,
    eta2_without,
    variation_without,
)
from facerec.fairness.rates import (
    Codes,
    GroupErrors,
    ListedPairs,
    all_pairs_rates,
    listed_rates,
    usable,
)
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import paired_difference
from facerec.statistics.intervals import Interval
from facerec.verification.bench import Pairs
from facerec.verification.compare import figures_of
from facerec.verification.evaluation import rows_of

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


def compare_models(
    baseline: Embeddings,
    new: Embeddings,
    subject: Codes,
    grouping: Grouping,
    *,
    pairs: Pairs | None = None,
    impostors: Literal["all", "list"] = "all",
    targets: Sequence[str] = TARGETS,
) -> tuple[list[Change], list[str]]:
    """Return what changes from a baseline to a new model, and what a reader must know of it.

    Args:
        baseline: embeddings of the images that take part, and perhaps of others.
        new: of m images, with ids.
        subject: code of the subject on each image, ``(m,)``; −1 where not known.
        grouping: of the images; those without a group count in figures of everybody.
        pairs: labelled pairs of the images; without them there is no accuracy, and the TPR is that
            of all pairs.
        impostors: whether error rates by group come from all pairs of images or from ``pairs``,
            whose images alone take part then.
        targets: nominal FMRs, taken exactly.

    Raises:
        MetricError: the baseline lacks an image, or none takes part.
        DatasetError: embeddings that were normalised.
    """
    assert new.ids is not None  # else nothing would have been joined
    part, of_list = subject >= 0, pairs is not None and impostors == "list"
    if pairs is not None and of_list:
        part &= np.isin(np.arange(subject.size), [pairs.first, pairs.second])
    wanted = np.flatnonzero(part)
    rows = rows_of(baseline, new.ids[wanted], "the baseline")
    old = np.full((subject.size, baseline.vectors.shape[1]), np.nan, baseline.vectors.dtype)
    norms = np.full(subject.size, np.nan)
    old[wanted], norms[wanted] = baseline.vectors[rows], baseline.norms[rows]
    sides = {"baseline": (old, norms), "new": (new.vectors, new.norms.astype(np.float64))}
    for arm, (vectors, lengths) in sides.items():
        check_raw(lengths[wanted], arm)
        part &= np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    if not part.any():
        raise MetricError("no image has a subject and an embedding in both models")
    codes = np.full(subject.size, UNKNOWN)
    codes[part] = np.unique(subject[part], return_inverse=True)[1].reshape(-1)
    grouping = replace(grouping, codes=np.where(part, grouping.codes, UNKNOWN))
    notes = [TWO_MODELS]
    if pairs is not None:
        kept = usable(np.stack([pairs.first, pairs.second]), pairs.issame, codes)
        if not kept.all():
            notes.append(
                f"{np.count_nonzero(~kept):,} of {len(pairs):,} pairs are left out where the "
                "models are compared: they have an image that takes no part, or one twice, or a "
                "label that contradicts the subjects"
            )
        pairs = replace(pairs, subjects=codes)[kept]
    one, other = (
        _figures(*side, codes, grouping, pairs, of_list, targets) for side in sides.values()
    )
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


def _figures(
    vectors: NDArray[np.floating],
    norms: Array,
    subject: Codes,
    grouping: Grouping,
    pairs: Pairs | None,
    of_list: bool,
    targets: Sequence[str],
) -> _Figures:
    """Compute all figures of one model; ``of_list`` takes error rates from the pairs."""
    figures, count = _norm_figures(norms, subject, grouping), int(subject.max()) + 1
    listed = None
    if pairs is not None:
        sides = np.stack([pairs.first, pairs.second])
        scores = score_pairs(vectors, *sides)
        listed = ListedPairs("this list", scores, sides, pairs.issame, subject)
        figures |= _list_figures(pairs, scores, count, targets)
    if (grouping.codes >= 0).any():
        # As in an audit, thresholds are fixed on everybody, also on images without a group.
        if listed is not None and of_list:
            (found,) = listed_rates(listed, [grouping], targets=targets)
        else:
            (found,) = all_pairs_rates(vectors, subject, [grouping], targets=targets)
        figures |= _rate_figures(found, count, with_tpr=listed is None)
    return figures


def _without(values: Array, of: NDArray[np.integer], count: int, fewest: int) -> _Figure:
    """Take the figure of everybody, which comes first, and of all but each subject."""
    if np.isnan(values[0]):
        return _Figure(None, remark="nothing varies", unit="number", subjects=fewest)
    added = np.zeros(count)
    added[of] = values[1:] - values[0]
    return _Figure(float(values[0]), unit="number", subjects=fewest, added=added)


def _norm_figures(norms: Array, subject: Codes, grouping: Grouping) -> _Figures:
    """Return the spread of norms, η² and Cliff's δ of the groups."""
    part, count = subject >= 0, int(subject.max()) + 1
    spread = variation_without(norms[part], subject[part])
    figures = {("CV of norms", "", "", ""): _without(spread, np.arange(count), count, count)}
    sample = SubjectNorms.of(norms, subject, grouping)
    present = np.unique(sample.groups).tolist()
    if len(present) < 2:
        few = "no comparison: fewer than two groups have a subject"
        return figures | {ETA2: _Figure(None, remark=few, unit="number", subjects=count)}
    means, grouped = sample.means, np.unique(subject[grouping.codes >= 0])
    figures[ETA2] = _without(eta2_without(means, sample.groups), grouped, count, count)
    members = {code: np.flatnonzero(sample.groups == code) for code in present}
    for i, j in itertools.combinations(present, 2):
        both = grouped[np.concatenate([members[i], members[j]])]
        deltas = delta_without(means[members[i]], means[members[j]])
        fewest = min(len(members[i]), len(members[j]))
        key = "Cliff's δ", "", sample.names[i], sample.names[j]
        figures[key] = _without(deltas, both, count, fewest)
    return figures


def _list_figures(
    pairs: Pairs, scores: NDArray[np.floating], count: int, targets: Sequence[str]
) -> _Figures:
    """Return accuracy and TPR on the pairs of the list."""
    figures, (scored, _) = _Figures(), pairs.comparisons(scores)
    for (name, target), (found, influence, _) in figures_of(scored, pairs.folds, targets).items():
        if name not in ("accuracy", "TPR@FPR"):
            continue
        added = np.empty(0) if influence is None else scored.figure(influence).changes
        figures[name, target, "", ""] = _Figure(
            found.value,
            remark=found.remark,
            unresolved=found.unresolved,
            subjects=count,
            added=np.pad(added, (0, count - added.size)),
        )
    return figures


def _rate_figures(errors: GroupErrors, count: int, with_tpr: bool) -> _Figures:
    """Return max/geomean of the rates of groups, thresholds as given, and the TPR of all pairs."""
    figures = _Figures()
    for at in errors.points if with_tpr else ():
        point, fnmr = at.point, at.fnmr_of_pairs[-1]
        few = f"{point.non_mated:,} non-mated pairs"
        found = _Figure(None, remark=few, unresolved=True, subjects=count)
        if point.resolvable and fnmr is not None:
            found = _Figure(1 - fnmr.value, subjects=count, added=-fnmr.changes)
        figures["TPR@FPR", point.target, "", ""] = found
    # For the values and the rule that withholds them.
    rows = {
        (row.at, row.of): row
        for row in differentials(errors, replicates=1)
        if row.measure == "max/geomean"
    }
    for at, of in itertools.product(errors.points, NAMES):
        compared, why = comparable(errors, of)
        fewest = min((errors.group_subjects[group] for group in compared), default=0)
        row = rows.get((at.at, of), Estimate(None, remark=why.get("", "")))
        how: dict[str, Any] = {"unit": "times", "subjects": fewest}
        found = _Figure(None, remark=row.remark, unresolved=row.unresolved, **how)
        if row.value is not None:
            shares = [share for group in compared if (share := at.of(of)[group])]
            # A subject is in one group: it moves one of the rates.
            rates = np.stack([share.value + share.changes for share in shares], axis=-1)
            added = max_over_geomean(np.maximum(rates, 0)) - row.value
            found = _Figure(row.value, added=added, **how)
        figures[geomean_of(of, at.point.target)] = found
    return figures
