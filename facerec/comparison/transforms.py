"""From image files to batches of pixels: crops and changes that repeat exactly in every arm."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facerec.backbones import Preprocessing, normalize
from facerec.backbones.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from facerec.base.errors import ImageError, RecipeError
from facerec.base.limits import Checked, Count, Positive
from facerec.comparison.image_sets import ImageSet
from facerec.records.augment import Augmentation, sample_generator

Image = NDArray[np.uint8]
"""RGB, ``(height, width, 3)``."""

_ASPECT = (3 / 4, 4 / 3)
"""Width over height of a crop."""
_TRIES = 10
_CROP_STREAM = 3
"""Stream of `sample_generator` for crops; `Augmentation` and the loader take those before it."""
_CACHE_BYTES = 2 << 30
"""Prepared images are kept in memory until they fill this."""
_OCCURRENCE = 1 << 40
"""Added to the position of an image for each time that a batch holds it already."""


@dataclass(frozen=True)
class FaceTransform(Checked):
    """Aligned faces, which stay where they are.

    `prepare` returns what every use of an image begins with, which never varies; `train` a random
    variant, uint8 ``(size, size, 3)``, that depends on seed, epoch and index alone; `evaluate` the
    variant that is scored; `normalize` turns uint8 RGB ``(B, size, size, 3)`` into float32
    ``(B, 3, size, size)``.
    """

    size: Count = 112
    """Height and width of what the trunk sees, in pixels."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """Probabilities of the random changes of training images."""
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    """Channel order and scaling of pixels."""
    shrink: Count = 1
    """The images are this many times as high and wide, and shrunk by averaging; 4 for small_cnn."""

    def prepare(self, image: Image, where: str) -> Image:
        """Return the image, shrunk; it must have the size for that."""
        side = self.size * self.shrink
        if image.shape[:2] != (side, side):
            raise ImageError(
                f"{where}: the image is {image.shape[0]}×{image.shape[1]} (height×width) where "
                f"{side}×{side} is needed; align and crop the faces to that size first"
            )
        return image if self.shrink == 1 else _scale(image, self.size, self.size)

    def train(self, prepared: Image, seed: int, epoch: int, index: int) -> Image:
        """Return the face, changed."""
        return self.augmentation(prepared, seed, epoch, index)

    def evaluate(self, prepared: Image) -> Image:
        """Return the face."""
        return prepared


@dataclass(frozen=True)
class CropTransform(Checked):
    """Photos of things: the shorter side to 256 pixels, a random crop to 227, a flip.

    The defaults are those of *A Metric Learning Reality Check* (ECCV 2020), section 3.1; scored is
    the centre of 227 pixels. Scaling averages areas where it shrinks and is bilinear where it
    enlarges. For SimCLR's two views add photometric changes and blur to ``augmentation``.
    """

    resize: Count = 256
    """Shorter side of the whole image, in pixels."""
    size: Count = 227
    """Height and width of what the trunk sees, in pixels."""
    smallest: Positive = 40.0
    """Smallest side of a random crop in pixels, or share of the image's area."""
    largest: Positive = 256.0
    """Largest side of a random crop, or share of the area."""
    uniform: Literal["side", "area"] = "side"
    """What is drawn between them, beside aspect and place. The Reality Check's text gives the side;
    its code, as torchvision, the share of the area, 0.16 to 1, which of 256×256 pixels is a side of
    102."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """Probabilities of random changes after the crop."""
    preprocessing: Preprocessing = field(
        default_factory=partial(Preprocessing, "rgb", IMAGENET_MEAN, IMAGENET_STD)
    )
    """Channel order and scaling of pixels; by default ImageNet's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size > self.resize or (self.uniform == "area" and self.largest > 1):
            raise RecipeError(
                f"size must be at most resize, and largest at most 1 where it is a share of the "
                f"area; found {self.size}, {self.resize} and {self.largest:g}"
            )

    def prepare(self, image: Image, where: str) -> Image:
        """Scale the shorter side."""
        height, width = image.shape[:2]
        short, long = min(height, width), max(height, width)
        # The longer side is rounded down, as torchvision does.
        longer = self.resize * long // short
        return _scale(image, *((longer, self.resize) if height > width else (self.resize, longer)))

    def train(self, prepared: Image, seed: int, epoch: int, index: int) -> Image:
        """Crop, scale, change."""
        generator = sample_generator(seed, epoch, index, _CROP_STREAM)
        height, width = prepared.shape[:2]
        box = _random_box(height, width, self, generator)
        crop = _scale(prepared[box], self.size, self.size)
        return self.augmentation(crop, seed, epoch, index)

    def evaluate(self, prepared: Image) -> Image:
        """Cut out the centre."""
        top, left = ((side - self.size) // 2 for side in prepared.shape[:2])
        return prepared[top : top + self.size, left : left + self.size]


def _random_box(
    height: int, width: int, transform: CropTransform, generator: np.random.Generator
) -> tuple[slice, slice]:
    """Draw a box, as torchvision's ``RandomResizedCrop``: area, aspect log-uniform, place.

    What does not fit is drawn again; after ten times it is the largest box in the centre whose
    aspect is allowed.
    """
    low, high = _ASPECT
    for _ in range(_TRIES):
        drawn = float(generator.uniform(transform.smallest, transform.largest))
        area = drawn**2 if transform.uniform == "side" else height * width * drawn
        aspect = math.exp(generator.uniform(math.log(low), math.log(high)))
        box_width, box_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(generator.integers(height - box_height + 1))
            left = int(generator.integers(width - box_width + 1))
            break
    else:
        box_width = min(width, max(1, round(height * high)))
        box_height = min(height, max(1, round(width / low)))
        top, left = (height - box_height) // 2, (width - box_width) // 2
    return slice(top, top + box_height), slice(left, left + box_width)


def _scale(image: Image, height: int, width: int) -> Image:
    shrinks = height * width < image.shape[0] * image.shape[1]
    kind = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, (width, height), interpolation=kind), np.uint8)


Transform = FaceTransform | CropTransform


class BatchReader:
    """Reads batches of an image set, each image through the transform.

    A training variant depends on seed, epoch and position in the image set alone, and on how often
    the batch holds the image before: so arms that train on the same batches see the same pixels.

    Args:
        images: the image set.
        transform: what happens to the images.

    Attributes:
        size: height and width of what it gives, in pixels.
    """

    def __init__(self, images: ImageSet, transform: Transform) -> None:
        self.images, self.transform, self.size = images, transform, transform.size
        self._cache: dict[int, Image] = {}
        self._cached = 0

    def train(self, positions: NDArray[np.int64], seed: int, epoch: int) -> Tensor:
        """Return training variants of some images, uint8 ``(B, size, size, 3)``.

        Args:
            positions: int64 ``(B,)`` in the image set; one that occurs twice gives two variants.
            seed: ≥ 0.
            epoch: counted from 0.

        Raises:
            FacerecError: an image is missing, damaged, or none that the transform takes.
        """
        earlier: Counter[int] = Counter()
        variants = []
        for position in positions.tolist():
            index = position + _OCCURRENCE * earlier[position]
            earlier[position] += 1
            prepared = self._prepared(position)
            variants.append(self.transform.train(prepared, seed=seed, epoch=epoch, index=index))
        return torch.from_numpy(np.stack(variants))

    def evaluate(self, positions: NDArray[np.int64], batch_size: int) -> Iterator[Tensor]:
        """Return the scored variants of some images, uint8 ``(≤ batch_size, size, size, 3)`` each.

        Raises:
            FacerecError: as `train`.
        """
        for start in range(0, len(positions), batch_size):
            batch = positions[start : start + batch_size].tolist()
            variants = [self.transform.evaluate(self._prepared(position)) for position in batch]
            yield torch.from_numpy(np.stack(variants))

    def normalize(self, images: Tensor) -> Tensor:
        """Turn a batch into what the trunk takes."""
        return normalize(images, self.transform.preprocessing)

    def _prepared(self, position: int) -> Image:
        prepared = self._cache.get(position)
        if prepared is None:
            image = self.images.read(position)
            prepared = self.transform.prepare(image, self.images.where(position))
            if self._cached + prepared.nbytes <= _CACHE_BYTES:
                self._cache[position] = prepared
                self._cached += prepared.nbytes
        return prepared
