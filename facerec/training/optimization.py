"""Optimizers with their parameter groups, and learning-rate schedules with a right warm-up.

All but RMSprop, which has no such form, are fused: one pass over weights and state instead of one
for each operation, three to eight times faster on a CPU.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from facerec.base.limits import Checked, NonNegative, Positive, Probability, Rest

Decay = Literal["all", "weights"]


class _Optimizer(Checked):
    """What all optimizers share: a dataclass with the arguments of torch's class, and ``decay``."""

    form: ClassVar[type[torch.optim.Optimizer]]
    fused: ClassVar[bool] = True

    def create(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over the given parameter groups."""
        options: dict[str, Any] = {**vars(self), **({"fused": True} if self.fused else {})}
        del options["decay"]
        return self.form(groups, **options)


@dataclass(frozen=True)
class SGD(_Optimizer):
    """Stochastic gradient descent with momentum."""

    form = torch.optim.SGD

    lr: Positive = 0.1
    """Learning rate at the end of the warm-up, for the recipe's batch size (never rescaled)."""
    momentum: Rest = 0.9
    """Weight of the previous step's direction."""
    weight_decay: NonNegative = 5e-4
    """L2 penalty added to the gradient."""
    decay: Decay = "all"
    """What decays: all parameters as InsightFace does, or only matrices and kernels (not
    batch-norms, biases and PReLU slopes)."""


@dataclass(frozen=True)
class Adam(_Optimizer):
    """Adam (Kingma and Ba, 2015), its L2 penalty added to the gradient."""

    form: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam

    lr: Positive = 1e-3
    """Learning rate at the end of the warm-up, for the recipe's batch size (never rescaled)."""
    betas: tuple[Rest, Rest] = (0.9, 0.999)
    """Averaging weights of the first and second moment."""
    weight_decay: NonNegative = 0.0
    """L2 penalty added to the gradient."""
    decay: Decay = "weights"
    """What decays: all parameters, or only matrices and kernels (not batch-norms, biases and
    PReLU slopes)."""


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    form = torch.optim.AdamW

    weight_decay: NonNegative = 0.1
    """Share of the weight taken off per unit of learning rate."""


@dataclass(frozen=True)
class RMSprop(_Optimizer):
    """RMSprop (Hinton, 2012), as *A Metric Learning Reality Check* trains."""

    form = torch.optim.RMSprop
    fused = False

    lr: Positive = 1e-3
    """Learning rate at the end of the warm-up, for the recipe's batch size (never rescaled)."""
    alpha: Rest = 0.99
    """Averaging weight of the squared gradient."""
    momentum: Rest = 0.0
    """Weight of the previous step's direction."""
    weight_decay: NonNegative = 0.0
    """L2 penalty added to the gradient."""
    decay: Decay = "weights"
    """What decays: all parameters, or only matrices and kernels (not batch-norms, biases and
    PReLU slopes)."""


Optimizer = SGD | AdamW | Adam | RMSprop
"""Any optimizer of this module."""


def parameter_groups(
    modules: Iterable[nn.Module],
    config: Optimizer,
    plain: Iterable[nn.Parameter] = (),
    factors: Mapping[int, float] | None = None,
) -> list[dict[str, Any]]:
    """Sort the trainable parameters of ``modules`` into groups that decay and groups that do not.

    Args:
        modules: each gets groups of its own (the head's shard is updated apart from the backbone).
        config: says what decays.
        plain: parameters that get neither decay nor momentum, as the learned radius of Ring loss.
        factors: on the learning rate of a parameter, by its id; 1 where there is none. Each factor
            has groups of its own, which remember it as ``rate_factor`` for `set_learning_rate`.

    Returns:
        Groups for ``torch.optim``; empty groups are left out.
    """
    factors = factors or {}
    special = list(plain)
    apart = {id(p) for p in special}
    groups: list[dict[str, Any]] = []
    for module in modules:
        alike: dict[tuple[float, bool], list[nn.Parameter]] = defaultdict(list)
        for p in module.parameters():
            if p.requires_grad and id(p) not in apart:
                alike[factors.get(id(p), 1.0), config.decay == "all" or p.ndim > 1].append(p)
        for (factor, decays), owned in alike.items():
            still = {} if decays else {"weight_decay": 0.0}
            groups.append({"params": owned, "rate_factor": factor, **still})
    if special:
        groups.append({"params": special, "weight_decay": 0.0})
        if isinstance(config, (SGD, RMSprop)):
            groups[-1]["momentum"] = 0.0
    return groups


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give each group ``lr`` times its own factor, see `parameter_groups`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("rate_factor", 1.0)


@dataclass(frozen=True)
class _Warmup(Checked, ABC):
    warmup_epochs: NonNegative = 0.0
    """Epochs over which the rate climbs linearly; already the first step is scaled down."""

    def factor(self, step: int, total: int, steps_per_epoch: int) -> float:
        """Return the learning rate's factor in (0, 1] for one optimizer step.

        Args:
            step: optimizer step, counted from 0.
            total: optimizer steps in the whole run.
            steps_per_epoch: optimizer steps in an epoch.
        """
        warmup = round(self.warmup_epochs * steps_per_epoch)
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return self._decay(step - warmup, max(total - warmup, 1), step / steps_per_epoch)

    @abstractmethod
    def _decay(self, step: int, total: int, epoch: float) -> float:
        """Return the factor ``step`` of ``total`` steps after the warm-up."""


@dataclass(frozen=True)
class Polynomial(_Warmup):
    """Falls to zero at the end as (1 − t/T)^power; power 1 is InsightFace's schedule."""

    power: NonNegative = 1.0
    """Exponent of the decay."""

    def _decay(self, step: int, total: int, epoch: float) -> float:
        return float((1 - step / total) ** self.power)


@dataclass(frozen=True)
class Cosine(_Warmup):
    """Falls along half a cosine (Loshchilov and Hutter, 2017) to ``minimum``."""

    minimum: Probability = 0.0
    """Factor that the rate approaches at the end."""

    def _decay(self, step: int, total: int, epoch: float) -> float:
        return self.minimum + (1 - self.minimum) * (1 + math.cos(math.pi * step / total)) / 2


@dataclass(frozen=True)
class MultiStep(_Warmup):
    """Multiplies the rate by ``gamma`` at each of the ``milestones``."""

    milestones: tuple[NonNegative, ...] = (10, 16, 18)
    """Epochs at which the rate drops."""
    gamma: Probability = 0.1
    """Factor of each drop."""

    def _decay(self, step: int, total: int, epoch: float) -> float:
        return float(self.gamma ** sum(epoch >= milestone for milestone in self.milestones))
