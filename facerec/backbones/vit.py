"""Vision transformers for faces, with the parameter names of InsightFace.

Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale"
(2021), in the form and sizes of ``deepinsight/insightface:
recognition/arcface_torch/backbones/vit.py``, so that its state dicts load strictly: patches of 9×9
pixels, no class token, ReLU6, and all tokens together in the last layers.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from facerec.backbones.registry import (
    Backbone,
    EmbeddingNetwork,
    embedding_batch_norm,
    full_precision,
    register_backbone,
    scaled,
)

PATCH = 9
"""Height and width of a patch in pixels; 12 × 12 of them cover 108 of the 112 pixels."""
PATCHES = (112 // PATCH) ** 2
HEADS = 8
TAIL_EPS = 2e-5
"""Added to the variance in the last two batch norms."""


class DropPath(nn.Module):
    """Stochastic depth: leave out a branch for some samples, in training alone.

    Huang et al., "Deep Networks with Stochastic Depth" (2016), with the branches that stay divided
    by the probability to stay, so that evaluation needs no factor.

    Args:
        probability: of leaving a sample's branch out.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Map branches ``(B, …)`` to those that stay; the others are 0."""
        if not self.training or self.probability == 0:
            return x
        kept = 1 - self.probability
        mask = x.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(kept)
        return x * (mask / kept)


class _Attention(nn.Module):
    """Every token looks at all tokens of its image; scores and softmax are float32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.proj = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, size = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, HEADS, size // HEADS).permute(2, 0, 3, 1, 4)
        with full_precision(x):
            q, k, v = qkv.to(self.qkv.weight.dtype).unbind()
            x = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(batch, tokens, size))


class _Block(nn.Module):
    """Attention and MLP, each after a layer norm and added to its input."""

    def __init__(self, size: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size)
        self.attn = _Attention(size)
        self.norm2 = nn.LayerNorm(size)
        wide = nn.Linear(size, 4 * size)
        narrow = nn.Linear(4 * size, size)
        self.mlp = nn.Sequential(OrderedDict(fc1=wide, activation=nn.ReLU6(), fc2=narrow))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class VisionTransformer(EmbeddingNetwork):
    """Vision transformer for 112×112 faces.

    Args:
        size: numbers in a token.
        depth: blocks.
        config: embedding size, width, last batch norm, dropout, stochastic depth and masking.
            InsightFace's own models have ``embedding_bn="affine"``.
    """

    def __init__(self, size: int, depth: int, config: Backbone) -> None:
        super().__init__()
        size = scaled(size, config.width)
        self.embedding_size = config.embedding_size
        self.drop_path = config.drop_path
        self.mask_ratio = config.mask_ratio
        self.pos_embed = nn.Parameter(torch.empty(1, PATCHES, size))
        # Nothing reads it without masking, and a parameter without a gradient stops DDP.
        self.mask_token = nn.Parameter(torch.empty(1, 1, size), requires_grad=config.mask_ratio > 0)
        # Row after row, one token a patch.
        patches = nn.Conv2d(3, size, PATCH, PATCH)
        self.patch_embed = nn.Sequential(OrderedDict(proj=patches, tokens=nn.Flatten(2)))
        last = max(depth - 1, 1)
        self.blocks = nn.ModuleList(
            _Block(size, config.drop_path * block / last) for block in range(depth)
        )
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(config.dropout)
        self.feature = nn.Sequential(
            nn.Linear(PATCHES * size, size, bias=False),
            nn.BatchNorm1d(size, TAIL_EPS),
            nn.Linear(size, config.embedding_size, bias=False),
        )
        if (norm := embedding_batch_norm(config)) is not None:
            norm.eps = TAIL_EPS
            self.feature.append(norm)
        # InsightFace truncates at ±2, a hundred standard deviations away.
        nn.init.normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.mask_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images ``(B, 3, 112, 112)`` to raw embeddings ``(B, D)``, float32."""
        with full_precision(x):
            x = self.patch_embed(x.to(self.pos_embed.dtype)).transpose(1, 2) + self.pos_embed
        order = self._random_order(x) if self.training and self.mask_ratio else None
        if order is not None:
            seen = order[:, : int(PATCHES * (1 - self.mask_ratio))]
            x = x.gather(1, seen[:, :, None].expand(-1, -1, x.shape[2]))
        for block in self.blocks:
            x = block(x)
        with full_precision(x):
            x = self.norm(x.to(self.norm.weight.dtype))
            if order is not None:
                hidden = self.mask_token.expand(len(x), PATCHES - x.shape[1], -1)
                back = order.argsort(1)[:, :, None].expand(-1, -1, x.shape[2])
                x = torch.cat([x, hidden], 1).gather(1, back)
            x = self.feature[:2](x.flatten(1))
            return self.feature[2:](self.dropout(x))

    def _random_order(self, x: Tensor) -> Tensor:
        """Return a random order of the patches for each image, int64 ``(B, patches)``."""
        return torch.rand(len(x), PATCHES, device=x.device).argsort(1)


@register_backbone
def vit_t(config: Backbone) -> VisionTransformer:
    """Build 12 blocks of 256 numbers a token: 19.1 million parameters, 1.5 GFLOP an image."""
    return VisionTransformer(256, 12, config)


@register_backbone
def vit_s(config: Backbone) -> VisionTransformer:
    """Build 12 blocks of 512: 76.0 million parameters, 5.7 GFLOP an image."""
    return VisionTransformer(512, 12, config)


@register_backbone
def vit_b(config: Backbone) -> VisionTransformer:
    """Build 24 blocks of 512: 113.8 million parameters, 11.4 GFLOP an image."""
    return VisionTransformer(512, 24, config)


@register_backbone
def vit_l(config: Backbone) -> VisionTransformer:
    """Build 24 blocks of 768: 255.7 million parameters, 25.3 GFLOP an image."""
    return VisionTransformer(768, 24, config)
