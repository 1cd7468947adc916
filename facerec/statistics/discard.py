"""Error-versus-discard curves (EDC): how an error rate falls as the worst comparisons are left out.

The name is that of ISO/IEC 29794-1. The threshold of the errors stays the same throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.statistics.operating_points import Rate, allowed_accepts, parse_rate
from facerec.statistics.rates import check_scores

DISCARD_SHARES = ("0.01", "0.05", "0.10", "0.20")
"""Shares of the comparisons, those of the lowest quality, that are left out."""

PARTIAL_AREA = "0.20"
"""Share discarded up to which the area under a curve is taken."""


@dataclass(frozen=True)
class DiscardCurve:
    """Errors among the comparisons that remain, stepwise; the last point discards all."""

    discarded: NDArray[np.int64]
    """Comparisons discarded, ascending from 0 to all, ``(K,)``."""
    errors: NDArray[np.int64]
    """Errors that remain, ``(K,)``."""
    cuts: NDArray[np.floating]
    """Comparisons with at least this quality remain, ``(K,)``; NaN, which none has, at the end."""

    @property
    def comparisons(self) -> int:
        """All comparisons."""
        return int(self.discarded[-1])

    def cut(self, share: Rate) -> float:
        """Return the least quality that remains when a share of all, at most, is discarded."""
        allowed = allowed_accepts(share, self.comparisons)
        return float(self.cuts[np.searchsorted(self.discarded, allowed, side="right") - 1])

    def area(self, limit: Rate = 1.0) -> float:
        """Return the area under the steps up to a share discarded (pAUC), 1 for the whole curve.

        Raises:
            MetricError: the limit is no share.
        """
        rates = self.errors[:-1] / (self.comparisons - self.discarded[:-1])
        edges = np.minimum(self.discarded / self.comparisons, float(parse_rate(limit)))
        return float(rates @ np.diff(edges))


def error_versus_discard(errors: ArrayLike, quality: ArrayLike) -> DiscardCurve:
    """Discard comparisons in ascending quality and count the errors that remain.

    Args:
        errors: whether each comparison is an error at a fixed threshold, ``(N,)``: misses among
            mated ones for the FNMR, matches among non-mated ones for the FMR.
        quality: of each comparison, ``(N,)``, usually the lesser of its two images; equal ones
            leave together.

    Raises:
        MetricError: no comparison, or a quality that is NaN.
    """
    values = check_scores(quality, "qualities of comparisons")
    wrong = np.asarray(errors, dtype=bool)
    order = np.argsort(values, kind="stable")
    cuts, discarded = np.unique(values[order], return_index=True)
    remaining = np.append(np.cumsum(wrong[order][::-1])[::-1], 0)
    discarded = np.append(discarded, values.size)
    return DiscardCurve(discarded, remaining[discarded], np.append(cuts, np.nan))
