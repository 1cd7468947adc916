"""Plans against closed forms, and what they say; see `benchmarks/measures_fairness_plan.py` too."""

from __future__ import annotations

import math

import pytest
from scipy.stats import f as f_distribution
from scipy.stats import ncf

from facerec.errors import MetricError, RecipeError
from facerec.fairness.plan import plan
from facerec.fairness.plan_report import answer_table, power_figure
from facerec.fairness.population import DEFAULTS
from facerec.fairness.questions import (
    Design,
    Groups,
    IntervalQuestion,
    NormQuestion,
    Question,
    RateQuestion,
)
from facerec.fairness.variance_shares import minimum_detectable_eta2


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
    assert answer.limits is not None and answer.limits.low < answer.subjects < answer.limits.high
    assert answer.power.total == 400 and answer.sizes[0] == answer.sizes[1]


def test_the_smallest_effect_is_the_minimum_detectable_one() -> None:
    found = plan(NormQuestion(DEFAULTS), Groups((1.0, 1.0, 1.0)), [4], subjects=120, audits=400)
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
    found = plan(RateQuestion(DEFAULTS, "FMR", 9e-3), Groups(), [2], subjects=20, audits=50)
    (answer,) = found.answers
    assert answer.effect is None and answer.subjects == 0 and "20 subjects" in answer.reason
    assert found.to_json()["answers"][0]["power"]["value"] is None
    assert answer.reason in answer_table(found).cells[0][1].small


def test_people_are_whole_numbers() -> None:
    found = plan(NormQuestion(DEFAULTS), Groups(), [1], effect=5e-4, audits=50)
    (answer,) = found.answers
    assert answer.limits is not None and answer.limits.high > 1e4
    assert f"{answer.limits.high:,.0f}]" in answer_table(found).cells[0][1].small


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
        plan(question, Groups(), [images], effect=effect, subjects=people)


def test_groups_have_shares() -> None:
    with pytest.raises(RecipeError):
        Groups((1.0, 0.0))
    assert Groups((8.0, 1.0)).design(45, 2).sizes == (40, 10)
