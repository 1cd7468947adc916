"""How the backbone moves in training: rates by depth, steps at rest, batch norms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from facerec.backbones.recompute import blocks_of
from facerec.base.limits import Checked, CountOrNone, Positive, Share


@dataclass(frozen=True)
class Finetune(Checked):
    """How the backbone moves beside the class centres; by default it learns as they do."""

    rate_factor: Positive = 1.0
    """Factor on the backbone's learning rate; that of the class centres stays."""
    layer_decay: Share = 1.0
    """Further factor for each block that lies between a layer and the embedding, so that layers
    near the pixels move least; 0.65 to 0.8 are usual for networks of a dozen blocks."""
    freeze_steps: CountOrNone | None = 0
    """First optimizer steps in which the class centres alone learn: the backbone stays bit for bit
    as it is, computes as it does in use (evaluation mode) and has no backward pass. None freezes it
    for good."""
    batch_norm: Literal["train", "frozen"] = "train"
    """Statistics of batch norms: those of each batch, of which averages are kept (train), or frozen
    as they are at the start. Scale and shift learn either way."""


def rate_factors(backbone: nn.Module, config: Finetune) -> dict[int, float]:
    """Return the factor on the learning rate of each parameter, by its id.

    With u units from the pixels to the embedding, a parameter in unit i has the factor
    ``rate_factor · layer_decay^(u − 1 − i)``, as in BEiT (Bao et al., 2022, appendix H).

    Raises:
        RecipeError: a decay by depth for a backbone that does not say what its blocks are.
    """
    if config.layer_decay == 1:
        return {id(p): config.rate_factor for p in backbone.parameters()}
    units = list(_units(backbone))
    last = len(units) - 1
    return {
        id(parameter): config.rate_factor * config.layer_decay ** (last - number)
        for number, unit in enumerate(units)
        for parameter in unit
    }


def _units(backbone: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters of each block, and of what lies before, between and after blocks."""
    blocks = blocks_of(backbone, "finetune.layer_decay")
    home = {id(p): number for number, block in enumerate(blocks) for p in block.parameters()}
    # Modules are registered in the order in which an image passes through them.
    for _, run in itertools.groupby(backbone.parameters(), key=lambda p: home.get(id(p), -1)):
        yield list(run)


class Freezing:
    """Keeps the backbone as it is for the first steps, and batch norms for as long as asked.

    All depends on the recipe and the step alone.

    Args:
        backbone: the bare module.
        config: the recipe's section.

    Attributes:
        whole: whether the backbone rests in this step.
    """

    def __init__(self, backbone: nn.Module, config: Finetune) -> None:
        self.backbone, self.config = backbone, config
        self.whole: bool | None = None
        if config.freeze_steps is None:
            backbone.requires_grad_(False)

    def begin(self, step: int) -> None:
        """Put the backbone into the mode that it has in this step."""
        steps = self.config.freeze_steps
        resting = steps is None or step < steps
        if resting == self.whole:
            return
        self.whole = resting
        self.backbone.train(not resting)
        if self.config.batch_norm == "frozen":
            for module in self.backbone.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
