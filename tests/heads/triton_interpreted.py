"""Triton's kernels against the torch form in float64, on the CPU; run in a process of its own.

``TRITON_INTERPRET=1`` has to be set before triton is imported, which other tests may have done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from helpers.margin_list import MARGINS

from facerec.heads import AdaFace, ArcFace, CosFace, MagFace, Margin, tiles
from facerec.heads import margin_softmax as module


@dataclass(frozen=True)
class Case:
    """What to compute; blocks are (rows, classes, width, depth)."""

    margin: Margin = field(default_factory=ArcFace)
    samples: int = 7
    classes: int = 20
    dimensions: int = 24
    chunk: int = 0
    absent: bool = False
    drawn: bool = False
    short: bool = False
    reduced: bool = False
    blocks: tuple[int, int, int, int] = (32, 32, 32, 32)


SMALL = (16, 32, 32, 16)
CASES: dict[str, Case] = {
    **{str(margin): Case(margin) for margin in MARGINS if not margin.changes_others},
    **{str(margin): Case(margin) for margin in (AdaFace(), MagFace(l_a=3, u_a=12))},
    "one sample, one class": Case(samples=1, classes=1, dimensions=5),
    "one sample": Case(samples=1, classes=5, dimensions=64),
    "five classes": Case(samples=33, classes=5, dimensions=5),
    "several blocks": Case(samples=33, classes=130, dimensions=96, blocks=SMALL),
    "several chunks": Case(samples=33, classes=130, dimensions=64, chunk=48, blocks=SMALL),
    "its own blocks": Case(samples=33, classes=130, dimensions=96, blocks=(64, 128, 128, 32)),
    "classes elsewhere": Case(absent=True, samples=9, classes=40, chunk=32),
    "drawn classes": Case(drawn=True, samples=9, classes=90, chunk=32),
    "short centres": Case(short=True),
    "large scale": Case(CosFace(scale=2000.0)),
    "bf16": Case(samples=33, classes=70, dimensions=96, reduced=True, chunk=48),
}


def figures(case: Case, kernel: tiles.Kernel, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the loss, its figures and its gradients by name."""
    generator = torch.Generator().manual_seed(3)
    x = 2 * torch.randn(case.samples, case.dimensions, generator=generator)
    weight = torch.randn(case.classes, case.dimensions, generator=generator)
    weight[0] *= 30
    if case.short:
        weight[:3] *= torch.tensor([[1e-8], [1e-5], [0.0]])
    rows = None
    if case.drawn:
        rows = torch.arange(0, case.classes, 3)
    reduced = case.reduced and kernel == "triton"
    count = case.classes if rows is None else len(rows)
    column = torch.randint(count, (case.samples,), generator=generator)
    if case.absent:
        column[::2] = -1
    x, weight = x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
    found = module.margin_softmax(
        x,
        weight,
        column,
        case.margin,
        settings=tiles.TileSettings(reduced=reduced, chunk=case.chunk, kernel=kernel),
        norm_average=torch.tensor([8.0, 2.0], dtype=dtype),
        rows=rows,
    )
    found.loss.backward()
    gradient = weight.grad
    gradient = gradient.to_dense() if rows is not None else gradient
    # Each centre has a gradient of its own size, by its length: the relative one counts.
    lengths = weight.detach().norm(dim=1, keepdim=True).clamp(min=tiles.SMALLEST_NORM)
    return found._asdict() | {"to_query": x.grad, "to_weight": gradient * lengths}


def errors(case: Case) -> dict[str, float]:
    """Return ‖found − expected‖ relative to ‖expected‖ by figure."""
    from facerec.heads import triton_softmax

    rows, classes, width, depth = case.blocks
    blocks = triton_softmax.Blocks(rows, classes, width, depth, programs=8)
    triton_softmax.blocks_for = lambda *_: blocks
    found = figures(case, "triton", torch.float32)
    expected = figures(case, "torch", torch.float64)
    return {
        name: float(
            (value.detach().double() - expected[name].detach()).norm()
            / (expected[name].detach().norm() + 1e-6)
        )
        for name, value in found.items()
    }


def results() -> Iterator[tuple[str, Any]]:
    """Yield the errors of every case."""
    for name, case in CASES.items():
        yield name, errors(case)


if __name__ == "__main__":
    assert os.environ["TRITON_INTERPRET"] == "1"
    torch.set_num_threads(1)
    print(json.dumps(dict(results())))
