"""Rows of all pairs: overall and by group, each figure with its counts and interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from facerec.report import words
from facerec.report.estimate import Estimate
from facerec.report.tidy import OF_PAIRS, figure_row, tidy
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
    rows: list[dict[str, object]] = []
    for table in sorted(result.tables, key=lambda table: table.target is None):
        if table.target is not None:
            rows += (figure_row(*each, group=EVERYBODY) for each in table.estimate().figures())
            if table.point.resolvable:
                rows += _by_group(groups or {}, table, "FPR", table.target)
            continue
        target = words.threshold(table.threshold)
        shares = {"FMR": table.fmr_share(), "FNMR": table.fnmr_share(alike=True)}
        for kind, share in {**shares, OF_PAIRS: table.fnmr_share()}.items():
            found = Estimate.of_share(share)
            rows.append(figure_row(f"{kind}@threshold", found, target, group=EVERYBODY))
        rows += _by_group(groups or {}, table, "threshold", target)
    return tidy(rows)


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
