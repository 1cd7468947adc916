"""A training set without files, small recipes, and comparisons of what two devices computed."""

from __future__ import annotations

import os
import tempfile
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from facerec.backbones import Backbone
from facerec.heads import SEC, ArcFace, Margin, OwnMargin
from facerec.heads.margin_softmax import margin_softmax
from facerec.records import Data, FaceDataset, ImageSource
from facerec.records.dataset import Batch, BatchRequest
from facerec.training import SGD, Checkpoints, Polynomial, Recipe
from facerec.training.distributed import Processes
from facerec.training.learner import Learner
from facerec.training.trainer import Trainer

NEED_TRITON = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"),
        reason="Triton's kernels need CUDA, or TRITON_INTERPRET=1",
    ),
]
"""Marks of a file about Triton's kernels."""

PEOPLE = 40


class Sizes(ImageSource):
    """Numbers of images and people."""

    num_classes = PEOPLE

    def __len__(self) -> int:
        return 4 * PEOPLE

    def sample(self, i: int) -> tuple[bytes, int]:
        raise NotImplementedError

    where = encoded = read_labels = sample  # type: ignore[assignment]


class Patches(FaceDataset):
    """Noisy coloured patches, one colour a person, drawn when they are asked for."""

    def __init__(self) -> None:
        super().__init__(Sizes())

    def __getitems__(self, request: BatchRequest) -> Batch:
        indices = torch.as_tensor(np.asarray(request.indices))
        images = torch.empty(len(indices), 112, 112, 3, dtype=torch.uint8)
        for row, index in enumerate(indices.tolist()):
            person = torch.Generator().manual_seed(index % PEOPLE)
            noise = torch.Generator().manual_seed(1000 + index)
            face = torch.rand(3, 7, 7, generator=person)
            face = torch.nn.functional.interpolate(face[None], size=112)[0]
            noisy = 0.7 * face + 0.3 * torch.rand(face.shape, generator=noise)
            images[row] = (255 * noisy).byte().permute(1, 2, 0)
        return Batch(images, indices % PEOPLE, indices, [])


def small_recipe(**changes: Any) -> Recipe:
    recipe = Recipe(
        data=Data(Path()),
        backbone=Backbone("iresnet18", embedding_size=32, width=0.125),
        margin=ArcFace(scale=16.0, margin=0.3),
        regularizer=SEC(weight=0.5, rho=0.5),
        optimizer=SGD(lr=0.02),
        schedule=Polynomial(warmup_epochs=0.5),
        checkpoints=Checkpoints(every_steps=1000, keep=2),
        batch_size=16,
        epochs=2,
        precision="fp32",
        deterministic=True,
        compile=False,
        workers=0,
        log_every=1,
    )
    return replace(recipe, **changes)


def trainer_on(device: torch.device, recipe: Recipe, folder: Path | None = None) -> Trainer:
    folder = folder or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    return Trainer(Learner(recipe, Patches(), Processes(0, 1, device)), folder, Console(quiet=True))


def a_batch(device: torch.device | None = None, size: int = 16, start: int = 0) -> Batch:
    batch = Patches().__getitems__(BatchRequest(0, np.arange(start, start + size)))
    if device is not None:
        batch = replace(batch, images=batch.images.to(device), labels=batch.labels.to(device))
    return batch


def state(trainer: Trainer) -> dict[str, Tensor]:
    """The whole training state by name, on the CPU."""
    tensors = trainer.learner.state.tensors()
    plain = {n: t.to_local() if hasattr(t, "to_local") else t for n, t in tensors.items()}
    return {name: tensor.detach().cpu().clone() for name, tensor in plain.items()}


def assert_same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖ in float64; of a zero the norm of what was found."""
    found, expected = (t.detach().cpu().double() for t in (found, expected))
    assert found.isfinite().all() and expected.isfinite().all()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


MARGINS = [kind() for kind in typing.get_args(Margin) if kind is not OwnMargin]


def inputs(samples: int = 48, classes: int = 1003, size: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, centres and labels; the sizes are no multiples of a tile."""
    generator = torch.Generator().manual_seed(0)
    embeddings = 20 * torch.randn(samples, size, generator=generator)
    weight = torch.randn(classes, size, generator=generator)
    return embeddings, weight, torch.randint(classes, (samples,), generator=generator)


def computed(
    device: torch.device, dtype: torch.dtype, margin: Margin, sizes: Any = (), **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, and gradients of embeddings and centres."""
    embeddings, weight, labels = inputs(*sizes)
    embeddings, weight = (t.to(device, dtype).requires_grad_() for t in (embeddings, weight))
    with torch.random.fork_rng(devices=[]):
        found = margin_softmax(embeddings, weight, labels.to(device), margin, step=500, **options)
        found.loss.backward()
    return found.loss.detach(), embeddings.grad, weight.grad


def largest_error(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    return max(relative_error(a, b) for a, b in zip(found, expected, strict=True))


@contextmanager
def no_host_waits(device: torch.device) -> Iterator[None]:
    """Fail where the host waits for the device."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize(device)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
