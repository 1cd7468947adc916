"""Mining of hard examples: in a batch by distance-weighted sampling, in a whole set by search.

Offline mining needs the embeddings of the whole training set. The caller computes them every few
epochs and asks for batches of classes that are hard to tell apart (after Suh et al., *Stochastic
Class-based Hard Example Mining*, CVPR 2019, who likewise take nearest classes by their mean).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from facerec.comparison.batches import batches_of
from facerec.comparison.pair_losses import pair_masks, unit_vectors
from facerec.errors import DatasetError

_CUTOFF = 0.5  # Wu et al. (2017): nearer negatives count as if at this distance
_FARTHEST = 1.4  # and farther ones are not drawn, as they would give no loss

_ROWS = 256  # of the similarities of classes held at a time


class DistanceWeightedMiner(nn.Module):
    """Draw one negative for each positive pair, evenly over distances from the anchor.

    Wu et al., *Sampling Matters in Deep Embedding Learning* (ICCV 2017): the probability of a
    negative at distance d is proportional to 1/q(d), q(d) ∝ d^(D−2)·(1 − d²/4)^((D−3)/2) being the
    density of distances on the sphere. Anchors without a negative nearer than 1.4 are left out.

    Attributes:
        draws: buffer, int64: how many batches were mined, so that a resumed run draws on.
    """

    draws: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def forward(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return anchors, positives and negatives, positions in the batch ``(T,)``.

        Args:
            embeddings: raw embeddings, ``(N, D)``.
            labels: their classes, ``(N,)``.
        """
        weight = negative_weights(embeddings, labels)
        positive, _ = pair_masks(labels)
        anchor, other = (positive & (weight.sum(1, keepdim=True) > 0)).nonzero(as_tuple=True)
        if not len(anchor):
            return anchor, other, anchor
        # On the CPU, so that a seed gives the same draws on every device.
        generator = torch.Generator().manual_seed(_child_seed(self.seed, int(self.draws)))
        self.draws += 1
        drawn = torch.multinomial(weight[anchor].cpu(), 1, generator=generator)
        return anchor, other, drawn[:, 0].to(labels.device)


def negative_weights(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return the probability of each sample (column) as a negative of each anchor, ``(N, N)``.

    Rows sum to 1, or to 0 where no negative is near enough.
    """
    unit = unit_vectors(embeddings)
    distance = (2 - 2 * unit @ unit.T).clamp(min=_CUTOFF**2).sqrt()
    _, negative = pair_masks(labels)
    size = embeddings.shape[1]
    near = distance.clamp(max=_FARTHEST)
    log_inverse = (2 - size) * near.log() + (3 - size) / 2 * (1 - near.square() / 4).log()
    allowed = negative & (distance < _FARTHEST)
    # The softmax only scales each row to sum 1; densities themselves overflow at D = 512.
    return log_inverse.masked_fill(~allowed, -torch.inf).softmax(1).nan_to_num(0)


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


def _child_seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])
