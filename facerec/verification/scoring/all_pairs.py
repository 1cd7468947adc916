"""The comparison of all pairs, from embeddings to results."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray

from facerec.devices import choose_device
from facerec.errors import MetricError
from facerec.statistics.operating_points import Rate, parse_rate
from facerec.verification.scoring.bins import LOWEST, float32_at_least
from facerec.verification.scoring.mated import count_mated
from facerec.verification.scoring.non_mated import FalseMatches, count_non_mated
from facerec.verification.scoring.people import People
from facerec.verification.scoring.results import AllPairs, ErrorTable, GroupAlone
from facerec.verification.scoring.search import Search, prepare_searches
from facerec.verification.scoring.tiles import EVERYONE, Progress, Tiles

FPR_TARGETS = ("1e-1", "1e-2", "1e-3", "1e-4", "1e-5", "1e-6")


def score_all_pairs(
    vectors: ArrayLike,
    subjects: ArrayLike,
    *,
    fpr: Sequence[Rate] = FPR_TARGETS,
    thresholds: Sequence[float] = (),
    groups: Sequence[str] | NDArray[np.str_] | None = None,
    group_fpr: Sequence[Rate] = (),
    tables_at_points: bool = True,
    device: str | torch.device = "cpu",
    tile: int | None = None,
    genuine_limit: int = 2**25,
    identity_limit: int = 2**25,
    progress: Progress | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> AllPairs:
    """Compare every image with every other once, N(N − 1)/2 pairs.

    Pairs of one identity are mated, all others non-mated; no image is compared with itself. On the
    CPU torch's number of threads work on different tiles; under torch.distributed every rank calls
    this with the same arguments, computes its share of the tiles, and gets the whole result.

    All this costs one pass over all tiles (more if a guess fails), and one over the few tiles with
    mated pairs.

    Args:
        vectors: raw embeddings, ``(N, D)``. They are normalised in float64 and scored in float32;
            scores that rounding carries beyond ±1 count as ±1.
        subjects: identity of each image, ``(N,)``: numbers or text.
        fpr: targets; text is taken exactly.
        thresholds: at which errors are counted.
        groups: group of each image, ``(N,)`` text, for counts between groups.
        group_fpr: targets at which each group is looked at alone, among its own images.
        tables_at_points: count errors by identity and group at the operating points too.
        device: where scores are computed, see `choose_device`.
        tile: rows and columns of a tile, at most; by default 1024 on the CPU, 8192 elsewhere.
            Scores may differ in the last bit between tile sizes and devices.
        genuine_limit: keep all mated scores up to this number.
        identity_limit: count false matches by pair of identities up to this number.
        progress: see `Progress`.
        process_group: the ranks that share the work; by default all.

    Raises:
        MetricError: shapes that do not fit, a target that is no rate, a NaN threshold, no mated
            or no non-mated pair of usable images, or groups to be looked at alone that are not
            there or share an identity.
        DeviceError: the device is not there.
    """
    for target in (*fpr, *group_fpr):
        parse_rate(target)
    if any(math.isnan(threshold) for threshold in thresholds):
        raise MetricError("a threshold is NaN; give numbers between -1 and 1")
    people = People(vectors, subjects, groups, by_group=bool(group_fpr))
    chosen = choose_device(device)
    size = tile or (1024 if chosen.type == "cpu" else 8192)
    tiles = Tiles(people, chosen, size, process_group, progress)

    searches = prepare_searches(people, tiles, fpr, group_fpr)
    everyone = searches[EVERYONE]
    given = [float32_at_least(threshold) for threshold in thresholds]
    sought = everyone.allowed if tables_at_points else []
    false = count_non_mated(tiles, people, given, sought, searches, identity_limit)

    cuts = [everyone.cut(count) for count in everyone.allowed]
    edges = np.full((len(given) + len(cuts) + len(group_fpr), people.rows), LOWEST)
    edges[: len(given) + len(cuts)] = np.array([*given, *cuts])[:, None]
    for row in searches.keys() - {EVERYONE}:
        search = searches[row]
        edges[len(given) + len(cuts) :, row] = [search.cut(count) for count in search.allowed]
    mated = count_mated(tiles, people, edges, genuine_limit)
    targets = [None] * len(given) + [str(target) for target in fpr]
    at_points = slice(len(given), len(given) + len(fpr))
    at_own = slice(at_points.stop, None)
    histogram = false.histogram.sum(axis=0)
    return AllPairs(
        images=len(people.identity),
        failures=people.failures,
        lost_mated=people.lost_mated,
        lost_non_mated=people.lost_non_mated,
        mated=people.mated,
        non_mated=people.non_mated,
        subjects=people.labels,
        images_per_subject=people.images,
        points=everyone.points(fpr, mated.missed[at_points].sum(axis=1), people.mated),
        tables=tuple(
            _table(
                people,
                float([*given, *cuts][place]),
                targets[place],
                table,
                mated.missed[place],
                mated.by_group[place],
            )
            for place, table in enumerate(false.tables)
        ),
        groups=people.groups,
        alone=tuple(
            _alone(
                people,
                row,
                searches.get(row),
                group_fpr,
                mated.missed[at_own],
                (mated.histogram[row], false.histogram[row]),
            )
            for row in range(people.rows if group_fpr else 0)
        ),
        genuine=mated.genuine,
        genuine_histogram=mated.histogram.sum(axis=0),
        impostor_histogram=histogram if fpr else None,
    )


def _table(
    people: People,
    threshold: float,
    target: str | None,
    false: FalseMatches,
    missed: NDArray[np.int64],
    missed_by_group: NDArray[np.int64],
) -> ErrorTable:
    """Put the errors at one threshold together."""
    grouped = people.groups is not None
    return ErrorTable(
        threshold=threshold,
        target=target,
        false_matches=false.count,
        non_mated=people.non_mated,
        false_non_matches=int(missed.sum()),
        mated=people.mated,
        images=people.images,
        missed=missed,
        involved=false.involved,
        identities=false.identities,
        group_false_matches=_symmetric(false.by_group) if grouped else None,
        group_false_non_matches=_symmetric(missed_by_group) if grouped else None,
        within=false.within if people.by_group else None,
    )


def _alone(
    people: People,
    row: int,
    search: Search | None,
    fpr: Sequence[Rate],
    missed: NDArray[np.int64],
    histograms: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> GroupAlone | None:
    """Put together what one group alone gives.

    Args:
        people: all.
        row: number of the group.
        search: its operating points; None if it lacks mated or non-mated pairs.
        fpr: their targets.
        missed: mated scores below its thresholds by identity, ``(T, G)``.
        histograms: of mated and non-mated scores.
    """
    if search is None:
        return None
    groups = people.groups
    assert groups is not None and groups.of_identity is not None  # as was made sure
    members = groups.of_identity == row
    own = missed[:, members]
    return GroupAlone(
        points=search.points(fpr, own.sum(axis=1), int(groups.mated[row, row])),
        images=people.images[members],
        missed=own,
        genuine_histogram=histograms[0],
        impostor_histogram=histograms[1],
    )


def _symmetric(ordered: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return counts of unordered pairs of groups from those by (first, second), ``(D²,)``."""
    square = ordered.reshape(math.isqrt(ordered.size), -1)
    both = square + square.T
    np.fill_diagonal(both, square.diagonal())
    return both
