"""From decoded pixels to the backbone's input: channel order and scaling, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from facerec.limits import LARGEST, Checked, Limits, Number


@dataclass(frozen=True)
class Preprocessing(Checked):
    """What the backbone expects its input to be: ``(pixel − mean) / std``."""

    channels: Literal["rgb", "bgr"] = "rgb"
    """Channel order: rgb as InsightFace trains, bgr as AdaFace does. A wrong one raises no error
    and only costs accuracy."""
    mean: Number = 127.5
    """Number subtracted from every pixel value (0 to 255)."""
    std: Annotated[float, Limits(1e-6, LARGEST)] = 127.5
    """Number that the result is divided by; some models from elsewhere want 128."""


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
    x -= np.float32(preprocessing.mean)
    x /= np.float32(preprocessing.std)
    return x
