"""timm's networks as backbones: pooled features, and a linear layer of our own after them.

Nothing is downloaded: weights are drawn, or come from a file that the user names.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from facerec.backbones.registry import (
    FAMILIES,
    Backbone,
    EmbeddingNetwork,
    embedding_layers,
    full_precision,
)
from facerec.base.errors import MissingExtraError, RecipeError, message_line
from facerec.base.files import reading

TIMM = "timm:"
"""What names of timm's networks begin with."""


class TimmBackbone(EmbeddingNetwork):
    """One of timm's networks, as ``timm.create_model(NAME, num_classes=0)`` makes it, and its head.

    Args:
        config: ``timm:NAME`` with width 1. ``drop_path`` is timm's ``drop_path_rate``, for the
            networks that have one.
        image_size: height and width of the images in pixels. Networks that are built for one size,
            as vision transformers are, are built for this one.

    Attributes:
        trunk: normalised images → features ``(B, F)``.
        head: features → raw embeddings: a linear layer, and the batch norm that ``embedding_bn``
            asks for.

    Raises:
        MissingExtraError: timm does not import.
        RecipeError: timm has no such network, or it has no such option, takes no such images or
            does not pool.
    """

    def __init__(self, config: Backbone, image_size: int = 112) -> None:
        super().__init__()
        if config.width != 1:
            raise RecipeError(f"width must be 1 for {config.name}, found {config.width:g}")
        self.embedding_size = config.embedding_size
        self.drop_path = config.drop_path
        self.trunk, size = _create(config, image_size)
        self.dropout = nn.Dropout(config.dropout)
        self.head = embedding_layers(size, config)

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images ``(B, 3, S, S)`` to raw embeddings ``(B, D)``, float32."""
        x = self.dropout(self.trunk(x))
        with full_precision(x):
            return self.head(x.to(next(self.head.parameters()).dtype))


def _create(config: Backbone, image_size: int) -> tuple[nn.Module, int]:
    """Return a network and how many features an image gives, which it does not always tell."""
    name = config.name.removeprefix(TIMM)
    try:
        timm = importlib.import_module("timm")
    # torchvision, which timm needs, fails in other ways beside a torch that it does not fit.
    except (ImportError, RuntimeError, OSError) as error:
        raise MissingExtraError(
            f"{config.name} needs timm, which does not import ({message_line(error)}); "
            "run: pip install 'facerec[timm]'"
        ) from error
    if ":" in name:
        # hf-hub:… would be fetched, and local-dir:… chosen by a file that lies elsewhere.
        raise RecipeError(f"{config.name}: give one of timm.list_models() after {TIMM!r}")
    options: dict[str, Any] = {"drop_path_rate": config.drop_path} if config.drop_path else {}
    advice = (
        f"take one of timm.list_models() that pools, for images of {image_size}×{image_size} "
        "pixels, or in a comparison set the transform to what it takes"
    )
    with reading(config.name, RecipeError, advice, Exception, "made"):  # by a model's own code
        published = timm.get_pretrained_cfg(name)
        if published is not None and published.fixed_input_size:
            options["img_size"] = image_size
        trunk = timm.create_model(name, pretrained=False, num_classes=0, **options)
        with torch.no_grad():
            _, size = trunk.eval()(torch.zeros(1, 3, image_size, image_size)).shape
    return trunk.train(), size


FAMILIES[TIMM] = TimmBackbone
