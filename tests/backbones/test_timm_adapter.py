"""timm's networks as backbones; a module takes timm's place."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fake_timm import fake_timm
from helpers.tiny_training import make_trainer, tiny_recipe, write_training_set

from facerec.backbones import Backbone, Preprocessing, TimmBackbone, create_backbone
from facerec.base.errors import ExportError, MissingExtraError, RecipeError
from facerec.embedding import TorchModel, load_model, save_model
from facerec.training.plan import plan_step

RESNET = Backbone("timm:toy_resnet", embedding_size=16)
TRANSFORMER = Backbone("timm:toy_vit", embedding_size=16, drop_path=0.1)


@pytest.fixture(autouse=True)
def timm(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = fake_timm()
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


def images(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 3, 112, 112, generator=torch.Generator().manual_seed(0))


def faces(count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 112, 112, 3), dtype=np.uint8)


@pytest.mark.parametrize("embedding_bn", ["frozen_gamma", "affine", "none"])
def test_features_a_linear_layer_and_a_batch_norm(embedding_bn: Any) -> None:
    backbone = create_backbone(RESNET, embedding_bn=embedding_bn, seed=0)
    assert isinstance(backbone, TimmBackbone)
    assert all(module.training for module in backbone.modules())
    norm = backbone.embedding_norm
    assert (norm is None) == (embedding_bn == "none")
    assert norm is None or norm.weight.requires_grad == (embedding_bn == "affine")
    backbone.eval()
    with torch.no_grad():
        linear = backbone.head[0]
        expected = backbone.trunk(images()) @ linear.weight.T + linear.bias
        expected = expected if norm is None else norm(expected)
        torch.testing.assert_close(backbone(images()), expected)
        with torch.autocast("cpu", torch.bfloat16):
            assert backbone(images()).dtype == torch.float32
    again = create_backbone(RESNET, embedding_bn=embedding_bn, seed=0).state_dict()
    assert all(torch.equal(t, again[n]) for n, t in backbone.state_dict().items())


@pytest.mark.parametrize("config", [RESNET, TRANSFORMER], ids=lambda c: c.name)
def test_a_model_file_loads_again(tmp_path: Path, config: Backbone) -> None:
    backbone = create_backbone(config, seed=3)
    path = tmp_path / "model.safetensors"
    save_model(path, backbone, config, Preprocessing(), {})
    model = load_model(path)
    assert isinstance(model, TorchModel) and model.config == config
    live = TorchModel(backbone, Preprocessing())
    np.testing.assert_allclose(model.embed(faces()), live.embed(faces()), rtol=1e-5, atol=1e-6)


def test_it_trains_and_is_planned(tmp_path: Path) -> None:
    data = write_training_set(tmp_path / "data")
    recipe = tiny_recipe(data, backbone=RESNET)
    trainer = make_trainer(recipe, tmp_path / "run")
    before = {n: t.clone() for n, t in trainer.learner.backbone.state_dict().items()}
    trainer.fit()
    model = load_model(tmp_path / "run")
    assert model.embed(faces()).shape == (3, 16)
    moved = model.backbone.state_dict()
    assert not any(torch.equal(before[n], moved[n]) for n in before if n.endswith("conv1.weight"))
    assert plan_step(recipe, 7).backbone_flop > 0


@pytest.mark.integration
@pytest.mark.parametrize(
    "config", [pytest.param(RESNET, marks=pytest.mark.slow), TRANSFORMER], ids=lambda c: c.name
)
def test_it_exports(config: Backbone) -> None:
    pytest.importorskip("onnxruntime")
    from facerec.embedding.onnx_file import parse_onnx
    from facerec.export import export_graph
    from facerec.export.parity import check_parity

    model = TorchModel(create_backbone(config, seed=3).eval(), Preprocessing(), config=config)
    with pytest.raises(ExportError, match="such as 18"):  # a mean over pixels has no older form
        export_graph(model.backbone, model.preprocessing, note={"format": 1})
    content = export_graph(model.backbone, model.preprocessing, note={"format": 1}, opset=18)
    assert check_parity(model, parse_onnx(content, config.name))


# ---- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "timm:foo"}, r"timm:foo: cannot be made \(Unknown model"),
        ({"name": "timm:toy_map"}, "timm:toy_map: .* that pools"),
        ({"name": "timm:toy_of_32"}, "height doesn't match.* images of 112×112"),
        ({"width": 0.5}, "width must be 1 for timm:toy_resnet"),
        ({"drop_path": 0.1}, "timm:toy_resnet: .*drop_path_rate"),
        ({"mask_ratio": 0.1}, "mask_ratio: timm:toy_resnet"),
        # What a hub gives is not named in a recipe.
        ({"name": "timm:hf-hub:somebody/net"}, r"timm.list_models\(\)"),
    ],
)
def test_what_timm_does_not_have(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        create_backbone(RESNET, **options)


def test_without_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, create_backbone(RESNET, seed=0), RESNET, Preprocessing(), {})

    monkeypatch.setitem(sys.modules, "timm", None)
    for attempt in (lambda: create_backbone(RESNET), lambda: load_model(path)):
        with pytest.raises(MissingExtraError, match=r"facerec\[timm\]"):
            attempt()
