"""Baseline against SEC: what changes, for the same images, from one model to its treated twin.

Every pair of runs shares a seed and differs in the treatment alone. All changes of all seeds come
from one joint resample of subjects, the same multiplicities for both models, so what the models
share cancels out. Seeds tell how much of a change is training noise; the interval of the mean over
seeds allows for both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from facerec.defaults import REPLICATES
from facerec.embedding.extraction import Embeddings
from facerec.errors import MetricError
from facerec.fairness.attributes import check_raw
from facerec.fairness.differentials import Of, differentials, max_over_geomean
from facerec.fairness.norms import DRAWN_AT_ONCE, SubjectNorms, drawn_sums, percentile
from facerec.fairness.pair_counts import UNKNOWN, LabelledImages, SubjectCounts, quotients
from facerec.fairness.rates import GroupErrors, PairList, all_pairs_rates, listed_rates
from facerec.progress import Progress
from facerec.report.conclusions import DirectedConclusion, of_change
from facerec.report.estimate import Estimate
from facerec.statistics.bootstrap import VertexBootstrap
from facerec.statistics.intervals import Interval
from facerec.statistics.kfold import kfold_accuracy
from facerec.statistics.rates import sort_scores
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

SEEDS = "t over seeds"
BOTH = "subjects and seeds, MOVER"

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
    replicates: int = REPLICATES,
    seed: int = 0,
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
        replicates: resamples of the subjects.
        seed: of the resampling.
        progress: called after each model.

    Raises:
        MetricError: images, subjects or groups that differ or do not fit, or a seed that repeats.
        DatasetError: embeddings that were normalised.
    """
    frame = _Frame(runs, subject, group, names, pairs, impostors, targets, replicates, seed)
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
class _Drawn:
    """A figure of one model and its replicates."""

    value: float | None
    replicates: Array
    """``(R,)``; empty without a value."""
    reason: str = ""
    """Why there is no value."""

    @classmethod
    def lacking(cls, reason: str) -> _Drawn:
        return cls(None, np.empty(0), reason)


_Figures = Mapping[_Key, _Drawn]


class _Frame:
    """What all runs share: images, subjects, groups, pairs, and how often each subject is drawn."""

    def __init__(
        self,
        runs: Sequence[RunPair],
        subject: ArrayLike,
        group: ArrayLike,
        names: Sequence[str],
        pairs: Pairs | None,
        impostors: Literal["all", "list"],
        targets: Sequence[str],
        replicates: int,
        seed: int,
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
        self._set_groups(LabelledImages(subjects[self.rows], codes[self.rows], names))
        self._set_pairs(pairs)
        everyone = np.arange(self.subject_count)
        # One comparison a subject, so that each is drawn even without a pair of the list.
        first, second = (np.concatenate([everyone, self.subject[side]]) for side in self.sides)
        bootstrap = VertexBootstrap(
            first,
            second,
            np.concatenate([np.ones(self.subject_count, bool), self.same]),
            replicates=replicates,
            seed=seed,
        )
        self.listed = bootstrap.select(
            np.arange(self.subject_count + len(self.same)) >= self.subject_count
        )
        # The sample itself comes first: its figures are computed by the same rule.
        self.weights = np.ones((replicates + 1, self.subject_count), np.uint8)
        self.weights[1:] = bootstrap.multiplicities

    def _set_groups(self, labelled: LabelledImages) -> None:
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

    def _norms(self, norms: Array) -> dict[_Key, _Drawn]:
        figures = {
            _Key("CV of norms", "by construction", subjects=self.subject_count): _drawn(
                _variation(norms, self.subject, self.weights), "the mean norm is zero"
            )
        }
        one_group = "no comparison: fewer than two groups have a subject"
        key = _Key("η²", "association", subjects=self.subject_count)
        if len(self.names) < 2:
            return figures | {key: _Drawn.lacking(one_group)}
        sample = SubjectNorms.from_images(
            norms[self.grouped], self.subject[self.grouped], self.group[self.grouped]
        )
        means, weights = sample.means, self.weights[:, np.unique(self.subject[self.grouped])]
        figures[key] = _drawn(
            _eta_squared(means, sample.groups, weights), "the mean norms of subjects do not vary"
        )
        members = [np.flatnonzero(sample.groups == g) for g in range(len(self.names))]
        for i, j in itertools.combinations(range(len(self.names)), 2):
            fewest = min(len(members[i]), len(members[j]))
            key = _Key("Cliff's δ", "association", (self.names[i], self.names[j]), fewest)
            figures[key] = _drawn(
                _deltas(
                    means[members[i]],
                    means[members[j]],
                    weights[:, members[i]],
                    weights[:, members[j]],
                ),
                "a group has no subject",
            )
        return figures

    def _of_list(self, scores: NDArray[np.floating]) -> dict[_Key, _Drawn]:
        """Return accuracy and TPR on the pairs of the list."""
        performance: dict[_Key, _Drawn] = {}
        if self.folds is not None:
            thresholds = kfold_accuracy(scores, self.same, self.folds).thresholds
            right = (scores >= np.asarray(thresholds)[self.folds]) == self.same
            key = _Key("accuracy", "performance", subjects=self.subject_count)
            performance[key] = _Drawn(float(right.mean()), self.listed.mean(right))
        figures = sort_scores(scores[self.same], scores[~self.same])
        points = [figures.tpr_at_fpr(target) for target in self.targets]
        resolved = [point.target for point in points if point.resolvable]
        drawn = dict(zip(resolved, self.listed.tpr_at_fpr(scores, resolved), strict=True))
        for point in points:
            key = _Key(_tpr(point.target), "performance", subjects=self.subject_count)
            if point.resolvable:
                performance[key] = _Drawn(point.tpr, drawn[point.target].tpr)
            else:
                few = f"not resolvable with {point.non_mated:,} different pairs"
                performance[key] = _Drawn.lacking(few)
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

    def _tpr_of_all(self, errors: GroupErrors, subjects: NDArray[np.int64]) -> dict[_Key, _Drawn]:
        """Return the TPR among all pairs of subjects with a group."""
        figures = {}
        for at in errors.points:
            point = at.point
            key = _Key(_tpr(point.target), "performance", subjects=self.subject_count)
            if not point.resolvable:
                few = f"not resolvable with {point.non_mated:,} non-mated pairs"
                figures[key] = _Drawn.lacking(few)
                continue
            features = np.zeros((len(subjects), 2))
            for group in at.counts:
                assert isinstance(group, SubjectCounts)  # as subjects are known
                features[group.members] = np.stack([group.missed, group.mated], axis=1)
            missed, mated = drawn_sums(self.weights[:, subjects], features).T
            figures[key] = _drawn(1 - quotients(missed, mated), "no mated pair")
        return figures

    def _differentials(
        self, errors: GroupErrors, subjects: NDArray[np.int64]
    ) -> dict[_Key, _Drawn]:
        """Return max/geomean of the FMRs and of the FNMRs of groups, thresholds as given."""
        # For the values and the rule that withholds them; replicates are drawn with everything.
        summary = differentials(errors, replicates=1)
        rows = {(row.measure, row.of, row.target): row for row in summary.rows}
        compared = [self.names.index(name) for name in summary.groups]
        fewest = min((errors.group_subjects[group] for group in compared), default=0)
        weights = self.weights[1:, subjects]
        figures = {}
        for target, at in zip(self.targets, errors.points, strict=True):
            drawn = [at.counts[group].replicates(weights) for group in compared]
            kinds: tuple[Of, Of] = ("FMR", "FNMR")
            for kind, of in enumerate(kinds):
                figure = f"max/geomean {of} at FMR={target}"
                key = _Key(figure, "differential", subjects=fewest)
                row = rows.get(("max/geomean", of, target))
                if row is None or row.value is None:
                    why = "; ".join(summary.remarks) if row is None else row.remark
                    figures[key] = _Drawn.lacking(why)
                    continue
                rates = np.stack([group[kind] for group in drawn], axis=-1)
                figures[key] = _Drawn(row.value, max_over_geomean(rates))
        return figures


def _change(key: _Key, seeds: Sequence[int], sides: Sequence[tuple[_Drawn, _Drawn]]) -> Change:
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
    with np.errstate(invalid="ignore"):  # both infinite: undefined
        drawn = [other.replicates - one.replicates for one, other in sides]
    over_subjects, reason = _interval(np.mean(drawn, axis=0), key.subjects)
    over_seeds = _student(values)
    before, after = (float(np.mean([pair[arm].value for pair in sides])) for arm in (0, 1))
    return change(
        mean,
        over_subjects if over_seeds is None else _together(mean, over_subjects, over_seeds),
        remark=reason or "",
        baseline=before,
        treated=after,
        over_subjects=over_subjects,
        over_seeds=over_seeds,
        same_sign=int(np.count_nonzero(np.sign(values) == np.sign(mean))) if mean else 0,
    )


def _interval(replicates: Array, subjects: int) -> tuple[Interval | None, str | None]:
    """Return the percentile interval of a change, or why there is none."""
    defined = replicates[~np.isnan(replicates)]
    if not len(defined):
        return None, f"no interval: undefined in all {len(replicates):,} resamples"
    if np.isfinite(defined).all() and np.ptp(defined) == 0:
        return None, (
            f"no interval: the change is {defined[0]:.3g} in all {len(replicates):,} resamples"
        )
    interval = percentile(replicates, subjects)
    if interval is None:
        return None, f"no interval: {subjects} subjects in a group"
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return None, "no interval: in many resamples a group has no error"
    return interval, None


def _student(values: Array) -> Interval | None:
    """Return mean ± t · s/√n over seeds; None with one."""
    if len(values) < 2:
        return None
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    margin = float(stdtrit(len(values) - 1, 0.975)) * error
    assumption = "seeds are independent, subjects as given"
    return Interval(mean - margin, mean + margin, method=SEEDS, assumption=assumption)


def _together(mean: float, over_subjects: Interval | None, over_seeds: Interval) -> Interval | None:
    """Add both sources of uncertainty: squares of the distances of their limits from the mean.

    The change seen is the true one plus an error of subjects plus one of seeds, so the limits of
    the sum follow from those of the parts (MOVER; Zou and Donner, Statistics in Medicine 27, 2008).
    """
    if over_subjects is None:
        return None
    margin = (over_seeds.high - over_seeds.low) / 2
    low = mean - math.hypot(max(0.0, mean - over_subjects.low), margin)
    high = mean + math.hypot(max(0.0, over_subjects.high - mean), margin)
    return Interval(low, high, over_subjects.confidence, BOTH, "subjects and seeds are independent")


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


def _drawn(values: Array, reason: str) -> _Drawn:
    """Take the figure of the sample apart from its replicates, which follow it."""
    if np.isnan(values[0]):
        return _Drawn.lacking(reason)
    return _Drawn(float(values[0]), values[1:])


def _variation(norms: Array, subject: NDArray[np.integer], weights: NDArray[np.uint8]) -> Array:
    """Return the coefficient of variation (ddof 1) of the norms of images, ``(R,)``."""
    centre = float(norms.mean())
    rest = norms - centre
    features = [np.bincount(subject, values) for values in (np.ones(len(rest)), rest, rest**2)]
    count, total, squares = drawn_sums(weights, np.stack(features, axis=1)).T
    spread = np.maximum(squares - total**2 / count, 0) / np.maximum(count - 1, 1)
    return quotients(np.sqrt(spread), centre + total / count)


def _eta_squared(means: Array, groups: NDArray[np.integer], weights: NDArray[np.uint8]) -> Array:
    """Return SSB / SST of the mean norms of subjects, ``(R,)``."""
    rest = means - means.mean()
    member = groups[:, None] == np.arange(int(groups.max()) + 1)
    features = np.concatenate([member, member * rest[:, None], (rest**2)[:, None]], axis=1)
    sums = drawn_sums(weights, features.astype(np.float64))
    counts, totals = sums[:, : member.shape[1]], sums[:, member.shape[1] : -1]
    grand = quotients(totals.sum(axis=1) ** 2, counts.sum(axis=1))
    explained = np.divide(totals**2, counts, out=np.zeros_like(totals), where=counts > 0)
    return quotients(explained.sum(axis=1) - grand, sums[:, -1] - grand)


def _deltas(
    first: Array, second: Array, drawn: NDArray[np.uint8], against: NDArray[np.uint8]
) -> Array:
    """Return P(X > Y) − P(X < Y), ``(R,)``.

    Args:
        first: X, one value a subject, ``(n,)``.
        second: Y, ``(m,)``.
        drawn: how often each of X counts, ``(R, n)``.
        against: how often each of Y, ``(R, m)``.
    """
    order = np.argsort(second)
    below, reached = (np.searchsorted(second[order], first, side) for side in ("left", "right"))
    result = np.empty(len(drawn))
    step = max(1, DRAWN_AT_ONCE // (len(first) + len(second)))
    for start in range(0, len(result), step):
        batch = slice(start, start + step)
        sums = np.zeros((len(drawn[batch]), len(second) + 1), np.int64)
        np.cumsum(against[batch].take(order, axis=1), axis=1, out=sums[:, 1:], dtype=np.int64)
        won = sums.take(below, axis=1) + sums.take(reached, axis=1) - sums[:, -1:]
        own = drawn[batch].astype(np.int64)
        pairs = own.sum(axis=1) * sums[:, -1]
        result[batch] = quotients(np.einsum("rn,rn->r", own, won), pairs)
    return result


def _tpr(target: str) -> str:
    return f"TPR@FPR={target}"
