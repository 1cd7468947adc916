"""One training: the same for the same seed, the best epoch kept, failures named."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_comparison import BASE, SIDE, WITH_SEC, protocol

from facerec.comparison.fit import ArmTrainer, Fit
from facerec.comparison.losses import MetricLoss
from facerec.comparison.protocol import Arm, ClassBatch, Protocol
from facerec.comparison.retrieval import retrieve
from facerec.comparison.splits import Fold, select_classes, split_classes
from facerec.heads import SEC, RingLoss
from facerec.training import SGD, Adam, RMSprop

FOLD = split_classes(16).folds[0]


def fitted(trainer: ArmTrainer, arm: Arm = BASE, seed: int = 1, **changes: Any) -> Fit:
    return trainer.fit(arm, protocol(**changes), FOLD, seed)[0]


def same(first: Fit, second: Fit) -> bool:
    return replace(first, seconds=0.0) == replace(second, seconds=0.0)


def test_the_same_seed_gives_the_same_training(trainer: ArmTrainer) -> None:
    torch.manual_seed(5)
    first = fitted(trainer)
    torch.manual_seed(6)
    state = torch.get_rng_state()
    assert same(first, fitted(trainer)) and not same(first, fitted(trainer, seed=2))
    assert torch.equal(state, torch.get_rng_state())
    assert first.score is not None and first.score == first.curve[first.epoch]


def test_a_penalty_of_weight_zero_changes_nothing(trainer: ArmTrainer) -> None:
    """So the arm with SEC contains the arm without, and pairs of arms see the same data."""
    without = fitted(trainer)
    zero = fitted(trainer, replace(WITH_SEC, regularizer=SEC(weight=0.0)))
    assert same(zero, without)


def test_the_best_epoch_is_returned(trainer: ArmTrainer) -> None:
    setup = protocol(optimizer=Adam(lr=0.03), epochs=8, patience=8)
    fit, trunk = trainer.fit(BASE, setup, FOLD, seed=3)
    assert fit.score == max(fit.curve) and fit.epoch == fit.curve.index(max(fit.curve))
    positions, _ = select_classes(trainer.labels, FOLD.validation)
    found = retrieve(trainer.embed(trunk, positions, protocol()), trainer.labels[positions])
    assert found.means()["map_at_r"] == fit.score
    assert not trunk.training


def test_training_uses_its_classes_alone(
    trainer: ArmTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other pixels in validation and test classes change no weight."""
    seen: list[np.ndarray] = []
    reader = trainer._reader(protocol())
    original = reader.train

    def watched(positions: np.ndarray, *args: Any) -> torch.Tensor:
        seen.append(positions)
        return original(positions, *args)

    monkeypatch.setattr(reader, "train", watched)
    fitted(trainer)
    classes = set(trainer.labels[np.concatenate(seen)].tolist())
    assert classes == set(FOLD.train.tolist())
    assert classes.isdisjoint(FOLD.validation.tolist())


def naive_step(trainer: ArmTrainer, setup: Protocol, fold: Fold) -> torch.Tensor:
    """One plain step of triplets and SEC, written out."""
    from facerec.comparison.batches import class_batches
    from facerec.comparison.trunks import create_trunk

    positions, targets = select_classes(trainer.labels, fold.train)
    trunk = create_trunk(setup.trunk, 4, SIDE)
    optimizer = torch.optim.SGD(trunk.parameters(), lr=0.1)
    places = class_batches(targets, 4, 2, 4, 1, 1)[0]
    augmented = trainer._reader(setup).train(positions[places], 4, 0).numpy()
    x = (torch.from_numpy(augmented).permute(0, 3, 1, 2).float() - 127.5) / 127.5
    f = trunk(x)
    unit = f / f.norm(dim=1, keepdim=True)
    losses = []
    labels = targets[places]
    for a, p, n in itertools.product(range(8), repeat=3):
        if a != p and labels[a] == labels[p] != labels[n]:
            margin = (unit[a] - unit[p]).norm() - (unit[a] - unit[n]).norm() + 0.05
            if margin > 0:
                losses.append(margin)
    norms = f.norm(dim=1)
    loss = torch.stack(losses).mean() + 0.5 * (norms - norms.mean().detach()).square().mean()
    loss.backward()
    optimizer.step()
    return trunk.trunk[-1].weight.detach()


def test_a_step_is_what_it_should_be(trainer: ArmTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SGD(lr=0.1, momentum=0.0, weight_decay=0.0)
    setup = protocol(optimizer=plain, steps_per_epoch=1, epochs=1)
    arm = Arm("a", MetricLoss("Triplet", margin=0.05), SEC(weight=0.5))
    seen: list[torch.Tensor] = []
    original = trainer._validate

    def watched(trunk: Any, *args: Any) -> Any:
        seen.append(trunk.trunk[-1].weight.detach().clone())
        return original(trunk, *args)

    monkeypatch.setattr(trainer, "_validate", watched)
    trainer.fit(arm, setup, FOLD, seed=4)
    torch.testing.assert_close(seen[1], naive_step(trainer, setup, FOLD), atol=1e-6, rtol=1e-4)
    assert not torch.equal(seen[0], seen[1])


RMSPROP = RMSprop(lr=1e-3, momentum=0.9)


@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        (Arm("a", MetricLoss("NTXent", views=2)), {"batch": ClassBatch(6, 1)}),
        (Arm("a", MetricLoss("SupCon", views=2)), {}),
        (Arm("a", MetricLoss("Triplet"), RingLoss(weight=0.1)), {"optimizer": RMSPROP}),
        (Arm("a", MetricLoss("NormalizedSoftmax"), loss_lr=1.0), {}),
    ],
)
def test_options_train_and_repeat(trainer: ArmTrainer, arm: Arm, changes: dict[str, Any]) -> None:
    first, second = (fitted(trainer, arm, **changes) for _ in range(2))
    assert same(first, second) and first.failure is None


def test_training_that_diverges_ends_without_a_score(trainer: ArmTrainer) -> None:
    setup = protocol(optimizer=SGD(lr=1e12))
    fit, _ = trainer.fit(Arm("wild", MetricLoss("Contrastive")), setup, FOLD, seed=1)
    assert fit.score is None and fit.failure is not None and "epoch" in fit.failure
