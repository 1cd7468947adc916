from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.thin import thinned
from helpers.toy_files import faces
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from facerec.backbones import Backbone, Preprocessing, create_backbone, list_backbones, normalize
from facerec.base.errors import ImageError, ModelError
from facerec.base.files import sha256
from facerec.embedding import (
    TorchModel,
    load_model,
    load_state_dict_file,
    save_model,
)
from facerec.embedding.loading import newest_run

SMALL = Backbone("iresnet18", embedding_size=16, width=0.125)
RECIPE = {"type": "Recipe", "seed": 5, "batch_size": 8}


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, nn.Module]:
    backbone = create_backbone(SMALL, seed=1)
    backbone.features.bias.data.fill_(0.5)
    path = tmp_path / "runs" / "first" / "model.safetensors"
    save_model(path, backbone, SMALL, Preprocessing("bgr", 127.5, 128.0), RECIPE, {"step": 3})
    return path, backbone


# --- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "embedding_bn"),
    thinned(
        [
            *((name, "frozen_gamma") for name in list_backbones()),
            *((name, kind) for name in ("iresnet18", "mbf") for kind in ("affine", "none")),
        ],
        lambda name, kind: name in ("iresnet18", "mbf"),
    ),
)
def test_saved_and_loaded_weights_are_the_same(
    tmp_path: Path, name: str, embedding_bn: Any
) -> None:
    config = Backbone(name, 8, width=0.125, embedding_bn=embedding_bn, dropout=0.25)
    backbone = create_backbone(config, seed=2)
    path = tmp_path / "backbone.safetensors"
    save_model(path, backbone, config, Preprocessing(), RECIPE)
    model = load_model(path)
    assert (model.config, model.recipe, model.preprocessing) == (config, RECIPE, Preprocessing())
    loaded = model.backbone.state_dict()
    assert list(loaded) == list(backbone.state_dict())
    for key, tensor in backbone.state_dict().items():
        assert loaded[key].dtype == tensor.dtype
        assert torch.equal(loaded[key], tensor), key
    trainable = [p.requires_grad for p in backbone.parameters()]
    assert [p.requires_grad for p in model.backbone.parameters()] == trainable


def test_a_loaded_model_embeds_as_the_one_that_was_saved(saved: tuple[Path, nn.Module]) -> None:
    path, backbone = saved
    live = TorchModel(backbone, Preprocessing("bgr", 127.5, 128.0))
    for given in (path, path.parent, str(path)):
        model = load_model(given)
        found = model.embed(faces(3))
        np.testing.assert_allclose(found, live.embed(faces(3)), rtol=1e-4, atol=1e-5)
        assert (model.name, model.path, model.sha256) == ("first", path, sha256(path))
    assert live.path is None and live.sha256 is None


def test_the_header_holds_what_is_needed_and_two_files_are_equal(
    saved: tuple[Path, nn.Module],
) -> None:
    path, backbone = saved
    with safe_open(path, framework="pt") as file:
        note = json.loads(file.metadata()["facerec"])
    assert note == {
        "format": 1,
        "backbone": {"type": "Backbone", **vars(SMALL)},
        "preprocessing": {"type": "Preprocessing", "channels": "bgr", "mean": 127.5, "std": 128.0},
        "recipe": RECIPE,
        "extra": {"step": 3},
    }
    other = path.with_name("again.safetensors")
    backbone = backbone.to(memory_format=torch.channels_last)
    save_model(other, backbone, SMALL, Preprocessing("bgr", 127.5, 128.0), RECIPE, {"step": 3})
    assert other.read_bytes() == path.read_bytes()
    assert sorted(p.name for p in path.parent.iterdir()) == ["again.safetensors", path.name]


def rewrite(path: Path, tensors: dict[str, torch.Tensor], note: Any = None) -> None:
    """Replace tensors (or the note) of a model file, without any of the checks."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    if note is not None:
        metadata = {"facerec": note if isinstance(note, str) else json.dumps(note)}
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer2.1.bn2.weight": None}, "Missing key.*layer2.1.bn2.weight"),
        ({"layer9.weight": torch.zeros(2)}, "Unexpected key.*layer9.weight"),
        ({"fc.bias": torch.zeros(17)}, "size mismatch for fc.bias"),
        ({"fc.bias": torch.full((16,), torch.nan)}, "'fc.bias' holds NaN or infinity"),
    ],
)
def test_weights_of_another_architecture(
    saved: tuple[Path, nn.Module], change: dict[str, Any], words: str
) -> None:
    path, backbone = saved
    tensors = {**backbone.state_dict(), **change}
    rewrite(path, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    with pytest.raises(ModelError, match=words) as caught:
        load_model(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def good_note(**changes: Any) -> dict[str, Any]:
    note = {
        "format": 1,
        "backbone": {"type": "Backbone", **vars(SMALL)},
        "preprocessing": {"channels": "rgb", "mean": 127.5, "std": 127.5},
        "recipe": {},
    }
    return {**note, **changes}


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        ("{", "not a whole"),
        ("[1]", "not a whole"),
        ({"format": 1}, "backbone"),
        (good_note(format=2), "format 2, this facerec reads format 1"),
        (good_note(backbone={"name": "resnext"}), "no backbone is called 'resnext'"),
        (good_note(backbone={**vars(SMALL), "width": -1.0}), "width must be above 0"),
        (good_note(preprocessing={"channels": "gbr"}), "preprocessing in its metadata"),
    ],
)
def test_a_damaged_note(saved: tuple[Path, nn.Module], note: Any, sentence: str) -> None:
    path, backbone = saved
    rewrite(path, dict(backbone.state_dict()), note)
    with pytest.raises(ModelError, match=sentence) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


# --- foreign state dicts ---------------------------------------------------------------------


def test_a_learned_gamma_needs_embedding_bn_affine(tmp_path: Path) -> None:
    source = create_backbone(SMALL, embedding_bn="affine", seed=1)
    source.features.weight.data[3] = 2.5
    path = tmp_path / "backbone.pth"
    torch.save(source.state_dict(), path)
    with pytest.raises(ModelError, match="facerec import-weights"):
        load_model(path)
    with pytest.raises(ModelError, match=r"from 1 to 2.5.*embedding_bn=\"affine\""):
        load_state_dict_file(create_backbone(SMALL), path)
    target = create_backbone(SMALL, embedding_bn="affine")
    load_state_dict_file(target, path)
    assert target.features.weight[3] == 2.5


# --- torch -----------------------------------------------------------------------------------


def test_embeddings_are_raw_and_do_not_depend_on_the_batch_size() -> None:
    backbone = create_backbone(SMALL, seed=1)
    images = faces(5)
    whole = TorchModel(backbone, Preprocessing()).embed(images)
    parts = TorchModel(backbone, Preprocessing(), batch_size=2).embed(images)
    with torch.no_grad():
        expected = backbone.eval()(normalize(torch.from_numpy(images), Preprocessing())).numpy()
    assert whole.shape == (5, 16) and whole.dtype == np.float32
    np.testing.assert_array_equal(whole, expected)
    np.testing.assert_allclose(parts, expected, rtol=1e-4, atol=1e-4)
    assert np.linalg.norm(whole, axis=1).std() > 0
    assert TorchModel(backbone, Preprocessing()).embed(images[:0]).shape == (0, 16)


def test_a_live_module_comes_back_as_it_was() -> None:
    backbone = create_backbone(SMALL, dropout=0.5, seed=1).train()
    backbone.layer1.eval()
    modes = {name: module.training for name, module in backbone.named_modules()}
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    model = TorchModel(backbone, Preprocessing())
    first, second = model.embed(faces(2)), model.embed(faces(2))
    np.testing.assert_array_equal(first, second)
    assert {name: module.training for name, module in backbone.named_modules()} == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
    with pytest.raises(ImageError):
        model.embed(faces(1, side=96))
    assert {name: module.training for name, module in backbone.named_modules()} == modes


def test_precision_is_what_it_says() -> None:
    backbone = create_backbone(SMALL, seed=1)
    exact = TorchModel(backbone, Preprocessing()).embed(faces(2))
    half = TorchModel(backbone, Preprocessing(), precision="bf16").embed(faces(2))
    assert half.dtype == np.float32
    assert not np.array_equal(half, exact)
    np.testing.assert_allclose(half, exact, atol=0.05 * np.abs(exact).max())
    with torch.autocast("cpu", torch.bfloat16):
        inside = TorchModel(backbone, Preprocessing()).embed(faces(2))
    np.testing.assert_array_equal(inside, exact)


# --- runs ------------------------------------------------------------------------------------


def test_the_newest_run_is_the_one_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"no run here holds a model.safetensors"):
        newest_run()
    for name, seconds in (("b", 200), ("a", 300), ("c", 100)):
        path = Path("runs", name, "model.safetensors")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
        os.utime(path, (seconds, seconds))
    Path("runs/unfinished").mkdir()
    assert newest_run() == Path("runs/a")
