"""Trunks: shapes, seeds, weights from files, frozen batch norms, timm's interface."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fake_timm import ToyResNet, fake_timm
from safetensors.torch import save_file
from torch import nn

from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.base.errors import ModelError
from facerec.comparison.trunks import FACE_SIZE, Trunk, TrunkEmbedder, create_trunk
from facerec.embedding.torch_model import save_model

MBF = Trunk("mbf", embedding_size=16, width=0.25)
SMALL = Trunk("small_cnn", embedding_size=16)
RESNET = Trunk("timm:toy_resnet", embedding_size=16)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = fake_timm()
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


def images(count: int = 4, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, FACE_SIZE, FACE_SIZE, generator=generator)


ALL = [MBF, SMALL, RESNET, Trunk("iresnet18", 16, 0.125, "frozen_gamma")]


@pytest.mark.parametrize("config", ALL, ids=lambda c: c.name)
@pytest.mark.parametrize("embedding_bn", ["none", "frozen_gamma", "affine"])
def test_embeddings_parameters_and_seeds(
    timm: types.ModuleType, config: Trunk, embedding_bn: Any
) -> None:
    config = Trunk(config.name, 16, config.width, embedding_bn)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    trunk = create_trunk(config, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    y = trunk(images())
    assert trunk.training and y.shape == (4, 16) and y.dtype == torch.float32
    again, other = create_trunk(config, seed=3), create_trunk(config, seed=4)
    for made, equal in ((again, True), (other, False)):
        pairs = zip(trunk.parameters(), made.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs) is equal
    learned = [m.weight.requires_grad for m in trunk.modules() if isinstance(m, nn.BatchNorm1d)]
    assert learned == {"none": [], "affine": [True], "frozen_gamma": [False]}[embedding_bn]
    y.sum().backward()
    assert all(p.grad is not None for p in trunk.parameters() if p.requires_grad)


@pytest.mark.parametrize("config", [MBF, SMALL, RESNET], ids=lambda c: c.name)
@pytest.mark.parametrize("embedding_bn", ["none", "affine"])
def test_frozen_batch_norms(timm: types.ModuleType, config: Trunk, embedding_bn: Any) -> None:
    trunk = create_trunk(replace(config, embedding_bn=embedding_bn, freeze_bn=True), 0)
    trunk.eval().train()
    norms = [m for m in trunk.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and not any(m.training for m in norms)
    assert not any(p.requires_grad for m in norms for p in m.parameters())
    before = [m.running_mean.clone() for m in norms]  # type: ignore[union-attr]
    trunk(images())
    assert all(torch.equal(m.running_mean, old) for m, old in zip(norms, before, strict=True))
    # The batch norm after the last linear layer belongs to the embedder, and goes on learning.
    last = [m for m in trunk.modules() if isinstance(m, nn.BatchNorm1d)]
    assert all(m.training and m.weight.requires_grad for m in last)
    assert len(last) == (embedding_bn == "affine")


# ---- weights ---------------------------------------------------------------------------------


def same(trunk: TrunkEmbedder, module: nn.Module) -> bool:
    with torch.no_grad():
        x = images()
        made = trunk.eval().trunk
        return torch.equal(getattr(made, "trunk", made)(x), module.eval()(x))


def with_weights(config: Trunk, path: Path, **changes: Any) -> Trunk:
    fields = {"embedding_size": 16, "width": config.width, **changes}
    return Trunk(config.name, weights=path, **fields)


@pytest.fixture
def mbf() -> nn.Module:
    return create_backbone("mbf", width=0.25, embedding_size=16, embedding_bn="none", seed=9)


def test_a_model_file_of_facerec(tmp_path: Path, mbf: nn.Module) -> None:
    path = tmp_path / "model.safetensors"
    config = Backbone("mbf", 16, 0.25, "none")
    save_model(path, mbf, config, Preprocessing(), {})
    assert same(create_trunk(with_weights(MBF, path), 0), mbf)
    for change in ({"embedding_size": 8}, {"width": 0.5}, {"embedding_bn": "affine"}):
        with pytest.raises(ModelError, match="another architecture"):
            create_trunk(with_weights(MBF, path, **change), 0)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("num_classes", [0, 10])
def test_weights_of_timm_with_and_without_classifier(
    tmp_path: Path, timm: types.ModuleType, suffix: str, num_classes: int
) -> None:
    module = ToyResNet(num_classes)
    path = tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(module.state_dict(), path)  # type: ignore[operator]
    module.fc = nn.Identity()
    trunk = create_trunk(with_weights(RESNET, path), 0)
    assert same(trunk, module)
    # The embedder is drawn as it is without weights.
    plain = create_trunk(RESNET, 0)
    assert torch.equal(trunk.trunk.head[0].weight, plain.trunk.head[0].weight)  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("conv1.weight"), "Missing key.* .conv1.weight"),
        (lambda d: d.update({"bn1.bias": torch.zeros(9)}), "size mismatch for bn1.bias"),
    ],
)
def test_weights_of_another_architecture(
    tmp_path: Path, timm: types.ModuleType, change: Any, words: str
) -> None:
    state = ToyResNet(0).state_dict()
    change(state)
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(ModelError, match=words):
        create_trunk(with_weights(RESNET, tmp_path / "weights.pth"), 0)


def test_names_of_another_program_are_taken_in_their_order(
    tmp_path: Path, timm: types.ModuleType
) -> None:
    own = create_trunk(RESNET, 5).trunk.trunk.state_dict()
    theirs = {f"_{i}.other": tensor for i, tensor in enumerate(own.values())}
    classifier = {"_fc.weight": torch.zeros(10, 8), "_fc.bias": torch.zeros(10)}
    torch.save({**theirs, **classifier}, tmp_path / "weights.pth")
    trunk = create_trunk(with_weights(RESNET, tmp_path / "weights.pth"), 0).trunk.trunk
    for name, tensor in trunk.state_dict().items():
        assert torch.equal(tensor, own[name])


def test_last_layers() -> None:
    plain, l2, layer = (
        create_trunk(Trunk("small_cnn", 16, last_layer=kind), 0, 28).eval()
        for kind in ("none", "l2", "layer_norm")
    )
    x = torch.randn(3, 3, 28, 28)
    raw = plain(x)
    torch.testing.assert_close(l2(x), raw / raw.norm(dim=1, keepdim=True))
    centred = raw - raw.mean(1, keepdim=True)
    spread = (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(layer(x), centred / spread)


@pytest.mark.parametrize("config", [*ALL, Trunk("features", 16)], ids=lambda c: c.name)
def test_weight_normalisation_begins_with_the_same_function(
    timm: types.ModuleType, config: Trunk
) -> None:
    on_features = config.name == "features"
    size = 5 if on_features else FACE_SIZE
    x = torch.randn(4, 5) if on_features else images()
    plain = create_trunk(config, 3, size).eval()
    normal = create_trunk(replace(config, weight_norm=True), 3, size).eval()
    torch.testing.assert_close(normal(x), plain(x))
    layers = [m for m in normal.modules() if nn.utils.parametrize.is_parametrized(m)]
    assert [layer.out_features for layer in layers] == [16]
