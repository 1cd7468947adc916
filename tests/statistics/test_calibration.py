"""Likelihood ratios: against scikit-learn, refitting without each subject, and known densities."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from facerec.base.errors import FacerecError, MetricError
from facerec.base.recipe import from_dict
from facerec.statistics import calibration
from facerec.statistics.calibration import (
    CENTRES,
    LikelihoodRatio,
    ScoreCounts,
    cell_of,
    cllr,
    cost_of,
    spline,
)

Pairs = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]

MATED, OTHERS = norm(0.4, 0.15), norm(0.05, 0.1)


def draw_pairs(seed: int, subjects: int = 40, images: int = 3) -> Pairs:
    """Return the scores of all pairs of images and the subjects of both sides."""
    generator = np.random.default_rng(seed)
    who = np.repeat(np.arange(subjects), images)
    first, second = np.triu_indices(len(who), 1)
    left, right = who[first], who[second]
    # Half of the variance is that of subjects.
    own = generator.standard_normal(subjects)
    noise = generator.standard_normal(left.size)
    same = left == right
    mated = 0.4 + 0.15 * np.sqrt(0.5) * (own[left] + noise)
    others = 0.05 + 0.1 * (0.5 * (own[left] + own[right]) + np.sqrt(0.5) * noise)
    return np.where(same, mated, others), left, right


def test_the_regression_is_that_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "BEND", np.inf)  # it does not smooth
    counts = ScoreCounts.of_pairs(*draw_pairs(0))
    fitted = LikelihoodRatio.fit(counts)
    mated, others = counts.weights @ counts.mated, counts.totals[1]
    terms = spline(CENTRES, fitted.knots)
    weights = np.concatenate([mated / mated.sum(), others / others.sum()])
    model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-12, solver="newton-cholesky")
    model.fit(np.tile(terms, (2, 1)), np.repeat([1, 0], len(terms)), weights * 1e4)
    inside = (fitted.low < CENTRES) & (fitted.high > CENTRES)
    expected = terms[inside] @ model.coef_[0]
    np.testing.assert_allclose(terms[inside] @ fitted.coefficients, expected, atol=0.02)
    np.testing.assert_array_equal(np.isfinite(fitted.told()[inside]), True)


def test_its_variance_is_that_of_leaving_each_subject_out() -> None:
    scores, left, right = draw_pairs(1, subjects=150)
    everything = LikelihoodRatio.fit(ScoreCounts.of_pairs(scores, left, right))
    at = np.array([0.15, 0.2, 0.25])
    terms = spline(at, everything.knots)
    values = []
    for subject in range(150):
        kept = (left != subject) & (right != subject)
        counts = ScoreCounts.of_pairs(scores[kept], left[kept], right[kept])
        mated, others = counts.weights @ counts.mated, counts.totals[1]
        found, _ = calibration._regress(
            mated / mated.sum(), others / others.sum(), everything.knots, everything.effective
        )
        values.append(terms @ found)
    naive = 149 / 150 * ((np.array(values) - np.mean(values, axis=0)) ** 2).sum(axis=0)
    ours = np.einsum("ij,jk,ik->i", terms, everything.covariance, terms)
    # The naive one counts the noise of comparisons between subjects twice.
    assert (ours <= 1.1 * naive).all() and (ours >= 0.6 * naive).all()


def test_intervals_hold_the_ratio_of_known_densities() -> None:
    at = np.array([0.15, 0.2, 0.25, 0.3])
    truth = MATED.logpdf(at) - OTHERS.logpdf(at)
    held = np.zeros(4)
    for seed in range(60):
        fitted = LikelihoodRatio.fit(ScoreCounts.of_pairs(*draw_pairs(seed, subjects=50)))
        limits = [fitted.interval(score) for score in at]
        held += [one.low <= value <= one.high for one, value in zip(limits, truth, strict=True)]
    assert (held >= 0.85 * 60).all()


def test_beyond_the_data_it_says_at_least_and_at_most() -> None:
    fitted = LikelihoodRatio.fit(ScoreCounts.of_pairs(*draw_pairs(2)))
    ratios = fitted.log_ratio(np.linspace(-1, 1, 401))
    assert (np.diff(ratios) >= 0).all()
    assert ratios[0] == fitted.log_ratio(fitted.low) and ratios[-1] == fitted.log_ratio(fitted.high)
    assert fitted.interval(1.0).high == np.inf and np.isfinite(fitted.interval(1.0).low)
    assert fitted.interval(-1.0).low == -np.inf and np.isfinite(fitted.interval(-1.0).high)


def test_costs_are_those_of_single_comparisons() -> None:
    scores, left, right = draw_pairs(3)
    counts = ScoreCounts.of_pairs(scores, left, right)
    ratios = 20 * (CENTRES - 0.3)
    each = ratios[cell_of(scores)]
    same = left == right
    naive = (np.log2(1 + np.exp(-each[same])).mean() + np.log2(1 + np.exp(each[~same])).mean()) / 2
    assert cllr(ratios, *counts.totals) == pytest.approx(naive)
    value, interval = cost_of(ratios, counts)
    assert value == pytest.approx(naive) and interval.low < value < interval.high
    assert cllr(np.zeros_like(ratios), *counts.totals) == pytest.approx(1)


def test_strangers_are_counted_at_or_above_a_score() -> None:
    scores, left, right = draw_pairs(4)
    counts = ScoreCounts.of_pairs(scores, left, right)
    fitted = LikelihoodRatio.fit(counts)
    others = scores[left != right]
    for score in (0.0, 0.2, 0.3):
        value, interval = fitted.stranger(score)
        assert value == pytest.approx((others >= score).mean(), rel=0.05)
        assert interval.low < value < interval.high


def test_a_file_gives_the_same_calibration() -> None:
    fitted = LikelihoodRatio.fit(ScoreCounts.of_pairs(*draw_pairs(5)))
    good = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in asdict(fitted).items()
    }
    read = from_dict(LikelihoodRatio, json.loads(json.dumps(good)), "a file")
    scores = np.linspace(-1, 1, 50)
    np.testing.assert_array_equal(read.log_ratio(scores), fitted.log_ratio(scores))
    assert read.interval(0.4) == fitted.interval(0.4)
    table, covariance = np.array(good["strangers"]), np.array(good["covariance"])
    sixty = {"knots": np.linspace(-1, 1, 60), "coefficients": np.zeros(60)}
    for damage in (
        {"low": None},
        {"coefficients": [1.0]},
        {"coefficients": [1e9, *good["coefficients"][1:]]},
        {"knots": "x"},
        {"knots": good["knots"][::-1]},
        {**sixty, "covariance": np.eye(60)},
        {"covariance": -covariance},
        {"covariance": 1e9 * covariance},
        {"effective": "60"},
        {"effective": math.inf},
        {"subjects": -5},
        {"mated": True},
        {"low": good["high"], "high": good["low"]},
        {"strangers": []},
        {"strangers": table * [1, 1, 1, 0]},
        {"strangers": table[::-1]},
    ):
        with pytest.raises((ValueError, FacerecError)):
            from_dict(LikelihoodRatio, {**good, **damage}, "a file")


@pytest.mark.parametrize("shift", [2.0, 0.0])
def test_what_cannot_be_calibrated_is_said(shift: float) -> None:
    scores, left, right = draw_pairs(6, subjects=5 if shift == 0 else 40)
    scores = np.where(left == right, np.clip(scores + shift, -1, 1), np.clip(scores - shift, -1, 1))
    with pytest.raises(MetricError, match="more people"):
        LikelihoodRatio.fit(ScoreCounts.of_pairs(scores, left, right))
