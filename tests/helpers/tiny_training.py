"""A small training set, a backbone without batch-norm, and training over several ranks."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch
from rich.console import Console
from torch import nn

from facerec.backbones import Backbone, register_backbone
from facerec.heads import SEC, ArcFace
from facerec.records import Augmentation, Data, open_dataset
from facerec.records.layout import write_image_records
from facerec.training import SGD, Checkpoints, Polynomial, Recipe
from facerec.training.distributed import Processes
from facerec.training.learner import Learner
from facerec.training.trainer import Trainer

_SCRATCH = tempfile.TemporaryDirectory(prefix="runs")
"""Of runs that nobody looks into."""


class Linear(nn.Module):
    """Mean colours of 8×8 tiles → embedding: no batch-norm, so equal over any cut of the batch."""

    def __init__(self, embedding_size: int) -> None:
        super().__init__()
        self.embedding_size = embedding_size
        self.embedding_norm = None
        self.fc = nn.Linear(3 * 8 * 8, embedding_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tiles = nn.functional.avg_pool2d(x, 14).flatten(1)
        return self.fc(tiles.float())


@register_backbone
def tiny_linear(config: Backbone) -> nn.Module:
    return Linear(config.embedding_size)


def write_training_set(folder: Path, people: int = 7, images: int = 8) -> Path:
    """Write records of noisy colour patches; with 7 people the class shards are uneven."""
    generator = np.random.default_rng(0)

    def items():  # type: ignore[no-untyped-def]
        for person in range(people):
            face = generator.integers(0, 255, (7, 7, 3))
            for number in range(images):
                noisy = np.clip(face + generator.normal(0, 25, face.shape), 0, 255).astype(np.uint8)
                pixels = cv2.resize(noisy, (112, 112), interpolation=cv2.INTER_CUBIC)
                ok, jpeg = cv2.imencode(".jpg", pixels)
                assert ok
                yield person, f"{person}/{number}.jpg", jpeg.tobytes()

    folder.mkdir(parents=True, exist_ok=True)
    write_image_records(folder / "train", items(), num_classes=people)
    return folder


def tiny_recipe(data: Path, **changes: object) -> Recipe:
    recipe = Recipe(
        data=Data(path=data, augmentation=Augmentation(flip=0.5)),
        backbone=Backbone(name="tiny_linear", embedding_size=16),
        margin=ArcFace(scale=16.0, margin=0.3),
        regularizer=SEC(weight=0.5, rho=0.5),
        optimizer=SGD(lr=0.05),
        schedule=Polynomial(warmup_epochs=0.5),
        checkpoints=Checkpoints(every_steps=1000, keep=2),
        batch_size=12,
        epochs=2,
        precision="fp32",
        workers=0,
        log_every=1,
    )
    return replace(recipe, **changes)  # type: ignore[arg-type]


def narrow_recipe(data: Path, **changes: object) -> Recipe:
    """A real backbone with dropout, so that every kind of state counts."""
    backbone = Backbone(name="iresnet18", embedding_size=16, width=0.125, dropout=0.3)
    return tiny_recipe(data, backbone=backbone, **changes)


def make_trainer(
    recipe: Recipe, folder: Path | None = None, processes: Processes | None = None
) -> Trainer:
    processes = processes or Processes(0, 1, torch.device("cpu"))
    learner = Learner(recipe, open_dataset(recipe.data, recipe.seed), processes)
    folder = folder or Path(tempfile.mkdtemp(dir=_SCRATCH.name))
    folder.mkdir(parents=True, exist_ok=True)
    return Trainer(learner, folder, Console(quiet=True))


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The whole training state by name; sharded tensors only as this rank's rows."""
    tensors = trainer.learner.state.tensors()
    plain = {n: t.to_local() if hasattr(t, "to_local") else t for n, t in tensors.items()}
    return {name: tensor.detach().clone() for name, tensor in plain.items()}
