"""Which labels of a set are wrong, which two are of one subject, and which is of two subjects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from facerec.devices import exact_products
from facerec.errors import MetricError
from facerec.galleries.faults import (
    ROUNDS,
    Fault,
    Floats,
    Ints,
    features_of,
    log_ratio,
    settle,
    two_groups,
)
from facerec.large_arrays import empty, group_blocks, take
from facerec.progress import Progress

_LEAST_OF_A_SUBJECT = 3
"""Images that make a second subject in a class."""

_TILE = 2048


@dataclass(frozen=True, eq=False)
class WrongLabels(Fault):
    """Images whose label is probably wrong.

    Attributes:
        own: cosine of each image to the robust mean of the others of its class, ``(n,)``; NaN if
            there are none.
        other: cosine to the nearest mean of another class, ``(n,)``.
        nearest: that class, ``(n,)``.
        inside: the part of `probability` that falls to that class rather than to somebody who is
            not in the set, if both are equally likely beforehand, ``(n,)``.
    """

    own: Floats = field(default_factory=lambda: np.empty(0))
    other: Floats = field(default_factory=lambda: np.empty(0))
    nearest: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    inside: Floats = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, eq=False)
class Twins(Fault):
    """Classes that are probably the same subject as another one.

    Attributes:
        partner: the nearest other class of each, ``(C,)``.
        cosine: of the two means, ``(C,)``.
    """

    partner: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    cosine: Floats = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, eq=False)
class Mixtures(Fault):
    """Classes that are probably two subjects.

    Attributes:
        second: which images belong to the smaller half of their class, ``(n,)``, of all classes.
    """

    second: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))


class Means(NamedTuple):
    """Weighted sums of the unit vectors of each class."""

    sums: NDArray[np.float32]
    """``(C, D)``."""
    lengths: Floats
    """Of the sums, ``(C,)``."""
    directions: NDArray[np.float32]
    """The sums at length 1, ``(C, D)``; of a class without images 0."""
    masses: Floats
    """Sums of the weights, ``(C,)``."""


class Members:
    """Unit vectors of images, and which of them make a class.

    Args:
        unit: ``(n, D)`` float32.
        label: class of each, ``(n,)``, in ``[0, classes)``.
        classes: their number.
    """

    def __init__(self, unit: NDArray[np.float32], label: Ints, classes: int) -> None:
        self.unit, self.label, self.classes = unit, label, classes
        self.order = np.argsort(label, kind="stable")
        self.starts = np.searchsorted(label[self.order], np.arange(classes + 1))

    def of(self, number: int) -> Ints:
        """Return the images of a class."""
        return self.order[self.starts[number] : self.starts[number + 1]]

    def means(self, weights: Floats) -> Means:
        """Return the weighted means of all classes."""
        size = self.classes, self.unit.shape[1]
        sums, directions = empty(size, np.float32), empty(size, np.float32)
        lengths = np.empty(self.classes)
        for first, last in group_blocks(self.starts):
            block = slice(first, last)
            sums[block] = 0
            rows = self.order[self.starts[first] : self.starts[last]]
            if rows.size:
                weighted = self.unit[rows].astype(np.float64) * weights[rows, None]
                present, begin = np.unique(self.label[rows], return_index=True)
                sums[present] = np.add.reduceat(weighted, begin)
            lengths[block] = np.linalg.norm(sums[block].astype(np.float64), axis=1)
            directions[block] = sums[block] / np.maximum(lengths[block], 1e-9)[:, None]
        masses = np.bincount(self.label, weights, self.classes).astype(np.float64)
        return Means(sums, lengths, directions, masses)


def nearest_classes(
    unit: NDArray[np.float32],
    own: Ints,
    centers: NDArray[np.float32],
    usable: NDArray[np.bool_],
    device: torch.device,
    progress: Progress | None = None,
    doing: str = "",
) -> tuple[Floats, Ints]:
    """Return for each vector the largest cosine to a centre that is not its own, and which it is.

    Both sides are visited tile by tile; no more than a tile of scores is held.

    Args:
        unit: unit vectors, ``(n, D)``.
        own: the centre of each that does not count, ``(n,)``.
        centers: unit vectors, ``(C, D)``.
        usable: which centres count at all, ``(C,)``.
        device: where to compute.
        progress: called with the vectors done.
        doing: what that is called.

    Returns:
        cosines ``(n,)``, −1 where there is no other centre, and centres ``(n,)``.
    """
    best = np.full(len(unit), -1.0)
    which = np.zeros(len(unit), np.int64)
    rows = np.flatnonzero(usable)
    others = torch.from_numpy(take(centers, rows)).to(device)
    position = np.full(len(centers), -1)
    position[rows] = np.arange(len(rows))
    with exact_products() as threads:
        torch.set_num_threads(threads)
        for start in range(0, len(unit), _TILE):
            block = slice(start, min(start + _TILE, len(unit)))
            queries = torch.from_numpy(unit[block]).to(device)
            at = torch.from_numpy(position[own[block]]).to(device)
            top = torch.full((len(queries),), -1.0, device=device)
            index = torch.zeros(len(queries), dtype=torch.int64, device=device)
            for first in range(0, len(rows), _TILE):
                scores = queries @ others[first : first + _TILE].T
                here = torch.nonzero((at >= first) & (at < first + scores.shape[1])).view(-1)
                scores[here, at[here] - first] = -2.0
                value, column = scores.max(dim=1)
                better = value > top
                top = torch.where(better, value, top)
                index = torch.where(better, column + first, index)
            best[block] = top.cpu().numpy()
            which[block] = rows[index.cpu().numpy()] if rows.size else 0
            if progress is not None:
                progress(doing, block.stop, len(unit))
    return np.clip(best, -1, 1), which


def wrong_labels(
    members: Members,
    device: torch.device,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> WrongLabels:
    """Find images whose label is wrong.

    The statistics of an image are its cosine to the weighted mean of the others of its class, with
    their weights the probabilities that they are right, and the largest to another class. As wrong
    ones are taken: the same images under the label of a random other one, with their own subject in
    the set, and without.
    """
    count = len(members.label)
    generator = np.random.default_rng(0)
    weights, shares = np.ones(count), np.full(2, 0.025)
    for turn in range(rounds):
        sums, lengths, centers, masses = members.means(weights)
        usable = masses > 0.5
        other, nearest = nearest_classes(
            members.unit,
            members.label,
            centers,
            usable,
            device,
            progress,
            f"looking for wrong labels, {turn + 1} of {rounds}",
        )
        mine = members.label
        theirs = (np.arange(count) + generator.integers(1, max(count, 2), count)) % count
        own, strange, squared = _left_out(members, sums, lengths, weights, theirs)
        mass = masses[mine] - weights
        known = (mass > 0.3) & (squared > 1e-6)
        borrowed = known[theirs] & (mine[theirs] != mine)
        if not known.any() or not borrowed.any():
            raise MetricError(
                "wrong labels are found by comparison, which takes two classes with two images "
                "each at least; add images"
            )
        if turn == 0:
            weights = np.where(own > np.quantile(strange[borrowed], 0.99), 1.0, 0.05)
            # Half of the wrong ones lie below the median of strangers, and hardly a right one; so
            # many there cannot be (Storey, JRSS B 64, 2002), give or take two standard errors.
            low = np.count_nonzero(own[known] < np.median(strange[borrowed]))
            most = min(2 * (low + 2 * np.sqrt(low) + 1) / known.sum(), 0.9)
            shares = np.full(2, max(low, 1) / known.sum())
        features = features_of((own, other), mass)
        inside = features_of((strange, np.maximum(own, other)), mass[theirs])[borrowed]
        outside = features_of((strange, other), mass[theirs])[borrowed]
        # What is hardly more right than wrong would draw the slopes to itself, round after round.
        trust = weights if turn == rounds - 1 else np.maximum(2 * weights - 1, 1e-6)
        posterior, shares = two_groups(
            features[known],
            trust[known],
            [(inside, trust[borrowed]), (outside, trust[borrowed])],
            shares,
            most=most,
        )
        weights = np.full(count, 1 - shares.sum())
        weights[known] = posterior[:, 0]
    # Whether its subject is in the set is asked apart: where few images are wrong, the shares of
    # both kinds are guesses.
    trust = weights[borrowed]
    of_other = [1, 2, 4]
    at_home = log_ratio(
        outside[:, of_other], trust, inside[:, of_other], trust, features[:, of_other]
    )
    probability = 1 - weights
    return WrongLabels(
        probability,
        float(shares.sum()),
        own=np.where(known, own, np.nan),
        other=other,
        nearest=nearest,
        inside=np.where(known, probability * expit(at_home), 0.0),
    )


def _left_out(
    members: Members, sums: NDArray[np.float32], lengths: Floats, weights: Floats, theirs: Ints
) -> tuple[Floats, Floats, Floats]:
    """Return cosines to means that leave one image out.

    Args:
        members: the images.
        sums: of the classes, ``(C, D)``.
        lengths: theirs, ``(C,)``.
        weights: of the images in the sums, ``(n,)``.
        theirs: another image for each, ``(n,)``.

    Returns:
        for each image its cosine to the others of its class; to the others of the class of
        ``theirs`` but that one; and the square of the length of the sum that itself is left out
        of; ``(n,)`` each.
    """
    unit, label = members.unit, members.label
    count = len(label)
    own, squared, strange = np.empty(count), np.empty(count), np.empty(count)
    blocks = [slice(i, i + _TILE) for i in range(0, count, _TILE)]
    for block in blocks:
        product = np.einsum("nd,nd->n", unit[block], sums[label[block]], dtype=np.float64)
        weight = weights[block]
        squared[block] = lengths[label[block]] ** 2 - 2 * weight * product + weight**2
        own[block] = product - weight
    squared = np.maximum(squared, 0)
    left = np.sqrt(squared)
    own /= np.maximum(left, 1e-6)
    for block in blocks:
        other = theirs[block]
        rest = sums[label[other]] - weights[other, None] * unit[other]
        strange[block] = np.einsum("nd,nd->n", unit[block], rest, dtype=np.float64)
    strange /= np.maximum(left[theirs], 1e-6)
    return np.clip(own, -1, 1), np.clip(strange, -1, 1), squared


def twins(members: Members, device: torch.device, progress: Progress | None = None) -> Twins:
    """Find classes of one subject.

    The statistic of a class is the largest cosine of its mean to that of another class. What it is
    for a subject with two classes is seen by splitting every class at random: one half meets the
    other halves of all classes, with and without that of its own.
    """
    generator = np.random.default_rng(0)
    count = members.classes
    everyone = np.ones(len(members.label))
    sizes = np.bincount(members.label, minlength=count).astype(float)
    numbers = np.arange(count)

    first = np.zeros(len(members.label))
    for number in range(count):
        rows = members.of(number)
        first[generator.permutation(rows)[: len(rows) // 2]] = 1
    (_, _, left, left_size), (_, _, right, right_size) = map(members.means, (first, 1 - first))
    whole = members.means(everyone).directions
    name = "looking for subjects with two labels"
    cosine, partner = nearest_classes(
        whole, numbers, whole, sizes > 0, device, progress, f"{name}, 1 of 2"
    )
    other, nearest = nearest_classes(
        left, numbers, right, right_size > 0, device, progress, f"{name}, 2 of 2"
    )
    split = (left_size > 0) & (right_size > 0)
    if count < 2 or split.sum() < 2:
        return Twins(np.zeros(count), 0.0, partner=partner, cosine=cosine)
    same = np.clip(np.einsum("cd,cd->c", left, right, dtype=np.float64), -1, 1)

    def harmonic(a: Floats, b: Floats) -> Floats:
        return 1 / (1 / np.maximum(a, 0.5) + 1 / np.maximum(b, 0.5))

    apart = features_of((other,), harmonic(left_size, right_size[nearest]))[split]
    close = np.maximum(same, other)
    mate = np.where(same >= other, numbers, nearest)
    together = features_of((close,), harmonic(left_size, right_size[mate]))[split]
    asked = features_of((cosine,), harmonic(sizes, sizes[partner]))
    posterior, share = settle(apart, together, np.flatnonzero(split), asked)
    return Twins(posterior, share, partner=partner, cosine=cosine)


def mixtures(members: Members, progress: Progress | None = None) -> Mixtures:
    """Find classes of two subjects.

    Each class is split where it falls apart best. The statistics are the cosine of the two means,
    and the mean cosine within that half which holds together less. As faulty are taken the halves
    of two classes of nearly one size thrown together, and split in the same way.
    """
    generator = np.random.default_rng(0)
    count = members.classes
    sizes = np.diff(members.starts)
    second = np.zeros(len(members.label), bool)
    large = np.flatnonzero(sizes >= 2 * _LEAST_OF_A_SUBJECT)
    # Neighbours in this order are of nearly one size, and have nothing else in common.
    large = large[np.lexsort((generator.random(len(large)), sizes[large]))]
    if len(large) < 2:
        return Mixtures(np.zeros(count), 0.0, second=second)
    observed, planted = np.empty((len(large), 2)), np.empty((len(large), 2))
    for index, number in enumerate(large.tolist()):
        rows = members.of(number)
        half, observed[index] = _split(members.unit[rows])
        second[rows] = half
        other = members.of(int(large[index - 1]))
        pooled = np.concatenate(
            [
                generator.permutation(rows)[: -(-len(rows) // 2)],
                generator.permutation(other)[: len(other) // 2],
            ]
        )
        _, planted[index] = _split(members.unit[pooled])
        if progress is not None:
            progress("looking for mixtures", index + 1, len(large))
    posterior, share = settle(observed[:, :1], planted[:, :1], np.arange(len(large)))
    # What does not hold together is no second subject, but several wrong labels.
    holds = observed[:, 1] > np.quantile(planted[:, 1], 0.05)
    probability = np.zeros(count)
    probability[large] = np.where(holds, posterior, 0.0)
    return Mixtures(probability, share, second=second)


def _split(unit: NDArray[np.float32]) -> tuple[NDArray[np.bool_], Floats]:
    """Split images in two by spherical 2-means, from the direction in which they spread most.

    Returns:
        which are in the smaller half, ``(n,)``, and the cosine of the two means and the mean cosine
        of different images within the half where it is less, ``(2,)``.
    """
    vectors = unit.astype(np.float64)
    centered = vectors - vectors.mean(axis=0)
    gram = centered @ centered.T
    side = np.linalg.eigh(gram)[1][:, -1] > 0
    for _ in range(20):
        if side.all() or not side.any():
            break
        sums = np.stack([vectors[~side].sum(axis=0), vectors[side].sum(axis=0)])
        means = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
        scores = vectors @ means.T
        moved = scores[:, 1] > scores[:, 0]
        if (moved == side).all():
            break
        side = moved
    if side.sum() * 2 > len(side):
        side = ~side
    sizes = np.array([len(side) - side.sum(), side.sum()], float)
    if sizes.min() < _LEAST_OF_A_SUBJECT:
        # Single odd images are no second subject; they are looked for among the wrong labels.
        return np.zeros(len(side), bool), np.array([1.0, 0.0])
    sums = np.stack([vectors[~side].sum(axis=0), vectors[side].sum(axis=0)])
    lengths = np.linalg.norm(sums, axis=1)
    within = (lengths**2 - sizes) / (sizes * (sizes - 1))
    cosine = float(sums[0] @ sums[1] / np.maximum(lengths.prod(), 1e-9))
    return side, np.array([cosine, within.min()])
