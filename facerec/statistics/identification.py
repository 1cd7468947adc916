"""Identification (1:N): TPIR at an FPIR in open sets, CMC in closed ones.

A search compares one probe with every entry of a gallery. It is mated if the gallery holds its
subject. Its mate is the best entry of that subject, and the mate's rank is one more than the
entries of other subjects that score at least as high: ties count against the mate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facerec.errors import MetricError
from facerec.statistics.operating_points import (
    RULE_OF_30,
    Rate,
    allowed_accepts,
    parse_rate,
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
    gallery: int
    """Entries searched."""

    def __post_init__(self) -> None:
        mated = self.rank > 0
        if not (self.best_other.shape == self.mate.shape == self.rank.shape == (mated.size,)):
            raise MetricError(
                f"searches need three arrays of one length, found shapes {self.best_other.shape}, "
                f"{self.mate.shape} and {self.rank.shape}"
            )
        odd = np.isnan(self.best_other) | (np.isnan(self.mate) == mated)
        odd |= (self.rank < 0) | (self.rank > self.gallery)
        ahead = self.mate > self.best_other
        odd |= mated & np.where(self.rank == 1, ~ahead & (self.best_other > -np.inf), ahead)
        if odd.any():
            first = int(odd.argmax())
            raise MetricError(
                f"search {first} has rank {self.rank[first]} among {self.gallery} entries, a mate "
                f"at {self.mate[first]} and another subject at {self.best_other[first]}, which "
                "cannot be; a mated search has rank 1 if its mate beats all others, a non-mated "
                "one has rank 0 and mate NaN"
            )

    @property
    def mated(self) -> NDArray[np.bool_]:
        """Whether the gallery holds the subject of each search, ``(S,)``."""
        return self.rank > 0


@dataclass(frozen=True)
class IdentificationPoint:
    """TPIR at an FPIR: the threshold of the exact step rule, applied to non-mated searches."""

    target: str
    """The FPIR asked for, as it was written."""
    tpir: float
    """Share of mated searches whose mate is within the rank and at or above the threshold."""
    threshold: float
    """A candidate scores at least this; NaN, which nothing reaches, if none may."""
    fpir_realised: float
    """Share of non-mated searches with a candidate, never more than the target."""
    hits: int
    mated: int
    false_alarms: int
    non_mated: int
    rank: int
    gallery: int
    resolvable: bool
    """Whether the target leaves room for one false alarm at all."""
    reliable: bool
    """Whether it leaves room for 30 (Doddington's rule)."""


def count_equal(labels: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for every label, ``(P,)``, how many of the others equal it, such as mates."""
    distinct, counts = np.unique(others, return_counts=True)
    if not distinct.size:
        return np.zeros(len(labels), np.int64)
    indices = np.minimum(np.searchsorted(distinct, labels), distinct.size - 1)
    return np.where(distinct[indices] == labels, counts[indices], 0)


def tpir_at_fpir(searches: Searches, fpir: Rate, rank: int = 1) -> IdentificationPoint:
    """Return max { TPIR(t) : FPIR(t) ≤ fpir }: the step rule on the maxima of non-mated searches.

    Args:
        searches: some mated, some not.
        fpir: the target as text, fraction or float.
        rank: candidates in the list; the mate must be among them.

    Raises:
        MetricError: no mated or no non-mated search, a target that is no rate, or a rank below 1.
    """
    alarms = np.sort(searches.best_other[~searches.mated])[::-1]
    mated = searches.mated.size - alarms.size
    if not (mated and alarms.size):
        raise MetricError(
            f"{mated} of {searches.mated.size} searches are mated; TPIR at an FPIR needs both kinds"
        )
    if rank < 1:
        raise MetricError(f"rank {rank} is no length of a candidate list; the least is 1")
    allowed = allowed_accepts(fpir, alarms.size)
    threshold = step_threshold(alarms, allowed, searches.mate)
    listed = searches.mated & (searches.rank <= rank)
    hits = int(np.count_nonzero(searches.mate[listed] >= threshold))
    false_alarms = int(np.count_nonzero(alarms >= threshold))
    return IdentificationPoint(
        target=str(fpir),
        tpir=hits / mated,
        threshold=threshold,
        fpir_realised=false_alarms / alarms.size,
        hits=hits,
        mated=mated,
        false_alarms=false_alarms,
        non_mated=alarms.size,
        rank=rank,
        gallery=searches.gallery,
        resolvable=parse_rate(fpir) * alarms.size >= 1,
        reliable=allowed >= RULE_OF_30,
    )


def cmc(searches: Searches, ranks: int) -> NDArray[np.int64]:
    """Return the cumulative match characteristic: searches whose mate has rank k or better.

    Args:
        searches: all mated.
        ranks: K, the last rank.

    Returns:
        Counts for k = 1 … K, ``(K,)``.

    Raises:
        MetricError: no search, or one whose subject is not in the gallery.
    """
    mated = searches.mated
    if not (mated.size and mated.all()):
        raise MetricError(
            f"{mated.sum()} of {mated.size} searches are mated, the first that is not is search "
            f"{int(mated.argmin()) if mated.size else 0}; a CMC needs a closed set"
        )
    return np.cumsum(np.bincount(searches.rank, minlength=ranks + 1)[1 : ranks + 1])
