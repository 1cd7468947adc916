"""Batches of so many classes with so many images each, as positions; the same in every arm.

Offline mining needs the embeddings of the whole training set. The caller computes them every few
epochs and asks for batches of classes that are hard to tell apart (after Suh et al., *Stochastic
Class-based Hard Example Mining*, CVPR 2019, who likewise take nearest classes by their mean).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facerec.comparison.pair_losses import unit_vectors
from facerec.errors import DatasetError

_ROWS = 256  # of the similarities of classes held at a time


def class_batches(
    labels: NDArray[np.int64],
    classes: int,
    per_class: int,
    seed: int,
    epoch: int,
    steps: int | None = None,
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
        steps: number of batches; by default as many as the images fill, one at least.

    Returns:
        int64 ``(steps, classes · per_class)``, positions in ``labels``.

    Raises:
        DatasetError: fewer classes than a batch needs.
    """
    count = len(np.unique(labels))
    if min(classes, per_class) < 1 or count < classes:
        raise DatasetError(
            f"batches of {classes} classes × {per_class} images cannot be made from "
            f"{count:,} classes; take fewer classes in a batch, or data with more"
        )
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64)))
    turns = deal(np.arange(count), classes, generator)
    return batches_of(turns, labels, classes, per_class, generator, steps)


def batches_of(
    groups: Iterator[NDArray[np.int64]],
    labels: NDArray[np.int64],
    classes: int,
    per_class: int,
    generator: np.random.Generator,
    steps: int | None,
) -> NDArray[np.int64]:
    """Return a batch of each of the next groups of classes, whose images take turns.

    Args:
        groups: ranks of the classes in a batch, among those that occur; without end.
        labels: as in `class_batches`, and so are what follows and what is returned.
        classes: different classes in a batch.
        per_class: images of each of them.
        generator: deals the images.
        steps: number of batches; None for as many as the images fill, one at least.
    """
    order = np.argsort(labels, kind="stable")
    _, starts = np.unique(labels[order], return_index=True)
    hands = [deal(images, per_class, generator) for images in np.split(order, starts[1:])]
    if steps is None:
        steps = max(1, len(labels) // (classes * per_class))
    return np.stack(
        [np.concatenate([next(hands[rank]) for rank in next(groups)]) for _ in range(steps)]
    )


def hard_batches(
    embeddings: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: int,
    per_class: int,
    seed: int,
    epoch: int,
    steps: int | None = None,
) -> NDArray[np.int64]:
    """Compose the batches of an epoch from classes that are hard for one another.

    A batch starts from a class that was not used yet, in random order. Of the unused classes that
    are nearest to it, eight times as many as a batch holds, it takes one by one that with the
    largest summed cosine to those taken. When too few classes are left all are free again. Images
    of a class come in random order; a class with fewer than ``per_class`` images repeats some.

    Args:
        embeddings: raw embeddings of the whole set, ``(n, D)``; may be some epochs old.
        labels: their classes, ``(n,)``.
        classes: classes in a batch.
        per_class: images of each class in a batch.
        seed: fixes the order together with ``epoch``; a number >= 0.
        epoch: the epoch that the batches are for.
        steps: number of batches; by default as many as the images fill, one at least.

    Returns:
        Positions in the set, ``(steps, classes·per_class)``; images of one class are neighbours.

    Raises:
        DatasetError: there are fewer classes than a batch needs.
    """
    centers = _class_centers(embeddings, labels)
    count = len(centers)
    if not 1 <= classes <= count or per_class < 1:
        raise DatasetError(
            f"a batch of {classes} classes × {per_class} images cannot be made of {count} "
            f"classes; ask for 1 to {count} classes and at least one image of each"
        )
    generator = np.random.default_rng([seed, epoch])
    groups = _hard_groups(centers, classes, generator)
    return batches_of(groups, labels, classes, per_class, generator, steps)


def _hard_groups(
    centers: Tensor, classes: int, generator: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield groups of classes without end, see ``hard_batches``."""
    while True:
        free = torch.ones(len(centers), dtype=torch.bool)
        left = len(centers)
        order = torch.from_numpy(generator.permutation(len(centers)))
        for chunk in order.split(_ROWS):
            firsts = chunk[free[chunk]]
            rows = centers[firsts] @ centers.T
            for first, row in zip(firsts.tolist(), rows, strict=True):
                if free[first] and left >= classes:
                    row[first] = 2  # above any cosine, should another class have the same centre
                    near = row.masked_fill_(~free, -2).topk(min(left, 8 * classes)).indices
                    group = near[_greedy(centers[near], classes)]
                    free[group] = False
                    left -= classes
                    yield group.numpy()


def _greedy(centers: Tensor, count: int) -> list[int]:
    """Return the first row and those, one by one, with the largest summed cosine to the taken."""
    cosine = (centers @ centers.T).numpy()
    np.fill_diagonal(cosine, -np.inf)
    chosen, total = [0], cosine[0].copy()
    while len(chosen) < count:
        chosen.append(int(total.argmax()))
        total += cosine[chosen[-1]]
    return chosen


def _class_centers(embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> Tensor:
    """Return the mean direction of each class, in rising order, ``(C, D)``."""
    names, rank = np.unique(labels, return_inverse=True)
    unit = unit_vectors(torch.from_numpy(embeddings))
    sums = torch.zeros(len(names), unit.shape[1])
    return unit_vectors(sums.index_add_(0, torch.from_numpy(rank), unit))


def two_views(batches: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each batch twice in a row: the first view of every image, then the second of each.

    An image that a batch holds twice is augmented in two ways (`BatchReader`).

    Args:
        batches: int64 ``(…, B)`` positions.

    Returns:
        int64 ``(…, 2B)``.
    """
    return np.concatenate([batches, batches], axis=-1)


def deal(
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
