"""The comparison of all pairs, from embeddings to results."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike

from facerec.defaults import ALL_PAIRS_TARGETS
from facerec.devices import choose_device
from facerec.errors import MetricError
from facerec.progress import Progress
from facerec.statistics.operating_points import Rate, parse_rate
from facerec.verification.scoring.bins import float32_at_least
from facerec.verification.scoring.mated import count_mated
from facerec.verification.scoring.non_mated import FalseMatches, count_non_mated
from facerec.verification.scoring.results import (
    AllPairs,
    ErrorTable,
    symmetric,
)
from facerec.verification.scoring.sample import Sample
from facerec.verification.scoring.search import Search
from facerec.verification.scoring.tiles import Tiles

MATED_LIMIT = 2**25
"""All mated scores are kept up to this number."""


def score_all_pairs(
    vectors: ArrayLike,
    subjects: ArrayLike,
    *,
    fpr: Sequence[Rate] = ALL_PAIRS_TARGETS,
    thresholds: Sequence[float] = (),
    groupings: Sequence[ArrayLike] = (),
    count_within: bool = False,
    tables_at_points: bool = True,
    device: str | torch.device = "cpu",
    tile: int | None = None,
    pair_limit: int = 2**25,
    progress: Progress | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> AllPairs:
    """Compare every image with every other once, N(N − 1)/2 pairs.

    Pairs of one subject are mated, all others non-mated; no image is compared with itself. On the
    CPU torch's number of threads work on different tiles; under torch.distributed every rank calls
    this with the same arguments, computes its share of the tiles, and gets the whole result.

    All this costs one pass over all tiles (more if a guess fails), and one over the few tiles with
    mated pairs.

    Args:
        vectors: raw embeddings, ``(N, D)``. They are normalised in float64 and scored in float32;
            scores that rounding carries beyond ±1 count as ±1.
        subjects: of the images, ``(N,)``: numbers or text.
        fpr: targets; text is taken exactly.
        thresholds: at which errors are counted.
        groupings: the group of each image, ``(N,)``, for counts between groups, in one grouping;
            or several, each with whole numbers for groups, negative ones for none; see
            `AllPairs.by`.
        count_within: count false matches by pair of subjects within groups, however many.
        tables_at_points: count errors by subject and group at the operating points too.
        device: where scores are computed, see `choose_device`.
        tile: rows and columns of a tile, at most; by default 1024 on the CPU, 8192 elsewhere.
            Scores may differ in the last bit between tile sizes and devices.
        pair_limit: count false matches by pair of subjects up to this number.
        progress: see `facerec.progress.Progress`.
        process_group: the ranks that share the work; by default all.

    Raises:
        MetricError: shapes that do not fit, a target that is no rate, a NaN threshold, no mated
            or no non-mated pair of usable images, or groups to count within that are not
            there or share a subject.
        DeviceError: the device is not there.
    """
    for target in fpr:
        parse_rate(target)
    if any(math.isnan(threshold) for threshold in thresholds):
        raise MetricError("a threshold is NaN; give numbers between -1 and 1")
    sample = Sample(vectors, subjects, groupings, by_group=count_within)
    chosen = choose_device(device)
    size = tile or (1024 if chosen.type == "cpu" else 8192)
    tiles = Tiles(sample, chosen, size, process_group, progress)

    everyone = Search(tiles, sample.non_mated, fpr)
    given = [float32_at_least(threshold) for threshold in thresholds]
    sought = everyone.allowed if tables_at_points else []
    histogram, false = count_non_mated(tiles, sample, given, sought, everyone, pair_limit)
    edges = [*given, *(everyone.cut(count) for count in everyone.allowed)]
    mated = count_mated(tiles, sample, np.array(edges, np.float32), MATED_LIMIT)
    told = [everyone.threshold(count, mated.mated_scores) for count in everyone.allowed]
    targets = [None] * len(given) + [str(target) for target in fpr]
    at_points = slice(len(given), len(given) + len(fpr))

    def table(index: int, counts: FalseMatches) -> ErrorTable:
        missed, grouped = mated.missed[index], sample.groups is not None
        return ErrorTable(
            threshold=float([*thresholds, *told][index]),
            target=targets[index],
            false_matches=counts.count,
            non_mated=sample.non_mated,
            false_non_matches=int(missed.sum()),
            mated=sample.mated,
            images=sample.images,
            missed=missed,
            involved_by_kind=counts.involved.reshape(sample.kinds, -1),
            by_pair=counts.by_pair,
            group_false_matches=symmetric(counts.by_group) if grouped else None,
            group_false_non_matches=symmetric(mated.by_group[index]) if grouped else None,
            within=counts.within if sample.by_group else None,
        )

    return AllPairs(
        images=len(sample.subject),
        failures=sample.failures,
        lost_mated=sample.lost_mated,
        lost_non_mated=sample.lost_non_mated,
        mated=sample.mated,
        non_mated=sample.non_mated,
        subjects=sample.labels,
        images_per_subject=sample.images,
        points=everyone.points(
            fpr, mated.missed[at_points].sum(axis=1), sample.mated, mated.mated_scores
        ),
        tables=tuple(table(index, counts) for index, counts in enumerate(false)),
        groups=sample.groups,
        mated_scores=mated.mated_scores,
        mated_histogram=mated.histogram,
        non_mated_histogram=histogram if fpr else None,
        groupings=sample.names,
        cells=sample.cells,
    )
