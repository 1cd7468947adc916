"""Figures of a comparison against naive means, loops and scipy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.toy_comparison import FOLDS, PROTOCOL, failed, toy_arms, toy_results, with_arm
from scipy.stats import spearmanr

from facerec.comparison.finals import VIEWS, FinalRun
from facerec.comparison.fit import Fit, Point
from facerec.comparison.harness import Results
from facerec.comparison.losses import MarginHead
from facerec.comparison.protocol import FIGURES, Arm
from facerec.comparison.significance import (
    ONE_SEED,
    compare_paired,
    mean_over_seeds,
    sign_flip_p,
)
from facerec.comparison.summary import (
    BAND,
    HEADLINE,
    SCHEMA,
    SHARES,
    Summary,
    summarize,
    to_json,
)
from facerec.heads import SEC, CosFace
from facerec.training import SGD

GAINS = {"CosFace+SEC": 0.02, "ArcFace+SEC": 0.05, "SphereFace+SEC": -0.01}


@pytest.fixture(scope="module")
def results() -> Results:
    return toy_results(gains=GAINS, replicates=20, classes=12, per_class=5)


@pytest.fixture(scope="module")
def summary(results: Results) -> Summary:
    return summarize(results)


def runs(results: Results, name: str) -> tuple[FinalRun, ...]:
    return next(each.runs for each in results.arms if each.arm.name == name)


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, float):
        yield value


# ---------------------------------------------------------------- means and differences


def test_means_and_intervals_of_every_figure(results: Results, summary: Summary) -> None:
    for arm in summary.arms:
        assert arm.seeds == tuple(range(6)) and arm.reason == ""
        assert [(s.view, s.metric) for s in arm.scores] == [(v, m) for v in VIEWS for m in FIGURES]
        for score in arm.scores:
            found = [run.scores[score.view, score.metric] for run in runs(results, arm.name)]
            each = [sum(run.tolist()) / len(run) for run in found]
            assert score.values == pytest.approx(each, rel=1e-12)
            assert score.mean.value == pytest.approx(sum(each) / 6, rel=1e-12)
            labels = runs(results, arm.name)[0].labels
            expected = mean_over_seeds(np.stack(found), labels, replicates=20, seed=0)
            assert score.mean == expected


def test_the_untrained_models_are_scored(results: Results, summary: Summary) -> None:
    assert len(summary.untrained_runs) == 6 and summary.untrained_runs[0].validation == ()
    score = summary.untrained[0]
    mean = np.mean([run.mean(score.view, score.metric) for run in results.untrained])
    assert score.mean.value == pytest.approx(float(mean))


def test_differences_are_paired_by_seed(results: Results, summary: Summary) -> None:
    assert [(pair.arm, pair.base) for pair in summary.pairs] == [
        ("SphereFace+SEC", "SphereFace"),
        ("CosFace+SEC", "CosFace"),
        ("ArcFace+SEC", "ArcFace"),
    ]
    for pair in summary.pairs:
        for found in pair.differences:
            sides = [
                np.stack([run.scores[found.view, found.metric] for run in runs(results, name)])
                for name in (pair.arm, pair.base)
            ]
            naive = [float(a.mean() - b.mean()) for a, b in zip(*sides, strict=True)]
            assert found.mean.differences == pytest.approx(naive, abs=1e-12)
            assert found.mean.p == sign_flip_p(found.mean.differences)
            labels = runs(results, pair.arm)[0].labels
            expected = compare_paired(sides[0], sides[1], labels, replicates=20, seed=0)
            assert found.mean.joint == expected.joint
            assert found.base == pytest.approx(float(sides[1].mean()))
            assert found.relative == pytest.approx(np.mean(naive) / sides[1].mean())


def test_p_is_adjusted_within_each_figure(summary: Summary) -> None:
    for view in VIEWS:
        for metric in FIGURES:
            found = [pair.difference(view, metric) for pair in summary.pairs]
            means = sorted((d.mean for d in found if d), key=lambda mean: mean.p or 0.0)
            least = 0.0
            for place, mean in enumerate(means):
                assert mean.p is not None and mean.p_holm is not None
                least = min(1.0, max(least, (len(means) - place) * mean.p))
                assert mean.p_holm == pytest.approx(least)


def test_equal_arms_differ_by_nothing(results: Results) -> None:
    same = with_arm(results, "CosFace+SEC", runs=runs(results, "CosFace"))
    pair = summarize(same).pairs[1]
    for found in pair.differences:
        assert set(found.mean.differences) == {0.0} and found.mean.p == 1.0
        for interval in (found.mean.over_seeds, found.mean.over_classes, found.mean.joint):
            assert interval is not None and (interval.low, interval.high) == (0.0, 0.0)
    assert pair.norm_reduction is not None and pair.norm_reduction.value == 0
    for speed in pair.speeds:
        assert speed.ratio is not None and set(speed.ratio.ratios) == {1.0}
        assert speed.ratio.p == 1.0 and speed.arm_steps == speed.base_steps


# ---------------------------------------------------------------- what is missing


def test_an_arm_without_a_successful_trial(results: Results) -> None:
    broken = replace(
        results,
        arms=tuple(
            failed(each) if each.arm.name == "CosFace+SEC" else each for each in results.arms
        ),
    )
    summary = summarize(broken)
    arm = summary.arm("CosFace+SEC")
    why = "all 20 trials failed; trial 19, fold 0: the loss is nan in epoch 1"
    assert arm.reason == why
    assert (arm.scores, arm.runs, arm.setting, arm.best_trial) == ((), (), None, None)
    assert arm.learning is None and {m.reason for m in arm.norms} == {"no run was scored"}
    assert arm.cost.failed_trials == 20 and arm.trials[-1].best_so_far is None
    pair = summary.pairs[1]
    assert pair.reason == f"CosFace+SEC: {why}"
    assert (pair.seeds, pair.differences, pair.speeds) == ((), (), ())
    assert pair.norm_reduction is None and pair.headline is None
    # It still counts in the family of three.
    headlines = [p.headline for p in (summary.pairs[0], summary.pairs[2])]
    p = sorted((d.mean.p, d.mean.p_holm) for d in headlines if d)
    assert p[0][1] == pytest.approx(min(1.0, 3 * p[0][0]))


def test_a_base_without_scores(results: Results) -> None:
    broken = with_arm(
        results,
        "CosFace",
        runs=(),
        seeds=(),
        failures=tuple(f"seed {k}: diverged" for k in range(6)),
    )
    summary = summarize(broken)
    assert summary.arm("CosFace").reason == "all 6 final runs failed; seed 0: diverged"
    assert summary.arm("CosFace+SEC").reason == ""
    assert summary.pairs[1].reason == "CosFace: all 6 final runs failed; seed 0: diverged"


def test_seeds_that_failed_are_left_out_of_both_arms(results: Results) -> None:
    arm, base = runs(results, "CosFace+SEC"), runs(results, "CosFace")
    some = with_arm(
        results,
        "CosFace+SEC",
        runs=tuple(arm[k] for k in (0, 1, 3, 4)),
        seeds=(0, 1, 3, 4),
        failures=("seed 2: the loss is nan in epoch 3", "seed 5: the loss is inf in epoch 1"),
    )
    some = with_arm(
        some, "CosFace", runs=base[1:], seeds=(1, 2, 3, 4, 5), failures=("seed 0: nan",)
    )
    summary = summarize(some)
    pair, found = summary.pairs[1], summary.pairs[1].headline
    assert pair.seeds == (1, 3, 4) and found is not None
    naive = [arm[k].mean(*HEADLINE) - base[k].mean(*HEADLINE) for k in (1, 3, 4)]
    assert found.mean.differences == pytest.approx(naive, abs=1e-12)
    assert summary.arm("CosFace+SEC").seeds == (0, 1, 3, 4)
    assert summary.arm("CosFace+SEC").cost.failed_runs == 2
    assert summary.arm("CosFace+SEC").cost.final_runs == 6


def test_no_common_seed(results: Results) -> None:
    arm, base = runs(results, "CosFace+SEC"), runs(results, "CosFace")
    some = with_arm(
        results,
        "CosFace+SEC",
        runs=arm[:3],
        seeds=(0, 1, 2),
        failures=tuple(f"seed {k}: nan" for k in (3, 4, 5)),
    )
    some = with_arm(
        some,
        "CosFace",
        runs=base[3:],
        seeds=(3, 4, 5),
        failures=tuple(f"seed {k}: nan" for k in (0, 1, 2)),
    )
    assert summarize(some).pairs[1].reason == "no seed was scored in both"


def test_a_single_repetition_has_no_spread() -> None:
    summary = summarize(toy_results(repetitions=1, replicates=20, trials=2))
    for arm in summary.arms:
        for score in arm.scores:
            assert score.mean.total == 1 and score.mean.remark == ONE_SEED
            assert score.mean.over_seeds is None and score.mean.joint is None
            assert score.mean.over_classes is not None
    for pair in summary.pairs:
        found = pair.headline
        assert found is not None and found.mean.total == 1
        assert (found.mean.joint, found.mean.over_seeds) == (None, None)
        assert (found.mean.p, found.mean.p_holm) == (None, None)
        for speed in pair.speeds:
            assert speed.ratio is not None and speed.ratio.interval is None
            assert speed.ratio.p_holm is None
        assert pair.norm_reduction is not None and pair.norm_reduction.interval is None


# ---------------------------------------------------------------- norms, probes, gains


def test_norm_reduction_against_gain(results: Results, summary: Summary) -> None:
    gains, reductions = [], []
    for pair in summary.pairs:
        arm, base = (
            [float(run.models["norm_cv2"].mean()) for run in runs(results, name)]
            for name in (pair.arm, pair.base)
        )
        assert pair.norm_reduction is not None and pair.headline is not None
        naive = [b - a for a, b in zip(arm, base, strict=True)]
        assert pair.norm_reduction.differences == pytest.approx(naive)
        assert summary.arm(pair.arm).norms[1].values == pytest.approx(arm)
        reductions.append(pair.norm_reduction.value)
        gains.append(pair.headline.mean.value)
    found = summary.gain.correlation
    assert found is not None and found.total == 3 and found.interval is not None
    assert found.value == pytest.approx(spearmanr(gains, reductions).statistic)


def test_families_are_resampled_as_a_whole() -> None:
    head = MarginHead(CosFace(scale=32.0))
    arms = (
        Arm("base", head, search=()),
        Arm("one", head, SEC(weight=0.1), against="base", search=()),
        Arm("two", head, SEC(weight=0.2), against="one", search=()),
        Arm("other", head, search=()),
    )
    summary = summarize(toy_results(arms, repetitions=2, trials=1, replicates=10, classes=4))
    assert [arm.family for arm in summary.arms] == ["base", "base", "base", "other"]
    assert [(pair.base, pair.family) for pair in summary.pairs] == [
        ("base", "base"),
        ("one", "base"),
    ]
    found = summary.gain.correlation
    assert found is not None and found.total == 1 and found.interval is None and summary.gain.reason


def test_no_pair_has_no_correlation() -> None:
    arms = tuple(replace(arm, against=None) for arm in toy_arms(("CosFace",)))
    summary = summarize(toy_results(arms, repetitions=2, trials=2, replicates=10, classes=4))
    assert summary.pairs == () and summary.gain.correlation is None
    assert summary.gain.reason == "no pair was scored"


def test_probes_are_averaged(results: Results, summary: Summary) -> None:
    for arm in summary.arms:
        for found in arm.probes:
            naive = []
            for run in runs(results, arm.name):
                values = [
                    value
                    for fit in run.fits
                    for probe in fit.probes
                    if (value := getattr(probe, found.name)) is not None
                ]
                naive.append(sum(values) / len(values))
            assert found.values == pytest.approx(naive)
            assert found.mean == mean_over_seeds(found.values)


def test_missing_probes_have_a_reason(results: Results) -> None:
    def stripped(keep: int) -> tuple[FinalRun, ...]:
        return tuple(
            replace(run, fits=tuple(replace(fit, probes=fit.probes[:keep]) for fit in run.fits))
            for run in runs(results, "CosFace")
        )

    none = summarize(with_arm(results, "CosFace", runs=stripped(0))).arm("CosFace")
    assert {probe.mean for probe in none.probes} == {None}
    assert "probe_every" in none.probes[0].reason
    # The toy's first probe has no slope.
    first = summarize(with_arm(results, "CosFace", runs=stripped(1))).arm("CosFace")
    assert first.probes[0].mean is None and first.probes[0].reason
    assert all(probe.mean is not None for probe in first.probes[1:])


# ---------------------------------------------------------------- curves and speed


def fit_of(scores: list[float]) -> Fit:
    curve = tuple(Point(k, s, s, s, 10.0, 0.1) for k, s in enumerate(scores))
    best = max(range(len(scores)), key=lambda k: (scores[k], -k))
    return Fit(scores[best], best, curve, 1.0)


def test_learning_curves_keep_the_best_weights(results: Results, summary: Summary) -> None:
    for arm in summary.arms:
        fits = [fit for run in runs(results, arm.name) for fit in run.fits]
        length = max(len(fit.curve) for fit in fits)
        curves = []
        for fit in fits:
            kept, best = [], -1.0
            for epoch in range(length):
                if epoch < len(fit.curve):
                    best = max(best, fit.curve[epoch].map_at_r)
                kept.append(best)
            assert kept[-1] == fit.score
            curves.append(kept)
        found = arm.learning
        assert found is not None and found.fits == 6 * FOLDS == len(curves)
        assert found.epochs == tuple(range(length))
        assert found.mean == pytest.approx(np.mean(curves, axis=0))
        assert found.low == pytest.approx(np.quantile(curves, BAND[0], axis=0))
        assert found.high == pytest.approx(np.quantile(curves, BAND[1], axis=0))


def with_curves(results: Results, arm: list[list[float]], base: list[list[float]]) -> Results:
    """Give every seed of a pair the same folds."""
    for name, curves in (("CosFace+SEC", arm), ("CosFace", base)):
        fits = tuple(fit_of(scores) for scores in curves)
        changed = tuple(replace(run, fits=fits) for run in runs(results, name))
        results = with_arm(results, name, runs=changed)
    return results


def test_steps_to_a_share_of_the_final_score(results: Results) -> None:
    base = [[0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.2, 0.5, 0.4]]
    arm = [[0.1, 0.48, 0.2], [0.1, 0.5, 0.5]]
    pair = summarize(with_curves(results, arm, base)).pairs[1]
    ninety, _, last = pair.speeds
    assert [speed.share for speed in pair.speeds] == list(SHARES)
    # Means over folds of the kept scores: .2 .4 .45 .5 for the base, .49 .49 for the arm.
    assert ninety.ratio is not None and set(ninety.ratio.ratios) == {30 / 90}
    assert ninety.arm_steps == ((30, 30),) * 6 and ninety.base_steps == ((120, 60),) * 6
    # 99 % of .5 is beyond the arm, whose last validation is at 60 steps.
    assert last.ratio is not None and last.ratio.at_least and all(last.ratio.censored)
    assert set(last.ratio.ratios) == {60 / 120}
    assert last.arm_steps == ((None, 30),) * 6


def test_steps_count_by_each_arms_own_epochs(results: Results) -> None:
    curves = [[0.1, 0.3, 0.5]] * 2
    longer = replace(PROTOCOL, steps_per_epoch=60)
    arms = tuple(
        replace(arm, protocol=longer) if arm.name == "CosFace+SEC" else arm
        for arm in results.comparison.arms
    )
    comparison = replace(results.comparison, arms=arms, declared=("steps_per_epoch",))
    changed = replace(results, comparison=comparison)
    changed = with_arm(changed, "CosFace+SEC", arm=comparison.arm("CosFace+SEC"))
    pair = summarize(with_curves(changed, curves, curves)).pairs[1]
    ratio = pair.speeds[0].ratio
    assert ratio is not None and set(ratio.ratios) == {2.0}


def test_a_base_that_never_finds_a_neighbour(results: Results) -> None:
    zero = [[0.0, 0.0]] * 2
    pair = summarize(with_curves(results, [[0.0, 0.2]] * 2, zero)).pairs[1]
    assert all(speed.ratio is None and "not positive" in speed.reason for speed in pair.speeds)


# ---------------------------------------------------------------- trials, costs, fairness


def test_trials(results: Results, summary: Summary) -> None:
    for result, arm in zip(results.arms, summary.arms, strict=True):
        best: float | None = None
        for tried, found in zip(result.trials, arm.trials, strict=True):
            if tried.score is not None and (best is None or tried.score > best):
                best = tried.score
            assert found.best_so_far == best and found.score == tried.score
        assert arm.validation == best == arm.trials[arm.best_trial or 0].score
        assert arm.setting == arm.trials[arm.best_trial or 0].setting
        assert arm.trials[7].score is None and arm.trials[7].folds == (0.3, None)
        margin = arm.setting["loss.margin.margin"]
        assert f"margin={margin!r}" in arm.loss
        assert (arm.penalty is None) == (arm.against is None)


def test_costs(results: Results, summary: Summary) -> None:
    for result, arm in zip(results.arms, summary.arms, strict=True):
        cost = arm.cost
        assert (cost.trials, cost.failed_trials, cost.first_settings) == (20, 1, 2)
        assert cost.parameters == (1 if arm.against is None else 2)
        assert cost.trial_seconds == pytest.approx(sum(t.seconds for t in result.trials))
        seconds = sum(fit.seconds for run in result.runs for fit in run.fits)
        assert cost.final_seconds == pytest.approx(seconds)
        assert (cost.final_runs, cost.failed_runs) == (6, 0)


def changed_protocol(results: Results, declared: tuple[str, ...]) -> Results:
    own = replace(PROTOCOL, optimizer=SGD(lr=0.1), patience=2)
    arms = tuple(
        replace(arm, protocol=own) if arm.name == "CosFace+SEC" else arm
        for arm in results.comparison.arms
    )
    comparison = replace(results.comparison, arms=arms, declared=declared)
    changed = replace(results, comparison=comparison)
    return with_arm(changed, "CosFace+SEC", arm=comparison.arm("CosFace+SEC"))


def test_fair_and_unfair_pairs(results: Results, summary: Summary) -> None:
    assert all(pair.fairness.fair and not pair.fairness.declared for pair in summary.pairs)
    assert len({arm.protocol for arm in summary.arms}) == 1

    declared = summarize(changed_protocol(results, ("optimizer", "patience", "epochs")))
    found = declared.pairs[1].fairness
    assert found.fair and found.declared == ("optimizer", "patience") and found.reasons == ()
    assert declared.arm("CosFace+SEC").changed["optimizer.type"] == "SGD"
    assert declared.arm("CosFace+SEC").changed["patience"] == 2
    assert declared.arm("CosFace").changed == {}
    assert len({arm.protocol for arm in declared.arms}) == 2

    undeclared = summarize(changed_protocol(results, ("optimizer",))).pairs[1].fairness
    assert not undeclared.fair and undeclared.declared == ("optimizer",)
    assert undeclared.reasons == ("patience differs and is not declared",)


def test_unequal_budgets_are_not_fair(results: Results) -> None:
    trials = next(each.trials for each in results.arms if each.arm.name == "CosFace+SEC")
    fewer = with_arm(results, "CosFace+SEC", trials=trials[:15], first_settings=3)
    found = summarize(fewer).pairs[1].fairness
    assert not found.fair and found.reasons == ("15 and 20 trials", "3 and 2 first settings")


# ---------------------------------------------------------------- JSON


def test_json_is_strict_and_complete(summary: Summary) -> None:
    document = to_json(summary)
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text) == document and document["schema"] == SCHEMA
    assert all(math.isfinite(value) for value in numbers(document))
    headline = document["pairs"][1]["differences"][0]
    assert (headline["view"], headline["metric"]) == HEADLINE
    found = summary.pairs[1].headline
    assert found is not None and found.mean.joint is not None
    assert headline["mean"]["joint"]["low"] == found.mean.joint.low


def test_what_json_lacks_is_null_with_a_reason(results: Results) -> None:
    # No arm reaches the share, so the ratio has no upper limit; equal gains have no ranks.
    slow = with_curves(results, [[0.1, 0.2]] * 2, [[0.1, 0.5]] * 2)
    for name in ("SphereFace", "CosFace", "ArcFace"):
        same = tuple(
            replace(run, scores=base.scores)
            for run, base in zip(runs(slow, f"{name}+SEC"), runs(slow, name), strict=True)
        )
        slow = with_arm(slow, f"{name}+SEC", runs=same)
    document = to_json(summarize(slow))
    interval = document["pairs"][1]["speeds"][2]["ratio"]["interval"]
    assert interval["high"] is None and "infinite above" in interval["assumption"]
    assert document["gain"]["correlation"] is None and "constant" in document["gain"]["reason"]
    json.dumps(document, allow_nan=False)
