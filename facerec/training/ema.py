"""A moving average of the backbone's weights, which is validated and saved in their place."""

from __future__ import annotations

import copy

import torch
from torch import nn


class WeightAverage:
    """Exponential moving average (EMA) of a module's parameters and floating-point buffers.

    After step t every number is ``d·average + (1 − d)·value`` with d = min(decay, t / (9 + t)):
    averages begin short, so that the weights from before the first step are soon forgotten, and
    nothing but the step has to be known to go on (TensorFlow's ``ExponentialMovingAverage`` with
    ``num_updates``, which counts from 0). Counters are copied.

    Args:
        module: what is trained; the average starts from its weights.
        decay: weight of the average against the newest values, in [0, 1).

    Attributes:
        module: a copy of the module with the averages in it, in evaluation mode.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.module = copy.deepcopy(module).requires_grad_(False).eval()
        mine, theirs = self.module.state_dict(), module.state_dict()
        self._pairs = [(mine[name], theirs[name]) for name in mine]

    def restart(self) -> None:
        """Take the module's weights as they are."""
        self._move(1.0)

    def update(self, step: int) -> None:
        """Take in the weights after ``step`` optimizer steps, counted from 1."""
        self._move(1 - min(self.decay, step / (9 + step)))

    @torch.no_grad()
    def _move(self, share: float) -> None:
        """Go a share of the way to the module's weights, all of it with 1."""
        for mine, theirs in self._pairs:
            if mine.is_floating_point():
                mine.lerp_(theirs, share)
            else:
                mine.copy_(theirs)
