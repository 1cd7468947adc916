"""Features of a frozen network in the place of images: an embedder alone is trained on them.

A comparison on features keeps protocol, splits, search and statistics; its trunk is the identity,
and only what follows it learns. All features lie in memory, so that a trial takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from facerec.base.errors import DatasetError
from facerec.comparison.image_sets import ImageSet, ordered, refuse_bench
from facerec.cosines.unit_rows import row_norms
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import read_embeddings

Features = NDArray[np.float32]


@dataclass(frozen=True)
class FeatureData:
    """The features that all arms of a comparison train and are scored on."""

    path: Path
    """An embeddings file of `facerec embed`, or one of others (.npz, .parquet), with the
    class of every image (``subjects`` or ``labels``, in tables ``subject_id``)."""
    second_views: Path | None = None
    """Another file of the same images, such as features of their mirror images or of other crops:
    the second view of losses that need two."""


@dataclass(eq=False, kw_only=True)
class FeatureSet(ImageSet):
    """Features of classes 0 … C−1, each class with at least two images, and a reader of batches.

    Attributes:
        size: how many features an image has, K.
    """

    features: Features
    """As they were stored, ``(n, K)``."""
    second_views: Features | None = None
    """Of the same images, ``(n, K)``; None where there are none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.features = self.features[self._kept]
        self.size = self.features.shape[1]
        if self.second_views is not None:
            self.second_views = self.second_views[self._kept]

    def train(self, positions: NDArray[np.int64], seed: int, epoch: int) -> Tensor:
        """Return features ``(B, K)``; where a batch holds an image again, its second view.

        Args:
            positions: int64 ``(B,)`` in the set.
            seed: of no effect, as nothing is drawn; as `BatchReader` takes it.
            epoch: of no effect.
        """
        chosen = self.features[positions]
        if self.second_views is not None:
            again = np.ones(len(positions), bool)
            again[np.unique(positions, return_index=True)[1]] = False
            chosen[again] = self.second_views[positions[again]]
        return torch.from_numpy(chosen)

    def evaluate(self, positions: NDArray[np.int64], batch_size: int) -> Iterator[Tensor]:
        """Return the first views of some images ``(m, K)``, all at once."""
        yield torch.from_numpy(self.features[positions])

    def normalize(self, features: Tensor) -> Tensor:
        """Return the features as they are."""
        return features


def open_features(config: FeatureData) -> FeatureSet:
    """Read the features of a comparison.

    Classes are in the order of their numbers, if all names are such, else in that of their letters.
    Images that were not acquired, whose features are all 0 (what some programs write of an image
    that failed), or without a class are left out and counted in a note.

    Raises:
        FacerecError: a bench; a file that is missing, damaged or names no classes; second views of
            other images or of another size.
    """
    path = Path(config.path)
    first = _read(path)
    assert first.ids is not None
    if first.subjects is None:
        raise DatasetError(
            f"{path}: it names no classes, which a comparison needs; add an array (in a table a "
            "column) 'subjects' or 'labels', or embed records or folders of classes"
        )
    usable = ~np.isnan(row_norms(first.vectors))  # of rows of zeros too
    named = first.subjects != ""
    files, second = [path], None
    if config.second_views is not None:
        files.append(Path(config.second_views))
        second = _second(files[1], path, first)
        usable &= ~np.isnan(row_norms(second))
    notes = []
    for lost, why in ((~usable, "have no features"), (usable & ~named, "have no class")):
        if count := int(lost.sum()):
            notes.append(f"{path}: {count:,} of {len(lost):,} images {why} and are left out")
    kept = np.flatnonzero(usable & named)
    names = ordered(set(first.subjects[kept].tolist()))
    labels = pd.Index(names).get_indexer(pd.Index(first.subjects[kept]))
    return FeatureSet(
        path,
        first.ids[kept],
        labels,
        names,
        files,
        notes=notes,
        features=first.vectors[kept],
        second_views=None if second is None else second[kept],
    )


def _read(path: Path) -> Embeddings:
    embeddings = read_embeddings(path, numbered=True)
    source = embeddings.note.get("source")
    refuse_bench(path, known=isinstance(source, dict) and source.get("kind") == "bench")
    return embeddings


def _second(path: Path, first_path: Path, first: Embeddings) -> Features:
    """Return the second views in the order of the first."""
    second = _read(path)
    assert second.ids is not None and first.ids is not None
    rows = pd.Index(second.ids).get_indexer(pd.Index(first.ids))
    same = (rows >= 0).all() and second.vectors.shape[1] == first.vectors.shape[1]
    if same and first.subjects is not None and second.subjects is not None:
        same = bool((second.subjects[rows] == first.subjects).all())
    if not same:
        raise DatasetError(
            f"{path}: its images, their classes or the number of features are not those of "
            f"{first_path}; embed the same images with the same network for both files"
        )
    return second.vectors[rows]
