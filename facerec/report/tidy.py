"""Rows of one tidy table, a figure each: what a row holds, and how it is shown wherever it stands.

A row has what the figure is of (keys such as ``bench`` or ``group``), then the columns of
`COLUMNS`. They say what it is, so that nobody has to take a name apart. Terminal, page, CSV, JSON,
Markdown and LaTeX are all made of these rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from facerec.report import words
from facerec.report.estimate import Estimate, Unit
from facerec.report.table import Cell, Table
from facerec.statistics.intervals import Bound, Interval

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
Kind = Literal["value", "change", "p", "ratio", "threshold", "size"]
"""``change`` is a difference between two models, ``ratio`` one between two groups."""

COLUMNS = (
    *("figure", "kind", "unit", "target", "value", "low", "high"),
    *("numerator", "denominator", "status", "remark"),
)
"""What every row has: the figure, and as what it is given (see `Kind`), in which unit; where it is
read, as at an FPR; its value and the limits of its 95 % interval, empty where there are none; what
was counted; whether there is a value to show (see `facerec.report.estimate`); and what a reader
must know of it."""

OF_PAIRS, ALIKE = "FNMR of pairs", ", people alike"
"""Of the FNMR each person weighs alike, of its first neighbour each mated pair; of the TPR each
pair, unless its name ends so."""

FORMS = {
    **dict.fromkeys(("area", "cost", "bits"), ".4f"),
    **{"norm": ".4g", "deviations": ".3f", "count": ",.0f"},
}
"""How values are written, by their units; with three digits in all others but shares."""


_KINDS: dict[Unit, Kind] = {"score": "threshold", "count": "size", "times": "ratio"}
"""What figures in these units are, unless something else is said."""


def figure_row(
    figure: str, estimate: Estimate, target: str = "", *, kind: Kind | None = None, **keys: object
) -> dict[str, object]:
    """Return one row of a tidy table.

    A value that the data cannot carry is empty, and the remark says why.

    Args:
        figure: its name.
        estimate: the figure.
        target: where it is read: an FPR, a threshold, a rank.
        kind: as what it is given; by default what its unit says.
        keys: what it is of, such as the bench.
    """
    remarks = [estimate.remark, _interval_remark(estimate.interval)]
    if estimate.interval is not None and estimate.interval.lacking:
        estimate = replace(estimate, interval=None)
    return {
        **keys,
        "figure": figure,
        "kind": kind or _KINDS.get(estimate.unit, "value"),
        "unit": estimate.unit,
        "target": target,
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "numerator": estimate.events,
        "denominator": estimate.total,
        "status": estimate.status,
        "remark": "; ".join(filter(None, remarks)),
    }


def tidy(rows: Iterable[Row]) -> pd.DataFrame:
    """Return rows of `figure_row` as a table with numbers for numbers."""
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    numbers = dict.fromkeys(("value", "low", "high"), "float64")
    return frame.astype({**numbers, **dict.fromkeys(("numerator", "denominator"), "Int64")})


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dictionaries; what is missing is None."""
    rows = frame.astype(object).where(frame.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


def rows_table(caption: str, frame: pd.DataFrame, remarks: Sequence[str] = ()) -> Table:
    """Return what people see of a tidy table; keys that do not differ are left out."""
    keys = [name for name in frame.columns if name not in COLUMNS and frame[name].nunique() > 1]
    rows: list[Sequence[Cell | str]] = []
    for row in records(frame):
        value, limits = said(row)
        counts = (str(row[name]) for name in ("numerator", "denominator") if row[name] is not None)
        name = Cell(shown_name(row), row["remark"])
        shown = value, limits or words.NOTHING, "/".join(counts)
        rows.append((*(row[key] for key in keys), name, *shown))
    headings = (*keys, "figure", "value", "95 % interval", "counts")
    return Table(caption, headings, rows, words=(*keys, "figure"), remarks=remarks)


def shown_name(row: Row) -> str:
    """Return the figure of a row and where it is read."""
    return f"{row['figure']} {row['target']}".rstrip()


def cell(row: Row, *, counted: bool = True) -> Cell:
    """Return a cell with the value of a row, its interval or why there is none, and its counts."""
    value, limits = said(row)
    found = estimate_of(row)
    small = limits or found.remark, words.counts(found) if counted else ""
    withheld = row["status"] in ("unresolved", "withheld")
    return Cell(value, "\n".join(filter(None, small)), withheld=withheld)


def said(row: Row) -> tuple[str, str]:
    """Return the value of a row and its interval as they are shown; nothing for no interval."""
    found = estimate_of(row)
    value, interval, change = found.value, found.interval, row["kind"] == "change"
    if row["status"] == "unresolved":
        return words.UNRESOLVED, ""
    if value is None:
        return words.NOTHING, words.limits(interval)
    if row["kind"] == "threshold":
        short = words.limits(interval, form=lambda end: words.threshold(float(f"{end:.4g}")))
        return words.threshold(value), short
    if row["unit"] == "share" and change:
        points = f"{words.number(100 * value, '+.2f')} points"
        return points, words.limits(interval, 100, "+.2f")
    if row["unit"] == "share":
        return words.share(value, interval)
    form = "+" * change + FORMS.get(row["unit"], ".2g" if row["kind"] == "p" else ".3g")
    return words.number(value, form), words.limits(interval, form=form)


def estimate_of(row: Row) -> Estimate:
    """Return what a row holds as an estimate."""
    import pandas as pd

    value, low, high, events, total = (
        cast(Any, None if pd.isna(row[name]) else row[name])
        for name in ("value", "low", "high", "numerator", "denominator")
    )
    interval = None if low is None or high is None else Interval(low, high)
    how = {"unit": row["unit"], "unresolved": row["status"] == "unresolved"}
    return Estimate(value, interval, events, total, row["remark"], **how)


def _interval_remark(interval: Interval | None) -> str:
    if isinstance(interval, Bound):
        alone = interval.if_independent
        return f"{alone:.2g} if independent" if math.isfinite(alone) else ""
    if interval is None or math.isnan(interval.low):
        return ""
    if interval.effective is None:
        return interval.lacking
    return f"n_eff {interval.effective:,.0f}"
