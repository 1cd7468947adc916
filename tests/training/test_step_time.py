"""Predicted step times: arithmetic by hand, and steps that others have published."""

from __future__ import annotations

import math
import typing
from dataclasses import replace
from pathlib import Path

import pytest

from facerec.backbones import Backbone
from facerec.commands.plan import CardName
from facerec.errors import RecipeError
from facerec.training import Head, Recipe
from facerec.training import step_time as times
from facerec.training.plan import Plan, forward_flop, plan_step
from facerec.training.step_time import (
    CARDS,
    FACEREC,
    FACEREC_EAGER,
    REFERENCE,
    activation_bytes,
    measured_card,
    predict,
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = Backbone("iresnet18", embedding_size=64, width=0.125)
H100 = CARDS["H100"]


@pytest.fixture(scope="module")
def plan() -> Plan:
    recipe = Recipe(backbone=SMALL, head=Head(precision="bf16"), batch_size=64, precision="bf16")
    return plan_step(recipe, 5000)


def parts(plan: Plan, *arguments: object, **options: object) -> dict[str, float]:
    return dict(predict(plan, *arguments, **options).phases)  # type: ignore[arg-type]


def test_every_card_can_be_named() -> None:
    assert typing.get_args(CardName) == tuple(CARDS)


def test_parts_follow_rates_and_bytes(plan: Plan) -> None:
    found = parts(plan, H100)
    flop = 3 * 64 * forward_flop(SMALL)
    assert math.isclose(found["backbone: convolutions"], flop / (0.6 * 989.4e12))
    assert math.isclose(found["head: products"], 8 * 64 * 5000 * 64 / (0.7 * 989.4e12))
    moved = 64 * activation_bytes(SMALL, True).compiled
    assert math.isclose(found["backbone: passes over activations"], moved / (0.8 * 3350e9))
    # SGD reads gradient, weight and momentum, and writes the latter two.
    numbers = 5000 * 64 + plan.backbone_numbers
    assert math.isclose(found["optimizer"], 20 * numbers / (0.8 * 3350e9))
    assert found["network, as far as not hidden"] == 0
    total = predict(plan, H100)
    assert math.isclose(total.seconds, sum(found.values()))
    assert math.isclose(total.images_per_second * total.seconds, 64)


def test_every_centre_of_a_class_takes_the_time_of_a_class(plan: Plan) -> None:
    head = replace(plan.recipe.head, centers_per_class=3)
    found = parts(plan_step(replace(plan.recipe, head=head), 5000), H100)
    wanted = parts(plan_step(plan.recipe, 3 * 5000), H100)
    for name in ("head: products", "head: passes over logits and centres", "optimizer"):
        assert math.isclose(found[name], wanted[name])


def test_a_faster_card_and_a_compiler_take_less_time(plan: Plan) -> None:
    speed = [predict(plan, CARDS[name]).images_per_second for name in ("V100", "A100", "H100")]
    assert speed == sorted(speed)
    assert predict(plan, H100, FACEREC_EAGER).seconds > predict(plan, H100, FACEREC).seconds
    assert predict(plan, H100, REFERENCE).seconds > predict(plan, H100, FACEREC_EAGER).seconds


def test_measured_rates_take_the_place_of_the_data_sheets(plan: Plan) -> None:
    card = measured_card(H100, 0.8 * H100.half, 3.0e12)
    assert math.isclose(card.tf32, 0.8 * H100.tf32) and card.bandwidth == 3.0e12
    before, after = parts(plan, H100), parts(plan, card)
    assert math.isclose(after["backbone: convolutions"], before["backbone: convolutions"] / 0.8)
    assert math.isclose(after["optimizer"], before["optimizer"] * 3350 / 3000)
    assert measured_card(H100, None, None) == H100


def test_gradients_travel_behind_the_backward_pass() -> None:
    recipe = Recipe(backbone=SMALL, batch_size=64, precision="bf16")
    plan = plan_step(recipe, 5000, ranks=4)
    slow = replace(H100, link=1e6)
    name = "network, as far as not hidden"
    assert parts(plan, H100)[name] < plan.traffic / H100.link
    assert 0.9 < parts(plan, slow)[name] / (plan.traffic / slow.link) <= 1


def test_bytes_of_activations_by_hand() -> None:
    """The passes of an iResNet's batch norms, PReLUs and sums, counted layer by layer."""
    widths = (16, 16, 16, 32, 64)  # of SMALL: 64, 64, 128, 256, 512 / 8, at least 16
    moved = activation_bytes(SMALL, False)
    pixels = 112 * 112
    norms = pixels * widths[0]  # numbers that the batch norms see
    for stage, width in enumerate(widths[1:], start=1):
        before, after = pixels >> 2 * (stage - 1), pixels >> 2 * stage
        inputs = widths[stage - 1]
        norms += before * inputs + before * width + 2 * after * width  # the strided block
        norms += 3 * after * width
    norms += 7 * 7 * widths[-1] + 64
    # Forward: two reads and a write; backward: x and its gradient twice, and a write.
    assert math.isclose(moved.compiled, 4 * norms * (3 + 5), rel_tol=0.15)
    assert moved.compiled < moved.eager < 2 * moved.compiled


def test_a_cpu_has_no_time() -> None:
    plan = plan_step(Recipe(backbone=SMALL, batch_size=4), 10, device="cpu")
    with pytest.raises(RecipeError, match="GPUs"):
        predict(plan, H100)


@pytest.mark.integration
def test_published_steps_are_predicted_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import measures_planned_speed as measures

    rows = {row.measure.removesuffix(" (fitted)"): row for row in measures.planned_speed()}
    assert len(rows) == len(measures.PUBLISHED)
    page = (BENCHMARKS.parent / "docs" / "performance.md").read_text()
    lines = page.splitlines()
    for step in measures.PUBLISHED:
        row = rows[step.name]
        assert row.value is not None and abs(row.value) < 50
        (line,) = (line for line in lines if line.startswith(f"| {step.name}"))
        error = f"{row.value:+.0f} %".replace("-", "−")
        assert f"**{error}**" in line if abs(row.value) >= measures.NAMED else f" {error} " in line
    # What was not fitted is within a third, but for what its authors call float32.
    others = [abs(rows[s.name].value) for s in measures.PUBLISHED if not s.fitted]  # type: ignore[arg-type]
    assert sum(error < 33 for error in others) >= len(others) - 1
    assert times.REFERENCE.passes < 1
