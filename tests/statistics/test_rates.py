from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from helpers.drawn_scores import few, scores, tied
from helpers.plain_rates import auc, eer_rocch, tpr_at_fpr
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from facerec.base.errors import MetricError
from facerec.report import words
from facerec.statistics.influences import ScoredComparisons
from facerec.statistics.operating_points import between, parse_rate
from facerec.statistics.rates import roc_curve

rates = st.one_of(
    st.sampled_from(["0", "1e-3", "0.05", "1/3", "0.29", "1/2", "0.9", "1"]),
    st.fractions(0, 1, max_denominator=60),
)


def best_by_trying_everything(mated: np.ndarray, non_mated: np.ndarray, fpr: Fraction) -> Fraction:
    """The definition, in exact arithmetic: the best TPR over all cuts that respect the target."""
    best = Fraction(0)  # reject all
    for threshold in [*mated, *non_mated, -np.inf]:
        accepted = sum(bool(score >= threshold) for score in non_mated)
        if Fraction(accepted, len(non_mated)) <= fpr:
            hits = sum(bool(score >= threshold) for score in mated)
            best = max(best, Fraction(hits, len(mated)))
    return best


# --- properties -----------------------------------------------------------------------------


@few
@given(scores, rates)
def test_tpr_at_fpr_is_the_supremum(both: tuple[np.ndarray, np.ndarray], fpr: object) -> None:
    mated, non_mated = both
    point = tpr_at_fpr(mated, non_mated, fpr)
    target = parse_rate(fpr)
    assert point.tpr == float(best_by_trying_everything(mated, non_mated, target))
    assert Fraction(point.false_accepts, point.non_mated) <= target
    # What it says of its threshold is true of the scores.
    assert np.count_nonzero(mated >= point.threshold) == point.true_accepts
    assert np.count_nonzero(non_mated >= point.threshold) == point.false_accepts


@few
@given(scores, rates)
def test_a_printed_threshold_tells_the_same_scores_apart(
    both: tuple[np.ndarray, np.ndarray], fpr: object
) -> None:
    point = tpr_at_fpr(*both, fpr)
    if not math.isfinite(point.threshold):
        return
    printed = float(words.threshold(point.threshold))
    with np.errstate(over="ignore"):
        own = both[0].dtype.type(printed)
    for side, accepted in zip(both, (point.true_accepts, point.false_accepts), strict=True):
        assert np.count_nonzero(side.astype(np.float64) >= np.float64(printed)) == accepted
        assert np.count_nonzero(side >= own) == accepted
    seen = np.unique(np.concatenate(both))
    place = np.searchsorted(seen.astype(np.float64), printed)
    if place < seen.size and np.nextafter(seen[place - 1], seen[place]) < seen[place] < np.inf:
        assert seen[place - 1] < printed < seen[place]


@pytest.mark.parametrize(
    ("below", "above", "found"),
    [
        (51, 52, "51.5"),
        (0.3, 0.4, "0.35"),
        (99.91, 99.92, "99.915"),
        (np.float32(0.3123), np.float32(0.3124), "0.31235"),
        (0.3, np.nextafter(0.3, 1), "0.30000000000000004"),
        (np.inf, np.inf, "reject all"),
        (1, None, "reject all"),
        (np.float32(0.9998), None, "0.9999"),
    ],
)
def test_thresholds_have_few_digits(below: float, above: float | None, found: str) -> None:
    between_both = between(np.asarray(below, getattr(below, "dtype", float))[()], above)
    assert words.threshold(between_both) == found


@few
@given(st.tuples(tied, tied))
def test_roc_equals_scikit_learn(both: tuple[np.ndarray, np.ndarray]) -> None:
    mated, non_mated = both
    labels = np.repeat([1, 0], [mated.size, non_mated.size])
    values = np.concatenate(both)
    fpr, tpr, thresholds = sklearn_roc_curve(labels, values, drop_intermediate=False)
    ours = roc_curve(*both)
    np.testing.assert_allclose(ours.fpr, fpr, atol=1e-15)
    np.testing.assert_allclose(ours.tpr, tpr, atol=1e-15)
    np.testing.assert_array_equal(ours.thresholds[1:], thresholds[1:])
    assert auc(*both) == pytest.approx(roc_auc_score(labels, values), abs=1e-12)


@few
@given(st.tuples(tied, tied))
def test_eer_rocch_equals_the_minimax_over_priors(both: tuple[np.ndarray, np.ndarray]) -> None:
    # The EER of the hull is the largest minimum Bayes error over all priors (Brümmer 2010): any
    # prior bounds it from below, and the prior of the hull's own slope reaches it.
    roc = roc_curve(*both)
    rate, slope = roc.eer_rocch()

    def bayes_error(prior: float) -> float:
        return float(np.min(prior * (1 - roc.tpr) + (1 - prior) * roc.fpr))

    own = 0.0 if math.isinf(slope) else 1 / (1 + slope)
    bounds = [bayes_error(prior) for prior in np.linspace(0, 1, 21)]
    assert max(bounds) <= rate + 1e-12
    assert rate == pytest.approx(bayes_error(own), abs=1e-12)


@few
@given(st.tuples(tied, tied))
def test_eer_step_against_a_loop_over_thresholds(both: tuple[np.ndarray, np.ndarray]) -> None:
    mated, non_mated = both
    previous = None
    for threshold in [*sorted({*mated, *non_mated}), np.inf]:
        fmr = Fraction(int(np.sum(non_mated >= threshold)), non_mated.size)
        fnmr = Fraction(int(np.sum(mated < threshold)), mated.size)
        if fmr <= fnmr:
            break
        previous = fmr, fnmr
    chosen = (fmr, fnmr)
    if fmr < fnmr and previous is not None and sum(previous) <= sum(chosen):
        chosen = previous
    assert [*roc_curve(*both).eer_step()] == sorted(map(float, chosen))


# --- cases that public code gets wrong ------------------------------------------------------


def test_infinite_scores() -> None:
    rejected = tpr_at_fpr([np.inf, 1.0], [np.inf, 0.0], "0.4")
    assert math.isnan(rejected.threshold)
    assert (rejected.tpr, rejected.fpr_realised) == (0.0, 0.0)
    half = tpr_at_fpr([np.inf, 1.0], [np.inf, 0.0], "0.5")
    assert (half.tpr, half.fpr_realised) == (1.0, 0.5)
    everything = tpr_at_fpr([-np.inf, 1.0], [0.0], "1")
    assert (everything.tpr, everything.threshold) == (1.0, -np.inf)


@pytest.mark.parametrize(
    ("target", "resolvable", "reliable"),
    [("1e-4", False, False), ("1/3000", True, False), ("1e-3", True, False), ("1e-2", True, True)],
)
def test_resolution_on_three_thousand_negatives(
    target: str, resolvable: bool, reliable: bool
) -> None:
    point = tpr_at_fpr(np.ones(3000), np.linspace(0, 0.5, 3000), target)
    assert (point.resolvable, point.reliable) == (resolvable, reliable)


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mated", "non_mated", "sentence"),
    [
        ([], [1.0], "there are no scores of same pairs"),
        ([1.0], [], "there are no scores of different pairs"),
        ([1.0], [0.0, np.nan, np.nan], "2 of 3 scores of different .* NaN, the first at index 1"),
    ],
)
def test_bad_scores(mated: list, non_mated: list, sentence: str) -> None:
    for function in (auc, eer_rocch, lambda p, n: tpr_at_fpr(p, n, "0.1")):
        with pytest.raises(MetricError, match=sentence):
            function(mated, non_mated)


# --- analytic -------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", [3, 4])
def test_two_normal_distributions(distance: float) -> None:
    # Quantiles in place of random draws: the error is then of the order 1/n.
    quantiles = ndtri((np.arange(100_000) + 0.5) / 100_000)
    roc = roc_curve(quantiles + distance, quantiles)
    rate, slope = roc.eer_rocch()
    assert roc.auc() == pytest.approx(ndtr(distance / math.sqrt(2)), abs=2e-6)
    assert [rate, np.mean(roc.eer_step())] == pytest.approx([ndtr(-distance / 2)] * 2, abs=2e-5)
    assert slope == pytest.approx(1, abs=0.05)
    for target in ("1e-2", "1e-3"):
        expected = ndtr(-ndtri(float(target)) - distance)
        assert 1 - roc.tpr_at_fpr(target).tpr == pytest.approx(expected, abs=1e-3)
    both = np.concatenate([quantiles + distance, quantiles])
    forth, back = (
        ScoredComparisons(both, kind == (np.arange(both.size) < quantiles.size))
        for kind in (True, False)
    )
    assert forth.d_prime()[0] == -back.d_prime()[0] == pytest.approx(distance, abs=1e-3)
