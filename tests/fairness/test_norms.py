from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.stats
from helpers import toy_norms

from facerec.fairness.norms import (
    SubjectNorms,
    between_sd,
    norm_figures,
    variance_interval,
    within_interval,
)
from facerec.fairness.rows import BETWEEN, NORM, WITHIN
from facerec.verification.evaluation import mean_interval

draw = partial(toy_norms.draw, images=(1, 8))


def naive_figures(images: list[np.ndarray]) -> dict[str, float]:
    """Take one array of norms a subject and compute everything in plain words."""
    values = np.concatenate(images)
    within = sum(((norms - norms.mean()) ** 2).sum() for norms in images)
    msw = within / (len(values) - len(images))
    spread = np.var([norms.mean() for norms in images], ddof=1)
    return {
        NORM: np.mean([norms.mean() for norms in images]),
        WITHIN: math.sqrt(msw),
        BETWEEN: math.sqrt(max(0, spread - msw * np.mean([1 / len(n) for n in images]))),
    }


def by_subject(sample: SubjectNorms, group: int) -> list[np.ndarray]:
    return [sample.norms[sample.subjects == s] for s in np.flatnonzero(sample.groups == group)]


@pytest.mark.parametrize("seed", range(3))
def test_figures_equal_plain_words(seed: int) -> None:
    sample = draw(seed)
    found = norm_figures(sample)
    everyone = [norms for g in range(3) for norms in by_subject(sample, g)]
    assert list(found) == ["a", "b", "c", "all groups"]
    for g, name in enumerate(found):
        images = everyone if name == "all groups" else by_subject(sample, g)
        for figure, expected in naive_figures(images).items():
            one = found[name][figure]
            assert one.value == pytest.approx(expected, rel=1e-10) and one.total == len(images)
            assert one.low <= one.value <= one.high


def test_the_interval_of_a_mean_is_students() -> None:
    means = [norms.mean() for norms in by_subject(draw(1), 0)]
    expected = scipy.stats.ttest_1samp(means, 20).confidence_interval(0.95)
    found = norm_figures(draw(1))["a"][NORM]
    assert (found.low, found.high) == pytest.approx(expected)
    alike = replace(draw(1), norms=np.full(draw(1).norms.size, 0.1))
    assert norm_figures(alike)["a"][NORM].interval is None


def test_variance_interval_by_bonetts_formula() -> None:
    values = np.random.default_rng(3).gamma(2, 1, 16)
    trimmed = np.sort(values)[2:-2].mean()  # 16 / (2 √12) = 2.3 off either end
    squares = (values - values.mean()) ** 2
    kurtosis = 16 * ((values - trimmed) ** 4).sum() / squares.sum() ** 2
    factor = 16 / (16 - scipy.stats.norm.isf(0.025))
    margin = scipy.stats.t.isf(0.025, 15) * factor * math.sqrt((kurtosis - 13 / 16) / 15)
    expected = factor * squares.sum() / 15 * np.exp([-margin, margin])
    assert variance_interval(values) == pytest.approx(expected)
    assert variance_interval(values[:2]) is None and variance_interval(np.full(9, 0.1)) is None
    for count in (3, 4, 5, 6):
        low, high = variance_interval(values[:count])
        assert low < values[:count].var(ddof=1) < high


def test_within_interval_by_leaving_subjects_out() -> None:
    images = [norms for norms in by_subject(draw(2), 1) if len(norms) > 1]
    squares = np.array([((n - n.mean()) ** 2).sum() for n in images])
    counts = np.array([len(n) for n in images])

    def logarithm(kept: list[np.ndarray]) -> float:
        return math.log(naive_figures(kept)[WITHIN] ** 2)

    n = len(images)
    left = np.array([logarithm([x for i, x in enumerate(images) if i != j]) for j in range(n)])
    middle = n * logarithm(images) - (n - 1) * left.mean()
    error = math.sqrt((n - 1) / n * ((left - left.mean()) ** 2).sum())
    freedom = (counts - 1).sum() ** 2 / ((counts - 1) ** 2).sum() - 1
    margin = scipy.stats.t.isf(0.025, freedom) * error
    assert within_interval(squares, counts) == pytest.approx(
        (math.exp(middle - margin), math.exp(middle + margin))
    )
    assert within_interval(squares[:1], counts[:1]) is None
    assert within_interval(np.array([0.0, 2.0]), np.array([2, 2])) is None


def test_intervals_cover_with_very_uneven_image_counts() -> None:
    """Nominal 95 % of the mean of 20 subjects and of the SD between them."""
    generator = np.random.default_rng(0)
    covered = np.zeros(2)
    for _ in range(400):
        counts = np.minimum(generator.zipf(1.8, 20), 80).astype(float)
        means = generator.normal(0, np.sqrt(1 + 1 / counts))
        squares = generator.chisquare(np.maximum(counts - 1, 1e-9))
        mean = mean_interval(means, np.arange(20))
        _, between = between_sd(means, squares, counts)
        covered += [mean.low <= 0 <= mean.high, between.low <= 1 <= between.high]
    assert (covered / 400 > 0.92).all() and (covered / 400 < 0.995).all()
