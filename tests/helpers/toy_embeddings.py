"""Small embeddings for tests of files, and whether two are the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from facerec.embedding import Embeddings

NOTE = {"flip": True, "batch_size": 2, "model": {"sha256": "ab", "path": "m", "device": "cuda:0"}}


def toy(
    count: int = 5, failures: dict[int, str] | None = None, seed: int = 0, **fields: Any
) -> Embeddings:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(count, 3)).astype(np.float32)
    norms = generator.random(count).astype(np.float32)
    failures = failures or {}
    vectors[list(failures)] = np.nan
    norms[list(failures)] = np.nan
    scores = np.where(np.isnan(norms), np.nan, generator.normal(size=count)).astype(np.float32)
    ids = np.array([f"persön {i}/{i}.jpg" for i in range(count)], np.str_)
    stated = {"ids": ids, "failures": failures, "note": NOTE, "face_scores": scores}
    return Embeddings(vectors, norms, True, **stated | fields)


def made(vectors: Any, subjects: Any = None, sha256: str = "ab" * 32, **fields: Any) -> Embeddings:
    """Return embeddings by a network that is known by its hash; rows of NaN are failures."""
    matrix = np.asarray(vectors, np.float32)
    norms = np.linalg.norm(matrix, axis=1)
    about = {
        "flip": False,
        "ids": np.array([f"image {i}" for i in range(len(matrix))]),
        "subjects": None if subjects is None else np.array(subjects, np.str_),
        "failures": {int(row): "no face" for row in np.flatnonzero(np.isnan(norms))},
        "note": {"model": {"name": "tiny", "sha256": sha256, "preprocessing": None}},
    }
    return Embeddings(matrix, norms, **about | fields)


ARRAYS = ("vectors", "norms", "ids", "subjects", "face_scores", "digests")


def same(first: Embeddings, second: Embeddings) -> bool:
    for name in ARRAYS:
        one, other = getattr(first, name), getattr(second, name)
        if (one is None) != (other is None):
            return False
        if one is not None:
            np.testing.assert_array_equal(one, other)
            assert one.dtype.kind == other.dtype.kind
    assert first.vectors.dtype == second.vectors.dtype == np.float32
    assert (first.flip, first.failures) == (second.flip, second.failures)
    assert first.several == second.several
    return dict(first.note) == dict(second.note)


def take(embeddings: Embeddings, rows: Any) -> Embeddings:
    """Return some rows, in any order, as embeddings of their own."""
    places = np.arange(len(embeddings.vectors))[rows].tolist()
    changed: dict[str, Any] = {}
    for name in ARRAYS:
        array = getattr(embeddings, name)
        changed[name] = None if array is None else array[rows]
    for name in ("failures", "several"):
        noted = getattr(embeddings, name)
        changed[name] = {place: noted[row] for place, row in enumerate(places) if row in noted}
    return replace(embeddings, **changed)
