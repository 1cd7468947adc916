"""Orders of the training images: who is visited how often, in runs, by turns; and from any step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_training import make_trainer, tiny_recipe
from hypothesis import given
from hypothesis import strategies as st

from facerec.records import Data, Part
from facerec.records.dataset import BatchRequest
from facerec.training.sampler import GlobalBatchSampler

LABELS = np.random.default_rng(0).integers(0, 13, 150)
WEIGHTS = np.repeat([1.0, 0.4, 2.5], [70, 50, 30])
ORDERS: list[dict] = [{}, {"weights": WEIGHTS}, {"labels": LABELS}]
NAMES = ["plain", "weights", "balanced"]


def sampler(**options) -> GlobalBatchSampler:
    return GlobalBatchSampler(150, 12, **{"epochs": 3, "seed": 7, **options})


def rows(requests) -> list[tuple[int, list[int], list[int] | None]]:
    return [
        (r.epoch, r.indices.tolist(), None if r.repeats is None else r.repeats.tolist())
        for r in requests
    ]


def visits(sampler: GlobalBatchSampler, epoch: int) -> np.ndarray:
    return np.concatenate([r.indices for r in sampler if r.epoch == epoch])


# Any order


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_batches_of_one_process(options: dict, world: int) -> None:
    ranks = [list(sampler(rank=r, world_size=world, **options)) for r in range(world)]
    joined = []
    for parts in zip(*ranks, strict=True):
        repeats = [part.repeats for part in parts if part.repeats is not None]
        indices = np.concatenate([part.indices for part in parts])
        again = np.concatenate(repeats) if repeats else None
        joined.append(BatchRequest(parts[0].epoch, indices, again))
    assert rows(joined) == rows(sampler(**options))


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
def test_resuming_gives_the_rest_of_the_order(options: dict) -> None:
    whole = rows(sampler(**options))
    steps = len(whole) // 3
    for start in (1, steps - 1, steps, steps + 1, 2 * steps + 3, 3 * steps):
        assert rows(sampler(start=start, **options)) == whole[start:]
        assert len(sampler(start=start, **options)) == len(whole) - start


def test_the_plain_order_is_a_permutation_of_philox() -> None:
    for epoch in range(3):
        generator = np.random.Generator(np.random.Philox(key=[7, epoch]))
        expected = generator.permutation(150)[:144]
        for options in ({}, {"weights": np.ones(150)}):
            assert visits(sampler(**options), epoch).tolist() == expected.tolist()


# Weights


PARTS = st.tuples(st.sampled_from([0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.2]), st.integers(5, 40))


@given(st.lists(PARTS, min_size=1, max_size=4), st.integers(0, 5))
def test_images_are_visited_as_often_as_they_weigh(
    parts: list[tuple[float, int]], seed: int
) -> None:
    weights = np.repeat([w for w, _ in parts], [n for _, n in parts])
    sizes = {w: int((weights == w).sum()) for w in set(weights.tolist())}
    total = sum(round(w * n) for w, n in sizes.items())
    if not total:
        return
    epochs = 5
    run = GlobalBatchSampler(len(weights), 1, epochs=epochs, seed=seed, weights=weights)
    assert run.steps_per_epoch == total
    so_far = np.zeros(len(weights), np.int64)
    for epoch in range(epochs):
        counts = np.bincount(visits(run, epoch), minlength=len(weights))
        so_far += counts
        for weight, size in sizes.items():
            own = weights == weight
            assert counts[own].sum() == round(weight * size)
            assert np.ptp(counts[own]) <= 1 and np.ptp(so_far[own]) <= 1


# By identity


def some_labels(counts: list[int], seed: int) -> np.ndarray:
    """Labels of people with so many images, mixed, with numbers left out and damaged images."""
    labels = np.concatenate([np.repeat(np.arange(len(counts)) * 2, counts), [-1, -1]])
    return np.random.default_rng(seed).permutation(labels)


def in_turn(images: list[int], count: int) -> bool:
    """Whether each visit of all images ends before the next begins."""
    rounds = (images[i : i + count] for i in range(0, len(images), count))
    return all(len(set(each)) == len(each) for each in rounds)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 9))
def test_people_are_visited_equally_often(counts: list[int], seed: int) -> None:
    labels = some_labels(counts, seed)
    run = GlobalBatchSampler(len(labels), 1, epochs=6, seed=seed, labels=labels)
    found = [int(r.indices[0]) for r in run]
    assert len(found) == 6 * len(labels)
    people = labels[found]
    assert people.min() >= 0
    done = np.cumsum(people[:, None] == np.unique(labels[labels >= 0]), axis=0)
    assert np.ptp(done, axis=1).max() <= 1
    for person, count in enumerate(counts):
        assert in_turn([i for i in found if labels[i] == 2 * person], count)


# In training


def test_the_trainer_follows_the_recipe(data: Path) -> None:
    trainer = make_trainer(tiny_recipe(data, sampling="balanced", batch_size=7))
    assert len(set(next(trainer.batches()).labels.tolist())) == 7
    heavy = Data(data, also=(Part(data, weight=2.0, shared_classes=True),))
    trainer = make_trainer(replace(tiny_recipe(data), data=heavy))
    assert trainer.learner.steps_per_epoch == 3 * 56 // 12
    every = [i for batch in trainer.batches() for i in batch.indices.tolist()]
    counts = np.bincount(every[: 12 * trainer.learner.steps_per_epoch], minlength=112)
    assert counts[:56].max() == 1 and counts[56:].max() == 2 and counts.sum() == 168
