"""Steps with sampled classes: what changes, resumed, in micro-batches and over ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_training import (
    make_trainer,
    tiny_recipe,
    weights,
)
from helpers.training_runs import (
    assert_close,
    assert_resumes,
    assert_same,
    joined,
    over_ranks,
    trained,
)

from facerec.training import (
    Adam,
    AdamW,
    Head,
    RMSprop,
)

SAMPLED = Head(sample_rate=0.5)


def test_only_drawn_classes_change(many: Path) -> None:
    trainer = make_trainer(tiny_recipe(many, head=Head(sample_rate=0.3)))
    before = trainer.learner.head.weight.detach().clone()
    batch = next(trainer.batches())
    trainer.learner.train_step(batch)
    drawn = trainer.learner.head.classes
    assert drawn is not None and len(drawn) == 13
    assert set(batch.labels.tolist()) <= set(drawn.tolist())
    changed = (trainer.learner.head.weight != before).any(dim=1).nonzero()[:, 0]
    assert torch.equal(changed, drawn)


OPTIMIZERS = [{"optimizer": each} for each in (AdamW(lr=1e-2), Adam(lr=1e-2), RMSprop())]


# fp16 comes with a gradient scaler.
@pytest.mark.parametrize("changes", [{}, *OPTIMIZERS, {"precision": "fp16"}], ids=str)
def test_sampled_resumed_equals_uninterrupted(
    many: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert_resumes(tiny_recipe(many, head=SAMPLED, **changes), tmp_path)


def test_sampled_micro_batches_add_up(many: Path) -> None:
    whole = trained(tiny_recipe(many, head=SAMPLED))
    parts = trained(tiny_recipe(many, head=SAMPLED, accumulation=3))
    assert_close(weights(whole), weights(parts))


@pytest.mark.integration
def test_two_ranks_with_sampled_classes_resume_bit_for_bit(many: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(many, head=SAMPLED)
    whole = joined(over_ranks(2, tmp_path / "whole", recipe))
    over_ranks(2, tmp_path / "part", recipe, "stop")
    assert_same(whole, joined(over_ranks(2, tmp_path / "part", recipe, "resume")))
