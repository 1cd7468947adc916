"""Heads and penalties on the GPU against the CPU in float64."""

from __future__ import annotations

import typing
from typing import Any

import pytest
import torch
from torch import Tensor

from facerec.heads import (
    ArcFace,
    Margin,
    MarginClassifier,
    NormRegularizer,
    OwnMargin,
)
from facerec.heads.margin_softmax import margin_softmax
from facerec.heads.norm_regularizer import NormPenalty
from facerec.heads.tiles import TileSettings
from tests.cuda.small import no_host_waits, relative_error

pytestmark = pytest.mark.cuda

MARGINS = [kind() for kind in typing.get_args(Margin) if kind is not OwnMargin]
PENALTIES = [kind(weight=0.7) for kind in typing.get_args(NormPenalty)]
CLASSES, SIZE, BATCH = 1003, 64, 48  # no multiples of a tile


def inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    embeddings = 20 * torch.randn(BATCH, SIZE, generator=generator)
    weight = torch.randn(CLASSES, SIZE, generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return embeddings, weight, labels


def computed(
    device: torch.device, dtype: torch.dtype, margin: Margin, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, and gradients of embeddings and centres."""
    embeddings, weight, labels = inputs()
    embeddings, weight = (t.to(device, dtype).requires_grad_() for t in (embeddings, weight))
    with torch.random.fork_rng(devices=[]):
        found = margin_softmax(embeddings, weight, labels.to(device), margin, step=500, **options)
        found.loss.backward()
    return found.loss, embeddings.grad, weight.grad


def errors(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> list[float]:
    return [relative_error(a, b) for a, b in zip(found, expected, strict=True)]


@pytest.mark.parametrize("margin", MARGINS, ids=lambda margin: type(margin).__name__)
def test_a_margin_in_float64_and_float32(device: torch.device, margin: Margin) -> None:
    expected = computed(torch.device("cpu"), torch.float64, margin)
    assert max(errors(computed(device, torch.float64, margin), expected)) < 1e-11
    assert max(errors(computed(device, torch.float32, margin), expected)) < 2e-4


@pytest.mark.parametrize("margin", MARGINS, ids=lambda margin: type(margin).__name__)
def test_a_margin_with_products_in_bf16(device: torch.device, margin: Margin) -> None:
    expected = computed(torch.device("cpu"), torch.float64, margin)
    loss, to_embeddings, to_weight = computed(
        device, torch.float32, margin, settings=TileSettings(reduced=True)
    )
    assert relative_error(loss, expected[0]) < 2e-2
    # Logits up to 64 are rounded to 8 bits, and slopes follow their exponentials.
    assert relative_error(to_embeddings, expected[1]) < 0.15
    assert relative_error(to_weight, expected[2]) < 0.15


@pytest.mark.parametrize("sample_rate", [1.0, 0.2])
def test_the_sharded_head(device: torch.device, sample_rate: float) -> None:
    embeddings, _, labels = inputs()
    found = []
    for where in (torch.device("cpu"), device):
        head = MarginClassifier(
            CLASSES, SIZE, ArcFace(), seed=3, center_init="normal", sample_rate=sample_rate
        ).to(where)
        x = embeddings.to(where).requires_grad_()
        y = labels.to(where)
        head.draw(y, 0)
        if sample_rate < 1:  # each device draws others with its own generator
            assert head.classes is not None and torch.isin(y, head.classes).all()
            head.classes = torch.arange(0, CLASSES, device=where)[::2]
            head.classes = torch.cat([head.classes, y]).unique()
        with no_host_waits(where):
            output = head(x, y)
            output.loss.backward()
        weight = head.weight.grad
        assert weight is not None and weight.is_sparse == (sample_rate < 1)
        found.append((output.loss, output.figures["target_cosine"], x.grad, weight.to_dense()))
    assert max(errors(found[1], found[0])) < 2e-4


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: type(penalty).__name__)
def test_a_penalty(device: torch.device, penalty: NormPenalty) -> None:
    embeddings, _, _ = inputs()
    found = []
    for where in (torch.device("cpu"), device):
        regularizer = NormRegularizer(penalty).to(where)
        results: list[Tensor] = []
        for _ in range(3):  # moving averages and learned radii change
            x = embeddings.to(where).requires_grad_()
            output = regularizer(x, progress=0.5)
            output.loss.backward()
            results += [output.loss, x.grad]
        found.append(tuple(results))
    assert max(errors(found[1], found[0])) < 1e-5
