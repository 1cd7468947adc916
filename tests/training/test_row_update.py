"""A step taken tile by tile inside backward is the step that an optimizer takes afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from facerec.heads import ArcFace, CosFace, SphereFaceR
from facerec.heads.margin_softmax import margin_softmax
from facerec.heads.tiles import TileSettings
from facerec.training import SGD, Adam, AdamW, Optimizer, RMSprop
from facerec.training.row_update import RowUpdate

OPTIMIZERS: list[Optimizer] = [
    SGD(lr=0.1),
    SGD(lr=0.1, momentum=0.0),
    AdamW(lr=0.01),
    Adam(lr=0.01, weight_decay=0.1),
    RMSprop(lr=0.01, momentum=0.9),
]
SIZE = 16  # whole vectors, whose remainders processors round in another way


def one_tile(values: Tensor) -> Iterator[tuple[slice, Tensor]]:
    yield slice(0, len(values)), values.clone()


def updated(
    config: Optimizer, start: Tensor, at_once: bool = True
) -> tuple[nn.Parameter, torch.optim.Optimizer, RowUpdate]:
    weight = nn.Parameter(start.clone())
    optimizer = config.create([{"params": [nn.Parameter(torch.ones(2))]}, {"params": [weight]}])
    return weight, optimizer, RowUpdate(optimizer, weight, at_once=at_once)


class OwnMatrix:
    """The rows of a step as a matrix of their own, with an optimizer of torch as it is."""

    def __init__(self, config: Optimizer, start: Tensor) -> None:
        self.config, self.weight, self.state = config, start.clone(), dict[str, Any]()

    def step(self, rows: Tensor, gradient: Tensor, rate: float) -> None:
        own = nn.Parameter(self.weight[rows])
        plain = self.config.create([{"params": [own]}])
        plain.param_groups[0]["lr"], own.grad = rate, gradient.clone()
        if self.state:
            state = self.state.items()
            plain.state[own] = {n: v[rows] if v.ndim else v.clone() for n, v in state}
        plain.step()
        self.weight[rows] = own.detach()
        for name, value in plain.state[own].items():
            if value.ndim:
                self.state.setdefault(name, torch.zeros_like(self.weight))[rows] = value
            else:
                self.state[name] = value


def assert_same(config: Optimizer, updates: RowUpdate, expected: OwnMatrix) -> None:
    assert torch.equal(updates.weight.detach(), expected.weight)
    state = updates.optimizer.state[updates.weight]
    assert state.keys() == expected.state.keys()
    for name, value in expected.state.items():
        assert torch.equal(state[name], value), name


CUTS = [("float64", 1, True), ("float32", 1, True), ("bf16", 1, True)]
"""Numbers, micro-batches of a step, and whether it is taken in the last one's backward pass."""


@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize("config", OPTIMIZERS, ids=str)
@pytest.mark.parametrize(
    ("kind", "count", "at_once"), [*CUTS, ("float64", 3, True), ("float64", 3, False)]
)
def test_steps_in_backward_are_the_separate_ones(
    config: Optimizer, rate: float, kind: str, count: int, at_once: bool
) -> None:
    """To the last bit, over several steps, with a margin that goes to all logits among others."""
    dtype = torch.float64 if kind == "float64" else torch.float32
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(40, SIZE, generator=generator, dtype=dtype)
    for chunk, margin in ((1, ArcFace()), (7, SphereFaceR(version="v2")), (500, CosFace())):
        weight, optimizer, updates = updated(config, start, at_once)
        expected = OwnMatrix(config, start)
        for number in range(3):
            rows = torch.arange(40)
            if rate < 1:
                rows = torch.randperm(40, generator=generator)[:16].sort().values
            settings = TileSettings(reduced=kind == "bf16", chunk=chunk)
            options = {"settings": settings, "rows": rows if rate < 1 else None}
            lr = 0.1 / (number + 1)  # as a schedule does
            for group in optimizer.param_groups:
                group["lr"] = lr
            plain, reference = nn.Parameter(expected.weight.clone()), torch.zeros(())
            for position in range(count):
                x = torch.randn(6, SIZE, generator=generator, dtype=dtype).requires_grad_()
                column = torch.randint(len(rows), (6,), generator=generator)
                loss = margin_softmax(x, plain, column, margin, **options).loss
                gradient, own = torch.autograd.grad(loss, (x, plain))
                reference = reference + (own._values() if own.is_sparse else own)
                last = position == count - 1
                update = updates.gradients(last)
                margin_softmax(x, weight, column, margin, update=update, **options).loss.backward()
                assert torch.equal(x.grad, gradient)
                if not (last and at_once):  # what is kept is where everybody looks for it
                    kept = weight.grad._values() if rate < 1 else weight.grad
                    assert torch.equal(kept, reference)
            expected.step(rows, reference, lr)
            optimizer.step()  # of which nothing may be left for it
            assert weight.grad is None
            assert_same(config, updates, expected)


def test_a_step_that_a_scaler_calls_off_changes_nothing() -> None:
    start = torch.randn(6, 2)
    for rows in (None, torch.arange(2)):
        weight, optimizer, updates = updated(SGD(), start, at_once=False)
        count = 6 if rows is None else 2
        updates.keep(rows, one_tile(torch.full((count, 2), float("inf"))))
        optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.step()
        assert torch.equal(weight.detach(), start)
        assert not optimizer.state[weight]["momentum_buffer"].any()
