"""Thresholds that a verification found, as rows of a bundle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from facerec.verification import VerificationResult

Threshold = dict[str, Any]
"""One threshold as JSON types: bench, fpr (the target), threshold, fpr_realised and tpr with their
intervals and counts, flip, score."""


def result_thresholds(result: VerificationResult) -> list[Threshold]:
    """Return the thresholds that a result found."""
    found, rows = result.to_json(), []
    for point in found["tpr_at_fpr"]:
        threshold = point["threshold"]
        # A threshold that is not finite is stored as text or null.
        if not (point["resolvable"] and isinstance(threshold, float) and math.isfinite(threshold)):
            continue
        ends = point["threshold_interval"]
        limits = None if ends is None else [ends["low"], ends["high"]]
        # One that is open at an end is stored as text.
        known = limits is not None and all(isinstance(end, float) for end in limits)
        row = {
            "bench": found["bench"],
            "fpr": point["target"],
            "threshold": threshold,
            "threshold_interval": limits if known else None,
            "fpr_realised": point["fpr_realised"],
            "fpr_interval": _limits(point["fpr_interval"]),
            "false_accepts": [point["false_accepts"], point["negatives"]],
            "tpr": point["tpr"],
            "tpr_interval": _limits(point["tpr_interval"]),
            "true_accepts": [point["true_accepts"], point["positives"]],
            "reliable": point["reliable"],
            "flip": found["flip"],
            "score": found["score"],
        }
        rows.append(row)
    return rows


def _limits(interval: Mapping[str, Any]) -> list[Any]:
    return [interval["low"], interval["high"]]
