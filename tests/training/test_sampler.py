"""The data order is a function of the seed and the step alone."""

from __future__ import annotations

import numpy as np
import pytest

from facerec.errors import DatasetError, RecipeError
from facerec.training.sampler import GlobalBatchSampler


def order(**options: int) -> list[tuple[int, list[int]]]:
    sampler = GlobalBatchSampler(50, 12, epochs=3, seed=7, **options)
    return [(request.epoch, request.indices.tolist()) for request in sampler]


def test_each_epoch_visits_every_image_at_most_once_in_another_order() -> None:
    batches = order()
    assert [epoch for epoch, _ in batches] == [0] * 4 + [1] * 4 + [2] * 4
    epochs = [[i for e, b in batches if e == epoch for i in b] for epoch in range(3)]
    for visited in epochs:
        assert len(visited) == len(set(visited)) == 48
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_batches_of_one_process(world: int) -> None:
    ranks = [order(rank=rank, world_size=world) for rank in range(world)]
    joined = [
        (parts[0][0], [i for _, indices in parts for i in indices])
        for parts in zip(*ranks, strict=True)
    ]
    assert joined == order()


@pytest.mark.parametrize("start", [0, 1, 4, 5, 11, 12])
def test_resuming_gives_the_rest_of_the_order(start: int) -> None:
    assert order(start=start) == order()[start:]
    assert len(GlobalBatchSampler(50, 12, epochs=3, start=start)) == 12 - start


def test_seeds_differ() -> None:
    first = next(iter(GlobalBatchSampler(1000, 100, seed=0))).indices
    second = next(iter(GlobalBatchSampler(1000, 100, seed=1))).indices
    assert np.any(first != second)


def test_impossible_batches_are_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"batch_size 10 does not divide among 3 processes.*9 or 12"
    ):
        GlobalBatchSampler(50, 10, world_size=3)
    with pytest.raises(DatasetError, match="5 images, fewer than one batch of 12"):
        GlobalBatchSampler(5, 12)
