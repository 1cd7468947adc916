"""The best setting of each arm, trained anew with fresh seeds and scored once on the test classes.

Each seed trains one model a fold. They are scored together, their unit embeddings concatenated, and
apart, the mean of their figures (Musgrave, Belongie and Lim, ECCV 2020, section 3.3).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from facerec.base.defaults import ClusterMetric
from facerec.base.errors import ComparisonError
from facerec.base.files import atomic_path, open_file, reading
from facerec.base.recipe import from_dict, to_dict
from facerec.comparison.fit import ArmTrainer, Fit
from facerec.comparison.image_sets import ImageSet
from facerec.comparison.protocol import RECALLS, Protocol
from facerec.comparison.retrieval import Retrieval, clustering, retrieve
from facerec.comparison.splits import ClassSplit, select_classes

VIEWS = ("concatenated", "separated")
"""How the models of the folds answer: with embeddings side by side, or each by itself."""
MODELS = "models"
"""The view whose figures are of each fold's model: ``norm_mean`` and ``norm_cv2``."""


@dataclass(frozen=True, eq=False)
class FinalRun:
    """One seed of one arm on the test classes."""

    labels: NDArray[np.int64]
    """Class of each query, ``(q,)``."""
    scores: Mapping[tuple[str, str], NDArray[np.float64]]
    """Results by view and name: of each query, ``(q,)``, the metrics and ``recall@K``; of all
    queries together, ``()``, the `ClusterMetric`s asked for; and of each fold's model,
    ``(folds,)``, mean and squared coefficient of variation of the norms of raw test embeddings."""
    fits: tuple[Fit, ...]
    """How each of them was trained; none for an untrained model."""
    dropped: int
    """Queries without another image of their class."""

    @property
    def failure(self) -> str | None:
        """Why a model has no score: it diverged, and its weights before that are no result."""
        return next((fit.failure for fit in self.fits if fit.failure), None)

    def mean(self, view: str, name: str) -> float:
        """Return a figure of all queries or models, for those of single ones their mean."""
        return float(self.scores[view, name].mean())


Positions = NDArray[np.int64]


def scored_positions(images: ImageSet, split: ClassSplit) -> tuple[Positions, ...]:
    """Return the positions of the queries and, where the set says so, of the gallery.

    Elsewhere all images of the test classes are queries, each compared with all others.
    """
    positions, _ = select_classes(images.labels, split.test)
    if images.partition is None or not (images.partition[positions] == "query").any():
        return (positions,)
    purposes = images.partition[positions]
    return positions[purposes == "query"], positions[purposes == "gallery"]


def score_models(
    trainer: ArmTrainer,
    protocol: Protocol,
    models: Sequence[nn.Module],
    sides: Sequence[Positions],
    fits: Sequence[Fit] = (),
    metrics: Sequence[ClusterMetric] = (),
    recalls: Sequence[int] = RECALLS,
) -> FinalRun:
    """Score the models of all folds, together and apart.

    Args:
        trainer: embeds the images.
        protocol: of the arm.
        models: trunks, one a fold.
        sides: what is scored, from `scored_positions`.
        fits: how they were trained.
        metrics: figures of clustering the queries, besides those of retrieval.
        recalls: the K of Recall@K.

    Raises:
        MissingExtraError: they are asked for, and scikit-learn is not installed.
    """
    labels, *gallery_labels = (trainer.labels[positions] for positions in sides)
    raw = [[trainer.embed(model, each, protocol) for each in sides] for model in models]
    joined = [_concatenate(of_models) for of_models in zip(*raw, strict=True)]

    def search(queries: NDArray[np.float32], *gallery: NDArray[np.float32]) -> Retrieval:
        references = (gallery[0], gallery_labels[0]) if gallery else None
        return retrieve(queries, labels, references=references, ks=recalls)

    scores: dict[tuple[str, str], NDArray[np.float64]] = {}
    together = search(*joined)
    for view, found, embeddings in (
        ("concatenated", [together], [joined]),
        ("separated", [search(*each) for each in raw], raw),
    ):
        for name in together.figures:
            scores[view, name] = np.mean([each.figures[name] for each in found], axis=0)
        clusters = [clustering(each[0], labels, seed=0) for each in embeddings if metrics]
        for asked in metrics:
            scores[view, asked] = np.mean([each[asked] for each in clusters], axis=0)
    norms = [np.linalg.norm(np.concatenate(each).astype(np.float64), axis=1) for each in raw]
    scores[MODELS, "norm_mean"] = np.array([each.mean() for each in norms])
    scores[MODELS, "norm_cv2"] = np.array([each.var() / each.mean() ** 2 for each in norms])
    return FinalRun(together.labels, scores, tuple(fits), together.dropped)


def _concatenate(sides: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Normalise each model's embeddings and lay them side by side."""
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
    return np.concatenate(unit, axis=1)


def write_final(path: Path, run: FinalRun) -> None:
    """Write a run as ``.npz`` without pickles, whole or not at all."""
    arrays: dict[str, Any] = {":".join(key): values for key, values in run.scores.items()}
    note = json.dumps({"fits": to_dict(run.fits), "dropped": run.dropped})
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, labels=run.labels, note=np.array(note), **arrays)


def read_final(path: Path) -> FinalRun:
    """Read what `write_final` wrote.

    Raises:
        ComparisonError: the file is missing or damaged.
    """
    advice = "delete it and run the same command again"
    with reading(path, ComparisonError, advice, Exception):
        with open_file(path) as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        note, labels = json.loads(str(arrays.pop("note"))), arrays.pop("labels")
        fits = from_dict(tuple[Fit, ...], note["fits"], str(path))
        scores = {tuple(name.split(":", 1)): values for name, values in arrays.items()}
        return FinalRun(labels, scores, fits, note["dropped"])
