"""Figures as a tidy table, one a row, and the one place that shows it and writes it.

A row has what the figure is of (keys such as ``bench`` or ``group``), then the columns of
`COLUMNS`. The terminal, CSV, JSON and pages all show the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from facerec.report import words
from facerec.report.estimate import Estimate
from facerec.report.table import Cell, Table
from facerec.statistics.clustered import Bound
from facerec.statistics.intervals import Interval

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("figure", "target", "value", "low", "high", "numerator", "denominator", "remark")
"""What every row has: the figure and where it is read, as at an FPR; its value and the limits of
its interval, empty where there are none; its counts; and what a reader must know of it."""

UNRESOLVED = "not resolvable"

OF_PAIRS, ALIKE = "FNMR of pairs", ", people alike"
"""Of the FNMR each person weighs alike, of its first neighbour each mated pair; of the TPR each
pair, unless its name ends so."""

PERCENT = ("accuracy", "TPR", "TPIR", "EER", "rank", "failures")
"""Figures that are shown in percent, by their beginnings."""

FORMS = {
    **dict.fromkeys(("AUC", "norm CV", "partial AUC", "minDCF", "least Cllr"), ".4f"),
    "norm": ".4g",
    "d′": ".3f",
}
"""How others are shown, by their beginnings; three digits of all else."""


def figure_row(
    figure: str, estimate: Estimate, target: str = "", **keys: object
) -> dict[str, object]:
    """Return one row of a tidy table.

    A value that the data cannot carry is empty, and the remark says why.

    Args:
        figure: its name.
        estimate: the figure.
        target: where it is read: an FPR, a threshold, a rank.
        keys: what it is of, such as the bench.
    """
    remarks = [estimate.remark, _interval_remark(estimate.interval)]
    if estimate.interval is not None and estimate.interval.method == "none":
        estimate = replace(estimate, interval=None)
    return {
        **keys,
        "figure": figure,
        "target": target,
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "numerator": estimate.events,
        "denominator": estimate.total,
        "remark": "; ".join(filter(None, remarks)),
    }


def tidy(rows: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    """Return rows of `figure_row` as a table with numbers for numbers."""
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    numbers = dict.fromkeys(("value", "low", "high"), "float64")
    return frame.astype({**numbers, **dict.fromkeys(("numerator", "denominator"), "Int64")})


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dictionaries; what is missing is None."""
    rows = frame.astype(object).where(frame.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


def figures_table(caption: str, frame: pd.DataFrame, remarks: Sequence[str] = ()) -> Table:
    """Return what people see of a tidy table; keys that do not differ are left out."""
    keys = [name for name in frame.columns if name not in COLUMNS and frame[name].nunique() > 1]
    rows: list[Sequence[Cell | str]] = [
        (
            *(row[key] for key in keys),
            Cell(
                f"{row['figure']} {row['target']}".rstrip(),
                row["remark"].removeprefix(f"{UNRESOLVED}: "),
            ),
            _value(row),
            _limits(row) or words.NOTHING,
            "/".join(
                str(row[name]) for name in ("numerator", "denominator") if row[name] is not None
            ),
        )
        for row in records(frame)
    ]
    headings = (*keys, "figure", "value", "95 % interval", "counts")
    return Table(caption, headings, rows, words=(*keys, "figure"), remarks=remarks)


def _value(row: Mapping[str, Any]) -> str:
    value, figure = row["value"], str(row["figure"])
    if value is None:
        return UNRESOLVED if UNRESOLVED in row["remark"] else words.NOTHING
    if figure.startswith("threshold"):
        return words.threshold(float(value))
    if figure.startswith("difference"):
        return f"{words.number(100 * value, '+.2f')} points"
    if figure.startswith(PERCENT):
        return words.percent(value)
    return words.number(float(value), _form(figure))


def _limits(row: Mapping[str, Any]) -> str:
    if row["low"] is None or row["high"] is None:
        return ""
    interval, figure = Interval(float(row["low"]), float(row["high"])), str(row["figure"])
    if figure.startswith("threshold"):
        return words.limits(interval, form=lambda end: words.threshold(float(f"{end:.4g}")))
    if figure.startswith("difference"):
        return words.limits(interval, 100, "+.2f")
    if figure.startswith(PERCENT):
        return words.percent_limits(interval)
    return words.limits(interval, form=_form(figure))


def _form(figure: str) -> str:
    return next((form for name, form in FORMS.items() if figure.startswith(name)), ".3g")


def _interval_remark(interval: Interval | None) -> str:
    if isinstance(interval, Bound):
        alone = interval.if_independent
        return f"{alone:.2g} if independent" if math.isfinite(alone) else ""
    if interval is None or math.isnan(interval.low):
        return ""
    if interval.method == "none":
        return interval.assumption
    return "" if interval.effective is None else f"n_eff {interval.effective:,.0f}"
