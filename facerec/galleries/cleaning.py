"""What may be wrong with the labels of a set, found from its embeddings alone.

Every question is answered in the same way. A statistic is taken of each item as it is, and again
after the fault in question was put there on purpose: an image is given somebody else's label, a
class is split in two, two classes are thrown together. How the two distributions lie to each other
is a logistic regression; how many items have the fault is found by expectation maximisation, in
which items that look faulty stop counting as sound ones. So nobody has to name a threshold: a
proposal is what is more probably wrong than right.

For the two-groups model see Efron, "Large-Scale Inference", 2010, chapter 5; that classes of faces
hold such faults, Deng et al., "Sub-center ArcFace", ECCV 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logsumexp
from torch import Tensor

from facerec.devices import choose_device, exact_products
from facerec.errors import MetricError
from facerec.progress import Progress
from facerec.records.proposals import Proposal
from facerec.verification.scoring.bins import BIN_EDGES
from facerec.verification.scoring.mated import count_mated
from facerec.verification.scoring.people import People
from facerec.verification.scoring.tiles import Tiles, images_of
from facerec.verification.unit_rows import row_norms, unit_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LAW = (0.02, 0.2)
"""Between these shares of the nearest pairs of one label the law of their angles is read."""

_BY_CHANCE = 0.05
"""Share of different photos among the pairs that are called duplicates, at most."""

_ROUNDS = 6
"""Of estimating centroids and faults from each other."""

_EXPECTATIONS = 60
"""Of the shares of faults."""

_LEAST_SHARE = 1e-6
"""Of items with a fault."""

_LEAST_OF_KINDS = 0.1
"""Share of a kind of fault among all faults."""

_RIDGE = 1e-5
"""Penalty on the squared slopes of standardised features, where both groups weigh 1."""

_LEAST_OF_A_PERSON = 3
"""Images that make a second person in a class."""

_TILE = 2048


@dataclass(frozen=True, eq=False)
class Fault:
    """How probable one kind of fault is.

    Attributes:
        probability: of each item, ``(n,)``; 0 where it cannot be told.
        share: of the items that have it, as estimated.
        limit: the least probability of a proposal.
    """

    probability: Floats
    share: float
    limit: float = 0.5

    @property
    def proposed(self) -> NDArray[np.bool_]:
        """Which items are proposed, ``(n,)``."""
        return self.probability > self.limit


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
    """Classes that are probably the same person as another one.

    Attributes:
        partner: the nearest other class of each, ``(C,)``.
        cosine: of the two means, ``(C,)``.
    """

    partner: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    cosine: Floats = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, eq=False)
class Mixtures(Fault):
    """Classes that are probably two people.

    Attributes:
        second: which images belong to the smaller half of their class, ``(n,)``, of all classes.
    """

    second: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))


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

    def sums(self, weights: Floats) -> tuple[NDArray[np.float32], Floats]:
        """Return the weighted sum of each class ``(C, D)`` and the sum of its weights ``(C,)``."""
        sums = np.zeros((self.classes, self.unit.shape[1]), np.float32)
        for first in range(0, self.classes, _TILE):
            last = min(first + _TILE, self.classes)
            rows = self.order[self.starts[first] : self.starts[last]]
            if rows.size:
                parts = self.unit[rows].astype(np.float64) * weights[rows, None]
                present, begin = np.unique(self.label[rows], return_index=True)
                sums[present] = np.add.reduceat(parts, begin)
        return sums, np.bincount(self.label, weights, self.classes).astype(np.float64)


def two_groups(
    items: Floats,
    weights: Floats,
    faults: Sequence[tuple[Floats, Floats]],
    shares: Floats,
    subjects: Floats | None = None,
    most: float = 0.45,
) -> tuple[Floats, Floats]:
    """Tell sound items from faulty ones by what planted faults look like.

    Args:
        items: features of sound items, mostly, ``(n, F)``.
        weights: how sound each seems, 0 to 1, ``(n,)``.
        faults: for each kind of fault the features of items that have it, ``(m, F)``, and their
            weights, ``(m,)``.
        shares: of items with each kind of fault, as guessed, ``(K,)``.
        subjects: features of those that are to be told apart, ``(q, F)``; by default ``items``.
        most: of the items that may be faulty.

    Returns:
        posterior probabilities of soundness and of each kind of fault, ``(q, 1 + K)``, and the
        shares estimated.
    """
    asked = items if subjects is None else subjects
    ratios = np.stack([_log_ratio(items, weights, *fault, asked) for fault in faults])
    terms = np.zeros((1 + len(faults), len(asked)))
    for _ in range(_EXPECTATIONS):
        terms[0] = np.log1p(-shares.sum())
        terms[1:] = np.log(shares)[:, None] + ratios
        posterior = np.exp(terms - logsumexp(terms, axis=0))
        total = np.clip(posterior[1:].sum() / len(asked), _LEAST_SHARE, most)
        kinds = posterior[1:].sum(axis=1) + _LEAST_SHARE
        # A kind that seems absent stays possible, else no single one would ever be seen.
        mix = np.clip(kinds / kinds.sum(), _LEAST_OF_KINDS, None)
        shares = total * mix / mix.sum()
    return posterior.T, shares


def _settle(
    items: Floats, planted: Floats, rows: Ints, asked: Floats | None = None
) -> tuple[Floats, float]:
    """Find out how many items have a fault, and which.

    Args:
        items: features, ``(m, F)``, of the items ``rows``, mostly sound.
        planted: features of the same items with the fault, ``(m, F)``.
        rows: which of those that are asked about these are, ``(m,)``.
        asked: features of all, ``(n, F)``; by default ``items``.

    Returns:
        the probability of the fault, ``(n,)``, and the share of items that have it.
    """
    asked = items if asked is None else asked
    one = np.ones(len(items))
    ratio = _log_ratio(items, one, planted, one, np.concatenate([items, planted]))
    found, known = ratio[: len(items)], ratio[len(items) :]
    # Half of the faulty ones are beyond the median of the planted ones, and hardly a sound one.
    beyond = np.count_nonzero(found > np.median(known))
    shares = np.array([np.clip(2 * beyond / len(items), 1e-3, 0.4)])
    weights = np.full(len(asked), 0.05)
    weights[rows] = np.where(found < np.quantile(known, 0.05), 1.0, 0.05)
    for turn in range(_ROUNDS):
        trust = weights if turn == _ROUNDS - 1 else np.maximum(2 * weights - 1, 1e-6)
        posterior, shares = two_groups(items, trust[rows], [(planted, trust[rows])], shares, asked)
        weights = posterior[:, 0]
    return posterior[:, 1], float(shares[0])


def _log_ratio(
    sound: Floats, sound_weights: Floats, faulty: Floats, faulty_weights: Floats, asked: Floats
) -> Floats:
    """Return the logarithm of how much more frequent features are among faulty items, ``(q,)``.

    By logistic regression with equal weights of both groups; a small penalty on its slopes keeps
    them finite where the groups are apart.
    """
    features = np.concatenate([sound, faulty])
    weights = np.concatenate(
        [sound_weights / sound_weights.sum(), faulty_weights / faulty_weights.sum()]
    )
    truth = np.repeat([0.0, 1.0], [len(sound), len(faulty)])
    center, spread = features.mean(axis=0), features.std(axis=0) + 1e-9
    design = _with_one((features - center) / spread)
    penalty = np.full(design.shape[1], _RIDGE)
    penalty[0] = 1e-9
    slopes = np.zeros(design.shape[1])
    for _ in range(50):
        probability = expit(design @ slopes)
        gradient = design.T @ (weights * (truth - probability)) - penalty * slopes
        curvature = (design * (weights * probability * (1 - probability))[:, None]).T @ design
        step = np.linalg.solve(curvature + np.diag(penalty), gradient)
        slopes += np.clip(step, -5, 5)
        if np.abs(step).max() < 1e-7:
            break
    return _with_one((asked - center) / spread) @ slopes


def _with_one(features: Floats) -> Floats:
    return np.concatenate([np.ones((len(features), 1)), features], axis=1)


def _features(cosines: Sequence[Floats], count: Floats) -> Floats:
    """Return cosines to means of ``count`` images, and how they depend on that number."""
    rest = 1 / np.maximum(count, 0.5)
    return np.stack([*cosines, rest, *(cosine * rest for cosine in cosines)], axis=1)


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
    others = torch.from_numpy(centers[rows]).to(device)
    place = np.full(len(centers), -1)
    place[rows] = np.arange(len(rows))
    with exact_products() as threads:
        torch.set_num_threads(threads)
        for start in range(0, len(unit), _TILE):
            part = slice(start, min(start + _TILE, len(unit)))
            queries = torch.from_numpy(unit[part]).to(device)
            at = torch.from_numpy(place[own[part]]).to(device)
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
            best[part] = top.cpu().numpy()
            which[part] = rows[index.cpu().numpy()] if rows.size else 0
            if progress is not None:
                progress(doing, part.stop, len(unit))
    return np.clip(best, -1, 1), which


def wrong_labels(
    members: Members,
    device: torch.device,
    rounds: int = _ROUNDS,
    progress: Progress | None = None,
) -> WrongLabels:
    """Find images whose label is wrong.

    The statistics of an image are its cosine to the weighted mean of the others of its class, with
    their weights the probabilities that they are right, and the largest to another class. As wrong
    ones are taken: the same images under the label of a random other one, with their own person in
    the set, and without.
    """
    count = len(members.label)
    generator = np.random.default_rng(0)
    weights, shares = np.ones(count), np.full(2, 0.025)
    for turn in range(rounds):
        sums, masses = members.sums(weights)
        lengths = np.linalg.norm(sums.astype(np.float64), axis=1)
        usable = masses > 0.5
        centers = (sums / np.maximum(lengths, 1e-9)[:, None]).astype(np.float32)
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
                "wrong labels are found by comparison: at least two classes with two images each "
                "are needed"
            )
        if turn == 0:
            weights = np.where(own > np.quantile(strange[borrowed], 0.99), 1.0, 0.05)
            # Half of the wrong ones lie below the median of strangers, and hardly a right one; so
            # many there cannot be (Storey, JRSS B 64, 2002), give or take two standard errors.
            low = np.count_nonzero(own[known] < np.median(strange[borrowed]))
            most = min(2 * (low + 2 * np.sqrt(low) + 1) / known.sum(), 0.9)
            shares = np.full(2, max(low, 1) / known.sum())
        features = _features((own, other), mass)
        inside = _features((strange, np.maximum(own, other)), mass[theirs])[borrowed]
        outside = _features((strange, other), mass[theirs])[borrowed]
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
    # Whether its person is in the set is asked apart: where few images are wrong, the shares of
    # both kinds are guesses.
    trust = weights[borrowed]
    of_other = [1, 2, 4]
    at_home = _log_ratio(
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
    parts = [slice(i, i + _TILE) for i in range(0, count, _TILE)]
    for part in parts:
        product = np.einsum("nd,nd->n", unit[part], sums[label[part]], dtype=np.float64)
        weight = weights[part]
        squared[part] = lengths[label[part]] ** 2 - 2 * weight * product + weight**2
        own[part] = product - weight
    squared = np.maximum(squared, 0)
    left = np.sqrt(squared)
    own /= np.maximum(left, 1e-6)
    for part in parts:
        other = theirs[part]
        rest = sums[label[other]] - weights[other, None] * unit[other]
        strange[part] = np.einsum("nd,nd->n", unit[part], rest, dtype=np.float64)
    strange /= np.maximum(left[theirs], 1e-6)
    return np.clip(own, -1, 1), np.clip(strange, -1, 1), squared


def twins(members: Members, device: torch.device, progress: Progress | None = None) -> Twins:
    """Find classes of one person.

    The statistic of a class is the largest cosine of its mean to that of another class. What it is
    for a person with two classes is seen by splitting every class at random: one half meets the
    other halves of all classes, with and without that of its own.
    """
    generator = np.random.default_rng(0)
    count = members.classes
    everyone = np.ones(len(members.label))
    sizes = np.bincount(members.label, minlength=count).astype(float)
    numbers = np.arange(count)

    def centers(weights: Floats) -> tuple[NDArray[np.float32], Floats]:
        sums, masses = members.sums(weights)
        lengths = np.linalg.norm(sums.astype(np.float64), axis=1)
        return (sums / np.maximum(lengths, 1e-9)[:, None]).astype(np.float32), masses

    first = np.zeros(len(members.label))
    for number in range(count):
        rows = members.of(number)
        first[generator.permutation(rows)[: len(rows) // 2]] = 1
    (left, left_size), (right, right_size) = centers(first), centers(1 - first)
    whole, _ = centers(everyone)
    name = "looking for people with two labels"
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

    apart = _features((other,), harmonic(left_size, right_size[nearest]))[split]
    close = np.maximum(same, other)
    mate = np.where(same >= other, numbers, nearest)
    together = _features((close,), harmonic(left_size, right_size[mate]))[split]
    asked = _features((cosine,), harmonic(sizes, sizes[partner]))
    posterior, share = _settle(apart, together, np.flatnonzero(split), asked)
    return Twins(posterior, share, partner=partner, cosine=cosine)


def mixtures(members: Members, progress: Progress | None = None) -> Mixtures:
    """Find classes of two people.

    Each class is split where it falls apart best. The statistics are the cosine of the two means,
    and the mean cosine within that half which holds together less. As faulty are taken the halves
    of two classes of nearly one size thrown together, and split in the same way.
    """
    generator = np.random.default_rng(0)
    count = members.classes
    sizes = np.diff(members.starts)
    second = np.zeros(len(members.label), bool)
    large = np.flatnonzero(sizes >= 2 * _LEAST_OF_A_PERSON)
    # Neighbours in this order are of nearly one size, and have nothing else in common.
    large = large[np.lexsort((generator.random(len(large)), sizes[large]))]
    if len(large) < 2:
        return Mixtures(np.zeros(count), 0.0, second=second)
    observed, planted = np.empty((len(large), 2)), np.empty((len(large), 2))
    for place, number in enumerate(large.tolist()):
        rows = members.of(number)
        half, observed[place] = _split(members.unit[rows])
        second[rows] = half
        other = members.of(int(large[place - 1]))
        pooled = np.concatenate(
            [
                generator.permutation(rows)[: -(-len(rows) // 2)],
                generator.permutation(other)[: len(other) // 2],
            ]
        )
        _, planted[place] = _split(members.unit[pooled])
        if progress is not None:
            progress("looking for mixtures", place + 1, len(large))
    posterior, share = _settle(observed[:, :1], planted[:, :1], np.arange(len(large)))
    # What does not hold together is no second person, but several wrong labels.
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
    if sizes.min() < _LEAST_OF_A_PERSON:
        # Single odd images are no second person; they are looked for among the wrong labels.
        return np.zeros(len(side), bool), np.array([1.0, 0.0])
    sums = np.stack([vectors[~side].sum(axis=0), vectors[side].sum(axis=0)])
    lengths = np.linalg.norm(sums, axis=1)
    within = (lengths**2 - sizes) / (sizes * (sizes - 1))
    cosine = float(sums[0] @ sums[1] / np.maximum(lengths.prod(), 1e-9))
    return side, np.array([cosine, within.min()])


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
        places = torch.nonzero(flat >= self._threshold).view(-1).cpu().numpy()
        first, second = images_of(places, rows, columns)
        kept = first < second
        self.pairs.append(np.stack([first[kept], second[kept]], axis=1))
        self.scores.append(flat[torch.from_numpy(places[kept])].cpu().numpy().astype(np.float64))


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
    found = np.concatenate([part for kernel in kernels for part in kernel.pairs])
    scores = np.concatenate([part for kernel in kernels for part in kernel.scores])
    found = members.order[found]
    if not across:
        same = members.label[found[:, 0]] == members.label[found[:, 1]]
        found, scores = found[same], scores[same]
    rank = np.arange(len(members.label), dtype=float) if keep_first is None else keep_first
    first, second = np.sort(found, axis=1).T
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


@dataclass(frozen=True, eq=False)
class Cleaning:
    """What was found in a set.

    Attributes:
        images: with an embedding.
        classes: their labels.
        wrong: wrong labels; its classes are those that `labels` numbers.
        twins: classes of one person; of those classes too.
        mixtures: classes of two people, before any was split.
        duplicates: images that are there twice.
        probability: of each image, that it does not belong under its label, ``(n,)``: that of a
            wrong label, or of being a second person where that is larger.
        rows: the images that take part, of those given, ``(n,)``.
        labels: class of each image after mixtures are split, ``(n,)``; the second persons have the
            numbers from ``classes`` on.
        proposals: all of them, the surest of each kind first.
    """

    images: int
    classes: int
    wrong: WrongLabels
    twins: Twins
    mixtures: Mixtures
    duplicates: Duplicates
    probability: Floats
    rows: Ints
    labels: Ints
    proposals: tuple[Proposal, ...]


def clean_set(
    vectors: ArrayLike,
    labels: ArrayLike,
    ids: ArrayLike,
    *,
    limit: float = 0.5,
    across: bool = True,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Cleaning:
    """Look for faults in the labels of a set.

    Mixtures are split and people with two labels joined, for the sake of what is found next; then
    wrong labels are looked for. Images without an embedding or without a label take no part.

    Args:
        vectors: raw embeddings, ``(N, D)``; rows that are not finite, or 0, take no part.
        labels: the name of each image's class, text ``(N,)``; empty where there is none.
        ids: image ids, text ``(N,)``.
        limit: probability from which on a fault is proposed.
        across: look for duplicates among all pairs, not only those of one label.
        device: where to compute.
        progress: see `facerec.progress.Progress`.

    Raises:
        MetricError: shapes that do not fit, or too few images of too few classes to compare.
    """
    raw, names, images = np.asarray(vectors), np.asarray(labels), np.asarray(ids)
    if raw.ndim != 2 or names.shape != (len(raw),) or images.shape != (len(raw),):
        raise MetricError(
            f"cleaning needs embeddings (N, D) with a label and an id each, found shapes "
            f"{raw.shape}, {names.shape} and {images.shape}"
        )
    norms = row_norms(raw)
    rows = np.flatnonzero(~np.isnan(norms) & (names != ""))
    if len(rows) < 4:
        raise MetricError(f"{len(rows)} images have an embedding and a label; cleaning compares")
    unit, images = unit_rows(raw, norms, rows), images[rows]
    words, label = np.unique(names[rows], return_inverse=True)
    count, chosen = len(words), choose_device(device)

    members = Members(unit, label, count)
    mixed = replace(mixtures(members, progress), limit=limit)
    moved = mixed.second & mixed.proposed[label]
    fresh = np.flatnonzero(mixed.proposed)
    number = np.full(count, -1)
    number[fresh] = count + np.arange(len(fresh))
    split = np.where(moved, number[label], label)

    parts = Members(unit, split, count + len(fresh))
    same = replace(twins(parts, chosen, progress), limit=limit)
    root = _roots(same)
    numbers, joined = np.unique(root[split], return_inverse=True)
    wrong = wrong_labels(Members(unit, joined, len(numbers)), chosen, progress=progress)
    wrong = replace(wrong, limit=limit, nearest=numbers[wrong.nearest])

    probability = np.maximum(
        wrong.probability, np.where(mixed.second, mixed.probability[label], 0.0)
    )
    # Of two duplicates that goes whose label is less sure, and else the later one.
    order = np.lexsort((np.arange(len(rows)), np.round(probability, 2)))
    place = np.empty(len(rows))
    place[order] = np.arange(len(rows))
    twice = duplicates(members, chosen, across=across, keep_first=place, progress=progress)

    taken = set(words.tolist())
    titles = words.tolist()
    for old in fresh.tolist():
        titles.append(_fresh_name(str(words[old]), taken))
    proposals = [
        *_wrong_rows(wrong, images, words[label], words.tolist()),
        *_mixture_rows(mixed, moved, images, words, label, titles, number),
        *_twin_rows(same, titles, np.bincount(split, minlength=len(titles))),
        *_duplicate_rows(twice, images, words[label]),
    ]
    return Cleaning(
        len(rows), count, wrong, same, mixed, twice, probability, rows, split, tuple(proposals)
    )


def _roots(same: Twins) -> Ints:
    """Return for each class the one that stands for its person, joining proposed pairs."""
    root = np.arange(len(same.probability))

    def end(number: int) -> int:
        while root[number] != number:
            number = int(root[number])
        return number

    for number in np.flatnonzero(same.proposed).tolist():
        first, last = sorted((end(number), end(int(same.partner[number]))))
        root[last] = first
    return np.array([end(number) for number in range(len(root))])


def _fresh_name(name: str, taken: set[str]) -> str:
    """Return a name for the second person of a class that nobody has yet."""
    number = 2
    while (fresh := f"{name}~{number}") in taken:
        number += 1
    taken.add(fresh)
    return fresh


def _wrong_rows(
    wrong: WrongLabels, images: NDArray[np.str_], label: NDArray[np.str_], names: Sequence[str]
) -> Iterator[Proposal]:
    # The second person of a mixture may be no person but what a network cannot tell apart, such as
    # profiles; nobody else's image is put there.
    found = np.flatnonzero(wrong.proposed)
    for row in found[np.argsort(-wrong.probability[found], kind="stable")].tolist():
        nearest = int(wrong.nearest[row])
        at_home = nearest < len(names) and wrong.inside[row] > 0.5 * wrong.probability[row]
        proposed = names[nearest] if at_home else ""
        score = float(wrong.probability[row])
        yield Proposal("wrong_label", str(images[row]), str(label[row]), proposed, "", score)


def _mixture_rows(
    mixed: Mixtures,
    moved: NDArray[np.bool_],
    images: NDArray[np.str_],
    words: NDArray[np.str_],
    label: Ints,
    titles: Sequence[str],
    number: Ints,
) -> Iterator[Proposal]:
    found = np.flatnonzero(moved)
    order = np.lexsort((label[found], -mixed.probability[label[found]]))
    for row in found[order].tolist():
        old = int(label[row])
        score = float(mixed.probability[old])
        yield Proposal(
            "mixture", str(images[row]), str(words[old]), titles[int(number[old])], "", score
        )


def _twin_rows(same: Twins, titles: Sequence[str], sizes: Ints) -> Iterator[Proposal]:
    """Propose each pair once; the label with fewer images goes."""
    seen = set()
    found = np.flatnonzero(same.proposed)
    for number in found[np.argsort(-same.probability[found], kind="stable")].tolist():
        other = int(same.partner[number])
        pair = min(number, other), max(number, other)
        if pair in seen:
            continue
        seen.add(pair)
        less, more = sorted(pair, key=lambda each: (sizes[each], -each))
        yield Proposal("merge", "", titles[less], titles[more], "", float(same.probability[number]))


def _duplicate_rows(
    twice: Duplicates, images: NDArray[np.str_], label: NDArray[np.str_]
) -> Iterator[Proposal]:
    for row in np.argsort(-twice.cosine, kind="stable").tolist():
        gone, kept = twice.pairs[row].tolist()
        score = float(twice.cosine[row])
        yield Proposal(
            "duplicate", str(images[gone]), str(label[gone]), "", str(images[kept]), score
        )
