"""The figures of a comparison: means with their intervals, declared pairs with their tests.

Everything is a tree of frozen dataclasses that `to_json` turns into JSON. Retrieval figures are
shares; differences are arm − base, paired by seed and by query.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from facerec.comparison.finals import VIEWS, FinalRun, View
from facerec.comparison.fit import SELECTED_BY, Fit
from facerec.comparison.harness import ArmResult, Results
from facerec.comparison.protocol import (
    CLUSTER_METRICS,
    FIGURES,
    Arm,
    Comparison,
    Range,
    figure_title,
    is_within,
)
from facerec.comparison.search import Trial
from facerec.comparison.significance import (
    PairedDifference,
    SeedMean,
    StepRatio,
    adjust,
    compare_paired,
    compare_steps,
    level_of,
    mean_over_seeds,
    smallest_difference,
    spearman,
    steps_to_reach,
)
from facerec.errors import MetricError
from facerec.recipe import differences, to_dict
from facerec.report.conclusions import Conclusion
from facerec.report.documents import by_name, plain
from facerec.report.estimate import Estimate

SCHEMA = "facerec.comparison.results/1"

HEADLINE: tuple[View, str] = ("concatenated", SELECTED_BY)
"""View and metric that the comparison is decided by."""

SHARES = (0.9, 0.95, 0.99)
"""Of the base's final validation score, at which speeds are compared."""

PROBES = ("slope", "gradient_cv", "radial", "angular_step", "norm_growth")
"""Figures of `facerec.comparison.probe.Probe` that are averaged."""

BAND = (0.1, 0.9)
"""Quantiles between which most learning curves lie."""


@dataclass(frozen=True)
class Score:
    """A retrieval figure on the test classes, a share."""

    view: View
    metric: str
    mean: SeedMean
    values: tuple[float, ...]
    """Of each seed that was scored."""


@dataclass(frozen=True)
class Measured:
    """Another figure, averaged over folds, and over epochs if there are several."""

    name: str
    mean: SeedMean | None
    values: tuple[float, ...]
    """Of each seed."""
    reason: str
    """Why there is no mean, empty if there is one."""


@dataclass(frozen=True)
class Run:
    """One seed of the best setting."""

    seed: int
    """Counted from 0; the same number is the same seed in all arms."""
    validation: tuple[float, ...]
    """Best validation MAP@R of each fold; none for an untrained model."""
    epochs: tuple[int, ...]
    """When that was."""
    norm_mean: float
    """Of raw test embeddings, mean over the folds' models."""
    norm_cv2: float
    """Variance of these norms over their squared mean, mean over the folds' models."""
    seconds: float
    tied: float
    """Share of queries whose neighbours were in part ordered by index."""


@dataclass(frozen=True)
class LearningCurve:
    """Validation MAP@R of the weights kept so far, by epoch, over all seeds and folds.

    Training that stopped early keeps its score, so that later epochs show no selection of runs.
    """

    epochs: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    """Lower quantile of `BAND`."""
    high: tuple[float, ...]
    """Upper quantile of `BAND`."""
    fits: int
    """Seeds × folds."""


@dataclass(frozen=True)
class Cost:
    """What an arm was given, and what it took."""

    trials: int
    failed_trials: int
    first_settings: int
    """Trials that were given, not proposed."""
    parameters: int
    """That are searched."""
    trial_seconds: float
    final_runs: int
    failed_runs: int
    final_seconds: float
    """Of the runs that did not fail."""


@dataclass(frozen=True)
class ArmSummary:
    """What is known of an arm."""

    name: str
    against: str | None
    family: str
    """The arm at the end of the chain of those that it is compared with; itself without one."""
    reason: str
    """Why there are no scores, empty if there are."""
    failures: tuple[str, ...]
    """Of final runs."""
    scores: tuple[Score, ...]
    runs: tuple[Run, ...]
    norms: tuple[Measured, ...]
    """Mean and squared coefficient of variation of norms of raw test embeddings."""
    probes: tuple[Measured, ...]
    learning: LearningCurve | None
    trials: tuple[Trial, ...]
    best_trial: int | None
    setting: Mapping[str, float] | None
    """The best one; None if all trials failed."""
    validation: float | None
    """Its mean validation MAP@R."""
    loss: str
    """As in a recipe, the best setting written into it."""
    penalty: str | None
    """Likewise."""
    ranges: tuple[Range, ...]
    cost: Cost
    protocol: str
    """Fingerprint."""
    changed: Mapping[str, Any]
    """Fields of its protocol, dotted, that differ from the common one, with their values."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those that were scored."""
        return tuple(run.seed for run in self.runs)

    def score(self, view: View, metric: str) -> Score | None:
        """Return a figure; None where there are none."""
        return find(self.scores, view, metric)

    @property
    def headline(self) -> Score | None:
        """The figure that the comparison is decided by."""
        return self.score(*HEADLINE)


@dataclass(frozen=True)
class Difference:
    """Arm − base in a retrieval figure, a share."""

    view: View
    metric: str
    mean: PairedDifference
    base: float
    """Mean of the base over the same seeds."""

    @property
    def relative(self) -> float | None:
        """The difference over the base."""
        return self.mean.value / self.base if self.base > 0 else None


@dataclass(frozen=True)
class Speed:
    """Steps until validation MAP@R reaches a share of the base's final one.

    Steps are known to a validation; the score is that of the weights kept so far.
    """

    share: float
    ratio: StepRatio | None
    """Of the scores' means over folds, one a seed."""
    reason: str
    """Why there is no ratio, empty if there is one."""
    arm_steps: tuple[tuple[int | None, ...], ...]
    """Of each seed and fold, to that share of the base's score there; None where never."""
    base_steps: tuple[tuple[int | None, ...], ...]
    """Likewise."""


Claim = Literal["loss", "penalty", "protocol", "search"]
"""What the arms of a pair differ in first: other losses may come with other batches, but other
penalties come with the same loss. ``search`` is the rest: other ranges or settings to start with,
or nothing. All pairs of a claim answer one question together."""


@dataclass(frozen=True)
class PairedTrials:
    """The same settings tried with and without what the arm has besides; no test class is seen."""

    mean: PairedDifference
    """Validation MAP@R of the arm's trial − the base's trial of the same settings; its ``total``
    are the settings."""
    higher: int
    """Settings of which the arm's trial scored higher."""
    failed: int
    """Settings that failed in either."""


@dataclass(frozen=True)
class Fairness:
    """Whether two arms had the same conditions."""

    fair: bool
    declared: tuple[str, ...]
    """Fields of the protocol that differ and are the subject of the study."""
    reasons: tuple[str, ...]
    """What takes the mark away."""


@dataclass(frozen=True)
class Pair:
    """An arm and what it is compared with."""

    arm: str
    base: str
    family: str
    claim: Claim
    seeds: tuple[int, ...]
    """That were scored in both."""
    reason: str
    """Why there are no differences, empty if there are."""
    differences: tuple[Difference, ...]
    norm_reduction: PairedDifference | None
    """Squared coefficient of variation of norms, base − arm."""
    speeds: tuple[Speed, ...]
    fairness: Fairness
    trials: PairedTrials | None
    """Where the arm tried the base's settings."""
    claim_pairs: int = 1
    """Pairs of the claim, for which its p-values are adjusted together."""
    smallest: float | None = None
    """True headline difference that such a design finds with 80 % power after the adjustment, as a
    share; None where these seeds cannot find any."""
    conclusion: Conclusion = "insufficient data"
    """Of the test of the headline, adjusted p against 1 − confidence."""

    @property
    def name(self) -> str:
        """How the difference is written."""
        return f"{self.arm} − {self.base}"

    def difference(self, view: View, metric: str) -> Difference | None:
        """Return the difference in a figure; None where there are none."""
        return find(self.differences, view, metric)

    @property
    def headline(self) -> Difference | None:
        """The difference that the comparison is decided by."""
        return self.difference(*HEADLINE)


@dataclass(frozen=True)
class Gain:
    """Whether pairs with more reduction of norm variance gain more."""

    correlation: Estimate | None
    """Of `Pair.norm_reduction` with the headline; families are resampled."""
    reason: str
    """Why there is none, empty if there is."""


@dataclass(frozen=True)
class Summary:
    """A comparison in figures."""

    name: str
    question: str
    confidence: float
    replicates: int
    repetitions: int
    classes: int
    """Test classes with a query; 0 without a scored run."""
    queries: int
    dropped: int
    """Queries without another image of their class."""
    arms: tuple[ArmSummary, ...]
    untrained: tuple[Score, ...]
    untrained_runs: tuple[Run, ...]
    pairs: tuple[Pair, ...]
    gain: Gain
    protocol: Mapping[str, Any]
    """The common one, as `facerec.recipe.to_dict` writes it."""
    declared: tuple[str, ...]
    manifest: Mapping[str, Any]

    def arm(self, name: str) -> ArmSummary:
        """Return the arm of a name."""
        return next(arm for arm in self.arms if arm.name == name)

    @property
    def figures(self) -> dict[str, str]:
        """Names of all figures that were computed, and how they are written."""
        return {score.metric: figure_title(score.metric) for score in self.untrained}

    @property
    def special(self) -> tuple[str, ...]:
        """Names of the figures that not every comparison has, in their order."""
        return tuple(name for name in self.figures if name not in FIGURES)

    @property
    def clusterings(self) -> tuple[str, ...]:
        """Names of the figures of clustering that were asked for."""
        return tuple(name for name in self.figures if name in CLUSTER_METRICS)


def find(figures: Sequence[Any], view: View, metric: str) -> Any:
    """Return the `Score` or `Difference` of a figure; None where there is none."""
    return next((each for each in figures if (each.view, each.metric) == (view, metric)), None)


def summarize(results: Results) -> Summary:
    """Compute all figures of a comparison."""
    comparison = results.comparison
    arms = tuple(_arm(comparison, arm) for arm in results.arms)
    pairs = _adjusted(
        [_pair(results, arm.name) for arm in arms if arm.against is not None],
        comparison.confidence,
    )
    runs = [run for arm in results.arms for run in arm.runs] or list(results.untrained)
    return Summary(
        name=comparison.name,
        question=comparison.question,
        confidence=comparison.confidence,
        replicates=comparison.replicates,
        repetitions=comparison.repetitions,
        classes=len(np.unique(runs[0].labels)) if runs else 0,
        queries=len(runs[0].labels) if runs else 0,
        dropped=runs[0].dropped if runs else 0,
        arms=arms,
        untrained=_scores(comparison, results.untrained),
        untrained_runs=_runs(range(len(results.untrained)), results.untrained),
        pairs=pairs,
        gain=_gain(comparison, pairs),
        protocol=to_dict(comparison.protocol),
        declared=comparison.declared,
        manifest=results.manifest,
    )


def to_json(summary: Summary) -> dict[str, Any]:
    """Return the summary as JSON types; what is unknown is null, with a reason beside it."""
    # An interval without an upper limit says so in its assumption.
    return {"schema": SCHEMA, **plain(summary, _named, infinities=False)}


# ---------------------------------------------------------------- arms


def _arm(comparison: Comparison, result: ArmResult) -> ArmSummary:
    arm, best = result.arm, result.best
    tuned = arm if best is None else arm.at(best.setting)
    return ArmSummary(
        name=arm.name,
        against=arm.against,
        family=_family(comparison, arm.name),
        reason=_missing(result),
        failures=result.failures,
        scores=_scores(comparison, result.runs),
        runs=_runs(result.seeds, result.runs),
        norms=tuple(
            _measured(name, [float(run.models[name].mean()) for run in result.runs], comparison)
            for name in ("norm_mean", "norm_cv2")
        ),
        probes=tuple(_probed(name, result, comparison) for name in PROBES),
        learning=_learning(result.runs),
        trials=result.trials,
        best_trial=None if best is None else best.number,
        setting=None if best is None else best.setting,
        validation=None if best is None else best.score,
        loss=repr(tuned.loss),
        penalty=None if tuned.regularizer is None else repr(tuned.regularizer),
        ranges=arm.ranges,
        cost=Cost(
            trials=len(result.trials),
            failed_trials=sum(trial.score is None for trial in result.trials),
            first_settings=result.first_settings,
            parameters=len(arm.ranges),
            trial_seconds=math.fsum(trial.seconds for trial in result.trials),
            final_runs=len(result.runs) + len(result.failures),
            failed_runs=len(result.failures),
            final_seconds=math.fsum(fit.seconds for run in result.runs for fit in run.fits),
        ),
        protocol=comparison.protocol_of(arm).fingerprint,
        changed=_changed(to_dict(comparison.protocol), to_dict(comparison.protocol_of(arm))),
    )


def _family(comparison: Comparison, name: str) -> str:
    against = comparison.arm(name).against
    return name if against is None else _family(comparison, against)


def _changed(common: Any, own: Any) -> dict[str, Any]:
    values = {}
    for name in differences(common, own):
        value = own
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        values[name] = value
    return values


def _missing(result: ArmResult) -> str:
    """Say why an arm has no scores."""
    if result.runs:
        return ""
    if result.failures:
        return f"all {len(result.failures)} final runs failed; {result.failures[0]}"
    failures = [trial.failure for trial in result.trials if trial.failure]
    last = f"; trial {result.trials[-1].number}, {failures[-1]}" if failures else ""
    return f"all {len(result.trials)} trials failed{last}"


def _scores(comparison: Comparison, runs: Sequence[FinalRun]) -> tuple[Score, ...]:
    return tuple(
        Score(
            view,
            metric,
            mean_over_seeds(*_values(runs, view, metric), **_resampling(comparison)),
            tuple(run.mean(view, metric) for run in runs),
        )
        for view in VIEWS
        for metric in comparison.figures
        if runs
    )


def _values(
    runs: Sequence[FinalRun], view: View, metric: str
) -> tuple[NDArray[np.float64], NDArray[np.int64] | None]:
    """Return a figure of each seed and query with the queries' classes, or of each seed alone."""
    if metric in CLUSTER_METRICS:
        return np.array([run.mean(view, metric) for run in runs]), None
    return np.stack([run.scores[view, metric] for run in runs]), runs[0].labels


def _resampling(comparison: Comparison) -> dict[str, Any]:
    return {
        "confidence": comparison.confidence,
        "replicates": comparison.replicates,
        "seed": comparison.seed,
    }


def _runs(seeds: Sequence[int], runs: Sequence[FinalRun]) -> tuple[Run, ...]:
    return tuple(
        Run(
            seed=seed,
            validation=tuple(fit.score for fit in run.fits if fit.score is not None),
            epochs=tuple(fit.epoch for fit in run.fits),
            norm_mean=float(run.models["norm_mean"].mean()),
            norm_cv2=float(run.models["norm_cv2"].mean()),
            seconds=math.fsum(fit.seconds for fit in run.fits),
            tied=run.tied,
        )
        for seed, run in zip(seeds, runs, strict=True)
    )


def _measured(name: str, values: Sequence[float], comparison: Comparison) -> Measured:
    if not values:
        return Measured(name, None, (), "no run was scored")
    mean = mean_over_seeds(values, confidence=comparison.confidence)
    return Measured(name, mean, tuple(values), "")


def _probed(name: str, result: ArmResult, comparison: Comparison) -> Measured:
    """Average a figure of the probes over epochs and folds; slopes may be missing in some."""
    of_seeds = [
        [getattr(probe, name) for fit in run.fits for probe in fit.probes] for run in result.runs
    ]
    known = [[value for value in values if value is not None] for values in of_seeds]
    if any(known) and not all(known):
        return Measured(name, None, (), "some seeds have no measurement")
    if result.runs and not any(of_seeds):
        return Measured(name, None, (), "the protocol makes no measurement; set probe_every")
    if any(of_seeds) and not any(known):
        return Measured(name, None, (), "all norms of a batch were equal")
    return _measured(name, [float(np.mean(values)) for values in known], comparison)


# ---------------------------------------------------------------- curves


def _kept(fit: Fit) -> NDArray[np.float64]:
    """Return the score of the weights kept after each epoch, the untrained model first."""
    return np.maximum.accumulate([point.score for point in fit.curve])


def _aligned(fits: Sequence[Fit]) -> NDArray[np.float64]:
    """Return curves of one length, ``(fits, epochs + 1)``; those that stopped keep their score."""
    curves = [_kept(fit) for fit in fits]
    length = max(map(len, curves))
    return np.stack([np.pad(curve, (0, length - len(curve)), "edge") for curve in curves])


def _learning(runs: Sequence[FinalRun]) -> LearningCurve | None:
    fits = [fit for run in runs for fit in run.fits]
    if not fits:
        return None
    curves = _aligned(fits)
    low, high = np.quantile(curves, BAND, axis=0).tolist()
    return LearningCurve(
        epochs=tuple(range(curves.shape[1])),
        mean=tuple(curves.mean(axis=0).tolist()),
        low=tuple(low),
        high=tuple(high),
        fits=len(fits),
    )


# ---------------------------------------------------------------- pairs


def _pair(results: Results, name: str) -> Pair:
    comparison = results.comparison
    by_name = {each.arm.name: each for each in results.arms}
    arm = by_name[name]
    base = by_name[str(arm.arm.against)]
    sides = [dict(zip(each.seeds, each.runs, strict=True)) for each in (arm, base)]
    seeds = tuple(sorted(sides[0].keys() & sides[1].keys()))
    first, second = ([side[seed] for seed in seeds] for side in sides)
    return Pair(
        arm=name,
        base=base.arm.name,
        family=_family(comparison, name),
        seeds=seeds,
        reason="" if seeds else _unpaired(arm, base),
        differences=_differences(comparison, first, second),
        norm_reduction=_norm_reduction(comparison, first, second),
        speeds=tuple(_speed(comparison, arm, base, first, second, x) for x in SHARES if seeds),
        fairness=_fairness(comparison, arm, base),
        claim=claim_of(comparison, arm.arm, base.arm),
        trials=_paired_trials(comparison, arm, base),
    )


def claim_of(comparison: Comparison, arm: Arm, base: Arm) -> Claim:
    """Return what an arm and its base differ in first."""
    if arm.loss != base.loss:
        return "loss"
    if arm.regularizer != base.regularizer:
        return "penalty"
    same = comparison.protocol_of(arm) == comparison.protocol_of(base)
    return "search" if same else "protocol"


def _paired_trials(comparison: Comparison, arm: ArmResult, base: ArmResult) -> PairedTrials | None:
    if comparison.paired_with(arm.arm) != base.arm:
        return None
    first, second = ({t.number: t.score for t in each.trials} for each in (arm, base))
    both = sorted(first.keys() & second.keys())
    pairs = [(first[n], second[n]) for n in both]
    scored = [(own, other) for own, other in pairs if own is not None and other is not None]
    if not scored:
        return None
    scores = np.array(scored)
    mean = compare_paired(*scores.T, confidence=comparison.confidence, seed=comparison.seed)
    higher = int(np.count_nonzero(scores[:, 0] > scores[:, 1]))
    return PairedTrials(mean, higher, len(pairs) - len(scored))


def _unpaired(arm: ArmResult, base: ArmResult) -> str:
    missing = [f"{each.arm.name}: {_missing(each)}" for each in (arm, base) if not each.runs]
    return "; ".join(missing) or "no seed was scored in both"


def _differences(
    comparison: Comparison, arm: Sequence[FinalRun], base: Sequence[FinalRun]
) -> tuple[Difference, ...]:
    result = []
    for view in VIEWS:
        for metric in comparison.figures if arm else ():
            first, labels = _values(arm, view, metric)
            second, _ = _values(base, view, metric)
            mean = compare_paired(first, second, labels, **_resampling(comparison))
            result.append(Difference(view, metric, mean, float(second.mean())))
    return tuple(result)


def _norm_reduction(
    comparison: Comparison, arm: Sequence[FinalRun], base: Sequence[FinalRun]
) -> PairedDifference | None:
    if not arm:
        return None
    spread, before = ([run.models["norm_cv2"].mean() for run in runs] for runs in (arm, base))
    return compare_paired(before, spread, confidence=comparison.confidence)


def _speed(
    comparison: Comparison,
    arm: ArmResult,
    base: ArmResult,
    first: Sequence[FinalRun],
    second: Sequence[FinalRun],
    share: float,
) -> Speed:
    steps = [comparison.protocol_of(each.arm).steps_per_epoch for each in (arm, base)]

    def curve(fits: Sequence[Fit], per_epoch: int) -> tuple[list[int], NDArray[np.float64]]:
        scores = _aligned(fits).mean(axis=0)[1:]
        return [per_epoch * epoch for epoch in range(1, len(scores) + 1)], scores

    ratio, reason = None, ""
    try:
        ratio = compare_steps(
            [curve(run.fits, steps[0]) for run in first],
            [curve(run.fits, steps[1]) for run in second],
            share,
            comparison.confidence,
        )
    except MetricError as error:  # a base that never finds a neighbour
        reason = str(error)

    def reached(run: FinalRun, reference: FinalRun, per_epoch: int) -> tuple[int | None, ...]:
        levels = (share * float(_kept(fit)[-1]) for fit in reference.fits)
        needed = (
            steps_to_reach(*curve([fit], per_epoch), level)
            for fit, level in zip(run.fits, levels, strict=True)
        )
        return tuple(int(steps) if math.isfinite(steps) else None for steps in needed)

    both = list(zip(first, second, strict=True))
    return Speed(
        share=share,
        ratio=ratio,
        reason=reason,
        arm_steps=tuple(reached(run, other, steps[0]) for run, other in both),
        base_steps=tuple(reached(other, other, steps[1]) for _, other in both),
    )


def _fairness(comparison: Comparison, arm: ArmResult, base: ArmResult) -> Fairness:
    different = differences(*(to_dict(comparison.protocol_of(each.arm)) for each in (arm, base)))
    declared = [
        each for each in comparison.declared if any(is_within(name, (each,)) for name in different)
    ]
    reasons = [
        f"{name} differs and is not declared" for name in different if not is_within(name, declared)
    ]
    for noun, counts in (
        ("trials", (len(arm.trials), len(base.trials))),
        ("first settings", (arm.first_settings, base.first_settings)),
    ):
        if counts[0] != counts[1]:
            reasons.append(f"{counts[0]} and {counts[1]} {noun}")
    return Fairness(not reasons, tuple(declared), tuple(reasons))


def _adjusted(pairs: Sequence[Pair], confidence: float) -> tuple[Pair, ...]:
    """Fill in p-values adjusted for all declared pairs of a claim, each figure for itself."""
    claims = {pair.claim: [each for each in pairs if each.claim == pair.claim] for pair in pairs}
    done = {
        pair.arm: pair for claim in claims.values() for pair in _adjusted_claim(claim, confidence)
    }
    return tuple(done[pair.arm] for pair in pairs)


def _adjusted_claim(pairs: Sequence[Pair], confidence: float) -> Iterator[Pair]:
    means = {
        (view, metric): adjust(
            [each.mean if (each := pair.difference(view, metric)) else None for pair in pairs]
        )
        for view, metric in {(d.view, d.metric) for pair in pairs for d in pair.differences}
    }
    ratios = {
        share: adjust(
            [next((s.ratio for s in pair.speeds if s.share == share), None) for pair in pairs]
        )
        for share in SHARES
    }
    level = level_of(confidence)
    for index, pair in enumerate(pairs):
        differences = tuple(
            replace(each, mean=means[each.view, each.metric][index] or each.mean)
            for each in pair.differences
        )
        speeds = tuple(replace(each, ratio=ratios[each.share][index]) for each in pair.speeds)
        headline: Difference | None = find(differences, *HEADLINE)
        smallest, conclusion = None, pair.conclusion
        if headline is not None and headline.mean.p_holm is not None:
            smallest = smallest_difference(headline.mean.differences, level / len(pairs))
            if is_declared(headline.mean, confidence):
                conclusion = "difference detected"
            elif smallest is not None:
                conclusion = "none detected at this precision"
        yield replace(
            pair,
            differences=differences,
            speeds=speeds,
            claim_pairs=len(pairs),
            smallest=smallest,
            conclusion=conclusion,
        )


def is_declared(mean: PairedDifference | StepRatio, confidence: float) -> bool:
    """Tell whether the adjusted test declares a difference: the only thing that is set in bold."""
    return mean.p_holm is not None and mean.p_holm <= level_of(confidence)


def gains_of(
    pairs: Sequence[Pair],
) -> list[tuple[Pair, PairedDifference, PairedDifference]]:
    """Return the pairs that were scored, with the reduction of norm variance and the gain."""
    return [
        (pair, pair.norm_reduction, pair.headline.mean)
        for pair in pairs
        if pair.headline is not None and pair.norm_reduction is not None
    ]


def _gain(comparison: Comparison, pairs: Sequence[Pair]) -> Gain:
    points = [
        (gain.value, reduction.value, pair.family) for pair, reduction, gain in gains_of(pairs)
    ]
    if not points:
        return Gain(None, "no pair was scored")
    gains, reductions, families = zip(*points, strict=True)
    correlation = spearman(gains, reductions, families, **_resampling(comparison))
    return Gain(None if correlation.value is None else correlation, correlation.remark)


# ---------------------------------------------------------------- JSON


def _named(value: Any) -> dict[str, Any]:
    """Name the fields of a figure as ``results.json`` always has."""
    own = by_name(value)
    if not isinstance(value, Estimate):
        return own
    estimate, interval, _, total, remark = (own.pop(field.name) for field in fields(Estimate))
    over = {name: own.pop(name) for name in _OVER if name in own} or {"interval": interval}
    return {"estimate": estimate, "n": total, **over, "reason": remark, **own}


_OVER = ("over_seeds", "over_classes", "joint")
