"""Least costs of errors: of decisions (DCF), and of log-likelihood ratios (Cllr)."""

from __future__ import annotations

import math

import numpy as np

from facerec.statistics.curves import RocCurve


def min_dcf(roc: RocCurve, prior: float) -> tuple[float, int, int]:
    """Return the least detection cost over all thresholds (NIST's minDCF), and the errors there.

    The cost is π·FNMR + (1 − π)·FMR, over that of accepting or rejecting everything, whichever is
    less: 1 is useless. Errors are false non-matches and false matches; of equally good thresholds
    they are those of the highest.

    Args:
        roc: of all scores.
        prior: π, the probability that a comparison is mated, between 0 and 1.
    """
    costs = prior * roc.fnmr + (1 - prior) * roc.fpr
    best = int(np.argmin(costs))
    misses, false_matches = roc.mated - int(roc.true_accepts[best]), int(roc.false_accepts[best])
    raw = prior * misses / roc.mated + (1 - prior) * false_matches / roc.non_mated
    return raw / min(prior, 1 - prior), misses, false_matches


def min_cllr(roc: RocCurve, ends: tuple[float, float] = (0.0, math.inf)) -> float:
    """Return the cost of log-likelihood ratios after the best monotone calibration, in bits.

    Cllr is ½ [mean log₂(1 + e^−mated) + mean log₂(1 + e^non-mated)] (Brümmer and du Preez, CSL 20,
    2006): 0 is perfect, 1 is what the constant 0 costs. That calibration is PAV with tied scores
    pooled, less the prior odds: on a segment of the ROC's hull the likelihood ratio is the slope
    (Brümmer 2010).

    Args:
        roc: of all scores.
        ends: between which likelihood ratios must lie.
    """
    hull = roc.hull()
    same, different = np.diff(hull.tpr), np.diff(hull.fpr)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.clip(same / different, *ends)
        misses, false_alarms = same * np.log1p(1 / ratio), different * np.log1p(ratio)
    # Without ends a block of one class is calibrated to certainty and costs nothing: 0 · ∞.
    total = misses[same > 0].sum() + false_alarms[different > 0].sum()
    return float(total) / (2 * math.log(2))
