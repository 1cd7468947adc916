"""Vertex bootstrap: subjects are resampled, and their comparisons follow.

A subject drawn W times brings its mated comparisons with weight W, and its comparisons with
another subject, drawn V times, with weight W · V. Copies of one subject are never compared as
impostors. Every figure is computed inside each replicate by the rule that gives the estimate, and
nothing is scored again (Fogliato, Patil and Perona, IJCV 2024, arXiv 2306.01198).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.errors import MetricError
from facerec.statistics.clustered import DEPENDENT
from facerec.statistics.intervals import Interval, check_confidence
from facerec.statistics.rates import Rate, check_scores, parse_rate

Replicates = NDArray[np.float64]
"""One value a replicate, ``(R,)``; NaN where the figure is undefined."""

METHOD = "vertex bootstrap, percentile"

_CELLS = 1 << 18
"""Weights of comparisons in replicates that are held at once."""


@dataclass(frozen=True, eq=False)
class OperatingReplicates:
    """TPR and threshold at one FPR target in every replicate, ``(R,)`` each."""

    tpr: Replicates
    threshold: Replicates
    """NaN, which nothing reaches, where all must be rejected."""


class VertexBootstrap:
    """Replicates of figures of one set of comparisons; all figures share one resample."""

    def __init__(
        self,
        first: ArrayLike,
        second: ArrayLike,
        issame: ArrayLike,
        replicates: int = 2000,
        seed: int = 0,
    ) -> None:
        """Draw the multiplicities of all subjects.

        Args:
            first: subject on one side of each comparison, ``(N,)`` integers.
            second: subject on the other side, ``(N,)`` integers.
            issame: whether both are one subject, ``(N,)``.
            replicates: R, the number of resamples.
            seed: equal seeds draw equal multiplicities.

        Raises:
            MetricError: lengths that differ, labels that contradict the subjects, no replicate.
        """
        left, right, same = np.asarray(first), np.asarray(second), np.asarray(issame, dtype=bool)
        if left.ndim != 1 or left.shape != right.shape or left.shape != same.shape:
            raise MetricError(
                f"identities of shapes {left.shape} and {right.shape} and labels of shape "
                f"{same.shape} must be one a comparison"
            )
        wrong = (left == right) != same
        if wrong.any():
            pair = int(wrong.argmax())
            raise MetricError(
                f"comparison {pair} is labelled {'same' if same[pair] else 'different'} but its "
                f"identities are {left[pair]} and {right[pair]}; correct the one or the other"
            )
        if replicates < 1:
            raise MetricError(f"{replicates} replicates; a bootstrap needs at least one")
        self.subjects, index = np.unique(np.concatenate([left, right]), return_inverse=True)
        self.issame = same
        self._first, second_index = index.reshape(2, -1)
        # The last multiplicity is always 1: a mated comparison counts its subject once.
        self._second = np.where(same, self.subjects.size, second_index)
        self._multiplicities = _multiplicities(self.subjects.size, replicates, seed)

    @property
    def multiplicities(self) -> NDArray[np.uint8]:
        """How often each of ``subjects`` is drawn in each replicate, ``(R, G)``."""
        return self._multiplicities[:, :-1]

    @property
    def replicates(self) -> int:
        """Number of resamples."""
        return self._multiplicities.shape[0]

    def mean(self, values: ArrayLike, among: ArrayLike | None = None) -> Replicates:
        """Return the weighted mean of a value per comparison, such as 1 for a right decision.

        Args:
            values: ``(N,)`` numbers or booleans.
            among: comparisons that count, ``(N,)`` booleans; all by default.

        Raises:
            MetricError: no comparison, another length, or a value that is not finite.
        """
        chosen = np.arange(self.issame.size)
        if among is not None:
            chosen = np.flatnonzero(self._per_comparison(among, "a choice").astype(bool))
        if not chosen.size:
            raise MetricError("there are no comparisons; a mean needs at least one")
        numbers = self._per_comparison(values, "values").astype(np.float64)[chosen]
        if not np.isfinite(numbers).all():
            raise MetricError("a value to be averaged is not finite; leave its comparison out")
        # Most errors are zero: the others alone make the numerator.
        counting = np.flatnonzero(numbers)
        result = np.empty(self.replicates)
        for chunk in self._chunks(chosen.size):
            weights = self._weights(chosen, chunk)
            sums = weights.take(counting, axis=1).astype(np.float64) @ numbers[counting]
            result[chunk] = _ratio(sums, weights.sum(axis=1, dtype=np.int64))
        return result

    def tpr_at_fpr(self, scores: ArrayLike, targets: Sequence[Rate]) -> list[OperatingReplicates]:
        """Return `facerec.statistics.rates.tpr_at_fpr` of every replicate, for each FPR target.

        Args:
            scores: similarities, ``(N,)``.
            targets: FPR targets, taken exactly.

        Raises:
            MetricError: another length, NaN among the scores, one class of pairs only, or a target
                that is no rate.
        """
        rates = [parse_rate(target) for target in targets]
        ranked = self._rank(scores)
        # Where row j is the first to hold more than is allowed, all above its score is accepted.
        accepted = np.append(ranked.mated_above(ranked.non_mated), ranked.mated.size)
        thresholds = np.append(_just_above(ranked.non_mated), -np.inf)
        by_target = [OperatingReplicates(*np.full((2, self.replicates), np.nan)) for _ in rates]
        for chunk in self._chunks(self.issame.size):
            non_mated = self._cumulative(ranked.non_mated_index, chunk)
            matches = self._cumulative(ranked.mated_index, chunk)
            defined = np.flatnonzero((non_mated[:, -1] > 0) & (matches[:, -1] > 0))
            for rate, result in zip(rates, by_target, strict=True):
                allowed = [
                    rate.numerator * total // rate.denominator
                    for total in non_mated[defined, -1].tolist()
                ]
                rows = np.array(
                    [
                        np.searchsorted(non_mated[replicate, 1:], count, side="right")
                        for replicate, count in zip(defined, allowed, strict=True)
                    ],
                    dtype=np.int64,
                )
                hits = matches[defined, accepted[rows]]
                result.tpr[chunk.start + defined] = hits / matches[defined, -1]
                result.threshold[chunk.start + defined] = thresholds[rows]
        return by_target

    def auc(self, scores: ArrayLike) -> Replicates:
        """Return the area under the ROC as the Mann–Whitney statistic; ties count one half."""
        ranked = self._rank(scores)
        above = ranked.mated_above(ranked.non_mated)
        reaching = ranked.mated_reaching(ranked.non_mated)
        result = np.empty(self.replicates)
        for chunk in self._chunks(self.issame.size):
            non_mated = self._weights(ranked.non_mated_index, chunk)
            matches = self._cumulative(ranked.mated_index, chunk)
            doubled = matches.take(above, axis=1) + matches.take(reaching, axis=1)
            won = np.einsum("rn,rn->r", non_mated, doubled, dtype=np.int64)
            result[chunk] = _ratio(won, 2 * non_mated.sum(axis=1, dtype=np.int64) * matches[:, -1])
        return result

    def eer(self, scores: ArrayLike) -> Replicates:
        """Return the equal error rate on the convex hull of the ROC, as `eer_rocch` does."""
        ranked = self._rank(scores)
        thresholds = np.unique(np.concatenate([ranked.mated, ranked.non_mated]))[::-1]
        false_rows = np.append(0, ranked.non_mated_reaching(thresholds))
        true_rows = np.append(0, ranked.mated_reaching(thresholds))
        result = np.empty(self.replicates)
        for chunk in self._chunks(self.issame.size):
            curves = zip(
                self._cumulative(ranked.non_mated_index, chunk),
                self._cumulative(ranked.mated_index, chunk),
                strict=True,
            )
            result[chunk] = [
                _hull_crossing(non_mated.take(false_rows), matches.take(true_rows))
                for non_mated, matches in curves
            ]
        return result

    def select(self, comparisons: ArrayLike) -> VertexBootstrap:
        """Return the bootstrap of some comparisons, with the same multiplicities of subjects.

        Replicates of groups so selected belong together: subtract or divide them one by one.

        Args:
            comparisons: which to keep, ``(N,)`` booleans.
        """
        kept = self._per_comparison(comparisons, "a choice").astype(bool)
        selected = copy.copy(self)
        selected.issame = self.issame[kept]
        selected._first, selected._second = self._first[kept], self._second[kept]
        return selected

    def _per_comparison(self, values: ArrayLike, what: str) -> NDArray[Any]:
        array = np.asarray(values)
        if array.shape != self.issame.shape:
            raise MetricError(
                f"{what} of shape {array.shape} must be one for each of the "
                f"{self.issame.size} comparisons"
            )
        return array

    def _rank(self, scores: ArrayLike) -> _Ranked:
        values = self._scores(scores)
        order = np.argsort(values)[::-1]
        same = self.issame[order]
        ranked = _Ranked(order[same], order[~same], values[order[same]], values[order[~same]])
        if not (ranked.mated.size and ranked.non_mated.size):
            raise MetricError(
                f"{ranked.mated.size} same and {ranked.non_mated.size} different pairs: a ROC "
                "needs both"
            )
        return ranked

    def _scores(self, scores: ArrayLike) -> NDArray[np.floating]:
        return check_scores(self._per_comparison(scores, "scores"), "scores")

    def _chunks(self, comparisons: int) -> Iterator[slice]:
        """Yield ranges of replicates whose weights fit in memory together."""
        step = max(1, _CELLS // comparisons)
        for start in range(0, self.replicates, step):
            yield slice(start, min(start + step, self.replicates))

    def _weights(self, comparisons: NDArray[np.integer], chunk: slice) -> NDArray[np.uint16]:
        """Return the weights of comparisons in some replicates, ``(replicates, comparisons)``."""
        first = self._multiplicities[chunk].take(self._first[comparisons], axis=1)
        second = self._multiplicities[chunk].take(self._second[comparisons], axis=1)
        return np.multiply(first, second, dtype=np.uint16)

    def _cumulative(self, comparisons: NDArray[np.integer], chunk: slice) -> NDArray[np.int32]:
        """Return the weight of the first 0, 1, … comparisons, ``(replicates, comparisons + 1)``."""
        weights = self._weights(comparisons, chunk)
        sums = np.zeros((weights.shape[0], weights.shape[1] + 1), dtype=np.int32)
        np.cumsum(weights, axis=1, out=sums[:, 1:])
        return sums


def percentile_interval(
    estimate: float, replicates: Replicates, confidence: float = 0.95, scale: float = 1.0
) -> Interval:
    """Return the percentile interval of a figure from its bootstrap replicates.

    Limits are values of replicates, never interpolated. Undefined replicates are left out and
    counted in ``assumption``. A share of 0 or 1 has equal replicates; take its interval from
    `ClusteredShare`.

    Args:
        estimate: the figure on all comparisons as they are.
        replicates: ``(R,)``, NaN where undefined.
        confidence: coverage, between 0 and 1.
        scale: factor on the deviations from the estimate.

    Raises:
        MetricError: an impossible confidence, or no replicate that is defined.
    """
    check_confidence(confidence)
    defined = np.sort(replicates[~np.isnan(replicates)])
    if not defined.size:
        raise MetricError(
            f"the figure is undefined in all {replicates.size} replicates; there are too few "
            "identities or comparisons for a bootstrap"
        )
    # Counted from both ends alike; 1 − 0.95 falls short of 0.05 by rounding.
    beyond = math.floor((1 - confidence) / 2 * (defined.size - 1) + 1e-9)
    low, high = float(defined[beyond]), float(defined[-1 - beyond])
    method, assumption = METHOD, DEPENDENT
    if scale != 1:
        low, high = (estimate + scale * (limit - estimate) for limit in (low, high))
        method += f", deviations × {scale:.2f}"
    else:
        assumption += "; conservative for rare false matches"
    if low == high:
        assumption += "; equal replicates tell nothing of the spread"
    if defined.size < replicates.size:
        dropped = replicates.size - defined.size
        assumption += f"; {dropped:,} of {replicates.size:,} replicates undefined and left out"
    return Interval(low, high, confidence, method, assumption)


@dataclass(frozen=True, eq=False)
class _Ranked:
    """Scores of both classes in descending order, and where they stand among the comparisons."""

    mated_index: NDArray[np.integer]
    non_mated_index: NDArray[np.integer]
    mated: NDArray[np.floating]
    non_mated: NDArray[np.floating]

    def mated_above(self, values: NDArray[np.floating]) -> NDArray[np.integer]:
        return self.mated.size - np.searchsorted(self.mated[::-1], values, side="right")

    def mated_reaching(self, values: NDArray[np.floating]) -> NDArray[np.integer]:
        return self.mated.size - np.searchsorted(self.mated[::-1], values)

    def non_mated_reaching(self, values: NDArray[np.floating]) -> NDArray[np.integer]:
        return self.non_mated.size - np.searchsorted(self.non_mated[::-1], values)


def _multiplicities(subjects: int, replicates: int, seed: int) -> NDArray[np.uint8]:
    """Return how often each subject is drawn, ``(R, G + 1)``, and a last column of ones.

    A byte is enough: with more than 255 subjects, 256 draws of one have a chance below 1e-500.
    """
    generator = np.random.default_rng(seed)
    drawn = np.ones((replicates, subjects + 1), dtype=np.uint8)
    for row in drawn:
        draws = generator.integers(subjects, size=subjects)
        row[:-1] = np.bincount(draws, minlength=subjects)
    return drawn


def _hull_crossing(false_accepts: NDArray[np.int32], true_accepts: NDArray[np.int32]) -> float:
    """Return where the lower convex hull of (FMR, FNMR) crosses FMR = FNMR; NaN without a class.

    A chord from a point left of the diagonal to one right of it is lowered until no point lies
    below it. Weights are whole, so the comparisons are exact.

    Args:
        false_accepts: weights from "reject all" to "accept all", ``(thresholds + 1,)``.
        true_accepts: weights, ``(thresholds + 1,)``.
    """
    x = false_accepts.astype(np.int64)
    rising = (true_accepts - true_accepts[-1]).astype(np.int64)
    y = -rising
    width, height = int(x[-1]), int(y[0])
    if width == 0 or height == 0:
        return math.nan
    gap = x * height - y * width
    left = int(np.searchsorted(gap, 0, side="right")) - 1
    right = left + 1
    while True:
        down, along = int(y[left] - y[right]), int(x[right] - x[left])
        level = down * int(x[left]) + along * int(y[left])
        # Only points within both intercepts of the chord can lie below it.
        start = 0 if along == 0 else np.searchsorted(rising, -((level - 1) // along))
        stop = x.size if down == 0 else np.searchsorted(x, (level - 1) // down, side="right")
        heights = down * x[start:stop] + along * y[start:stop]
        if heights.size == 0 or heights.min() >= level:
            break
        lowest = int(start + heights.argmin())
        left, right = (lowest, right) if gap[lowest] <= 0 else (left, lowest)
    share = gap[left] / (gap[left] - gap[right])
    return float((x[left] + share * along) / width)


def _just_above(scores: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the lowest thresholds that reject each score, in its dtype; NaN above +inf."""
    with np.errstate(over="ignore"):  # above the largest number comes +inf, as it should
        above = np.nextafter(scores, scores.dtype.type(np.inf))
    return np.where(scores == np.inf, scores.dtype.type(np.nan), above)


def _ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Replicates:
    """Return the quotients, NaN where the denominator is zero."""
    result = np.full(denominator.shape, np.nan)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result
