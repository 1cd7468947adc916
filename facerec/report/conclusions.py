"""What a test or an interval lets one conclude: the same few words in every report."""

from __future__ import annotations

from typing import Literal

from facerec.statistics.intervals import Interval

ALPHA = 0.05
"""Level of the tests that conclusions, power and equivalence are stated for."""

Conclusion = Literal["difference detected", "none detected at this precision", "insufficient data"]


def of_test(p: float | None) -> Conclusion:
    """Return what a test with this p-value concludes; None where there was no test."""
    if p is None:
        return "insufficient data"
    return "difference detected" if p < ALPHA else "none detected at this precision"


def of_interval(interval: Interval | None) -> Conclusion:
    """Tell whether the interval of a difference excludes zero; None where there is none."""
    if interval is None:
        return "insufficient data"
    if interval.low > 0 or interval.high < 0:
        return "difference detected"
    return "none detected at this precision"
