"""Rows of all pairs: overall and by group, each figure with its counts and interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from facerec.report import words
from facerec.report.estimate import Estimate
from facerec.report.tidy import ALIKE, OF_PAIRS, figure_row, tidy
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_points import OperatingPoint
from facerec.verification.scoring.results import AllPairs, ErrorTable

if TYPE_CHECKING:
    import pandas as pd

EVERYBODY = "everybody"


def all_pairs_rows(
    result: AllPairs, groups: Mapping[str, NDArray[np.intp]] | None = None
) -> pd.DataFrame:
    """Return TPR, realised FPR and threshold at every target, and errors at given thresholds.

    With groups, each the places of its subjects, there are FMR and FNMR within and between them
    too, at every target that can be resolved. Of the FNMR each person weighs alike, of "FNMR of
    pairs" and the TPR each mated pair, unless the name says otherwise. Intervals allow for subjects
    that pairs share; thresholds are taken as known.
    """
    given = len(result.tables) - len(result.points)
    rows: list[dict[str, object]] = []
    for point, table in zip(result.points, result.tables[given:], strict=True):
        rows += _at_point(point, table)
        if point.resolvable:
            rows += _by_group(groups or {}, table, "FPR", point.target)
    for table in result.tables[:given]:
        target = words.threshold(table.threshold)
        shares = {"FMR": table.fmr_share(), "FNMR": table.fnmr_share(alike=True)}
        for kind, share in {**shares, OF_PAIRS: table.fnmr_share()}.items():
            found = Estimate.of_share(share)
            rows.append(figure_row(f"{kind}@threshold", found, target, group=EVERYBODY))
        rows += _by_group(groups or {}, table, "threshold", target)
    return tidy(rows)


def _at_point(point: OperatingPoint, table: ErrorTable) -> Iterator[dict[str, object]]:
    if not point.resolvable:
        why = f"{point.non_mated:,} non-mated pairs show no FPR below {1 / point.non_mated:.2g}"
        estimate = Estimate(None, remark=why, unresolved=True)
        yield figure_row("TPR@FPR", estimate, point.target, group=EVERYBODY)
        return
    few = "" if point.reliable else "few errors"
    beyond = words.threshold_remark(point.threshold)
    for figure, estimate in (
        ("TPR@FPR", _found(table.fnmr_share(), few)),
        (f"TPR@FPR{ALIKE}", _found(table.fnmr_share(alike=True), few)),
        ("realised FPR", Estimate.of_share(table.fmr_share(), few)),
        ("threshold", Estimate(point.threshold, remark=beyond, unit="score")),
    ):
        yield figure_row(figure, estimate, point.target, group=EVERYBODY)


def _by_group(
    groups: Mapping[str, NDArray[np.intp]], table: ErrorTable, at: str, target: str
) -> Iterator[dict[str, object]]:
    """Yield FMR and FNMR within and between groups."""
    for name, other in combinations_with_replacement(groups, 2):
        within, pair = name == other, name if name == other else f"{name} × {other}"
        shares = {"FMR": table.fmr_among(groups[name], None if within else groups[other])}
        if within:
            shares["FNMR"] = table.fnmr_among(groups[name], alike=True)
            shares[OF_PAIRS] = table.fnmr_among(groups[name])
        for kind, share in shares.items():
            none = Estimate(None, None, 0, 0, "no pairs")
            estimate = none if share is None else Estimate.of_share(share)
            yield figure_row(f"{kind}@{at}", estimate, target, group=pair)


def _found(share: ClusteredShare, remark: str) -> Estimate:
    """Return the TPR that an FNMR leaves."""
    own, total = share.interval(), share.comparisons
    interval = Interval(1 - own.high, 1 - own.low, 0.95, own.method, own.assumption, own.effective)
    return Estimate(1 - share.value, interval, total - share.events, total, remark)
