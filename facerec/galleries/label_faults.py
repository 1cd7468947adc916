"""Which labels of a set are wrong, which two are of one subject, and which is of two subjects.

A statistic is taken of each item as it is, and again after the fault in question was put there on
purpose. A logistic regression says how much more frequent what an item shows is among the planted
ones; how many items have the fault follows from those beyond the median of the planted ones, where
hardly a sound item lies (Storey, JRSS B 64, 2002). Proposed is the longest list of which at most a
fixed share is false in expectation (Efron, "Large-Scale Inference", 2010, chapter 5).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logit

from facerec.base.errors import MetricError
from facerec.base.progress import Progress
from facerec.cosines.searches import best
from facerec.cosines.unit_rows import UnitRows
from facerec.galleries.members import Floats, Ints, Members, directions

FALSE_SHARE = 0.02
"""Of a list of proposals, how many may be false, in expectation."""

_RIDGE = 1e-5
"""Penalty on the squared slopes of standardised features, where both groups weigh 1."""

_LEAST_OF_A_SUBJECT = 3
"""Images that make a second subject in a class."""

_TILE = 2048

_ROUNDS = 6
"""Of estimating means and wrong labels from each other."""


def proposed(probability: Floats) -> list[int]:
    """Return which items to propose, the surest first: the longest list that is sure enough.

    Args:
        probability: of the fault, ``(n,)``.
    """
    order = np.argsort(-probability, kind="stable")
    false = np.cumsum(1 - probability[order]) / np.arange(1, len(order) + 1)
    chosen = order[: np.count_nonzero(false <= FALSE_SHARE)]
    found: list[int] = chosen[probability[chosen] > 0.5].tolist()
    return found


def share_beyond(observed: Floats, planted: Floats) -> float:
    """Return the share of items with a fault, from those beyond the median of the planted ones.

    A fault that nobody has stays possible, or no single one would ever be seen.
    """
    beyond = np.count_nonzero(observed > np.median(planted))
    return float(np.clip(2 * max(float(beyond), 0.5) / max(len(observed), 1), 1e-6, 0.45))


def log_ratio(sound: Floats, faulty: Floats, asked: Floats, weights: Floats) -> Floats:
    """Return the logarithm of how much more frequent features are among faulty items, ``(q,)``.

    By logistic regression with equal weights of both groups; a small penalty on its slopes keeps
    them finite where the groups are apart.

    Args:
        sound: features, ``(n, F)``.
        faulty: features, ``(m, F)``.
        asked: features, ``(q, F)``.
        weights: how sound each of ``sound`` seems, ``(n,)``.
    """
    from scipy.optimize import minimize

    features = np.concatenate([sound, faulty])
    center, spread = features.mean(axis=0), features.std(axis=0) + 1e-9
    # Of every item what is evidence against its group, so that all have the same loss.
    sign = np.repeat([-1.0, 1.0], [len(sound), len(faulty)])
    design = sign[:, None] * np.insert((features - center) / spread, 0, 1.0, axis=1)
    weight = np.append(weights / weights.sum(), np.full(len(faulty), 1 / len(faulty)))
    penalty = np.append(1e-9, np.full(features.shape[1], _RIDGE))

    def loss(slopes: Floats) -> tuple[float, Floats]:
        margins = design @ slopes
        value = weight @ np.logaddexp(0, -margins) + penalty @ slopes**2 / 2
        return value, penalty * slopes - design.T @ (weight * expit(-margins))

    def curvature(slopes: Floats) -> Floats:
        share = expit(design @ slopes)
        return (design * (weight * share * (1 - share))[:, None]).T @ design + np.diag(penalty)

    found = minimize(loss, np.zeros(len(penalty)), jac=True, hess=curvature, method="trust-exact")
    return np.asarray(np.insert((asked - center) / spread, 0, 1.0, axis=1) @ found.x)


class WrongLabels(NamedTuple):
    """How probable it is that each image has a wrong label."""

    probability: Floats
    """``(n,)``."""
    nearest: Ints
    """The nearest other class, ``(n,)``."""
    at_home: NDArray[np.bool_]
    """Whether that is more probably the right one than that the subject is not in the set."""


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
    images = UnitRows(members.vectors, norms=np.ones(count), device=device)
    for turn in range(_ROUNDS):
        weights = 1 - probability
        sums = members.sums(weights)
        centers = directions(sums)
        masses = np.bincount(mine, weights, members.classes)
        centers[masses <= 0.5] = 0  # of which nobody is sure
        doing = f"looking for wrong labels, {turn + 1} of {_ROUNDS}"
        others = UnitRows(centers, norms=np.ones(len(centers)), device=device)
        apart = mine, np.arange(members.classes)
        which, scores = best(images, others, 1, apart=apart, stage=doing, progress=progress)
        nearest, other = which[:, 0], scores[:, 0].astype(np.float64)
        own, length = left_out(members, sums, weights, np.arange(count))
        strange, _ = left_out(members, sums, weights, theirs)
        mass = masses[mine] - weights
        known = (mass > 0.3) & (length > 1e-3)
        borrowed = known[theirs] & (mine[theirs] != mine)
        if not known.any() or not borrowed.any():
            raise MetricError("wrong labels show among two classes of two images each; add images")
        if turn == 0:  # what does not look right is no example of what does
            share = share_beyond(-own[known], -strange[borrowed])
            probability = np.where(own > np.quantile(strange[borrowed], 0.99), 0.0, 0.475)
        last = turn == _ROUNDS - 1
        sound = np.maximum(1 - (1 if last else 2) * probability[known], 1e-6)
        features = _features(own, other, mass)
        inside = _features(strange, np.maximum(own, other), mass[theirs])[borrowed]
        outside = _features(strange, other, mass[theirs])[borrowed]
        ratio = np.logaddexp(
            *(log_ratio(features[known], planted, features, sound) for planted in (inside, outside))
        )
        probability = np.where(known, expit(ratio - np.log(2) + logit(share)), share)
    # Whether its subject is in the set is asked apart, of the likeness to another class alone.
    away, home, asked = (each[:, [1, 2, 4]] for each in (outside, inside, features))
    at_home = log_ratio(away, home, asked, np.ones(len(away))) > 0
    return WrongLabels(probability, nearest, known & at_home)


def _features(own: Floats, other: Floats, count: Floats) -> Floats:
    """Return cosines to means, of ``count`` images the one, and how they depend on that number."""
    rest = 1 / np.maximum(count, 0.5)
    return np.stack([own, other, rest, own * rest, other * rest], axis=1)


def left_out(
    members: Members, sums: NDArray[np.float32], weights: Floats, other: Ints
) -> tuple[Floats, Floats]:
    """Return cosines to classes of other images that leave those out, and the lengths of the rests.

    Args:
        members: the images.
        sums: of the classes, ``(C, D)``.
        weights: of the images in the sums, ``(n,)``.
        other: an image for each, itself for its own class, ``(n,)``.
    """
    cosines, lengths = np.empty((2, len(other)))
    for start in range(0, len(other), _TILE):
        block = slice(start, start + _TILE)
        left = other[block]
        rest = sums[members.label[left]] - weights[left, None] * members.vectors[left]
        lengths[block] = np.linalg.norm(rest, axis=1)
        cosines[block] = np.einsum("nd,nd->n", members.vectors[block], rest)
    return np.clip(cosines / np.maximum(lengths, 1e-6), -1, 1), lengths


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
    sizes, probability = members.images, np.zeros(members.classes)
    second = np.zeros(len(members.label), bool)
    large = np.flatnonzero(sizes >= 2 * _LEAST_OF_A_SUBJECT)
    # Neighbours in this order are of nearly one size, and have nothing else in common.
    large = large[np.lexsort((generator.random(len(large)), sizes[large]))]
    if len(large) < 2:
        return probability, second
    observed, planted = np.empty((len(large), 2)), np.empty((len(large), 2))
    for index, number in enumerate(large.tolist()):
        rows, other = members.of(number), members.of(int(large[index - 1]))
        second[rows], observed[index] = _split(members.vectors[rows])
        halves = (
            generator.permutation(rows)[: -(-len(rows) // 2)],
            generator.permutation(other)[: len(other) // 2],
        )
        _, planted[index] = _split(members.vectors[np.concatenate(halves)])
        if progress is not None:
            progress("looking for mixtures", index + 1, len(large))
    cosines, faulty, doubt = observed[:, :1], planted[:, :1], np.zeros(len(large))
    for _ in range(_ROUNDS):
        # What looks faulty is no example of what is sound, and what is doubtful hardly is.
        sound = np.maximum(1 - 2 * doubt, 1e-6)
        ratio, known = (log_ratio(cosines, faulty, each, sound) for each in (cosines, faulty))
        share = share_beyond(ratio, known)
        for _ in range(_ROUNDS):
            doubt = expit(ratio + logit(share))
            share = float(np.clip(doubt.mean(), 1e-6, 0.45))
    # What does not hold together is no second subject, but several wrong labels.
    probability[large] = np.where(observed[:, 1] > np.quantile(planted[:, 1], 0.05), doubt, 0.0)
    return probability, second


def _split(unit: NDArray[np.float32]) -> tuple[NDArray[np.bool_], Floats]:
    """Split images in two by 2-means, from the direction in which they spread most.

    Returns:
        which are in the smaller half, ``(n,)``, and the cosine of the two means and the mean cosine
        of different images within the half where it is less, ``(2,)``.
    """
    from scipy.cluster.vq import kmeans2

    vectors = unit.astype(np.float64)
    centered = vectors - vectors.mean(axis=0)
    side = np.linalg.eigh(centered @ centered.T)[1][:, -1] > 0
    if side.any() and not side.all():
        means = np.stack([vectors[~side].mean(axis=0), vectors[side].mean(axis=0)])
        side = kmeans2(vectors, means, iter=10, minit="matrix", missing="raise")[1] > 0
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
