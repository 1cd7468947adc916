"""Training from weights: what is read, what fits, what is refused, and where centres point."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.lives import noisy_recipe
from helpers.tiny_training import make_trainer, tiny_recipe, weights
from helpers.training_runs import assert_close, assert_same, joined, over_ranks, trained
from torch import nn

from facerec.backbones import Backbone, Preprocessing, create_backbone, normalize
from facerec.base.errors import FacerecError, ModelError, RecipeError
from facerec.base.recipe import to_dict
from facerec.commands.train import main
from facerec.embedding import load_model, save_model
from facerec.records import open_dataset
from facerec.training import Finetune, Head, Init, Recipe
from facerec.training.initialization import resolved

NARROW = Backbone(name="iresnet18", embedding_size=16, width=0.125)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file of the backbone in `tiny_recipe`, of another seed."""
    path = tmp_path_factory.mktemp("model") / "start.safetensors"
    config = Backbone(name="tiny_linear", embedding_size=16)
    save_model(path, create_backbone(config, seed=5), config, Preprocessing(), {})
    return path


def used_network(config: Backbone, seed: int = 3) -> nn.Module:
    """A network whose batch norms have seen something."""
    backbone = create_backbone(config, seed=seed)
    generator = torch.Generator().manual_seed(0)
    for name, tensor in backbone.state_dict().items():
        if "running" in name or (tensor.ndim == 1 and tensor.is_floating_point()):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    norm = backbone.embedding_norm
    if isinstance(norm, nn.BatchNorm1d) and not norm.weight.requires_grad:
        nn.init.ones_(norm.weight)
    return backbone


def refused(call: Callable[[], object], *words: str) -> str:
    with pytest.raises(FacerecError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence and all(word in sentence for word in words), sentence
    return sentence


def start(recipe: Recipe) -> Any:
    trainer = make_trainer(recipe)
    trainer.learner.initialize()
    return trainer


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("strict", [True, False])
def test_weights_of_others_start_training_whatever_is_around_them(
    data: Path, tmp_path: Path, strict: bool
) -> None:
    tensors = used_network(NARROW).state_dict()
    path = tmp_path / "theirs.ckpt"
    own = {f"features.module.{n}": t.double() for n, t in tensors.items() if "batches" not in n}
    head = {"module.fc.weight": torch.full((3, 16), torch.nan)}
    torch.save({"state_dict": {**own, **head}, "optimizer": {"lr": 0.1}}, path)
    trainer = start(tiny_recipe(data, backbone=NARROW, init=Init(path, strict=strict)))
    for name, tensor in trainer.learner.backbone.state_dict().items():
        assert torch.equal(tensor, tensors[name]) or "batches" in name
    rows = dict(trainer.learner.start.rows())
    assert rows[""].endswith("1 left out")


def test_a_model_and_a_run_start_training(data: Path, tmp_path: Path) -> None:
    recipe = noisy_recipe(data)
    source = trained(recipe, folder=tmp_path)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        trainer = start(replace(recipe, seed=1, init=Init(path)))
        assert_same(source.learner.backbone.state_dict(), trainer.learner.backbone.state_dict())
        assert trainer.learner.start.path == str(tmp_path / "model.safetensors")


def test_what_fits_is_taken_and_the_rest_drawn(data: Path, tmp_path: Path) -> None:
    tensors = used_network(replace(NARROW, embedding_size=24)).state_dict()
    torch.save(tensors, tmp_path / "wide.pth")
    init = Init(tmp_path / "wide.pth", strict=False)
    trainer = start(tiny_recipe(data, backbone=NARROW, init=init))
    drawn = create_backbone(NARROW, seed=0).state_dict()
    for name, tensor in trainer.learner.backbone.state_dict().items():
        other = name.startswith(("fc.", "features.")) and name != "features.num_batches_tracked"
        assert torch.equal(tensor, (drawn if other else tensors)[name]), name
        assert (
            (name in trainer.learner.start.new) == (name in trainer.learner.start.left_out) == other
        )
    texts = dict(trainer.learner.start.rows())
    assert "drawn anew" in texts[""] and texts["class centres"] == "drawn from the seed"


# ---------------------------------------------------------------- what is refused


def test_weights_that_do_not_fit_are_one_sentence(data: Path, tmp_path: Path) -> None:
    def given(path: Path, **changes: Any) -> Callable[[], object]:
        options = {name: changes.pop(name) for name in ("strict",) if name in changes}
        recipe = tiny_recipe(data, **{"backbone": NARROW, **changes}, init=Init(path, **options))
        return lambda: start(recipe)

    file, config = tmp_path / "model.safetensors", replace(NARROW, embedding_bn="affine")
    save_model(file, used_network(config), config, Preprocessing("bgr"), {})
    bgr = {"preprocessing": Preprocessing("bgr")}
    wide = replace(NARROW, width=0.25, embedding_size=8)
    refused(given(file, backbone=wide, **bgr), str(file), "conv1", "--backbone.name init")
    refused(given(file, backbone=replace(NARROW, embedding_bn="none"), **bgr), "features.")
    refused(given(file, **bgr), "γ", "affine")
    refused(given(file, backbone=config), "bgr", "rgb", "preprocessing")
    start(tiny_recipe(data, backbone=config, init=Init(file), **bgr))

    pth = tmp_path / "other.pth"
    torch.save(used_network(replace(NARROW, width=0.25)).state_dict(), pth)
    refused(given(pth), str(pth), "conv1", "another architecture")
    loose = {"strict": False}
    refused(given(pth, backbone=Backbone("tiny_noisy", 16), **loose), "none of its", "tensors")

    tensors = used_network(NARROW).state_dict()
    tensors["layer1.0.conv1.weight"][0] = torch.nan
    torch.save(tensors, pth)
    for options in ({}, loose):
        refused(given(pth, **options), str(pth), "layer1.0.conv1.weight", "NaN")

    refused(given(tmp_path / "nothing.pth"), "nothing.pth", "No such file")
    refused(given(tmp_path), str(tmp_path))
    (tmp_path / "a.onnx").write_bytes(b"x")
    refused(given(tmp_path / "a.onnx"), "a.onnx", "ONNX")


# ---------------------------------------------------------------- class centres


def naive_class_means(trainer: Any, data: Path) -> torch.Tensor:
    dataset = open_dataset(trainer.recipe.data, 0)
    network = create_backbone(trainer.recipe.backbone)
    network.load_state_dict(trainer.learner.backbone.state_dict())
    network.eval()
    rows = []
    for person in range(dataset.num_classes):
        total = torch.zeros(trainer.learner.head.embedding_size, dtype=torch.float64)
        for index in np.flatnonzero(dataset.labels == person):
            image = torch.from_numpy(dataset[int(index)][0])[None]
            with torch.no_grad():
                vector = network(normalize(image, Preprocessing()))[0].double()
            total += vector / vector.norm()
        rows.append(total / total.norm())
    return torch.stack(rows)


@pytest.mark.parametrize("center_init", ["unit", "normal"])
def test_centres_point_along_the_class_means(data: Path, tmp_path: Path, center_init: Any) -> None:
    path = tmp_path / "start.safetensors"
    config = Backbone(name="tiny_noisy", embedding_size=16)
    save_model(path, used_network(config), config, Preprocessing(), {})
    recipe = noisy_recipe(data, init=Init(path, head="class_means"), head=Head(center_init))
    trainer = make_trainer(recipe)
    drawn = trainer.learner.head.weight.detach().norm(dim=1, keepdim=True)
    told: list[tuple[str, int, int]] = []
    trainer.learner.initialize(lambda *told_now: told.append(told_now))
    wanted = naive_class_means(trainer, data) * drawn
    torch.testing.assert_close(trainer.learner.head.weight.double(), wanted, rtol=1e-5, atol=1e-6)
    assert told[-1] == ("class means", 56, 56)
    assert "56 images" in dict(trainer.learner.start.rows())["class centres"]
    assert all(module.training for module in trainer.learner.backbone.modules())


@pytest.mark.integration
def test_two_ranks_start_and_train_as_one(data: Path, model: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(
        data,
        init=Init(model, head="class_means"),
        finetune=Finetune(rate_factor=0.5, freeze_steps=2),
        ema=0.9,
    )
    one = weights(trained(recipe))
    assert_close(one, joined(over_ranks(2, tmp_path / "ranks", recipe)))


# ---------------------------------------------------------------- runs

RECIPE = """
from pathlib import Path
from helpers.lives import noisy_recipe
from facerec.backbones import Backbone
from facerec.training import Checkpoints, Finetune, Init
from dataclasses import replace
recipe = replace(
    noisy_recipe(Path("data"), checkpoints=Checkpoints(every_steps=3)),
    backbone=Backbone("init"),
    init=Init(path=Path("start.safetensors"), head="class_means"),
    finetune=Finetune(rate_factor=0.3, freeze_steps=4, batch_norm="frozen"),
    ema=0.9,
)
"""


@pytest.fixture
def work(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").symlink_to(data)
    (tmp_path / "ft.py").write_text(RECIPE)
    config = Backbone(name="tiny_noisy", embedding_size=16)
    save_model(tmp_path / "start.safetensors", used_network(config), config, Preprocessing(), {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    return tmp_path


def run(*arguments: str) -> None:
    main(["ft.py", "--device", "cpu", *arguments])


def test_a_run_remembers_its_start_and_never_reads_it_again(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--name", "whole")
    assert "start.safetensors" in capsys.readouterr().out
    manifest = json.loads((work / "runs/whole/manifest.json").read_text())
    assert manifest["init"]["path"] == str(work / "start.safetensors")
    assert len(manifest["init"]["sha256"]) == 64
    assert json.loads((work / "runs/whole/recipe.json").read_text())["backbone"] == to_dict(
        Backbone("tiny_noisy", 16)
    )
    for steps in ("2", "5"):  # resting and moving
        run("--name", f"cut{steps}", "--max-steps", steps)
    (work / "start.safetensors").unlink()
    for steps in ("2", "5"):
        run("--name", f"cut{steps}", "--resume")
        for name in ("model.safetensors", "raw.safetensors"):
            ours = load_model(work / "runs" / f"cut{steps}" / name)
            whole = load_model(work / "runs/whole" / name)
            assert_same(ours.backbone.state_dict(), whole.backbone.state_dict())  # type: ignore[attr-defined]


def test_the_network_of_the_file(data: Path, model: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(data, backbone=Backbone("init"), init=Init(model))
    theirs, config = tmp_path / "theirs.safetensors", Backbone("tiny_linear", 16)
    prepared = Preprocessing(std=128.0)
    save_model(theirs, create_backbone(config, seed=5), config, prepared, {})
    other = replace(recipe, init=Init(theirs))
    assert resolved(other).preprocessing == prepared
    own = replace(other, preprocessing=Preprocessing("bgr"))
    assert resolved(own).preprocessing == Preprocessing("bgr")
    assert resolved(recipe).backbone == Backbone("tiny_linear", 16)
    assert resolved(tiny_recipe(data)) == tiny_recipe(data)
    with pytest.raises(RecipeError, match=r"init\.path"):
        resolved(replace(recipe, init=Init()))
    with pytest.raises(RecipeError, match="whole section"):
        resolved(replace(recipe, backbone=Backbone("init", dropout=0.2)))
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pth")
    with pytest.raises(ModelError, match="does not say which architecture"):
        resolved(replace(recipe, init=Init(tmp_path / "a.pth")))
    with pytest.raises(RecipeError, match=r"recipe\.json"):
        resolved(recipe, tmp_path)
