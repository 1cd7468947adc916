"""``facerec export-onnx``: a run → one ONNX bundle that every consumer loads, with its proof."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from facerec.base.errors import ExportError
from facerec.commands.cli import Console, run_command
from facerec.commands.embedder import print_notes
from facerec.commands.sources import open_benches
from facerec.export.options import DEFAULT, BundleOptions
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.export.bundle import BundleReport


def export_onnx(
    model: tyro.conf.Positional[Path],
    out: Path | None = None,
    bench: tuple[str, ...] = (),
    data: Path | None = None,
    force: bool = False,
    push: str | None = None,
    contents: tyro.conf.OmitArgPrefixes[BundleOptions] = DEFAULT,
) -> None:
    """Export a model as one folder for onnxruntime, insightface, OpenCV, OpenVINO and Triton.

    Prints how far the .onnx file's embeddings are from torch's, and what each of these programs
    that is installed computes with it. If any of these checks fails, nothing is written.

    Args:
        model: a run folder or a .safetensors file.
        out: folder to write; by default export/ in the run, or NAME_onnx beside the file.
        bench: verification sets (names or packs) on which int8 is compared with float32.
        data: folder to look for the verification sets in, before FACEREC_DATA and data/.
        force: replace a bundle that is there; a folder with other files is never replaced.
        push: OWNER/NAME on the Hugging Face Hub to upload the bundle to; a repository that is not
            there is made, and private. It needs --license.
        contents: what the folder gets besides the main file.
    """
    from facerec.embedding.loading import load_model
    from facerec.embedding.torch_model import TorchModel
    from facerec.export.bundle import export_bundle
    from facerec.export.hub import check_push, push_bundle
    from facerec.verification import Bench

    console = Console(highlight=False)
    if push is not None:
        check_push(push, contents.license)
    out = out or default_folder(model)
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
            loaded, out, contents, benches=benches, force=force, progress=progress
        )
    _print(report, console)
    console.print(f"bundle: {report.path}", soft_wrap=True)
    if push is not None:
        console.print(f"uploaded: {push_bundle(report.path, push)}", soft_wrap=True)


def default_folder(model: Path) -> Path:
    """Return where the bundle of a model goes: ``RUN/export``, or ``NAME_onnx`` beside a file."""
    from facerec.embedding.bundle import MODEL_FILE
    from facerec.embedding.hub import is_hub_name, parse_hub_name

    if is_hub_name(model):
        return Path(f"{Path(parse_hub_name(model)[0]).name}_onnx")
    if model.is_dir():
        return model / "export"
    if model.name == MODEL_FILE:
        return model.parent / "export"
    return model.with_name(f"{model.stem}_onnx")


def _print(report: BundleReport, console: Console) -> None:
    """Print all tables; what is longer than a cell comes below them."""
    from facerec.embedding.bundle import ONNX_FILE
    from facerec.export.tables import consumers_table, parity_table
    from facerec.verification.report import print_comparison

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
        print_comparison(comparison, console)
    for entry in report.note["left_out"]:
        console.print(f"{entry['name']} was not written: {entry['reason']}", style="yellow")
    for entry in report.note["variants"]:
        size = entry["bytes"] / report.note["model"]["bytes"]
        console.print(
            f"{entry['name']}: {entry['bytes']:,} bytes, {size:.2f} of float32, least cosine to it "
            f"on generated faces {entry['min_cosine']:.7f}"
        )
        print_notes(entry["calibration"]["notes"], console)
        if not entry["accuracy"]:
            console.print(
                f"what {entry['name']} costs in accuracy is unknown, and a cosine does not tell "
                "it; give a --bench",
                style="yellow",
            )


main = partial(run_command, export_onnx)
