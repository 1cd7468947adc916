"""From a score to a likelihood ratio: how many times better one subject explains it than two.

The log-likelihood ratio of a score is a smooth function of it, fitted by logistic regression with
mated and non-mated comparisons of equal weight (Brümmer and du Preez, CSL 20, 2006) on a natural
cubic spline (Harrell, Regression Modeling Strategies, 2015, 2.4.5) whose bends are penalised a
little. A higher score never speaks more for two subjects. Where the comparisons end the function
ends too, and says so (Vergeer et al., Science & Justice 56, 2016). Its variance is that of sums
over comparisons that share subjects.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import scipy  # whose parts are loaded where they are first used
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import MetricError
from facerec.base.limits import Checked, Cosine, Limits, Positive
from facerec.statistics.clustered import ClusteredFigure, Sums
from facerec.statistics.intervals import Interval

Array = NDArray[np.float64]
Counts = NDArray[np.integer[Any]]
Pairs = Annotated[int, Limits(0, 10**15)]
"""A number of comparisons, or of what is compared."""

CELLS = 2000
"""Cells of cosine similarity, each 0.001 wide."""
CENTRES = (np.arange(CELLS) + 0.5) * (2 / CELLS) - 1

KNOTS = 8
"""Of the spline, from end to end, where mated, non-mated and even scores have their quantiles."""

BEND = 500.0
"""Usual second derivative of a natural log-likelihood ratio from end to end: greater ones take more
people to be believed, so that the function does not swing where it has few of them."""

MOST_KNOTS = 50
MOST_LOG = 60.0
"""Greatest log-likelihood ratio: more than comparisons of all people on earth can tell."""

FEWEST = (2, 10)
"""Subjects that mated comparisons must have at or below the lower end, and non-mated ones at or
above the upper end: there five pairs, since a few labels that are wrong make high scores."""
MISLABELLED = 0.01
"""Share of all subjects that the latter must be too, since more people have more such labels."""


def cell_of(scores: ArrayLike) -> NDArray[np.int64]:
    """Return the cell of each cosine similarity, 0 to `CELLS` − 1."""
    cells = np.floor((np.asarray(scores, np.float64) + 1) * (CELLS / 2))
    return np.clip(cells, 0, CELLS - 1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """Comparisons of all images of some subjects, counted by subject and cell of the score."""

    mated: Counts
    """``(G, CELLS)``, each comparison at its subject."""
    non_mated: Counts
    """``(G, CELLS)``, each comparison at both of its subjects."""
    images: Counts
    """Number of images of each subject, ``(G,)``."""

    @classmethod
    def of_pairs(cls, scores: ArrayLike, first: ArrayLike, second: ArrayLike) -> ScoreCounts:
        """Count single comparisons of all images; equal subjects make a mated one.

        Args:
            scores: cosine similarities, ``(N,)``.
            first: subject on one side, ``(N,)`` integers from 0.
            second: the one on the other side, ``(N,)``.
        """
        left, right, cell = np.asarray(first), np.asarray(second), cell_of(scores)
        size = int(max(left.max(), right.max())) + 1
        same = left == right

        def count(who: Counts, which: NDArray[np.bool_]) -> NDArray[np.int64]:
            flat = np.bincount(who[which] * CELLS + cell[which], minlength=size * CELLS)
            return flat.reshape(size, CELLS)

        mated = count(left, same)
        made = mated.sum(axis=1)
        images = np.rint((1 + np.sqrt(1 + 8 * made)) / 2).astype(np.int64)
        return cls(mated, count(left, ~same) + count(right, ~same), images)

    @functools.cached_property
    def totals(self) -> tuple[Array, Array]:
        """Mated and non-mated comparisons in each cell, ``(CELLS,)`` each."""
        return self.mated.sum(axis=0) * 1.0, self.non_mated.sum(axis=0) / 2

    @functools.cached_property
    def weights(self) -> Array:
        """Weight of each mated comparison of a subject, ``(G,)``.

        n images make n (n − 1)/2 comparisons that tell little more of other people than a few do;
        a subject counts as the square root of its images less one.
        """
        made = np.maximum(self.mated.sum(axis=1), 1)
        return np.asarray(np.sqrt(np.maximum(self.images - 1, 0)) / made)

    def sums(self, kind: Literal["mated", "non_mated"], values: Array) -> Sums:
        """Return by subject what comparisons of a kind add to the mean of a value of each cell."""
        total, counts = self.totals[kind == "non_mated"], getattr(self, kind)
        added = (values - total @ values / total.sum()) / total.sum()
        squares = float(total @ added**2)
        crossing = squares if kind == "non_mated" else 0.0
        loads = counts.sum(axis=1) * 1.0
        return Sums(counts @ added, loads, float(total.sum()), squares, crossing)


def cllr(log_ratios: ArrayLike, mated: Array, non_mated: Array) -> float:
    """Return the cost of log-likelihood ratios in bits: 0 is perfect, 1 is what saying 0 costs.

    ½ [mean log₂(1 + e^−mated) + mean log₂(1 + e^non-mated)] (Brümmer and du Preez, CSL 20, 2006).

    Args:
        log_ratios: of each cell, natural logarithms, ``(C,)``.
        mated: comparisons in each cell, ``(C,)``.
        non_mated: non-mated comparisons in each cell, ``(C,)``.
    """
    values = np.asarray(log_ratios, np.float64)
    same = float(mated @ np.logaddexp(0, -values) / mated.sum())
    return (same + float(non_mated @ np.logaddexp(0, values) / non_mated.sum())) / math.log(4)


def cost_of(log_ratios: Array, counts: ScoreCounts) -> tuple[float, Interval]:
    """Return `cllr` of the log-likelihood ratios of cells, and its 95 % interval over subjects."""
    mated = counts.sums("mated", np.logaddexp(0, -log_ratios) / math.log(4))
    non_mated = counts.sums("non_mated", np.logaddexp(0, log_ratios) / math.log(4))
    value = cllr(log_ratios, *counts.totals)
    figure = ClusteredFigure.of_kinds(value, [mated, non_mated])
    # It is positive and has no upper end, so the interval is symmetric in its logarithm.
    margin = (
        float(scipy.special.stdtrit(figure.freedom, 0.975)) * math.sqrt(figure.variance) / value
    )
    ends = value * math.exp(-margin), value * float(np.exp(min(margin, 700.0)))
    return value, Interval(*ends)


@dataclass(frozen=True, eq=False)
class LikelihoodRatio(Checked):
    """The log-likelihood ratio of cosine similarities, its variance, and where both end.

    Raises:
        MetricError: values that no comparisons give.
    """

    knots: Array
    """Cosines at which the spline has its knots, ``(K,)``."""
    coefficients: Array
    """Factors of the terms that `spline` returns, ``(K,)``."""
    covariance: Array
    """Covariance of the coefficients, ``(K, K)``."""
    low: Cosine
    """Cosine below which too few mated comparisons lie."""
    high: Cosine
    """Cosine above which too few non-mated comparisons lie."""
    subjects: Pairs
    effective: Positive
    """Effective number of subjects, the least of both kinds of comparisons."""
    mated: Pairs
    non_mated: Pairs
    strangers: Array
    """Share of non-mated comparisons that score as high, ``(T, 4)``: a cosine, the share and the
    limits of its 95 % interval."""

    def __post_init__(self) -> None:
        # The file of a calibration may be anybody's, and everything in it is printed or decides.
        super().__post_init__()
        size, table = self.knots.shape, self.strangers
        arrays = (self.knots, self.coefficients, self.covariance, table)
        with np.errstate(all="ignore"):
            if (
                not 3 <= self.knots.size <= MOST_KNOTS
                or [each.shape for each in arrays] != [size, size, size * 2, (len(table), 4)]
                or not 0 < len(table) <= CELLS
                or not all(np.isfinite(each).all() for each in arrays)
                or self.low >= self.high
                or min(np.diff(self.knots).min(), np.diff(table[:, 0]).min(initial=1)) <= 0
                # A share lies between its limits, and these between 0 and 1.
                or np.diff(table[:, [2, 1, 3]], prepend=0, append=1).min() < 0
                or not np.abs(self._rising[1]).max() <= MOST_LOG
                or not np.abs(self._surest).max() <= 10 * MOST_LOG
                or not 0 < self.effective <= self.subjects * (1 + 1e-9)
            ):
                raise MetricError("no comparisons give such a likelihood ratio")

    @classmethod
    def fit(cls, counts: ScoreCounts) -> LikelihoodRatio:
        """Fit the function to all comparisons of some subjects.

        Raises:
            MetricError: too few subjects, or kinds of scores that do not overlap.
        """
        weights = counts.weights
        mated, others = weights @ counts.mated, counts.totals[1]
        sums = mated.sum(), others.sum()
        low, high = _ends(counts)
        if not low < high:
            raise MetricError(
                "mated and non-mated scores hardly overlap, or are those of a handful of people: "
                "no likelihood ratio between them can be told; calibrate on more people"
            )
        same, different = mated / sums[0], others / sums[1]
        loads = (
            weights * counts.mated.sum(axis=1) / sums[0],
            counts.non_mated.sum(axis=1) / sums[1],
        )
        effective = min(float(load.sum() ** 2 / (load**2).sum()) for load in loads)
        knots = _knots(same, different, low, high)
        coefficients, inverse = _regress(same, different, knots, effective)
        terms = spline(CENTRES, knots)
        chance = scipy.special.expit(terms @ coefficients)
        # What a comparison in each cell adds to the coefficients.
        of_same = (1 - chance)[:, None] * terms @ inverse / sums[0]
        of_different = -chance[:, None] * terms @ inverse / sums[1]
        changes = -(weights[:, None] * (counts.mated @ of_same)) / (1 - loads[0])[:, None]
        changes -= (counts.non_mated @ of_different) / (1 - loads[1])[:, None]
        size = len(changes)
        spread = changes.T @ changes - np.outer(changes.sum(axis=0), changes.sum(axis=0)) / size
        # Comparisons of two subjects are in the changes of both.
        twice = (of_different * others[:, None]).T @ of_different
        single = (of_same * (weights**2 @ counts.mated)[:, None]).T @ of_same
        return cls(
            knots=knots,
            coefficients=coefficients,
            covariance=_at_least((size - 1) / size * spread - twice, single + twice),
            low=low,
            high=high,
            subjects=size,
            effective=effective,
            mated=int(counts.totals[0].sum()),
            non_mated=int(counts.totals[1].sum()),
            strangers=_strangers(counts),
        )

    def stranger(self, score: float) -> tuple[float, Interval]:
        """Return the share of non-mated comparisons that score as high, and its interval."""
        at, *columns = self.strangers.T
        with np.errstate(divide="ignore"):
            logs = [np.log(np.maximum(column, 1e-300)) for column in columns]
        value, low, high = (float(np.exp(np.interp(score, at, column))) for column in logs)
        return value, Interval(low, high)

    def log_ratio(self, scores: ArrayLike) -> Array:
        """Return natural log-likelihood ratios; beyond an end that of the end.

        Args:
            scores: cosine similarities of any shape.
        """
        grid, rising = self._rising
        inside = np.clip(np.asarray(scores, np.float64), self.low, self.high)
        return np.asarray(np.interp(inside, grid, rising))

    def told(self) -> Array:
        """Return the log-likelihood ratio of each cell, NaN beyond the ends, ``(CELLS,)``."""
        inside = (self.low <= CENTRES) & (self.high >= CENTRES)
        return np.where(inside, self.log_ratio(CENTRES), np.nan)

    @functools.cached_property
    def _rising(self) -> tuple[Array, Array]:
        grid = np.linspace(self.low, self.high, CELLS)
        return grid, np.maximum.accumulate(spline(grid, self.knots) @ self.coefficients)

    def interval(self, score: float) -> Interval:
        """Return the 95 % interval of the log-likelihood ratio of a score, over subjects.

        Beyond an end it has one limit, the surest of all scores inside: since a higher score never
        speaks less for one subject, the ratio is at least, or at most, that.
        """
        if score > self.high:
            return Interval(float(self._surest[0].max()), math.inf)
        if score < self.low:
            return Interval(-math.inf, float(self._surest[1].min()))
        low, high = self._limits(np.array([score]))
        return Interval(float(low[0]), float(high[0]))

    def _limits(self, scores: Array) -> tuple[Array, Array]:
        terms = spline(scores, self.knots)
        errors = np.sqrt(np.einsum("nk,kl,nl->n", terms, self.covariance, terms))
        margins = float(scipy.special.stdtrit(self.effective - 1, 0.975)) * errors
        return self.log_ratio(scores) - margins, self.log_ratio(scores) + margins

    @functools.cached_property
    def _surest(self) -> tuple[Array, Array]:
        return self._limits(self._rising[0])


def _strangers(counts: ScoreCounts) -> Array:
    """Return the table of `LikelihoodRatio.strangers`, up to the highest score of all."""
    total, loads = counts.totals[1].sum(), counts.non_mated.sum(axis=1) * 1.0
    starts = np.arange(0, int(np.flatnonzero(counts.totals[1])[-1]) + 1, CELLS // 200)
    between = np.add.reduceat(counts.non_mated, starts, axis=1, dtype=np.float64)
    rows = []
    for start, above in zip(starts, between.T[::-1].cumsum(axis=0)[::-1], strict=True):
        share = float(above.sum() / loads.sum())
        squares = share * (1 - share) / total
        sums = Sums((above - share * loads) / total, loads, total, squares, squares)
        interval = ClusteredFigure.of_kinds(share, [sums]).interval()
        rows.append((CENTRES[start] - 1 / CELLS, share, interval.low, interval.high))
    return np.array(rows)


def spline(scores: ArrayLike, knots: Array) -> Array:
    """Return the terms of a natural cubic spline, linear beyond its knots, ``(N, K)``."""
    at = np.asarray(scores, np.float64)[:, None]
    last = knots[-1] - knots[-2]

    def cube(knot: Array) -> Array:
        return np.asarray(np.maximum(at - knot, 0) ** 3)

    inner = knots[:-2]
    terms = (
        cube(inner)
        - cube(knots[-2]) * (knots[-1] - inner) / last
        + cube(knots[-1]) * (knots[-2] - inner) / last
    )
    return np.concatenate([np.ones_like(at), at, terms / (knots[-1] - knots[0]) ** 2], axis=1)


def _knots(same: Array, different: Array, low: float, high: float) -> Array:
    """Return knots of the spline, the denser the more comparisons there are, ``(KNOTS,)``."""
    inside = (low <= CENTRES) & (high >= CENTRES)
    shares = [kind[inside] / kind[inside].sum() for kind in (same, different, inside * 1.0)]
    reached = np.cumsum(np.sum(shares, axis=0))
    return np.interp(np.linspace(reached[0], reached[-1], KNOTS), reached, CENTRES[inside])


def _regress(same: Array, different: Array, knots: Array, effective: float) -> tuple[Array, Array]:
    """Return coefficients of greatest likelihood, and the inverse of the information.

    The likelihood is penalised by the mean square of the second derivative from end to end.
    """
    terms, weight = spline(CENTRES, knots), same + different
    bends = np.diff(spline(np.linspace(knots[0], knots[-1], CELLS + 1), knots), 2, axis=0)
    stiffness = bends.T @ bends * (CELLS**3 / (BEND**2 * effective))
    found, stiffness = np.zeros(len(knots)), stiffness + 1e-15 * np.eye(len(knots))

    def loss(coefficients: Array) -> float:
        value = terms @ coefficients
        bent = coefficients @ stiffness @ coefficients / 2
        return float(weight @ np.logaddexp(0, value) - same @ value + bent)

    for _ in range(200):
        chance = scipy.special.expit(terms @ found)
        gradient = terms.T @ (weight * chance - same) + stiffness @ found
        information = (terms * (weight * chance * (1 - chance))[:, None]).T @ terms + stiffness
        step = np.linalg.solve(information, gradient)
        if gradient @ step < 1e-16:
            break
        while loss(found - step) > loss(found) and np.abs(step).max() > 1e-9:
            step /= 2  # Newton's step may go too far
        found = found - step
    return found, np.linalg.inv(information)


def _ends(counts: ScoreCounts) -> tuple[float, float]:
    """Return the lowest and the highest score at or beyond which there are enough subjects."""
    from_below = (np.cumsum(counts.mated, axis=1) > 0).sum(axis=0)
    from_above = (np.cumsum(counts.non_mated[:, ::-1], axis=1) > 0).sum(axis=0)[::-1]
    fewest = max(FEWEST[1], MISLABELLED * len(counts.images))
    low, high = np.flatnonzero(from_below >= FEWEST[0]), np.flatnonzero(from_above >= fewest)
    if not (low.size and high.size):
        return math.inf, -math.inf
    return float(CENTRES[low[0]]), float(CENTRES[high[-1]])


def _at_least(matrix: Array, least: Array) -> Array:
    """Return the matrix with no direction's variance below that of another."""
    # In units of their own, as coefficients differ by powers of ten.
    scale = np.sqrt(np.maximum(np.diag(least), 1e-300))
    unit = least / np.outer(scale, scale) + 1e-13 * np.eye(len(least))
    root = scale[:, None] * np.linalg.cholesky(unit)
    inverse = np.linalg.inv(root)
    values, vectors = np.linalg.eigh(inverse @ matrix @ inverse.T)
    turned = root @ vectors
    return np.asarray((turned * np.maximum(values, 1)) @ turned.T)
