"""Identification (1:N): searches of a gallery, and TPIR at an FPIR.

A search compares one probe with every entry of a gallery. It is mated if the gallery holds its
subject. Its mate is the best entry of that subject, and the mate's rank is one more than the
entries of other subjects that score at least as high: ties count against the mate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facerec.statistics.operating_points import (
    OperatingPoint,
    Rate,
    allowed_accepts,
    step_threshold,
)


@dataclass(frozen=True)
class Searches:
    """What is left of searches once their scores are gone: all that the figures need."""

    best_other: NDArray[np.floating]
    """Best score with an entry of another subject, ``(S,)``; −inf if there is none."""
    mate: NDArray[np.floating]
    """Best score with an entry of the same subject, ``(S,)``; NaN in non-mated searches."""
    rank: NDArray[np.int64]
    """Rank of the mate, from 1 on, ``(S,)``; 0 in non-mated searches."""

    @property
    def mated(self) -> NDArray[np.bool_]:
        """Whether the gallery holds the subject of each search, ``(S,)``."""
        return self.rank > 0


def count_equal(labels: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for every label, ``(P,)``, how many of the others equal it, such as mates."""
    distinct, numbers = np.unique(np.concatenate([labels, others]), return_inverse=True)
    mine, theirs = np.split(numbers, [len(labels)])
    return np.bincount(theirs, minlength=distinct.size)[mine]


def tpir_at_fpir(searches: Searches, fpir: Rate) -> OperatingPoint:
    """Return max { TPIR(t) : FPIR(t) ≤ fpir }: the step rule on the maxima of non-mated searches.

    Its TPR is the TPIR: the share of mated searches whose mate is first, at or above the threshold.
    Its FPR is the share of non-mated searches with a candidate there.

    Args:
        searches: some mated, some not.
        fpir: the target as text, fraction or float.

    Raises:
        MetricError: a target that is no rate.
    """
    alarms = np.sort(searches.best_other[~searches.mated])[::-1]
    mated = searches.mated.size - alarms.size
    threshold = step_threshold(alarms, allowed_accepts(fpir, alarms.size), searches.mate)
    hits = int(np.count_nonzero(searches.mate[searches.rank == 1] >= threshold))
    false_alarms = int(np.count_nonzero(alarms >= threshold))
    return OperatingPoint(str(fpir), threshold, hits, mated, false_alarms, alarms.size)
