"""``facerec demo``: the whole main job on generated faces, with a table and a page at the end."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import tyro

import facerec
from facerec.commands.audit import Precision, audit
from facerec.commands.cli import Console, run_command
from facerec.commands.export_onnx import default_folder, export_onnx
from facerec.errors import DatasetError
from facerec.files import atomic_path
from facerec.limits import Count
from facerec.progress import section
from facerec.recipe import load_recipe
from facerec.records.synthetic import (
    DATASET_FILE,
    PACKS,
    Group,
    SyntheticSet,
    contact_sheet,
    write_synthetic,
)
from facerec.report.conclusions import ALPHA
from facerec.report.progress import progress_bar
from facerec.report.table import Cell, Table, facts_table, text_table
from facerec.report.words import NOTHING, counted, limits, p_value
from facerec.statistics.intervals import Interval

if TYPE_CHECKING:
    from facerec.report.figures import Drawing
    from facerec.report.page import FindingLine, Page
    from facerec.training.recipe import Recipe
    from facerec.verification import VerificationResult

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

Results: TypeAlias = "dict[str, dict[str, VerificationResult]]"
"""Results by arm and pack."""


class NormAudit(NamedTuple):
    """What the audit of a run says of the norms by one grouping."""

    arm: str
    grouping: str
    page: str
    """Path from the report."""
    eta2: Mapping[str, Any] | None
    """The audit's row: share of the variance of subjects' mean norms that lies between groups; None
    where no group can be shown."""
    p: float | None

    @property
    def detected(self) -> bool:
        """Whether the audit detects a difference."""
        return self.p is not None and self.p < ALPHA


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
    from facerec.training.recipe import Recipe

    data = out / "data"
    with_sec = load_recipe(recipe or "demo", Recipe)
    with_sec = replace(with_sec, data=replace(with_sec.data, path=data))
    arms = {"ArcFace": replace(with_sec, regularizer=None), "ArcFace + SEC": with_sec}

    for old in (data, out / "runs"):
        shutil.rmtree(old, ignore_errors=True)
    console.rule("1  faces")
    _draw(data, faces, processes, console)
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
    console.print(_table(results).terminal())
    report = out / "report.html"
    bundle = default_folder(exported).relative_to(out).as_posix()
    page = _page(results, faces, arms, bundle, audits, time.perf_counter() - started)
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


def _audit(folders: dict[str, Path], data: Path, out: Path, console: Console) -> list[NormAudit]:
    """Audit the runs, later ones against the first; return what is said of the norms."""
    from facerec.commands.embed import embed
    from facerec.commands.embedder import Embedder
    from facerec.fairness.outputs import PAGE, read_rows
    from facerec.fairness.rows import ETA2, p_of

    baseline: Path | None = None
    audits = []
    for number, (name, folder) in enumerate(folders.items(), start=5):
        console.rule(f"{number}  audit of {name}")
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
        rows = {
            (row["grouping"], row["figure"]): row
            for row in read_rows(out / folder.name / "audit.json")
        }
        page = f"{out.name}/{folder.name}/{PAGE}"
        for grouping in GROUPINGS:
            eta2, p = rows.get((grouping, ETA2)), rows.get((grouping, p_of(ETA2)))
            audits.append(NormAudit(name, grouping, page, eta2, p["value"] if p else None))
    return audits


def _verdict(results: Results, audits: Sequence[NormAudit]) -> str:
    """Return what the demo found, made by rule from its figures."""
    means = [
        100 * result.accuracy.kfold.mean
        for packs in results.values()
        for result in packs.values()
        if result.accuracy is not None
    ]
    planted, control = (
        [each.arm for each in audits if each.grouping == grouping and each.detected]
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


def _finding(audit: NormAudit) -> FindingLine:
    from facerec.report.page import FindingLine

    figure = f"{audit.arm}, η² of norms by {audit.grouping}"
    truth, eta2 = GROUPINGS[audit.grouping], audit.eta2
    if eta2 is None or eta2["value"] is None or audit.p is None:
        why = "no group can be shown" if eta2 is None else eta2["remark"]
        return FindingLine(figure, "–", "", "insufficient data", f"{truth}; {why}")
    low, high = eta2["low"], eta2["high"]
    return FindingLine(
        figure,
        f"{eta2['value']:.3f}",
        limits(None if low is None else Interval(low, high), form=".3f"),
        "difference detected" if audit.detected else "none detected at this precision",
        truth,
        f"{counted(eta2['denominator'], 'subject')}, p = {p_value(audit.p)}",
    )


def _table(results: Results) -> Table:
    """Return accuracy, TPR at 1 % FPR, and norms of each arm and pack."""
    from facerec.verification.report import format_rate

    rows: list[list[Cell | str]] = []
    for arm, packs in results.items():
        for pack, result in packs.items():
            fold = result.accuracy and result.accuracy.kfold
            share, *details = re.split(r" (?=[\[(])", format_rate(result.point("1e-2")))
            norms = result.norms
            rows.append(
                [
                    *(arm, pack),
                    f"{100 * fold.mean:.2f} % ± {100 * fold.sem:.2f}" if fold else NOTHING,
                    Cell(share, "\n".join(details)),
                    f"{norms.mean.value:.2f}" if norms else NOTHING,
                    f"{norms.cv:.4f}" if norms else NOTHING,
                ]
            )
    headings = "arm", "pack", "accuracy ± SEM", "TPR@FPR=1e-2", "mean ‖f‖", "CV ‖f‖"
    remarks = [
        "Accuracy: mean of ten folds ± standard error, thresholds chosen on the other nine. "
        "Brackets are 95 % intervals that allow for pairs that share a person. SEC makes norms "
        "even by construction, so a smaller CV alone is no evidence of a better model."
    ]
    caption = "Verification of people that neither model has seen"
    return text_table(caption, headings, rows, words=("pack",), remarks=remarks)


def _page(
    results: Results,
    faces: SyntheticSet,
    arms: dict[str, Recipe],
    bundle: str,
    audits: Sequence[NormAudit],
    seconds: float,
) -> Page:
    """Return the page: findings, table, curves, faces, and links to the audits."""
    from facerec.report.figures import Drawing, data_uri, draw
    from facerec.report.page import Link, Page, Section, Text
    from facerec.verification.plots import roc_figure

    def roc(pack: str) -> Drawing:
        figure = roc_figure({arm: packs[pack] for arm, packs in results.items()})
        caption = (
            f"{pack}: ROC curves of both models; the shaded part is finer than can be resolved."
        )
        return Drawing(data_uri("image/svg+xml", draw(figure, "svg")), caption, caption)

    recipe = next(iter(arms.values()))
    settings = {f"penalty of {name}": arm.regularizer or "none" for name, arm in arms.items()} | {
        **{name: getattr(recipe, name) for name in ("backbone", "margin", "optimizer", "epochs")},
        "faces": f"{faces}, {faces.identities} people × {faces.images_per_identity} images",
        "seconds": f"{seconds:.0f}",
        "facerec": facerec.__version__,
    }
    pages = {each.arm: each.page for each in audits}
    return Page(
        title="facerec demo",
        verdict=_verdict(results, audits),
        lead="Two training runs on generated faces, alike but for the spherical embedding "
        "constraint (SEC), verified and audited on people that neither has seen.",
        findings=[_finding(each) for each in audits],
        headline=[
            Text(
                "η² is the share of the variance of subjects’ mean norms that lies between groups. "
                "Which group of the control a person is in was decided by a coin: “none detected” "
                "is expected there in 19 of 20 cases. The whole audits, with error rates: ",
                *(piece for arm, page in pages.items() for piece in (Link(arm, page), " ")),
            )
        ],
        sections=[
            Section("Verification", [_table(results), *map(roc, PACKS)]),
            Section(
                "Export",
                [
                    Text(
                        "The run with SEC as one ONNX folder, with proof that it computes the "
                        "same: ",
                        Link(bundle, f"{bundle}/model_card.md"),
                        ".",
                    )
                ],
            ),
            Section(
                "The faces",
                [
                    Drawing(
                        data_uri("image/jpeg", contact_sheet(faces)),
                        "Contact sheet of generated faces.",
                        "Each row is one generated person; the packs hold other people.",
                    )
                ],
            ),
            Section(
                "Settings",
                [facts_table("Settings", {name: str(value) for name, value in settings.items()})],
            ),
        ],
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with ``argv``, or with the arguments of the process."""
    run_command(demo, argv)
