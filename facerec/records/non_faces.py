"""Generated pictures without a face, and ways of ruining faces: what a network should not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.libraries import cv2

Image = NDArray[np.uint8]

EACH = 60
"""Generated pictures of a kind."""


def without_face(size: tuple[int, int], generator: np.random.Generator) -> dict[str, Image]:
    """Return kinds of generated pictures without a face, uint8 RGB ``(EACH, H, W, 3)`` each."""
    height, width = size
    y, x = np.mgrid[:height, :width] / max(size)
    ones = np.ones((height, width, 1))

    def colours() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return generator.integers(0, 256, 3), generator.integers(0, 256, 3)

    def mixed(share: NDArray[np.floating]) -> NDArray[np.floating]:
        one, other = colours()
        return one * (1 - share[..., None]) + other * share[..., None]

    def along(angle: float) -> NDArray[np.float64]:
        return np.cos(angle) * x + np.sin(angle) * y

    def noise() -> NDArray[np.floating]:
        channels = generator.choice([1, 3])
        return generator.uniform(60, 195) + generator.uniform(20, 90) * generator.normal(
            size=(height, width, channels)
        )

    def smooth() -> NDArray[np.floating]:
        blurred = cv2.GaussianBlur(noise(), (0, 0), 2.0 ** generator.uniform(0, 4.3))
        field = np.asarray(blurred).reshape(height, width, -1)
        spread = max(float(field.std()), 1e-6)
        return (field - field.mean()) / spread * generator.uniform(20, 70) + 127

    def gradient() -> NDArray[np.floating]:
        share = along(generator.uniform(0, 2 * np.pi))
        return mixed((share - share.min()) / np.ptp(share))

    def checkers() -> NDArray[np.floating]:
        angle, side = generator.uniform(0, np.pi), generator.uniform(0.04, 0.4)
        return mixed((along(angle) // side + along(angle + np.pi / 2) // side) % 2)

    kinds: dict[str, Callable[[], NDArray[Any]]] = {
        "constants": lambda: colours()[0] * ones,
        "noise": noise,
        "smooth noise": smooth,
        "gradients": gradient,
        "checkers": checkers,
    }
    return {
        name: np.clip([draw() + np.zeros(3) for _ in range(EACH)], 0, 255).astype(np.uint8)
        for name, draw in kinds.items()
    }


def things(size: tuple[int, int], generator: np.random.Generator) -> Image:
    """Return pictures without a face that gave no centre, to measure the score on, as many.

    Things that hide each other, of all sizes, have the statistics of photos without being any (A.
    Lee, D. Mumford, J. Huang, "Occlusion models for natural images", IJCV 41, 2001). Pale and soft
    ones are refused least, and as often as photos of cars, in networks that refuse few of either.
    """

    def colour() -> NDArray[np.floating]:
        drawn = generator.integers(0, 256, 3)
        return drawn.mean() + 0.4 * (drawn - drawn.mean())

    def draw() -> Image:
        picture = np.zeros((*size, 3), np.uint8) + colour().astype(np.uint8)
        for _ in range(int(generator.integers(30, 200))):
            radius = 0.027 * max(size) * (1 - 0.99 * generator.uniform()) ** -0.7
            centre = (generator.uniform(-0.1, 1.1, 2) * size[::-1]).tolist()
            sides = [2 * radius * generator.uniform(0.3, 1), 2 * radius]
            thing = centre, sides, generator.uniform(0, 180)
            if generator.uniform() < 0.5:
                cv2.ellipse(picture, thing, colour().tolist(), -1)
            else:
                cv2.fillPoly(picture, [cv2.boxPoints(thing).astype(np.int32)], colour().tolist())
        return _blurred(picture, generator.uniform(1.5, 3) * size[0] / 112)

    return np.stack([draw() for _ in range(EACH)])


def _blurred(picture: Image, spread: float) -> Image:
    return cv2.GaussianBlur(picture, (0, 0), spread).astype(np.uint8, copy=False)


def _shrunk(face: Image, generator: np.random.Generator) -> Image:
    height, width = face.shape[:2]
    small = cv2.resize(face, (width // 8, height // 8), interpolation=cv2.INTER_AREA)
    large = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
    return large.astype(np.uint8, copy=False)


def _turned(face: Image, generator: np.random.Generator) -> Image:
    height, width = face.shape[:2]
    angle = 30 * generator.choice([-1, 1])
    turn = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), angle, 1)
    return cv2.warpAffine(face, turn, (width, height)).astype(np.uint8, copy=False)


def _shuffled(face: Image, generator: np.random.Generator) -> Image:
    rows, columns = (np.array_split(np.arange(side), 4) for side in face.shape[:2])
    height, width = (min(map(len, parts)) for parts in (rows, columns))
    tiles = [face[r[0] :][:height, c[0] :][:, :width] for r in rows for c in columns]
    order, shuffled = generator.permutation(16), face.copy()
    for place, tile in enumerate(order):
        top, left = rows[place // 4][0], columns[place % 4][0]
        shuffled[top : top + height, left : left + width] = tiles[tile]
    return shuffled


SPOILT: dict[str, Callable[[Image, np.random.Generator], Image]] = {
    "faces in shuffled pieces": _shuffled,
    "upside-down faces": lambda face, _: np.ascontiguousarray(face[::-1, ::-1]),
    "blurred faces": lambda face, _: _blurred(face, face.shape[0] * 4 / 112),
    "faces of 14 pixels": _shrunk,
    "faces turned by 30°": _turned,
}
"""Kind of picture → what ruins a face so."""
