from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom

from facerec.statistics.operating_intervals import (
    realised_fpr_interval,
    threshold_interval,
    tpr_interval,
)
from facerec.statistics.rates import OperatingPoint, RocCurve, sort_scores


def draw(seed: int, same: int, different: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    generator = np.random.default_rng(seed)
    return generator.normal(2.5, 1, same), generator.normal(0, 1, different)


def at(target: str, same: NDArray, different: NDArray) -> tuple[RocCurve, OperatingPoint]:
    figures = sort_scores(same, different)
    return figures.roc(), figures.tpr_at_fpr(target)


def by_drawing(
    same: NDArray[np.float64], different: NDArray[np.float64], rate: float, draws: int = 200_000
) -> tuple[float, float]:
    """The shortest interval of draws of where the threshold lies, and of the TPR there."""
    generator = np.random.default_rng(0)
    ordered = np.sort(different)[::-1]
    reaching = np.array([0, *((same >= score).sum() for score in ordered), same.size])
    place = generator.binomial(different.size, rate, draws) + generator.random(draws)
    hits = np.interp(place, np.arange(reaching.size), reaching)
    found = np.sort(generator.beta(hits + 0.5, same.size - hits + 0.5))
    inside = math.ceil(0.95 * draws)
    first = int(np.argmin(found[inside - 1 :] - found[: draws - inside + 1]))
    return found[first], found[first + inside - 1]


@pytest.mark.parametrize(
    ("target", "sizes"),
    [("1e-1", (300, 200)), ("1e-2", (200, 1000)), ("1e-2", (5000, 300)), ("1/2", (40, 30))],
)
def test_tpr_interval_is_that_of_draws(target: str, sizes: tuple[int, int]) -> None:
    same, different = draw(1, *sizes)
    roc, point = at(target, same, different)
    interval = tpr_interval(roc, point)
    low, high = by_drawing(same, different, eval(target))
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=0.04 * (high - low))


def test_a_threshold_that_does_not_matter_leaves_the_binomial() -> None:
    # No same pair has a score between those of different pairs.
    same, different = np.repeat([9.0, -9.0], [70, 30]), draw(0, 1, 4000)[1]
    roc, point = at("1e-1", same, different)
    interval = tpr_interval(roc, point)
    tails = np.linspace(1e-6, 0.05 - 1e-6, 2001)
    lows, highs = (beta.ppf(chance, 70.5, 30.5) for chance in (tails, tails + 0.95))
    best = int(np.argmin(highs - lows))
    assert (interval.low, interval.high) == pytest.approx((lows[best], highs[best]), abs=2e-3)


@pytest.mark.parametrize(("target", "rate"), [("1e-1", 0.1), ("1e-2", 0.01), ("0.3", 0.3)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_threshold_interval_is_the_exact_one_of_a_quantile(
    target: str, rate: float, confidence: float
) -> None:
    same, different = draw(2, 50, 400)
    interval = threshold_interval(*at(target, same, different), confidence)
    descending = np.sort(different)[::-1]
    tail = (1 - confidence) / 2
    # The j-th highest is too low with the chance that fewer than j exceed the true threshold.
    above = max(j for j in range(401) if j == 0 or binom.cdf(j - 1, 400, rate) <= tail)
    below = min(j for j in range(1, 401) if binom.sf(j - 1, 400, rate) <= tail)
    assert interval.high == (descending[above - 1] if above else math.inf)
    assert interval.low == descending[below - 1]
    assert interval.confidence == confidence


def test_realised_fpr_has_the_law_of_an_order_statistic() -> None:
    same, different = draw(3, 50, 1000)
    _, point = at("1e-2", same, different)
    interval = realised_fpr_interval(point)
    expected = beta.ppf([0.025, 0.975], 11, 990)
    assert (interval.low, interval.high) == pytest.approx(tuple(expected), rel=1e-9)
    _, all_accepted = at("1", same, different)
    interval = realised_fpr_interval(all_accepted)
    assert (interval.low, interval.high) == (pytest.approx(0.05 ** (1 / 1000)), 1)


def test_effective_numbers_stand_for_the_comparisons() -> None:
    roc, point = at("1e-1", *draw(5, 400, 600))
    alike = tpr_interval(roc, point, effective=(400.0, 600.0))
    plain = tpr_interval(roc, point)
    assert (alike.low, alike.high) == (plain.low, plain.high) and alike.effective == 400
    few = tpr_interval(roc, point, effective=(40.0, 60.0))
    assert few.high - few.low > 2 * (plain.high - plain.low)
    few, plain = (threshold_interval(roc, point, effective=n) for n in (60.5, None))
    assert few.low < plain.low and few.high > plain.high


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.integers(-4, 9), min_size=1, max_size=30),
    st.lists(st.integers(-9, 4), min_size=1, max_size=30),
    st.sampled_from(["0", "1e-3", "1/30", "0.1", "0.5", "0.999", "1"]),
)
def test_every_interval_holds_its_figure(
    same: list[int], different: list[int], target: str
) -> None:
    roc, point = at(target, np.array(same, float), np.array(different, float))
    tpr = tpr_interval(roc, point)
    assert 0 <= tpr.low <= point.tpr <= tpr.high <= 1
    fpr = realised_fpr_interval(point)
    assert 0 <= fpr.low <= point.fpr_realised <= fpr.high <= 1
    threshold = threshold_interval(roc, point)
    assert threshold.low <= threshold.high


def test_intervals_hold_the_truth_where_the_threshold_is_known_too_well_otherwise() -> None:
    generator = np.random.default_rng(6)
    sets, size, rate = 300, 2000, 0.01
    threshold, truth = -ndtri(rate), float(ndtr(2.5 + ndtri(rate)))
    held = np.zeros(3)
    for _ in range(sets):
        roc, point = at("1e-2", generator.normal(2.5, 1, size), generator.normal(size=size))
        tpr, place = tpr_interval(roc, point), threshold_interval(roc, point)
        fpr = realised_fpr_interval(point)
        held += (
            tpr.low <= truth <= tpr.high,
            place.low <= threshold <= place.high,
            fpr.low <= ndtr(-point.threshold) <= fpr.high,
        )
    # Three Monte-Carlo errors about the nominal share.
    assert np.all(held / sets > 0.912) and np.all(held / sets < 0.988)
