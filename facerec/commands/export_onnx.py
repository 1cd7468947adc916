"""``facerec export-onnx``: a run → one ONNX bundle that every consumer loads, with its proof."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import tyro

from facerec.base.errors import ExportError
from facerec.commands.cli import Console, run_command
from facerec.commands.sources import open_image_benches
from facerec.export.options import DEFAULT, BundleOptions
from facerec.report.progress import progress_bar


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
    from facerec.export.bundle import default_folder, export_bundle
    from facerec.export.hub import check_push, push_bundle
    from facerec.export.report import print_bundle

    console = Console()
    if push is not None:
        check_push(push, contents.license)
    out = out or default_folder(model)
    loaded = load_model(model, device="cpu")
    if not isinstance(loaded, TorchModel):
        raise ExportError(
            f"{model}: this is an exported model already; give the run or .safetensors file that "
            "it came from"
        )
    benches = open_image_benches(bench, data=data) if bench else []
    with progress_bar(console) as progress:
        report = export_bundle(
            loaded, out, contents, benches=benches, force=force, progress=progress
        )
    print_bundle(report, console)
    console.print(f"bundle: {report.path}")
    if push is not None:
        console.print(f"uploaded: {push_bundle(report.path, push)}")


main = partial(run_command, export_onnx)
