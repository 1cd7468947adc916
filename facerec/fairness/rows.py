"""The one table of an audit: a figure a row, from which page, terminal, files and card are made."""

from __future__ import annotations

from typing import Any

import pandas as pd

from facerec.report.estimate import Estimate
from facerec.report.tidy import tidy

COLUMNS = (
    "grouping", "group", "figure", "target", "value", "low", "high", "numerator", "denominator",
    "remark",
)  # fmt: skip
"""``grouping`` is an attribute or an intersection, empty for figures of everybody; ``group`` is one
of its groups, or several that are compared, empty for a figure of all of them together; ``target``
the nominal rate of a threshold. ``low`` and ``high`` are a 95 % interval; ``numerator`` and
``denominator`` what was counted. What has no value or no interval has a ``remark`` saying why."""

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
# Figures of error rates.
THRESHOLD, BETWEEN_GROUPS = "threshold", "FMR between groups"
FPIR_THRESHOLD, RANK_1 = "FPIR threshold", "rank-1 miss rate"
NOT_ENROLLED = "not enrolled"


def p_of(figure: str) -> str:
    """Return the name of the p-value of a figure."""
    return f"p of {figure}"


def ratio_of(figure: str, group: str) -> str:
    """Return the name of the ratio of a figure to that of another group."""
    return f"{figure} over that of {group}"


class Rows:
    """Collects figures."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(
        self, grouping: str, figure: str, estimate: Estimate, group: str = "", target: str = ""
    ) -> None:
        """Add a figure."""
        values = (
            grouping, group, figure, target, estimate.value, estimate.low, estimate.high,
            estimate.events, estimate.total, estimate.remark,
        )  # fmt: skip
        self._rows.append(dict(zip(COLUMNS, values, strict=True)))

    def frame(self) -> pd.DataFrame:
        """Return the table; numbers are missing where there are none."""
        return tidy(self._rows)


def select(rows: pd.DataFrame, figure: str, **where: str) -> pd.DataFrame:
    """Return the rows of a figure, and of a grouping, group or target where they are named."""
    for column, value in {"figure": figure, **where}.items():
        rows = rows[rows[column] == value]
    return rows


def number(rows: pd.DataFrame, figure: str, **where: str) -> float | None:
    """Return the value of a figure; None where there is none."""
    found = select(rows, figure, **where)["value"].dropna()
    return None if found.empty else float(found.iloc[0])
