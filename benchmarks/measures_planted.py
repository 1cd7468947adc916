"""What ``facerec clean`` and ``facerec overlap`` find of what was planted in real embeddings.

Both take embeddings files of people with names, by default of two small training sets in the
current folder, which ``facerec embed --records SET --model MODEL --out SET.npz`` makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rows import Row
from sklearn.metrics import roc_auc_score

from facerec.embedding import Embeddings, read_embeddings
from facerec.galleries import clean_set, find_overlap

SETS = (Path("cfp_train.npz"), Path("celeba_train.npz"))

WRONG = ((0.05, 0), (0.01, 0), (0.2, 0), (0.05, 3), (0.05, 2))
"""Share of labels that are wrong; images of each person at most, 0 for all."""

SHARED = (
    # People in A and in B, in both; images of each person and side at most.
    (350, 150, 10),
    (350, 150, 2),
    (20, 10, 5),
    (278, 10, 5),
    (278, 0, 5),
)

Vectors = NDArray[np.float32]
Names = NDArray[np.str_]


def cleaning_planted(*, embeddings: Sequence[Path] = SETS, seeds: int = 2) -> Iterator[Row]:
    """Give images the label of another person, and see whether they are proposed.

    Args:
        embeddings: files that say who is on the images.
        seeds: draws of a design; the mean counts.
    """
    pool = _pool(embeddings)
    if pool is None:
        yield Row("cleaning", None, "", remark=_missing(embeddings))
        return
    for share, images in WRONG:
        aucs, scores = [], []
        for seed in range(seeds):
            generator = np.random.default_rng(seed)
            vectors, names = pool if not images else _few(*pool, images, generator)
            people, right = np.unique(names, return_inverse=True)
            wrong = np.zeros(len(right), bool)
            wrong[generator.choice(len(right), round(share * len(right)), replace=False)] = True
            labels = right.copy()
            labels[wrong] += generator.integers(1, len(people), int(wrong.sum()))
            labels %= len(people)
            ids = np.arange(len(right)).astype(str)
            cleaning = clean_set(vectors, people[labels], ids, across=False)
            proposed = np.zeros(len(right), bool)
            proposed[[int(p.image_id) for p in cleaning.proposals if p.kind == "wrong_label"]] = (
                True
            )
            aucs.append(roc_auc_score(wrong, cleaning.probability))
            scores.append(2 * (wrong & proposed).sum() / (wrong.sum() + proposed.sum()))
        what = f"{100 * share:g} % of labels wrong" + (f", {images} images a person" * bool(images))
        # The bars are those of sets with many images.
        bars = (0.99, 0.9) if (share, images) == (0.05, 0) else (None, None)
        remark = f"mean of {seeds} draws"
        yield Row(f"{what}: AUC", float(np.mean(aucs)), "", bars[0], "higher", remark)
        yield Row(f"{what}: F1", float(np.mean(scores)), "", bars[1], "higher", remark)


def overlap_planted(*, embeddings: Sequence[Path] = SETS, seeds: int = 3) -> Iterator[Row]:
    """Divide people between two sets, some into both, and see which are proposed.

    Args:
        embeddings: files that say who is on the images.
        seeds: divisions of a design; counts are added up.
    """
    pool = _pool(embeddings)
    if pool is None:
        yield Row("overlap", None, "", remark=_missing(embeddings))
        return
    for people, shared, images in SHARED:
        truly = proposed = right = 0
        for seed in range(seeds):
            first, second, both = _divide(*pool, people, shared, images, seed)
            overlap = find_overlap(first, second)
            said = set(overlap.a.names[overlap.matches["subject"]].tolist())
            truly, proposed = truly + len(both), proposed + len(said)
            right += len(said & both)
        what = f"{people} people a side, {shared} in both, {images} images"
        remark = f"{right} of {truly}, with {proposed - right} others, in {seeds} divisions"
        if truly:
            yield Row(f"{what}: recall", right / truly, "", 0.95, "higher", remark)
            yield Row(f"{what}: precision", right / max(proposed, 1), "", 0.95, "higher", remark)
        else:
            yield Row(f"{what}: false proposals a list", proposed / seeds, "", remark=remark)


def _missing(paths: Sequence[Path]) -> str:
    return f"needs {' and '.join(map(str, paths))}, made by facerec embed"


def _pool(paths: Sequence[Path]) -> tuple[Vectors, Names] | None:
    if not all(path.exists() for path in paths):
        return None
    vectors, names = [], []
    for path in paths:
        found = read_embeddings(path)
        assert found.subjects is not None
        usable = np.isfinite(found.norms)
        vectors.append(found.vectors[usable])
        names.append(np.char.add(f"{path.stem}:", found.subjects[usable]))
    return np.concatenate(vectors), np.concatenate(names)


def _few(
    vectors: Vectors, names: Names, images: int, generator: np.random.Generator
) -> tuple[Vectors, Names]:
    """Keep some images of each person, drawn at random."""
    order = generator.permutation(len(names))
    kept = np.concatenate([order[names[order] == who][:images] for who in np.unique(names)])
    return vectors[kept], names[kept]


def _divide(
    vectors: Vectors, names: Names, people: int, shared: int, images: int, seed: int
) -> tuple[Embeddings, Embeddings, set[str]]:
    """Put people into two sets, those in both with different images."""
    generator = np.random.default_rng(seed)
    persons, counts = np.unique(names, return_counts=True)
    both = generator.permutation(persons[counts >= 2])[:shared]
    others = generator.permutation(np.setdiff1d(persons, both))
    alone = people - shared
    sides: tuple[list[int], list[int]] = ([], [])
    for who in np.concatenate([both, others[: 2 * alone]]):
        rows = generator.permutation(np.flatnonzero(names == who)).tolist()
        if who in both:
            half = len(rows) // 2
            sides[0].extend(rows[:half][:images])
            sides[1].extend(rows[half:][:images])
        else:
            sides[int(who in others[alone : 2 * alone])].extend(rows[:images])

    def embeddings(rows: list[int]) -> Embeddings:
        norms = np.linalg.norm(vectors[rows], axis=1)
        return Embeddings(vectors[rows], norms, True, np.array(rows).astype(str), names[rows])

    return embeddings(sides[0]), embeddings(sides[1]), set(both.tolist())
