"""How probable a fault of labels is, without a threshold that anybody names.

A statistic is taken of each item as it is, and again after the fault in question was put there on
purpose. How the two distributions lie to each other is a logistic regression; how many items have
the fault is found by expectation maximisation, in which items that look faulty stop counting as
sound ones.

For the two-groups model see Efron, "Large-Scale Inference", 2010, chapter 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

Floats = NDArray[np.float64]

Ints = NDArray[np.int64]

ROUNDS = 6
"""Of estimating centroids and faults from each other."""

_EXPECTATIONS = 60
"""Of the shares of faults."""

_LEAST_SHARE = 1e-6
"""Of items with a fault."""

_LEAST_OF_KINDS = 0.1
"""Share of a kind of fault among all faults."""

_RIDGE = 1e-5
"""Penalty on the squared slopes of standardised features, where both groups weigh 1."""


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
    ratios = np.stack([log_ratio(items, weights, *fault, asked) for fault in faults])
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


def settle(
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
    ratio = log_ratio(items, one, planted, one, np.concatenate([items, planted]))
    observed, known = ratio[: len(items)], ratio[len(items) :]
    # Half of the faulty ones are beyond the median of the planted ones, and hardly a sound one.
    beyond = np.count_nonzero(observed > np.median(known))
    shares = np.array([np.clip(2 * beyond / len(items), 1e-3, 0.4)])
    weights = np.full(len(asked), 0.05)
    weights[rows] = np.where(observed < np.quantile(known, 0.05), 1.0, 0.05)
    for turn in range(ROUNDS):
        trust = weights if turn == ROUNDS - 1 else np.maximum(2 * weights - 1, 1e-6)
        posterior, shares = two_groups(items, trust[rows], [(planted, trust[rows])], shares, asked)
        weights = posterior[:, 0]
    return posterior[:, 1], float(shares[0])


def log_ratio(
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


def features_of(cosines: Sequence[Floats], count: Floats) -> Floats:
    """Return cosines to means of ``count`` images, and how they depend on that number."""
    rest = 1 / np.maximum(count, 0.5)
    return np.stack([*cosines, rest, *(cosine * rest for cosine in cosines)], axis=1)
