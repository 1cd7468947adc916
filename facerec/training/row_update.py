"""Optimizer steps on the rows of a matrix that have a gradient, by any optimizer of torch.

A sampled head (Partial FC) has a gradient for some of its class centres only. Dense steps would
read and write all of them, and their state, every time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_CHUNK_BYTES = {"cpu": 2**20}  # of the rows that are in work: a CPU's cache
_OTHER_CHUNK_BYTES = 2**28


class RowUpdate:
    """Makes an optimizer update only the rows of ``weight`` that its sparse gradient has.

    In each step the rows are what a matrix of their own would become, with its own state; all other
    rows, and their state, stay as they are: they do not decay, and their momentum waits. The state
    lies in ``optimizer.state[weight]`` in the size of ``weight``, as always. It needs an optimizer
    that treats every number alone (SGD, Adam, AdamW, RMSprop).

    Args:
        optimizer: has ``weight`` in a group of its own.
        weight: a matrix whose gradients are sparse in rows, ``(rows, columns)``.
        distinct: whether no gradient names a row twice, as sums over micro-batches do; autograd
            forgets to say so, and finding out takes time.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, weight: nn.Parameter, *, distinct: bool
    ) -> None:
        self.optimizer, self.weight, self.distinct = optimizer, weight, distinct
        (self.group,) = [g for g in optimizer.param_groups if any(p is weight for p in g["params"])]
        # One after another the chunks of rows take the place of its only parameter.
        self.rows = nn.Parameter(weight.detach()[:0])
        self.inner = type(optimizer)([{**self.group, "params": [self.rows]}])  # type: ignore[call-arg]
        self.gradient: Tensor | None = None
        optimizer.register_step_pre_hook(self._take_gradient)
        optimizer.register_step_post_hook(self._update)

    def _take_gradient(self, *_: Any) -> None:
        self.gradient, self.weight.grad = self.weight.grad, None

    @torch.no_grad()
    def _update(self, *_: Any) -> None:
        gradient, self.gradient = self.gradient, None
        if gradient is None:
            return
        self.inner.param_groups[0].update(
            {name: value for name, value in self.group.items() if name != "params"}
        )
        # A fused step of a gradient scaler leaves everything as it is if a gradient is not finite.
        for name in ("grad_scale", "found_inf"):
            setattr(self.inner, name, getattr(self.optimizer, name, None))
        state = self.optimizer.state[self.weight]
        if not state:
            state.update(self._first_state())
        whole = {k: v for k, v in state.items() if _is_like(v, self.weight)}
        single = {k: v for k, v in state.items() if k not in whole}
        gradient = gradient if self.distinct else gradient.coalesce()
        indices, values = gradient._indices()[0], gradient._values()
        size = chunk_rows(self.weight.shape[1] * self.weight.element_size(), self.weight.device)
        # Fresh memory for every chunk would cost more than what is done in it.
        room = self.weight.new_empty(1 + len(whole), min(size, len(indices)), self.weight.shape[1])
        after = single
        for index, value in zip(indices.split(size), values.split(size), strict=True):
            rows, *copies = (
                torch.index_select(tensor, 0, index, out=memory[: len(index)])
                for tensor, memory in zip((self.weight, *whole.values()), room, strict=True)
            )
            self.rows.data, self.rows.grad = rows, value
            parts = dict(zip(whole, copies, strict=True))
            # Every chunk begins with the count of steps that the last step left.
            after = {k: v.clone() if isinstance(v, Tensor) else v for k, v in single.items()}
            self.inner.state[self.rows] = {**parts, **after}
            self.inner.step()
            stepped = self.inner.state[self.rows]
            after = {name: stepped[name] for name in single}
            self.weight.index_copy_(0, index, self.rows.data)
            for name, tensor in whole.items():
                tensor.index_copy_(0, index, stepped[name])
        state.update(after)
        self.rows.grad = None
        self.inner.state.clear()

    def _first_state(self) -> dict[str, Any]:
        """Return the state from before the first step: a step on nothing says what there is."""
        self.rows.data = self.weight.new_zeros(1, self.weight.shape[1])
        self.rows.grad = torch.zeros_like(self.rows)
        self.inner.step()
        state = self.inner.state[self.rows]
        return {
            name: torch.zeros_like(self.weight)
            if _is_like(value, self.rows)
            else torch.zeros_like(value)
            if isinstance(value, Tensor)
            else value
            for name, value in state.items()
        }


def chunk_rows(row_bytes: int, device: torch.device) -> int:
    """Return how many rows are updated together; their copies should stay in a CPU's cache."""
    return max(1, _CHUNK_BYTES.get(device.type, _OTHER_CHUNK_BYTES) // row_bytes)


def no_rows(weight: Tensor) -> Tensor:
    """Return the sparse gradient of a matrix of which no row has one."""
    indices = torch.empty(1, 0, dtype=torch.int64, device=weight.device)
    return torch.sparse_coo_tensor(
        indices, weight.new_empty(0, weight.shape[1]), weight.shape, check_invariants=False
    )


def _is_like(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape
