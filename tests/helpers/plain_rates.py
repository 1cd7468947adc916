"""Figures of scores, and searches computed the plain way, to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

from facerec.statistics.identification import Searches
from facerec.statistics.operating_points import OperatingPoint
from facerec.statistics.rates import roc_curve


def auc(mated: Any, non_mated: Any) -> float:
    return roc_curve(mated, non_mated).auc()


def eer_rocch(mated: Any, non_mated: Any) -> float:
    return roc_curve(mated, non_mated).eer_rocch()[0]


def tpr_at_fpr(mated: Any, non_mated: Any, fpr: Any) -> OperatingPoint:
    return roc_curve(mated, non_mated).tpr_at_fpr(fpr)


def search(scores: Any, probes: Any, gallery: Any) -> Searches:
    """Reduce a matrix of scores, a row a probe and a column an entry, search by search."""
    best, mates, ranks = [], [], []
    for row, probe in zip(np.asarray(scores, float).tolist(), probes, strict=True):
        own = [score for score, name in zip(row, gallery, strict=True) if name == probe]
        others = [score for score, name in zip(row, gallery, strict=True) if name != probe]
        best.append(max(others, default=-np.inf))
        mates.append(max(own, default=np.nan))
        ranks.append(1 + sum(score >= mates[-1] for score in others) if own else 0)
    return Searches(np.array(best), np.array(mates), np.array(ranks))
