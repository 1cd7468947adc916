"""Recipes that cannot be trained: each is refused in one sentence with the words that help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_training import make_trainer, tiny_recipe

from facerec.backbones import Backbone
from facerec.base.errors import FacerecError
from facerec.records import Data, Part
from facerec.training import Distillation, Finetune, Head, Init

TEACHER = Distillation(Path("gone.onnx"))
FROZEN = Finetune(freeze_steps=1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"margin": None}, "nothing to learn"),
        ({"terms": (("nix", 1.0),)}, "no term 'nix'"),
        ({"head": {"sample_rate": 0.0}}, "Head.sample_rate"),
        ({"recompute": True}, "blocks"),
        ({"batch_size": 12, "accumulation": 5}, "does not divide among"),
        ({"batch_size": 1000}, "fewer than one batch"),
        ({"init": {"strict": False}}, "init.path"),
        ({"init": Init(Path("gone.pth"))}, "gone.pth"),
        ({"margin": None, "distillation": TEACHER, "finetune": FROZEN}, "centres"),
        ({"finetune": Finetune(layer_decay=0.5)}, "blocks"),
        ({"distillation": TEACHER}, "gone.onnx"),
        ({"distillation": {"teacher": Path("t.onnx"), "mixup": 0.5}}, "distillation.views"),
        ({"unlabelled": True}, "without a teacher"),
        ({"unlabelled": True, "distillation": TEACHER, "sampling": "balanced"}, "shuffle"),
        ({"backbone": Backbone("iresnet19")}, "iresnet19"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_trained_is_refused(data: Path, changes: dict[str, Any], words: str) -> None:
    kinds = {"head": Head, "init": Init, "finetune": Finetune, "distillation": Distillation}
    with pytest.raises(FacerecError, match=words.replace(".", r"\.")) as caught:
        given = {
            name: kinds[name](**value) if name in kinds and isinstance(value, dict) else value
            for name, value in changes.items()
        }
        if given.pop("unlabelled", False):
            given["data"] = Data(data, also=(Part(data, labelled=False),))
        make_trainer(replace(tiny_recipe(data), **given)).learner.initialize()
    assert "\n" not in str(caught.value)
