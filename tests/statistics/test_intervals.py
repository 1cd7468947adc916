from __future__ import annotations

import pytest
from scipy.stats import binomtest

from facerec.statistics.intervals import (
    logit,
    wilson,
)


def bounds(interval: object) -> tuple[float, float]:
    return interval.low, interval.high  # type: ignore[attr-defined]


@pytest.mark.parametrize(("successes", "trials"), [(0, 10**6), (7, 7), (1, 5), (2961, 3000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_equals_scipy(successes: int, trials: int, confidence: float) -> None:
    expected = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    found = bounds(wilson(successes, trials, confidence))
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)
    # Exactly, not nearly: a rate of zero has the lower limit zero.
    assert (found[0] == 0) == (successes == 0)
    assert (found[1] == 1) == (successes == trials)


def test_effective_numbers_need_not_be_whole() -> None:
    low, high = bounds(wilson(0.5 * 37.5, 37.5))
    assert low + high == pytest.approx(1)
    assert bounds(wilson(18, 37))[0] < low < bounds(wilson(20, 39))[0]


def test_logit_interval_by_hand() -> None:
    # log(0.1 / 0.9) ± 1.96 · 0.03 / (0.1 · 0.9), and back.
    found = logit(0.1, 0.03)
    assert bounds(found) == pytest.approx((0.05465, 0.17597), abs=1e-5)
    assert bounds(logit(0.9, 0.03)) == pytest.approx((1 - found.high, 1 - found.low))
    assert logit(0.1, 0.03, freedom=5).high > found.high
    assert bounds(logit(0.1, 0.03, freedom=1e9)) == pytest.approx(bounds(found), rel=1e-6)
    assert bounds(logit(0.3, 0.0)) == pytest.approx((0.3, 0.3)) and logit(0.3, 0).low <= 0.3
