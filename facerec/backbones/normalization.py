"""Normalisation of pixels as a part of a network, on whatever device they are."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from facerec.backbones.preprocessing import Preprocessing


def normalize(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Turn RGB pixels into the backbone's input.

    The result is channels-last in memory, which is how the pixels already lie: no copy beyond the
    one from uint8 to float32.

    Args:
        images: uint8 RGB, ``(B, H, W, 3)``.
        preprocessing: channel order, mean and standard deviation.

    Returns:
        float32, ``(B, 3, H, W)``.
    """
    if preprocessing.channels == "bgr":
        images = images.flip(3)
    x = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.channels_last)
    if isinstance(preprocessing.mean, float) and isinstance(preprocessing.std, float):
        return x.sub_(preprocessing.mean).div_(preprocessing.std)
    mean, std = (
        torch.tensor(each, device=x.device)[:, None, None]
        for each in map(np.ndarray.tolist, preprocessing.per_channel())
    )
    return x.sub_(mean).div_(std)
