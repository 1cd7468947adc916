"""Curves from counts: the same figures as from scores, and what is proper to curves."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.drawn_scores import few, scores, tied
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

from facerec.statistics.curves import RocCurve
from facerec.statistics.operating_points import parse_rate
from facerec.statistics.rates import roc_curve


def test_counts_beyond_64_bits_stay_exact() -> None:
    # P·N is 1e20, as for 1e10 comparisons of both kinds.
    mated, others = np.cumsum([0, 4, 3, 2, 1]), np.cumsum([0, 1, 2, 3, 4])
    thresholds = np.array([np.inf, 3, 2, 1, 0])
    few, many = (
        RocCurve(thresholds, others * times, mated * times, 10 * times, 10 * times)
        for times in (1, 10**9)
    )
    assert many.auc() == few.auc() == 0.75
    assert many.eer_step() == few.eer_step()
    assert many.eer_threshold() == few.eer_threshold()
    assert many.eer_rocch() == few.eer_rocch()
    np.testing.assert_array_equal(many.hull().thresholds, few.hull().thresholds)


# --- convex hull ----------------------------------------------------------------------------


@few
@given(st.tuples(tied, tied))
def test_hull_is_the_least_concave_curve_above_the_roc(both: tuple[np.ndarray, np.ndarray]) -> None:
    roc = roc_curve(*both)
    hull = roc.hull()
    assert set(hull.thresholds.tolist()) <= set(roc.thresholds.tolist())
    x, y = hull.false_accepts.tolist(), hull.true_accepts.tolist()
    # Slopes fall strictly, in integers.
    for i in range(1, len(x) - 1):
        before, after = (y[i] - y[i - 1], x[i] - x[i - 1]), (y[i + 1] - y[i], x[i + 1] - x[i])
        assert before[0] * after[1] > after[0] * before[1]
    # No point of the curve lies above any segment.
    for i in range(len(x) - 1):
        above = (roc.true_accepts - y[i]) * (x[i + 1] - x[i])
        assert np.all(above <= (roc.false_accepts - x[i]) * (y[i + 1] - y[i]))
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, roc.non_mated, roc.mated)


# --- areas ----------------------------------------------------------------------------------


@few
@given(st.tuples(tied, tied), st.sampled_from(["0.1", "1/3", "0.7"]))
def test_partial_auc_equals_scikit_learn(both: tuple[np.ndarray, np.ndarray], end: str) -> None:
    labels = np.repeat([1, 0], [side.size for side in both])
    ranks = rankdata(np.concatenate(both), "dense")  # so that infinities are numbers
    expected = roc_auc_score(labels, ranks, max_fpr=float(parse_rate(end)))
    assert roc_curve(*both).partial_auc(end) == pytest.approx(expected, abs=1e-12)


# --- thresholds -----------------------------------------------------------------------------


@few
@given(scores)
def test_cuts_yield_the_counts_of_their_points(both: tuple[np.ndarray, np.ndarray]) -> None:
    roc = roc_curve(*both)
    for index in range(roc.thresholds.size):
        cut = roc.cut(index)
        assert np.count_nonzero(both[0] >= cut) == roc.true_accepts[index]
        assert np.count_nonzero(both[1] >= cut) == roc.false_accepts[index]


@few
@given(scores)
def test_eer_threshold_brings_the_rates_closest(both: tuple[np.ndarray, np.ndarray]) -> None:
    mated, non_mated = both
    roc = roc_curve(*both)

    def gap(threshold: float) -> float:
        fmr = np.count_nonzero(non_mated >= threshold) / non_mated.size
        return abs(fmr - np.count_nonzero(~(mated >= threshold)) / mated.size)

    assert gap(roc.eer_threshold()) <= min(gap(other) for other in roc.thresholds) + 1e-12
