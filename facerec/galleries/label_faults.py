"""Which labels of a set are wrong, which two are of one subject, and which is of two subjects."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logit

from facerec.errors import MetricError
from facerec.galleries.faults import (
    FALSE_SHARE,
    Floats,
    Ints,
    features_of,
    log_ratio,
    probability_of,
    share_beyond,
)
from facerec.galleries.impostor_tail import RANKS, centre_and_spread, fit_tail, standardise
from facerec.galleries.search import best_columns, group_sums
from facerec.large_arrays import empty, take
from facerec.progress import Progress
from facerec.verification.unit_rows import row_norms

_LEAST_OF_A_SUBJECT = 3
"""Images that make a second subject in a class."""

_TILE = 2048

_ROUNDS = 6
"""Of estimating means and wrong labels from each other."""


class WrongLabels(NamedTuple):
    """How probable it is that each image has a wrong label."""

    probability: Floats
    """``(n,)``."""
    nearest: Ints
    """The nearest other class, ``(n,)``."""
    at_home: NDArray[np.bool_]
    """Whether that is more probably the right one than that the subject is not in the set."""


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
        sums = group_sums(self.unit, self.order, self.starts, weights[self.order])
        lengths, directions = np.nan_to_num(row_norms(sums)), empty(sums.shape, np.float32)
        np.divide(sums, np.maximum(lengths, 1e-9)[:, None].astype(np.float32), out=directions)
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
    rows = np.flatnonzero(usable)
    if not rows.size:
        return np.full(len(unit), -1.0), np.zeros(len(unit), np.int64)
    scores, places = best_columns(unit, take(centers, rows), 2, device, doing, progress)
    which = rows[places]
    # The second best where the best is its own, or the only one.
    at = np.where(which[:, 0] == own, which.shape[1] - 1, 0)
    best = np.where(which[np.arange(len(at)), at] == own, -1, scores[np.arange(len(at)), at])
    return np.clip(best.astype(np.float64), -1, 1), which[np.arange(len(at)), at]


def wrong_labels(
    members: Members, device: torch.device, progress: Progress | None = None
) -> WrongLabels:
    """Find images whose label is wrong.

    The statistics of an image are its cosine to the weighted mean of the others of its class, with
    their weights the probabilities that they are right, and the largest to another class. As wrong
    ones are taken: the same images under the label of a random other one, with their own subject in
    the set, and without.

    Raises:
        MetricError: too few images of too few classes to compare.
    """
    count, mine = len(members.label), members.label
    theirs = np.random.default_rng(0).integers(1, max(count, 2), count)
    theirs = (np.arange(count) + theirs) % count
    probability, share = np.zeros(count), 0.0
    for turn in range(_ROUNDS):
        weights = 1 - probability
        sums, lengths, centers, masses = members.means(weights)
        doing = f"looking for wrong labels, {turn + 1} of {_ROUNDS}"
        other, nearest = nearest_classes(
            members.unit, mine, centers, masses > 0.5, device, progress, doing
        )
        own, strange, squared = _left_out(members, sums, lengths, weights, theirs)
        mass = masses[mine] - weights
        known = (mass > 0.3) & (squared > 1e-6)
        borrowed = known[theirs] & (mine[theirs] != mine)
        if not known.any() or not borrowed.any():
            raise MetricError(
                "wrong labels are found by comparison, which takes two classes with two images "
                "each at least; add images"
            )
        if turn == 0:  # what does not look right is no example of what does
            share = share_beyond(-own[known], -strange[borrowed])
            probability = np.where(own > np.quantile(strange[borrowed], 0.99), 0.0, 0.475)
        last = turn == _ROUNDS - 1
        sound = np.maximum(1 - (1 if last else 2) * probability[known], 1e-6)
        features = features_of((own, other), mass)
        inside = features_of((strange, np.maximum(own, other)), mass[theirs])[borrowed]
        outside = features_of((strange, other), mass[theirs])[borrowed]
        ratio = np.logaddexp(
            *(log_ratio(features[known], planted, features, sound) for planted in (inside, outside))
        )
        probability = np.where(known, expit(ratio - np.log(2) + logit(share)), share)
    # Whether its subject is in the set is asked apart, of the likeness to another class alone.
    away, home, asked = (each[:, [1, 2, 4]] for each in (outside, inside, features))
    at_home = log_ratio(away, home, asked, np.ones(len(away))) > 0
    return WrongLabels(probability, nearest, known & at_home)


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


def twins(
    members: Members, device: torch.device, progress: Progress | None = None
) -> tuple[Floats, Ints]:
    """Find classes of one subject, whose means are too much alike for two.

    Returns:
        of each class the logarithm of the chance that the best of all impostors is as much alike as
        its nearest one, and that one, ``(C,)`` each.
    """
    means = members.means(np.ones(len(members.label))).directions
    rows, columns = standardise(means, means)
    doing = "looking for subjects with two labels"
    scores, others = best_columns(rows, columns, RANKS + 1, device, doing, progress)
    scores[others == np.arange(len(means))[:, None]] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :RANKS]
    best, nearest = np.take_along_axis(scores, order, 1), others[np.arange(len(means)), order[:, 0]]
    scale = centre_and_spread(rows, columns, same=True)
    return fit_tail(best, max(len(means) - 1, 1), scale, FALSE_SHARE), nearest.astype(np.int64)


def mixtures(
    members: Members, progress: Progress | None = None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Find classes of two subjects.

    Each class is split where it falls apart best. The statistics are the cosine of the two means,
    and the mean cosine within that half which holds together less. As faulty are taken the halves
    of two classes of nearly one size thrown together, and split in the same way.

    Returns:
        the probability of each class, ``(C,)``, and which images are in the smaller half of theirs,
        ``(n,)``.
    """
    generator = np.random.default_rng(0)
    sizes, probability = np.diff(members.starts), np.zeros(members.classes)
    second = np.zeros(len(members.label), bool)
    large = np.flatnonzero(sizes >= 2 * _LEAST_OF_A_SUBJECT)
    # Neighbours in this order are of nearly one size, and have nothing else in common.
    large = large[np.lexsort((generator.random(len(large)), sizes[large]))]
    if len(large) < 2:
        return probability, second
    observed, planted = np.empty((len(large), 2)), np.empty((len(large), 2))
    for index, number in enumerate(large.tolist()):
        rows, other = members.of(number), members.of(int(large[index - 1]))
        second[rows], observed[index] = _split(members.unit[rows])
        halves = (
            generator.permutation(rows)[: -(-len(rows) // 2)],
            generator.permutation(other)[: len(other) // 2],
        )
        _, planted[index] = _split(members.unit[np.concatenate(halves)])
        if progress is not None:
            progress("looking for mixtures", index + 1, len(large))
    # What does not hold together is no second subject, but several wrong labels.
    holds = observed[:, 1] > np.quantile(planted[:, 1], 0.05)
    probability[large] = np.where(holds, probability_of(observed[:, :1], planted[:, :1]), 0.0)
    return probability, second


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
