"""Which classes a step visits when not all of them take part (Partial FC; An et al., 2022).

Every class of the batch takes part, and so many others, drawn at random, that a rank visits a fixed
share of its classes. So every step has tensors of one shape, and nothing waits for the device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from facerec.heads.collectives import insist


def sample_size(rate: float, num_local: int, batch_size: int) -> int:
    """Return how many of ``num_local`` classes a rank visits in a step.

    That is the share ``rate``, but enough for ``batch_size`` different subjects in a batch.
    """
    return max(int(rate * num_local), min(batch_size, num_local))


def sample_classes(column: Tensor, num_local: int, size: int, seed: tuple[int, ...]) -> Tensor:
    """Draw the classes of a step.

    Args:
        column: the class of each sample, counted from this rank's first, ``(N,)`` int64; −1 where
            another rank holds it.
        num_local: classes of this rank.
        size: how many to draw, at least as many as there are different classes in ``column``.
        seed: numbers >= 0; equal ones draw the same classes for the same ``column``.

    Returns:
        The classes of ``column`` and others, in ascending order, ``(size,)``.
    """
    state = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    generator = torch.Generator(column.device).manual_seed(int(state[0]))
    # The last key takes the writes of samples whose class is elsewhere.
    keys = torch.rand(num_local + 1, device=column.device, generator=generator)
    # Filled by the kernel: an assignment would copy the number from the host, and wait for it.
    keys.index_fill_(0, torch.where(column >= 0, column, num_local), 2.0)
    return keys[:num_local].topk(size, sorted=False).indices.sort().values


def position_among(classes: Tensor, column: Tensor) -> Tensor:
    """Return the position of each of ``column`` among the drawn classes, −1 where it is −1."""
    if not len(classes):
        return column
    position = torch.searchsorted(classes, column.clamp(min=0)).clamp(max=len(classes) - 1)
    drawn = (column < 0) | (classes[position] == column)
    insist(drawn.all(), "a class of the batch was not drawn; draw before each pass")
    return torch.where(column >= 0, position, -1)
