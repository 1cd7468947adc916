"""What an export checked, in tables for the terminal and for the model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from facerec.export.measure import LoadMeasure
from facerec.report import words
from facerec.report.table import Column, Table

if TYPE_CHECKING:  # which writes the card, with these tables
    from facerec.export.bundle import BundleReport

MAIN = "float32"
"""What the main file is called in tables."""

Row = Mapping[str, Any]


def parity_table(rows: Sequence[tuple[str, Row]]) -> Table[tuple[str, Row]]:
    """Return how far files are from torch.

    Args:
        rows: name of the file, and a check as JSON types.
    """
    columns: list[Column[tuple[str, Row]]] = [
        Column("file", lambda row: row[0]),
        Column("check", lambda row: row[1]["check"], words=True),
        Column("batch", lambda row: str(row[1]["batch"])),
        Column("max |Δ|", lambda row: words.number(row[1]["max_abs"], ".1e")),
        Column("min cosine", lambda row: words.number(row[1]["min_cosine"], ".7f")),
    ]
    return Table("onnxruntime against torch, embeddings of length 1", columns, rows)


def consumers_table(rows: Sequence[Row]) -> Table[Row]:
    """Return what every consumer makes of the bundle; reasons stand below."""

    def figure(row: Row, name: str, form: str) -> str:
        return "" if row[name] is None else words.number(row[name], form)

    columns: list[Column[Row]] = [
        Column("consumer", lambda row: row["consumer"]),
        Column("version", lambda row: (row["version"] or "").split("-")[0], words=True),
        Column("outcome", lambda row: row["outcome"], words=True),
        Column("max |Δ|", lambda row: figure(row, "max_abs", ".1e")),
        Column("min cosine", lambda row: figure(row, "min_cosine", ".7f")),
    ]
    remarks = [f"{row['consumer']}: {row['note']}" for row in rows if row["note"]]
    return Table("consumers, fed the same BGR images", columns, rows, remarks)


def speeds_table(report: BundleReport) -> Table[tuple[str, LoadMeasure]]:
    """Return size and speed of the main file and of every variant, on this machine."""
    size = report.note["model"]["bytes"]
    sizes = {MAIN: size, **{variant.name: variant.bytes for variant in report.variants}}
    cosines = {variant.name: variant.min_cosine for variant in report.variants}
    rows = [(name, load) for name, loads in report.loads.items() for load in loads]
    firsts = {(name, loads[0].batch) for name, loads in report.loads.items()}

    def once(row: tuple[str, LoadMeasure], text: str) -> str:
        return text if (row[0], row[1].batch) in firsts else ""

    def cosine(row: tuple[str, LoadMeasure]) -> str:
        return once(row, f"{cosines[row[0]]:.7f}" if row[0] in cosines else "")

    def speedup(row: tuple[str, LoadMeasure]) -> str:
        return "" if row[1].speedup is None else f"{row[1].speedup:.2f}"

    columns: list[Column[tuple[str, LoadMeasure]]] = [
        Column("file", lambda row: once(row, row[0])),
        Column("MB", lambda row: once(row, f"{sizes[row[0]] / 1e6:.2f}")),
        Column("× size", lambda row: once(row, f"{sizes[row[0]] / size:.2f}")),
        Column("min cosine", cosine),
        Column("batch", lambda row: str(row[1].batch)),
        Column("ms", lambda row: f"{row[1].latency_ms:.1f}"),
        Column("images/s", lambda row: f"{row[1].images_per_second:.1f}"),
        Column("× speed", speedup),
    ]
    return Table("variants, in onnxruntime on this machine", columns, rows)
