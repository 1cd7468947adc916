"""``facerec demo``: the whole main job on generated faces, with a table and a page at the end."""

from __future__ import annotations

import base64
import io
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import jinja2
import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.progress import Progress
from rich.table import Table

import facerec
from facerec.commands.audit import ALL, audit
from facerec.commands.cli import Console, run_command
from facerec.commands.export_onnx import default_folder, export_onnx
from facerec.commands.train import Options, train_recipe
from facerec.embedding.model import load_model
from facerec.errors import RecipeError
from facerec.fairness.outputs import PAGE
from facerec.files import atomic_path
from facerec.recipe import load_recipe
from facerec.records.synthetic import PACKS, SyntheticSet, contact_sheet, write_synthetic
from facerec.training.recipe import Recipe
from facerec.verification import VerificationResult, evaluate_bench, pack_bench
from facerec.verification.plots import roc_figure
from facerec.verification.report import format_rate

COLUMNS = ("arm", "pack", "accuracy ± SEM", "TPR@FPR=1e-1", "TPR@FPR=1e-2", "mean ‖f‖", "CV ‖f‖")
FACES = SyntheticSet(seed=0, identities=200, images_per_identity=16, pairs_per_fold=60)

Results = dict[str, dict[str, VerificationResult]]
"""Results by arm and pack."""


def demo(out: Path = Path("demo"), recipe: Path | None = None, processes: int = 2) -> None:
    """Generate faces, train ArcFace without and with SEC, verify, export, audit, write a page.

    Takes minutes on two CPU cores. Everything lands in one folder, which is made anew.

    Args:
        out: folder for the generated faces, the two runs, a bundle, the audits and report.html.
        recipe: the recipe of the SEC arm; its twin is the same without the penalty. By default
            recipes/demo.py of the source tree.
        processes: processes that draw faces.
    """
    console, started = Console(), time.perf_counter()
    recipe = recipe or Path(facerec.__file__).parent.parent / "recipes" / "demo.py"
    if not recipe.is_file():
        raise RecipeError(f"{recipe}: the demo's recipe is not here; give one with --recipe")
    data = out / "data"
    with_sec = load_recipe(recipe, Recipe)
    with_sec = replace(with_sec, data=replace(with_sec.data, path=data))
    arms = {"ArcFace": replace(with_sec, regularizer=None), "ArcFace + SEC": with_sec}

    for old in (data, out / "runs"):
        shutil.rmtree(old, ignore_errors=True)
    console.rule("1  faces")
    with Progress(console=console) as progress:
        task = progress.add_task("drawing faces", total=FACES.total_images)
        write_synthetic(data, FACES, processes=processes, progress=partial(progress.advance, task))
    results: Results = {}
    folders: dict[str, Path] = {}
    for number, (name, arm) in enumerate(arms.items(), start=2):
        console.rule(f"{number}  {name}")
        folder = train_recipe(
            arm, name.lower().replace(" + ", "_"), Options(runs=out / "runs"), console
        )
        if folder is None:
            return
        folders[name] = folder
        results[name] = _verify(folder, data, console)
    name, exported = list(folders.items())[-1]
    console.rule(f"4  export of {name}")
    export_onnx(exported)
    audits = _audit(folders, data, out / "audit", console)
    console.rule("7  results")
    console.print(_table(results))
    report = out / "report.html"
    _write_report(
        report, results, arms, default_folder(exported), audits, time.perf_counter() - started
    )
    console.print(
        f"{time.perf_counter() - started:.0f} seconds; report: {report.resolve()}", soft_wrap=True
    )


def _verify(folder: Path, data: Path, console: Console) -> dict[str, VerificationResult]:
    model = load_model(folder)
    benches = {name: pack_bench(data / f"{name}.bin") for name in PACKS}
    results = {}
    with Progress(console=console, transient=True) as progress:
        for name, bench in benches.items():
            task = progress.add_task(f"verifying {name}", total=len(bench.images))
            results[name] = evaluate_bench(model, bench, progress=partial(progress.advance, task))
    return results


def _audit(folders: dict[str, Path], data: Path, out: Path, console: Console) -> dict[str, str]:
    """Audit the runs by the generated group, later ones against the first; return their pages."""
    baseline: Path | None = None
    pages = {}
    for number, (name, folder) in enumerate(folders.items(), start=5):
        console.rule(f"{number}  audit of {name}")
        audit(
            attributes=data / "attributes.csv",
            group=("group",),
            out=out / folder.name,
            model=folder,
            bench=str(data / "lfw.bin"),
            pairs=ALL,
            fmr=("1e-2", "1e-3"),
            baseline=baseline,
        )
        baseline = baseline or folder
        pages[name] = f"{out.name}/{folder.name}/{PAGE}"
    return pages


def _rows(results: Results) -> list[list[str]]:
    """One row per arm and pack: accuracy, TPR at 10 % and 1 % FPR, norms."""
    rows = []
    for arm, packs in results.items():
        for name, result in packs.items():
            accuracy, norms = result.accuracy, result.norms
            assert accuracy is not None and norms is not None
            points = [format_rate(result.point(fpr)) for fpr in ("1e-1", "1e-2")]
            rows.append(
                [
                    arm,
                    name,
                    f"{100 * accuracy.mean:.2f} % ± {100 * accuracy.sem:.2f}",
                    *points,
                    f"{norms.mean:.2f}",
                    f"{norms.cv:.4f}",
                ]
            )
    return rows


def _table(results: Results) -> Table:
    """Fit the rows into 80 columns: the arm as a line of its own, counts below their figure."""
    _, _, accuracy, _, tpr, norm, cv = COLUMNS
    table = Table("", accuracy, tpr, norm, cv, box=box.SIMPLE_HEAD)
    previous = ""
    for arm, pack, accuracy, _, tpr, norm, cv in _rows(results):
        if arm != previous:
            table.add_row(arm, style="bold")
            previous = arm
        table.add_row(f"  {pack}", accuracy, tpr.replace(" (", "\n("), norm, cv)
    return table


def _write_report(
    path: Path,
    results: Results,
    arms: dict[str, Recipe],
    bundle: Path,
    audits: dict[str, str],
    seconds: float,
) -> None:
    """Write one HTML page: table, ROC curves, norm histograms, faces, and links to the audits."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("facerec.commands"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    curves = {pack: {arm: packs[pack] for arm, packs in results.items()} for pack in PACKS}
    recipe = next(iter(arms.values()))
    page = environment.get_template("demo.html.j2").render(
        version=facerec.__version__,
        seconds=round(seconds),
        columns=COLUMNS,
        rows=[[cell.replace(" (", "\n(") for cell in row] for row in _rows(results)],
        rocs={pack: _embed(_png(roc_figure(arms))) for pack, arms in curves.items()},
        norms=_embed(_png(_norm_figure(results))),
        sheet=_embed(contact_sheet(FACES)),
        bundle=bundle.relative_to(path.parent).as_posix(),
        audits=audits,
        faces=FACES,
        settings=[
            *((f"penalty of {name}", arm.regularizer or "none") for name, arm in arms.items()),
            *(
                (name, getattr(recipe, name))
                for name in ("backbone", "margin", "optimizer", "schedule", "batch_size", "epochs")
            ),
        ],
    )
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _norm_figure(results: Results) -> Figure:
    """Draw histograms of raw norms over all packs, each arm's divided by its mean."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot()
    for arm, packs in results.items():
        norms = np.concatenate([r.norms.values for r in packs.values() if r.norms is not None])
        relative = norms / norms.mean()
        label = f"{arm}: mean {norms.mean():.2f}, CV {relative.std():.3f}"
        axes.hist(relative, bins=60, density=True, histtype="stepfilled", alpha=0.5, label=label)
    axes.set(xlabel="‖f‖ / mean", ylabel="density", yticks=[])
    axes.legend(frameon=False)
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _embed(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with ``argv``, or with the arguments of the process."""
    run_command(demo, argv)
