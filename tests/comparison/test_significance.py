"""Paired statistics against closed forms, naive resamples and simulated truth."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import spearmanr, t

from facerec.comparison.significance import (
    ONE_SEED,
    adjust,
    compare_paired,
    compare_steps,
    mean_over_seeds,
    sign_flip_p,
    spearman,
)
from facerec.errors import MetricError
from facerec.statistics.intervals import Interval

Array = NDArray[np.float64]
LABELS = np.repeat(np.arange(12), np.arange(3, 15))


def holds(interval: Interval | None, value: float) -> bool:
    assert interval is not None
    return interval.low <= value <= interval.high


@pytest.mark.parametrize(("n", "factor"), [(3, 4.30), (5, 2.78), (10, 2.26)])
def test_t_factors(n: int, factor: float) -> None:
    values = np.random.default_rng(n).standard_normal(n)
    interval = mean_over_seeds(values).over_seeds
    assert interval is not None and interval.confidence == 0.95
    error = values.std(ddof=1) / math.sqrt(n)
    assert round((interval.high - interval.low) / 2 / error, 2) == factor
    assert (interval.high + interval.low) / 2 == pytest.approx(values.mean())


def test_ten_seeds_are_enough_for_fourteen_losses_and_nine_are_not() -> None:
    def least(n: int) -> float:
        gain = np.linspace(0.1, 0.2, n)
        none = np.zeros(n)
        family = [compare_paired(gain, none)] + [compare_paired(none, none)] * 13
        adjusted = adjust(family)[0].p_holm
        assert adjusted is not None
        return adjusted

    assert least(10) == pytest.approx(14 * 2**-9) and least(10) < 0.05 < least(9)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_sign_flip_equals_the_enumeration(values: list[int]) -> None:
    flips = itertools.product([-1, 1], repeat=len(values))
    beyond = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True))) >= abs(sum(values))
        for signs in flips
    ]
    # A tenth is not exact, so equal sums differ by rounding.
    assert sign_flip_p(np.array(values) / 10) == sum(beyond) / len(beyond)


def test_one_seed_has_no_interval_over_seeds() -> None:
    found = compare_paired([0.7], [0.6])
    assert found.value == pytest.approx(0.1) and found.total == 1 and found.remark == ONE_SEED
    assert found.interval is found.over_seeds is found.joint is found.p is None
    figures = np.random.default_rng(0).random((1, len(LABELS)))
    known = mean_over_seeds(figures, LABELS)
    assert known.over_classes is not None and known.interval is None and known.remark == ONE_SEED


def test_the_difference_is_the_mean_of_the_differences() -> None:
    generator = np.random.default_rng(0)
    arm, base = generator.random((2, 6, len(LABELS)))
    found = compare_paired(arm, base, LABELS)
    assert found.differences == pytest.approx(tuple(arm.mean(axis=1) - base.mean(axis=1)))
    assert found.value == pytest.approx(np.mean(found.differences))
    assert found.p == sign_flip_p(found.differences)
    flat = compare_paired(arm.mean(axis=1), base.mean(axis=1))
    assert flat.over_classes is None and flat.interval == flat.over_seeds
    for field in ("value", "p"):
        assert getattr(flat, field) == pytest.approx(getattr(found, field))
    back = compare_paired(base, arm, LABELS)
    assert back.value == -found.value and back.p == found.p
    assert back.joint is not None and found.joint is not None
    assert back.joint.low == pytest.approx(-found.joint.high)
    assert compare_paired(arm, base, LABELS) == found


def test_intervals_equal_a_naive_jackknife() -> None:
    generator = np.random.default_rng(4)
    effects = generator.normal(0, 0.3, (12,))[LABELS] + generator.normal(0, 0.1, (4, 1))
    values = effects + generator.normal(0, 1, (4, len(LABELS)))
    found, mean = mean_over_seeds(values, LABELS), values.mean()
    assert found.value == pytest.approx(mean)
    without = np.array([values[:, c != LABELS].mean() for c in range(12)])
    classes = 11 / 12 * ((without - without.mean()) ** 2).sum()
    seeds = values.mean(axis=1).var(ddof=1) / 4
    freedom = (seeds + classes) ** 2 / (seeds**2 / 3 + classes**2 / 11)
    for interval, variance, degrees in (
        (found.over_seeds, seeds, 3),
        (found.over_classes, classes, 11),
        (found.joint, seeds + classes, freedom),
    ):
        margin = t.ppf(0.975, degrees) * math.sqrt(variance)
        if interval is found.joint:
            margin = max(margin, t.ppf(0.975, 3) * math.sqrt(seeds))
        assert interval is not None
        assert [interval.low, interval.high] == pytest.approx([mean - margin, mean + margin])


def test_holm_counts_what_has_no_p() -> None:
    found = compare_paired(np.linspace(1, 2, 6), np.zeros(6))
    alone = compare_paired([1.0], [0.0])
    first, second = adjust([found, alone])
    assert first.p_holm == 2 * 2**-5 and second.p_holm is None and second.p is None
    assert adjust([found])[0].p_holm == found.p and adjust([]) == []


def test_spearman() -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 8, 30).astype(float)
    y = x + generator.normal(0, 3, 30)
    found = spearman(x, y)
    assert found.value == pytest.approx(spearmanr(x, y).statistic) and found.total == 30
    assert holds(found.interval, found.value) and found.remark == ""
    assert spearman(x, np.exp(y)) == found and spearman(x, y, seed=1).interval != found.interval
    assert spearman(x, -y).value == pytest.approx(-found.value)


def test_spearman_resamples_groups_as_a_whole() -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(2, 10))
    groups = np.repeat(np.arange(10), 20)
    x, y = centres[:, groups] + 0.01 * generator.normal(size=(2, 200))
    whole, single = spearman(x, y, groups), spearman(x, y)
    assert whole.total == 10 and whole.value == single.value
    assert whole.interval is not None and single.interval is not None
    width = whole.interval.high - whole.interval.low
    assert width > 2 * (single.interval.high - single.interval.low)


STEPS = np.arange(1, 11) * 100


def reaching(step: float, last: int = 1000) -> tuple[Array, Array]:
    """Return a curve that stays at 0.1 and is 1 from a step on, validated up to the last."""
    when = STEPS[last >= STEPS]
    return when, np.where(when >= step, 1.0, 0.1)


def test_step_ratios_of_runs_that_all_arrive() -> None:
    base = [reaching(step) for step in (400, 400, 500, 800, 200, 1000)]
    arm = [reaching(step) for step in (200, 300, 300, 400, 100, 400)]
    found = compare_steps(arm, base, 0.9)
    # Ratios are .5 .75 .6 .5 .5 .4.
    assert found.value == 0.5 and found.remark == "" and found.interval is not None
    assert (found.interval.low, found.interval.high) == (0.4, 0.75)
    assert found.interval.confidence == 1 - 2 * 2**-6
    even = compare_steps(arm[3:] + arm[1:2], base[3:] + base[1:2], 0.95)
    assert even.value == 0.5
    assert compare_steps(arm[1:3], base[1:3], 0.9).value == pytest.approx(math.sqrt(0.75 * 0.6))


def test_step_ratios_keep_runs_that_never_arrive() -> None:
    base = [reaching(step) for step in (500, 500, 500, 500, 900)]
    arm = [reaching(250), reaching(400), reaching(600), reaching(2000), reaching(2000)]
    found = compare_steps(arm, base, 0.9)
    # Ratios are .6 .8 1.2, and at least 2 and 10/9. Taken for their bounds or for infinite, the
    # middle moves from 10/9 to 1.2.
    assert found.value == pytest.approx(1000 / 900)
    assert found.remark == "it is a lower bound: 2 of 5 runs never came so far"
    assert found.interval is not None and found.interval.confidence == 0.9375
    assert (found.interval.low, found.interval.high) == (0.6, math.inf)


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda: compare_paired([1, 2], [1, 2, 3]), "cannot be paired; both arms need the same"),
        (lambda: mean_over_seeds([[1, 2]]), r"of shape \(1, 2\) must be one a seed"),
        (lambda: mean_over_seeds([1, 2], [0, 1]), r"one a seed and query, \(n, q\)"),
        (lambda: mean_over_seeds([]), r"values of shape \(0,\)"),
        (lambda: mean_over_seeds([[1, 2, 3]], [0, 1]), "3 queries need one class each"),
        (lambda: mean_over_seeds([1, math.nan]), r"value nan at \(1,\) is not finite"),
        (lambda: mean_over_seeds([1, 2], confidence=95), "confidence 95 is not between"),
        (lambda: sign_flip_p([]), r"values of shape \(0,\)"),
        (lambda: spearman([1, 2, 3], [1, 2]), "3 and 2 values in groups of shape"),
        (lambda: spearman([1, 2], [1, 2], [0]), "are not paired"),
        (
            lambda: compare_steps([reaching(100)], [([1, 2], [0.5, 0.0])], 0.9),
            "the final score 0.0 of run 0 of the base is not positive",
        ),
    ],
)
def test_bad_input(act: Any, sentence: str) -> None:
    with pytest.raises(MetricError, match=sentence):
        act()
