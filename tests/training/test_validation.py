"""Verification packs during training: the same figures on any number of ranks, the best kept."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.gloo_pool import GlooPool
from helpers.tiny_training import narrow_recipe, tiny_recipe
from helpers.toy_packs import make_pack
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from facerec.backbones import create_backbone
from facerec.embedding import load_model
from facerec.records import open_dataset
from facerec.records.packs import read_pack, write_pack
from facerec.training import Recipe, Validation
from facerec.training.checkpoint import whole_checkpoints
from facerec.training.distributed import Processes
from facerec.training.learner import Learner
from facerec.training.monitor import Monitor
from facerec.training.trainer import Trainer
from facerec.training.validation import PackValidator
from facerec.verification import VerificationResult, evaluate_bench, pack_bench

pytestmark = pytest.mark.integration

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two packs; in ``few`` some images occur in many pairs."""
    folder = tmp_path_factory.mktemp("packs")
    make_pack(folder / "toy.bin", per_fold=2)
    pack = read_pack(make_pack(folder / "all.bin", per_fold=1, seed=3))
    images = list(pack.images)
    # Every person's second image becomes that of the first fold's pair of its kind.
    for pair in range(2, len(pack.issame)):
        images[2 * pair + 1] = images[2 * (pair % 2) + 1]
    (folder / "all.bin").unlink()
    write_pack(folder / "few.bin", images, pack.issame)
    return folder


def recipe_with_packs(packs: Path, data: Path, **validation: object) -> Recipe:
    wanted = Validation(benches=("toy", "few"), data=packs)
    return narrow_recipe(data, validation=replace(wanted, **validation))  # type: ignore[arg-type]


def backbone_of(recipe: Recipe) -> nn.Module:
    """A backbone whose batch-norms have statistics, in training mode as a trainer has it."""
    backbone = create_backbone(recipe.backbone, seed=1)
    with torch.no_grad():
        for _ in range(3):
            backbone(torch.rand(8, 3, 112, 112, generator=torch.Generator().manual_seed(0)))
    return backbone.train()


def figures(results: dict[str, VerificationResult]) -> dict[str, dict[str, object]]:
    return {name: result.to_json() for name, result in results.items()}


def score_as_rank(
    group: object, recipe: Recipe, state: dict[str, torch.Tensor]
) -> tuple[dict[str, dict[str, object]], dict[str, np.ndarray], bool]:
    backbone = backbone_of(recipe)
    backbone.load_state_dict(state)
    processes = Processes(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    results = PackValidator(recipe, processes)(backbone)
    scores = {name: result.scores for name, result in results.items()}
    return figures(results), scores, backbone.training


@pytest.mark.parametrize("flip", [True, False])
def test_ranks_find_the_figures_of_one_process(
    packs: Path, data: Path, pool: GlooPool, flip: bool
) -> None:
    recipe = recipe_with_packs(packs, data, flip=flip)
    backbone = backbone_of(recipe)
    alone = PackValidator(recipe, ALONE)(backbone)
    for found, scores, training in pool.run(3, score_as_rank, recipe, backbone.state_dict()):
        assert training
        for name, result in alone.items():
            # Another cut into batches may change the last bits of an embedding.
            np.testing.assert_allclose(scores[name], result.scores, atol=2e-6)
            assert found[name].keys() == result.to_json().keys()
            assert found[name]["flip"] is flip


class _Window(nn.Module):
    """Sees the middle of a picture, and little else."""

    embedding_size = 4 * 4 * 3 + 1

    def __init__(self) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(0.1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = nn.functional.avg_pool2d(images[:, :, 40:72, 40:72], 8).flatten(1)
        return torch.cat([seen, self.constant.expand(len(seen), 1)], dim=1)


def test_a_pack_whose_crops_lie_elsewhere_is_named(data: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name, left in (("placed", 40), ("left", 32)):
        images = np.full((40, 112, 112, 3), 160, np.uint8)
        noise = generator.integers(0, 256, (40, 4, 4, 3)).astype(np.uint8)
        images[:, 40:72, left : left + 32] = noise.repeat(8, axis=1).repeat(8, axis=2)
        encoded = [cv2.imencode(".png", image)[1].tobytes() for image in images]
        write_pack(tmp_path / f"{name}.bin", encoded, [True, False] * 10)
    validation = Validation(benches=("placed", "left"), data=tmp_path)
    validator = PackValidator(narrow_recipe(data, validation=validation), ALONE)
    (said,) = validator.misplaced(_Window())
    assert said.startswith("left:") and "moved by 8 0" in said


def test_the_figures_are_those_of_verify(packs: Path, data: Path, tmp_path: Path) -> None:
    """The saved model, verified alone, gives what was written during training."""
    recipe = replace(recipe_with_packs(packs, data), epochs=1)
    train(recipe, tmp_path)
    model = load_model(tmp_path)
    written = {line["bench"]: line for line in validations(tmp_path)}
    assert written.keys() == {"toy", "few"}
    for name in written:
        result = evaluate_bench(model, pack_bench(packs / f"{name}.bin")).to_json()
        for key in ("folds", "rows", "pairs"):
            assert written[name][key] == json.loads(json.dumps(result[key]))


# ---------------------------------------------------------------- in the trainer


def train(
    recipe: Recipe, folder: Path, accuracies: dict[int, float] | None = None, resume: bool = False
) -> Trainer:
    """Train as the command does; packs have the accuracies of these steps if they are given."""
    real = PackValidator(recipe, ALONE)
    learner = Learner(recipe, open_dataset(recipe.data, recipe.seed), ALONE)

    def wanted(*given: object) -> dict[str, VerificationResult]:
        results = real(*given)  # type: ignore[arg-type]
        for name, r in results.items():
            found = replace(r.folds["accuracy"], mean=accuracies[learner.step])
            results[name] = replace(r, folds={"accuracy": found})
        return results

    trainer = Trainer(learner, folder, Console(quiet=True), wanted if accuracies else real)  # type: ignore[arg-type]
    if resume:
        trainer.resume()
    trainer.fit()
    return trainer


def validations(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "validation"]


def best(folder: Path) -> dict[str, object]:
    with safe_open(folder / "best.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["facerec"])["extra"]


def small(packs: Path, data: Path, **changes: object) -> Recipe:
    """Four steps an epoch of a model that is fast to score."""
    validation = Validation(benches=("toy",), data=packs)
    return tiny_recipe(data, **{"epochs": 4, "validation": validation} | changes)


def test_the_best_weights_are_kept(packs: Path, data: Path, tmp_path: Path) -> None:
    trainer = train(small(packs, data), tmp_path, {4: 0.7, 8: 0.9, 12: 0.9, 16: 0.8})
    assert best(tmp_path) == {"step": 8, "selected_on": {"toy": 0.9}}  # the first of equals
    lines = validations(tmp_path)
    assert [(line["step"], line["epoch"]) for line in lines] == [(4, 1), (8, 2), (12, 3), (16, 4)]
    assert all(line["bench"] == "toy" and line["pairs"]["mated"] == 20 for line in lines)  # type: ignore[index]
    last, kept = (load_file(tmp_path / name) for name in ("model.safetensors", "best.safetensors"))
    assert torch.equal(last["fc.weight"], trainer.learner.backbone.fc.weight.detach())
    assert not torch.equal(last["fc.weight"], kept["fc.weight"])


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (15, SystemExit)]
)
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_signal_in_a_validation_ends_it_with_a_checkpoint(
    packs: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    raised: type[BaseException],
    epochs: int,
) -> None:
    recipe = small(packs, data, epochs=epochs)
    with monkeypatch.context() as patch, pytest.raises(raised):
        patch.setattr(PackValidator, "_score", lambda *_: os.kill(os.getpid(), number))
        train(recipe, tmp_path)
    assert [path.name for path in whole_checkpoints(tmp_path / "checkpoints")] == ["step-00000004"]
    assert not (tmp_path / "model.safetensors").exists() and validations(tmp_path) == []
    train(recipe, tmp_path, resume=True)
    assert [line["epoch"] for line in validations(tmp_path)] == list(range(1, epochs + 1))
    (tmp_path / "whole").mkdir()
    train(recipe, tmp_path / "whole")
    for name in ("model.safetensors", "best.safetensors"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_what_was_validated_can_be_resumed(
    packs: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """Killed right after a validation, the run goes on to the same end, and loses no best."""
    recipe, accuracies = small(packs, data), {4: 0.7, 8: 0.9, 12: 0.8, 16: 0.6}
    original = Monitor.validation

    def killed(self: Monitor, step: int, at: int, results: dict[str, VerificationResult]) -> None:
        original(self, step, at, results)
        if at == epoch:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Monitor, "validation", killed)
        train(recipe, tmp_path, accuracies)
    assert whole_checkpoints(tmp_path / "checkpoints")[-1].name == f"step-{4 * epoch:08d}"
    train(recipe, tmp_path, accuracies, resume=True)
    assert [line["step"] for line in validations(tmp_path)] == [4, 8, 12, 16]
    assert best(tmp_path) == {"step": 8, "selected_on": {"toy": 0.9}}
