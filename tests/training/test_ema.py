"""The moving average of weights: its numbers, its file, its checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.lives import noisy_recipe
from helpers.training_runs import assert_same, trained
from safetensors import safe_open

from facerec.embedding import load_model
from facerec.training.ema import WeightAverage


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.999])
def test_the_average_is_that_of_a_naive_loop(decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).double()
    average = WeightAverage(module, decay)
    wanted = {name: value.clone() for name, value in module.state_dict().items()}
    for step in range(1, 30):
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.randn(value.shape, generator=generator, dtype=value.dtype))
            else:
                value += 3
        average.update(step)
        d = min(decay, step / (9 + step))
        for name, value in module.state_dict().items():
            new = d * wanted[name] + (1 - d) * value if value.is_floating_point() else value
            wanted[name] = new.clone()
    for name, value in average.module.state_dict().items():
        torch.testing.assert_close(value, wanted[name], msg=name)
    assert not average.module.training
    assert not any(p.requires_grad for p in average.module.parameters())


@pytest.mark.parametrize("recompute", [False, True])
def test_the_average_is_the_model_and_the_weights_are_kept(
    data: Path, tmp_path: Path, recompute: bool
) -> None:
    recipe = noisy_recipe(data, ema=0.9, recompute=recompute)
    trainer = trained(recipe, folder=tmp_path)
    plain = trained(replace(recipe, ema=None))
    assert_same(
        plain.learner.backbone.state_dict(), trainer.learner.backbone.state_dict()
    )  # a bystander
    for name, backbone, holds in (
        ("model.safetensors", trainer.learner.average.module, '"weights": "ema"'),
        ("raw.safetensors", trainer.learner.backbone, '"weights": "raw"'),
    ):
        saved = load_model(tmp_path / name).backbone  # type: ignore[attr-defined]
        assert_same(saved.state_dict(), dict(backbone.state_dict()))
        with safe_open(tmp_path / name, framework="pt") as file:
            assert holds in file.metadata()["facerec"]
    averaged = dict(trainer.learner.average.module.named_parameters())
    same = [n for n, p in plain.learner.backbone.named_parameters() if torch.equal(p, averaged[n])]
    assert same == []
