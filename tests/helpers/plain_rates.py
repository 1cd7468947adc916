"""Error rates and searches computed the plain way, to compare with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from facerec.statistics.curves import StepEqualErrorRate
from facerec.statistics.identification import Searches
from facerec.statistics.rates import sort_scores


class Errors(NamedTuple):
    """Errors at a threshold; scores that are NaN are failures to acquire."""

    false_matches: int
    non_mated: int
    false_non_matches: int
    mated: int
    failures: int

    @property
    def fmr(self) -> float:
        return self.false_matches / self.non_mated

    @property
    def fnmr(self) -> float:
        return self.false_non_matches / self.mated


def error_rates(mated: Any, non_mated: Any, threshold: float) -> Errors:
    mated, non_mated = np.asarray(mated), np.asarray(non_mated)
    there = [int((~np.isnan(side)).sum()) for side in (non_mated, mated)]
    failures = mated.size + non_mated.size - sum(there)
    matches, misses = int((non_mated >= threshold).sum()), int((mated < threshold).sum())
    return Errors(matches, there[0], misses, there[1], failures)


def auc(mated: Any, non_mated: Any) -> float:
    return sort_scores(mated, non_mated).roc.auc()


def eer_rocch(mated: Any, non_mated: Any) -> float:
    return sort_scores(mated, non_mated).roc.eer_rocch().rate


def eer_step(mated: Any, non_mated: Any) -> StepEqualErrorRate:
    return sort_scores(mated, non_mated).roc.eer_step()


def search(scores: Any, probes: Any, gallery: Any) -> Searches:
    """Reduce a matrix of scores, a row a probe and a column an entry, search by search."""
    best, mates, ranks = [], [], []
    for row, probe in zip(np.asarray(scores, float).tolist(), probes, strict=True):
        own = [score for score, name in zip(row, gallery, strict=True) if name == probe]
        others = [score for score, name in zip(row, gallery, strict=True) if name != probe]
        best.append(max(others, default=-np.inf))
        mates.append(max(own, default=np.nan))
        ranks.append(1 + sum(score >= mates[-1] for score in others) if own else 0)
    return Searches(np.array(best), np.array(mates), np.array(ranks), len(gallery))
