"""A calibration of simulated people, for a model of the test's choosing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from facerec.embedding.score_calibration import ScoreCalibration
from facerec.statistics.calibration import LikelihoodRatio, ScoreCounts


def people(seed: int, number: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the scores of all pairs of three images each, and who is on either side."""
    generator = np.random.default_rng(seed)
    who = np.repeat(np.arange(number), 3)
    vectors = generator.standard_normal((number, 12))[who]
    vectors += 0.6 * generator.standard_normal((who.size, 12))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    first, second = np.triu_indices(who.size, 1)
    return np.einsum("nd,nd->n", vectors[first], vectors[second]), who[first], who[second]


@cache
def toy_ratio() -> LikelihoodRatio:
    return LikelihoodRatio.fit(ScoreCounts.of_pairs(*people(0, 60)))


def toy_calibration(model: Mapping[str, Any], flip: bool = True) -> ScoreCalibration:
    """Return a calibration that says it is of a model."""
    about = {name: model.get(name) for name in ("name", "sha256", "preprocessing")}
    return ScoreCalibration(about, flip, "toy.bin", toy_ratio(), 0.2, 0.19)
