"""A calibration of simulated people, for a model of the test's choosing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from facerec.embedding.score_calibration import ScoreCalibration
from facerec.statistics.calibration import LikelihoodRatio, ScoreCounts


@cache
def toy_ratio() -> LikelihoodRatio:
    """Return the likelihood ratio of 60 people with three images each."""
    generator = np.random.default_rng(0)
    who = np.repeat(np.arange(60), 3)
    vectors = generator.standard_normal((60, 12))[who] + 0.6 * generator.standard_normal((180, 12))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    first, second = np.triu_indices(who.size, 1)
    scores = np.einsum("nd,nd->n", vectors[first], vectors[second])
    return LikelihoodRatio.fit(ScoreCounts.of_pairs(scores, who[first], who[second]))


def toy_calibration(model: Mapping[str, Any], flip: bool = True) -> ScoreCalibration:
    """Return a calibration that says it is of a model."""
    about = {name: model.get(name) for name in ("name", "sha256", "preprocessing")}
    return ScoreCalibration(about, flip, "toy.bin", toy_ratio(), 0.2, 0.19)
