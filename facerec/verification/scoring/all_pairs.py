"""The comparison of all pairs, from embeddings to results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from facerec.base.defaults import ALL_PAIRS_TARGETS
from facerec.base.devices import choose_device
from facerec.base.progress import Progress
from facerec.cosines.counts import Sample, count_mated, count_non_mated, float32_at_least
from facerec.statistics.operating_points import Rate, allowed_accepts
from facerec.verification.scoring.results import AllPairs, ErrorTable

MOST_BY_PAIR = 2**28
"""False matches that are counted by pair of subjects for figures by group, at most: some GB."""


def score_all_pairs(
    vectors: ArrayLike,
    subjects: ArrayLike,
    *,
    fpr: Sequence[Rate] = ALL_PAIRS_TARGETS,
    thresholds: Sequence[float] = (),
    device: str | torch.device = "cpu",
    tile: int | None = None,
    pair_limit: int = 2**25,
    progress: Progress | None = None,
) -> AllPairs:
    """Compare every image with every other once, N(N − 1)/2 pairs.

    Pairs of one subject are mated, all others non-mated; no image is compared with itself. On the
    CPU torch's number of threads work on different tiles. All this costs one pass over all tiles
    (more if a guess fails), and one over the few tiles with mated pairs.

    Args:
        vectors: raw embeddings, ``(N, D)``. They are normalised in float64 and scored in float32;
            scores that rounding carries beyond ±1 count as ±1.
        subjects: of the images, ``(N,)``: numbers or text.
        fpr: targets; text is taken exactly.
        thresholds: at which errors are counted.
        device: where scores are computed, see `choose_device`.
        tile: rows and columns of a tile, at most; by default 1024 on the CPU, 8192 elsewhere.
            Scores may differ in the last bit between tile sizes and devices.
        pair_limit: count false matches by pair of subjects up to this number.
        progress: see `facerec.base.progress.Progress`.

    Raises:
        MetricError: shapes that do not fit, a target that is no rate, no mated
            or no non-mated pair of usable images, or too many pairs about a threshold.
        DeviceError: the device is not there.
    """
    sample = Sample(vectors, subjects, choose_device(device), tile, progress)
    allowed = [allowed_accepts(target, sample.non_mated) for target in fpr]
    given = [float32_at_least(threshold) for threshold in thresholds]
    false = count_non_mated(sample, given, allowed, pair_limit)
    cuts = np.array([counts.cut for counts in false], np.float32)
    scores, missed = count_mated(sample, cuts)
    told = [*thresholds, *(counts.threshold(scores) for counts in false[len(given) :])]
    tables = tuple(
        ErrorTable(
            threshold=float(told[line]),
            target=str(fpr[line - len(given)]) if line >= len(given) else None,
            false_matches=counts.count,
            images=sample.images,
            missed=missed[line],
            involved=counts.involved,
            by_pair=counts.by_pair,
        )
        for line, counts in enumerate(false)
    )
    return AllPairs(
        images=len(sample.subject),
        failures=sample.failures,
        lost_mated=sample.lost[0],
        lost_non_mated=sample.lost[1],
        mated=sample.mated,
        non_mated=sample.non_mated,
        subjects=sample.labels,
        tables=tables,
        mated_scores=scores,
    )
