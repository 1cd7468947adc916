"""Baseline against SEC: what changes, for the same images, from one model to its treated twin.

Every pair of runs shares a seed and differs in the treatment alone. Each subject is left out of
both models at once, so what they share cancels out. Seeds tell how much of a change is training
noise; the interval of the mean over seeds allows for both.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.embedding.extraction import Embeddings
from facerec.errors import MetricError
from facerec.fairness.attributes import check_raw
from facerec.fairness.differentials import Of, differentials, max_over_geomean
from facerec.fairness.norms import SubjectNorms
from facerec.fairness.pair_counts import UNKNOWN, GroupedImages, quotients
from facerec.fairness.rates import GroupErrors, PairList, all_pairs_rates, listed_rates
from facerec.progress import Progress
from facerec.report.conclusions import DirectedConclusion, of_change
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import paired_difference
from facerec.statistics.influences import Influence, ScoredComparisons
from facerec.statistics.intervals import Interval
from facerec.statistics.kfold import kfold_accuracy
from facerec.verification.bench import Pairs
from facerec.verification.evaluation import score_pairs

Array = NDArray[np.float64]

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

Role = Literal["performance", "by construction", "association", "differential"]


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

    The interval is over other subjects and other seeds; with one seed it is ``over_subjects``.
    """

    figure: str
    """As in ``TPR@FPR=1e-2``."""
    role: Role
    """What it may tell: see `READING`."""
    groups: tuple[str, str] | None
    """X and Y of Cliff's delta P(X > Y) − P(X < Y)."""
    seeds: tuple[float | None, ...]
    """The change of each seed; None where the data cannot tell."""
    baseline: float | None = None
    """Mean over seeds; None if a seed lacks the figure."""
    treated: float | None = None
    over_subjects: Interval | None = None
    """Of the mean change: other subjects, the same runs."""
    over_seeds: Interval | None = None
    """Of the mean change: other seeds, the same subjects; Student's t."""
    same_sign: int = 0
    """Seeds whose change has the sign of the mean change."""

    @property
    def conclusion(self) -> DirectedConclusion:
        """Whether ``interval`` excludes zero; with one seed that speaks of two models alone."""
        return of_change(self)

    @property
    def name(self) -> str:
        """The figure, and the groups that it compares."""
        groups = None if self.groups is None else " − ".join(self.groups)
        return ", ".join(filter(None, (self.figure, groups)))


@dataclass(frozen=True)
class BaselineComparison:
    """All changes from the baseline to its treated twin."""

    attribute: str
    images: int
    """Images with an embedding in all runs and a known subject."""
    left_out: int
    """Other images."""
    subjects: int
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    """What a reader must know of these runs, one sentence each."""


def compare_runs(
    runs: Sequence[RunPair],
    subject: ArrayLike,
    group: ArrayLike,
    names: Sequence[str],
    *,
    attribute: str = "group",
    pairs: Pairs | None = None,
    impostors: Literal["all", "list"] = "all",
    targets: Sequence[str] = TARGETS,
    progress: Progress | None = None,
) -> BaselineComparison:
    """Compare runs without and with a treatment on the same images.

    Args:
        runs: one a seed.
        subject: code of the subject on each image, ``(m,)``; −1 where not known.
        group: code of the group of each image, ``(m,)``; −1 where not known. Such images count in
            figures of everybody.
        names: of the groups.
        attribute: what the groups are of.
        pairs: labelled pairs of the images; without them there is no accuracy, and the TPR is that
            of all pairs.
        impostors: whether error rates by group come from all pairs of images or from ``pairs``.
        targets: nominal FMRs, taken exactly.
        progress: called after each model.

    Raises:
        MetricError: images, subjects or groups that differ or do not fit, or a seed that repeats.
        DatasetError: embeddings that were normalised.
    """
    frame = _Frame(runs, subject, group, names, pairs, impostors, targets)
    figures: list[tuple[_Figures, _Figures]] = []
    for run in runs:
        sides: list[_Figures] = []
        for embeddings in (run.baseline, run.treated):
            sides.append(frame.figures(embeddings))
            if progress is not None:
                progress("comparing models", 2 * len(figures) + len(sides), 2 * len(runs))
        figures.append((sides[0], sides[1]))
    # A figure that some seed lacks is of no use.
    keys = [key for key in figures[0][0] if all(key in one for pair in figures for one in pair)]
    seeds = [run.seed for run in runs]
    return BaselineComparison(
        attribute=attribute,
        images=len(frame.rows),
        left_out=frame.left_out,
        subjects=frame.subject_count,
        changes=tuple(
            _change(key, seeds, [(one[key], other[key]) for one, other in figures]) for key in keys
        ),
        notes=tuple(frame.notes),
    )


@dataclass(frozen=True)
class _Key:
    figure: str
    role: Role
    groups: tuple[str, str] | None = None
    subjects: int = field(default=0, compare=False)
    """Subjects in the smallest part that is compared."""


@dataclass(frozen=True, eq=False)
class _Figure:
    """A figure of one model, and what leaving each subject out adds to it."""

    value: float | None
    changes: Array
    """``(G,)``; empty without a value."""
    reason: str = ""
    """Why there is no value."""

    @classmethod
    def lacking(cls, reason: str) -> _Figure:
        return cls(None, np.empty(0), reason)

    @classmethod
    def without(cls, values: Array, of: NDArray[np.integer], size: int, reason: str) -> _Figure:
        """Take the figure of everybody, which comes first, and of all but each subject."""
        if np.isnan(values[0]):
            return cls.lacking(reason)
        changes = np.zeros(size)
        changes[of] = values[1:] - values[0]
        return cls(float(values[0]), changes)


_Figures = Mapping[_Key, _Figure]


class _Frame:
    """What all runs share: images, subjects, groups and pairs."""

    def __init__(
        self,
        runs: Sequence[RunPair],
        subject: ArrayLike,
        group: ArrayLike,
        names: Sequence[str],
        pairs: Pairs | None,
        impostors: Literal["all", "list"],
        targets: Sequence[str],
    ) -> None:
        if pairs is None and impostors == "list":
            raise MetricError("error rates of a pair list need the list; give pairs")
        ids = _check_runs(runs)
        subjects, codes = np.asarray(subject), np.asarray(group)
        if not subjects.shape == codes.shape == ids.shape:
            raise MetricError(
                f"{len(ids)} images but subjects of shape {subjects.shape} and groups of shape "
                f"{codes.shape}; give one each an image"
            )
        self.notes = _notes_on_seeds(runs)
        self.targets, self.impostors = tuple(targets), impostors
        self.rows = np.flatnonzero(_embedded(runs) & (subjects >= 0))
        if not len(self.rows):
            raise MetricError("no image has a subject and an embedding in all runs")
        self.left_out = len(ids) - len(self.rows)
        self.subject = np.unique(subjects[self.rows], return_inverse=True)[1].reshape(-1)
        self.subject_count = int(self.subject.max()) + 1
        self._set_groups(GroupedImages(subjects[self.rows], codes[self.rows], names))
        self._set_pairs(pairs)

    def _set_groups(self, labelled: GroupedImages) -> None:
        """Number the groups that have a subject."""
        there = labelled.group
        present = np.unique(there[there >= 0])
        self.names = tuple(labelled.names[code] for code in present)
        self.group = np.where(there >= 0, np.searchsorted(present, there), UNKNOWN)
        self.grouped = np.flatnonzero(self.group >= 0)

    def _set_pairs(self, pairs: Pairs | None) -> None:
        """Keep the pairs of images that take part, unless subjects contradict their label."""
        self.folds: NDArray[np.int64] | None = None
        self.sides, self.same = np.empty((2, 0), np.int64), np.empty(0, bool)
        if pairs is None:
            return
        total = self.left_out + len(self.rows)
        sides = np.stack([pairs.first, pairs.second])
        if sides.size and not 0 <= sides.min() <= sides.max() < total:
            raise MetricError(
                f"pairs name the images {sides.min()} to {sides.max()}, but there are {total}"
            )
        row_of = np.full(total, -1)
        row_of[self.rows] = np.arange(len(self.rows))
        sides = row_of[sides]
        there = (sides >= 0).all(axis=0)
        agree = (self.subject[sides[0]] == self.subject[sides[1]]) == pairs.issame
        for count, what in (
            (np.count_nonzero(~there), "have an image that takes no part"),
            (np.count_nonzero(there & ~agree), "have a label that contradicts the subjects"),
        ):
            if count:
                self.notes.append(f"{count:,} of {len(pairs):,} pairs {what} and are left out")
        kept = there & agree
        self.sides, self.same = sides[:, kept], pairs.issame[kept]
        if pairs.folds is not None:
            self.folds = pairs.folds[kept]
        if self.same.all() or not self.same.any():
            raise MetricError(
                f"{int(self.same.sum())} same and {int((~self.same).sum())} different pairs take "
                "part; a comparison needs some of each"
            )

    def figures(self, embeddings: Embeddings) -> _Figures:
        """Compute all figures of one model."""
        figures = self._norms(embeddings.norms[self.rows].astype(np.float64))
        vectors = embeddings.vectors[self.rows]
        scores = score_pairs(vectors, *self.sides)
        if len(scores):
            figures |= self._of_list(scores)
        if len(self.grouped):
            errors, subjects = self._errors(vectors, scores)
            if not len(scores):
                figures |= self._tpr_of_all(errors, subjects)
            figures |= self._differentials(errors, subjects)
        return figures

    def _norms(self, norms: Array) -> dict[_Key, _Figure]:
        everyone = np.arange(self.subject_count)
        figures = {
            _Key("CV of norms", "by construction", subjects=self.subject_count): _Figure.without(
                _variation(norms, self.subject),
                everyone,
                self.subject_count,
                "the mean norm is zero",
            )
        }
        one_group = "no comparison: fewer than two groups have a subject"
        key = _Key("η²", "association", subjects=self.subject_count)
        if len(self.names) < 2:
            return figures | {key: _Figure.lacking(one_group)}
        sample = SubjectNorms.from_images(
            norms[self.grouped], self.subject[self.grouped], self.group[self.grouped]
        )
        means, grouped = sample.means, np.unique(self.subject[self.grouped])
        figures[key] = _Figure.without(
            _eta_squared(means, sample.groups),
            grouped,
            self.subject_count,
            "the mean norms of subjects do not vary",
        )
        members = [np.flatnonzero(sample.groups == g) for g in range(len(self.names))]
        for i, j in itertools.combinations(range(len(self.names)), 2):
            fewest = min(len(members[i]), len(members[j]))
            key = _Key("Cliff's δ", "association", (self.names[i], self.names[j]), fewest)
            both = grouped[np.concatenate([members[i], members[j]])]
            deltas = _deltas(means[members[i]], means[members[j]])
            figures[key] = _Figure.without(
                deltas, both, self.subject_count, "a group has no subject"
            )
        return figures

    def _of_list(self, scores: NDArray[np.floating]) -> dict[_Key, _Figure]:
        """Return accuracy and TPR on the pairs of the list."""
        performance: dict[_Key, _Figure] = {}
        first, second = self.subject[self.sides]
        scored = ScoredComparisons.of(scores, self.same, (first, second))

        def figure(influence: Influence) -> _Figure:
            changes = np.zeros(self.subject_count)
            found = scored.figure(influence).changes
            changes[: found.size] = found
            return _Figure(influence[0], changes)

        if self.folds is not None:
            thresholds = kfold_accuracy(scores, self.same, self.folds).thresholds
            right = (scores >= np.asarray(thresholds)[self.folds]) == self.same
            key = _Key("accuracy", "performance", subjects=self.subject_count)
            performance[key] = figure(scored.mean(right))
        for point in map(scored.figures.tpr_at_fpr, self.targets):
            key = _Key(_tpr(point.target), "performance", subjects=self.subject_count)
            if point.resolvable:
                performance[key] = figure(scored.tpr(point))
            else:
                few = f"not resolvable with {point.non_mated:,} different pairs"
                performance[key] = _Figure.lacking(few)
        return performance

    def _errors(
        self, vectors: NDArray[np.floating], scores: NDArray[np.floating]
    ) -> tuple[GroupErrors, NDArray[np.int64]]:
        """Count errors by group; also return which subjects the counts number.

        As in an audit, thresholds are fixed on everybody, also on images without a group.
        """
        groups = [(self.group, self.names)]
        found: GroupErrors | MetricError
        if self.impostors == "all":
            (found,) = all_pairs_rates(vectors, self.subject, groups, targets=self.targets)
            compared = self.subject[self.grouped]
        else:
            pairs = PairList("this list", scores, self.sides, self.same, self.subject)
            (found,) = listed_rates(pairs, groups, targets=self.targets)
            known = (self.group[self.sides] >= 0).all(axis=0)
            compared = self.subject[self.sides[:, known]]
        if isinstance(found, MetricError):
            raise found
        return found, np.unique(compared)

    def _tpr_of_all(self, errors: GroupErrors, subjects: NDArray[np.int64]) -> dict[_Key, _Figure]:
        """Return the TPR among all pairs of subjects with a group."""
        figures = {}
        for at in errors.points:
            point, fnmr = at.point, at.shares[-1][1]
            key = _Key(_tpr(point.target), "performance", subjects=self.subject_count)
            if not point.resolvable or fnmr is None:
                few = f"not resolvable with {point.non_mated:,} non-mated pairs"
                figures[key] = _Figure.lacking(few)
                continue
            changes = np.zeros(self.subject_count)
            changes[subjects] = -fnmr.changes
            figures[key] = _Figure(1 - fnmr.value, changes)
        return figures

    def _differentials(
        self, errors: GroupErrors, subjects: NDArray[np.int64]
    ) -> dict[_Key, _Figure]:
        """Return max/geomean of the FMRs and of the FNMRs of groups, thresholds as given."""
        # For the values and the rule that withholds them.
        summary = differentials(errors, replicates=1)
        rows = {(row.measure, row.of, row.target): row for row in summary.rows}
        compared = [self.names.index(name) for name in summary.groups]
        fewest = min((errors.group_subjects[group] for group in compared), default=0)
        figures = {}
        for target, at in zip(self.targets, errors.points, strict=True):
            kinds: tuple[Of, Of] = ("FMR", "FNMR")
            for kind, of in enumerate(kinds):
                figure = f"max/geomean {of} at FMR={target}"
                key = _Key(figure, "differential", subjects=fewest)
                row = rows.get(("max/geomean", of, target))
                if row is None or row.value is None:
                    why = "; ".join(summary.remarks) if row is None else row.remark
                    figures[key] = _Figure.lacking(why)
                    continue
                shares = [share for group in compared if (share := at.shares[group][kind])]
                rates = np.stack([share.value + share.changes for share in shares], axis=-1)
                changes = np.zeros(self.subject_count)
                # A subject is in one group: it moves one of the rates.
                changes[subjects] = max_over_geomean(np.maximum(rates, 0)) - row.value
                figures[key] = _Figure(row.value, changes)
        return figures


def _change(key: _Key, seeds: Sequence[int], sides: Sequence[tuple[_Figure, _Figure]]) -> Change:
    """Compare both models of each seed in one figure, and the mean over seeds."""
    changes = [
        None if one.value is None or other.value is None else other.value - one.value
        for one, other in sides
    ]
    change = partial(
        Change, figure=key.figure, role=key.role, groups=key.groups, seeds=tuple(changes)
    )
    for number, pair in zip(seeds, sides, strict=True):
        which = f"seed {number}: " if len(seeds) > 1 else ""
        reasons = [
            f"{arm}: {side.reason}"
            for arm, side in zip(("baseline", "new"), pair, strict=True)
            if side.value is None
        ]
        if reasons:
            return change(None, remark=f"{which}{'; '.join(reasons)}")
    values = np.array(changes, np.float64)
    mean = float(values.mean())
    if abs(mean) < 1e-9 * np.abs(values).max():
        mean = 0.0  # of changes that cancel, rounding is left
    left_out = np.mean([other.changes - one.changes for one, other in sides], axis=0)
    over_subjects, reason = None, f"no interval: {key.subjects} subjects in a group"
    if key.subjects >= FEWEST_SUBJECTS:
        over_subjects = paired_difference([mean], left_out) if np.isfinite(left_out).all() else None
        reason = "" if over_subjects else "no interval: no subject makes a difference"
    over_seeds = paired_difference(values, []) if len(values) > 1 else None
    both = paired_difference(values, left_out) if over_subjects else None
    before, after = (float(np.mean([pair[arm].value for pair in sides])) for arm in (0, 1))
    return change(
        mean,
        both,
        remark=reason,
        baseline=before,
        treated=after,
        over_subjects=over_subjects,
        over_seeds=over_seeds,
        same_sign=int(np.count_nonzero(np.sign(values) == np.sign(mean))) if mean else 0,
    )


def _check_runs(runs: Sequence[RunPair]) -> NDArray[np.str_]:
    """Refuse runs on different images; return the ids of the images."""
    seeds = [run.seed for run in runs]
    if not runs or len(set(seeds)) < len(seeds):
        raise MetricError(f"the seeds {seeds}: give one pair of runs a seed, and one at least")
    first = runs[0].baseline.ids
    for run in runs:
        for arm, embeddings in (("baseline", run.baseline), ("treated", run.treated)):
            where, ids = f"seed {run.seed}, {arm}", embeddings.ids
            if ids is None or first is None or not np.array_equal(first, ids):
                raise MetricError(
                    f"{where}: the ids of its images are not those of the first baseline; embed "
                    "the same images in the same order"
                )
            check_raw(embeddings.norms, where)
    assert first is not None
    return first


def _embedded(runs: Sequence[RunPair]) -> NDArray[np.bool_]:
    """Return which images have an embedding in all runs, ``(m,)``."""
    embedded = None
    for run in runs:
        for embeddings in (run.baseline, run.treated):
            vectors = embeddings.vectors
            usable = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
            usable &= np.isfinite(embeddings.norms)
            embedded = usable if embedded is None else embedded & usable
    assert embedded is not None
    return embedded


def _notes_on_seeds(runs: Sequence[RunPair]) -> list[str]:
    if len(runs) == 1:
        return [
            "one seed: the intervals are of these two models; how much of a change is training "
            "noise is unknown"
        ]
    if len(runs) < FEWEST_SEEDS:
        return [f"{len(runs)} seeds: at least {FEWEST_SEEDS} an arm are needed to judge noise"]
    return []


def _variation(norms: Array, subject: NDArray[np.integer]) -> Array:
    """Return the coefficient of variation (ddof 1) of norms of all, and without each subject."""
    centre = float(norms.mean())
    rest = norms - centre
    count, total, squares = _left_out(
        np.stack([np.bincount(subject, values) for values in (np.ones(len(rest)), rest, rest**2)])
    )
    spread = np.maximum(squares - total**2 / count, 0) / np.maximum(count - 1, 1)
    return quotients(np.sqrt(spread), centre + total / count)


def _eta_squared(means: Array, groups: NDArray[np.integer]) -> Array:
    """Return SSB / SST of the mean norms of subjects, and without each of them."""
    rest = means - means.mean()
    member = (groups == np.arange(int(groups.max()) + 1)[:, None]).astype(np.float64)
    counts, totals = _left_out(member), _left_out(member * rest)
    grand = quotients(totals.sum(axis=0) ** 2, counts.sum(axis=0))
    explained = np.divide(totals**2, counts, out=np.zeros_like(totals), where=counts > 0)
    return quotients(explained.sum(axis=0) - grand, _left_out(rest**2) - grand)


def _deltas(first: Array, second: Array) -> Array:
    """Return P(X > Y) − P(X < Y) of X ``(n,)`` and Y ``(m,)``, and without each of both."""
    signs = np.sign(first[:, None] - second)
    won = np.concatenate([[0.0], signs.sum(axis=1), signs.sum(axis=0)])
    pairs = np.concatenate(
        [[0], np.full(len(first), len(second)), np.full(len(second), len(first))]
    )
    return quotients(signs.sum() - won, signs.size - pairs)


def _left_out(values: Array) -> Array:
    """Return sums over the last axis: of all, and without each, ``(…, G + 1)``."""
    whole = values.sum(axis=-1, keepdims=True)
    return np.concatenate([whole, whole - values], axis=-1)


def _tpr(target: str) -> str:
    return f"TPR@FPR={target}"
