"""Rates by depth, layers that rest, batch norms that keep their statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.lives import noisy_recipe
from helpers.tiny_training import make_trainer, weights
from helpers.training_runs import assert_resumes, assert_same, trained
from torch import nn

from facerec.backbones import Backbone, create_backbone
from facerec.training import SGD, Adam, AdamW, Finetune, RMSprop
from facerec.training.finetuning import rate_factors


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
    state = trainer.learner.stepper.optimizer.state
    state = [state[p] for p in trainer.learner.backbone.parameters()]
    assert not any(v.any() for values in state for v in values.values())  # no momentum either
    trainer.learner.train_step(next(batches))
    still = [
        n for n, v in trainer.learner.backbone.state_dict().items() if torch.equal(v, before[n])
    ]
    assert still == []


def test_frozen_statistics_stay_and_weights_learn(data: Path) -> None:
    trainer = trained(noisy_recipe(data, finetune=Finetune(batch_norm="frozen")))
    fresh = make_trainer(noisy_recipe(data))
    for name, value in trainer.learner.backbone.state_dict().items():
        first = fresh.learner.backbone.state_dict()[name]
        fixed = name.split(".")[-1] in ("running_mean", "running_var", "num_batches_tracked")
        assert torch.equal(value, first) == fixed, name


def test_frozen_for_good_is_resting_to_the_end(data: Path) -> None:
    resting = weights(trained(noisy_recipe(data, finetune=Finetune(freeze_steps=10_000))))
    own = weights(trained(noisy_recipe(data, finetune=Finetune(freeze_steps=None))))
    assert own.keys() >= {name for name in resting if name.startswith(("backbone.", "head."))}
    assert_same({name: resting[name] for name in own}, own)


@pytest.mark.integration
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": AdamW(lr=1e-2), "finetune": Finetune(freeze_steps=4)},
        {"optimizer": SGD(), "finetune": Finetune(0.3, 0.8, 4, "frozen"), "ema": 0.9},
        {"precision": "fp16", "finetune": Finetune(freeze_steps=4)},
    ],
    ids=["adamw", "sgd", "fp16"],
)
@pytest.mark.parametrize("stop", [2, 6])
def test_resumed_while_resting_or_after_equals_uninterrupted(
    data: Path, tmp_path: Path, changes: dict[str, Any], stop: int
) -> None:
    assert_resumes(noisy_recipe(data, **changes), tmp_path, stop)
