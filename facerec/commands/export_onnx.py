"""``facerec export-onnx``: a run → one ONNX bundle that every consumer loads, with its proof."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from facerec.commands.benches import open_benches
from facerec.commands.cli import Console, run_command
from facerec.commands.models import print_notes
from facerec.errors import ExportError
from facerec.export.options import DEFAULT, BundleOptions
from facerec.files import write_json
from facerec.report.progress import progress_bar
from facerec.report.table import Table, text_table

if TYPE_CHECKING:
    from facerec.export.bundle import BundleReport


def export_onnx(
    model: tyro.conf.Positional[Path],
    out: Path | None = None,
    bench: tuple[str, ...] = (),
    data: Path | None = None,
    json: Path | None = None,
    force: bool = False,
    contents: tyro.conf.OmitArgPrefixes[BundleOptions] = DEFAULT,
) -> None:
    """Export a model as one folder for onnxruntime, insightface, OpenCV, OpenVINO and Triton.

    Prints how far the file is from torch and what every installed consumer makes of it. If any of
    these checks fails, no bundle is written.

    Args:
        model: a run folder or a .safetensors file.
        out: the bundle's folder; by default export/ in the run, or NAME_onnx beside the file.
        bench: names or packs on which variants are compared with float32.
        data: folder of the benches; then FACEREC_DATA and data/ are looked at.
        json: write all checks and figures to this file, speeds too.
        force: replace a bundle that is there, and holds no file of others.
        contents: what goes into it besides the main file.
    """
    from facerec.embedding.model import load_model
    from facerec.embedding.torch_model import TorchModel
    from facerec.export.bundle import export_bundle
    from facerec.verification import Bench

    console = Console(highlight=False)
    out = out or default_folder(model)
    if json is not None and json.resolve().is_relative_to(out.resolve()):
        raise ExportError(
            f"--json {json}: lies in the bundle {out}, which holds no file but those of its "
            "checksums; choose another place"
        )
    loaded = load_model(model, device="cpu")
    if not isinstance(loaded, TorchModel):
        raise ExportError(
            f"{model}: this is an exported model already; give the run or .safetensors file that "
            "it came from"
        )
    if loaded.assumed:
        raise ExportError(
            f"{model}: does not say how its pixels are prepared, which an export must know; turn "
            "it into a .safetensors by facerec import-weights first"
        )
    benches = []
    for opened in open_benches(bench, data=data) if bench else []:
        if not isinstance(opened, Bench):
            raise ExportError(f"{opened.name} compares templates, which no export is judged by")
        benches.append(opened)
    with progress_bar(console) as progress:
        report = export_bundle(
            loaded,
            out,
            contents,
            benches=benches,
            force=force,
            progress=progress,
        )
    _print(report, console)
    if json is not None:
        write_json(json, report.to_json())
        console.print(f"figures: {json}", soft_wrap=True)
    console.print(f"bundle: {report.path}", soft_wrap=True)


def default_folder(model: Path) -> Path:
    """Return where the bundle of a model goes: ``RUN/export``, or ``NAME_onnx`` beside a file."""
    from facerec.embedding.model import MODEL_FILE

    if model.is_dir():
        return model / "export"
    if model.name == MODEL_FILE:
        return model.parent / "export"
    return model.with_name(f"{model.stem}_onnx")


def _print(report: BundleReport, console: Console) -> None:
    """Print all tables; what is longer than a cell comes below them."""
    from facerec.export.tables import MAIN, consumers_table, parity_table
    from facerec.verification.report import print_comparison

    checks = []
    for name, rows in report.parity.items():
        # All of the main file; of a variant the worst says enough.
        worst = min(rows, key=lambda row: row.min_cosine)
        worst = replace(worst, check=f"worst of {len(rows)}: {worst.check}")
        shown = rows if name == MAIN else (worst,)
        checks += [(name if row is shown[0] else "", asdict(row)) for row in shown]
    for table in (
        parity_table(checks),
        consumers_table([asdict(row) for row in report.consumers]),
    ):
        console.print(table.terminal())
        for remark in table.remarks:
            console.print(remark, style="dim italic")
    if report.bf16 is not None:
        gains = (f"{row.speedup:.2f} × as fast at batch {row.batch}" for row in report.bf16.loads)
        console.print(
            f"OpenVINO in bf16 is {' and '.join(gains)} as in float32, which stays the default; a "
            "cosine to float32 is not an accuracy",
            style="dim italic",
        )
        for comparison in report.bf16.comparisons:
            print_comparison(comparison, console)
    if report.variants:
        console.print(_speeds_table(report).terminal())
    for variant in report.variants:
        for comparison in variant.comparisons:
            print_comparison(comparison, console)
        if variant.refused is not None:
            console.print(f"{variant.name} was not written: {variant.refused}", style="yellow")
        if variant.openvino.outcome in ("cannot load", "not suited"):
            console.print(f"{variant.name} in OpenVINO: {variant.openvino.note}", style="yellow")
    for entry in report.note["variants"]:
        print_notes((entry.get("calibration") or {}).get("notes", ()), console)
    unknown = [
        entry["name"]
        for entry in report.note["variants"]
        if not entry["exact"] and not entry["accuracy"]
    ]
    if unknown:
        console.print(
            f"what {' and '.join(unknown)} cost in accuracy is unknown, and a cosine does not tell "
            "it; give a --bench",
            style="yellow",
        )


def _speeds_table(report: BundleReport) -> Table[Any]:
    """Return size and speed of the main file and of every variant, on this machine."""
    from facerec.export.tables import MAIN

    size = report.note["model"]["bytes"]
    sizes = {MAIN: size, **{variant.name: variant.bytes for variant in report.variants}}
    cosines = {variant.name: f"{variant.min_cosine:.7f}" for variant in report.variants}
    cells = []
    for name, loads in report.loads.items():
        about = name, f"{sizes[name] / 1e6:.2f}", f"{sizes[name] / size:.2f}", cosines.get(name, "")
        for load in loads:
            speed = "" if load.speedup is None else f"{load.speedup:.2f}"
            times = f"{load.latency_ms:.1f}", f"{load.images_per_second:.1f}", speed
            cells.append((*about, str(load.batch), *times))
            about = "", "", "", ""  # once for each file
    headings = "file", "MB", "× size", "min cosine", "batch", "ms", "images/s", "× speed"
    return text_table("variants, in onnxruntime on this machine", headings, cells)


main = partial(run_command, export_onnx)
