from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.drawn_scores import few, tied
from hypothesis import given
from hypothesis import strategies as st

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
