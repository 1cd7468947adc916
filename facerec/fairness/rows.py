"""The one table of an audit: a figure a row, from which page, terminal, files and card are made."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import pandas as pd

from facerec.report.estimate import Estimate
from facerec.report.tidy import COLUMNS as FIGURE
from facerec.report.tidy import Kind, estimate_of, figure_row, records
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.operating_points import parse_rate

COLUMNS = ("grouping", "group", "other", "model", "basis", *FIGURE)
"""``grouping`` is an attribute or an intersection, empty for figures of everybody; ``group`` one of
its groups, empty for a figure of all of them together, and ``other`` the one that it is held
against; ``model`` is empty but in a comparison with a baseline; ``target`` is the nominal rate of a
threshold and ``basis`` whose searches it was set on, or `GIVEN` where ``target`` is the threshold
itself, or `NORMS` or `QUALITY` where it is a tenth of these or a share of the lowest. What has no
value or no interval has a ``remark`` saying why."""

GIVEN, NORMS, QUALITY = "given", "norms", "quality"
BASELINE, NEW, CHANGE = "baseline", "new", "new − baseline"
"""Models of a comparison, and their difference."""

PLACE = ["figure", "target", "group", "other"]
"""Columns that tell one figure of a model from its others."""

# Figures of norms.
NORM = "mean norm of subjects"
BETWEEN, WITHIN = "SD of norms between subjects", "SD of norms within subjects"
ETA2, WELCH, DETECTABLE = "η² of norms", "Welch's F of norms", "detectable η² of norms"
DELTA = "Cliff's δ of norms"
# Figures of norms, or quality, and errors: by tenth, and by the share of the lowest left out.
TENTHS = {of: f"FNMR in a tenth of {of}" for of in (NORMS, QUALITY)}
DISCARDS = {of: f"FNMR without the lowest {of}" for of in (NORMS, QUALITY)}
AREA = "area under error versus discard to 20 %"
# What groups consist of.
SUBJECTS, IMAGES, FAILED = "subjects", "images", "not acquired"
REFUSED = "refused by the face score"
# Figures of error rates.
THRESHOLD, BETWEEN_GROUPS = "threshold", "FMR between groups"
FPIR_THRESHOLD, RANK_1 = "FPIR threshold", "rank-1 miss rate"
NOT_ENROLLED = "not enrolled"

Row = dict[str, object]


class At(NamedTuple):
    """Where error rates are read: the target of a threshold and its basis, see `COLUMNS`."""

    target: str = ""
    basis: str = ""

    @property
    def nominal(self) -> Fraction | None:
        """The rate of the target; None of a threshold that was given."""
        return None if self.basis == GIVEN else parse_rate(self.target)

    @property
    def said(self) -> str:
        """Which threshold it stands for; empty for none."""
        if self.basis == GIVEN:
            return f"threshold {self.target}"
        return f"threshold for {' of '.join(filter(None, self))}" if self.target else ""


NOWHERE = At()


def row(
    grouping: str,
    figure: str,
    found: Estimate,
    group: str = "",
    at: At = NOWHERE,
    *,
    kind: Kind | None = None,
    other: str = "",
    model: str = "",
) -> Row:
    """Return one row of the table."""
    keys = {"grouping": grouping, "group": group, "other": other, "model": model}
    return figure_row(figure, found, at.target, kind=kind, **keys, basis=at.basis)


def p_row(grouping: str, figure: str, p: float, group: str = "", **more: Any) -> Row:
    """Return the row of the p-value of a figure."""
    return row(grouping, figure, Estimate(p, unit="number"), group, kind="p", **more)


def rate(share: ClusteredShare | None, none: str = "no comparison") -> Estimate:
    """Return a rate with the interval that its sums by subject give; ``none`` says it has none."""
    if share is None:
        return Estimate(None, events=0, total=0, remark=none)
    return Estimate.of_share(share)


def threshold(value: float, accepted: int, total: int, few: str, source: str = "") -> Estimate:
    """Return a threshold, or why it is none.

    Args:
        value: the score; what is not finite accepts everything or nothing.
        accepted: what reaches it of the non-mated scores that it was fixed on.
        total: these scores.
        few: says that they are too few for the target, else empty.
        source: where they come from.
    """
    remark, known = few or source, math.isfinite(value) and not few
    if not few and not known:
        accepts = "everything" if value == -math.inf else "nothing"
        remark = "; ".join(filter(None, (f"it accepts {accepts}", source)))
    how: dict[str, Any] = {"unit": "score", "unresolved": bool(few)}
    return Estimate(value if known else None, None, accepted, total, remark, **how)


def select(
    rows: pd.DataFrame, figure: str, kind: Kind | None = "value", at: At | None = None, **where: str
) -> pd.DataFrame:
    """Return the rows of a figure, and of a kind, grouping or threshold where they are named."""
    place = ({} if kind is None else {"kind": kind}) | ({} if at is None else at._asdict())
    for column, value in {"figure": figure, **place, **where}.items():
        rows = rows[rows[column] == value]
    return rows


def value_of(rows: pd.DataFrame, figure: str, kind: Kind = "value", **where: Any) -> float | None:
    """Return the value of a figure; None where there is none."""
    found = select(rows, figure, kind, **where)["value"].dropna()
    return None if found.empty else float(found.iloc[0])


def estimates(
    rows: pd.DataFrame, figure: str, kind: Kind = "value", **where: Any
) -> dict[str, Estimate]:
    """Return a figure by group, in the order of the rows; see `select`."""
    found = records(select(rows, figure, kind, **where))
    return {row["group"]: estimate_of(row) for row in found}


def places(rows: pd.DataFrame) -> list[At]:
    """Return where each row is read."""
    return [At(*each) for each in zip(rows["target"], rows["basis"], strict=True)]


def compared(row: Any) -> str:
    """Name the group of a row, and the one that it is held against."""
    sign = " over " if row["kind"] == "ratio" else " − "
    return sign.join(filter(None, (row["group"], row["other"])))
