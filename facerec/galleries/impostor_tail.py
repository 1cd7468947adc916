"""How high the best of many impostors scores, learned from the scores of two sets without labels.

Nobody says which rows of the score matrix have their subject in the other set, so a row's best
score may be that subject's or the luckiest impostor's. The runner-up, the best score with another
subject, is an impostor's either way. So the tail is learned from runners-up and what comes after
them:

* Scores are brought to one scale (`standardise`), so that subjects whom many resemble, and
  templates of many or few images, have the same impostors. A standardised score z is measured by
  w = −ln Φ(−z), of which impostors have an exponential tail if their scores are normal.
* The tail is exp(−(w − δ)/σ) with σ and δ from the data: σ above 1 is a heavier tail than normal.
  By Rényi (1953), i·(w₍ᵢ₎ − w₍ᵢ₊₁₎) has the mean σ for the i-th and next best of a row's impostors;
  and the i-th best has ln(expected impostors above it) of mean digamma(i).
* A row that is told to have its subject has one impostor fewer among its best. Which rows those are
  is decided by the tail, so both are repeated until they agree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, log_ndtr, ndtri_exp
from scipy.stats import false_discovery_control

from facerec.base.large_arrays import empty
from facerec.base.progress import Progress
from facerec.cosines.searches import best
from facerec.cosines.unit_rows import UnitRows

_RANKS = 6
"""Best scores of a row that are looked at; deeper ones say less about the tail."""

_UNNAMED_RANKS = 24
"""The same where several images may be of one subject whom nobody names."""

_ALIKE = 3.0
"""Standard deviations of impostors above which two unnamed images of one set may be one subject."""

_ROUNDS = 8

# What is believed before the data, in numbers of rows that would say so: a tail a little heavier
# than normal. It decides only where sets have a few subjects.
_SLOPE, _SLOPE_ROWS = 1.1, 20.0
_SHIFT_ROWS = 5.0

# A row's own mean and spread are trusted from so many others on: in fewer, a score with its own
# subject would weigh too much in them, and rows without one would look too good beside it.
_CENTRE_ROWS, _SPREAD_ROWS = 1000.0, 2000.0

SAMPLE = 2048
"""Rows whose scores tell of all."""

_BLOCK = 1 << 14

_NORMAL_QUANTILE = 0.158655

_LEVELS = np.geomspace(0.1, 0.005, 12)
"""Shares of all scores above those that a bent tail is fitted to."""

_FIRST_LEVELS = np.geomspace(0.4, 0.2, 12)
"""The same, while mated pairs are among the scores."""

_MATED = 1e-3
"""Share of impostors' scores beyond which all that are more are taken for mated pairs."""

_LEAST_BEND = 0.01


def standardise(
    *sets: NDArray[np.floating], weights: NDArray[np.float64] | None = None
) -> list[NDArray[np.float32]]:
    """Return two matrices, or one beside itself, whose products are scores on one scale.

    Each set is centred on its own mean and each row divided by the root of the spread of its
    products with the other set, so that a product is
    (s − mean of its row − mean of its column + mean of all) / √(spread of row · spread of column).
    In small sets means are drawn towards 0 and spreads towards that of all, which leaves the plain
    product, up to a factor.

    Args:
        sets: rows of unit length, ``(R, D)`` and perhaps ``(C, D)``.
        weights: how much each row of the one set counts in means and spreads, ``(R,)``; by default
            1.
    """
    sides, moments = [], []
    share = None if weights is None else weights.astype(np.float32)[:, np.newaxis]
    counts = [float(len(side) if weights is None else weights.sum()) for side in sets]
    for side, count in zip(sets, counts, strict=True):
        total = (side if share is None else share * side).sum(axis=0, dtype=np.float64)
        centre = (total / (count + _CENTRE_ROWS)).astype(np.float32)
        sides.append(np.subtract(side, centre, out=empty(side.shape, np.float32)))
        weighed = sides[-1] if share is None else share * sides[-1]
        moments.append((weighed.T @ sides[-1]).astype(np.float64) / count)
    usual = max(float(np.sum(moments[0] * moments[-1])), 1e-30)
    for side, other, count in zip(sides, moments[::-1], counts[::-1], strict=True):
        for start in range(0, len(side), _BLOCK):
            rows = side[start : start + _BLOCK]
            own = np.einsum("nd,de,ne->n", rows, other, rows, optimize=True)
            spread = (count * own + _SPREAD_ROWS * usual) / (count + _SPREAD_ROWS)
            rows /= spread[:, np.newaxis] ** 0.25
    return sides


def nearest_subjects(
    first: NDArray[np.float32],
    second: NDArray[np.float32] | None = None,
    *,
    share: float,
    asked: NDArray[np.int64] | None = None,
    named: NDArray[np.bool_] | None = None,
    device: object = "cpu",
    stage: str = "comparing templates",
    progress: Progress | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return for each row of a set the nearest other one, and how surely it is its own subject.

    Args:
        first: templates of unit length, ``(R, D)``.
        second: those that they are compared with, ``(C, D)``; by default the others of the set.
        share: of the rows that are told to have their subject, how many may be wrong.
        asked: rows of ``first``, ``(n,)``; by default all.
        named: whether each of ``second`` has a name; those without may be of one subject.
        device: where scores are computed, see `facerec.base.devices.choose_device`.
        stage: what that is called.
        progress: see `facerec.base.progress.Progress`.

    Returns:
        numbers of the nearest, and the logarithm of the chance that the best of all impostors is as
        good, or better, ``(n,)`` each.
    """
    alone, several = second is None, named is not None and not named.all()
    sides = standardise(first) * 2 if second is None else standardise(first, second)
    every = np.arange(len(first))
    rows = every if asked is None else asked
    left, right = (
        UnitRows(side, some, np.ones(len(side)), device)
        for side, some in zip(sides, (asked, None), strict=True)
    )
    ranks, apart = _UNNAMED_RANKS if several else _RANKS, (rows, every) if alone else None
    others, scores = best(left, right, ranks, apart=apart, stage=stage, progress=progress)
    if named is not None and several:
        scores = _without_more_of_the_best(scores, others, sides[1], named)
    scale = _centre_and_spread(*sides)
    candidates = max(len(sides[1]) - alone, 1)
    return others[:, 0].copy(), _fit_tail(scores[:, :_RANKS], candidates, scale, share)


def _without_more_of_the_best(
    scores: NDArray[np.float32],
    subjects: NDArray[np.int64],
    templates: NDArray[np.float32],
    named: NDArray[np.bool_],
) -> NDArray[np.float32]:
    """Take away scores that may be of the same subject as the best one, where nobody names both.

    Of several images of one subject whom nobody names, the second best is no impostor.

    Args:
        scores: of each row with its best subjects, descending, ``(n, k)``.
        subjects: numbers of these subjects.
        templates: standardised, of the set that these subjects are of, ``(P, D)``.
        named: whether each subject of that set has a name.

    Returns:
        Scores, ``(n, k)``, descending, −∞ where there are fewer.
    """
    middle, spread = _centre_and_spread(templates, templates)
    kept = scores.copy()
    for start in range(0, len(scores), 1024):
        rows = slice(start, start + 1024)
        who = subjects[rows]
        likeness = np.einsum("nkd,nd->nk", templates[who], templates[who[:, 0]])
        alike = (likeness >= middle + _ALIKE * spread) & ~(named[who] & named[who[:, :1]])
        alike[:, 0] = False
        kept[rows][alike] = -np.inf
    return -np.sort(-kept, axis=1)


def _centre_and_spread(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> tuple[float, float]:
    """Return median and spread of the products of two sets, looking at the lower half alone.

    Impostors are nearly all products, and subjects who are in both sets raise high ones only: the
    distance from the median to the quantile of −1 σ is the impostors' spread.

    Args:
        first: ``(R, D)``.
        second: ``(C, D)``, or the first one itself, of which no row is compared with itself.
    """
    generator = np.random.default_rng(0)
    row, column = (generator.permutation(len(side))[:SAMPLE] for side in (first, second))
    products = (first[row] @ second[column].T)[(row[:, None] != column) | (first is not second)]
    if not products.size:
        return 0.0, 1.0
    low, middle = np.quantile(products, [_NORMAL_QUANTILE, 0.5])
    return float(middle), max(float(middle - low), 1e-6)


def _fit_tail(
    best: NDArray[np.floating], candidates: int, scale: tuple[float, float], share: float
) -> NDArray[np.float64]:
    """Fit the tail to the best scores of rows, of which some are their own subject's.

    Args:
        best: standardised scores with the best subjects, descending, ``(n, k)``; −∞ where there is
            none.
        candidates: how many subjects a row is compared with.
        scale: see `_centre_and_spread`.
        share: of the rows that are told to have their subject, how many may be wrong.

    Returns:
        The logarithm of each row's p-value, ``(n,)``.
    """
    z = (best.astype(np.float64) - scale[0]) / scale[1]
    exponents = np.where(np.isneginf(z), -np.inf, -log_ndtr(-z))
    known = np.zeros(len(best), bool)
    for _ in range(_ROUNDS):
        slope, shift = _moments(exponents, candidates, known)
        # Of so many impostors e^−(w − δ)/σ each is expected at or above the best.
        log_expected = np.log(candidates) - (exponents[:, 0] - shift) / slope
        expected = np.exp(np.minimum(log_expected, 50.0))
        # The chance of one or more is the expected number to the last digit where that is tiny.
        with np.errstate(divide="ignore"):
            chance = np.log(-np.expm1(-expected))
        values = np.where(expected < 1e-12, log_expected, chance)
        known = accept(values, share)
    return values


def _moments(
    exponents: NDArray[np.float64], candidates: int, has_mate: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return slope and shift of the tail."""
    gaps, rows = _SLOPE * _SLOPE_ROWS, _SLOPE_ROWS
    for column in range(1, exponents.shape[1] - 1):
        there = np.isfinite(exponents[:, column + 1])
        # Among impostors it is one place further up where the best is no impostor.
        rank = np.where(has_mate, column, column + 1)[there]
        gaps += float(np.sum(rank * (exponents[there, column] - exponents[there, column + 1])))
        rows += float(np.count_nonzero(there))
    slope = gaps / rows
    if exponents.shape[1] < 2:
        return slope, 0.0
    there = np.isfinite(exponents[:, 1])
    mean = np.where(has_mate, digamma(1), digamma(2))[there]
    shifts = float(np.sum(exponents[there, 1] - slope * (np.log(candidates) - mean)))
    return slope, shifts / (_SHIFT_ROWS + np.count_nonzero(there))


def accept(log_p: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
    """Return which rows to propose so that at most a share of the proposals is expected false.

    Benjamini and Hochberg (1995). If no row has its subject, the chance that any is proposed is at
    most ``share`` as well.

    Args:
        log_p: ``(n,)``.
        share: in (0, 1).
    """
    if not len(log_p):
        return np.zeros(0, bool)
    return np.asarray(false_discovery_control(np.exp(log_p)) <= share)


class BentTail:
    """The tail of impostors' scores, from the middle of all scores.

    Where w goes with x, the negative logarithm of the share of impostors above, as a·x + b·x²: the
    tail of a network of many dimensions bends. Mated pairs stand out once that is roughly known
    from where they are few, and are then left out.

    Args:
        scores: standardised, of any shape.
        weights: how much each counts, of that shape.
    """

    def __init__(self, scores: NDArray[np.floating], weights: NDArray[np.floating]) -> None:
        scores, weights = scores[weights > 0].astype(np.float64), weights[weights > 0]
        order = np.argsort(-scores)
        scores, above = scores[order], np.cumsum(weights[order])
        mated, depth = 0.0, -np.log(_FIRST_LEVELS)
        for turn in range(_ROUNDS):
            shares = np.concatenate([[0.5, 1 - _NORMAL_QUANTILE], np.exp(-depth)])
            places = np.searchsorted(above, mated + shares * (above[-1] - mated))
            self._middle, low, *highest = scores[np.minimum(places, len(scores) - 1)]
            self._spread = max(self._middle - low, 1e-6)
            exponents, self._bend = self._exponent(np.array(highest)), _LEAST_BEND
            if turn:
                shape = np.stack([depth, depth**2], axis=1)
                self._bend = max(float(np.linalg.lstsq(shape, exponents)[0][1]), _LEAST_BEND)
            # The straight part, through 0, is what the bend leaves.
            straight = exponents - self._bend * depth**2
            self._slope = max(float(straight @ depth / (depth @ depth)), 0.1)
            rare = -np.log(_MATED)
            edge = -ndtri_exp(-rare * (self._slope + self._bend * rare))
            beyond = np.searchsorted(-scores, -self._middle - self._spread * edge)
            mated = max(above[beyond - 1] * (beyond > 0) - _MATED * above[-1], 0.0)
            depth = -np.log(_LEVELS)

    def _exponent(self, scores: NDArray[np.floating]) -> NDArray[np.float64]:
        z = (scores.astype(np.float64) - self._middle) / self._spread
        return np.asarray(-log_ndtr(-z))

    def log_share(self, scores: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the logarithm of the share of impostors' scores at or above each."""
        root = np.sqrt(self._slope**2 + 4 * self._bend * self._exponent(scores))
        return np.asarray((self._slope - root) / (2 * self._bend))
