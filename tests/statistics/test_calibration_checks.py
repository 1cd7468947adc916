"""Whether a calibration holds: shifts, observed ratios and runners-up, by naive loops and lir."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.calibrations import people
from scipy.optimize import brentq
from scipy.special import expit

from facerec.statistics.calibration import CENTRES, LikelihoodRatio, ScoreCounts, cell_of, cllr
from facerec.statistics.calibration_checks import (
    likeness,
    observed_ratios,
    shift,
    shift_p_value,
)


def test_a_shift_is_the_intercept_that_makes_single_comparisons_likeliest() -> None:
    scores, first, second = people(1)
    counts = ScoreCounts.of_pairs(scores, first, second)
    claimed = LikelihoodRatio.fit(counts).log_ratio(CENTRES) - 0.7
    mated, values = first == second, claimed[cell_of(scores)]

    def slope(added: float) -> float:
        chance = expit(values + added)
        return float((1 - chance)[mated].mean() - chance[~mated].mean())

    found = shift(claimed, counts)
    assert found.value == pytest.approx(brentq(slope, -5, 5), abs=1e-8)
    others = shift(claimed, ScoreCounts.of_pairs(*people(2)))
    assert shift_p_value(found, found) == 1
    assert shift_p_value(found, others) == pytest.approx(shift_p_value(others, found))


def test_observed_ratios_are_those_of_single_comparisons() -> None:
    scores, first, second = people(3)
    claimed = LikelihoodRatio.fit(ScoreCounts.of_pairs(scores, first, second)).log_ratio(CENTRES)
    rows = observed_ratios(claimed, ScoreCounts.of_pairs(scores, first, second))
    mated, values = first == second, claimed[cell_of(scores)] / math.log(10)
    expected = []
    for power in np.unique(np.floor(values)):
        inside = np.floor(values) == power
        shares = inside[mated].mean(), inside[~mated].mean()
        if min(shares) > 0:
            mean = np.log10(np.mean(10 ** values[inside & ~mated]))
            expected.append((mean, np.log10(shares[0] / shares[1])))
    np.testing.assert_allclose(rows[:, :2], expected)
    assert ((rows[:, 2] < rows[:, 1]) & (rows[:, 1] < rows[:, 3])).all()


@pytest.mark.parametrize(("factor", "alike"), [(1.0, True), (4.0, False), (0.2, False)])
def test_runners_up_tell_how_often_strangers_score_high(factor: float, alike: bool) -> None:
    """Strangers of known tails, of whom every other probe has its subject in the gallery too."""
    ratio = LikelihoodRatio.fit(ScoreCounts.of_pairs(*people(4, 120)))
    at, shares = ratio.strangers.T[:2]
    generator = np.random.default_rng(0)
    # A share u of the calibration's strangers is one of factor · u of these.
    uniform = np.sort(generator.random((1000, 200)) / factor, axis=1)[:, :2]
    best = np.interp(-uniform, -shares, at)
    best[::2] = np.stack([np.full(500, 0.999), best[::2, 0]], axis=1)
    told = likeness(ratio, best, 200)
    assert told is not None and told.alike is alike
    assert told.low / 1.2 < factor < told.high * 1.2
    assert likeness(ratio, best[:5], 200) is None


def test_costs_and_bounds_agree_with_those_of_forensic_practice() -> None:
    lir = pytest.importorskip("lir.metrics", reason="needs the package lir")
    from lir.algorithms.bayeserror import elub
    from lir.data.models import LLRData

    from facerec.verification.calibration import least_cllr

    scores, first, second = people(5, 150)
    counts = ScoreCounts.of_pairs(scores, first, second)
    ratio, mated = LikelihoodRatio.fit(counts), first == second
    values = ratio.log_ratio(CENTRES)
    tens = values[cell_of(scores)] / math.log(10)
    data = LLRData(features=tens[:, None], labels=mated * 1)
    assert cllr(values, *counts.totals) == pytest.approx(lir.cllr(data))
    cells = LLRData(features=CENTRES[cell_of(scores)][:, None], labels=mated * 1)
    assert least_cllr(*counts.totals) == pytest.approx(lir.cllr_min(cells))
    low, high = elub(tens.copy(), mated * 1)
    # We stop where ten people make no pair; they where a claim costs more than none.
    assert tens.min() >= low - 0.5 and tens.max() <= high + 0.5
