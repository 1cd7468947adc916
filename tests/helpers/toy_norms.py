"""Norms of images of subjects in groups."""

from __future__ import annotations

import math

import numpy as np

from facerec.fairness.norms import SubjectNorms
from helpers.toy_faces import grouping


def draw(
    seed: int = 0,
    sizes: tuple[int, ...] = (12, 15, 9),
    shift: float = 0.5,
    icc: float = 0.5,
    images: tuple[int, int] = (2, 7),
) -> SubjectNorms:
    """Norms around 20 with SD 2, the first group higher by some SD."""
    generator = np.random.default_rng(seed)
    groups = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    subjects = np.repeat(np.arange(len(groups)), generator.integers(*images, size=len(groups)))
    own, noise = generator.standard_normal(len(groups)), generator.standard_normal(len(subjects))
    deviation = math.sqrt(icc) * own[subjects] + math.sqrt(1 - icc) * noise
    norms = 20 + 2 * (shift * (groups[subjects] == 0) + deviation)
    return SubjectNorms.of(norms, subjects, grouping(groups[subjects], "abcdefgh"[: len(sizes)]))
