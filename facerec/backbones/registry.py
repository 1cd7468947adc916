"""The recipe's section on the backbone, and the registry that turns it into a module."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import math
import os
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import nn

from facerec.base.errors import RecipeError
from facerec.base.limits import Checked, Limits, Rest
from facerec.base.recipe import from_dict, run_python, to_dict


@dataclass(frozen=True)
class Backbone(Checked):
    """The network from an aligned face to its raw embedding."""

    name: str = "iresnet50"
    """Network: iresnet18, 34, 50, 100, 200 (or r18 to r200), mbf, mbf_large, w600k_mbf,
    mobilefacenet, mobilefacenet_half, vit_t, vit_s, vit_b, vit_l or one of your own; timm:NAME for
    one of timm's (extra `timm`); init for that of the weights at init.path."""
    embedding_size: Annotated[int, Limits(1, 2**16)] = 512
    """Dimensions of the embedding."""
    width: Annotated[float, Limits(0.0, 16.0, above=True)] = 1.0
    """Factor on the number of channels of all layers, which is rounded to a multiple of 8 and at
    least 16."""
    embedding_bn: Literal["frozen_gamma", "affine", "none"] = "frozen_gamma"
    """Batch norm after the last linear layer: frozen_gamma keeps γ = 1 as InsightFace's iResNet
    does, which pins the batch mean of ‖f‖² at D + ‖β‖² in training; affine learns γ, as its
    MobileFaceNet and ViT do; none leaves the batch norm out, so that the norm is free."""
    dropout: Rest = 0.0
    """Probability of dropping an input of the last linear layer."""
    drop_path: Rest = 0.0
    """Stochastic depth of a ViT, or of timm's networks: probability of leaving out a branch of the
    last block for an image; it rises evenly from 0 in the first block. InsightFace has 0.1, and
    0.05 for WebFace42M."""
    mask_ratio: Rest = 0.0
    """Share of a ViT's patches that are hidden from its blocks in training. InsightFace hides 0.1
    wherever its configurations say anything but 0."""

    def __post_init__(self) -> None:
        """Check every number, and put facerec's name in the place of one of `ALIASES`."""
        super().__post_init__()
        if self.name not in _builders:
            object.__setattr__(self, "name", ALIASES.get(self.name, self.name))


class EmbeddingNetwork(nn.Module):
    """A network whose last layer makes the embedding."""

    @property
    def embedding_norm(self) -> nn.BatchNorm1d | None:
        """The batch norm that makes the embedding, or None with ``embedding_bn="none"``."""
        *_, last = self.modules()
        return last if isinstance(last, nn.BatchNorm1d) else None


def insightface_bn(name: str) -> Literal["frozen_gamma", "affine"]:
    """Return which batch norm InsightFace's network of a name ends with."""
    return "frozen_gamma" if name.startswith("iresnet") else "affine"


Builder = TypeVar("Builder", bound=Callable[[Backbone], nn.Module])
_builders: dict[str, Callable[[Backbone], nn.Module]] = {}

FAMILIES: dict[str, Callable[[Backbone], nn.Module]] = {}
"""Builders of all networks whose names begin so; the beginning ends with a colon."""

ALIASES = {f"r{depth}": f"iresnet{depth}" for depth in (18, 34, 50, 100, 200)}
"""Names of arcface_torch, and facerec's; mbf is the same in both."""

OWN_FILES = "FACEREC_BACKBONES"
"""Environment variable that names Python files, separated as in PATH, which register backbones."""


def register_backbone(builder: Builder) -> Builder:
    """Make a function from `Backbone` to a module available under the function's own name.

    It may stand in any file that is imported, for example beside a recipe; run again, the same file
    replaces its function.

    The module maps float32 ``(B, 3, 112, 112)`` to raw embeddings float32 ``(B, D)``, and may have
    the attributes ``embedding_size`` (D; else the config's), ``embedding_norm`` (its last
    ``BatchNorm1d``; else None) and ``blocks`` (the modules whose activations can be computed again,
    see `recompute_activations`, and which the decay of rates by depth counts).
    One that follows ``drop_path`` or ``mask_ratio`` has those as attributes too; for others,
    `create_backbone` refuses them.

    Raises:
        ValueError: the name is taken.
    """
    name = builder.__name__
    if name in _builders and _source(_builders[name]) != _source(builder):
        raise ValueError(f"a backbone named {name!r} is already registered")
    _builders[name] = builder
    return builder


def list_backbones() -> list[str]:
    """Return the names of registered backbones, in order of registration."""
    return list(_builders)


def is_backbone(name: str) -> bool:
    """Tell whether `create_backbone` knows a name; files of ``FACEREC_BACKBONES`` run if needed.

    Raises:
        RecipeError: one of those files fails.
    """
    if _family(name) is not None:
        return True
    for file in os.environ.get(OWN_FILES, "").split(os.pathsep):
        if file and name not in _builders:
            run_python(Path(file))
    return name in _builders


def registered_by(name: str) -> str | None:
    """Return the name of the user's file that registered a backbone, None for facerec's own."""
    builder = _builders.get(name)
    if builder is None or builder.__module__.partition(".")[0] == __package__.partition(".")[0]:
        return None
    return Path(_source(builder)[0]).name


def _source(builder: Callable[[Backbone], nn.Module]) -> tuple[str, str]:
    """Return the file and the place in it where a function is written."""
    return os.path.realpath(builder.__code__.co_filename), builder.__qualname__


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
    build = _builder(config.name)
    with contextlib.nullcontext() if seed is None else drawn_from(seed):
        backbone = build(config)
    # A network of one's own may say nothing of these, which those who use its model ask for.
    for attribute, value in (("embedding_size", config.embedding_size), ("embedding_norm", None)):
        if not hasattr(backbone, attribute):
            setattr(backbone, attribute, value)
    for field in ("drop_path", "mask_ratio"):
        wanted = getattr(config, field)
        if wanted and getattr(backbone, field, None) != wanted:
            raise RecipeError(
                f"backbone.{field}: {config.name} does not follow it, found {wanted:g}; set it to 0"
            )
    return backbone


@contextlib.contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Draw what a block draws on the CPU from a seed, and leave torch's generators as they were."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, which would also reseed the accelerators' generators.
        torch.default_generator.manual_seed(seed)
        yield


def _family(name: str) -> Callable[[Backbone], nn.Module] | None:
    return FAMILIES.get(name[: name.find(":") + 1])


def _builder(name: str) -> Callable[[Backbone], nn.Module]:
    if (family := _family(name)) is not None:
        return family
    if not is_backbone(name):
        close = difflib.get_close_matches(name, _builders, n=1) or _builders
        raise RecipeError(
            f"backbone.name: no backbone is called {name!r}, did you mean "
            f"{' or '.join(map(repr, close))}? (one of your own is registered by a file that the "
            f"recipe imports or {OWN_FILES} names)"
        )
    return _builders[name]


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


def embedding_layers(inputs: int, config: Backbone) -> nn.Sequential:
    """Return what maps features ``(B, K)`` to raw embeddings ``(B, D)``."""
    norm = embedding_batch_norm(config)
    layer = nn.Linear(inputs, config.embedding_size)
    return nn.Sequential(layer) if norm is None else nn.Sequential(layer, norm)


def full_precision(tensor: torch.Tensor) -> torch.autocast:
    """Switch autocast off for the device of ``tensor``.

    The last layers decide the embedding's norm and direction, so they stay in float32.
    """
    # Tensors without content have no autocast.
    return torch.autocast("cpu" if tensor.is_meta else tensor.device.type, enabled=False)


# Whoever asks for a backbone by name finds those of all files of this folder.
for _file in pkgutil.iter_modules([str(Path(__file__).parent)]):
    importlib.import_module(f"{__package__}.{_file.name}")
