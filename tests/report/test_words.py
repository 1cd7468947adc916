from __future__ import annotations

import math

import numpy as np
import pytest

from facerec.report.words import limits, percent_limits, threshold
from facerec.statistics.intervals import Interval


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.31234, "0.31234"),
        (12345.6, "12345.6"),
        (52.0, "52"),
        (float(np.float32(0.1)), "0.1"),
        (52.00000000000001, "52.00000000000001"),
        (-math.inf, "accept all"),
        (math.inf, "∞"),
        (math.nan, "reject all"),
    ],
)
def test_thresholds_are_numbers_or_words(value: float, text: str) -> None:
    assert threshold(value) == text


def test_an_interval_that_is_not_there_is_no_number() -> None:
    assert limits(None) == percent_limits(None) == ""
    assert percent_limits(Interval(math.nan, math.nan)) == "no interval"


def test_a_narrow_interval_has_another_decimal() -> None:
    narrow, wide = Interval(0.9812, 0.9907), Interval(0.981, 0.997)
    assert percent_limits(narrow).split() == ["[98.12,", "99.07]"]
    assert percent_limits(wide).split() == ["[98.1,", "99.7]"]
    assert limits(Interval(0.1, math.inf), form=threshold).split() == ["[0.1,", "∞]"]
