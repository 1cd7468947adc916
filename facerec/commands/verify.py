"""``facerec verify``: a model and a bench → figures with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import facerec
from facerec.commands.cli import run_command
from facerec.embedding.model import load_model, newest_run
from facerec.files import write_json
from facerec.records.packs import read_pack
from facerec.statistics.rates import parse_rate
from facerec.verification import VerificationResult, evaluate_pack, find_pack
from facerec.verification.evaluate import FPR_TARGETS
from facerec.verification.report import check_plot_path, plot_roc, print_result


def verify(
    bench: tuple[str, ...] = ("lfw",),
    data: Path | None = None,
    model: Path | None = None,
    runs: Path = Path("runs"),
    channels: Literal["rgb", "bgr"] | None = None,
    mean: float | None = None,
    std: float | None = None,
    flip: bool = True,
    fpr: tuple[str, ...] = FPR_TARGETS,
    compat: Literal["insightface"] | None = None,
    on_error: Literal["error", "skip"] = "error",
    json: Path | None = None,
    roc: Path | None = None,
    device: str = "cpu",
    batch_size: int = 64,
) -> None:
    """Verify a model on LFW, CFP, AgeDB and other packs.

    Prints accuracy over ten folds, TPR at fixed FPRs, AUC, EER and embedding norms, each with its
    counts and 95 % interval.

    Args:
        bench: names (lfw, cfp_fp, agedb_30, …) or pack files (.bin, .npz).
        data: folder of the packs; then FACEREC_DATA and data/ are looked at.
        model: a run folder, a .safetensors or an .onnx file; by default the newest run.
        runs: folder of all runs, of which the newest is taken without --model.
        channels: channel order that an .onnx file wants; default rgb.
        mean: subtracted from pixel values, for an .onnx file; default 127.5.
        std: divides the result, for an .onnx file; default 127.5.
        flip: sum the raw embeddings of each image and its mirror image.
        fpr: false positive rates at which the true positive rate is read; taken exactly.
        compat: insightface adds the accuracy as that project computes it.
        on_error: what an image that does not decode does: error ends the command, skip makes its
            pairs failures to acquire, which are counted and listed.
        json: write all figures to this file.
        roc: draw the ROC curves into this .png, .svg or .pdf file.
        device: where to compute: cpu, cuda, cuda:1, mps.
        batch_size: images that go through the network at once.
    """
    # Whatever can be wrong is found before minutes of embedding.
    for target in fpr:
        parse_rate(target)
    if roc is not None:
        check_plot_path(roc)
    paths = [find_pack(name, data) for name in bench]
    embedder = load_model(
        newest_run(runs) if model is None else model,
        device=device,
        batch_size=batch_size,
        channels=channels,
        mean=mean,
        std=std,
    )
    console = Console()
    console.print(f"model {embedder.path}", highlight=False, soft_wrap=True, markup=False)
    results: dict[str, VerificationResult] = {}
    for path in paths:
        console.print(f"bench {path}", highlight=False, soft_wrap=True, markup=False)
        pack = read_pack(path)
        with _progress(console) as progress:
            task = progress.add_task(f"embedding {pack.name}", total=len(pack.distinct()[0]))
            result = evaluate_pack(
                embedder,
                pack,
                flip=flip,
                fpr=fpr,
                compat=compat,
                batch_size=batch_size,
                progress=lambda count, task=task: progress.advance(task, count),  # type: ignore[misc]
                on_error=on_error,
            )
        print_result(result, console)
        # Two files of one name in different folders are two benches.
        results[pack.name if pack.name not in results else str(path)] = result
    if json is not None:
        figures = [result.to_json() for result in results.values()]
        write_json(json, {"facerec": facerec.__version__, "results": figures})
        console.print(f"figures: {json}", highlight=False, soft_wrap=True, markup=False)
    if roc is not None:
        plot_roc({f"{embedder.name}, {name}": result for name, result in results.items()}, roc)
        console.print(f"ROC: {roc}", highlight=False, soft_wrap=True, markup=False)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("images"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    run_command(verify, argv)
