"""The recipe's section on the backbone, and the registry that turns it into a module."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import nn

from facerec.errors import RecipeError
from facerec.limits import Checked, Limits, Rest
from facerec.recipe import from_dict, to_dict


@dataclass(frozen=True)
class Backbone(Checked):
    """The network from an aligned face to its raw embedding."""

    name: str = "iresnet50"
    """Registered architecture: iresnet18, 34, 50, 100, 200, mbf or mbf_large; or init, for the
    whole section of the weights at init.path."""
    embedding_size: Annotated[int, Limits(1, 2**16)] = 512
    """Dimensions D of the embedding."""
    width: Annotated[float, Limits(0.0, 16.0, above=True)] = 1.0
    """Factor on all channel counts, which are rounded to multiples of 8 and are at least 16."""
    embedding_bn: Literal["frozen_gamma", "affine", "none"] = "frozen_gamma"
    """Batch norm after the last linear layer: frozen_gamma keeps γ = 1 as InsightFace's iResNet
    does, which pins the batch mean of ‖f‖² at D + ‖β‖² in training; affine learns γ, as its
    MobileFaceNet does; none leaves the batch norm out, so that the norm is free."""
    dropout: Rest = 0.0
    """Probability of dropping an input of the last linear layer."""


Builder = TypeVar("Builder", bound=Callable[[Backbone], nn.Module])
_builders: dict[str, Callable[[Backbone], nn.Module]] = {}


def register_backbone(builder: Builder) -> Builder:
    """Make a function from `Backbone` to a module available under the function's own name.

    The module maps float32 ``(B, 3, 112, 112)`` to raw embeddings float32 ``(B, D)``, and has the
    attributes ``embedding_size`` (D), ``embedding_norm`` (its last ``BatchNorm1d``, or None) and
    ``blocks`` (the modules whose activations can be computed again, see `recompute_activations`,
    and which the decay of rates by depth counts).

    Raises:
        ValueError: the name is taken.
    """
    name = builder.__name__
    if name in _builders:
        raise ValueError(f"a backbone named {name!r} is already registered")
    _builders[name] = builder
    return builder


def list_backbones() -> list[str]:
    """Return the names that `create_backbone` knows, in order of registration."""
    return list(_builders)


def create_backbone(
    config: Backbone | str = "iresnet50", *, seed: int | None = None, **options: Any
) -> nn.Module:
    """Build a backbone with freshly drawn weights.

    Args:
        config: the recipe's section, or a registered name.
        seed: draw the weights from this seed, on the CPU, and leave the global random state alone;
            the same seed gives the same weights on every machine. None draws from torch's global
            generator, on the current default device.
        options: fields of `Backbone` to set or replace.

    Raises:
        RecipeError: an unknown name or option, or a value out of range.

    Examples:
        >>> from facerec.backbones import create_backbone
        >>> backbone = create_backbone("iresnet18", width=0.25, embedding_size=128, seed=0)
        >>> backbone(torch.zeros(2, 3, 112, 112)).shape
        torch.Size([2, 128])
    """
    config = Backbone(config) if isinstance(config, str) else config
    if options:
        config = from_dict(Backbone, {**to_dict(config), **options}, "create_backbone")
    if config.name not in _builders:
        close = difflib.get_close_matches(config.name, _builders, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_builders)}"
        raise RecipeError(f"backbone.name: no backbone is called {config.name!r}, {hint}")
    build = _builders[config.name]
    if seed is None:
        return build(config)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, which would also reseed the accelerators' generators.
        torch.default_generator.manual_seed(seed)
        return build(config)


def scaled(channels: int, width: float) -> int:
    """Return ``channels · width`` rounded to the nearest multiple of 8, at least 16.

    The floor is not a matter of taste: with 8 channels in channels_last order, the backward pass
    of a strided 1×1 convolution writes out of bounds in torch 2.13 on CPUs with AVX-512 (oneDNN's
    brgconv_strided kernel), and the process dies.
    """
    return max(16, 8 * math.floor(channels * width / 8 + 0.5))


def embedding_batch_norm(config: Backbone) -> nn.BatchNorm1d | None:
    """Return the batch norm that ``config.embedding_bn`` asks for after the last linear layer."""
    if config.embedding_bn == "none":
        return None
    norm = nn.BatchNorm1d(config.embedding_size)
    # Of the affine pair only γ freezes: β keeps learning, as in InsightFace.
    norm.weight.requires_grad_(config.embedding_bn == "affine")
    return norm


def full_precision(tensor: torch.Tensor) -> torch.autocast:
    """Switch autocast off for the device of ``tensor``.

    The last layers decide the embedding's norm and direction, so they stay in float32.
    """
    return torch.autocast(tensor.device.type, enabled=False)
