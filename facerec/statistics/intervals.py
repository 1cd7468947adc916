"""Confidence intervals of a rate.

The intervals here assume independent comparisons. Pairs that share a subject are not independent;
an estimator that knows the subjects passes its effective number of comparisons to `wilson`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A confidence interval, of 95 % unless something else is said."""

    low: float
    high: float
    effective: float | None = None
    """Effective number of comparisons, where the interval rests on one."""
    lacking: str = ""
    """Why it tells nothing and is the whole range, such as too few subjects; else empty."""


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
    return Interval(low, high)
