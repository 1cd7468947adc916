from __future__ import annotations

import pytest
from scipy.stats import binomtest

from facerec.statistics.intervals import wilson


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
