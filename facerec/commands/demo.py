"""``facerec demo``: the whole main job on generated faces, with a table and a page at the end."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.table import Table as TerminalTable

import facerec
from facerec.commands.audit import ALL, audit
from facerec.commands.cli import Console, run_command
from facerec.commands.export_onnx import default_folder, export_onnx
from facerec.commands.train import Options, train_recipe
from facerec.embedding.model import load_model
from facerec.errors import RecipeError
from facerec.fairness.association import ALPHA
from facerec.fairness.outputs import PAGE, Json
from facerec.files import atomic_path
from facerec.progress import section
from facerec.recipe import load_recipe
from facerec.records.synthetic import (
    PACKS,
    Group,
    SyntheticSet,
    contact_sheet,
    write_synthetic,
)
from facerec.report.blocks import Cell, Drawing, FindingLine, Table, render_page
from facerec.report.figures import data_uri, draw
from facerec.report.progress import progress_bar
from facerec.training.recipe import Recipe
from facerec.verification import VerificationResult, evaluate_bench, pack_bench
from facerec.verification.plots import roc_figure
from facerec.verification.report import format_rate

COLUMNS = ("arm", "pack", "accuracy ± SEM", "TPR@FPR=1e-1", "TPR@FPR=1e-2", "mean ‖f‖", "CV ‖f‖")
FACES = SyntheticSet(
    seed=0,
    identities=160,
    images_per_identity=12,
    pairs_per_fold=32,
    groups=(Group("good photos"), Group("poor photos", contrast=0.5, blur=1.5, noise=10.0)),
)
GROUPINGS = {
    "group": "planted: photos of one half of the people are poor",
    "control": "a coin was thrown for each person",
}
"""Columns of ``attributes.csv`` that are audited, and what is true of them."""

Results = dict[str, dict[str, VerificationResult]]
"""Results by arm and pack."""


@dataclass(frozen=True)
class NormAudit:
    """What the audit of a run says of the norms by one grouping."""

    arm: str
    grouping: str
    page: str
    """Path from the report."""
    subjects: int = 0
    eta2: float | None = None
    """Share of the variance of subjects' mean norms that lies between the groups; None without a
    comparison."""
    interval: tuple[float, float] | None = None
    p: float | None = None
    reason: str = ""
    """Why there is no comparison."""

    @property
    def detected(self) -> bool:
        """Whether the audit detects a difference."""
        return self.p is not None and self.p < ALPHA


def demo(out: Path = Path("demo"), recipe: Path | None = None, processes: int = 2) -> None:
    """Generate faces, train ArcFace without and with SEC, verify, export, audit, write a page.

    The photos of half of the people are poor, which the audit should find; a coin divides them
    once more, where it should find nothing. Takes minutes on two CPU cores. Everything lands in one
    folder, which is made anew.

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
    with progress_bar(console, "images") as progress:
        write_synthetic(data, FACES, processes=processes, progress=progress)
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
    console.print(_verdict(results, audits), markup=False, highlight=False)
    console.print()
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
    with progress_bar(console, "images") as progress:
        for name, bench in benches.items():
            tell = section(progress, f"verifying {name}")
            results[name] = evaluate_bench(model, bench, progress=tell)
    return results


def _audit(folders: dict[str, Path], data: Path, out: Path, console: Console) -> list[NormAudit]:
    """Audit the runs, later ones against the first; return what is said of the norms."""
    baseline: Path | None = None
    found = []
    for number, (name, folder) in enumerate(folders.items(), start=5):
        console.rule(f"{number}  audit of {name}")
        audit(
            attributes=data / "attributes.csv",
            group=tuple(GROUPINGS),
            out=out / folder.name,
            model=folder,
            bench=str(data / "lfw.bin"),
            pairs=ALL,
            fmr=("1e-2", "1e-3"),
            baseline=baseline,
        )
        baseline = baseline or folder
        document = json.loads((out / folder.name / "audit.json").read_text(encoding="utf-8"))
        page = f"{out.name}/{folder.name}/{PAGE}"
        found += [_norm_audit(document, name, grouping, page) for grouping in GROUPINGS]
    return found


def _norm_audit(document: Json, arm: str, grouping: str, page: str) -> NormAudit:
    """Read what an ``audit.json`` says of a grouping."""
    for row in document["association"]:
        if row["grouping"] == grouping:
            eta2 = row["eta2"]
            interval = None if eta2["ci"] is None else (eta2["ci"][0], eta2["ci"][1])
            return NormAudit(
                arm, grouping, page, row["subjects"], eta2["value"], interval, row["p_perm"]
            )
    reasons = [
        row["reason"]
        for row in document["not_computed"]
        if row["grouping"] == grouping and row["what"] in ("everything", "association")
    ]
    return NormAudit(arm, grouping, page, reason="; ".join(reasons))


def _verdict(results: Results, audits: Sequence[NormAudit]) -> str:
    """Return what the demo found, made by rule from its figures."""
    means = [
        100 * found.accuracy.kfold.mean
        for packs in results.values()
        for found in packs.values()
        if found.accuracy is not None
    ]
    planted, control = (
        [found.arm for found in audits if found.grouping == grouping and found.detected]
        for grouping in GROUPINGS
    )
    arms = len(results)
    said = [
        f"The audit detects the planted difference in {_all_of(planted, arms)}",
        "and none between the control groups"
        if not control
        else f"and one between the control groups in {_all_of(control, arms)}, a false alarm",
    ]
    return (
        f"{' '.join(said)}. On people that no model has seen, {min(means):.1f} to {max(means):.1f} "
        "% of the pairs are judged rightly, where chance gives 50 %."
    )


def _all_of(names: Sequence[str], total: int) -> str:
    if len(names) == total:
        return "every model"
    return " and ".join(names) if names else "no model"


def _finding(found: NormAudit) -> FindingLine:
    figure = f"{found.arm}, η² of norms by {found.grouping}"
    if found.eta2 is None or found.p is None:
        detail = f"{GROUPINGS[found.grouping]}; {found.reason}"
        return FindingLine(figure, "–", conclusion="insufficient data", detail=detail)
    return FindingLine(
        figure,
        f"{found.eta2:.3f}",
        "" if found.interval is None else "[{:.3f}, {:.3f}]".format(*found.interval),
        "difference detected" if found.detected else "none detected at this precision",
        GROUPINGS[found.grouping],
        f"{found.subjects} subjects, p = {found.p:.2g}",
    )


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
                    f"{100 * accuracy.kfold.mean:.2f} % ± {100 * accuracy.kfold.sem:.2f}",
                    *points,
                    f"{norms.mean.value:.2f}",
                    f"{norms.cv:.4f}",
                ]
            )
    return rows


def _table(results: Results) -> TerminalTable:
    """Fit the rows into 80 columns: the arm as a line of its own, counts below their figure."""
    _, _, accuracy, _, tpr, norm, cv = COLUMNS
    table = TerminalTable("", accuracy, tpr, norm, cv, box=box.SIMPLE_HEAD)
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
    audits: Sequence[NormAudit],
    seconds: float,
) -> None:
    """Write one HTML page: findings, figures, table, curves, faces, and links to the audits."""
    curves = {pack: {arm: packs[pack] for arm, packs in results.items()} for pack in PACKS}
    recipe = next(iter(arms.values()))
    settings = {
        **{f"penalty of {name}": arm.regularizer or "none" for name, arm in arms.items()},
        **{
            name: getattr(recipe, name)
            for name in ("backbone", "margin", "optimizer", "schedule", "batch_size", "epochs")
        },
        "faces": FACES,
        "facerec": facerec.__version__,
    }
    page = render_page(
        "facerec.commands",
        "demo.html.j2",
        "demo.css",
        verdict=_verdict(results, audits),
        findings=[_finding(found) for found in audits],
        associations=_drawing(
            _association_figure(audits),
            "η² of subjects’ mean norms with 95 % intervals, by model and grouping: the share of "
            "their variance that lies between the groups. Full marks: detected.",
        ),
        figures=Table(
            "Verification of people that neither model has seen",
            COLUMNS,
            [[Cell(cell.replace(" (", "\n(")) for cell in row] for row in _rows(results)],
            words=COLUMNS[:2],
        ),
        rocs=[
            _drawing(roc_figure(arms), f"{pack}: ROC curves of both models, as step functions.")
            for pack, arms in curves.items()
        ],
        norms=_drawing(
            _norm_figure(results),
            "Raw norms of the images of all packs, divided by each model’s mean.",
        ),
        sheet=Drawing(
            data_uri("image/jpeg", contact_sheet(FACES, suffix=".jpg")),
            "Contact sheet of generated faces.",
            f"Each row is one generated person. {FACES.identities} people × "
            f"{FACES.images_per_identity} images for training; the packs hold other people.",
        ),
        bundle=bundle.relative_to(path.parent).as_posix(),
        audits={found.arm: found.page for found in audits},
        settings=Table(
            "Settings",
            ["setting", "value"],
            [[Cell(name), Cell(str(value))] for name, value in settings.items()],
            words=["value"],
        ),
        seconds=round(seconds),
    )
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _association_figure(audits: Sequence[NormAudit]) -> Figure:
    """Draw a forest of η² by model and grouping."""
    figure = Figure(figsize=(7, 0.9 + 0.4 * len(audits)), layout="constrained")
    axes = figure.add_subplot()
    for place, found in enumerate(audits):
        if found.eta2 is None:
            continue
        colour = "#D55E00" if found.grouping == next(iter(GROUPINGS)) else "#0072B2"
        if found.interval is not None:
            axes.plot(found.interval, [place, place], "|-", color=colour, linewidth=1.4)
        face = colour if found.detected else "white"
        axes.plot(found.eta2, place, "o", color=colour, markersize=7, markerfacecolor=face)
    axes.axvline(0, color="0.2", linewidth=0.9)
    axes.set_yticks(range(len(audits)), [f"{a.arm}: {a.grouping}" for a in audits])
    axes.set_ylim(len(audits) - 0.5, -0.5)
    axes.set_xlabel("η² of subjects’ mean norms")
    axes.grid(True, axis="x", color="0.85", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


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


def _drawing(figure: Figure, caption: str) -> Drawing:
    return Drawing(data_uri("image/svg+xml", draw(figure, "svg")), caption, caption)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with ``argv``, or with the arguments of the process."""
    run_command(demo, argv)
