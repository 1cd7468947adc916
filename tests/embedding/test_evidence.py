"""What a cosine is worth: words and numbers of a calibration, and whose it is."""

from __future__ import annotations

import json
import math

import pytest
from helpers.calibrations import toy_calibration

from facerec.embedding.calibration import ScoreCalibration
from facerec.embedding.evidence import Evidence

MODEL = {"name": "mine", "sha256": "a" * 64, "preprocessing": {"channels": "rgb"}}


@pytest.fixture(scope="module")
def known() -> ScoreCalibration:
    return toy_calibration(MODEL)


def test_evidence_is_the_ratio_where_there_are_data(known: ScoreCalibration) -> None:
    score = (known.ratio.low + known.ratio.high) / 2
    found, limits = known.evidence(score), known.ratio.interval(score)
    assert found.likelihood_ratio == pytest.approx(math.exp(float(known.ratio.log_ratio(score))))
    assert (found.low, found.high) == pytest.approx((math.exp(limits.low), math.exp(limits.high)))
    assert found.strangers == known.ratio.stranger(score)[0]
    expected = found.likelihood_ratio / (found.likelihood_ratio + 99)
    assert found.probability(100)[0] == pytest.approx(expected)


def test_beyond_the_data_there_is_a_limit_and_no_number(known: ScoreCalibration) -> None:
    above, below = known.evidence(0.9999), known.evidence(-0.99)
    for found in (above, below):
        assert found.likelihood_ratio is None and "at least" in str(found)
        json.dumps(vars(found), allow_nan=False)
    assert above.high is None and above.low is not None and above.for_one
    assert below.low is None and below.high is not None and not below.for_one
    assert above.probability(2)[2] == 1 and below.probability(2)[1] == 0


@pytest.mark.parametrize(
    ("ratio", "low", "high", "words"),
    [
        (34_000.0, 11_000.0, 92_000.0, "3·10⁴ [1·10⁴, 9·10⁴] times better with one person"),
        (0.004, 0.002, 0.01, "250 [100, 500] times better with two people"),
        (1.2, 0.8, 1.9, "1.2 [0.8, 1.9] times better with one person"),
        (0.5, 0.25, 2.0, "2 [0.5, 4] times better with two people"),
    ],
)
def test_a_ratio_below_one_speaks_for_two(
    ratio: float, low: float, high: float, words: str
) -> None:
    found = Evidence(ratio, low, high, 1 / 52_000, (1 / 91_000, 1 / 31_000), "calibrated on …")
    assert words in str(found)
    assert "1 stranger in 52,000 [31,000, 91,000] scores as high" in str(found)
