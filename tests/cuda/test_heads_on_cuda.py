"""Heads and penalties on the GPU against the CPU in float64."""

from __future__ import annotations

import typing

import pytest
import torch
from torch import Tensor

from facerec.heads import ArcFace, Margin, MarginClassifier, NormRegularizer
from facerec.heads.norm_regularizer import NormPenalty
from facerec.heads.tiles import TileSettings
from tests.cuda.small import (
    MARGINS,
    computed,
    inputs,
    largest_error,
    no_host_waits,
    relative_error,
)

pytestmark = pytest.mark.cuda

PENALTIES = [kind(weight=0.7) for kind in typing.get_args(NormPenalty)]


@pytest.mark.parametrize("margin", MARGINS, ids=lambda margin: type(margin).__name__)
@pytest.mark.parametrize(
    ("dtype", "reduced", "most"),
    # Logits up to 64 are rounded to 8 bits, and slopes follow their exponentials.
    [(torch.float64, False, 1e-11), (torch.float32, False, 2e-4), (torch.float32, True, 0.15)],
)
def test_a_margin(
    device: torch.device, margin: Margin, dtype: torch.dtype, reduced: bool, most: float
) -> None:
    expected = computed(torch.device("cpu"), torch.float64, margin)
    found = computed(device, dtype, margin, settings=TileSettings(reduced=reduced))
    assert largest_error(found, expected) < most
    assert not reduced or relative_error(found[0], expected[0]) < 2e-2


@pytest.mark.parametrize("sample_rate", [1.0, 0.2])
def test_the_sharded_head(device: torch.device, sample_rate: float) -> None:
    embeddings, weight, labels = inputs()
    found = []
    for where in (torch.device("cpu"), device):
        how = {"seed": 3, "center_init": "normal", "sample_rate": sample_rate}
        head = MarginClassifier(*weight.shape, ArcFace(), **how).to(where)
        x = embeddings.to(where).requires_grad_()
        y = labels.to(where)
        head.draw(y, 0)
        if sample_rate < 1:  # each device draws others with its own generator
            assert head.classes is not None and torch.isin(y, head.classes).all()
            head.classes = torch.arange(len(weight), device=where)[::2]
            head.classes = torch.cat([head.classes, y]).unique()
        with no_host_waits(where):
            output = head(x, y)
            output.loss.backward()
        slope = head.weight.grad
        assert slope is not None and slope.is_sparse == (sample_rate < 1)
        found.append((output.loss, output.figures["target_cosine"], x.grad, slope.to_dense()))
    assert largest_error(found[1], found[0]) < 2e-4


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: type(penalty).__name__)
def test_a_penalty(device: torch.device, penalty: NormPenalty) -> None:
    embeddings = inputs()[0]
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
    assert largest_error(found[1], found[0]) < 1e-5
