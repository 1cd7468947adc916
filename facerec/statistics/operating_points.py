"""Operating points: the rule that turns a target FPR into a threshold, and what it yields.

A pair matches if ``score >= threshold``. With k = ⌊f·N⌋ false accepts allowed, the threshold lies
between the (k + 1)-th highest non-mated score and the next higher score of any pair: no observed
score lies between it and the lowest threshold whose FPR does not exceed f.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import MetricError

Rate = str | Fraction | float
"""A rate in [0, 1]; a literal such as ``"1e-3"`` or ``"1/3"`` is taken exactly."""

RULE_OF_30 = 30
"""Below 30 expected errors a rate is uncertain by more than ±30 % (Doddington's rule)."""


@dataclass(frozen=True)
class OperatingPoint:
    """One point of the ROC: the best TPR whose FPR does not exceed a target.

    At the level of algorithms the FPR is called FMR, and 1 − TPR is the FNMR.
    """

    target: str
    """The FPR asked for, as it was written."""
    threshold: float
    """Accept if ``score >= threshold``; NaN, which nothing reaches, if all must be rejected."""
    true_accepts: int
    mated: int
    false_accepts: int
    non_mated: int

    @property
    def tpr(self) -> float:
        """Share of mated scores at or above the threshold."""
        return self.true_accepts / self.mated

    @property
    def fpr_realised(self) -> float:
        """Share of non-mated scores at or above the threshold, never more than the target."""
        return self.false_accepts / self.non_mated

    @property
    def resolvable(self) -> bool:
        """Whether the target leaves room for one false accept at all (target · N ≥ 1)."""
        return allowed_accepts(self.target, self.non_mated) >= 1

    @property
    def reliable(self) -> bool:
        """Whether it leaves room for 30, so that the rule of 30 holds."""
        return allowed_accepts(self.target, self.non_mated) >= RULE_OF_30


def parse_rate(rate: Rate) -> Fraction:
    """Return a rate as an exact fraction; a float counts as its shortest decimal text.

    Binary products are wrong at the edges (``int(0.29 * 100)`` is 28), fractions are not.

    Raises:
        MetricError: not a number between 0 and 1.

    Examples:
        >>> parse_rate("1e-3"), parse_rate("1/2")
        (Fraction(1, 1000), Fraction(1, 2))
    """
    text = str(rate).strip()
    try:
        # Fraction writes the exponent out in digits, so an absurd one must not get there.
        value = Fraction("" if re.search(r"e[+-]?[\d_]{4}", text, re.IGNORECASE) else text)
    except (ValueError, ZeroDivisionError):
        value = Fraction(-1)
    if not 0 <= value <= 1:
        raise MetricError(
            f"target {text!r} is not a rate between 0 and 1; write it as 1e-3, 0.001 or 1/1000"
        )
    return value


def allowed_accepts(fpr: Rate, non_mated: int) -> int:
    """Return k = ⌊fpr · N⌋, the number of false accepts that a target allows."""
    return math.floor(parse_rate(fpr) * non_mated)


def step_threshold(
    descending: NDArray[np.floating], allowed: int, *others: NDArray[np.floating]
) -> float:
    """Return a threshold to accept ``allowed`` non-mated scores at most, and all that is higher.

    Args:
        descending: at least the ``allowed + 1`` highest non-mated scores, or all of them.
        allowed: false accepts.
        others: further scores that it tells apart, in any order; NaN takes no part.
    """
    if allowed >= descending.size:
        return -math.inf
    rejected = descending[allowed]
    higher = [side[side > rejected] for side in (descending[:allowed], *others)]
    return between(rejected, min((side.min() for side in higher if side.size), default=None))


def between(below: np.floating, above: float | np.floating | None) -> float:
    """Return the shortest decimal about midway that rejects one score and accepts a higher one.

    Printed in full it does what was counted, whether scores are compared in their own dtype or in
    double precision. It has four digits at least, but for zeros at its end. NaN, which nothing
    reaches, rejects +inf, and 1 where no score is higher, as cosines end there.

    Args:
        below: to reject.
        above: the next higher score; None where there is none.

    Examples:
        >>> between(np.float64(51), 52), between(np.float64(0.3), 0.4), between(np.float64(52), 60)
        (51.5, 0.35, 56.0)
    """
    low, high = float(below), math.inf if above is None else float(above)
    if low == math.inf or (low == 1 and above is None):
        return math.nan
    if math.isinf(high):
        high = low + max(abs(low), 1) / 1000
        high = min(high, 1.0) if low < 1 else high
    if math.isinf(low):
        low = high - max(abs(high), 1) / 1000
    middle, reach = low / 2 + high / 2, high / 4 - low / 4
    for digits in range(4, 18):
        value = float(f"{middle:.{digits}g}")
        with np.errstate(over="ignore"):
            own = below.dtype.type(value)
        if below < own < np.inf and low < value < high and abs(value - middle) <= reach:
            return value
    return float(just_above(below))  # the two are neighbours, or at the end of the numbers


def just_above(score: np.floating) -> np.floating:
    """Return the lowest threshold that rejects ``score``, in its own dtype; NaN above +inf."""
    if score == np.inf:
        return score.dtype.type(np.nan)
    with np.errstate(over="ignore"):  # above the largest number comes +inf, as it should
        return np.nextafter(score, score.dtype.type(np.inf))
