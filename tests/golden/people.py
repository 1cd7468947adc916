"""Made-up people whose embeddings give the same figures on every processor.

A matrix product adds in an order that depends on the processor, and so rounds differently. Here
nothing is rounded: a vector is a whole-numbered one of length `LENGTH`, times a factor of a few
binary digits. Of length 1 its coordinates have 12 binary digits and every partial sum of a product
of two has at most 24, which is what float32 holds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LENGTH = 4096
_SMALL = 60_000
"""What may be missing of the square of the length; four coordinates bring it in."""


class People(NamedTuple):
    """Embeddings ``(N, D)``, and the image, subject and group of each."""

    vectors: NDArray[np.float32]
    ids: NDArray[np.str_]
    subjects: NDArray[np.str_]
    groups: NDArray[np.str_]


def four_squares() -> NDArray[np.int64]:
    """Return for every number below `_SMALL` four numbers whose squares add up to it (Lagrange)."""
    side = np.arange(int(_SMALL**0.5) + 1)
    pairs = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    sums = (pairs**2).sum(1)
    two = np.full((_SMALL, 2), -1)
    two[sums[sums < _SMALL]] = pairs[sums < _SMALL]
    four = np.full((_SMALL, 4), -1)
    for number in np.flatnonzero(two[:, 0] >= 0):
        rest = np.flatnonzero((four[number:, 0] < 0) & (two[: _SMALL - number, 0] >= 0))
        four[number + rest] = np.hstack([np.broadcast_to(two[number], (len(rest), 2)), two[rest]])
    return four


def exact(directions: NDArray[np.float64], norms: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return vectors near these directions ``(N, D)`` with exact cosines, ``(N, D + 4)``.

    Norms become multiples of ½, and must lie below 32.
    """
    unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    whole = np.trunc(unit * (LENGTH - 0.5)).astype(np.int64)
    missing = LENGTH**2 - (whole**2).sum(1)
    vectors = np.hstack([whole, four_squares()[missing]]) / LENGTH
    return (vectors * (np.round(2 * norms) / 2)[:, None]).astype(np.float32)


def people(
    seed: int = 0,
    sizes: tuple[int, ...] = (40, 30, 20),
    names: tuple[str, ...] = ("amber", "blue", "coral"),
    images: tuple[int, int] = (2, 7),
    noise: float = 0.7,
    size: int = 24,
) -> People:
    """Return people of groups that differ in how alike they look and in their norms.

    Args:
        seed: of all of them.
        sizes: people in each group.
        names: of the groups.
        images: of a person, at least and below.
        noise: of an image against a person's mean.
        size: dimensions, to which four are added.
    """
    generator = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    person = np.repeat(np.arange(len(group)), generator.integers(*images, len(group)))
    centre = generator.normal(size=(len(sizes), size))
    alike = 0.2 + 0.25 * np.arange(len(sizes))
    faces = generator.normal(size=(len(group), size)) + (alike[:, None] * centre)[group]
    spread = noise * (1 + 0.15 * np.arange(len(sizes)))[group[person], None]
    vectors = faces[person] + spread * generator.normal(size=(len(person), size))
    norms = 18 - group[person] + generator.normal(size=len(group))[person]
    norms = np.clip(norms + generator.normal(size=len(person)), 8, 30)
    ids = np.array([f"p{who:03d}/{row:04d}.jpg" for row, who in enumerate(person)])
    subjects = np.array([f"p{who:03d}" for who in person])
    return People(exact(vectors, norms), ids, subjects, np.array(names)[group[person]])
