"""Confidence intervals of a rate.

The intervals here assume independent comparisons. Pairs that share a subject are not independent;
an estimator that knows the subjects passes its effective number of comparisons to `wilson`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

INDEPENDENT = "assuming independent comparisons"


@dataclass(frozen=True)
class Interval:
    """A confidence interval, with what it rests on."""

    low: float
    high: float
    confidence: float = 0.95
    method: str = "Wilson"
    assumption: str = INDEPENDENT
    effective: float | None = None
    """Effective number of comparisons, where the interval rests on one."""


@dataclass(frozen=True)
class Bound(Interval):
    """The interval of a share of which no comparison, or every one, is an event.

    No variance can be estimated there. The finite limit is that of as many independent trials as
    there are disjoint pairs of effective subjects (or effective subjects, for mated comparisons):
    the share cannot exceed the chance that such a pair has any event.
    """

    if_independent: float = math.nan
    """The same limit if all comparisons were independent: the rule of three, 3/N at 95 %."""


def wilson(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval of a binomial rate (Wilson, JASA 22, 1927).

    Args:
        successes: events counted; need not be whole when ``trials`` is an effective number.
        trials: comparisons, or their effective number.
        confidence: coverage, between 0 and 1.

    Examples:
        >>> interval = wilson(3, 3000)
        >>> f"[{interval.low:.1e}, {interval.high:.1e}]"
        '[3.4e-04, 2.9e-03]'
    """
    from scipy.special import ndtri

    z = float(ndtri((1 + confidence) / 2))
    rate = successes / trials
    centre = rate + z**2 / (2 * trials)
    margin = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    scale = 1 + z**2 / trials
    # At the ends the formula gives exactly 0 or 1 but for rounding.
    low = 0.0 if successes == 0 else max(0.0, (centre - margin) / scale)
    high = 1.0 if successes == trials else min(1.0, (centre + margin) / scale)
    return Interval(low, high, confidence, "Wilson")


def logit(
    rate: float,
    standard_error: float,
    confidence: float = 0.95,
    freedom: float = math.inf,
    skewness: float = 0.0,
) -> Interval:
    """Return an interval on the scale of log(rate / (1 − rate)) (Agresti, 2013, 3.1).

    A rate near 0 that was estimated too low has too small a standard error as well; on this scale
    the two make up for each other. Where sums remain skewed on it, both quantiles are moved as
    Johnson does (JASA 73, 1978); else it is symmetric.

    Args:
        rate: between 0 and 1, neither included.
        standard_error: of the rate.
        confidence: coverage, between 0 and 1.
        freedom: degrees of freedom of Student's t, whose quantile is taken.
        skewness: of the sum whose error that is.
    """
    from scipy.special import expit, ndtri, stdtrit

    tail = (1 + confidence) / 2
    quantile = float(ndtri(tail) if math.isinf(freedom) else stdtrit(freedom, tail))
    centre, moved = math.log(rate / (1 - rate)), skewness * (2 * quantile**2 + 1) / 6
    error = standard_error / (rate * (1 - rate))
    below, above = (max(quantile + sign * moved, 0.0) * error for sign in (-1, 1))
    low, high = float(expit(centre - below)), float(expit(centre + above))
    # Rounding must not move the rate out of an interval without width.
    return Interval(min(low, rate), max(high, rate), confidence, "logit")
