"""Made-up embeddings of persons in groups, whose cosines are exact in every arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.fairness.groupings import Grouping
from facerec.fairness.rates import GroupErrors, ListedPairs, all_pairs_rates, listed_rates
from facerec.verification.evaluation import score_pairs

TARGETS = ("1e-1", "1e-2", "1e-3")


@dataclass(frozen=True)
class Toy:
    vectors: NDArray[np.float32]
    subject: NDArray[np.int64]
    group: NDArray[np.int64]
    names: tuple[str, ...]

    @property
    def grouping(self) -> Grouping:
        return grouping(self.group, self.names)

    @property
    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All pairs of images, one loop."""
        sides = list(itertools.combinations(range(len(self.subject)), 2))
        first, second = np.array(sides).T
        return first, second


def grouping(codes: NDArray[np.int64], names: Sequence[str]) -> Grouping:
    """Return groups of images by their codes."""
    return Grouping(("group",), tuple(names), codes)


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


def pair_list(faces: Toy, scores: Any = None, sides: Any = None) -> ListedPairs:
    """List pairs of images, all of them unless given, by their cosines unless scores are given."""
    sides = np.stack(faces.pairs) if sides is None else sides
    scores = score_pairs(faces.vectors, *sides) if scores is None else scores
    same = faces.subject[sides[0]] == faces.subject[sides[1]]
    return ListedPairs("list", scores, sides, same, faces.subject)


def of_list(
    faces: Toy, targets: tuple[str, ...] = TARGETS, pairs: ListedPairs | None = None, **options: Any
) -> GroupErrors:
    """Count the errors of the groups over a list of pairs."""
    pairs = pairs or pair_list(faces)
    return listed_rates(pairs, [faces.grouping], targets=targets, **options)[0]


def of_all(faces: Toy, targets: tuple[str, ...] = TARGETS, **options: Any) -> GroupErrors:
    """Count the errors of the groups over all pairs of images."""
    options |= {"targets": targets}
    return all_pairs_rates(faces.vectors, faces.subject, [faces.grouping], **options)[0]
