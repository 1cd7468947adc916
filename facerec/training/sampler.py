"""The order of the training images: the same on any number of processes, from any position."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from facerec.errors import DatasetError, RecipeError
from facerec.records.dataset import BatchRequest


class GlobalBatchSampler(Sampler[BatchRequest]):
    """Yields this rank's share of every global batch, from a given step to the end of the run.

    Epoch e visits the images in the order ``Philox(seed, e).permutation(n)``. A global batch is a
    run of ``batch_size`` positions; rank r takes the r-th contiguous part of it. The order is
    therefore a function of (seed, step) alone: a run resumes at any step, on any number of ranks.

    Args:
        length: number of training images.
        batch_size: images per optimizer step over all ranks.
        accumulation: micro-batches that each rank's share is cut into later.
        epochs: passes over the data.
        seed: the recipe's seed.
        rank: this process.
        world_size: number of processes.
        start: optimizer steps already done.

    Raises:
        DatasetError: fewer images than one batch.
        RecipeError: the batch does not divide among ranks and micro-batches.
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
    ) -> None:
        parts = world_size * accumulation
        if batch_size % parts:
            fitting = sorted(
                {max(batch_size // parts, 1) * parts, (batch_size // parts + 1) * parts}
            )
            raise RecipeError(
                f"batch_size {batch_size} does not divide among {world_size} processes × "
                f"{accumulation} micro-batches; the nearest that does is "
                f"{' or '.join(map(str, fitting))}"
            )
        if length < batch_size:
            raise DatasetError(
                f"the training set has {length} images, fewer than one batch of {batch_size}; "
                "use a smaller batch_size"
            )
        self.length, self.batch_size, self.epochs, self.seed = length, batch_size, epochs, seed
        self.rank, self.world_size, self.start = rank, world_size, start
        self.steps_per_epoch = length // batch_size
        self.total_steps = self.steps_per_epoch * epochs

    def __len__(self) -> int:
        return max(self.total_steps - self.start, 0)

    def __iter__(self) -> Iterator[BatchRequest]:
        share = self.batch_size // self.world_size
        step = self.start
        while step < self.total_steps:
            epoch, first = divmod(step, self.steps_per_epoch)
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            order = generator.permutation(self.length)
            for within in range(first, self.steps_per_epoch):
                begin = within * self.batch_size + self.rank * share
                yield BatchRequest(epoch, order[begin : begin + share])
            step = (epoch + 1) * self.steps_per_epoch
