"""The trainer: micro-batches, ranks, interruptions and faults change nothing they should not."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.lives import noisy_recipe
from helpers.thin import thinned
from helpers.tiny_training import make_trainer, narrow_recipe, tiny_recipe, weights
from helpers.training_runs import (
    assert_close,
    assert_resumes,
    assert_same,
    gone_on,
    joined,
    over_ranks,
    trained,
)

from facerec.backbones import Backbone
from facerec.base.errors import CheckpointError, TrainingError
from facerec.heads import SEC, AdaFace, CosFace, L2Norm, RingLoss, SphereFace2017
from facerec.heads.output import Figures
from facerec.records.dataset import Batch
from facerec.training import Adam, AdamW, Checkpoints, Head, RMSprop, checkpoint


def test_training_lowers_the_loss_and_evens_the_norms(data: Path) -> None:
    trainer = make_trainer(tiny_recipe(data, epochs=20))
    history = []
    step = trainer.learner.train_step
    trainer.learner.train_step = lambda batch: history.append(step(batch)) or history[-1]  # type: ignore
    trainer.fit()
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert history[-1]["target_cosine"] > history[0]["target_cosine"] + 0.3
    spread = [f["norm_variance"].sqrt() / f["norm_mean"] for f in (history[-1], history[0])]
    assert spread[0] < 0.7 * spread[1]


PENALTIES = [
    None,
    SEC(weight=0.5, rho=0.3),
    SEC(weight=0.5, p=1, relative=True, schedule="linear"),
    L2Norm(weight=0.01),
    RingLoss(weight=0.1),
]


SAMPLED = {"head": Head(sample_rate=0.5)}
"""Half of the classes of a step, drawn at random; the data `many` has more than a batch shows."""


@pytest.mark.parametrize("changes", [*({"regularizer": p} for p in PENALTIES), SAMPLED], ids=str)
@pytest.mark.parametrize("count", [2, 3])
def test_micro_batches_add_up_to_the_batch(
    data: Path, many: Path, changes: dict[str, object], count: int
) -> None:
    recipe = tiny_recipe(many if changes is SAMPLED else data, **changes)
    assert_close(weights(trained(recipe)), weights(trained(replace(recipe, accumulation=count))))


def test_only_drawn_classes_change(many: Path) -> None:
    trainer = make_trainer(tiny_recipe(many, head=Head(sample_rate=0.3)))
    before = trainer.learner.head.weight.detach().clone()
    batch = next(trainer.batches())
    trainer.learner.train_step(batch)
    drawn = trainer.learner.head.classes
    assert drawn is not None and len(drawn) == 13
    assert set(batch.labels.tolist()) <= set(drawn.tolist())
    changed = (trainer.learner.head.weight != before).any(dim=1).nonzero()[:, 0]
    assert torch.equal(changed, drawn)


def test_the_pass_for_the_mean_norm_leaves_no_trace(data: Path) -> None:
    trainer = make_trainer(narrow_recipe(data, accumulation=2))
    batch = next(trainer.batches())
    images = torch.randint(256, (6, 112, 112, 3), dtype=torch.uint8)
    before, state = weights(trainer), torch.get_rng_state()
    stepper = trainer.learner.stepper
    whole = stepper._whole_batch([images[:3], images[3:]])
    assert_same(before, weights(trainer))
    assert torch.equal(state, torch.get_rng_state())
    seen = torch.cat([stepper.model(images[:3]), stepper.model(images[3:])])
    torch.testing.assert_close(whole, seen)  # the same dropout masks
    assert trainer.learner.train_step(batch)["loss"].isfinite()


# ---------------------------------------------------------------- interruptions


@pytest.mark.parametrize("stop", thinned([1, 4, 5, 8], lambda stop: stop == 5))
def test_resumed_equals_uninterrupted_bit_for_bit(data: Path, tmp_path: Path, stop: int) -> None:
    recipe = noisy_recipe(data, epochs=3)
    whole = trained(recipe)
    assert whole.learner.total_steps == 12
    interrupted = trained(recipe, steps=stop, folder=tmp_path)
    assert interrupted.interrupted and interrupted.learner.step == stop
    resumed = make_trainer(recipe, tmp_path)
    resumed.resume()
    assert resumed.learner.step == stop
    assert_same(weights(interrupted), weights(resumed))
    resumed.fit()
    assert_same(weights(whole), weights(resumed))
    assert (tmp_path / "model.safetensors").is_file()


ANNEALED = {"margin": SphereFace2017(), "regularizer": RingLoss(weight=0.1)}
VIT = Backbone("vit_t", 16, 0.0625, dropout=0.2, drop_path=0.2, mask_ratio=0.2)


@pytest.mark.integration
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": AdamW(), "workers": 1, "precision": "bf16"},
        # Convolutions of fp16 take a minute a step on some processors.
        {"precision": "fp16", "backbone": Backbone("tiny_linear", 16), **ANNEALED},
        {"backbone": Backbone("tiny_linear", 16), "margin": AdaFace(t_alpha=0.3)},
        {"recompute": True, "backbone": VIT},
    ],
    ids=["adamw-bf16-workers", "annealed-ring-fp16", "adaface", "vit-recomputed"],
)
def test_every_kind_of_state_is_resumed(
    data: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    recipe = replace(narrow_recipe(data), **changes)  # type: ignore[arg-type]
    whole, resumed = assert_resumes(recipe, tmp_path)
    assert resumed.learner.stepper.scaler.state_dict() == whole.learner.stepper.scaler.state_dict()


@pytest.mark.parametrize(
    "changes",
    # fp16 comes with a gradient scaler.
    [{}, *({"optimizer": o} for o in (AdamW(), Adam(), RMSprop())), {"precision": "fp16"}],
    ids=str,
)
def test_sampled_resumed_equals_uninterrupted(
    many: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    assert_resumes(tiny_recipe(many, **SAMPLED, **changes), tmp_path)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("number", "step", "times", "raised", "kept"),
    [
        (signal.SIGTERM, 6, 1, None, [4, 6]),
        (signal.SIGINT, 6, 1, None, [4, 6]),
        (signal.SIGINT, 8, 1, None, [4, 8]),
        (signal.SIGINT, 6, 2, KeyboardInterrupt, [4]),  # a second Ctrl-C ends at once
        (signal.SIGINT, 1, 1, KeyboardInterrupt, []),  # nothing is lost
        (signal.SIGTERM, 1, 1, SystemExit, []),
    ],
)
def test_a_signal_stops_with_what_can_be_resumed(
    data: Path,
    tmp_path: Path,
    number: int,
    step: int,
    times: int,
    raised: type[BaseException] | None,
    kept: list[int],
) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    recipe = noisy_recipe(data, epochs=3)
    trainer = make_trainer(recipe, tmp_path)
    original = trainer.learner.train_step

    def train_step(batch: Batch) -> Figures:
        if trainer.learner.step + 1 == step:
            trainer._writer.wait()  # or the second Ctrl-C might leave it half done
            for _ in range(times):
                os.kill(os.getpid(), number)
        return original(batch)

    trainer.learner.train_step = train_step  # type: ignore[method-assign]
    with pytest.raises(raised) if raised else contextlib.nullcontext():
        trainer.fit()
    assert trainer.interrupted and trainer.stop_signal == number
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    names = [path.name for path in checkpoint.whole_checkpoints(tmp_path / "checkpoints")]
    assert names == [f"step-{each:08d}" for each in kept]
    resumed = gone_on(recipe, tmp_path) if kept else trained(recipe, folder=tmp_path)
    assert_same(weights(trained(recipe)), weights(resumed))


# ---------------------------------------------------------------- faults


def test_nan_names_the_step_and_keeps_the_checkpoint(data: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(data, checkpoints=Checkpoints(every_steps=2, keep=5))
    trainer = make_trainer(recipe, tmp_path)
    step = trainer.learner.train_step

    def poisoned(batch: object) -> object:
        if trainer.learner.step == 4:
            with torch.no_grad():
                trainer.learner.backbone.fc.weight.fill_(float("nan"))
        return step(batch)  # type: ignore[arg-type]

    trainer.learner.train_step = poisoned  # type: ignore
    sentence = r"step 5: the loss is nan.*step-00000004.*learning rate"
    with pytest.raises(TrainingError, match=sentence):
        trainer.fit()
    names = [p.name for p in checkpoint.whole_checkpoints(tmp_path / "checkpoints")]
    assert names == ["step-00000002", "step-00000004"]
    resumed = make_trainer(recipe, tmp_path)
    resumed.resume()
    assert all(tensor.isfinite().all() for tensor in weights(resumed).values())


def test_a_checkpoint_of_another_architecture_is_refused(data: Path, tmp_path: Path) -> None:
    trained(tiny_recipe(data), steps=2, folder=tmp_path)
    other = tiny_recipe(data, backbone=Backbone(name="tiny_linear", embedding_size=32))
    trainer = make_trainer(other, tmp_path)
    with pytest.raises(CheckpointError, match=r"saved .*\[16.* current: .*\[32"):
        trainer.resume()
    trainer = make_trainer(tiny_recipe(data, optimizer=AdamW()), tmp_path)
    with pytest.raises(CheckpointError, match=r"Missing key .*exp_avg"):
        trainer.resume()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS])
def test_a_loader_process_that_is_killed_in_a_step(
    data: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    trainer = make_trainer(tiny_recipe(data, workers=1))
    before = {process.pid for process in multiprocessing.active_children()}

    def train_step(batch: Batch) -> Figures:
        for process in multiprocessing.active_children():
            if process.pid not in before:
                os.kill(process.pid, number)
        time.sleep(60)  # torch raises from its handler of SIGCHLD
        raise AssertionError

    monkeypatch.setattr(trainer.learner, "train_step", train_step)
    with pytest.raises(TrainingError, match=r"a loader process died \(.*memory") as caught:
        trainer.fit()
    assert "\n" not in str(caught.value)


def test_bad_records_end_training_or_are_skipped_and_listed(data: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in data.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    content = bytearray((broken / "train.rec").read_bytes())
    place = content.index(b"\xff\xd8\xff", 4000)
    content[place : place + 3] = b"xyz"
    (broken / "train.rec").write_bytes(bytes(content))
    for workers in (0, 1):
        recipe = tiny_recipe(broken, workers=workers, epochs=3)
        with pytest.raises(Exception, match=r"train\.rec") as caught:
            trained(recipe)
        assert "\n" not in str(caught.value)
        skipping = replace(recipe, data=replace(recipe.data, on_error="skip"))
        trainer = trained(skipping, folder=tmp_path / str(workers))
        listed = json.loads((tmp_path / str(workers) / "skipped.json").read_text())
        assert len(listed) == len(trainer.skipped) > 0
        assert all("train.rec" in item["where"] for item in listed)
    # A life that was killed wrote no list; its checkpoint has what it skipped so far.
    first = trained(skipping, steps=8, folder=tmp_path / "killed")
    assert 0 < len(first.skipped) < len(listed)
    (tmp_path / "killed" / "skipped.json").unlink()
    gone_on(skipping, tmp_path / "killed")
    assert json.loads((tmp_path / "killed" / "skipped.json").read_text()) == listed


# ---------------------------------------------------------------- several ranks


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.integration)])
def test_any_number_of_ranks_learns_the_same(data: Path, tmp_path: Path, world: int) -> None:
    recipe = tiny_recipe(data, margin=CosFace(scale=16.0, margin=0.2), accumulation=2)
    one = weights(trained(recipe))
    assert_close(one, joined(over_ranks(world, tmp_path / "ranks", recipe)))


@pytest.mark.integration
@pytest.mark.parametrize("head", [Head(), Head(centers_per_class=2), SAMPLED["head"]], ids=str)
def test_two_ranks_resume_on_two_bit_for_bit_and_on_one_and_three(
    data: Path, many: Path, tmp_path: Path, head: Head
) -> None:
    sampled = head.sample_rate < 1  # by each rank, so that other numbers of them draw others
    recipe = tiny_recipe(many if sampled else data, optimizer=AdamW(lr=1e-2), head=head)
    whole = joined(over_ranks(2, tmp_path / "whole", recipe))
    over_ranks(2, tmp_path / "stopped", recipe, "stop")
    for world in (2,) if sampled else (2, 1, 3):
        folder = shutil.copytree(tmp_path / "stopped", tmp_path / f"on{world}")
        resumed = joined(over_ranks(world, folder, recipe, "resume"))
        (assert_same if world == 2 else assert_close)(whole, resumed)
