from __future__ import annotations

import math

import pytest
from scipy.stats import beta, binom, binomtest

from facerec.errors import MetricError
from facerec.statistics.intervals import (
    INDEPENDENT,
    clopper_pearson,
    jeffreys,
    logit,
    normal,
    wilson,
)


def bounds(interval: object) -> tuple[float, float]:
    return interval.low, interval.high  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "successes", "trials", "low", "high"),
    [
        (wilson, 18, 20, 0.6989663547715128, 0.972133518786232),
        (clopper_pearson, 18, 20, 0.6830172859809176, 0.9876514728297052),
        (clopper_pearson, 9856, 10000, 0.98306835053282549, 0.98784270928084694),
    ],
)
def test_published_values(
    function: object, successes: int, trials: int, low: float, high: float
) -> None:
    assert bounds(function(successes, trials)) == pytest.approx((low, high), abs=1e-12)  # type: ignore[operator]


def test_three_of_three_thousand() -> None:
    assert bounds(wilson(3, 3000)) == pytest.approx((0.000340, 0.002936), abs=5e-7)
    assert bounds(clopper_pearson(3, 3000)) == pytest.approx((0.000206, 0.002920), abs=5e-7)


@pytest.mark.parametrize("trials", [1, 7, 300, 1_000_000])
def test_ends_by_hand(trials: int) -> None:
    z = 1.959963984540054
    upper = z**2 / trials / (1 + z**2 / trials)
    assert bounds(wilson(0, trials)) == pytest.approx((0, upper), abs=1e-15)
    assert bounds(wilson(trials, trials)) == pytest.approx((1 - upper, 1), abs=1e-15)
    exact = 1 - 0.025 ** (1 / trials)
    assert bounds(clopper_pearson(0, trials)) == pytest.approx((0, exact), abs=1e-12)
    assert bounds(clopper_pearson(trials, trials)) == pytest.approx((1 - exact, 1), abs=1e-12)
    # Exactly, not nearly: a rate of zero has the lower limit zero.
    assert wilson(0, trials).low == 0 and wilson(trials, trials).high == 1


@pytest.mark.parametrize(("successes", "trials"), [(1, 5), (44, 50), (2961, 3000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_equals_scipy(successes: int, trials: int, confidence: float) -> None:
    test = binomtest(successes, trials)
    for function, method in ((wilson, "wilson"), (clopper_pearson, "exact")):
        expected = test.proportion_ci(confidence, method=method)
        found = bounds(function(successes, trials, confidence))  # type: ignore[operator]
        assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5])
def test_clopper_pearson_covers_at_least_nominally(rate: float) -> None:
    trials, covered = 60, 0.0
    for successes in range(trials + 1):
        low, high = bounds(clopper_pearson(successes, trials))
        covered += binom.pmf(successes, trials, rate) * (low <= rate <= high)
    assert covered >= 0.95


@pytest.mark.parametrize(("successes", "trials"), [(1, 5), (44, 50), (2961, 3000), (3.5, 37.5)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_jeffreys_is_the_posterior_of_beta_half_half(
    successes: float, trials: float, confidence: float
) -> None:
    low, high = bounds(jeffreys(successes, trials, confidence))
    posterior = beta(successes + 0.5, trials - successes + 0.5)
    assert (low, high) == pytest.approx(posterior.interval(confidence), abs=1e-12)
    # It lies within the conservative interval.
    if isinstance(successes, int):
        assert bounds(clopper_pearson(successes, trials, confidence))[0] < low  # type: ignore[arg-type]
        assert high < bounds(clopper_pearson(successes, trials, confidence))[1]  # type: ignore[arg-type]


@pytest.mark.parametrize("trials", [1, 7, 3000])
def test_jeffreys_ends(trials: int) -> None:
    none, all_ = jeffreys(0, trials), jeffreys(trials, trials)
    assert none.low == 0 and all_.high == 1
    assert none.high == pytest.approx(beta(0.5, trials + 0.5).ppf(0.975), abs=1e-12)
    assert none.high == pytest.approx(1 - all_.low, abs=1e-12)


def test_rule_of_three() -> None:
    # No error in n comparisons: the one-sided 95 % limit is about 3/n.
    for trials in (100, 3000, 1_000_000):
        assert clopper_pearson(0, trials, 0.9).high == pytest.approx(3 / trials, rel=0.02)


def test_effective_numbers_need_not_be_whole() -> None:
    low, high = bounds(wilson(0.5 * 37.5, 37.5))
    assert low + high == pytest.approx(1)
    assert bounds(wilson(18, 37))[0] < low < bounds(wilson(20, 39))[0]


def test_normal_interval() -> None:
    assert bounds(normal(10, 2)) == pytest.approx((10 - 3.919928, 10 + 3.919928), abs=1e-6)


def test_label_says_what_is_assumed() -> None:
    assert wilson(1, 2).assumption == INDEPENDENT == "assuming independent comparisons"
    found = [function(1, 2) for function in (wilson, clopper_pearson, jeffreys)]
    assert [interval.method for interval in found] == ["Wilson", "Clopper–Pearson", "Jeffreys"]


@pytest.mark.parametrize("function", [wilson, clopper_pearson, jeffreys])
@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (-1, 5), (6, 5), (math.nan, 5)])
def test_impossible_counts(function: object, successes: float, trials: float) -> None:
    with pytest.raises(MetricError, match="at least one comparison and no more events"):
        function(successes, trials)  # type: ignore[operator]


@pytest.mark.parametrize("confidence", [0, 1, 95])
def test_impossible_confidence(confidence: float) -> None:
    with pytest.raises(MetricError, match=f"confidence {confidence} is not between 0 and 1"):
        wilson(1, 2, confidence)


def test_logit_interval_by_hand() -> None:
    # log(0.1 / 0.9) ± 1.96 · 0.03 / (0.1 · 0.9), and back.
    found = logit(0.1, 0.03)
    assert bounds(found) == pytest.approx((0.05465, 0.17597), abs=1e-5)
    assert bounds(logit(0.9, 0.03)) == pytest.approx((1 - found.high, 1 - found.low))
    assert logit(0.1, 0.03, freedom=5).high > found.high
    assert bounds(logit(0.1, 0.03, freedom=1e9)) == pytest.approx(bounds(found), rel=1e-6)
    assert bounds(logit(0.3, 0.0)) == pytest.approx((0.3, 0.3)) and logit(0.3, 0).low <= 0.3
    for rate in (0.0, 1.0):
        with pytest.raises(MetricError, match="no logit"):
            logit(rate, 0.1)
