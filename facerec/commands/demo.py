"""``facerec demo``: the whole main job on generated faces, with a table and a page at the end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import tyro

import facerec
from facerec.base.errors import DatasetError
from facerec.base.files import atomic_path, check_no_links
from facerec.base.limits import Count
from facerec.base.progress import section
from facerec.base.recipe import load_recipe
from facerec.commands.audit import Precision, audit
from facerec.commands.cli import Console, run_command
from facerec.commands.export_onnx import default_folder, export_onnx
from facerec.records.synthetic import (
    DATASET_FILE,
    PACKS,
    Group,
    SyntheticSet,
    contact_sheet,
    write_synthetic,
)
from facerec.report.conclusions import of_test
from facerec.report.progress import progress_bar
from facerec.report.table import Cell, Table, facts_table
from facerec.report.tidy import cell, figure_row
from facerec.report.words import NOTHING, counted, limits, p_value
from facerec.statistics.intervals import Interval

if TYPE_CHECKING:
    from facerec.report.page import FindingLine, Page
    from facerec.report.plotting import Drawing
    from facerec.verification import VerificationResult

FACES = SyntheticSet(
    seed=0,
    subjects=160,
    images_per_subject=12,
    pairs_per_fold=32,
    groups=(Group("good photos"), Group("poor photos", contrast=0.5, blur=1.5, noise=10.0)),
)
GROUPINGS = {
    "group": "planted: photos of one half of the people are poor",
    "control": "a coin was thrown for each person",
}
"""Columns of ``attributes.csv`` that are audited, and what is true of them."""
SETTINGS = ("backbone", "margin", "optimizer", "epochs")
"""What the page says of both recipes."""

_Results: TypeAlias = "dict[str, dict[str, VerificationResult]]"
"""By arm and pack."""
_Findings: TypeAlias = "dict[str, list[FindingLine]]"
"""What audits say of the norms by a grouping, a line for each arm."""


def demo(
    out: Path = Path("demo"),
    data_only: bool = False,
    faces: Annotated[SyntheticSet, tyro.conf.arg(name="")] = FACES,
    recipe: Path | None = None,
    processes: Count = 2,
) -> None:
    """Generate faces, train ArcFace without and with SEC, verify, export, audit, write a page.

    The photos of half of the people are poor, which the audit should find; a coin divides them
    once more, where it should find nothing. Takes minutes on two CPU cores. Everything lands in one
    folder, which is made anew.

    Args:
        out: folder for the generated faces (data), the runs, a bundle, the audits and report.html.
        data_only: draw the faces into OUT itself and stop: train.rec and its neighbours, lfw.bin,
            cfp_fp.bin and agedb_30.bin with the names of their images, attributes.csv and
            dataset.json. The same seed gives the same bytes.
        faces: whom to draw.
        recipe: the recipe of the SEC arm; its twin is the same without the penalty. By default
            facerec/recipes/demo.py.
        processes: processes that draw faces.
    """
    console, started = Console(), time.perf_counter()
    if data_only:
        _draw(out, faces, processes, console)
        console.print(f"{out}: {faces.total_images:,} images", soft_wrap=True)
        return
    from facerec.commands.train import Options, train_recipe
    from facerec.fairness.page import PAGE
    from facerec.training.recipe import Recipe

    data = out / "data"
    with_sec = load_recipe(recipe or "demo", Recipe)
    with_sec = replace(with_sec, data=replace(with_sec.data, path=data))
    arms = {"ArcFace": replace(with_sec, regularizer=None), "ArcFace + SEC": with_sec}

    check_no_links(out)
    for old in (data, out / "runs"):
        shutil.rmtree(old, ignore_errors=True)
    console.rule("1  faces")
    _draw(data, faces, processes, console)
    results: _Results = {}
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
    findings = _audit(folders, data, out / "audit", console)
    console.rule("7  results")
    console.print(_verdict(results, findings), markup=False, highlight=False)
    console.print()
    console.print(_table(results).terminal())
    report = out / "report.html"
    links = {arm: f"audit/{folder.name}/{PAGE}" for arm, folder in folders.items()}
    links["ONNX"] = (default_folder(exported).relative_to(out) / "README.md").as_posix()
    settings = {f"penalty of {name}": str(arm.regularizer or "none") for name, arm in arms.items()}
    settings |= {name: str(getattr(with_sec, name)) for name in SETTINGS}
    settings |= {"faces": str(faces), "facerec": facerec.__version__}
    page = _page(results, findings, contact_sheet(faces), links, settings)
    with atomic_path(report) as temporary:
        temporary.write_text(page.render(), encoding="utf-8")
    console.print(
        f"{time.perf_counter() - started:.0f} seconds; report: {report.resolve()}", soft_wrap=True
    )


def _draw(out: Path, faces: SyntheticSet, processes: int, console: Console) -> None:
    if (out / "train.rec").exists() and not (out / DATASET_FILE).exists():
        raise DatasetError(
            f"{out}: holds a train.rec that was not generated, and would be replaced; choose "
            "another --out"
        )
    with progress_bar(console, "images") as progress:
        write_synthetic(out, faces, processes, progress)


def _verify(folder: Path, data: Path, console: Console) -> dict[str, VerificationResult]:
    from facerec.embedding.model import load_model
    from facerec.verification import evaluate_bench, pack_bench

    model = load_model(folder)
    benches = {name: pack_bench(data / f"{name}.bin") for name in PACKS}
    results = {}
    with progress_bar(console, "images") as progress:
        for name, bench in benches.items():
            tell = section(progress, f"verifying {name}")
            results[name] = evaluate_bench(model, bench, progress=tell)
    return results


def _audit(folders: dict[str, Path], data: Path, out: Path, console: Console) -> _Findings:
    """Audit the runs, later ones against the first; return what is said of the norms."""
    from facerec.commands.embed import embed
    from facerec.commands.embedder import Embedder
    from facerec.fairness.page import read_rows

    baseline: Path | None = None
    findings: _Findings = {grouping: [] for grouping in GROUPINGS}
    for number, (arm, folder) in enumerate(folders.items(), start=5):
        console.rule(f"{number}  audit of {arm}")
        embeddings = folder / "lfw.npz"
        embed(out=embeddings, bench=str(data / "lfw.bin"), embedder=Embedder(model=folder))
        audit(
            embeddings=embeddings,
            attributes=data / "attributes.csv",
            group=tuple(GROUPINGS),
            out=out / folder.name,
            baseline=baseline,
            precision=Precision(fmr=("1e-2", "1e-3")),
        )
        baseline = baseline or embeddings
        rows = read_rows(out / folder.name / "audit.json")
        for grouping, lines in findings.items():
            found = {
                (row["figure"], row["kind"]): row for row in rows if row["grouping"] == grouping
            }
            lines.append(_finding(f"{arm}, η² of norms by {grouping}", GROUPINGS[grouping], found))
    return findings


def _finding(
    figure: str, truth: str, rows: Mapping[tuple[str, str], Mapping[str, Any]]
) -> FindingLine:
    """Return what an audit's rows say of η²: the share of norms' variance between groups."""
    from facerec.fairness.rows import ETA2
    from facerec.report.page import FindingLine

    eta2, p = rows.get((ETA2, "value")), rows.get((ETA2, "p"), {}).get("value")
    if eta2 is None or eta2["value"] is None:
        why = eta2["remark"] if eta2 else "no group can be shown"
        return FindingLine(figure, NOTHING, "", of_test(None), f"{truth}; {why}")
    interval = None if eta2["low"] is None else Interval(eta2["low"], eta2["high"])
    basis = f"{counted(eta2['denominator'], 'subject')}, p = {p_value(p)}"
    shown = limits(interval, form=".3f")
    return FindingLine(figure, f"{eta2['value']:.3f}", shown, of_test(p), truth, basis)


def _verdict(results: _Results, findings: _Findings) -> str:
    """Return what the demo found, made by rule from its figures."""
    planted, control = (
        sum(line.conclusion == "difference detected" for line in lines)
        for lines in findings.values()
    )
    means = [
        100 * result.accuracy.kfold.mean
        for packs in results.values()
        for result in packs.values()
        if result.accuracy is not None
    ]
    return (
        f"The audit detects the planted difference in {planted} of {len(results)} models, and one "
        f"between the control groups, a false alarm, in {control}. On people that no model has "
        f"seen, {min(means):.1f} to {max(means):.1f} % of the pairs are judged rightly, where "
        "chance gives 50 %."
    )


def _table(results: _Results) -> Table:
    """Return accuracy, TPR at 1 % FPR, and norms of each arm and pack."""
    from facerec.verification.evaluation import XNORM
    from facerec.verification.rows import TPR

    rows: list[list[Cell | str]] = []
    for arm, packs in results.items():
        for pack, result in packs.items():
            fold = result.accuracy and result.accuracy.kfold
            tpr = figure_row(TPR, result.point("1e-2").tpr)
            rows.append(
                [
                    *(arm, pack),
                    f"{100 * fold.mean:.2f} % ± {100 * fold.sem:.2f}" if fold else NOTHING,
                    cell(tpr),
                    f"{result.metrics[XNORM].value:.2f}",
                    f"{result.metrics['norm CV'].value:.4f}",
                ]
            )
    headings = "arm", "pack", "accuracy ± SEM", "TPR@FPR=1e-2", "mean ‖f‖", "CV ‖f‖"
    remarks = [
        "Accuracy: mean of ten folds ± standard error, thresholds chosen on the other nine. "
        "Brackets are 95 % intervals that allow for pairs that share a person. SEC makes norms "
        "even by construction, so a smaller CV alone is no evidence of a better model."
    ]
    caption = "Verification of people that neither model has seen"
    return Table(caption, headings, rows, words=("pack",), remarks=remarks)


def _page(
    results: _Results,
    findings: _Findings,
    sheet: bytes,
    links: Mapping[str, str],
    settings: Mapping[str, str],
) -> Page:
    """Return the page: findings, table, curves, faces, and links to the audits and the export."""
    from facerec.report.page import Link, Page, Section, Text
    from facerec.report.plotting import Drawing, data_uri, draw
    from facerec.verification.plots import roc_figure

    def roc(pack: str) -> Drawing:
        figure = roc_figure({arm: packs[pack] for arm, packs in results.items()})
        caption = (
            f"{pack}: ROC curves of both models; the shaded part is finer than can be resolved."
        )
        return Drawing(data_uri("image/svg+xml", draw(figure, "svg")), caption, caption)

    about = Text(
        "η² is the share of the variance of subjects’ mean norms that lies between groups. Which "
        "group of the control a person is in was decided by a coin: “none detected” is expected "
        "there in 19 of 20 cases. The whole audits, with error rates, and the run with SEC as one "
        "ONNX folder, with proof that it computes the same: ",
        *(piece for name, page in links.items() for piece in (Link(name, page), " ")),
    )
    caption = "Each row is one generated person; the packs hold other people."
    return Page(
        title="facerec demo",
        verdict=_verdict(results, findings),
        lead="Two training runs on generated faces, alike but for the spherical embedding "
        "constraint (SEC), verified and audited on people that neither has seen.",
        findings=[line for lines in findings.values() for line in lines],
        headline=[about],
        sections=[
            Section("Verification", [_table(results), *map(roc, PACKS)]),
            Section("The faces", [Drawing(data_uri("image/jpeg", sheet), caption, caption)]),
            Section("Settings", [facts_table("Settings", settings)]),
        ],
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with ``argv``, or with the arguments of the process."""
    run_command(demo, argv)
