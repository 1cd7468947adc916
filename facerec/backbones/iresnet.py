"""iResNet, the residual network of ArcFace, with the parameter names of InsightFace.

Improved residual units (Duta et al., "Improved Residual Networks for Image and Video Recognition",
2020) in the form of ``deepinsight/insightface: recognition/arcface_torch/backbones/iresnet.py``,
so that its published state dicts load strictly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from facerec.backbones.registry import (
    Backbone,
    EmbeddingNetwork,
    embedding_batch_norm,
    full_precision,
    register_backbone,
    scaled,
)


class IResNetBlock(nn.Module):
    """BN → conv 3×3 → BN → PReLU → conv 3×3 (stride) → BN, added to the identity."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.prelu = nn.PReLU(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C_in, H, W)`` to ``(B, C, H / stride, W / stride)``."""
        identity = x if self.downsample is None else self.downsample(x)
        x = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        return self.bn3(self.conv2(x)) + identity


class IResNet(EmbeddingNetwork):
    """iResNet for 112×112 faces.

    Args:
        blocks: residual blocks in each of the four stages; every stage halves the resolution.
        config: embedding size, width, last batch norm and dropout.
    """

    def __init__(self, blocks: tuple[int, int, int, int], config: Backbone) -> None:
        super().__init__()
        stem, *widths = (scaled(c, config.width) for c in (64, 64, 128, 256, 512))
        self.embedding_size = config.embedding_size
        self.conv1 = nn.Conv2d(3, stem, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.prelu = nn.PReLU(stem)
        self.layer1 = _stage(stem, widths[0], blocks[0])
        self.layer2 = _stage(widths[0], widths[1], blocks[1])
        self.layer3 = _stage(widths[1], widths[2], blocks[2])
        self.layer4 = _stage(widths[2], widths[3], blocks[3])
        self.bn2 = nn.BatchNorm2d(widths[3])
        self.dropout = nn.Dropout(config.dropout)
        self.fc = nn.Linear(widths[3] * 7 * 7, config.embedding_size)
        self.features = embedding_batch_norm(config)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.1)

    @property
    def blocks(self) -> list[IResNetBlock]:
        """The residual blocks."""
        return [module for module in self.modules() if isinstance(module, IResNetBlock)]

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images ``(B, 3, 112, 112)`` to raw embeddings ``(B, D)``, float32."""
        x = self.prelu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.dropout(torch.flatten(self.bn2(x), 1))
        with full_precision(x):
            x = self.fc(x.to(self.fc.weight.dtype))
            return x if self.features is None else self.features(x)


def _stage(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
    first = IResNetBlock(inputs, outputs, stride=2)
    return nn.Sequential(
        first, *(IResNetBlock(outputs, outputs, stride=1) for _ in range(blocks - 1))
    )


@register_backbone
def iresnet18(config: Backbone) -> IResNet:
    """Build the network of 18 layers: 24.0 million parameters, 2.6 GFLOP an image."""
    return IResNet((2, 2, 2, 2), config)


@register_backbone
def iresnet34(config: Backbone) -> IResNet:
    """Build the network of 34 layers: 34.1 million parameters."""
    return IResNet((3, 4, 6, 3), config)


@register_backbone
def iresnet50(config: Backbone) -> IResNet:
    """Build the network of 50 layers: 43.6 million parameters, 6.3 GFLOP an image."""
    return IResNet((3, 4, 14, 3), config)


@register_backbone
def iresnet100(config: Backbone) -> IResNet:
    """Build the network of 100 layers: 65.2 million parameters, 12.1 GFLOP an image."""
    return IResNet((3, 13, 30, 3), config)


@register_backbone
def iresnet200(config: Backbone) -> IResNet:
    """Build the network of 200 layers: 118.8 million parameters, 23.5 GFLOP an image."""
    return IResNet((6, 26, 60, 6), config)
