"""Rates by depth, layers that rest, batch norms that keep their statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.lives import noisy_recipe
from helpers.tiny_training import make_trainer, narrow_recipe, weights
from helpers.tiny_training import write_training_set as write
from helpers.training_runs import assert_same, joined, over_ranks, trained
from torch import nn

from facerec.backbones import Backbone, create_backbone
from facerec.errors import RecipeError
from facerec.training import SGD, Adam, AdamW, Finetune, RMSprop
from facerec.training.finetuning import rate_factors


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records"))


def small(name: str) -> nn.Module:
    return create_backbone(Backbone(name, embedding_size=16, width=0.125), seed=0)


def factors_by_name(backbone: nn.Module, config: Finetune) -> dict[str, float]:
    factors = rate_factors(backbone, config)
    return {name: factors[id(p)] for name, p in backbone.named_parameters()}


# ---------------------------------------------------------------- rates


def test_the_factor_falls_with_each_block_away_from_the_embedding() -> None:
    found = factors_by_name(small("iresnet18"), Finetune(rate_factor=0.5, layer_decay=0.8))
    for name, factor in found.items():
        parts = name.split(".")
        if parts[0].startswith("layer"):
            unit = 1 + 2 * (int(parts[0][5:]) - 1) + int(parts[1])
        else:
            unit = 9 if parts[0] in ("bn2", "fc", "features") else 0
        assert factor == pytest.approx(0.5 * 0.8 ** (9 - unit)), name


@pytest.mark.parametrize("optimizer", [SGD(lr=0.2), AdamW(lr=0.2)])
def test_schedules_and_factors_multiply(data: Path, optimizer: Any) -> None:
    config = Finetune(rate_factor=0.5, layer_decay=0.7)
    trainer = make_trainer(noisy_recipe(data, optimizer=optimizer, finetune=config))
    wanted = rate_factors(trainer.learner.backbone, config)
    batches = trainer.batches()
    for _ in range(3):
        step = trainer.learner.step
        factor = trainer.recipe.schedule.factor(step, 8, 4)
        trainer.learner.train_step(next(batches))
        assert trainer.learner.lr == pytest.approx(0.2 * factor)
        seen = 0
        for group in trainer.learner.optimizer.param_groups:
            for parameter in group["params"]:
                assert group["lr"] == pytest.approx(
                    trainer.learner.lr * wanted.get(id(parameter), 1.0)
                )
                seen += 1
        assert (
            seen == len([p for p in trainer.learner.backbone.parameters() if p.requires_grad]) + 1
        )


def test_a_step_of_plain_sgd_moves_each_tensor_by_its_factor(data: Path) -> None:
    """Without momentum, decay and clipping, a step is −rate · factor · gradient."""
    moved = {}
    config = Finetune(rate_factor=0.5, layer_decay=0.7)
    for finetune in (Finetune(), config):
        recipe = noisy_recipe(
            data,
            optimizer=SGD(lr=0.01, momentum=0.0, weight_decay=0.0),
            clip_norm=None,
            finetune=finetune,
        )
        trainer = make_trainer(recipe)
        before = {n: p.detach().clone() for n, p in trainer.learner.backbone.named_parameters()}
        trainer.learner.train_step(next(trainer.batches()))
        moved[finetune] = {
            n: p.detach() - before[n] for n, p in trainer.learner.backbone.named_parameters()
        }
    for name, factor in factors_by_name(trainer.learner.backbone, config).items():
        torch.testing.assert_close(
            moved[config][name], factor * moved[Finetune()][name], rtol=0.02, atol=2e-7, msg=name
        )


# ---------------------------------------------------------------- resting

OPTIMIZERS = [
    SGD(lr=0.05),
    AdamW(lr=1e-2),
    Adam(lr=1e-2, weight_decay=0.1),
    RMSprop(lr=1e-2, momentum=0.9, weight_decay=0.1),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_what_rests_stays_bit_for_bit(data: Path, optimizer: Any) -> None:
    recipe = noisy_recipe(
        data, optimizer=optimizer, finetune=Finetune(freeze_steps=3), accumulation=2
    )
    trainer = make_trainer(recipe)
    before = {name: value.clone() for name, value in trainer.learner.backbone.state_dict().items()}
    head = trainer.learner.head.weight.detach().clone()
    batches = trainer.batches()
    for _ in range(3):
        trainer.learner.train_step(next(batches))
        assert trainer.learner.freezing.whole
        assert_same(before, trainer.learner.backbone.state_dict())  # statistics too
        assert not torch.equal(head, trainer.learner.head.weight)
    state = [trainer.learner.optimizer.state[p] for p in trainer.learner.backbone.parameters()]
    assert not any(v.any() for values in state for v in values.values())  # no momentum either
    trainer.learner.train_step(next(batches))
    still = [
        n for n, v in trainer.learner.backbone.state_dict().items() if torch.equal(v, before[n])
    ]
    assert still == []


def test_layers_can_rest_alone(data: Path) -> None:
    config = Finetune(freeze_steps=2, freeze_layers=("layers.0", "layers.1"))
    trainer = make_trainer(noisy_recipe(data, finetune=config))
    before = {name: value.clone() for name, value in trainer.learner.backbone.state_dict().items()}
    batches = trainer.batches()
    for step in range(3):
        trainer.learner.train_step(next(batches))
        assert not trainer.learner.freezing.whole
        for name, value in trainer.learner.backbone.state_dict().items():
            rests = step < 2 and name.startswith(("layers.0.", "layers.1."))
            assert torch.equal(value, before[name]) == rests, name
    assert all(module.training for module in trainer.learner.backbone.modules())
    wrong = Finetune(freeze_steps=1, freeze_layers=("layers.00",))
    with pytest.raises(RecipeError, match=r"freeze_layers.*'layers.00'.*did you mean"):
        make_trainer(noisy_recipe(data, finetune=wrong))
    with pytest.raises(RecipeError, match="freeze_steps"):
        Finetune(freeze_layers=("conv1",))


@pytest.mark.parametrize("layers", [(), ("layers.0", "layers.1")], ids=["whole", "part"])
def test_frozen_for_good_is_resting_to_the_end_without_a_backward_pass(
    data: Path, layers: tuple[str, ...]
) -> None:
    resting = noisy_recipe(data, finetune=Finetune(freeze_steps=10_000, freeze_layers=layers))
    frozen = noisy_recipe(data, finetune=Finetune(freeze_steps=None, freeze_layers=layers))
    trainer, end = trained(frozen), weights(trained(resting))
    own = weights(trainer)
    assert own.keys() >= {name for name in end if name.startswith(("backbone.", "head."))}
    assert_same({name: end[name] for name in own}, own)
    learns = [name for name, p in trainer.learner.backbone.named_parameters() if p.requires_grad]
    assert bool(learns) == bool(layers)
    assert not any(name.startswith(layers or ("",)) for name in learns)


def test_frozen_statistics_stay_and_weights_learn(data: Path) -> None:
    trainer = trained(noisy_recipe(data, finetune=Finetune(batch_norm="frozen")))
    fresh = make_trainer(noisy_recipe(data))
    for name, value in trainer.learner.backbone.state_dict().items():
        first = fresh.learner.backbone.state_dict()[name]
        fixed = name.split(".")[-1] in ("running_mean", "running_var", "num_batches_tracked")
        assert torch.equal(value, first) == fixed, name


@pytest.mark.integration
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": AdamW(lr=1e-2), "finetune": Finetune(freeze_steps=4)},
        {"optimizer": SGD(), "finetune": Finetune(0.3, 0.8, 4, ("layers.0",), "frozen")},
        {"precision": "fp16", "finetune": Finetune(freeze_steps=4)},
        {"on_nonfinite": "skip", "finetune": Finetune(freeze_steps=4), "ema": 0.9},
    ],
    ids=["adamw", "sgd-layers", "fp16", "skipping"],
)
@pytest.mark.parametrize("stop", [2, 4, 6])
def test_resumed_while_resting_or_after_equals_uninterrupted(
    data: Path, tmp_path: Path, changes: dict[str, Any], stop: int
) -> None:
    recipe = noisy_recipe(data, **changes)
    whole = trained(recipe)
    trained(recipe, steps=stop, folder=tmp_path)
    resumed = make_trainer(recipe, tmp_path)
    resumed.resume()
    resumed.fit()
    assert_same(weights(whole), weights(resumed))


@pytest.mark.integration
@pytest.mark.parametrize("layers", [(), ("conv1", "layer1")], ids=["whole", "part"])
def test_two_ranks_rest_and_resume_bit_for_bit(
    data: Path, tmp_path: Path, layers: tuple[str, ...]
) -> None:
    config = Finetune(0.5, freeze_steps=4, freeze_layers=layers)
    recipe = narrow_recipe(data, finetune=config, ema=0.9)
    whole = over_ranks(2, tmp_path / "whole", recipe)
    over_ranks(2, tmp_path / "cut", recipe, "stop")
    resumed = over_ranks(2, tmp_path / "cut", recipe, "resume")
    for first, second in zip(whole, resumed, strict=True):
        assert_same(first, second)
    joined(resumed)  # both ranks have the same weights
