"""Errors of a verification as the mated pairs of lowest quality are left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from facerec.base.errors import MetricError
from facerec.records.quality import read_quality
from facerec.report.estimate import Estimate
from facerec.statistics.discard import DISCARD_SHARES, PARTIAL_AREA, error_versus_discard
from facerec.verification.result import VerificationResult


def discard_by(result: VerificationResult, source: str) -> VerificationResult:
    """Return a result with the FNMR as mated pairs of the lowest raw norm or quality are left out.

    Both are of the mated pairs whose quality is known, at the threshold of
    `VerificationResult.headline_point`, so that they begin at one FNMR. The quality of a pair is
    the lesser of its two.

    Args:
        result: of a bench.
        source: of the quality, see `facerec.records.quality.read_quality`.

    Raises:
        DatasetError: the table is wrong or of other images.
        MetricError: no FPR with a threshold, or no mated pair with a quality.
    """
    assert result.norms is not None and result.items is not None
    quality, point = read_quality(source, result.items), result.headline_point
    there = ~np.isnan(result.scores)
    pairs, scores = result.pairs[there], result.scores[there]
    by = {"raw norm": result.norms, quality.column: quality.values}
    lesser = {name: np.minimum(of[pairs.first], of[pairs.second]) for name, of in by.items()}
    used = pairs.issame & ~np.isnan(lesser[quality.column])
    if point is None or not used.any():
        what = "FPR asked for has a threshold" if point is None else "mated pair has a quality"
        raise MetricError(f"{result.name}: no {what}, so --quality tells nothing; leave it out")
    comparisons, _ = pairs.comparisons(scores)
    errors = scores < np.float64(point.threshold)  # a float32 score is widened
    found = dict(result.metrics)
    for name, values in lesser.items():
        curve = error_versus_discard(errors[used], values[used])
        for share in DISCARD_SHARES:
            kept = comparisons.share(errors, used & (values >= curve.cut(share)))
            figure = f"FNMR without the lowest {100 * float(share):.0f} % of {name}"
            found[figure] = Estimate.of_share(kept)
        area = Estimate(curve.area(PARTIAL_AREA), unit="area")
        found[f"area under error versus discard to 20 %, {name}"] = area
    at = f"error versus discard is at the threshold for FPR {point.target}"
    return replace(result, metrics=found, notes=(*result.notes, f"{quality.note}; {at}"))
