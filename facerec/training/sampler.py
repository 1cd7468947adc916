"""The order of the training images: the same on any number of processes, from any position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from torch.utils.data import Sampler

from facerec.errors import DatasetError, RecipeError
from facerec.limits import Checked, Count, CountOrNone
from facerec.records.dataset import BatchRequest

_RUNS_TOGETHER = 64
"""Runs whose images are shuffled among one another."""

# Streams of random numbers; 1 and 2 are those of the images (`facerec.records.augment`).
_ORDER, _DECK, _CIRCLE = 0, 3, 4


@dataclass(frozen=True)
class Shuffle(Checked):
    """Every image once in an epoch, or as often as the weight of its set says."""

    by_identity: ClassVar[bool] = False

    block: CountOrNone = 0
    """Shuffle runs of so many consecutive images, then images among 64 such runs: a disk reads runs
    instead of single images. The 64 runs should fit in memory and hold many batches. 0 shuffles
    all images alike."""


@dataclass(frozen=True)
class Balanced:
    """Every identity equally often, however many images it has.

    Identities take turns, in another order each time; the images of each take turns too, so that
    none comes again before all others have come. An epoch has as many images as the data.
    """

    by_identity: ClassVar[bool] = True


@dataclass(frozen=True)
class ClassBatches(Checked):
    """So many identities in each global batch, with so many images each, which follow one another.

    They take turns, in another order each time; those left over when a turn is no whole number of
    batches wait for the next. The images of each take turns too; an identity with too few for a
    batch repeats them. An epoch has as many batches as the images fill.
    """

    by_identity: ClassVar[bool] = True

    classes: Count
    """Identities in a global batch."""
    per_class: Count
    """Images of each of them; times ``classes`` this is the batch size."""


Sampling = Shuffle | Balanced | ClassBatches


class GlobalBatchSampler(Sampler[BatchRequest]):
    """Yields this rank's share of every global batch, from a given step to the end of the run.

    Epoch e of a plain shuffle visits the images in the order ``Philox(seed, e).permutation(n)``. A
    global batch is a run of ``batch_size`` positions; rank r takes the r-th contiguous part of it.
    The order is therefore a function of (seed, step) alone: a run resumes at any step, on any
    number of ranks.

    The order of an epoch takes 8 bytes per image and is made when the epoch begins. In that moment
    all takes 17 bytes per image with runs, 31 with weights, and 26 to 37 by identity, of which 8
    are kept in the latter two; labels and weights take 8 each besides.

    Args:
        length: number of training images.
        batch_size: images per optimizer step over all ranks.
        accumulation: micro-batches that each rank's share is cut into later.
        epochs: passes over the data.
        seed: the recipe's seed.
        rank: this process.
        world_size: number of processes.
        start: optimizer steps already done.
        order: in which order, and how often, the images are visited.
        labels: int64 ``(length,)``, for orders by identity; images of class -1 are left out.
        weights: float ``(length,)``, visits of each image in an epoch; None means 1.

    Raises:
        DatasetError: fewer images, or identities, than one batch needs.
        RecipeError: the batch does not divide among ranks and micro-batches, or does not fit the
            order, or the order leaves no room for weights.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        accumulation: int = 1,
        epochs: int = 1,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        order: Sampling = Shuffle(),
        labels: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        micro_batches = world_size * accumulation
        if batch_size % micro_batches:
            fitting = sorted(
                {
                    max(batch_size // micro_batches, 1) * micro_batches,
                    (batch_size // micro_batches + 1) * micro_batches,
                }
            )
            raise RecipeError(
                f"batch_size {batch_size} does not divide among {world_size} processes × "
                f"{accumulation} micro-batches; the nearest that does is "
                f"{' or '.join(map(str, fitting))}"
            )
        self._order = _create_order(order, length, batch_size, seed, labels, weights)
        visits = self._order.visits
        if visits < batch_size:
            raise DatasetError(
                f"the training set has {length if weights is None else visits} images, fewer than "
                f"one batch of {batch_size}; "
                "use a smaller batch_size"
            )
        self.length, self.batch_size, self.epochs, self.seed = length, batch_size, epochs, seed
        self.rank, self.world_size, self.start = rank, world_size, start
        self.steps_per_epoch = visits // batch_size
        self.total_steps = self.steps_per_epoch * epochs

    def __len__(self) -> int:
        return max(self.total_steps - self.start, 0)

    def __iter__(self) -> Iterator[BatchRequest]:
        share = self.batch_size // self.world_size
        step = self.start
        while step < self.total_steps:
            epoch, first = divmod(step, self.steps_per_epoch)
            order = self._order.epoch(epoch)
            for within in range(first, self.steps_per_epoch):
                begin = within * self.batch_size + self.rank * share
                visits = order[begin : begin + share]
                if self._order.repeats:
                    again, indices = np.divmod(visits, self.length)
                    yield BatchRequest(epoch, indices, again)
                else:
                    yield BatchRequest(epoch, visits)
            step = (epoch + 1) * self.steps_per_epoch


def _create_order(
    sampling: Sampling,
    length: int,
    batch_size: int,
    seed: int,
    labels: np.ndarray | None,
    weights: np.ndarray | None,
) -> _Shuffled | _Dealt:
    if isinstance(sampling, Shuffle):
        return _Shuffled(length, seed, sampling.block, weights)
    name = type(sampling).__name__
    if weights is not None:
        raise RecipeError(
            f"sampling {name} visits all identities alike, so that sets cannot have a weight; "
            "leave the weights of data.also at 1, or choose Shuffle"
        )
    if labels is None:
        raise TypeError(f"{name} needs labels")
    classes, per_class = 1, 1
    if isinstance(sampling, ClassBatches):
        classes, per_class = sampling.classes, sampling.per_class
        if classes * per_class != batch_size:
            raise RecipeError(
                f"sampling of {classes} classes × {per_class} images makes batches of "
                f"{classes * per_class}, but batch_size is {batch_size}; make them equal"
            )
    hands = length // batch_size * (batch_size // (classes * per_class))
    return _Dealt(labels, seed, classes, per_class, hands)


class _Shuffled:
    """All images, as often as their weights say, in random order.

    A visit is an image's index, plus the length for each earlier one of the epoch.

    Attributes:
        visits: images in an epoch.
        repeats: whether an image may come more than once in an epoch.
    """

    def __init__(self, length: int, seed: int, block: int, weights: np.ndarray | None) -> None:
        self._length, self._seed, self._block = length, seed, block
        self._groups: list[tuple[float, np.ndarray]] = []
        if weights is not None:
            self._groups = [
                (weight, np.flatnonzero(weights == weight))
                for weight in np.unique(weights).tolist()
            ]
        self.repeats = any(weight > 1 for weight, _ in self._groups)
        weighted = sum(round(weight * len(group)) for weight, group in self._groups)
        self.visits = weighted if self._groups else length

    def epoch(self, number: int) -> np.ndarray:
        """Return the visits of an epoch, int64 ``(visits,)``."""
        generator = _generator(self._seed, number, _ORDER)
        if not self._block:
            order = generator.permutation(self.visits)
        else:
            order = _shuffled_runs(self.visits, self._block, generator)
            buffer = self._block * _RUNS_TOGETHER
            for start in range(0, len(order), buffer):
                generator.shuffle(order[start : start + buffer])
        return self._weighted(number)[order] if self._groups else order

    def _weighted(self, epoch: int) -> np.ndarray:
        """Return what the epoch visits, not shuffled: all images so often, and some once more.

        The latter are the next ones on a circle that lasts for the whole run, so that visits of two
        images of the same weight never differ by more than one.
        """
        pieces = []
        for number, (weight, group) in enumerate(self._groups):
            whole, more = divmod(round(weight * len(group)), len(group))
            pieces += [group + again * self._length for again in range(whole)]
            if not more:
                continue
            generator = _generator(self._seed, number, _CIRCLE)
            circle = _shuffled_runs(len(group), max(self._block, 1), generator)
            taken = np.sort(circle[np.arange(epoch * more, (epoch + 1) * more) % len(group)])
            pieces.append(group[taken] + whole * self._length)
        return np.concatenate(pieces)


class _Dealt:
    """Hands of identities with some images each, dealt from one shuffled deck after the other."""

    repeats = True

    def __init__(
        self, labels: np.ndarray, seed: int, identities: int, images: int, hands: int
    ) -> None:
        """Count the identities.

        Args:
            labels: int64 ``(N,)``.
            seed: of all random numbers.
            identities: in a hand, all different.
            images: of each of them.
            hands: in an epoch.
        """
        self._labels, self._seed = labels, seed
        self._identities, self._images, self._hands = identities, images, hands
        self.visits = hands * identities * images
        counts = np.bincount(labels[labels >= 0])
        self._counts = counts[counts > 0]
        self._starts = np.cumsum(self._counts) - self._counts
        if len(self._counts) < identities:
            raise DatasetError(
                f"the training set has images of {len(self._counts):,} identities, fewer than the "
                f"{identities:,} of one batch; use fewer classes in a batch"
            )

    @cached_property
    def _circles(self) -> np.ndarray:
        """The images of one identity after another, each in an order that lasts for the run."""
        shuffled = _generator(self._seed, 0, _CIRCLE).permutation(len(self._labels))
        shuffled = shuffled[self._labels[shuffled] >= 0]
        # Label and place in one number: sorted three times as fast as a stable argsort of labels.
        keys = self._labels[shuffled]
        keys *= len(keys)
        keys += np.arange(len(keys))
        keys.sort()
        keys %= len(keys)
        return shuffled[keys]

    def epoch(self, number: int) -> np.ndarray:
        first, last = number * self._hands, (number + 1) * self._hands
        per_deck = len(self._counts) // self._identities
        visits = []
        for deck in range(first // per_deck, -(-last // per_deck)):
            cards = _generator(self._seed, deck, _DECK).permutation(len(self._counts))
            hands = cards[: per_deck * self._identities].reshape(-1, self._identities)
            begin = deck * per_deck
            hands = hands[max(first - begin, 0) : last - begin]
            # A closed form for the images an identity has shown before: no state to restore.
            turns = deck * self._images + np.arange(self._images)
            visits.append(self._visits(hands[:, :, None], turns).ravel())
        return np.concatenate(visits)

    def _visits(self, identities: np.ndarray, turns: np.ndarray) -> np.ndarray:
        again, position = np.divmod(turns, self._counts[identities])
        images: np.ndarray = self._circles[self._starts[identities] + position]
        return images + again * len(self._labels)


def _shuffled_runs(length: int, block: int, generator: np.random.Generator) -> np.ndarray:
    """Return ``0 … length - 1`` with runs of ``block`` shuffled, the last of which may be short."""
    block = min(block, max(length, 1))
    starts = generator.permutation(-(-length // block)) * block
    order = (starts[:, None] + np.arange(block)).ravel()
    return order[order < length]


def _generator(seed: int, number: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, number], counter=[0, 0, stream, 0]))
