"""A profile's parts add up, count what is there, and leave no trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.gloo_pool import GlooPool
from helpers.tiny_training import make_trainer, tiny_recipe, write_training_set
from torch import Tensor

from facerec.backbones import Backbone
from facerec.errors import RecipeError, TrainingError
from facerec.training import AdamW, Head, Recipe
from facerec.training import profile as profiles
from facerec.training.distributed import Processes
from facerec.training.plan import plan_step
from facerec.training.profile import (
    PHASES,
    REST,
    PhaseClock,
    Profile,
    product_rate,
    profile_steps,
)

CPU = torch.device("cpu")
PARTS = [*PHASES.values(), REST]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_set(tmp_path_factory.mktemp("records"), people=45, images=2)


@pytest.fixture(autouse=True)
def _small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "product_size", lambda device: 64)


# ---------------------------------------------------------------- the clock


def test_the_clock_adds_up_what_lies_in_its_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 10.0, 14.0, 20.0, 20.5])
    monkeypatch.setattr(profiles.time, "perf_counter", lambda: next(times))
    clock = PhaseClock(CPU)
    start = clock.restart()
    with clock("a"):
        pass
    with clock("b"):
        pass
    with pytest.raises(KeyError), clock("a"):
        raise KeyError
    assert clock.totals() == {"a": 2.5, "b": 4.0}
    assert clock.seconds(start, 8.0) == 8.0
    times = iter([30.0])
    clock.restart()
    assert clock.totals() == {}


def test_product_rate_counts_two_operations_an_element(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(profiles.time, "perf_counter", lambda: 0.25 * next(ticks))
    before = torch.get_float32_matmul_precision()
    assert product_rate(CPU, "fp32") == 2 * 64**3 / 0.25
    assert torch.get_float32_matmul_precision() == before


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"on_nonfinite": "skip"},
        {"optimizer": AdamW(), "head": Head(sample_rate=0.5), "ema": 0.9},
        {"head": Head(sample_rate=0.5), "accumulation": 2, "regularizer": None},
    ],
    ids=str,
)
def test_parts_add_up_and_known_memory_is_that_of_the_tensors(
    data: Path, changes: dict[str, Any]
) -> None:
    recipe = tiny_recipe(data, **changes)
    trainer = make_trainer(recipe)
    found = profile_steps(trainer, 2)
    assert trainer.step == 5 and found.steps == 2
    assert list(found.phases) == PARTS
    assert all(seconds > 0 for seconds in found.phases.values())
    assert sum(found.phases.values()) == pytest.approx(found.seconds, rel=1e-9)

    def size(values: Any) -> int:
        return sum(value.nbytes for value in values if isinstance(value, Tensor))

    fc, head = trainer.backbone.fc, trainer.head  # type: ignore[union-attr]
    assert found.memory["backbone: weights"] == 4 * (192 * 16 + 16) == size(fc.parameters())
    average = found.memory.get("backbone: moving average", 0)
    assert average == (found.memory["backbone: weights"] if "ema" in changes else 0)
    assert found.memory["backbone: gradients"] == 4 * (192 * 16 + 16)
    assert found.memory["head: class centres"] == 4 * 45 * 16 + 8  # and the count of steps
    rows = 22 if "head" in changes else 45
    kept = "on_nonfinite" in changes or "accumulation" in changes
    assert found.memory["head: gradient"] == (rows * 4 * 16 if kept else 0)
    state = trainer.optimizer.state
    assert found.memory["head: optimizer state"] == size(state[head.weight].values())
    assert found.memory["backbone: optimizer state"] == sum(
        size(state[p].values()) for p in fc.parameters()
    )
    # Forward and twice as much backward, and four products of the head.
    assert found.flop == 3 * 12 * 2 * 192 * 16 + 8 * 12 * rows * 16
    assert found.rate == found.flop / found.seconds
    assert found.product == "fp32" and found.product_rate == found.product_rates["fp32"]


def test_recomputing_counts_as_a_fourth_pass(data: Path) -> None:
    narrow = tiny_recipe(data, backbone=Backbone(name="mbf", embedding_size=16, width=0.25))
    heads = 8 * 12 * 45 * 16
    flop = [
        profiles._flop(make_trainer(replace(narrow, recompute=recompute))) - heads
        for recompute in (False, True)
    ]
    assert flop[1] * 3 == flop[0] * 4


@pytest.mark.parametrize("head", [Head(centers_per_class=3), Head(sample_rate=0.5)])
def test_the_flop_are_those_of_the_plan(data: Path, head: Head) -> None:
    recipe = tiny_recipe(data, head=head)
    plan = plan_step(recipe, 45, device="cpu")
    assert profiles._flop(make_trainer(recipe)) == plan.backbone_flop + plan.head_flop


def test_the_ranges_are_the_trainers_own_again(data: Path) -> None:
    trainer = make_trainer(tiny_recipe(data))
    before = trainer.phase
    with pytest.raises(TrainingError):
        with torch.no_grad():
            trainer.head.weight.fill_(float("nan"))
        profile_steps(trainer, 2)
    assert trainer.phase is before


@pytest.mark.parametrize(
    ("steps", "changes", "sentence"),
    [
        (0, {}, "profile_steps must be at least 1, found 0"),
        (12, {}, "has 14 steps, too few to measure 12 after 3 that warm up"),
        (9, {"workers": 2}, "has 14 steps, too few to measure 9 after 7 that warm up"),
    ],
)
def test_too_few_steps_are_refused(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    changes: dict[str, Any],
    sentence: str,
) -> None:
    monkeypatch.setattr("facerec.training.trainer.available_cores", lambda: 4)
    with pytest.raises(RecipeError, match=sentence):
        profile_steps(make_trainer(tiny_recipe(data, **changes)), steps)


def profile_of_a_rank(group: Any, recipe: Recipe) -> Profile:
    trainer = make_trainer(recipe, processes=Processes(group.rank(), group.size(), CPU))
    return profile_steps(trainer, 1)


@pytest.mark.integration
def test_two_ranks_measure_together(data: Path, tmp_path: Path) -> None:
    pool = GlooPool(2, tmp_path)
    try:
        found = pool.run(2, profile_of_a_rank, tiny_recipe(data))
    finally:
        pool.close()
    for profile, rows in zip(found, (23, 22), strict=True):
        assert sum(profile.phases.values()) == pytest.approx(profile.seconds, rel=1e-9)
        assert profile.flop == 3 * 6 * 2 * 192 * 16 + 8 * 12 * rows * 16
        assert profile.memory["head: gradient"] == 0  # each tile's is used up at once
