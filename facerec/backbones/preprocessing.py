"""From decoded pixels to the backbone's input: channel order and scaling, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from facerec.base.limits import LARGEST, Checked, Limits, Number

Spread = Annotated[float, Limits(1e-6, LARGEST)]
PerChannel = float | tuple[float, float, float]
"""One number for all channels, or one for each in the order in which the network takes them."""

IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Mean and deviation of ImageNet's pixels (0 to 255), red, green, blue, as torchvision has them."""


@dataclass(frozen=True)
class Preprocessing(Checked):
    """What the backbone expects its input to be: ``(pixel − mean) / std``."""

    channels: Literal["rgb", "bgr"] = "rgb"
    """Channel order: rgb as InsightFace trains, bgr as AdaFace does. A wrong one raises no error
    and only costs accuracy."""
    mean: Number | tuple[Number, Number, Number] = 127.5
    """Subtracted from every pixel value (0 to 255): a number, or one a channel in the order of
    channels; ImageNet's are 123.675 116.28 103.53."""
    std: Spread | tuple[Spread, Spread, Spread] = 127.5
    """What the result is divided by, as mean; some models from elsewhere want 128, ImageNet's are
    58.395 57.12 57.375."""

    def per_channel(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return mean and std of each channel in the network's order, float32 ``(3,)`` each."""
        mean, std = (
            np.broadcast_to(np.asarray(each, np.float32), 3) for each in (self.mean, self.std)
        )
        return mean, std


def normalize_array(images: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Return what `normalize` does, bit for bit, for an engine that takes arrays.

    Args:
        images: uint8 RGB, ``(B, H, W, 3)``.
        preprocessing: channel order, mean and standard deviation.

    Returns:
        float32, ``(B, 3, H, W)``.
    """
    if preprocessing.channels == "bgr":
        images = images[..., ::-1]
    x = images.transpose(0, 3, 1, 2).astype(np.float32)
    mean, std = preprocessing.per_channel()
    x -= mean[:, None, None]
    x /= std[:, None, None]
    return x


def numbers_words(value: PerChannel) -> str:
    """Return mean or std as its flag takes it: one number, or three with commas between.

    Examples:
        >>> numbers_words(127.5), numbers_words((58.395, 57.12, 57.375))
        ('127.5', '58.395,57.12,57.375')
    """
    return ",".join(f"{each:g}" for each in np.ravel(value).tolist())
