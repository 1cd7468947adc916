"""Trials: the same after any interruption, equal budgets, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_comparison import BASE, WITH_SEC, comparison

from facerec.comparison.fit import Fit
from facerec.comparison.losses import MarginHead
from facerec.comparison.protocol import Arm, Comparison
from facerec.comparison.search import Search

pytestmark = pytest.mark.integration

pytest.importorskip("optuna")

DATA = {"images": 1}


def result(score: float | None, failure: str | None = None) -> Fit:
    return Fit(score, 0, (score or 0.0,), 0.1, failure)


def by_setting(arm: Arm, fold: int) -> Fit:
    """A smooth function of the setting, best at margin 0.35 and weight 1."""
    score = 1 - (arm.loss.margin.margin - 0.35) ** 2 - 0.01 * fold  # type: ignore[union-attr]
    if arm.regularizer is not None:
        score -= 0.01 * abs(arm.regularizer.weight - 1)
    return result(score)


class Killed(BaseException):
    """Stands for the end of a process."""


def opened(plan: Comparison, folder: Path, **options: Any) -> Search:
    folder.mkdir(exist_ok=True)
    return Search(plan, DATA, folder, **options)


def run(search: Search, fit: Callable[[Arm, int], Fit] = by_setting) -> None:
    for arm in search.comparison.arms:
        while not search.is_done(arm):
            search.work(arm, lambda tried, first: (fit(tried, k) for k in range(first, 4)))


def table(search: Search) -> list[tuple[Any, ...]]:
    return [
        (arm.name, t.number, t.score, tuple(t.setting.items()))
        for arm in search.comparison.arms
        for t in search.trials(arm)
    ]


@pytest.mark.parametrize("journal", [False, True])
def test_a_killed_search_goes_on_as_if_nothing_had_been(tmp_path: Path, journal: bool) -> None:
    plan = comparison(tmp_path, trials=6)
    url = f"journal:{tmp_path / 'trials.journal'}" if journal else None
    whole = opened(plan, tmp_path / "whole")
    run(whole)
    calls = 0

    def dying(arm: Arm, fold: int) -> Fit:
        nonlocal calls
        calls += 1
        if calls % 7 == 0:
            raise Killed
        return by_setting(arm, fold)

    killed = 0
    while True:
        search = opened(plan, tmp_path / "killed", url=url)
        try:
            run(search, dying)
            break
        except Killed:
            killed += 1
    assert killed > 5
    assert table(search) == table(whole)
    # Folds that were stored are not trained again.
    assert calls == 2 * 6 * 4 + killed


def test_a_paired_arm_tries_the_settings_of_the_other(tmp_path: Path) -> None:
    plan = comparison(tmp_path, trials=6, paired=True)
    search = opened(plan, tmp_path)

    def some_fail(arm: Arm, fold: int) -> Fit:
        margin = arm.loss.margin.margin  # type: ignore[union-attr]
        return result(None, "diverged") if margin > 0.45 else by_setting(arm, fold)

    run(search, some_fail)
    base, sec = ([trial.setting for trial in search.trials(arm)] for arm in (BASE, WITH_SEC))
    assert len(base) == len(sec) == 6
    ours, theirs = ([each["loss.margin.margin"] for each in settings] for settings in (sec, base))
    assert ours == pytest.approx(theirs, abs=1e-12)
    weights = [each["regularizer.weight"] for each in sec]
    assert weights[0] == pytest.approx(0.1) and len(set(weights)) == 6
    # Another loss, or nothing that both search: each searches for itself.
    assert plan.paired_with(replace(WITH_SEC, loss=MarginHead())) is None
    assert plan.paired_with(replace(WITH_SEC, search=())) is None
    assert replace(plan, paired=False).paired_with(WITH_SEC) is None


def test_budgets_are_equal_and_the_arm_with_sec_contains_the_other(tmp_path: Path) -> None:
    search = opened(comparison(tmp_path, trials=5), tmp_path)
    run(search)
    base, sec = (search.trials(arm) for arm in (BASE, WITH_SEC))
    assert len(base) == len(sec) == 5
    best = search.best(BASE)
    assert best is not None and best.score == max(t.score or 0 for t in base)
    settings = [trial.setting for trial in sec]
    assert settings[0] == pytest.approx({"loss.margin.margin": 0.2, "regularizer.weight": 0.1})
    wanted = {**best.setting, "regularizer.weight": 0.0}
    assert settings[1] == pytest.approx(wanted, abs=1e-12)
    assert settings[1]["regularizer.weight"] == 0.0
    weights = [setting["regularizer.weight"] for setting in settings]
    assert all(0 <= weight <= 10 for weight in weights)


def test_failed_trials_count_and_the_study_goes_on(tmp_path: Path) -> None:
    def fit(arm: Arm, fold: int) -> Fit:
        low = arm.loss.margin.margin < 0.25  # type: ignore[union-attr]
        return result(None, "the loss is nan in epoch 2") if low and fold else by_setting(arm, fold)

    search = opened(comparison(tmp_path, trials=8), tmp_path)
    run(search, fit)
    trials = search.trials(BASE)
    failed = [t for t in trials if t.score is None]
    assert len(trials) == 8 and 0 < len(failed) < 8
    assert failed[0].failure == "fold 1: the loss is nan in epoch 2"
    assert failed[0].folds == (failed[0].folds[0], None) and failed[0].folds[0] is not None
    assert search.best(BASE) in [t for t in trials if t.score is not None]


def test_a_storage_holds_several_comparisons(tmp_path: Path) -> None:
    plan = comparison(tmp_path, trials=2)
    run(opened(plan, tmp_path))
    assert len(opened(plan, tmp_path).finished(BASE)) == 2
    changed = comparison(tmp_path, trials=2, arms=(replace(BASE, loss_lr=0.5), WITH_SEC))
    assert not opened(changed, tmp_path).finished(BASE)
    assert not Search(plan, {"images": 2}, tmp_path).finished(BASE)
