"""The order of the training images: the same on any number of processes, from any position."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from torch.utils.data import Sampler

from facerec.base.errors import DatasetError
from facerec.records.augment import sample_generator
from facerec.records.dataset import BatchRequest

# Streams of random numbers; 1 and 2 are those of the images (`facerec.records.augment`).
_ORDER, _DECK, _CIRCLE = 0, 3, 4


class GlobalBatchSampler(Sampler[BatchRequest]):
    """Yields this rank's share of every global batch, from a given step to the end of the run.

    Epoch e of a plain shuffle visits the images in the order ``Philox(seed, e).permutation(n)``. A
    global batch is a run of ``batch_size`` positions; rank r takes the r-th contiguous part of it.
    The order is therefore a function of (seed, step) alone: a run resumes at any step, on any
    number of ranks.

    The order of an epoch takes 8 bytes per image and is made when the epoch begins. In that moment
    all takes 17 bytes per image, 31 with weights, and 26 to 37 by subject, of which 8 are kept in
    the latter two; labels and weights take 8 each besides.

    Args:
        length: number of training images.
        batch_size: images per optimizer step over all ranks, among which they divide.
        epochs: passes over the data.
        seed: the recipe's seed.
        rank: this process.
        world_size: number of processes.
        start: optimizer steps already done.
        labels: int64 ``(length,)``, to visit every subject equally often (see `_Balanced`); images
            of class −1 are left out, and ``weights`` do not count. None visits every image once, or
            as ``weights`` say.
        weights: float ``(length,)``, visits of each image in an epoch; None means 1.

    Raises:
        DatasetError: fewer images than one batch needs.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        epochs: int = 1,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        labels: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        self._order: _Balanced | _Shuffled = (
            _Shuffled(length, seed, weights) if labels is None else _Balanced(labels, seed)
        )
        visits = self._order.visits
        if visits < batch_size:
            raise DatasetError(
                f"the training set has {visits} images, fewer than one batch of {batch_size}; "
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
            order = self._order.epoch(epoch, self.steps_per_epoch * self.batch_size)
            for within in range(first, self.steps_per_epoch):
                begin = within * self.batch_size + self.rank * share
                again, indices = np.divmod(order[begin : begin + share], self.length)
                yield BatchRequest(epoch, indices, again)
            step = (epoch + 1) * self.steps_per_epoch


class _Shuffled:
    """All images, as often as their weights say, in random order.

    A visit is an image's index, plus the length for each earlier one of the epoch.

    Attributes:
        visits: images in an epoch.
    """

    def __init__(self, length: int, seed: int, weights: np.ndarray | None) -> None:
        self._length, self._seed = length, seed
        levels = [] if weights is None else np.unique(weights).tolist()
        self._groups = [(weight, np.flatnonzero(weights == weight)) for weight in levels]
        weighted = sum(round(weight * len(group)) for weight, group in self._groups)
        self.visits = weighted if self._groups else length

    def epoch(self, number: int, used: int) -> np.ndarray:
        """Return the visits of an epoch, int64 ``(visits,)``, of which so many are used."""
        order = sample_generator(self._seed, number, 0, _ORDER).permutation(self.visits)
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
            circle = sample_generator(self._seed, number, 0, _CIRCLE).permutation(len(group))
            taken = np.sort(circle[np.arange(epoch * more, (epoch + 1) * more) % len(group)])
            pieces.append(group[taken] + whole * self._length)
        return np.concatenate(pieces)


class _Balanced:
    """Every subject equally often, dealt from one shuffled deck after the other.

    The images of each take turns too, so that none comes again before all others have come. An
    epoch has as many images as the data.
    """

    def __init__(self, labels: np.ndarray, seed: int) -> None:
        self._labels, self._seed = labels, seed
        self.visits = len(labels)
        counts = np.bincount(labels[labels >= 0])
        self._counts = counts[counts > 0]
        self._starts = np.cumsum(self._counts) - self._counts

    @cached_property
    def _circles(self) -> np.ndarray:
        """The images of one subject after another, each in an order that lasts for the run."""
        shuffled = sample_generator(self._seed, 0, 0, _CIRCLE).permutation(len(self._labels))
        shuffled = shuffled[self._labels[shuffled] >= 0]
        # Label and place in one number: sorted three times as fast as a stable argsort of labels.
        keys = self._labels[shuffled]
        keys *= len(keys)
        keys += np.arange(len(keys))
        keys.sort()
        keys %= len(keys)
        return shuffled[keys]

    def epoch(self, number: int, used: int) -> np.ndarray:
        """Return the next ``used`` visits after those of earlier epochs, int64."""
        first, last = number * used, (number + 1) * used
        size = len(self._counts)
        visits = []
        for deck in range(first // size, -(-last // size)):
            cards = sample_generator(self._seed, deck, 0, _DECK).permutation(size)
            cards = cards[max(first - deck * size, 0) : last - deck * size]
            # A closed form for the images a subject has shown before: no state to restore.
            again, position = np.divmod(deck, self._counts[cards])
            images = self._circles[self._starts[cards] + position]
            visits.append(images + again * len(self._labels))
        return np.concatenate(visits)
