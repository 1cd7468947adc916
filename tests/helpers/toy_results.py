"""Verification results of generated embeddings, for the tests of reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from facerec.embedding.extraction import Embeddings
from facerec.records.images import MemoryImages
from facerec.statistics.kfold import fold_indices
from facerec.verification import Bench, Pairs, VerificationResult, evaluate_embeddings

MODEL = {"name": "toynet", "sha256": "ab" * 32, "runtime": "numpy"}


def make_result(
    pairs: int = 200,
    name: str = "toy",
    *,
    strength: float = 1.2,
    noise: int = 1,
    persons: int | None = 40,
    folds: bool = True,
    broken: int = 0,
    prefix: str = "p",
    **flags: Any,
) -> VerificationResult:
    """Evaluate ten folds of equally many same and different pairs.

    Args:
        pairs: their number, a multiple of 20.
        name: of the bench.
        strength: of what the images of a person share.
        noise: seed of what they do not share; another model has another one.
        persons: their number; None makes them unknown.
        folds: whether there are folds.
        broken: images whose embedding is zero, from the first pair's on.
        prefix: of the names of persons.
        flags: see `evaluate_embeddings`.
    """
    generator = np.random.default_rng(0)
    count = persons or 40
    same = np.tile(np.repeat([True, False], pairs // 20), 10)
    one = generator.integers(count, size=pairs)
    other = np.where(same, one, (one + generator.integers(1, count, size=pairs)) % count)
    images = -(-2 * pairs // count)
    who = np.repeat(np.arange(count), images)
    first, second = (
        side * images + generator.integers(*places, size=pairs)
        for side, places in ((one, (0, images // 2)), (other, (images // 2, images)))
    )
    faces = generator.normal(size=(count, 16))
    vectors = strength * faces[who] + np.random.default_rng(noise).normal(size=(who.size, 16))
    vectors = (vectors * generator.uniform(1, 3, (who.size, 1))).astype(np.float32)
    norms = np.linalg.norm(vectors, axis=1)
    vectors[first[:broken]] = 0
    ids = [f"{prefix}{person}/{image % images}.jpg" for image, person in enumerate(who)]
    bench = Bench(
        name,
        MemoryImages("memory", ids, []),
        Pairs(first, second, same, None if persons is None else who, fold_indices(pairs)),
        subjects_from=None if persons is None else "the list",
        source={"path": f"data/{name}.bin", "sha256": "cd" * 32},
    )
    if not folds:
        bench = replace(bench, pairs=replace(bench.pairs, folds=None))
    result = evaluate_embeddings(Embeddings(vectors, norms, True), bench, **flags)
    return replace(result, model=MODEL)
