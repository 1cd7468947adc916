"""Augmentation: each change does what it says, and repeats for the same sample."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import cv2
import numpy as np
import pytest

from facerec.records.augment import (
    CROP_AREA,
    PHOTOMETRIC_FACTOR,
    Augmentation,
    decision_numbers,
    sample_generator,
)


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    coarse = np.random.default_rng(3).integers(1, 256, (8, 8, 3), dtype=np.uint8)
    return np.maximum(cv2.resize(coarse, (112, 112), interpolation=cv2.INTER_CUBIC), 1)


def only(change: str, probability: float = 1.0) -> Augmentation:
    return Augmentation(**{"flip": 0.0, change: probability})


def test_crop_keeps_one_box_in_place(image: np.ndarray) -> None:
    shares = []
    for index in range(300):
        result = only("crop")(image, 5, 0, index)
        rows, columns = np.nonzero(result.any(axis=2))
        box = np.s_[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        expected = np.zeros_like(image)
        expected[box] = image[box]
        np.testing.assert_array_equal(result, expected)
        shares.append(image[box].shape[0] * image[box].shape[1] / 112**2)
    assert CROP_AREA[0] - 0.02 < min(shares) < 0.3 and 0.9 < max(shares) <= CROP_AREA[1]


def test_photometric_agrees_with_its_formula(image: np.ndarray) -> None:
    for index in range(30):
        result = only("photometric")(image, 9, 0, index)
        generator = sample_generator(9, 0, index)
        brightness, contrast, saturation = generator.uniform(*PHOTOMETRIC_FACTOR, size=3)
        weights = np.array([0.299, 0.587, 0.114])
        value = np.clip(image * brightness, 0, 255)
        value = np.clip(value * contrast + (1 - contrast) * (value @ weights).mean(), 0, 255)
        grey = (value @ weights)[..., None]
        value = np.clip(value * saturation + (1 - saturation) * grey, 0, 255)
        assert np.abs(result - value).max() <= 3  # rounding to integers between the three steps


def test_affine_moves_about_the_centre_and_no_further(image: np.ndarray) -> None:
    """Three dots, seen through the change, say what angle, scale and shift it had."""
    dots = np.array([[56, 40], [40, 72], [72, 72]])  # x, y about the centre (55.5, 55.5)
    changes, angles = Augmentation(flip=0.0, affine=1.0), []
    for index in range(40):
        found = []
        for x, y in dots:
            black = np.zeros((112, 112, 3), np.uint8)
            black[y - 2 : y + 3, x - 2 : x + 3] = 255
            grey = changes(black, 3, 1, index)[:, :, 0].astype(float)
            rows, columns = np.indices(grey.shape)
            found.append([(columns * grey).sum(), (rows * grey).sum()] / grey.sum())
        # Solve [x y 1] · A = [x' y'].
        solution = np.linalg.solve(np.column_stack([dots - 55.5, np.ones(3)]), np.array(found))
        linear, shift = solution[:2], solution[2] - 55.5
        scale = math.sqrt(abs(np.linalg.det(linear)))
        angles.append(math.degrees(math.atan2(linear[0, 1], linear[0, 0])))
        np.testing.assert_allclose(linear @ linear.T, scale**2 * np.eye(2), atol=0.02)
        assert 0.89 < scale < 1.11 and np.abs(shift).max() < 0.05 * 112 + 0.2
    assert -10.5 < min(angles) < -3 and 3 < max(angles) < 10.5
    # Its decision and its numbers leave the other changes alone where it does not happen.
    before = Augmentation(0.5, 0.5, 0.5, 0.5, 0.5)
    after = replace(before, affine=1e-300)
    for index in range(20):
        np.testing.assert_array_equal(before(image, 0, 0, index), after(image, 0, 0, index))


def test_sample_numbers_depend_on_all_four_arguments_and_nothing_else() -> None:
    first = {
        key: tuple(sample_generator(*key).integers(2**63, size=4))
        for key in itertools.product(range(3), range(3), range(3), range(2))
    }
    assert len(set(first.values())) == len(first) == 54
    np.random.seed(0)  # noqa: NPY002 (proves that the global state plays no part)
    for key in reversed(first):
        assert tuple(sample_generator(*key).integers(2**63, size=4)) == first[key]


def test_decisions_are_those_of_splitmix64_in_python_integers() -> None:
    def output(state: int) -> int:
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        return state ^ (state >> 31)

    # The published first outputs of the generator started at 0 and at 1234567.
    assert output(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    assert output((1234567 + 0x9E3779B97F4A7C15) % 2**64) == 6457827717110365317
    starts = np.random.Philox(key=4 + (2 << 64), counter=2 << 128).random_raw(6).tolist()
    indices = [0, 7, 10**12]
    found = decision_numbers(4, 2, np.array(indices))
    for row, index in enumerate(indices):
        states = [(start + index * 0x9E3779B97F4A7C15) % 2**64 for start in starts]
        assert found[row].tolist() == [(output(state) >> 11) / 2**53 for state in states]
