"""Welch's test of equal means, by permutation of the groups over subjects.

Permuting groups is exact only where they differ in nothing: if a small group spreads more (its
subjects have fewer images, say), the sum of squares between groups rejects equal means far too
often, and far too seldom if it spreads less. Permuted, a statistic that divides every mean by its
own error keeps its level in large samples whatever the groups spread (Janssen, Statistics &
Probability Letters 36, 1997; Chung and Romano, Annals of Statistics 41, 2013), and stays exact
where they differ in nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

_CELLS = 1 << 20
"""Labels held at once while permuting."""

_LEAST = 1e-12
"""Least variance within a group, as a share of the whole, so that ties do not divide by zero."""


@dataclass(frozen=True)
class Welch:
    """Weights and scale of Welch's analysis of variance (Biometrika 38, 1951), or of replicates."""

    weights: Array
    """1 / squared standard error of the mean of each group, ``(…, k)``."""
    scale: Array
    """Which turns Σ w (mean − weighted mean)² into F, ``(…)``."""
    within: Array
    """Degrees of freedom of the error, ``(…)``; those of the effect are k − 1."""

    @classmethod
    def of(cls, sizes: ArrayLike, squares: Array, total: float) -> Welch:
        """Take the errors of means of one value a subject.

        The variance in a group of one subject is that in all groups together.

        Args:
            sizes: n, subjects in each group, ``(k,)``.
            squares: sums of squares about the means of the groups, ``(…, k)``.
            total: sum of squares about the mean of all; it sets what counts as no variance.
        """
        n = np.asarray(sizes, dtype=np.float64)
        spare = n.sum() - len(n)
        pooled = squares.sum(axis=-1, keepdims=True) / spare
        single = n < 2
        variances = np.where(single, pooled, squares / np.where(single, 1, n - 1))
        weights = n / np.maximum(variances, _LEAST * total / n.sum())
        k = len(n)
        shares = weights / weights.sum(axis=-1, keepdims=True)
        uneven = ((1 - shares) ** 2 / np.where(single, spare, n - 1)).sum(axis=-1)
        scale = (k - 1) * (1 + 2 * (k - 2) / (k**2 - 1) * uneven)
        return cls(weights, scale, (k**2 - 1) / (3 * uneven))

    def f(self, means: Array) -> Array:
        """Return the statistic of means of the groups, ``(…, k)``."""
        shares = self.weights / self.weights.sum(axis=-1, keepdims=True)
        centred = means - (shares * means).sum(axis=-1, keepdims=True)
        return (self.weights * centred**2).sum(axis=-1) / self.scale


def permute(
    values: ArrayLike, groups: ArrayLike, permutations: int = 9999, seed: int = 0
) -> tuple[float, float]:
    """Return Welch's statistic and its p-value, the groups given to other subjects at random.

    The p-value is (1 + replicates that reach the observed) / (1 + replicates) (Phipson and Smyth,
    Statistical Applications in Genetics and Molecular Biology 9, 2010). Groups are numbered in the
    order of their first subjects, so that their names change nothing.

    Args:
        values: one a subject, ``(G,)``.
        groups: group 0 … k − 1 of each subject, ``(G,)``.
        permutations: how many.
        seed: equal seeds permute equally.
    """
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers - numbers.mean()
    spread = float(np.sqrt((numbers**2).mean()))
    numbers = numbers / (spread or 1.0)
    features = np.stack([numbers, numbers**2], axis=1)
    _, first, codes = np.unique(groups, return_index=True, return_inverse=True)
    codes = np.argsort(np.argsort(first))[codes]
    sizes = np.bincount(codes).astype(np.float64)

    def statistics(labels: NDArray[np.integer]) -> Array:
        sums = np.empty((len(labels), len(sizes), 2))
        for g in range(len(sizes) - 1):
            sums[:, g] = (labels == g).astype(np.float64) @ features
        sums[:, -1] = features.sum(axis=0) - sums[:, :-1].sum(axis=1)
        means, squares = np.moveaxis(sums / sizes[:, None], 2, 0)
        left = np.maximum(squares - means**2, 0) * sizes
        return Welch.of(sizes, left, len(codes)).f(means) * (spread > 0)

    small = codes.astype(np.min_scalar_type(len(sizes)))
    generator = np.random.default_rng([seed, 1])
    rows = np.tile(small, (max(1, min(permutations, _CELLS // len(codes))), 1))
    observed, reached = float(statistics(small[None])[0]), 0
    for start in range(0, permutations, len(rows)):
        batch = rows[: permutations - start]
        generator.permuted(batch, axis=1, out=batch)
        # Equal ones differ by rounding.
        reached += int(np.count_nonzero(statistics(batch) >= observed * (1 - 1e-9)))
    return observed, (1 + reached) / (1 + permutations)
