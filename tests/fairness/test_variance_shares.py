from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.fairness.variance_shares import Welch, permute

# Other processes may hold a machine up, so there is no deadline.
few = settings(max_examples=examples(40), deadline=None)


def split(values: np.ndarray, groups: np.ndarray) -> list[np.ndarray]:
    return [values[groups == g] for g in range(groups.max() + 1)]


@pytest.mark.parametrize("sizes", [(9, 40), (5, 9, 30), (12, 7, 8, 20, 15)])
def test_the_statistic_and_its_degrees_of_freedom_are_those_of_scipy(
    sizes: tuple[int, ...],
) -> None:
    generator = np.random.default_rng(len(sizes))
    parts = [generator.normal(g, 1 + g, n) for g, n in enumerate(sizes)]
    expected = scipy.stats.f_oneway(*parts, equal_var=False)
    squares = np.array([n * part.var() for n, part in zip(sizes, parts, strict=True)])
    test = Welch.of(sizes, squares, float(np.concatenate(parts).var() * sum(sizes)))
    f = float(test.f(np.array([part.mean() for part in parts])))
    assert f == pytest.approx(expected.statistic)
    assert scipy.stats.f.sf(f, len(sizes) - 1, test.within) == pytest.approx(expected.pvalue)
    observed, _ = permute(np.concatenate(parts), np.repeat(range(len(sizes)), sizes), 1)
    assert observed == pytest.approx(f)


def straightened(parts: list[np.ndarray]) -> float:
    """Return the weighted squares of means whose skewness Hall's cubic took off."""
    weights = np.array([len(part) / part.var(ddof=1) for part in parts])
    grand, total = np.average([part.mean() for part in parts], weights=weights), 0.0
    for part, weight in zip(parts, weights, strict=True):
        d, variance = part.mean() - grand, part.var(ddof=1)
        a = ((part - part.mean()) ** 3).mean() / (3 * variance**2) if len(part) > 2 else 0
        total += weight * (d + a * d**2 + a**2 * d**3 / 3 + a * variance / (2 * len(part))) ** 2
    return total


def test_p_equals_counting_all_orders() -> None:
    """With every order of seven subjects counted, p is that of Monte Carlo but for chance."""
    values = np.array([1.0, 4.0, 2.0, 9.0, 6.0, 7.0, 3.0])
    groups = np.array([1, 1, 1, 1, 0, 0, 0])
    observed = straightened(split(values, groups))
    orders = [
        straightened(split(values[list(order)], groups))
        for order in itertools.permutations(range(7))
    ]
    exact = np.mean(np.array(orders) >= observed - 1e-9)
    found, p = permute(values, groups, 20_000)
    expected = scipy.stats.f_oneway(*split(values, groups), equal_var=False)
    assert found == pytest.approx(expected.statistic)
    assert p == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000))
    assert permute(values, groups, 99, 5) == permute(values, groups, 99, 5)
    assert len({permute(values, groups, 99, seed)[1] for seed in range(5)}) > 1


@few
@given(st.permutations([0, 1, 2]), st.floats(1e-3, 1e3), st.floats(-50, 50))
def test_names_scale_and_offset_change_nothing(
    names: list[int], factor: float, offset: float
) -> None:
    values = np.random.default_rng(1).normal(size=30)
    groups = np.arange(30) * 7 % 11 % 3
    one = permute(values, groups, 50)
    other = permute(factor * values + offset, np.array(names)[groups], 50)
    assert other == pytest.approx(one, rel=1e-6)


def test_level_where_a_small_group_spreads_more_or_less() -> None:
    """Equal means of 90 and 10 subjects, of which the 10 have 1 or 2 images, or twice the SD."""
    generator = np.random.default_rng(0)
    groups = np.repeat([0, 1], [90, 10])
    for minority in (2.0, 0.5):
        kept, pooled = 0, 0
        for seed in range(250):
            values = generator.normal(size=100) * np.where(groups == 1, minority, 1.0)
            kept += permute(values, groups, 99, seed)[1] <= 0.05
            pooled += scipy.stats.f_oneway(values[:90], values[90:]).pvalue <= 0.05
        assert 0.015 <= kept / 250 <= 0.09
        assert pooled / 250 > 0.15 if minority > 1 else pooled / 250 < 0.02
