"""Random changes of training images that repeat exactly, whoever applies them and when.

Every sample has its own random numbers, a function of the seed, the epoch and the sample's index
alone. So neither the number of workers or ranks, nor the batch size, nor a resumed run changes
what an image looks like in a given epoch.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from facerec.base.libraries import cv2
from facerec.base.limits import Checked, Probability

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

AFFINE_ANGLE, AFFINE_SCALE, AFFINE_SHIFT = 10.0, (0.9, 1.1), 0.05
"""Degrees to either side, factors on the size, and shifts to either side as a share of the sides:
about what separates the crops of two detectors."""

_INTERPOLATIONS = ("INTER_NEAREST", "INTER_LINEAR", "INTER_AREA", "INTER_CUBIC", "INTER_LANCZOS4")

_CHANGES = 6
_GAMMA, _MIX_1, _MIX_2 = np.array(
    [0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64
)
"""SplitMix64's increment and factors."""


@dataclass(frozen=True)
class Augmentation(Checked):
    """Probabilities of the random changes; each is applied on its own, in this order."""

    flip: Probability = 0.5
    """Probability of mirroring left and right."""

    crop: Probability = 0.0
    """Probability of blackening all but a random box of 20 to 100 % of the area (AdaFace: 0.2)."""

    low_resolution: Probability = 0.0
    """Probability of shrinking the image to 20 to 100 % of its side and back (AdaFace: 0.2)."""

    blur: Probability = 0.0
    """Probability of a Gaussian blur with a standard deviation of 0.5 to 2 pixels."""

    photometric: Probability = 0.0
    """Probability of changing brightness, contrast and saturation by 0.5 to 1.5 (AdaFace: 0.2)."""

    affine: Probability = 0.0
    """Probability of turning the image by up to 10°, scaling it by 0.9 to 1.1 and shifting it by up
    to 5 % of its sides, before all but the mirroring; edges are mirrored. Aligned faces gain from
    it where those of other detectors are to be recognised (AdaFace has none)."""

    def decide(self, seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Return which changes samples get, bool ``(B, 6)``; the first is mirroring.

        Args:
            seed: the run's seed, ≥ 0.
            epoch: counted from 0.
            indices: integers ``(B,)``, of the samples in their data set.
        """
        # One number per change whatever its probability: switching one change on leaves the
        # decisions about the others alone.
        each = [self.flip, self.crop, self.low_resolution, self.blur, self.photometric, self.affine]
        return np.less(decision_numbers(seed, epoch, indices), each)

    def __call__(self, image: np.ndarray, seed: int, epoch: int, index: int) -> np.ndarray:
        """Return the changed image of one sample; the given one stays as it is.

        Args:
            image: uint8 RGB, ``(height, width, 3)``.
            seed: the run's seed, ≥ 0.
            epoch: counted from 0.
            index: of the sample in its data set.
        """
        changed = image.copy()
        (decided,) = self.decide(seed, epoch, np.array([index]))
        change_image(changed, decided, seed, epoch, index)
        return changed


def change_image(image: np.ndarray, decided: np.ndarray, seed: int, epoch: int, index: int) -> None:
    """Make the changes of one sample in place that `Augmentation.decide` has decided."""
    flip, *others, affine = decided.tolist()
    if flip:
        cv2.flip(image, 1, image)
    if affine or any(others):
        generator, changed = sample_generator(seed, epoch, index), image
        changes = (_affine, _crop, _low_resolution, _blur, _photometric)
        for wanted, change in zip((affine, *others), changes, strict=True):
            if wanted:
                changed = change(changed, generator)
        image[...] = changed


def _affine(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Turn and scale the image about its centre, and shift it."""
    height, width = image.shape[:2]
    angle = generator.uniform(-AFFINE_ANGLE, AFFINE_ANGLE)
    matrix = cv2.getRotationMatrix2D(
        ((width - 1) / 2, (height - 1) / 2), angle, generator.uniform(*AFFINE_SCALE)
    )
    shift = generator.uniform(-AFFINE_SHIFT, AFFINE_SHIFT, size=2)
    matrix[0, 2] += shift[0] * width
    matrix[1, 2] += shift[1] * height
    return cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101)


def _crop(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Keep a random box where it is and blacken the rest, as a face half out of the picture.

    A box that does not fit is cut to the image.
    """
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
    chosen = generator.integers(len(_INTERPOLATIONS), size=2)
    down, up = (getattr(cv2, _INTERPOLATIONS[i]) for i in chosen)
    small = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(
        cv2.resize(image, small, interpolation=down), (width, height), interpolation=up
    )


def _blur(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Blur by a Gaussian of a random width."""
    return cv2.GaussianBlur(image, (0, 0), generator.uniform(*BLUR_SIGMA))


def _photometric(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Change brightness, contrast about the mean grey, and saturation about grey."""
    brightness, contrast, saturation = generator.uniform(*PHOTOMETRIC_FACTOR, size=3)
    # `addWeighted` rounds and clips to 0…255 in one pass.
    image = cv2.addWeighted(image, brightness, image, 0.0, 0.0)
    mean = float(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).mean())
    image = cv2.addWeighted(image, contrast, image, 0.0, (1.0 - contrast) * mean)
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(image, saturation, grey, 1.0 - saturation, 0.0)


def sample_generator(seed: int, epoch: int, index: int, stream: int = 0) -> np.random.Generator:
    """Return a generator that depends on nothing but its four arguments.

    Philox (Salmon et al., SC 2011) numbers its output blocks by a 256-bit counter. Seed and epoch
    are its key; index and stream are the counter's upper half, so no two samples ever share a
    number.

    Args:
        seed: the run's seed, ≥ 0.
        epoch: counted from 0.
        index: of the sample in its data set.
        stream: separates uses of one sample (0 strengths of its changes, 1 replacement of a bad
            record, 2 decisions of the whole epoch, 3 what it is blended with).
    """
    key, counter = np.array([seed, epoch], np.uint64), np.array([0, 0, stream, index], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def decision_numbers(seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """Return numbers uniform in [0, 1) that decide on the changes, float64 ``(B, changes)``.

    Number ``index`` of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), whose state advances by a
    constant, so that any number is reached at once, and those of a batch together. Each change
    starts it elsewhere, at a number of Philox for seed and epoch.

    Args:
        seed: the run's seed, ≥ 0.
        epoch: counted from 0.
        indices: integers ``(B,)``, of the samples in their data set.
    """
    bits = _starts(seed, epoch) + (indices.astype(np.uint64) * _GAMMA)[:, None]
    bits = (bits ^ (bits >> 30)) * _MIX_1
    bits = (bits ^ (bits >> 27)) * _MIX_2
    bits ^= bits >> 31
    return (bits >> 11) * 2.0**-53


@functools.lru_cache(maxsize=4)
def _starts(seed: int, epoch: int) -> np.ndarray:
    return sample_generator(seed, epoch, 0, stream=2).bit_generator.random_raw(_CHANGES)
