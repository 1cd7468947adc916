"""Images that are in a set twice, almost to the pixel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from facerec.galleries.faults import Floats, Ints
from facerec.galleries.label_faults import Members
from facerec.progress import Progress
from facerec.verification.scoring.bins import BIN_EDGES
from facerec.verification.scoring.mated import count_mated
from facerec.verification.scoring.people import People
from facerec.verification.scoring.tiles import Tiles, images_of

_LAW = (0.02, 0.2)
"""Between these shares of the nearest pairs of one label the law of their angles is read."""

_BY_CHANCE = 0.05
"""Share of different photos among the pairs that are called duplicates, at most."""


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Images that are there twice, almost to the pixel.

    Attributes:
        pairs: the image to go and the one that stays, ``(P, 2)``.
        cosine: of each pair, ``(P,)``.
        threshold: from which cosine on a pair counts.
        expected: how many of the pairs of one label within it are different photos, by
            extrapolation.
    """

    pairs: Ints
    cosine: Floats
    threshold: float
    expected: float


class _ClosePairs:
    """Collects the pairs of images with a score at or above a threshold."""

    def __init__(self, tiles: Tiles, threshold: float) -> None:
        self._threshold = threshold
        self._tiles = tiles
        self.pairs: list[Ints] = [np.empty((0, 2), np.int64)]
        self.scores: list[Floats] = [np.empty(0)]

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        flat = scores.reshape(-1)
        positions = torch.nonzero(flat >= self._threshold).view(-1).cpu().numpy()
        first, second = images_of(positions, rows, columns)
        kept = first < second
        self.pairs.append(np.stack([first[kept], second[kept]], axis=1))
        self.scores.append(flat[torch.from_numpy(positions[kept])].cpu().numpy().astype(np.float64))


def duplicates(
    members: Members,
    device: torch.device,
    *,
    across: bool = True,
    keep_first: Floats | None = None,
    progress: Progress | None = None,
) -> Duplicates:
    """Find images that are there twice.

    The number of pairs of different photos of one person that are less than an angle apart falls
    with a power of that angle, the dimensions in which photos of a person differ. The law is read
    where pairs are many and duplicates few, and extrapolated towards 0: what is there beyond it is
    duplicates. The threshold is the largest angle within which no more than one pair in twenty is
    expected by chance.

    Args:
        members: the images.
        device: where to compute.
        across: look among images of different labels too, which costs a comparison of all pairs.
        keep_first: of two images that with the larger number goes, ``(n,)``; by default the later.
        progress: called with the tiles done.

    Raises:
        MetricError: there is no pair of images with one label, or with two.
    """
    people = People(members.unit, members.label, [], by_group=False)
    tiles = Tiles(people, device, 1024, None, progress)
    histogram = count_mated(tiles, people, np.empty((0, people.rows), np.float32), 0).histogram[-1]
    threshold, expected = _duplicate_threshold(histogram)
    none = np.empty((0, 2), np.int64)
    if threshold > 1:
        return Duplicates(none, np.empty(0), threshold, 0.0)
    kernels = tiles.visit(
        lambda: _ClosePairs(tiles, threshold), "looking for duplicates", near_only=not across
    )
    close = np.concatenate([block for kernel in kernels for block in kernel.pairs])
    scores = np.concatenate([block for kernel in kernels for block in kernel.scores])
    close = members.order[close]
    if not across:
        same = members.label[close[:, 0]] == members.label[close[:, 1]]
        close, scores = close[same], scores[same]
    rank = np.arange(len(members.label), dtype=float) if keep_first is None else keep_first
    first, second = np.sort(close, axis=1).T
    swap = rank[first] > rank[second]
    kept, gone = np.where(swap, second, first), np.where(swap, first, second)
    # An image with several likenesses goes once, for the likest of those that rank before it.
    order = np.lexsort((kept, -scores, gone))
    once = np.ones(len(order), bool)
    once[1:] = gone[order][1:] != gone[order][:-1]
    chosen = order[once]
    pairs = np.stack([gone[chosen], kept[chosen]], axis=1)
    return Duplicates(pairs, np.minimum(scores[chosen], 1.0), threshold, expected)


def _duplicate_threshold(histogram: Ints) -> tuple[float, float]:
    """Return the least cosine of a duplicate, and how many pairs are expected there by chance.

    Args:
        histogram: counts of the cosines of pairs with one label, in the bins of `BIN_EDGES`.

    Returns:
        a threshold above 1 if there are no duplicates.
    """
    within = np.cumsum(histogram[::-1])[::-1].astype(float)  # pairs at or above each edge
    total = within[0]
    near, far = (int(np.flatnonzero(within >= share * total)[-1]) for share in _LAW)
    angle = np.arccos(np.clip(BIN_EDGES, -1, 1))
    if near <= far or angle[near] <= 0 or within[near] >= within[far]:
        return 2.0, 0.0
    power = np.log(within[far] / within[near]) / np.log(angle[far] / angle[near])
    # The lower edge of a bin is its widest angle, so that this counts too many rather than too few.
    chance = within[near] * (angle / angle[near]) ** power
    enough = np.flatnonzero((within >= 1) & (chance <= _BY_CHANCE * within))
    enough = enough[enough > near]
    if not enough.size:
        return 2.0, 0.0
    return float(BIN_EDGES[enough[0]]), float(chance[enough[0]])
