"""Random changes of training images that repeat exactly, whoever applies them and when.

Every sample has its own random numbers, a function of the seed, the epoch and the sample's index
alone. So neither the number of workers or ranks, nor the batch size, nor a resumed run changes
what an image looks like in a given epoch.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import cv2
import numpy as np

from facerec.errors import RecipeError

# Strengths after AdaFace (Kim, Jain and Liu, CVPR 2022, section 4.1 and its published training
# settings), which applies crop, low resolution and photometric change with probability 0.2 each.
CROP_AREA = (0.2, 1.0)
"""Share of the image's area that a crop keeps."""
CROP_RATIO = (3 / 4, 4 / 3)
"""Width over height of the kept part."""
LOW_RESOLUTION_SCALE = (0.2, 1.0)
"""Side of the small image that is scaled up again, as a share of the full side."""
PHOTOMETRIC_FACTOR = (0.5, 1.5)
"""Factor on brightness, on contrast and on saturation."""
BLUR_SIGMA = (0.5, 2.0)
"""Standard deviation of the Gaussian blur in pixels (AdaFace has no blur of its own)."""

_INTERPOLATIONS = (
    cv2.INTER_NEAREST,
    cv2.INTER_LINEAR,
    cv2.INTER_AREA,
    cv2.INTER_CUBIC,
    cv2.INTER_LANCZOS4,
)


@dataclass(frozen=True)
class Augmentation:
    """Probabilities of the random changes; each is applied on its own, in this order.

    Raises:
        RecipeError: a probability outside [0, 1].
    """

    flip: float = 0.5
    """Probability of mirroring left and right."""

    crop: float = 0.0
    """Probability of blackening all but a random box of 20 to 100 % of the area (AdaFace: 0.2)."""

    low_resolution: float = 0.0
    """Probability of shrinking the image to 20 to 100 % of its side and back (AdaFace: 0.2)."""

    blur: float = 0.0
    """Probability of a Gaussian blur with a standard deviation of 0.5 to 2 pixels."""

    photometric: float = 0.0
    """Probability of changing brightness, contrast and saturation by 0.5 to 1.5 (AdaFace: 0.2)."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not 0.0 <= value <= 1.0:
                raise RecipeError(
                    f"augmentation.{field.name} is {value}, but a probability lies between 0 and 1"
                )

    def __call__(self, image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return the changed image; the given one stays as it is.

        Args:
            image: uint8 RGB, ``(height, width, 3)``.
            generator: the random numbers of this sample, see ``sample_generator``.
        """
        # One draw per change whatever its probability: switching one change on leaves the
        # decisions about the others alone.
        flip, crop, low_resolution, blur, photometric = generator.random(5).tolist()
        if flip < self.flip:
            image = cv2.flip(image, 1)
        if crop < self.crop:
            image = _crop(image, generator)
        if low_resolution < self.low_resolution:
            image = _low_resolution(image, generator)
        if blur < self.blur:
            image = cv2.GaussianBlur(image, (0, 0), generator.uniform(*BLUR_SIGMA))
        if photometric < self.photometric:
            image = _photometric(image, generator)
        return image


def _crop(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Keep a random box where it is and blacken the rest, as a face half out of the picture."""
    height, width = image.shape[:2]
    area = generator.uniform(*CROP_AREA) * height * width
    ratio = math.exp(generator.uniform(math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])))
    box_height = min(height, max(1, round(math.sqrt(area / ratio))))
    box_width = min(width, max(1, round(math.sqrt(area * ratio))))
    top = int(generator.integers(height - box_height + 1))
    left = int(generator.integers(width - box_width + 1))
    box = slice(top, top + box_height), slice(left, left + box_width)
    cropped = np.zeros_like(image)
    cropped[box] = image[box]
    return cropped


def _low_resolution(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Scale down and up again, each by a random interpolation."""
    height, width = image.shape[:2]
    scale = generator.uniform(*LOW_RESOLUTION_SCALE)
    down, up = (_INTERPOLATIONS[i] for i in generator.integers(len(_INTERPOLATIONS), size=2))
    small = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(
        cv2.resize(image, small, interpolation=down), (width, height), interpolation=up
    )


def _photometric(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Change brightness, then contrast about the mean grey, then saturation about grey."""
    brightness, contrast, saturation = generator.uniform(*PHOTOMETRIC_FACTOR, size=3)
    # Through zero, `addWeighted` rounds and clips to 0…255 in one pass.
    bright = cv2.addWeighted(image, brightness, image, 0.0, 0.0)
    mean = float(cv2.cvtColor(bright, cv2.COLOR_RGB2GRAY).mean())
    contrasted = cv2.addWeighted(bright, contrast, bright, 0.0, (1.0 - contrast) * mean)
    grey = cv2.cvtColor(cv2.cvtColor(contrasted, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(contrasted, saturation, grey, 1.0 - saturation, 0.0)


class SampleGenerators:
    """The random numbers of each sample of one epoch.

    ``at(index)`` moves one shared generator to the start of the sample's own stretch, which is
    several times faster than making a new one; numbers drawn for the previous sample must be
    used up by then. See ``sample_generator`` for what the numbers depend on.
    """

    def __init__(self, seed: int, epoch: int, stream: int = 0) -> None:
        self._bits = np.random.Philox(key=_key(seed, epoch))
        self._generator = np.random.Generator(self._bits)
        self._counter = np.array([0, 0, stream, 0], np.uint64)
        self._state = self._bits.state  # of a generator from which nothing was drawn
        self._state["state"]["counter"] = self._counter

    def at(self, index: int) -> np.random.Generator:
        """Return the generator at the beginning of the sample's random numbers."""
        self._counter[3] = index
        self._bits.state = self._state
        return self._generator


def sample_generator(seed: int, epoch: int, index: int, stream: int = 0) -> np.random.Generator:
    """Return a generator that depends on nothing but its four arguments.

    Philox (Salmon et al., SC 2011) numbers its output blocks by a 256-bit counter. Seed and epoch
    are its key; index and stream are the counter's upper half, so no two samples ever share a
    number.

    Args:
        seed: the run's seed, ≥ 0.
        epoch: counted from 0.
        index: of the sample in its data set.
        stream: separates uses of one sample (0 augmentation, 1 replacement of a bad record).
    """
    return np.random.Generator(
        np.random.Philox(key=_key(seed, epoch), counter=np.array([0, 0, stream, index], np.uint64))
    )


def _key(seed: int, epoch: int) -> np.ndarray:
    return np.array([seed, epoch], np.uint64)
