"""What an export checked, in tables for the terminal and for the model card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from facerec.report import words
from facerec.report.table import Table
from facerec.statistics.intervals import Interval

Row = Mapping[str, Any]


def parity_table(rows: Sequence[tuple[str, Row]]) -> Table:
    """Return how far files are from torch, of each its name and a check as JSON types."""
    cells = [(name, row["check"], str(row["batch"]), *_figures(row)) for name, row in rows]
    headings = "file", "check", "batch", "max |Δ|", "min cosine"
    caption = "How far onnxruntime's embeddings, of length 1, are from torch's"
    return Table(caption, headings, cells, words=("check",))


def consumers_table(rows: Sequence[Row]) -> Table:
    """Return what every consumer makes of the bundle; reasons stand below."""
    cells = [
        (row["consumer"], (row["version"] or "").split("-")[0], row["outcome"], *_figures(row))
        for row in rows
    ]
    headings = "program", "version", "outcome", "max |Δ|", "min cosine"
    caption = "What programs that load this folder make of the same images"
    remarks = [f"{row['consumer']}: {row['note']}" for row in rows if row["note"]]
    return Table(caption, headings, cells, words=headings[:3], remarks=remarks)


def thresholds_table(rows: Sequence[Row]) -> Table:
    """Return the thresholds that a bundle states, with what they gave where they were found."""
    cells = []
    for row in rows:
        ends = row["threshold_interval"]
        few = "" if row["reliable"] else ", few errors"
        cells.append(
            (
                row["bench"],
                row["fpr"],
                words.threshold(row["threshold"]),
                f"[{ends[0]:.4f}, {ends[1]:.4f}]" if ends else "none",
                rate_words(row, "fpr"),
                rate_words(row, "tpr") + few,
            )
        )
    around = "95 % interval", "FPR there", "TPR there"
    headings = "bench", "target FPR", "threshold", *around
    return Table("Thresholds", headings, cells, words=("target FPR", *around))


def rate_words(row: Row, rate: Literal["tpr", "fpr"]) -> str:
    """Return a rate at a threshold with its interval and counts."""
    value, counts = ("tpr", "true_accepts") if rate == "tpr" else ("fpr_realised", "false_accepts")
    limits = words.percent_limits(Interval(*row[f"{rate}_interval"]))
    said = words.UNRESOLVED if row[value] is None else words.percent(row[value])
    return f"{said} {limits} ({'/'.join(map(str, row[counts]))})"


def _figures(row: Row) -> Iterator[str]:
    for name, form in (("max_abs", ".1e"), ("min_cosine", ".7f")):
        yield "" if row[name] is None else words.number(row[name], form)
