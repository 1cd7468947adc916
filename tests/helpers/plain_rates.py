"""Figures of scores, and searches computed the plain way, to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

from facerec.statistics.identification import Searches
from facerec.statistics.rates import sort_scores


def auc(mated: Any, non_mated: Any) -> float:
    return sort_scores(mated, non_mated).roc.auc()


def eer_rocch(mated: Any, non_mated: Any) -> float:
    return sort_scores(mated, non_mated).roc.eer_rocch().rate


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
