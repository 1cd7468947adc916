"""The one table of an audit: a figure a row, from which page, terminal, files and card are made."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pandas as pd

from facerec.report import words
from facerec.report.estimate import Estimate
from facerec.report.tidy import COLUMNS as FIGURE
from facerec.report.tidy import figure_row
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_points import parse_rate

COLUMNS = ("grouping", "group", *FIGURE)
"""``grouping`` is an attribute or an intersection, empty for figures of everybody; ``group`` is one
of its groups, or several that are compared, empty for a figure of all of them together; ``target``
the nominal rate of a threshold, or the one that was given. ``low`` and ``high`` are a 95 %
interval; ``numerator`` and ``denominator`` what was counted. What has no value or no interval has a
``remark`` saying why."""

# Figures of norms.
NORM, IMAGE_NORM = "mean norm of subjects", "mean norm of images"
BETWEEN, WITHIN = "SD of norms between subjects", "SD of norms within subjects"
ETA2, WELCH, DETECTABLE = "η² of norms", "Welch's F of norms", "detectable η² of norms"
DELTA = "Cliff's δ of norms"
# Figures of norms and errors.
TENTH, DISCARD = "FNMR in norm tenth {}", "FNMR without the lowest {} of norms"
AREA = "area under error versus discard to 20 %"
# What groups consist of.
SUBJECTS, IMAGES, FAILED = "subjects", "images", "not acquired"
REFUSED = "refused by the face score"
# Figures of error rates.
THRESHOLD, BETWEEN_GROUPS = "threshold", "FMR between groups"
FPIR_THRESHOLD, RANK_1 = "FPIR threshold", "rank-1 miss rate"
NOT_ENROLLED = "not enrolled"

Row = dict[str, object]
_GIVEN = "threshold "


def given(threshold: float) -> str:
    """Return what stands for the target of a threshold that no rate gave."""
    return f"{_GIVEN}{words.threshold(threshold)}"


def nominal(target: str) -> Fraction | None:
    """Return the rate of a target; None of a threshold that was given."""
    return None if target.startswith(_GIVEN) else parse_rate(target)


def at(target: str) -> str:
    """Say which threshold a target stands for."""
    return target if target.startswith(_GIVEN) else f"threshold for {target}"


def p_of(figure: str) -> str:
    """Return the name of the p-value of a figure."""
    return f"p of {figure}"


def ratio_of(figure: str, group: str) -> str:
    """Return the name of the ratio of a figure to that of another group."""
    return f"{figure} over that of {group}"


def row(grouping: str, figure: str, found: Estimate, group: str = "", target: str = "") -> Row:
    """Return one row of the table."""
    return figure_row(figure, found, target, grouping=grouping, group=group)


def rate(share: ClusteredShare | None, none: str = "no comparison") -> Estimate:
    """Return a rate with the interval that its sums by subject give; ``none`` says it has none."""
    if share is None:
        return Estimate(None, events=0, total=0, remark=none)
    return Estimate(share.value, share.interval(), share.events, share.comparisons)


def estimate(row: Any) -> Estimate:
    """Return what a row holds as an estimate."""

    def known(value: float) -> float | None:
        return None if pd.isna(value) else float(value)

    low, high = known(row.low), known(row.high)
    interval = None if low is None or high is None else Interval(low, high)
    events, total = (
        None if pd.isna(count) else int(count) for count in (row.numerator, row.denominator)
    )
    return Estimate(known(row.value), interval, events, total, str(row.remark))


def select(rows: pd.DataFrame, figure: str, **where: str) -> pd.DataFrame:
    """Return the rows of a figure, and of a grouping, group or target where they are named."""
    for column, value in {"figure": figure, **where}.items():
        rows = rows[rows[column] == value]
    return rows


def value_of(rows: pd.DataFrame, figure: str, **where: str) -> float | None:
    """Return the value of a figure; None where there is none."""
    found = select(rows, figure, **where)["value"].dropna()
    return None if found.empty else float(found.iloc[0])
