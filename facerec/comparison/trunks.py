"""The network that all arms of a comparison share: images → raw embeddings.

A backbone of facerec, one of timm's models with a linear embedder after its pooled features, that
embedder alone on the features of a frozen network, or a small network for quick studies. Weights
come from a file; nothing is downloaded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrizations

from facerec.backbones import Backbone, TimmBackbone, create_backbone, is_backbone, list_backbones
from facerec.backbones.registry import TIMM, embedding_batch_norm, full_precision, scaled
from facerec.embedding.model import load_model
from facerec.embedding.state_dict import COUNTER, own_names, own_note, read_state_dict
from facerec.embedding.torch_model import TorchModel, load_state_dict_file
from facerec.errors import ModelError, RecipeError
from facerec.limits import Checked, Count, Positive

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
    smoke tests and quick studies on generated faces, or features: no trunk, but the features of a
    frozen network (`FeatureData`), on which an embedder is trained."""
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
    image_size: Count = FACE_SIZE
    """Height and width of the images in pixels; facerec's backbones take 112, and small_cnn is
    meant for 28."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == FEATURES and (self.weights or self.freeze_bn or self.width != 1):
            raise RecipeError(
                f"the trunk {FEATURES} has no weights, width or batch norms; leave weights, width "
                "and freeze_bn out"
            )
        if self.name.startswith(TIMM):
            if self.width != 1:
                raise RecipeError(f"width must be 1 for {self.name}, found {self.width:g}")
        elif self.name not in (FEATURES, SMALL_CNN) and self.image_size != FACE_SIZE:
            raise RecipeError(
                f"image_size must be {FACE_SIZE} for {self.name}, found {self.image_size}"
            )


class Embedder(nn.Module):
    """A trunk and its last layers; made by `create_trunk`.

    Args:
        trunk: normalised images → features, or for facerec's backbones → raw embeddings.
        head: features → raw embeddings; None where the trunk does it.
        config: the recipe's section.

    Attributes:
        embedding_size: D.
        image_size: height and width of the images in pixels.
    """

    def __init__(self, trunk: nn.Module, head: nn.Module | None, config: Trunk) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head
        self.last_layer = config.last_layer
        self.embedding_size = config.embedding_size
        self.image_size = config.image_size
        # The one after the last linear layer is what a study may be about: it always learns.
        last = getattr(trunk, "embedding_norm", None)
        self._frozen = [
            module
            for module in trunk.modules()
            if config.freeze_bn and isinstance(module, _BatchNorm) and module is not last
        ]
        for norm in self._frozen:
            norm.requires_grad_(False)
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images ``(B, 3, S, S)`` to raw embeddings ``(B, D)``, float32."""
        x = self.trunk(x)
        with full_precision(x):
            if self.head is not None:
                x = self.head(x.float())
            if self.last_layer == "l2":
                return functional.normalize(x)
            if self.last_layer == "layer_norm":
                return functional.layer_norm(x, x.shape[1:])
            return x

    def train(self, mode: bool = True) -> Embedder:
        """Switch to training mode, or out of it; frozen batch norms stay in evaluation mode."""
        super().train(mode)
        for norm in self._frozen:
            norm.eval()
        return self


class SmallCNN(nn.Module):
    """Three strided convolutions, for quick studies of generated faces.

    155,000 parameters at width 1, 128 dimensions and 28×28 pixels. Far below a real backbone in
    accuracy, and many times as fast as the smallest of them.

    Args:
        config: embedding size, width and last batch norm.
        image_size: height and width of the images in pixels.
    """

    def __init__(self, config: Backbone, image_size: int) -> None:
        super().__init__()
        self.embedding_size = config.embedding_size
        channels = [3, *(scaled(c, config.width) for c in (16, 32, 64))]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(channels):
            convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)
        side = math.ceil(image_size / 2 ** len(layers[::3]))
        self.fc = nn.Linear(channels[-1] * side**2, config.embedding_size)
        self.embedding_norm = embedding_batch_norm(config)

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images ``(B, 3, S, S)`` to raw embeddings ``(B, D)``, float32."""
        x = self.layers(x).flatten(1)
        with full_precision(x):
            x = self.fc(x.float())
            return x if self.embedding_norm is None else self.embedding_norm(x)


class FeatureEmbedder(nn.Module):
    """What learns on features of a frozen network: a linear layer.

    Args:
        config: embedding size and last batch norm.
        inputs: features of an image, K.
    """

    def __init__(self, config: Backbone, inputs: int) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, config.embedding_size)
        self.embedding_norm = embedding_batch_norm(config)

    def forward(self, x: Tensor) -> Tensor:
        """Map features ``(B, K)`` to raw embeddings ``(B, D)``, float32."""
        with full_precision(x):
            x = self.fc(x.float())
            return x if self.embedding_norm is None else self.embedding_norm(x)


def create_trunk(config: Trunk, seed: int, features: int | None = None) -> Embedder:
    """Build the network in training mode, with weights from the file if there is one.

    timm's models are asked for pooled features (``num_classes=0``), which a new linear layer maps
    to the embedding. Which releases of timm and torchvision import beside the torch at hand is for
    the reader to check; only `timm.create_model` is used.

    Args:
        config: the recipe's section.
        seed: of all that the file does not give; the global random state is left alone.
        features: of an image, K, where these are trained on and not images.

    Raises:
        RecipeError: there is no such trunk, or none for features.
        MissingExtraError: timm does not import.
        ModelError: weights missing, damaged, or of another architecture; a model of timm that
            takes no such images.
    """
    embedder = _create(config, seed, features)
    if config.weight_norm:
        own = embedder.trunk if embedder.head is None else embedder.head
        *_, last = (layer for layer in own.modules() if isinstance(layer, nn.Linear))
        parametrizations.weight_norm(last)
    return embedder


def _create(config: Trunk, seed: int, features: int | None) -> Embedder:
    backbone = Backbone(
        config.name, config.embedding_size, config.width, embedding_bn=config.embedding_bn
    )
    if (config.name == FEATURES) != (features is not None):
        raise RecipeError(
            f"trunk.name: the trunk {FEATURES} takes features and all others images; give the "
            f"features of a frozen network with --features, or another trunk than {config.name}"
        )
    if features is not None:
        return Embedder(_seeded(lambda: FeatureEmbedder(backbone, features), seed), None, config)
    if config.name.startswith(TIMM):
        network = _seeded(lambda: TimmBackbone(backbone, config.image_size), seed)
        trunk, head = network.trunk, network.head
    elif config.name == SMALL_CNN:
        trunk, head = _seeded(lambda: SmallCNN(backbone, config.image_size), seed), None
    elif is_backbone(config.name):
        trunk, head = create_backbone(backbone, seed=seed), None
    else:
        raise RecipeError(
            f"trunk.name: no trunk is called {config.name!r}; known are "
            f"{', '.join(list_backbones())}, {SMALL_CNN}, "
            f"{FEATURES} and {TIMM}NAME"
        )
    if config.weights is not None:
        _load(trunk, config.weights, config.name)
    return Embedder(trunk, head, config)


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the recipe, as JSON types, of the run that made a file of weights; {} if unknown.

    Raises:
        ModelError: a model file of facerec that is damaged.
    """
    return {} if own_note(path) is None else load_model(path).recipe


def _seeded(build: Callable[[], Any], seed: int) -> Any:
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, which would also reseed the accelerators' generators.
        torch.default_generator.manual_seed(seed)
        return build()


def _without_classifier(tensors: dict[str, Tensor], trunk: nn.Module) -> dict[str, Tensor]:
    """Leave out the tensors of the classifier, which published weights have and the trunk not."""
    classifier = getattr(trunk, "pretrained_cfg", {}).get("classifier") or ()
    names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    prefixes = tuple(f"{name}." for name in names)
    return {name: t for name, t in tensors.items() if not name.startswith(prefixes)}


def _load(trunk: nn.Module, path: Path, name: str) -> None:
    """Load weights strictly: all names and shapes must be those of the trunk."""
    if own_note(path) is None and is_backbone(name) and not name.startswith(TIMM):
        load_state_dict_file(trunk, path)
        return
    own = trunk.state_dict()
    if own_note(path) is None:
        inside, _ = own_names(path, read_state_dict(path), own)
    else:
        model = load_model(path)
        assert isinstance(model, TorchModel)
        inside = model.backbone.state_dict()
    counters = {n: torch.zeros_like(t) for n, t in own.items() if n.endswith(COUNTER)}
    tensors = {**counters, **_without_classifier(inside, trunk)}
    shapes = [tensor.shape for tensor in inside.values()][: len(own)]
    if not own.keys() & inside.keys() and shapes == [tensor.shape for tensor in own.values()]:
        tensors = dict(zip(own, inside.values(), strict=False))  # the classifier comes last
    try:
        trunk.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelError(
            f"{path}: the weights are not those of {name} "
            f"({' '.join(str(error).split()[:40])}); they belong to another architecture"
        ) from error
    for tensor_name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{path}: tensor {tensor_name!r} holds NaN or infinity")
