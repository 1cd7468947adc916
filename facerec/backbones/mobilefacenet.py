"""MobileFaceNet, a small backbone, with the parameter names of InsightFace.

Chen et al., "MobileFaceNets: Efficient CNNs for Accurate Real-Time Face Verification on Mobile
Devices" (2018). ``mbf`` and ``mbf_large`` have the form and sizes of ``deepinsight/insightface:
recognition/arcface_torch/backbones/mobilefacenet.py``, so that its state dicts load strictly;
``w600k_mbf`` is the form in its model packs, which hold an ``.onnx`` alone; ``mobilefacenet`` has
the paper's sizes and the activations of MobileNetV2, as networks published elsewhere do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from facerec.backbones.registry import (
    Backbone,
    EmbeddingNetwork,
    embedding_batch_norm,
    full_precision,
    register_backbone,
    scaled,
)


class _Layers(nn.Module):
    """A sequence under the name ``layers``, which InsightFace's state dicts nest everywhere."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*modules)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


Activation = Callable[[int], nn.Module]
"""Makes the module that follows a convolution of so many channels."""


class _DepthWise(_Layers):
    """Expand 1×1 → depthwise 3×3 (stride) → project 1×1, with a shortcut where the stride is 1."""

    def __init__(
        self, inputs: int, outputs: int, hidden: int, stride: int, activation: Activation
    ) -> None:
        super().__init__(
            _conv(inputs, hidden, 1, activation=activation),
            _conv(hidden, hidden, 3, activation=activation, stride=stride, groups=hidden),
            _conv(hidden, outputs, 1, activation=None),
        )
        self.residual = stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileFaceNet(EmbeddingNetwork):
    """MobileFaceNet for 112×112 faces.

    Args:
        blocks: units in each of the four groups; 0 in the first makes it a depthwise and a 1×1
            convolution, 1 a depthwise convolution.
        scale: factor on the channels outside the depthwise convolutions.
        config: embedding size, width, last batch norm and dropout. InsightFace's own models have
            ``embedding_bn="affine"``.
        activation: what follows the convolutions outside the first group.
        pooled: whether a depthwise 7×7 convolution makes one position of the last 7×7, as in the
            paper; else a 1×1 convolution narrows them and the linear layer sees all of them.
    """

    def __init__(
        self,
        blocks: tuple[int, int, int, int],
        scale: int,
        config: Backbone,
        activation: Activation = nn.PReLU,
        pooled: bool = True,
    ) -> None:
        super().__init__()
        # One rounded unit keeps all channel counts divisible by their groups at any width.
        unit = scaled(64, config.width)
        narrow, wide, last = unit * scale, 2 * unit * scale, 8 * unit
        self.embedding_size = config.embedding_size
        conv = partial(_conv, activation=activation)
        down = partial(_DepthWise, stride=2, activation=activation)
        group = partial(_group, activation=activation)
        self.layers = nn.ModuleList(
            [
                conv(3, narrow, 3, stride=2),
                _first_group(narrow, unit, blocks[0], activation),
                down(narrow, narrow, 2 * unit),
                group(narrow, 2 * unit, blocks[1]),
                down(narrow, wide, 4 * unit),
                group(wide, 4 * unit, blocks[2]),
                down(wide, wide, 8 * unit),
                group(wide, 4 * unit, blocks[3]),
            ]
        )
        self.conv_sep = conv(wide, last, 1)
        shrink: nn.Module
        if pooled:
            convolution = nn.Conv2d(last, last, 7, groups=last, bias=False)
            shrink, features = _Layers(convolution, nn.BatchNorm2d(last)), last
        else:
            shrink, features = conv(last, unit, 1), unit * 7 * 7
        norm = embedding_batch_norm(config)
        self.features = _Layers(
            shrink,
            # Two modules without state under one number: dropout leaves the names as they are.
            nn.Sequential(nn.Flatten(), nn.Dropout(config.dropout)),
            nn.Linear(features, config.embedding_size, bias=False),
            *([] if norm is None else [norm]),
        )
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def blocks(self) -> list[nn.Module]:
        """The depthwise units."""
        return [module for module in self.modules() if isinstance(module, _DepthWise)]

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images ``(B, 3, 112, 112)`` to raw embeddings ``(B, D)``, float32."""
        for layer in self.layers:
            x = layer(x)
        with full_precision(x):
            x = x.to(self.conv_sep.get_parameter("layers.0.weight").dtype)
            return self.features(self.conv_sep(x))


def _conv(
    inputs: int, outputs: int, kernel: int, *, activation: Activation | None, **options: Any
) -> _Layers:
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False, **options)
    last = [] if activation is None else [activation(outputs)]
    return _Layers(convolution, nn.BatchNorm2d(outputs), *last)


def _first_group(channels: int, unit: int, blocks: int, activation: Activation) -> _Layers:
    if blocks == 0:
        conv = partial(_conv, channels, channels, activation=lambda _: nn.ReLU())
        return _Layers(conv(3, groups=channels), conv(1))
    if blocks == 1:
        return _conv(channels, channels, 3, groups=unit, activation=activation)
    return _group(channels, 2 * unit, blocks, activation)


def _group(channels: int, hidden: int, blocks: int, activation: Activation) -> _Layers:
    return _Layers(*(_DepthWise(channels, channels, hidden, 1, activation) for _ in range(blocks)))


@register_backbone
def mbf(config: Backbone) -> MobileFaceNet:
    """Build InsightFace's small network: 2.06 million parameters."""
    return MobileFaceNet((1, 4, 6, 2), 2, config)


@register_backbone
def mbf_large(config: Backbone) -> MobileFaceNet:
    """Build InsightFace's larger network: 6.31 million parameters."""
    return MobileFaceNet((2, 8, 12, 4), 4, config)


@register_backbone
def w600k_mbf(config: Backbone) -> MobileFaceNet:
    """Build mbf without pooling at the end, of the buffalo_s pack: 3.40 million parameters."""
    return MobileFaceNet((1, 4, 6, 2), 2, config, pooled=False)


@register_backbone
def mobilefacenet(config: Backbone) -> MobileFaceNet:
    """Build the paper's sizes, with ReLU6: 0.99 million parameters at D = 128."""
    return MobileFaceNet((0, 4, 6, 2), 1, config, lambda _: nn.ReLU6())


@register_backbone
def mobilefacenet_half(config: Backbone) -> MobileFaceNet:
    """Build mobilefacenet with the first half of each group: 0.69 million parameters.

    The names of its tensors are a part of mobilefacenet's, so that it can start from one.
    """
    return MobileFaceNet((0, 2, 3, 1), 1, config, lambda _: nn.ReLU6())
