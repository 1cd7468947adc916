"""Batches of so many classes with so many images each, as positions; the same in every arm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.records.augment import sample_generator


def class_batches(
    labels: NDArray[np.int64], classes: int, per_class: int, seed: int, epoch: int, steps: int
) -> NDArray[np.int64]:
    """Return the batches of an epoch, each of different classes with as many images each.

    Classes take turns: after any step, the numbers of steps in which two classes occurred differ
    by one at most, and so do, within a class, the numbers of times that two of its images were
    taken. A class with fewer than ``per_class`` images repeats them in a batch, as evenly.

    With ``labels = arange(n)`` and ``per_class = 1`` these are plain shuffled batches.

    Args:
        labels: int64 ``(n,)``, the class of every image.
        classes: different classes in a batch.
        per_class: images of each of them, which follow one another.
        seed: ≥ 0.
        epoch: counted from 0; another one has another order.
        steps: number of batches.

    Returns:
        int64 ``(steps, classes · per_class)``, positions in ``labels``.

    Raises:
        DatasetError: fewer classes than a batch needs.
    """
    count = len(np.unique(labels))
    if count < classes:
        raise DatasetError(
            f"batches of {classes} classes × {per_class} images cannot be made from "
            f"{count:,} classes; take fewer classes in a batch, or data with more"
        )
    generator = sample_generator(seed, epoch, 0)
    groups = _hands(np.arange(count), classes, generator)
    order = np.argsort(labels, kind="stable")
    _, starts = np.unique(labels[order], return_index=True)
    hands = [_hands(images, per_class, generator) for images in np.split(order, starts[1:])]
    return np.stack(
        [np.concatenate([next(hands[rank]) for rank in next(groups)]) for _ in range(steps)]
    )


def _hands(
    items: NDArray[np.int64], size: int, generator: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Deal hands of ``size`` from one shuffled pack after the other.

    A hand that begins at the end of a pack goes on with the next, first with cards that it does not
    hold yet; so it holds none twice unless packs are smaller than hands.
    """
    pack = items[:0]
    while True:
        hand, pack = pack[:size], pack[size:]
        while len(hand) < size:
            shuffled = generator.permutation(items)
            held = (shuffled[:, None] == hand).sum(axis=1)
            new_first = shuffled[np.argsort(held, kind="stable")]
            taken = size - len(hand)
            hand, pack = np.concatenate([hand, new_first[:taken]]), new_first[taken:]
        yield hand


def derived_seed(*numbers: int) -> int:
    """Return a seed that depends on all of some numbers, each at least 0."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
