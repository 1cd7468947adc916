"""Plans against closed forms and a simulator written down again in plain numpy and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import f as f_distribution
from scipy.stats import multivariate_normal, ncf, norm

from facerec.errors import MetricError, RecipeError
from facerec.fairness.association import minimum_detectable_eta2
from facerec.fairness.plan import (
    Design,
    Groups,
    IntervalQuestion,
    NormQuestion,
    Question,
    RateQuestion,
    answer_table,
    plan,
    power_figure,
)
from facerec.fairness.population import DEFAULTS


def noncentral_f_power(sizes: tuple[int, ...], eta2: float) -> float:
    people, groups = sum(sizes), len(sizes)
    critical = f_distribution.ppf(0.95, groups - 1, people - groups)
    return float(ncf.sf(critical, groups - 1, people - groups, people * eta2 / (1 - eta2)))


@pytest.mark.parametrize(
    ("sizes", "eta2"), [((60, 60), 0.06), ((25, 25, 25, 25), 0.1), ((40, 40), 1e-9)]
)
def test_power_on_norms_is_that_of_the_noncentral_f(sizes: tuple[int, ...], eta2: float) -> None:
    audits = 600
    found = NormQuestion(DEFAULTS).count(Design(sizes, 5), eta2, audits, [1])
    expected = noncentral_f_power(sizes, eta2)
    error = math.sqrt(expected * (1 - expected) / audits)
    assert abs(found / audits - expected) < 0.01 + 3 * error


def test_people_searched_for_norms_are_those_of_the_noncentral_f() -> None:
    found = plan(NormQuestion(DEFAULTS), Groups(), [3], effect=0.08, audits=400)
    (answer,) = found.answers
    assert abs(noncentral_f_power(answer.sizes, 0.08) - 0.8) < 0.05
    assert answer.limits is not None and answer.limits.low < answer.people < answer.limits.high
    assert answer.power.total == 400 and answer.sizes[0] == answer.sizes[1]


def test_the_smallest_effect_is_the_minimum_detectable_one() -> None:
    found = plan(NormQuestion(DEFAULTS), Groups((1.0, 1.0, 1.0)), [4], people=120, audits=400)
    (answer,) = found.answers
    expected = minimum_detectable_eta2(120, 3)
    assert answer.effect is not None and expected is not None
    assert answer.effect == pytest.approx(expected, rel=0.15)


def test_more_images_make_the_difference_of_means_easier_to_find() -> None:
    question = NormQuestion(DEFAULTS, "difference")
    design = [Design((50, 50), images) for images in (1, 20)]
    ratios = [question.shift(one, 0.4) / DEFAULTS.norms.of_means(one.images) for one in design]
    icc = DEFAULTS.norms.between**2 / DEFAULTS.norms.total**2
    assert ratios[0] == pytest.approx(0.4)
    assert ratios[1] == pytest.approx(0.4 / math.sqrt(icc + (1 - icc) / 20))
    counts = [question.count(one, 0.4, 300, [2]) for one in design]
    for one, count in zip(design, counts, strict=True):
        ratio = question.shift(one, 0.4) / DEFAULTS.norms.of_means(one.images)
        eta2 = ratio**2 / 4 / (1 + ratio**2 / 4)
        assert abs(count / 300 - noncentral_f_power(one.sizes, eta2)) < 0.1


def dense_false_matches(
    rng: np.random.Generator, people: int, images: int, fmr: float
) -> np.ndarray:
    """Every pair of people has a chance of its own, drawn for each: ``(G, G)`` counts."""
    spread = DEFAULTS.at(fmr)
    factor = rng.lognormal(-spread.persons / 2, math.sqrt(spread.persons), people)
    mean = np.minimum(fmr * np.outer(factor, factor), 0.9)
    rest = (1 - spread.concordance) / spread.concordance
    chance = rng.beta(mean * rest, (1 - mean) * rest)
    counts = np.triu(rng.binomial(images**2, chance), 1)
    return counts + counts.T


def log_variance(counts: np.ndarray, images: int) -> tuple[float, float, int]:
    """Rate, variance of its logarithm and events, from all pairs of comparisons that share."""
    people = len(counts)
    made = images**2 * (1 - np.eye(people))
    rate = counts.sum() / made.sum()
    residual = counts - rate * made
    by_person = residual.sum(axis=1)
    cells = (residual**2).sum() / 2
    comparisons = made.sum() / 2
    plug_in = (cells + max(0.0, (by_person**2).sum() - 2 * cells)) / comparisons**2
    plug_in = max(plug_in, rate * (1 - rate) / comparisons)
    return rate, plug_in * (people / (people - 2)) ** 2 / rate**2, round(counts.sum() / 2)


def test_power_on_fmr_is_that_of_a_simulator_of_all_pairs() -> None:
    people, images, rate, ratio, audits = 60, 4, 4e-3, 2.2, 120
    question = RateQuestion(DEFAULTS, "FMR", rate)
    found = question.count(Design((people, people), images), ratio, audits, [3]) / audits
    rng = np.random.default_rng(4)
    noise = rng.standard_t(people - 1, (2, 4000))
    rejected = 0
    for _ in range(audits):
        low, high = (
            log_variance(dense_false_matches(rng, people, images, r), images)
            for r in (rate, rate * ratio)
        )
        if min(low[2], high[2]) < 3 or max(low[2], high[2]) < 30:
            continue
        gap = abs(math.log(high[0] / low[0]))
        equal = np.abs(noise[0] * math.sqrt(low[1]) - noise[1] * math.sqrt(high[1]))
        rejected += np.mean(equal >= gap) < 0.05
    other = rejected / audits
    assert 0.3 < other < 0.95
    assert abs(found - other) < 0.03 + 3 * math.sqrt(2 * other * (1 - other) / audits)


def test_power_on_fnmr_is_that_of_a_normal_test_of_log_rates() -> None:
    people, images, rate, ratio, audits = 150, 4, 0.1, 1.6, 120
    question = RateQuestion(DEFAULTS, "FNMR", rate)
    found = question.count(Design((people, people), images), ratio, audits, [5]) / audits
    spread = DEFAULTS.misses
    # Covariances of all pairs of comparisons, from bivariate normals.
    pairs = [(a, b) for a in range(images) for b in range(a)]
    rng = np.random.default_rng(6)
    rejected = 0
    mix = np.zeros((len(pairs), len(pairs)))
    for i, one in enumerate(pairs):
        for j, other in enumerate(pairs):
            mix[i, j] = spread.person + spread.image * len({*one} & {*other}) if i != j else 1.0
    scores = multivariate_normal(cov=mix, allow_singular=True, seed=rng)
    for _ in range(audits):
        logs, errors = [], []
        for r in (rate, rate * ratio):
            misses = (scores.rvs(people) < norm.ppf(r)).sum(axis=1)
            share = misses.mean() / len(pairs)
            logs.append(math.log(share))
            errors.append(misses.var() / people / len(pairs) ** 2 / share**2)
        rejected += abs(logs[0] - logs[1]) > 1.97 * math.sqrt(sum(errors))
    other = rejected / audits
    assert 0.3 < other < 0.95
    assert abs(found - other) < 0.03 + 3 * math.sqrt(2 * other * (1 - other) / audits)


@pytest.mark.parametrize("of", ["FMR", "FNMR"])
def test_the_width_of_an_interval_falls_with_people(of: str) -> None:
    rate = 5e-3 if of == "FMR" else 0.1
    question = IntervalQuestion(DEFAULTS, of, rate)  # type: ignore[arg-type]
    counts = [question.count(Design((people,), 4), 0.4, 60, [7]) for people in (30, 500)]
    assert counts[0] < 10 and counts[1] > 50


def test_people_searched_for_a_width_reach_it() -> None:
    found = plan(
        IntervalQuestion(DEFAULTS, "FNMR", 0.1), Groups((1.0,)), [4], effect=0.4, audits=100
    )
    (answer,) = found.answers
    again = found.question.count(Design(answer.sizes, 4), 0.4, 400, [8]) / 400
    assert abs(again - 0.8) < 0.15


def test_out_of_reach_is_said() -> None:
    found = plan(RateQuestion(DEFAULTS, "FMR", 9e-3), Groups(), [2], people=20, audits=50)
    (answer,) = found.answers
    assert answer.effect is None and answer.people == 0 and "20 people" in answer.reason
    assert found.to_json()["answers"][0]["power"]["value"] is None
    assert answer.reason in answer_table(found).cells[0][1].small


def test_a_plan_as_json_and_picture() -> None:
    found = plan(NormQuestion(DEFAULTS), Groups((3.0, 1.0)), [1, 4], effect=0.15, audits=50)
    document = found.to_json()
    assert [row["images_per_person"] for row in document["answers"]] == [1, 4]
    first = document["answers"][0]
    assert first["people"] == sum(first["people_by_group"])
    assert first["people_by_group"][0] == pytest.approx(3 * first["people_by_group"][1], abs=2)
    assert {row["audits"] if "audits" in row else row["n"] for row in first["curve"]} == {50}
    assert document["components"]["source"]["norms"]
    figure = power_figure(found)
    assert figure is not None and len(figure.axes[0].lines) >= 3
    again = plan(NormQuestion(DEFAULTS), Groups((3.0, 1.0)), [1, 4], effect=0.15, audits=50)
    assert again.to_json() == document


@pytest.mark.parametrize(
    ("question", "images", "effect", "people"),
    [
        (NormQuestion(DEFAULTS), 2, None, None),
        (NormQuestion(DEFAULTS), 2, 0.1, 100),
        (RateQuestion(DEFAULTS, "FMR", 1e-3), 1, 2.0, None),
        (RateQuestion(DEFAULTS, "FMR", 1e-3), 2, 11.0, None),
        (RateQuestion(DEFAULTS, "FNMR", 0.2), 2, 1.0, None),
        (IntervalQuestion(DEFAULTS, "FMR", 1e-3), 2, 0.0, None),
    ],
)
def test_what_cannot_be_planned(
    question: Question, images: int, effect: float | None, people: int | None
) -> None:
    with pytest.raises(MetricError):
        plan(question, Groups(), [images], effect=effect, people=people)


def test_groups_have_shares() -> None:
    with pytest.raises(RecipeError):
        Groups((1.0, 0.0))
    assert Groups((8.0, 1.0)).design(45, 2).sizes == (40, 10)
