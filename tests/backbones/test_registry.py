"""What holds for every registered backbone."""

from __future__ import annotations

import functools

import pytest
import torch
from helpers.thin import thinned
from torch import Tensor, nn

from facerec.backbones import Backbone, create_backbone, list_backbones, register_backbone
from facerec.base.errors import RecipeError

FAST = ["iresnet18", "mbf", "mbf_large", "vit_t"]
ALL = thinned(list_backbones(), lambda name: name in FAST)


def images(count: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 112, 112, generator=torch.Generator().manual_seed(seed))


def narrow(name: str, **options: object) -> nn.Module:
    return create_backbone(name, width=0.125, embedding_size=32, seed=3, **options)


@functools.cache
def settled(name: str) -> nn.Module:
    """A narrow backbone in eval mode whose running statistics are those of one batch.

    With the initial statistics (mean 0, variance 1) a deep network's activations explode.
    """
    backbone = narrow(name).train()
    norms = [m for m in backbone.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        backbone(images())
    return backbone.eval()


@pytest.mark.parametrize("name", ALL)
def test_output_is_float32_and_the_same_in_any_order_of_memory_and_batch(name: str) -> None:
    backbone = settled(name)
    with torch.no_grad():
        first, second = backbone(images()), backbone(images())
        alone = backbone(images()[1:2])
        channels_last = backbone(images().to(memory_format=torch.channels_last))
    assert first.shape == (4, 32) and first.dtype == torch.float32
    assert backbone.embedding_size == 32 and torch.equal(first, second)
    assert first.isfinite().all() and first.std() > 0
    torch.testing.assert_close(alone, first[1:2], rtol=1e-3, atol=1e-3)
    scale = first.abs().max().item()
    torch.testing.assert_close(channels_last, first, rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize("name", ALL)
def test_gradient_reaches_every_trainable_parameter(name: str) -> None:
    # In eval mode: batch statistics would cancel the gradient of biases before a batch norm.
    backbone = settled(name)
    backbone.zero_grad()
    weights = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))
    (backbone(images()) * weights).sum().backward()
    for parameter_name, parameter in backbone.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.isfinite().all() and parameter.grad.any(), parameter_name
        else:
            assert parameter is backbone.embedding_norm.weight or parameter_name == "mask_token"
            assert parameter.grad is None
    backbone.zero_grad()


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_leaves_the_last_layers_in_float32(name: str, dtype: torch.dtype) -> None:
    backbone = settled(name)
    seen: dict[nn.Module, set[torch.dtype]] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.setdefault(module, set()).update((inputs[0].dtype, output.dtype))

    inside = {id(m) for block in backbone.blocks for m in block.modules()}
    kinds = (nn.Linear, nn.BatchNorm1d)
    last = [m for m in backbone.modules() if isinstance(m, kinds) and id(m) not in inside]
    first = next(m for m in backbone.blocks[0].modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
    hooks = [m.register_forward_hook(note) for m in [*last, first]]
    with torch.no_grad(), torch.autocast("cpu", dtype):
        output = backbone(images())
    for hook in hooks:
        hook.remove()
    assert output.dtype == torch.float32
    assert all(seen[module] == {torch.float32} for module in last)
    assert dtype in seen[first]
    with torch.no_grad():
        exact = backbone(images())
    # Untrained and normalised over four images, the networks amplify rounding.
    assert nn.functional.cosine_similarity(output, exact).min() > 0.9
    assert not torch.equal(output, exact)


@pytest.mark.parametrize("name", ALL)
def test_embedding_bn(name: str) -> None:
    with torch.device("meta"):
        frozen, affine, none = (
            create_backbone(name, embedding_bn=kind) for kind in ("frozen_gamma", "affine", "none")
        )
    assert not frozen.embedding_norm.weight.requires_grad and none.embedding_norm is None
    assert frozen.embedding_norm.bias.requires_grad and affine.embedding_norm.weight.requires_grad
    names = {kind: list(b.state_dict()) for kind, b in (("f", frozen), ("a", affine), ("n", none))}
    assert names["f"] == names["a"] and names["f"][:-5] == names["n"]


@pytest.mark.parametrize("kind", ["frozen_gamma", "affine"])
@pytest.mark.parametrize("name", ["iresnet18", "mbf"])
def test_batch_norm_pins_the_mean_squared_norm(name: str, kind: str) -> None:
    """In training, mean ‖f‖² = Σ γ² v/(v+ε) + ‖β‖² with the biased batch variance v."""
    backbone = narrow(name, embedding_bn=kind).double().train()
    norm = backbone.embedding_norm
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        norm.bias.normal_(generator=generator)
        if kind == "affine":
            norm.weight.normal_(generator=generator)
    inputs: list[Tensor] = []
    norm.register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
    with torch.no_grad():
        embeddings = backbone(images(6).double())
    variance = inputs[0].var(dim=0, correction=0)
    pinned = (norm.weight**2 * variance / (variance + norm.eps)).sum() + norm.bias.square().sum()
    measured = embeddings.square().sum(dim=1).mean()
    assert embeddings.dtype == torch.float64
    assert measured.item() == pytest.approx(pinned.item(), rel=1e-12)


@pytest.mark.parametrize("name", FAST)
def test_the_seed_decides_the_weights(name: str) -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = narrow(name).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    again = narrow(name).state_dict()
    other = create_backbone(name, width=0.125, embedding_size=32, seed=4).state_dict()
    assert all(torch.equal(first[n], again[n]) for n in first)
    drawn = [n for n in first if first[n].ndim > 1]
    assert drawn and not any(torch.equal(first[n], other[n]) for n in drawn)


def test_wrong_names_get_the_nearest_right_one() -> None:
    with pytest.raises(RecipeError, match=r"'iresnet5O'.*did you mean 'iresnet50'"):
        create_backbone("iresnet5O")
    with pytest.raises(RecipeError, match="did you mean 'iresnet18' or "):
        create_backbone("???")
    for options in ({"embeding_size": 3}, {"width": 0.0}, {"embedding_bn": "batch"}):
        with pytest.raises(RecipeError, match=r"embedding_size|width|embedding_bn"):
            create_backbone("mbf", **options)


def test_registering_a_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    from facerec.backbones import registry

    monkeypatch.setattr(registry, "_builders", dict(registry._builders))

    @register_backbone
    def pooled(config: Backbone) -> nn.Module:
        return nn.Linear(3, config.embedding_size)

    assert list_backbones()[-1] == "pooled"
    made = create_backbone("pooled", embedding_size=7)
    assert (made.out_features, made.embedding_size, made.embedding_norm) == (7, 7, None)
    register_backbone(pooled)  # as by a file that runs again

    def other(config: Backbone) -> nn.Module:
        return nn.Linear(4, config.embedding_size)

    other.__name__ = "pooled"
    with pytest.raises(ValueError, match="'pooled' is already registered"):
        register_backbone(other)
    assert create_backbone("pooled", embedding_size=7).in_features == 3
