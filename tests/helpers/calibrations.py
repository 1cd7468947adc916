"""Calibrations of simulated people, for a model of the test's choosing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from facerec.backbones import Preprocessing
from facerec.base.recipe import from_dict
from facerec.embedding.calibration import FaceScore, ModelCalibration, ScoreCalibration, Threshold
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


def point(threshold: float, fpr: str = "1e-3", bench: str = "lfw", **more: Any) -> dict[str, Any]:
    """Return the row of an operating point, as facerec calibrate writes it."""
    rates = {"fpr_realised": 1e-3, "fpr_interval": [0.0, 0.01], "false_accepts": [1, 1000]}
    rates |= {"tpr": 0.9, "tpr_interval": [0.8, 0.95], "true_accepts": [9, 10]}
    named = {"threshold": threshold, "threshold_interval": None, "fpr": fpr, "bench": bench}
    return {**named, **rates, "reliable": True, "flip": False, **more}


def refusing(vector: np.ndarray, limit: float = -0.99) -> FaceScore:
    """Return a face score, minus the cosine to a vector, that refuses what points as it does."""
    centre = (vector / np.linalg.norm(vector)).astype(np.float32)
    power = {"flat ones": (9, 10)}
    return FaceScore(centre[None], np.array([[0.0, 1.0]]), limit, 100, power)


def faces_json(score: FaceScore) -> dict[str, Any]:
    """Return a face score as a file gives it."""
    found: dict[str, Any] = json.loads(json.dumps(model_calibration(faces=score).to_json()))
    return found["faces"]


def model_calibration(*rows: Mapping[str, Any], **changes: Any) -> ModelCalibration:
    """Return the calibration of a model, without flip unless its thresholds are with it."""
    fields = {"sha256": None, "preprocessing": Preprocessing(), "shift": (0, 0), "align": None}
    points = tuple(from_dict(Threshold, dict(row), "a row") for row in rows)
    fields |= {"flip": any(each.flip for each in points), "thresholds": points, "source": "toy.bin"}
    return ModelCalibration(**fields | {"faces": None, "score_calibration": None} | changes)
