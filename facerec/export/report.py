"""A bundle on the terminal: how far it is from torch, who loads it, and what int8 costs."""

from __future__ import annotations

from dataclasses import asdict, replace

from rich.console import Console

from facerec.embedding.bundle import ONNX_FILE
from facerec.export.bundle import BundleReport
from facerec.export.tables import consumers_table, parity_table
from facerec.verification.report import print_result


def print_bundle(report: BundleReport, console: Console) -> None:
    """Print all tables; what is longer than a cell comes below them."""
    checks = []
    for name, rows in report.parity.items():
        # All of the main file; of int8 the worst says enough.
        worst = min(rows, key=lambda row: row.min_cosine)
        worst = replace(worst, check=f"worst of {len(rows)}: {worst.check}")
        shown = rows if name == ONNX_FILE else (worst,)
        checks += [(name if row is shown[0] else "", asdict(row)) for row in shown]
    for table in (parity_table(checks), consumers_table(report.note["consumers"])):
        console.print(table.terminal())
        for remark in table.remarks:
            console.print(remark, style="dim italic")
    for comparison in report.comparisons:
        print_result(comparison, console)
    for entry in report.note["left_out"]:
        console.print(f"{entry['name']} was not written: {entry['reason']}", style="yellow")
    for entry in report.note["variants"]:
        size = entry["bytes"] / report.note["model"]["bytes"]
        console.print(
            f"{entry['name']}: {entry['bytes']:,} bytes, {size:.2f} of float32, least cosine to it "
            f"on generated faces {entry['min_cosine']:.7f}"
        )
        for note in entry["calibration"]["notes"]:
            console.print(f"note: {note}", style="yellow", soft_wrap=True)
        if not entry["accuracy"]:
            console.print(
                f"what {entry['name']} costs in accuracy is unknown, and a cosine does not tell "
                "it; give a --bench",
                style="yellow",
            )
