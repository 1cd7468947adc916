"""Optimizer steps on the class centres a tile at a time, by any optimizer of torch.

The head's backward pass finishes the gradient of a few thousand centres before it turns to the
next. A step on these at once means that a gradient of all centres never exists, and that centres of
which a sampled head (Partial FC) visits a share are not all read and written every time.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from facerec.heads.margin_softmax import CenterUpdate, empty_rows, sparse_rows

_CHUNK_BYTES = {"cpu": 2**20}  # of a kept gradient that are in work: a CPU's cache
_OTHER_CHUNK_BYTES = 2**28


class RowUpdate:
    """Makes an optimizer update the rows of ``weight`` whose gradients come, tile by tile.

    In each step the rows are what a matrix of their own would become, with its own state; all other
    rows, and their state, stay as they are: they do not decay, and their momentum waits. The state
    lies in ``optimizer.state[weight]`` in the size of ``weight``, as always.

    `gradients` takes the gradient of a backward pass. Before the last micro-batch of a step, and in
    all of them if the step may still be called off, that is kept in ``weight.grad``, sparse if only
    some rows have one, and ``optimizer.step`` takes what is there. Learning rates and everything
    else in the parameter group are those of the moment, so they are to be set before backward.

    Args:
        optimizer: has ``weight`` in a group of its own; it has to treat every number alone and
            change weights and state in place (SGD, Adam, AdamW, RMSprop).
        weight: the centres, ``(rows, D)``.
        at_once: whether a step is taken inside the backward pass of the last micro-batch.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, weight: nn.Parameter, *, at_once: bool
    ) -> None:
        self.optimizer, self.weight, self.at_once = optimizer, weight, at_once
        (self.group,) = [g for g in optimizer.param_groups if any(p is weight for p in g["params"])]
        # The rows of a tile take the place of its only parameter.
        nothing = nn.Parameter(weight.detach()[:0])
        self.inner = type(optimizer)([{**self.group, "params": [nothing]}])  # type: ignore[call-arg]
        # The step alone: torch's hooks and profiler around it take as long as itself.
        self._plain_step = inspect.unwrap(type(optimizer).step)
        self._waiting: Tensor | None = None
        optimizer.register_step_pre_hook(self._take_gradient)
        optimizer.register_step_post_hook(self._step_on_gradient)

    def gradients(self, last: bool) -> CenterUpdate:
        """Return what takes the gradient of a backward pass.

        Args:
            last: whether no other micro-batch follows in this step.
        """
        return self.step if last and self.at_once else self.keep

    @torch.no_grad()
    def state(self) -> dict[str, Any]:
        """Return the optimizer's state of ``weight``; at first that from before any step."""
        state: dict[str, Any] = self.optimizer.state[self.weight]
        if not state:  # a step on nothing says what there is
            row = self.weight.new_zeros(1, self.weight.shape[1])
            for name, value in self._stepped(row, torch.zeros_like(row), {}).items():
                like = self.weight if _is_like(value, row) else value
                state[name] = torch.zeros_like(like) if isinstance(like, Tensor) else like
        return state

    @torch.no_grad()
    def keep(self, rows: Tensor | None, tiles: Iterator[tuple[slice, Tensor]]) -> None:
        """Add a gradient to ``weight.grad``, see `CenterUpdate`; ``rows`` are those of the step."""
        gradient = self.weight.grad
        if gradient is not None:
            values = _values(gradient)
            for block, tile in tiles:
                values[block] += tile
            return
        values = empty_rows(len(self.weight if rows is None else rows), self.weight)
        for block, tile in tiles:
            values[block] = tile
        self.weight.grad = values if rows is None else sparse_rows(rows, values, self.weight)

    @torch.no_grad()
    def step(self, rows: Tensor | None, tiles: Iterator[tuple[slice, Tensor]]) -> None:
        """Take a step, see `CenterUpdate`; a gradient that was kept is added and dropped."""
        gradient, self.weight.grad = self.weight.grad, None
        kept = None if gradient is None else _values(gradient)
        self.inner.param_groups[0].update(self.group)
        # A fused step of a gradient scaler leaves everything as it is if a gradient is not finite.
        for name in ("grad_scale", "found_inf"):
            setattr(self.inner, name, getattr(self.optimizer, name, None))
        state = self.state()
        whole = {k: v for k, v in state.items() if _is_like(v, self.weight)}
        single = {k: v for k, v in state.items() if k not in whole}
        matrices = [self.weight.detach(), *whole.values()]
        room: list[Tensor] = []
        after: dict[str, Any] = {}
        for block, tile in _at_least_one(tiles, self.weight):
            if tile.dtype != self.weight.dtype:
                tile = tile.to(self.weight.dtype)
            if kept is not None:
                tile += kept[block]
            if rows is None:
                views = [matrix[block] for matrix in matrices]
            else:
                # Fresh memory for every tile would cost more than what is done in it.
                room = room or [torch.empty_like(tile) for _ in matrices]
                views = [
                    torch.index_select(matrix, 0, rows[block], out=memory[: len(tile)])
                    for matrix, memory in zip(matrices, room, strict=True)
                ]
            # Every tile begins with the count of steps that the last step left.
            after = {k: v.clone() if isinstance(v, Tensor) else v for k, v in single.items()}
            before = dict(zip(whole, views[1:], strict=True))
            stepped = self._stepped(views[0], tile, before | after)
            after = {name: stepped[name] for name in single}
            if rows is not None:
                for matrix, view in zip(matrices, views, strict=True):
                    matrix.index_copy_(0, rows[block], view)
        state.update(after)
        # Whoever goes backward again through a graph that holds the old centres is told.
        torch.autograd.graph.increment_version(self.weight)

    def _stepped(self, rows: Tensor, gradient: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """Take a step on a matrix by itself, in place, and return its state."""
        rows.grad = gradient
        self.inner.param_groups[0]["params"] = [rows]
        self.inner.state.clear()
        if state:
            self.inner.state[rows] = state
        self._plain_step(self.inner)
        result: dict[str, Any] = self.inner.state[rows]
        self.inner.state.clear()
        self.inner.param_groups[0]["params"] = []
        return result

    def _take_gradient(self, *_: Any) -> None:
        self._waiting, self.weight.grad = self.weight.grad, None

    def _step_on_gradient(self, *_: Any) -> None:
        gradient, self._waiting = self._waiting, None
        if gradient is not None:
            rows = gradient._indices()[0] if gradient.is_sparse else None
            self.step(rows, _pieces(_values(gradient)))


def _pieces(gradient: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Cut a gradient (rows, D) into pieces whose rows stay in a CPU's cache."""
    size = _CHUNK_BYTES.get(gradient.device.type, _OTHER_CHUNK_BYTES)
    size = max(1, size // (gradient.shape[1] * gradient.element_size()))
    for start in range(0, len(gradient), size):
        block = slice(start, min(start + size, len(gradient)))
        yield block, gradient[block]


def _at_least_one(
    tiles: Iterator[tuple[slice, Tensor]], weight: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the tiles, or an empty one: a rank without classes counts its steps as the others."""
    tile = None
    for tile in tiles:
        yield tile
    if tile is None:
        yield slice(0, 0), weight.new_empty(0, weight.shape[1])


def _values(gradient: Tensor) -> Tensor:
    return gradient._values() if gradient.is_sparse else gradient


def _is_like(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape
