"""Curves from counts: the same figures as from scores, and what is proper to curves."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

from facerec.errors import MetricError
from facerec.statistics.costs import min_cllr
from facerec.statistics.curves import RocCurve, roc_from_counts
from facerec.statistics.rates import parse_rate, roc_curve, sort_scores

# Other processes may hold a machine up, so there is no deadline.
few = settings(max_examples=examples(40), deadline=None)

tied = hnp.arrays(
    np.float64, st.integers(1, 25), elements=st.integers(-4, 4).map(lambda value: value / 8)
)
wild = hnp.arrays(
    np.float32,
    st.integers(1, 25),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=True),
)
scores = st.one_of(st.tuples(tied, tied), st.tuples(wild, wild))
rates = st.sampled_from(["0", "0.01", "0.05", "1/3", "0.29", "1/2", "0.9", "1"])


def histogram(mated: np.ndarray, non_mated: np.ndarray) -> RocCurve:
    values = np.unique(np.concatenate([mated, non_mated]))
    counts = [
        np.histogram(np.searchsorted(values, side), np.arange(values.size + 1))[0]
        for side in (mated, non_mated)
    ]
    return roc_from_counts(values, *counts)


# --- a histogram is as good as the scores ---------------------------------------------------


@few
@given(scores, rates)
def test_a_histogram_gives_the_figures_of_the_scores(
    both: tuple[np.ndarray, np.ndarray], fpr: str
) -> None:
    figures, counted = sort_scores(*both), histogram(*both)
    sorted_roc = figures.roc()
    for field in ("thresholds", "false_accepts", "true_accepts"):
        np.testing.assert_array_equal(getattr(counted, field), getattr(sorted_roc, field))
    assert counted.thresholds.dtype == both[0].dtype
    # NaN thresholds are equal too.
    assert repr(counted.tpr_at_fpr(fpr)) == repr(figures.tpr_at_fpr(fpr))
    assert counted.auc() == figures.auc()
    assert counted.auc_interval() == figures.auc_interval()
    assert counted.eer_rocch() == figures.eer_rocch()
    assert counted.eer_step() == figures.eer_step()
    assert min_cllr(counted) == min_cllr(sorted_roc)


def test_counts_beyond_64_bits_stay_exact() -> None:
    # P·N is 1e20, as for 1e10 comparisons of both kinds.
    few = roc_from_counts([0, 1, 2, 3], [1, 2, 3, 4], [4, 3, 2, 1])
    many = roc_from_counts(
        [0, 1, 2, 3], np.array([1, 2, 3, 4]) * 10**9, np.array([4, 3, 2, 1]) * 10**9
    )
    assert many.auc() == few.auc() == 0.75
    assert many.eer_step() == few.eer_step()
    assert many.eer_threshold() == few.eer_threshold()
    assert many.eer_rocch().rate == few.eer_rocch().rate
    np.testing.assert_array_equal(many.hull().thresholds, few.hull().thresholds)


@pytest.mark.parametrize(
    ("values", "positive", "negative", "sentence"),
    [
        ([0, np.nan], [1, 1], [1, 1], "values of a histogram must be one-dimensional and not NaN"),
        ([[0, 1]], [1, 1], [1, 1], "values of a histogram must be one-dimensional and not NaN"),
        ([0, 1], [1], [1, 1], "counts of same pairs must be whole numbers from 0 on"),
        ([0, 1], [1, 1], [1, -1], "counts of different pairs must be whole numbers from 0 on"),
        ([0, 1], [1, 1], [1, 0.5], "counts of different pairs must be whole numbers from 0 on"),
        ([0, 1], [1, np.nan], [1, 1], "counts of same pairs must be whole numbers from 0 on"),
        ([0, 1], [0, 0], [1, 1], "there are no scores of same pairs"),
        ([], [], [], "there are no scores of same pairs"),
    ],
)
def test_bad_histograms(values: list, positive: list, negative: list, sentence: str) -> None:
    with pytest.raises(MetricError, match=sentence):
        roc_from_counts(values, positive, negative)


# --- convex hull ----------------------------------------------------------------------------


@few
@given(st.tuples(tied, tied))
def test_hull_is_the_least_concave_curve_above_the_roc(
    both: tuple[np.ndarray, np.ndarray],
) -> None:
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


@few
@given(st.tuples(tied, tied))
def test_auc_interval_rests_on_delongs_variance(both: tuple[np.ndarray, np.ndarray]) -> None:
    # DeLong's components by midranks (Sun and Xu 2014), a way that shares nothing with counts.
    mated, non_mated = both
    least = min(mated.size, non_mated.size)
    interval = sort_scores(*both).auc_interval()
    assert interval.effective is not None and interval.effective >= least
    if least == 1:
        assert interval.effective == 1
        return
    ranks = rankdata(np.concatenate(both))
    first = (ranks[: mated.size] - rankdata(mated)) / non_mated.size
    second = 1 - (ranks[mated.size :] - rankdata(non_mated)) / mated.size
    variance = first.var(ddof=1) / mated.size + second.var(ddof=1) / non_mated.size
    area = first.mean()
    expected = area * (1 - area) / variance if variance > 1e-15 else 0
    assert interval.effective == pytest.approx(max(expected, least), rel=1e-9)


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


# --- DET ------------------------------------------------------------------------------------


def test_probit_axes() -> None:
    assert ndtri([0.001, 0.01, 0.1, 0.5]) == pytest.approx([-3.090, -2.326, -1.282, 0], abs=5e-4)


@pytest.mark.parametrize("distance", [1, 3])
def test_det_of_two_normal_distributions_is_a_line_of_slope_minus_one(distance: int) -> None:
    quantiles = ndtri((np.arange(20_000) + 0.5) / 20_000)
    x, y = roc_curve(quantiles + distance, quantiles).det_points()
    middle = (np.abs(x) < 2) & (np.abs(y) < 2)
    assert middle.sum() > 1000
    np.testing.assert_allclose(x[middle] + y[middle], -distance, atol=2e-3)
