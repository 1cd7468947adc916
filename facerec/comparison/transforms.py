"""From image files to batches of pixels: crops and changes that repeat exactly in every arm."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facerec.backbones import Preprocessing, normalize
from facerec.comparison.image_sets import ImageSet
from facerec.errors import ImageError, RecipeError
from facerec.limits import Checked, Count, Number, Positive, Share
from facerec.records.augment import Augmentation, sample_generator

Image = NDArray[np.uint8]
"""RGB, ``(height, width, 3)``."""

_ASPECT = (3 / 4, 4 / 3)
"""Width over height of a crop."""
_TRIES = 10
_CROP_STREAM = 3
"""Of `sample_generator`, whose first three streams `Augmentation` and the loader take."""
_OCCURRENCE = 1 << 40
"""Added to the position of an image for each time that a batch holds it already."""


class Transform(ABC):
    """What happens to a decoded image before the trunk.

    Attributes:
        size: height and width of what comes out, in pixels.
    """

    size: int

    @abstractmethod
    def prepare(self, image: Image, where: str) -> Image:
        """Return what every use of the image begins with; it never varies, so it can be kept.

        Raises:
            ImageError: an image that the transform cannot take; ``where`` begins the sentence.
        """

    @abstractmethod
    def train(self, prepared: Image, seed: int, epoch: int, index: int) -> Image:
        """Return a random variant, uint8 ``(size, size, 3)``, the same for the same numbers.

        Args:
            prepared: from `prepare`; stays as it is.
            seed: ≥ 0.
            epoch: counted from 0.
            index: of the sample, ≥ 0.
        """

    @abstractmethod
    def evaluate(self, prepared: Image) -> Image:
        """Return the variant that is scored, uint8 ``(size, size, 3)``."""

    @abstractmethod
    def normalize(self, images: Tensor) -> Tensor:
        """Turn uint8 RGB ``(B, size, size, 3)`` into float32 ``(B, 3, size, size)``."""


@dataclass(frozen=True)
class FaceTransform(Checked, Transform):
    """Aligned faces, which stay where they are."""

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
        """Change the face; see `Transform.train`."""
        return self.augmentation(prepared, seed, epoch, index)

    def evaluate(self, prepared: Image) -> Image:
        """Return the face."""
        return prepared

    def normalize(self, images: Tensor) -> Tensor:
        """See `Transform.normalize`."""
        return normalize(images, self.preprocessing)


@dataclass(frozen=True)
class SideCrop(Checked):
    """Crops by the length of their side, as the Reality Check's text says."""

    smallest: Positive = 40.0
    """Smallest side of a crop in pixels: the square root of its area."""
    largest: Positive = 256.0
    """Largest side."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.smallest > self.largest:
            raise RecipeError(
                f"crop sides from {self.smallest:g} to {self.largest:g} pixels are no range"
            )

    def draw_area(self, image_area: int, generator: np.random.Generator) -> float:
        """Return the area of a crop in pixels; its side is uniform."""
        return float(generator.uniform(self.smallest, self.largest)) ** 2


@dataclass(frozen=True)
class AreaCrop(Checked):
    """Crops by their share of the image's area, as torchvision and the published code do.

    Of 256×256 pixels a share of 0.16 is a side of 102 pixels, where the text says 40.
    """

    smallest: Share = 0.16
    """Smallest share."""
    largest: Share = 1.0
    """Largest share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.smallest > self.largest:
            raise RecipeError(
                f"crops of {self.smallest:g} to {self.largest:g} of the area are no range"
            )

    def draw_area(self, image_area: int, generator: np.random.Generator) -> float:
        """Return the area of a crop in pixels; its share is uniform."""
        return image_area * float(generator.uniform(self.smallest, self.largest))


@dataclass(frozen=True)
class CropTransform(Checked, Transform):
    """Photos of things: the shorter side to 256 pixels, a random crop to 227, a flip.

    The defaults are those of *A Metric Learning Reality Check* (ECCV 2020), section 3.1; scored is
    the centre of 227 pixels. Scaling averages areas where it shrinks and is bilinear where it
    enlarges. For SimCLR's two views add photometric changes and blur to ``augmentation``.
    """

    resize: Count = 256
    """Shorter side of the whole image, in pixels."""
    size: Count = 227
    """Height and width of what the trunk sees, in pixels."""
    crop: SideCrop | AreaCrop = field(default_factory=SideCrop)
    """How large the random crops are."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """Probabilities of random changes after the crop."""
    channels: Literal["rgb", "bgr"] = "rgb"
    """Channel order that the trunk takes."""
    mean: tuple[Number, Number, Number] = (123.675, 116.28, 103.53)
    """Subtracted from the 0…255 values of red, green and blue; by default ImageNet's."""
    std: tuple[Positive, Positive, Positive] = (58.395, 57.12, 57.375)
    """Divides the result."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size > self.resize:
            raise RecipeError(f"size must be at most resize ({self.resize}), found {self.size}")

    def prepare(self, image: Image, where: str) -> Image:
        """Scale the shorter side."""
        height, width = image.shape[:2]
        short, long = min(height, width), max(height, width)
        # The longer side is rounded down, as torchvision does.
        longer = self.resize * long // short
        return _scale(image, *((longer, self.resize) if height > width else (self.resize, longer)))

    def train(self, prepared: Image, seed: int, epoch: int, index: int) -> Image:
        """Crop, scale, change; see `Transform.train`."""
        generator = sample_generator(seed, epoch, index, _CROP_STREAM)
        height, width = prepared.shape[:2]
        box = _random_box(height, width, self.crop, generator)
        crop = _scale(prepared[box], self.size, self.size)
        return self.augmentation(crop, seed, epoch, index)

    def evaluate(self, prepared: Image) -> Image:
        """Cut out the centre."""
        top, left = ((side - self.size) // 2 for side in prepared.shape[:2])
        return prepared[top : top + self.size, left : left + self.size]

    def normalize(self, images: Tensor) -> Tensor:
        """See `Transform.normalize`."""
        x = normalize(images, Preprocessing("rgb", 0.0, 1.0))
        mean, std = (x.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        x = x.sub_(mean).div_(std)
        return x.flip(1) if self.channels == "bgr" else x


def _random_box(
    height: int, width: int, crop: SideCrop | AreaCrop, generator: np.random.Generator
) -> tuple[slice, slice]:
    """Draw a box, as torchvision's ``RandomResizedCrop``: area, aspect log-uniform, place.

    What does not fit is drawn again; after ten times it is the largest box in the centre whose
    aspect is allowed.
    """
    low, high = _ASPECT
    for _ in range(_TRIES):
        area = crop.draw_area(height * width, generator)
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
    return np.asarray(
        cv2.resize(
            image, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        ),
        np.uint8,
    )


class BatchReader:
    """Reads batches of an image set, each image through the transform.

    A training variant depends on seed, epoch and position in the image set alone, and on how often
    the batch holds the image before: so arms that train on the same batches see the same pixels.

    Args:
        images: the image set.
        transform: what happens to the images.
        cache_bytes: prepared images are kept in memory until they fill this; 0 keeps none.
    """

    def __init__(self, images: ImageSet, transform: Transform, *, cache_bytes: int = 0) -> None:
        self.images = images
        self.transform = transform
        self.cache_bytes = cache_bytes
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
        """Turn a batch into what the trunk takes; see `Transform.normalize`."""
        return self.transform.normalize(images)

    def _prepared(self, position: int) -> Image:
        prepared = self._cache.get(position)
        if prepared is None:
            image = self.images.read(position)
            prepared = self.transform.prepare(image, self.images.where(position))
            if self._cached + prepared.nbytes <= self.cache_bytes:
                self._cache[position] = prepared
                self._cached += prepared.nbytes
        return prepared
