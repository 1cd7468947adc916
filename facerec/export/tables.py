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

UNRESOLVED = "not resolvable"
"""What stands where a bench has too few pairs for a figure."""

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
    remarks = [
        f"{row['check']}, batch {row['batch']}: beyond the bar, but torch itself rounds by "
        f"{words.number(row['rounding'], '.1e')} between float32 and float64"
        for _, row in rows
        if row.get("rounding") is not None
    ]
    return Table("onnxruntime against torch, embeddings of length 1", columns, rows, remarks)


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


def thresholds_table(rows: Sequence[Row]) -> Table[Row]:
    """Return the thresholds that a bundle states, with what they gave where they were found."""

    def share(row: Row, rate: str, counts: str) -> str:
        return f"{_percent(row[rate])} ({'/'.join(map(str, row[counts]))})"

    def accepted(row: Row) -> str:
        return share(row, "tpr", "true_accepts") + ("" if row["reliable"] else ", few errors")

    def interval(row: Row) -> str:
        ends = row["threshold_interval"]
        return f"[{ends[0]:.4f}, {ends[1]:.4f}]" if ends else "none"

    def source(row: Row) -> str:
        return f"{row['source']['report']}, SHA-256 {row['source']['sha256'][:12]}"

    columns: list[Column[Row]] = [
        Column("bench", lambda row: row["bench"]),
        Column("target FPR", lambda row: row["fpr"], words=True),
        Column("threshold", lambda row: f"{row['threshold']:.4f}"),
        Column("95 % interval", interval, words=True),
        Column("FPR there", lambda row: share(row, "fpr_realised", "false_accepts"), words=True),
        Column("TPR there", accepted, words=True),
        Column("source", source, words=True),
    ]
    return Table("Thresholds", columns, rows)


def variants_table(variants: Sequence[Row], size: int) -> Table[Row]:
    """Return how large the variants are, and how near to the main file.

    Args:
        variants: as a bundle's note has them.
        size: bytes of the main file.
    """

    def image(row: Row) -> str:
        given = row["inputs"][0]
        return f"{given['dtype']} {' × '.join(map(str, given['shape']))}"

    def preprocessing(row: Row) -> str:
        return "in the graph" if row["preprocessing"] == "embedded" else "as the main file"

    columns: list[Column[Row]] = [
        Column("variant", lambda row: row["name"]),
        Column("bytes", lambda row: f"{row['bytes']:,}"),
        Column("of float32", lambda row: f"{row['bytes'] / size:.2f}"),
        Column("min cosine to float32 on faces", lambda row: f"{row['min_cosine']:.7f}"),
        Column("input", image, words=True),
        Column("preprocessing", preprocessing, words=True),
    ]
    return Table("Variants", columns, variants)


def accuracy_table(variant: Row) -> Table[tuple[str, Row]]:
    """Return what a variant costs on each bench."""

    def interval(row: tuple[str, Row]) -> str:
        limits = row[1]["interval"]
        return (
            "none" if not limits else f"[{100 * limits['low']:+.2f}, {100 * limits['high']:+.2f}]"
        )

    def difference(row: tuple[str, Row]) -> str:
        value = row[1]["difference"]
        return UNRESOLVED if value is None else f"{100 * value:+.2f}"

    columns: list[Column[tuple[str, Row]]] = [
        Column("figure", lambda row: f"{row[0]}, {row[1]['figure']}"),
        Column(MAIN, lambda row: _percent(row[1]["first"])),
        Column(variant["name"], lambda row: _percent(row[1]["second"])),
        Column("difference", difference),
        Column("95 % interval", interval, words=True),
    ]
    rows = [
        (bench["bench"], row) for bench in variant["accuracy"] or () for row in bench["differences"]
    ]
    return Table(f"{variant['name']} against {MAIN}", columns, rows)


def _percent(share: float | None) -> str:
    return UNRESOLVED if share is None else words.percent(share)
