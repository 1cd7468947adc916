"""Paired statistics against closed forms, naive resamples and simulated truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr, t

from facerec.comparison.significance import (
    ONE_SEED,
    adjust,
    compare_paired,
    mean_over_seeds,
    rank_correlation,
    sign_flip_p,
)

LABELS = np.repeat(np.arange(12), np.arange(3, 15))


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
    assert found.interval is found.over_seeds is found.p is None
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
    assert back.interval.low == pytest.approx(-found.interval.high)
    assert compare_paired(arm, base, LABELS) == found


def test_intervals_equal_a_naive_jackknife() -> None:
    generator = np.random.default_rng(4)
    effects = generator.normal(0, 0.3, (12,))[LABELS] + generator.normal(0, 0.1, (4, 1))
    values = effects + generator.normal(0, 1, (4, len(LABELS)))
    found, mean = mean_over_seeds(values, LABELS), values.mean()
    assert found.value == pytest.approx(mean)
    without = np.array([values[:, c != LABELS].mean() for c in range(12)])
    squares = (without - without.mean()) ** 2
    classes, seeds = 11 / 12 * squares.sum(), values.mean(axis=1).var(ddof=1) / 4
    own = min(2 / ((squares**2).sum() / squares.sum() ** 2 - 1 / 12), 11)
    freedom = (seeds + classes) ** 2 / (seeds**2 / 3 + classes**2 / own)
    for interval, variance, degrees in (
        (found.over_seeds, seeds, 3),
        (found.over_classes, classes, own),
        (found.interval, seeds + classes, freedom),
    ):
        margin = t.ppf(0.975, degrees) * math.sqrt(variance)
        inside = (interval is found.interval) * t.ppf(0.975, 3) * math.sqrt(seeds)
        centre = mean - (interval is not found.over_seeds) * 11 * (without.mean() - mean)
        ends = min(centre - margin, mean - inside), max(centre + margin, mean + inside)
        assert [interval.low, interval.high] == pytest.approx(ends)


def test_holm_counts_what_has_no_p() -> None:
    found = compare_paired(np.linspace(1, 2, 6), np.zeros(6))
    alone = compare_paired([1.0], [0.0])
    first, second = adjust([found, alone])
    assert first.p_holm == 2 * 2**-5 and second.p_holm is None and second.p is None
    assert adjust([found])[0].p_holm == found.p and adjust([]) == []


def test_rank_correlation_resamples_groups_as_a_whole() -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(2, 10))
    groups = np.repeat(np.arange(10), 20)
    x, y = centres[:, groups] + 0.01 * generator.normal(size=(2, 200))
    whole, single = rank_correlation(x, y, groups), rank_correlation(x, y, np.arange(200))
    assert whole.value == single.value == pytest.approx(spearmanr(x, y).statistic)
    assert whole.total == 10 and rank_correlation(x, np.exp(y), groups) == whole
    width = whole.interval.high - whole.interval.low
    assert width > 2 * (single.interval.high - single.interval.low)
    assert rank_correlation(x, 0 * y, groups).value is None
