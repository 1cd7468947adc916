"""The vision transformers have InsightFace's names, shapes and initial weights, and its formula."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from facerec.backbones import Backbone, VisionTransformer, create_backbone, recompute_activations
from facerec.backbones.vit import DropPath
from facerec.training.plan import forward_flop

SIZES = {  # numbers in a token, blocks, parameters, published GFLOP
    "vit_t": (256, 12, 19_137_792, 1.5),
    "vit_s": (512, 12, 76_023_296, 5.7),
    "vit_b": (512, 24, 113_833_472, 11.4),
    "vit_l": (768, 24, 255_684_352, 25.3),
}
NARROW = {"width": 0.125, "embedding_size": 16, "embedding_bn": "affine"}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_of_insightface(name: str) -> None:
    """Its names are those that the formula takes."""
    size, depth, parameters, _ = SIZES[name]
    with torch.device("meta"):
        backbone = create_backbone(name, embedding_bn="affine")
    state = backbone.state_dict()
    assert len(state) == 2 + 2 + 11 * depth + 2 + 1 + 5 + 1 + 5
    assert sum(p.numel() for p in backbone.parameters()) == parameters
    assert state[f"blocks.{depth - 1}.mlp.fc1.weight"].shape == (4 * size, size)
    assert state["feature.0.weight"].shape == (size, 144 * size)


@pytest.mark.parametrize("name", ["vit_t", pytest.param("vit_l", marks=pytest.mark.integration)])
def test_work_is_as_published(name: str) -> None:
    size, depth, _, gflop = SIZES[name]
    products = 144 * size * 243 + 144 * size * size + 512 * size
    products += depth * (12 * 144 * size**2 + 2 * 144**2 * size)
    assert forward_flop(Backbone(name)) == 2 * products
    assert products / 1e9 == pytest.approx(gflop, abs=0.06)


def test_initial_weights_are_those_of_insightface() -> None:
    state = create_backbone("vit_t", width=0.5, embedding_size=64, seed=0).state_dict()
    for name, tensor in state.items():
        drawn = tensor.ndim == 2 or name in ("pos_embed", "mask_token")
        if drawn:
            slack = 6 * 0.02 / tensor.numel() ** 0.5
            assert tensor.std().item() == pytest.approx(0.02, abs=slack), name
            assert abs(tensor.mean().item()) < slack, name
        elif name.startswith("patch_embed"):
            assert tensor.abs().max() <= 243**-0.5, name
        elif name.endswith(("norm1.weight", "norm2.weight", "norm.weight", "running_var")):
            assert torch.equal(tensor, torch.ones_like(tensor)), name
        elif name.endswith(".bias"):
            assert not tensor.any(), name


# ---- the formula -----------------------------------------------------------------------------


def settled(**options: object) -> VisionTransformer:
    """A narrow network with statistics and biases that are not those of the start."""
    backbone = create_backbone("vit_t", **{**NARROW, **options}, seed=5)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in backbone.state_dict().items():
        if name.endswith(("running_mean", "bias")):
            tensor.normal_(std=0.1, generator=generator)
        elif name.endswith("running_var"):
            tensor.uniform_(0.5, 2, generator=generator)
        elif tensor.ndim == 2:
            tensor.mul_(10 if name.endswith("qkv.weight") else 3)  # attention far from even
    return backbone.eval()


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 112, 112, generator=torch.Generator().manual_seed(2))


def spelled_out(state: dict[str, Tensor], image: Tensor, depth: int, hidden: list[int]) -> Tensor:
    """One image through plain products in float64; ``hidden`` patches are masked."""
    w = {name: tensor.double() for name, tensor in state.items()}

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].flatten(1).T + w.get(f"{name}.bias", 0)

    def layer_norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    corners = [(9 * row, 9 * column) for row in range(12) for column in range(12)]
    patches = torch.stack([image[:, y : y + 9, x : x + 9].flatten() for y, x in corners]).double()
    seen = [place for place in range(144) if place not in hidden]
    tokens = (linear(patches, "patch_embed.proj") + w["pos_embed"][0])[seen]
    for block in (f"blocks.{number}" for number in range(depth)):
        heads, mixed = [], linear(layer_norm(tokens, f"{block}.norm1"), f"{block}.attn.qkv")
        for q, k, v in zip(*(part.chunk(8, 1) for part in mixed.chunk(3, 1)), strict=True):
            scores = (q @ k.T / math.sqrt(q.shape[1])).exp()
            heads.append(scores / scores.sum(1, keepdim=True) @ v)
        tokens = tokens + linear(torch.cat(heads, 1), f"{block}.attn.proj")
        inner = linear(layer_norm(tokens, f"{block}.norm2"), f"{block}.mlp.fc1").clamp(0, 6)
        tokens = tokens + linear(inner, f"{block}.mlp.fc2")
    x = w["mask_token"][0].repeat(144, 1)
    x[seen] = layer_norm(tokens, "norm")
    x = x.view(1, -1)
    for layer, norm in (("feature.0", "feature.1"), ("feature.2", "feature.3")):
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, variance, gamma, beta = (w[f"{norm}.{part}"] for part in parts)
        x = (linear(x, layer) - mean) / (variance + 2e-5).sqrt() * gamma + beta
    return x[0]


def test_forward_against_the_formula() -> None:
    backbone = settled()
    with torch.no_grad():
        found = backbone(images())
        state = backbone.state_dict()
        expected = torch.stack([spelled_out(state, image, 12, []) for image in images()])
        assert expected.std() > 0.1
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        exact = backbone.double()(images().double())
        torch.testing.assert_close(exact, expected, rtol=1e-11, atol=1e-11)


# ---- masking ---------------------------------------------------------------------------------


def test_hidden_patches_are_left_out_and_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = settled(mask_ratio=0.1).train()
    for norm in (m for m in backbone.modules() if isinstance(m, nn.BatchNorm1d)):
        norm.eval()
    orders = []
    draw = backbone._random_order

    def noted(x: Tensor) -> Tensor:
        orders.append(draw(x))
        return orders[-1]

    monkeypatch.setattr(backbone, "_random_order", noted)
    state = backbone.state_dict()
    with torch.no_grad():
        found = backbone(images())
        hidden = [order[129:].tolist() for order in orders[0]]  # ⌊144 · 0.9⌋ = 129 are seen
        expected = [spelled_out(state, i, 12, h) for i, h in zip(images(), hidden, strict=True)]
    assert hidden[0] != hidden[1]
    torch.testing.assert_close(found.double(), torch.stack(expected), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(backbone.eval()(images()), backbone(images()))
    assert len(orders) == 1


# ---- stochastic depth ------------------------------------------------------------------------


def test_branches_drop_with_their_probability_and_keep_their_mean() -> None:
    torch.manual_seed(0)
    layer, x = DropPath(0.3), torch.ones(20_000, 2, 3)
    y = layer(x)
    kept = y[:, 0, 0] != 0
    assert torch.equal(y, kept[:, None, None] * x / 0.7)  # whole samples, and by 1/(1 − p)
    deviation = (0.3 * 0.7 / len(x)) ** 0.5
    assert kept.float().mean().item() == pytest.approx(0.7, abs=5 * deviation)
    assert y.mean().item() == pytest.approx(1, abs=5 * deviation / 0.7)
    assert layer.eval()(x) is x


def test_recomputed_blocks_drop_the_same_branches() -> None:
    found = []
    for recompute in (False, True):
        backbone = settled(drop_path=0.5, mask_ratio=0.25).train()
        if recompute:
            recompute_activations(backbone)
        torch.manual_seed(0)
        backbone(images(4)).sigmoid().sum().backward()
        found.append([p.grad for p in backbone.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
