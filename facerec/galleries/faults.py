"""How probable a fault of labels is, and which faults to propose.

A statistic is taken of each item as it is, and again after the fault in question was put there on
purpose. A logistic regression says how much more frequent what an item shows is among the planted
ones; how many items have the fault follows from those beyond the median of the planted ones, where
hardly a sound item lies (Storey, JRSS B 64, 2002). Proposed is the longest list of which at most a
fixed share is false in expectation (Efron, "Large-Scale Inference", 2010, chapter 5).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

Floats = NDArray[np.float64]

Ints = NDArray[np.int64]

FALSE_SHARE = 0.02
"""Of a list of proposals, how many may be false, in expectation."""

_ROUNDS = 6

_SHARES = 60

_LEAST_SHARE = 1e-6

_RIDGE = 1e-5
"""Penalty on the squared slopes of standardised features, where both groups weigh 1."""


def proposed(probability: Floats) -> NDArray[np.bool_]:
    """Return which items to propose, ``(n,)``: the longest list whose expected false share fits.

    Args:
        probability: of the fault, ``(n,)``.
    """
    order = np.argsort(-probability, kind="stable")
    false = np.cumsum(1 - probability[order]) / np.arange(1, len(order) + 1)
    chosen = np.zeros(len(order), bool)
    chosen[order[: int(np.count_nonzero(false <= FALSE_SHARE))]] = True
    return chosen & (probability > 0.5)


def share_beyond(observed: Floats, planted: Floats) -> float:
    """Return the share of items with a fault, from those beyond the median of the planted ones.

    A fault that nobody has stays possible, or no single one would ever be seen.
    """
    beyond = np.count_nonzero(observed > np.median(planted))
    share = 2 * max(float(beyond), 0.5) / max(len(observed), 1)
    return min(max(share, _LEAST_SHARE), 0.45)


def probability_of(observed: Floats, planted: Floats) -> Floats:
    """Return how probable the fault is, ``(n,)``.

    Args:
        observed: features of items, mostly sound, ``(n, F)``.
        planted: features of items with the fault, ``(m, F)``.
    """
    doubt = np.zeros(len(observed))
    for turn in range(_ROUNDS):
        # What looks faulty is no example of what is sound, and what is doubtful hardly is, or it
        # would draw the slopes to itself.
        sound = np.maximum(1 - 2 * doubt, 1e-6)
        ratio, known = (log_ratio(observed, planted, each, sound) for each in (observed, planted))
        share = share_beyond(ratio, known)
        for _ in range(_SHARES):
            doubt = expit(ratio + logit(share))
            share = float(np.clip(doubt.mean(), _LEAST_SHARE, 0.45))
        if turn == 0:
            doubt = np.where(ratio < np.quantile(known, 0.05), 0.0, 0.475)
    return np.asarray(doubt)


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
    features = np.concatenate([sound, faulty])
    truth = np.repeat([0.0, 1.0], [len(sound), len(faulty)])
    weights = np.concatenate([weights / weights.sum(), np.full(len(faulty), 1 / len(faulty))])
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
    return np.asarray(_with_one((asked - center) / spread) @ slopes)


def _with_one(features: Floats) -> Floats:
    return np.concatenate([np.ones((len(features), 1)), features], axis=1)


def features_of(cosines: Sequence[Floats], count: Floats) -> Floats:
    """Return cosines to means of ``count`` images, and how they depend on that number."""
    rest = 1 / np.maximum(count, 0.5)
    return np.stack([*cosines, rest, *(cosine * rest for cosine in cosines)], axis=1)
