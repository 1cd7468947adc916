"""The network that all arms of a comparison share: images → raw embeddings.

A backbone of facerec, one of timm's models with a linear embedder after its pooled features, that
embedder alone on the features of a frozen network, or a small network for quick studies. Weights
come from a file; nothing is downloaded.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrizations

from facerec.backbones import Backbone, create_backbone
from facerec.backbones.registry import drawn_from, embedding_layers, scaled
from facerec.backbones.timm_adapter import TIMM, TimmBackbone
from facerec.base.errors import RecipeError
from facerec.base.limits import Checked, Count, Positive
from facerec.embedding.loading import load_model
from facerec.embedding.state_dict import COUNTER, own_names, own_note, read_state_dict
from facerec.embedding.torch_model import TorchModel, fill, load_state_dict_file

SMALL_CNN = "small_cnn"
FEATURES = "features"
"""No trunk: the features of a frozen network go to the last layers as they are."""
FACE_SIZE = 112
"""Height and width in pixels that facerec's backbones take."""


@dataclass(frozen=True)
class Trunk(Checked):
    """The network from an image to its raw embedding."""

    name: str = "iresnet18"
    """A backbone of facerec (iresnet18, mbf, …), timm:NAME for one of timm's models, small_cnn, for
    smoke tests and quick studies on generated faces of 28 pixels, or features: no trunk, but the
    features of a frozen network (`FeatureData`), on which an embedder is trained."""
    embedding_size: Count = 128
    """Dimensions D of the embedding."""
    width: Positive = 1.0
    """Factor on all channel counts; 1 for timm's models."""
    embedding_bn: Literal["none", "frozen_gamma", "affine"] = "none"
    """Batch norm after the last linear layer, as in `Backbone`; none leaves the norm free."""
    last_layer: Literal["none", "l2", "layer_norm"] = "none"
    """What follows all that: nothing, division by the norm (after which every norm is 1), or layer
    norm without parameters (after which every norm is √D)."""
    weight_norm: bool = False
    """Weight normalisation (Salimans and Kingma, NeurIPS 2016) of the last linear layer: w =
    g·v/‖v‖, of which length g and direction v are learned apart. The function that training begins
    with stays the same."""
    weights: Path | None = None
    """A .safetensors file, or a state dict that torch.save wrote; None starts at random. For
    timm's models it holds the trunk alone, with or without its classifier; names of another program
    are taken in their order if all shapes agree, as those of EfficientNet's first weights do."""
    freeze_bn: bool = False
    """Keep statistics, γ and β of the trunk's batch norms as the weights have them. The one after
    the last linear layer is not part of the trunk."""


class TrunkEmbedder(nn.Module):
    """A network with its last layer; made by `create_trunk`.

    Args:
        trunk: normalised images or features → raw embeddings.
        config: the recipe's section.

    Attributes:
        embedding_size: D.
    """

    def __init__(self, trunk: nn.Module, config: Trunk) -> None:
        super().__init__()
        self.trunk = trunk
        self.last_layer, self.embedding_size = config.last_layer, config.embedding_size
        # What follows the last linear layer is what a study may be about: it always learns.
        *before, _ = trunk.modules()
        norms = [module for module in before if isinstance(module, _BatchNorm)]
        self._frozen = norms if config.freeze_bn else []
        for norm in self._frozen:
            norm.requires_grad_(False)
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images ``(B, 3, S, S)`` to raw embeddings ``(B, D)``, float32."""
        x = self.trunk(x)
        if self.last_layer == "l2":
            x = functional.normalize(x)
        elif self.last_layer == "layer_norm":
            x = functional.layer_norm(x, x.shape[1:])
        return x

    def train(self, mode: bool = True) -> TrunkEmbedder:
        """Switch to training mode, or out of it; frozen batch norms stay in evaluation mode."""
        super().train(mode)
        for norm in self._frozen:
            norm.eval()
        return self


def create_trunk(config: Trunk, seed: int, size: int = FACE_SIZE) -> TrunkEmbedder:
    """Build the network in training mode, with weights from the file if there is one.

    timm's models are asked for pooled features (``num_classes=0``), which a new linear layer maps
    to the embedding. Which releases of timm and torchvision import beside the torch at hand is for
    the reader to check; only `timm.create_model` is used.

    Args:
        config: the recipe's section.
        seed: of all that the file does not give; the global random state is left alone.
        size: height and width of the images in pixels, 112 for facerec's backbones; of features,
            how many an image has.

    Raises:
        RecipeError: there is no such trunk, or it takes no images of this size.
        MissingExtraError: timm does not import.
        ModelError: weights missing, damaged, or of another architecture; a model of timm that
            takes no such images.
    """
    backbone = Backbone(
        config.name, config.embedding_size, config.width, embedding_bn=config.embedding_bn
    )
    trunk: nn.Module
    with drawn_from(seed):
        if config.name == FEATURES:
            trunk = embedding_layers(size, backbone)
        elif config.name.startswith(TIMM):
            trunk = TimmBackbone(backbone, size)
        elif config.name == SMALL_CNN:
            trunk = _small_cnn(backbone, size)
        elif size != FACE_SIZE:
            raise RecipeError(
                f"the trunk {config.name} takes images of {FACE_SIZE} pixels, and the transform "
                f"gives {size}; set its size, or take another trunk"
            )
        else:
            trunk = create_backbone(backbone, seed=seed)
    if config.weights is not None:
        _load(getattr(trunk, "trunk", trunk), config.weights, config.name)
    if config.weight_norm:
        *_, last = (layer for layer in trunk.modules() if isinstance(layer, nn.Linear))
        parametrizations.weight_norm(last)
    return TrunkEmbedder(trunk, config)


def _small_cnn(config: Backbone, image_size: int) -> nn.Module:
    """Return three strided convolutions and a linear layer, for quick studies of generated faces.

    155,000 parameters at width 1, 128 dimensions and 28×28 pixels. Far below a real backbone in
    accuracy, and many times as fast as the smallest of them.
    """
    channels = [3, *(scaled(c, config.width) for c in (16, 32, 64))]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(channels):
        convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    side = math.ceil(image_size / 8)
    return nn.Sequential(*layers, nn.Flatten(), *embedding_layers(channels[-1] * side**2, config))


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the recipe, as JSON types, of the run that made a file of weights; {} if unknown.

    Raises:
        ModelError: a model file of facerec that is damaged.
    """
    return {} if own_note(path) is None else load_model(path).recipe


def _load(trunk: nn.Module, path: Path, name: str) -> None:
    """Load weights strictly: all names and shapes must be those of the trunk."""
    own = trunk.state_dict()
    if own_note(path) is not None:
        tensors = cast(TorchModel, load_model(path)).backbone.state_dict()
    elif name.startswith(TIMM):
        tensors, _ = own_names(path, read_state_dict(path), own)
        # Published weights have a classifier, which the trunk has not.
        classifier = getattr(trunk, "pretrained_cfg", {}).get("classifier") or ()
        named = (classifier,) if isinstance(classifier, str) else classifier
        shapes = [tensor.shape for tensor in tensors.values()][: len(own)]
        if not own.keys() & tensors.keys() and shapes == [each.shape for each in own.values()]:
            tensors = dict(zip(own, tensors.values(), strict=False))  # the classifier comes last
        prefixes = tuple(f"{each}." for each in named)
        tensors = {n: tensor for n, tensor in tensors.items() if not n.startswith(prefixes)}
        tensors = {n: torch.zeros_like(t) for n, t in own.items() if n.endswith(COUNTER)} | tensors
    else:
        load_state_dict_file(trunk, path)
        return
    fill(path, trunk, tensors)
