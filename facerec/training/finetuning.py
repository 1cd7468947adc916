"""How the backbone moves in training: rates by depth, layers that rest for a while, batch norms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from facerec.errors import RecipeError
from facerec.limits import Checked, CountOrNone, Positive, Share
from facerec.training.initialization import require_layer, within

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class Finetune(Checked):
    """How the backbone moves beside the class centres; by default it learns as they do."""

    rate_factor: Positive = 1.0
    """Factor on the backbone's learning rate; that of the class centres stays."""
    layer_decay: Share = 1.0
    """Further factor for each block that lies between a layer and the embedding, so that layers
    near the pixels move least; 0.65 to 0.8 are usual for networks of a dozen blocks."""
    freeze_steps: CountOrNone | None = 0
    """First optimizer steps in which the backbone, or freeze_layers of it, stays bit for bit as it
    is and computes as it does in use (evaluation mode). None freezes for good."""
    freeze_layers: tuple[str, ...] = ()
    """Layers that rest, by the beginning of their tensors' names, such as conv1 layer1; () is the
    whole backbone, of which there is no backward pass then. Layers that are frozen for good have no
    backward pass either, if none before them learns; those that will learn save no time."""
    batch_norm: Literal["train", "frozen"] = "train"
    """Statistics of the batch norms: those of each batch, of which averages are kept; or frozen as
    they are at the start. Scale and shift of batch norms learn either way."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.freeze_layers and self.freeze_steps == 0:
            raise RecipeError(
                "finetune.freeze_layers rest for 0 steps; set finetune.freeze_steps too"
            )


def refuse_single_images(micro_batch: int, backbone: nn.Module, config: Finetune) -> None:
    """Refuse micro-batches over which the last batch norm cannot average.

    Args:
        micro_batch: images of a rank that go through the backbone together.
        backbone: the bare module, with its last batch norm as ``embedding_norm``.
        config: says whether batch norms average at all.

    Raises:
        RecipeError: there is a single image, and such a batch norm.
    """
    at_rest = config.freeze_steps is None and not config.freeze_layers
    averages = config.batch_norm == "train" and not at_rest
    if micro_batch == 1 and averages and getattr(backbone, "embedding_norm", None) is not None:
        raise RecipeError(
            "a micro-batch of a rank has a single image, over which the last batch norm cannot "
            "average; set a larger batch_size, or fewer ranks or a smaller accumulation"
        )


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
    blocks: list[nn.Module] = list(getattr(backbone, "blocks", ()))
    if not blocks:
        raise RecipeError(
            f"finetune.layer_decay: {type(backbone).__name__} does not say which of its modules "
            "are blocks; leave the decay at 1, or give the network a property `blocks`"
        )
    home = {id(p): number for number, block in enumerate(blocks) for p in block.parameters()}
    # Modules are registered in the order in which an image passes through them.
    for _, run in itertools.groupby(backbone.parameters(), key=lambda p: home.get(id(p), -1)):
        yield list(run)


class Freezing:
    """Keeps layers as they are for the first steps, and batch norms for as long as asked.

    Gradients of layers that rest are dropped before anything uses them: an optimizer passes over
    parameters without one, so that nothing decays and no momentum gathers, and all processes reduce
    the same parameters in every step. All depends on the recipe and the step alone. Layers frozen
    for good (``freeze_steps`` None) take no gradients at all, so that no backward pass reaches the
    first of them.

    Args:
        backbone: the bare module.
        config: the recipe's section.

    Attributes:
        whole: whether no part of the backbone learns in this step.

    Raises:
        RecipeError: a layer that the backbone does not have.
    """

    def __init__(self, backbone: nn.Module, config: Finetune) -> None:
        self.backbone, self.config = backbone, config
        self.whole = False
        self._resting: bool | None = None
        named = dict(backbone.named_parameters())
        for layer in config.freeze_layers:
            owner = f"{type(backbone).__name__} has"
            require_layer(layer, named, owner, "finetune.freeze_layers")
        self._parameters = [p for name, p in named.items() if self._rests(name)]
        self._modules = [m for name, m in backbone.named_modules() if self._rests(name)]
        norms = [m for m in backbone.modules() if isinstance(m, _BATCH_NORMS)]
        self._norms = norms if config.batch_norm == "frozen" else []
        if config.freeze_steps is None:
            for parameter in self._parameters:
                parameter.requires_grad_(False)

    def _rests(self, name: str) -> bool:
        return not self.config.freeze_layers or within(name, self.config.freeze_layers)

    def begin(self, step: int) -> None:
        """Put every part of the backbone into the mode that it has in this step."""
        steps = self.config.freeze_steps
        resting = steps is None or step < steps
        if resting == self._resting:
            return
        self._resting = resting
        self.whole = resting and not self.config.freeze_layers
        self.backbone.train()
        for module in [*(self._modules if resting else ()), *self._norms]:
            module.eval()

    def drop_gradients(self) -> None:
        """Forget the gradients of what rests."""
        for parameter in self._parameters if self._resting else ():
            parameter.grad = None
