"""Options of the engine that must not change, or hardly change, what is learned."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.lives import noisy_recipe
from helpers.thin import thinned
from helpers.tiny_training import make_trainer, narrow_recipe, tiny_recipe, weights
from helpers.training_runs import assert_same, joined, over_ranks, trained

from facerec.backbones import create_backbone, recompute_activations
from facerec.training import DataParallel

# ---------------------------------------------------------------- activations


@pytest.mark.parametrize("compile_it", ["auto", False, True])
def test_auto_compiles_on_a_gpu_alone(many: Path, compile_it: Any) -> None:
    learner = make_trainer(narrow_recipe(many, compile=compile_it)).learner
    assert learner.compiled == (compile_it is True)


@pytest.mark.integration
def test_compiled_steps_that_recompute_equal_plain_ones(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    plain = trained(noisy_recipe(many, accumulation=2, ema=0.9), steps=2)
    changes = {"accumulation": 2, "ema": 0.9, "compile": True, "recompute": True}
    again = trained(noisy_recipe(many, **changes), steps=2)
    assert again.learner.compiled
    assert_same(weights(plain), weights(again))


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, None) for name in ("iresnet18", "iresnet50", "mbf", "mbf_large", "vit_t")),
        # The graphs that are compiled, whose operations run as they are.
        *thinned([("mobilefacenet_half", "aot_eager_decomp_partition")], lambda *_: False),
    ],
)
def test_backbones_keep_less_when_they_recompute(name: str, backend: str | None) -> None:
    def kept(recompute: bool) -> tuple[int, list[torch.Tensor]]:
        backbone = create_backbone(name, width=0.125, embedding_size=8, seed=0)
        if recompute:
            recompute_activations(backbone)
        storages: dict[int, int] = {}

        def remember(tensor: torch.Tensor) -> torch.Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        network: Any = torch.compile(backbone, backend=backend) if backend else backbone
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(2, 3, 112, 112, generator=generator)
        with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
            loss = network(images).square().sum()
        loss.backward()
        found = [p.grad for p in backbone.parameters() if p.grad is not None]
        return sum(storages.values()), [*found, *backbone.buffers()]

    plain, expected = kept(False)
    less, found = kept(True)
    assert less < 0.5 * plain
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


# ---------------------------------------------------------------- several ranks


@pytest.mark.integration
def test_compressed_gradients_are_rounded(many: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(many)
    rounded = replace(recipe, data_parallel=DataParallel(compression="fp16"))
    name = "backbone.fc.weight"
    plain = joined(over_ranks(2, tmp_path / "plain", recipe))[name]
    other = joined(over_ranks(2, tmp_path / "other", rounded))[name]
    assert 0 < (plain - other).norm() / plain.norm() < 0.01
