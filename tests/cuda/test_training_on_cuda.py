"""Training steps, checkpoints, resuming, collectives and scoring on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from facerec.base.devices import has_fast_bf16
from facerec.heads import AdaFace, CosFace
from facerec.heads.collectives import all_gather, all_reduce_, gather_batch
from facerec.training import AdamW, Head
from facerec.verification.scoring import score_all_pairs
from tests.cuda.small import (
    a_batch,
    assert_same,
    no_host_waits,
    relative_error,
    small_recipe,
    state,
    trainer_on,
)

pytestmark = pytest.mark.cuda

CPU = torch.device("cpu")

RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulation": 2},
    "adamw": {"optimizer": AdamW(lr=1e-3)},
    "adaface": {"margin": AdaFace(scale=16.0)},
    "unpenalised": {"regularizer": None, "margin": CosFace(scale=16.0), "clip_norm": None},
}


@pytest.mark.parametrize("name", RECIPES)
def test_steps_equal_those_of_the_cpu(device: torch.device, name: str) -> None:
    recipe = small_recipe(**RECIPES[name])
    trainers = [trainer_on(where, recipe) for where in (CPU, device)]
    for start in (0, 16):
        batch = a_batch(start=start)
        losses = [trainer.learner.train_step(batch)["loss"] for trainer in trainers]
        assert relative_error(losses[1], losses[0]) < 1e-3
    expected, found = map(state, trainers)
    assert found.keys() == expected.keys()
    before = state(trainer_on(CPU, recipe))
    for key in ("head.weight", "backbone.fc.weight", "backbone.layer3.0.conv1.weight"):
        (full,) = (n for n in expected if n.endswith(key) and "optimizer" not in n)
        changed = expected[full] - before[full]
        assert relative_error(found[full] - before[full], changed) < 0.05


@pytest.mark.parametrize("sample_rate", [1.0, 0.5])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_step_learns_without_waiting_for_the_device(
    device: torch.device, precision: Any, sample_rate: float
) -> None:
    emulated = device.type == "cpu" and (precision == "fp16" or not has_fast_bf16(device))
    if emulated and precision != "fp32":
        pytest.skip(f"this CPU only emulates {precision}")
    head = Head(precision="bf16", sample_rate=sample_rate)
    recipe = small_recipe(precision=precision, head=head, deterministic=False, epochs=10)
    trainer = trainer_on(device, recipe)
    batch = a_batch(device)
    losses = [trainer.learner.train_step(batch)["loss"] for _ in range(4)]
    # The scaler alone may read whether a gradient was finite: torch does so in every step.
    if precision == "fp16":
        losses += [trainer.learner.train_step(batch)["loss"] for _ in range(8)]
        assert trainer.learner.stepper.scaler.get_scale() > 0
    else:
        with no_host_waits(device):
            losses += [trainer.learner.train_step(batch)["loss"] for _ in range(8)]
    values = torch.stack(losses).tolist()
    assert np.isfinite(values).all() and values[-1] < values[0]


def test_an_overflow_under_fp16_leaves_everything_as_it_was(
    device: torch.device, on_gpu: None
) -> None:
    trainer = trainer_on(device, small_recipe(precision="fp16"))
    trainer.learner.train_step(a_batch(device))
    trainer.learner.stepper.scaler.update(torch.tensor(2.0**60, device=device))
    before = {n: p.detach().clone() for n, p in trainer.learner.backbone.named_parameters()}
    centers = trainer.learner.head.weight.detach().clone()
    trainer.learner.train_step(a_batch(device, start=16))
    after = dict(trainer.learner.backbone.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(centers, trainer.learner.head.weight)
    assert trainer.learner.stepper.scaler.get_scale() < 2.0**60


def test_a_resumed_run_equals_one_that_was_never_stopped(
    device: torch.device, tmp_path: Path
) -> None:
    recipe = small_recipe(head=Head(sample_rate=0.5))
    whole = trainer_on(device, recipe, tmp_path / "whole")
    whole.fit(max_steps=6)
    first = trainer_on(device, recipe, tmp_path / "stopped")
    first.fit(max_steps=3)
    second = trainer_on(device, recipe, tmp_path / "stopped")
    second.resume()
    assert second.learner.step == 3
    second.fit(max_steps=6)
    assert_same(state(whole), state(second))


@pytest.mark.parametrize("there", ["to the CPU", "from the CPU"])
def test_a_checkpoint_moves_between_devices(
    device: torch.device, tmp_path: Path, there: str
) -> None:
    recipe = small_recipe()
    origin, target = (device, CPU) if there == "to the CPU" else (CPU, device)
    first = trainer_on(origin, recipe, tmp_path)
    first.fit(max_steps=2)
    second = trainer_on(target, recipe, tmp_path)
    second.resume()
    assert second.learner.step == 2 and second.learner.device == target
    assert_same(state(first), state(second))
    assert second.learner.train_step(a_batch(target))["loss"].isfinite()


def test_a_group_of_one_rank(device: torch.device, tmp_path: Path) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    recipe = small_recipe(head=Head(sample_rate=0.5))
    alone = trainer_on(device, recipe, tmp_path / "alone")
    alone.fit(max_steps=2)
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        tensor = torch.arange(6.0, device=device).view(3, 2)
        dist.all_reduce(tensor)
        gathered = torch.empty_like(tensor)
        dist.all_gather_into_tensor(gathered, tensor)
        assert torch.equal(gathered, tensor)
        assert torch.equal(all_gather(tensor), tensor)
        assert torch.equal(all_reduce_(tensor.clone()), tensor)
        assert torch.equal(gather_batch(tensor), tensor)
        trainer = trainer_on(device, recipe, tmp_path / "grouped")
        trainer.fit(max_steps=2)
        assert_same(state(alone), state(trainer))
    finally:
        dist.destroy_process_group()


def test_all_pairs(device: torch.device) -> None:
    generator = np.random.default_rng(0)
    person = np.arange(600) % 120
    vectors = generator.standard_normal((120, 32))[person] + generator.standard_normal((600, 32))
    options: dict[str, Any] = {"fpr": ("1e-2", "1e-3"), "tile": 128}
    expected = score_all_pairs(vectors, person, **options)
    found = score_all_pairs(vectors, person, device=device, **options)
    assert (found.mated, found.non_mated) == (expected.mated, expected.non_mated)
    for a, b in zip(found.points, expected.points, strict=True):
        assert abs(a.threshold - b.threshold) < 1e-5
        assert abs(a.fpr_realised - b.fpr_realised) < 1e-4


def test_a_compiled_step_equals_the_plain_one(device: torch.device, compiler: None) -> None:
    plain, compiled = (
        trainer_on(device, small_recipe(compile=compile)) for compile in (False, True)
    )
    automatic = trainer_on(device, small_recipe(compile="auto")).learner.compiled
    assert automatic == (device.type == "cuda")
    for start in (0, 16):
        batch = a_batch(device, start=start)
        first, second = (t.learner.train_step(batch)["loss"] for t in (plain, compiled))
        assert relative_error(second, first) < 1e-3
    with no_host_waits(device):
        compiled.learner.train_step(batch)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16", "head": Head(precision="bf16")},
        {"precision": "bf16", "ema": 0.9},
        {"precision": "bf16", "recompute": True},
    ],
    ids=["bf16", "with a moving average", "recomputed"],
)
def test_compiled_steps_in_bf16_follow_plain_ones(
    device: torch.device, compiler: None, changes: dict[str, Any]
) -> None:
    if not has_fast_bf16(device):
        pytest.skip("this CPU only emulates bf16")
    recipe = small_recipe(deterministic=False, **{"compile": True, **changes})
    compiled = trainer_on(device, recipe)
    changes = changes | {"compile": False, "recompute": False}
    plain = trainer_on(device, small_recipe(deterministic=False, **changes))
    for start in (0, 16, 32, 48, 64):
        batch = a_batch(device, start=start)
        first, second = (t.learner.train_step(batch)["loss"].clone() for t in (plain, compiled))
        assert relative_error(second, first) < 3e-2
    weight = compiled.learner.head.weight
    changed = relative_error(weight, trainer_on(device, recipe).learner.head.weight)
    assert changed > 0 and relative_error(weight, plain.learner.head.weight) < 0.3 * changed
    with no_host_waits(device):
        compiled.learner.train_step(batch)


def test_a_compiled_step_in_a_group_of_one_rank(
    device: torch.device, compiler: None, tmp_path: Path
) -> None:
    recipe = small_recipe(compile=True)
    alone = trainer_on(device, recipe)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        grouped = trainer_on(device, recipe)
        for start in (0, 16):
            batch = a_batch(device, start=start)
            first, second = (t.learner.train_step(batch)["loss"].clone() for t in (alone, grouped))
            assert relative_error(second, first) < 1e-3
    finally:
        dist.destroy_process_group()
