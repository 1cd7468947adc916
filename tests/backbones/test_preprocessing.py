from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from facerec.backbones import Preprocessing, normalize
from facerec.backbones.preprocessing import IMAGENET_MEAN, IMAGENET_STD, normalize_array


def pixels(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
@pytest.mark.parametrize(
    ("mean", "std"),
    [(127.5, 127.5), (0.0, 1.0), (IMAGENET_MEAN, IMAGENET_STD), ((1.0, 2.0, 3.0), 64.0)],
)
def test_normalize_against_a_loop(channels: str, mean: Any, std: Any) -> None:
    images = pixels(2, 5, 4, 3)
    found = normalize(images, Preprocessing(channels, mean, std))
    assert found.shape == (2, 3, 5, 4)
    assert found.dtype == torch.float32
    for n, c, y, x in np.ndindex(*found.shape):
        source = c if channels == "rgb" else 2 - c
        # One number, or one for each channel in the order of the network.
        expected = (int(images[n, y, x, source]) - np.resize(mean, 3)[c]) / np.resize(std, 3)[c]
        assert found[n, c, y, x].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
@pytest.mark.parametrize("mean", [127.5, 0.0, 103.94, IMAGENET_MEAN])
@pytest.mark.parametrize("std", [127.5, 1.0, 57.375, IMAGENET_STD])
def test_arrays_become_the_same_bits(channels: str, mean: Any, std: Any) -> None:
    images = torch.arange(256, dtype=torch.uint8).view(2, 128, 1, 1).repeat(1, 1, 1, 3)
    images[..., 1] = images[..., 1].flip(1)
    preprocessing = Preprocessing(channels, mean, std)
    found = normalize_array(images.numpy(), preprocessing)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, normalize(images, preprocessing).numpy())


def test_the_result_is_channels_last_and_the_pixels_stay() -> None:
    images = pixels(2, 112, 112, 3)
    before = images.clone()
    found = normalize(images, Preprocessing("bgr"))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)
