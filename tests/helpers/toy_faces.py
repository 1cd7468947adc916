"""Made-up embeddings of persons in groups, whose cosines are exact in every arithmetic."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Toy:
    vectors: NDArray[np.float32]
    subject: NDArray[np.int64]
    group: NDArray[np.int64]
    names: tuple[str, ...]

    @property
    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All pairs of images, one loop."""
        sides = list(itertools.combinations(range(len(self.subject)), 2))
        first, second = np.array(sides).T
        return first, second


def toy(
    persons: int = 40,
    images: int = 4,
    names: tuple[str, ...] = ("A", "B", "C"),
    noise: float = 0.12,
    seed: int = 0,
) -> Toy:
    """Persons are rows of ±1 of 64 numbers, of which each image has some turned over.

    Cosines are multiples of 1/32. Norms are powers of two, so that normalising is exact too. Each
    group shares more of its rows than the one before, and so has more false matches.
    """
    generator = np.random.default_rng(seed)
    of_person = np.arange(persons) % len(names)
    base = generator.choice([-1, 1], size=(len(names), 64))
    own = generator.choice([-1, 1], size=(persons, 64))
    shared = generator.random((persons, 64)) < 0.1 + 0.15 * of_person[:, None]
    rows = np.where(shared, base[of_person], own)
    subject = np.repeat(np.arange(persons), images)
    turned = generator.random((subject.size, 64)) < noise * (1 + of_person[subject, None] / 4)
    signs = np.where(turned, -rows[subject], rows[subject])
    norms = 2.0 ** generator.integers(-2, 3, size=subject.size)
    order = generator.permutation(subject.size)
    vectors = (signs * norms[:, None])[order].astype(np.float32)
    return Toy(vectors, subject[order], of_person[subject][order], names)
