from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.drawn_scores import few, tied
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from facerec.statistics.costs import min_cllr, min_dcf
from facerec.statistics.rates import roc_curve


@few
@given(st.tuples(tied, tied), st.sampled_from([0.001, 0.01, 0.5, 0.9]))
def test_min_dcf_is_the_least_over_all_thresholds(
    both: tuple[np.ndarray, np.ndarray], prior: float
) -> None:
    cost, misses, false_matches = min_dcf(roc_curve(*both), prior)
    mated, non_mated = both
    costs = [
        prior * np.mean(mated < threshold) + (1 - prior) * np.mean(non_mated >= threshold)
        for threshold in [*np.concatenate(both), np.inf]
    ]
    least = min(prior, 1 - prior)
    assert cost == pytest.approx(min(costs) / least, abs=1e-12)
    own = prior * misses / mated.size + (1 - prior) * false_matches / non_mated.size
    assert cost == pytest.approx(own / least) and 0 <= cost <= 1 + 1e-12


def cllr(mated: np.ndarray, non_mated: np.ndarray) -> float:
    """Return the cost of log-likelihood ratios as it is defined."""
    return float(np.logaddexp(0, -mated).mean() + np.logaddexp(0, non_mated).mean()) / math.log(4)


@few
@given(st.tuples(tied, tied))
def test_min_cllr_is_the_best_that_any_monotone_calibration_reaches(
    both: tuple[np.ndarray, np.ndarray],
) -> None:
    positives, negatives = both
    least = min_cllr(roc_curve(*both))
    assert 0 <= least <= 1
    # Invariant under any strictly increasing transform, and below the cost of each.
    assert min_cllr(roc_curve(3 * positives - 1, 3 * negatives - 1)) == least
    for scale in (-0.5, 0, 1, 2, 5):
        if scale >= 0:
            assert least <= cllr(scale * positives, scale * negatives) + 1e-12
    found = minimize_scalar(lambda shift: cllr(positives - shift, negatives - shift))
    assert least <= found.fun + 1e-9


@few
@given(st.tuples(tied, tied), st.sampled_from([(0, np.inf), (0.5, 4)]))
def test_min_cllr_is_the_cllr_of_the_hulls_slopes(
    both: tuple[np.ndarray, np.ndarray], ends: tuple[float, float]
) -> None:
    positives, negatives = both
    hull = roc_curve(*both).hull()

    def calibrated(scores: np.ndarray) -> np.ndarray:
        # The segment of a score ends at the first vertex that accepts it.
        segment = np.array([int(np.argmax(hull.thresholds <= score)) for score in scores])
        with np.errstate(divide="ignore"):
            ratios = np.log(np.clip(np.diff(hull.tpr) / np.diff(hull.fpr), *ends))
        return ratios[segment - 1]

    expected = cllr(calibrated(positives), calibrated(negatives))
    assert min_cllr(roc_curve(*both), ends) == pytest.approx(expected, abs=1e-12)
