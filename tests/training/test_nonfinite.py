"""Steps that are not finite: they end training, or leave no trace on any rank."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.lives import Ranks, noisy_recipe
from helpers.tiny_training import make_trainer, tiny_recipe, weights, write_training_set

from facerec.errors import TrainingError
from facerec.heads import SEC, AdaFace, CosFace, L2Norm, RingLoss, SphereFace2017
from facerec.records.dataset import Batch
from facerec.training import AdamW, Checkpoints, Head, Recipe, checkpoint
from facerec.training import network as module
from facerec.training.distributed import Processes, launched
from facerec.training.nonfinite import LIMIT, NonfiniteGuard
from facerec.training.trainer import Trainer

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_set(tmp_path_factory.mktemp("records"))


def poison_images(trainer: Trainer, steps: Iterable[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one image of this rank NaN at the given steps."""
    normalize, steps = module.normalize, set(steps)

    def poisoned(*arguments: object) -> torch.Tensor:
        images = normalize(*arguments)  # type: ignore[arg-type]
        if trainer.learner.step in steps:
            images[-1] = torch.nan
        return images

    monkeypatch.setattr(module, "normalize", poisoned)


def leave_out(trainer: Trainer, steps: Iterable[int]) -> None:
    """Go over the given steps as if they had been done, their random numbers drawn."""
    step, steps = trainer.learner.train_step, set(steps)

    def train_step(batch: Batch) -> dict[str, torch.Tensor]:
        if trainer.learner.step not in steps:
            return step(batch)
        before = {name: value.clone() for name, value in everything(trainer).items()}
        scale = trainer.learner.scaler.state_dict()
        figures = step(batch)
        trainer.learner.scaler.load_state_dict(scale)
        with torch.no_grad():
            for name, value in everything(trainer).items():
                if name in before:
                    value.copy_(before[name])
                else:  # the optimizer's first step
                    trainer.learner.optimizer.state.clear()
        return figures

    trainer.learner.train_step = train_step  # type: ignore[method-assign]


def everything(trainer: Trainer) -> dict[str, torch.Tensor]:
    tensors = trainer.learner.state.tensors()
    return tensors


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


RECIPES = {
    "sec": {"regularizer": SEC(weight=0.5, rho=0.5)},
    "adamw-accumulation": {"optimizer": AdamW(lr=1e-2), "accumulation": 2},
    "adaface": {"margin": AdaFace(t_alpha=0.3), "regularizer": None},
    "annealed": {"margin": SphereFace2017(), "regularizer": L2Norm(weight=0.01)},
    "ring": {"margin": CosFace(scale=16.0), "regularizer": RingLoss(weight=0.1)},
    "sampled": {"head": Head(sample_rate=0.5)},
    "fp16": {"precision": "fp16", "optimizer": AdamW(lr=1e-2)},
}


@pytest.mark.parametrize("changes", RECIPES.values(), ids=RECIPES.keys())
@pytest.mark.parametrize("steps", [{0}, {3, 4}], ids=str)
def test_a_skipped_step_leaves_no_trace(
    data: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], steps: set[int]
) -> None:
    recipe = noisy_recipe(data, **changes)
    expected = make_trainer(recipe)
    leave_out(expected, steps)
    expected.fit()
    trainer = make_trainer(replace(recipe, on_nonfinite="skip"))
    poison_images(trainer, steps, monkeypatch)
    trainer.fit()
    assert trainer.learner.step == 8 and trainer.learner.guard is not None
    assert trainer.learner.guard.count == len(steps)
    assert_same(weights(expected), weights(trainer))
    assert trainer.learner.scaler.get_scale() == expected.learner.scaler.get_scale()


def test_skipping_changes_nothing_where_all_is_finite(data: Path) -> None:
    trainers = []
    for what in ("stop", "skip"):
        trainers.append(make_trainer(noisy_recipe(data, on_nonfinite=what)))
        trainers[-1].fit()
    assert_same(*map(weights, trainers))


def test_a_gradient_counts_where_the_loss_is_finite(
    data: Path,
) -> None:
    trainer = make_trainer(tiny_recipe(data, on_nonfinite="skip"))
    batch = next(trainer.batches())
    trainer.learner.train_step(batch)
    before = weights(trainer)
    keep = trainer.learner.centers.keep

    def spoilt(*arguments: Any) -> None:
        keep(*arguments)
        assert trainer.learner.head.weight.grad is not None
        trainer.learner.head.weight.grad[2] = torch.inf

    trainer.learner.centers.keep = spoilt  # type: ignore[method-assign]
    assert trainer.learner.train_step(batch)["loss"].isfinite()
    assert_same(before, weights(trainer))
    trainer.learner.centers.keep = keep  # type: ignore[method-assign]
    trainer.learner.train_step(batch)
    assert trainer.learner.guard is not None and (
        trainer.learner.guard.count,
        trainer.learner.guard.in_a_row,
    ) == (1, 0)
    assert not torch.equal(before["head.weight"], weights(trainer)["head.weight"])


def test_large_finite_gradients_are_finite() -> None:
    # The sum of their squares is not.
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.full((4,), 3e38)
    guard = NonfiniteGuard(torch.optim.SGD([weight]), [torch.zeros(1)], ALONE)
    assert not guard.undoes([torch.tensor(1.0)])
    assert guard.undoes([torch.tensor(1.0), torch.tensor(torch.inf)])


def test_counts_are_logged_and_kept(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = noisy_recipe(data, on_nonfinite="skip", checkpoints=Checkpoints(every_steps=4, keep=9))
    trainer = make_trainer(recipe, tmp_path)
    poison_images(trainer, {1, 3, 6}, monkeypatch)
    trainer.fit()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["nonfinite"] for line in lines] == [0, 1, 1, 2, 2, 2, 3, 3]
    assert [line["loss"] is None for line in lines] == [i in (1, 3, 6) for i in range(8)]
    for step, count in ((4, 2), (8, 3)):
        path = tmp_path / "checkpoints" / f"step-{step:08d}" / "state.json"
        assert json.loads(path.read_text())["nonfinite"] == count
    resumed = make_trainer(recipe, tmp_path)
    resumed.resume()
    assert resumed.learner.guard is not None and resumed.learner.guard.count == 3


def test_too_many_in_a_row_end_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = noisy_recipe(
        data, epochs=9, on_nonfinite="skip", checkpoints=Checkpoints(every_steps=3, keep=9)
    )
    trainer = make_trainer(recipe, tmp_path)
    # Nine in a row are not too many; then ten.
    poison_images(trainer, {*range(2, 11), *range(12, 30)}, monkeypatch)
    with pytest.raises(
        TrainingError,
        match=rf"^step {12 + LIMIT}: the last {LIMIT} steps were skipped because loss or gradient "
        r"was not finite; the last good checkpoint is .*step-00000021; lower the learning rate",
    ) as caught:
        trainer.fit()
    assert "\n" not in str(caught.value)
    last = checkpoint.latest(tmp_path / "checkpoints")
    assert last is not None and last.name == "step-00000021"
    assert all(value.isfinite().all() for value in weights(trainer).values())


def test_fp16_overflows_are_the_scaler_s(data: Path) -> None:
    runs = []
    for what in ("stop", "skip"):
        recipe = noisy_recipe(data, precision="fp16", optimizer=AdamW(lr=1e-2), on_nonfinite=what)
        trainer = make_trainer(recipe)
        # The loss times this is finite, the gradients in float16 are not.
        trainer.learner.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
        scales, step = [], trainer.learner.train_step

        def train_step(batch: Batch, step=step, scales=scales, trainer=trainer):  # type: ignore
            figures = step(batch)
            scales.append(trainer.learner.scaler.get_scale())
            return figures

        trainer.learner.train_step = train_step  # type: ignore[method-assign]
        trainer.fit()
        assert scales[-1] < 2.0**30
        runs.append((trainer, scales))
    (stop, scales), (skip, others) = runs
    assert scales == others
    assert_same(weights(stop), weights(skip))
    assert skip.learner.guard is not None and skip.learner.guard.count == 0


# ---------------------------------------------------------------- several ranks


def train_with_one_bad_rank(recipe: Recipe, bad: bool, folder: Path) -> None:
    with launched("cpu") as processes, pytest.MonkeyPatch.context() as patch:
        trainer = make_trainer(recipe, processes=processes)
        if not bad:
            leave_out(trainer, {2, 5})
        elif processes.rank == 1:
            poison_images(trainer, {2, 5}, patch)
        trainer.fit()
        assert not bad or (trainer.learner.guard is not None and trainer.learner.guard.count == 2)
        torch.save(weights(trainer), folder / f"{bad}{processes.rank}.pt")
        del trainer


@pytest.mark.integration
def test_all_ranks_skip_what_is_not_finite_on_one(data: Path, tmp_path: Path) -> None:
    recipe = noisy_recipe(data, on_nonfinite="skip", optimizer=AdamW(lr=1e-2))
    for bad in (False, True):
        ranks = Ranks(2, tmp_path, train_with_one_bad_rank, recipe, bad, tmp_path)
        assert ranks.join() == [0, 0], ranks.log.read_text()
    for rank in (0, 1):
        expected, found = (torch.load(tmp_path / f"{bad}{rank}.pt") for bad in (False, True))
        assert_same(expected, found)
    assert all(value.isfinite().all() for value in found.values())
