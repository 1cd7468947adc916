"""Thresholds that a verification found, as those of a model's calibration."""

from __future__ import annotations

import numpy as np

from facerec.embedding.calibration import Threshold
from facerec.verification import VerificationResult


def result_thresholds(result: VerificationResult) -> list[Threshold]:
    """Return the thresholds that a result found."""
    found = []
    for each in result.points:
        fpr, tpr, ends = each.fpr.interval, each.tpr.interval, each.threshold.interval
        if not each.point.resolvable or not np.isfinite(each.point.threshold):
            continue
        assert fpr is not None and tpr is not None  # of a target that is resolvable
        limits = None if ends is None else (ends.low, ends.high)
        if limits is not None and not np.isfinite(limits).all():  # open at an end
            limits = None
        found.append(
            Threshold.of(
                each.point,
                result.name,
                bool(result.flip),
                (fpr.low, fpr.high),
                (tpr.low, tpr.high),
                threshold_interval=limits,
                score=result.score,
            )
        )
    return found
