"""Images that are in a set twice, almost to the pixel."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facerec.galleries.faults import Floats, Ints
from facerec.galleries.label_faults import Members
from facerec.progress import Progress
from facerec.verification.scoring.counts import count_mated
from facerec.verification.scoring.tiles import Sample, Tiles, images_of

BIN_EDGES = np.arange(-(2**13), 2**13 + 1) * 2.0**-13
"""Lower edges of the bins of cosines, −1, …, 1; the last bin holds 1 alone."""

_LAW = (0.02, 0.2)
"""Between these shares of the nearest pairs of one label the law of their angles is read."""

_OF_A_LABEL = 20
"""Images at most of a label from which it is read, so that no label decides it alone."""

_LEAST = 100
"""Pairs of one label that are needed to read it."""

_HEAP = 0.4
"""Share of the pairs of one label that duplicates may be at most to be told from the others."""

_WIDER = 1.5
"""How much wider an angle is at which a heap of duplicates is seen to have ended."""

_IDENTICAL = float(BIN_EDGES[-2])
"""Cosine from which on two images are one, whatever else is in the set."""

_BY_CHANCE = 0.05
"""Share of different photos among the pairs that are called duplicates, at most."""


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
    sure: NDArray[np.bool_] | None = None,
    progress: Progress | None = None,
) -> tuple[Ints, Floats]:
    """Find images that are there twice.

    The number of pairs of different photos of one subject that are less than an angle apart falls
    with a power of that angle, the dimensions in which photos of a subject differ. The law is read
    where pairs are many and duplicates few, beyond the heap that many duplicates make, and
    extrapolated towards 0: what is there beyond it is duplicates. The threshold is the largest
    angle within which no more than one pair in twenty is expected by chance.

    Args:
        members: the images.
        device: where to compute.
        across: look among images of different labels too, which costs a comparison of all pairs.
        keep_first: of two images that with the larger number goes, ``(n,)``; by default the later.
        sure: images whose label is sure enough to read the law from, ``(n,)``; by default all.
        progress: called with the tiles done.

    Returns:
        of each pair the image to go and the one that stays, ``(P, 2)``, and their cosine, ``(P,)``,
        descending.

    Raises:
        MetricError: there is no pair of images with one label, or with two.
    """
    threshold = _duplicate_threshold(_cosines_of_one_label(members, sure, device))
    sample = Sample(members.unit, members.label)
    tiles = Tiles(sample, device, 1024, progress)
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
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
    pairs = np.stack([gone[chosen], kept[chosen]], axis=1)
    return pairs, np.minimum(scores[chosen], 1.0)


def _cosines_of_one_label(
    members: Members, sure: NDArray[np.bool_] | None, device: torch.device
) -> Ints:
    """Return how many cosines of pairs with one label are in each bin of `BIN_EDGES`."""
    label, numbers = members.label, np.arange(len(members.label))
    unsure = np.zeros(len(label), bool) if sure is None else ~sure
    order = np.lexsort((np.random.default_rng(0).random(len(label)), unsure, label))
    unsure[order[numbers - members.starts[label[order]] >= _OF_A_LABEL]] = True
    # With a label of its own an image is in no pair.
    alone = np.where(unsure, members.classes + numbers, label)
    label = alone if np.unique(alone, return_counts=True)[1].max() > 1 else label
    sample = Sample(members.unit, label)
    tiles = Tiles(sample, device, 1024, None)
    scores, *_ = count_mated(tiles, sample, np.empty(0, np.float32), keep=True)
    assert scores is not None
    return np.histogram(scores, np.append(BIN_EDGES, np.inf))[0]


def _duplicate_threshold(histogram: Ints) -> float:
    """Return the least cosine of a duplicate.

    Args:
        histogram: counts of the cosines of pairs with one label, in the bins of `BIN_EDGES`.

    Returns:
        that of `_IDENTICAL` pairs if nothing beyond them can be told from different photos.
    """
    within = np.cumsum(histogram[::-1])[::-1].astype(float)  # pairs at or above each edge
    angle = np.arccos(np.clip(BIN_EDGES, -1, 1))
    # Of many duplicates the nearest pairs consist, and the law is that of what comes after them.
    twice = _heaped(within, angle)
    other = within - twice
    near, far = (int(np.flatnonzero(other >= share * other[0])[-1]) for share in _LAW)
    if other[0] < _LEAST or near <= far or not angle[near] > 0 or other[near] >= other[far]:
        return _IDENTICAL
    power = np.log(other[far] / other[near]) / np.log(angle[far] / angle[near])
    # The lower edge of a bin is its widest angle, so that this counts too many rather than too few.
    chance = other[near] * (angle / angle[near]) ** power
    enough = np.flatnonzero((within >= 1) & (chance <= _BY_CHANCE * within))
    enough = enough[enough > near]
    if not enough.size or BIN_EDGES[enough[0]] > _IDENTICAL:
        return _IDENTICAL
    return float(BIN_EDGES[enough[0]])


def _heaped(within: Floats, angle: Floats) -> float:
    """Return how many pairs lie in a heap of duplicates, before others begin.

    Different photos lie the denser the wider the angle: within half as much again there are several
    times as many. The heap ends at the widest angle from where there are hardly more; where it were
    more than `_HEAP` of all pairs, it may as well be one subject's photos under a label of many.

    Args:
        within: pairs at or above each cosine, descending.
        angle: of each cosine, descending.
    """
    wider = np.interp(_WIDER * angle[::-1], angle[::-1], within[::-1])[::-1]
    ends = np.flatnonzero((wider < 1.5 * within) & (within > 0) & (within <= _HEAP * within[0]))
    return float(within[ends[0]]) if ends.size else 0.0
