"""``facerec demo``: the whole main job on generated faces, with a table and pages at the end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from facerec.base.errors import DatasetError
from facerec.base.files import atomic_path, check_no_links
from facerec.base.limits import Count
from facerec.base.recipe import load_recipe
from facerec.commands.audit import Groups, audit
from facerec.commands.cli import Console, run_command
from facerec.commands.embed import embed
from facerec.commands.embedder import Embedder
from facerec.commands.export_onnx import export_onnx
from facerec.commands.verified import Figures, Verified
from facerec.commands.verify import verify
from facerec.fairness.settings import AuditSettings
from facerec.records.synthetic import (
    DATASET_FILE,
    PACKS,
    Group,
    SyntheticSet,
    contact_sheet,
    write_synthetic,
)
from facerec.report.progress import progress_bar
from facerec.report.table import Table

if TYPE_CHECKING:
    from facerec.fairness.result import Audit

FACES = SyntheticSet(
    seed=0,
    subjects=160,
    images_per_subject=12,
    pairs_per_fold=32,
    groups=(Group("good photos"), Group("poor photos", contrast=0.5, blur=1.5, noise=10.0)),
)
GROUPINGS = ("group", "control")
"""Columns of ``attributes.csv`` that are audited: a difference that is planted, and none."""


def demo(
    out: Path = Path("demo"),
    data_only: bool = False,
    faces: Annotated[SyntheticSet, tyro.conf.arg(name="")] = FACES,
    recipe: Path | None = None,
    processes: Count = 2,
) -> None:
    """Generate faces, train ArcFace without and with SEC, verify, export and audit both.

    The photos of half of the people are poor, which the audit should find; a coin divides them
    once more, where it should find nothing. Takes minutes on two CPU cores. Everything lands in one
    folder, which is made anew.

    Args:
        out: folder for the generated faces (data, faces.jpg), the runs, a bundle, and the reports
            of verify and audit.
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
        console.print(f"{out}: {faces.total_images:,} images")
        return
    from facerec.commands.train import Options, train_recipe
    from facerec.training.recipe import Recipe

    data = out / "data"
    with_sec = load_recipe(recipe or "demo", Recipe)
    with_sec = replace(with_sec, data=replace(with_sec.data, path=data))
    arms = {"ArcFace": replace(with_sec, regularizer=None), "ArcFace + SEC": with_sec}

    check_no_links(out)
    for old in (data, out / "runs"):
        shutil.rmtree(old, ignore_errors=True)
    console.rule("faces")
    _draw(data, faces, processes, console)
    with atomic_path(out / "faces.jpg") as temporary:
        temporary.write_bytes(contact_sheet(faces))
    runs = []
    for name, arm in arms.items():
        console.rule(f"training of {name}")
        folder = name.lower().replace(" + ", "_")
        run = train_recipe(arm, folder, Options(runs=out / "runs"), console)
        if run is None:
            return
        runs.append(run)
    plain, treated = runs
    console.rule("verification of both")
    sides = verify(
        tuple(str(data / f"{pack}.bin") for pack in PACKS),
        compare=treated,
        # So short a training does not tell where faces should lie.
        embedder=Embedder(model=plain, unchecked=True),
        figures=Figures(fpr=("1e-2",), out=out / "verify"),
    )
    console.rule("export of ArcFace + SEC")
    export_onnx(treated)
    audits = {}
    for name, run in zip(arms, runs, strict=True):
        console.rule(f"audit of {name}")
        at = out / "audit" / run.name
        embed(out=run / "lfw.npz", bench=str(data / "lfw.bin"), embedder=Embedder(model=run))
        audits[at] = audit(
            embeddings=run / "lfw.npz",
            attributes=data / "attributes.csv",
            compared=Groups(GROUPINGS),
            out=at,
            baseline=None if run == plain else plain / "lfw.npz",
            settings=AuditSettings(fmr=("1e-2", "1e-3")),
        )
    console.rule("results")
    console.print(_verdict(list(audits.values())))
    console.print()
    console.print(_table(zip(arms, sides, strict=True)).terminal())
    console.print(f"{time.perf_counter() - started:.0f} seconds; faces: {out / 'faces.jpg'}")
    for page in (out / "verify" / "report.html", *(at / "audit.html" for at in audits)):
        console.print(f"report: {page.resolve()}")


def _draw(out: Path, faces: SyntheticSet, processes: int, console: Console) -> None:
    if (out / "train.rec").exists() and not (out / DATASET_FILE).exists():
        raise DatasetError(
            f"{out}: holds a train.rec that was not generated, and would be replaced; choose "
            "another --out"
        )
    with progress_bar(console, "images") as progress:
        write_synthetic(out, faces, processes, progress)


def _verdict(audits: Sequence[Audit]) -> str:
    """Return what audits found of norms."""
    from facerec.fairness.rows import ETA2, value_of
    from facerec.report.conclusions import of_test

    def detected(grouping: str) -> int:
        found = (value_of(audit.rows, ETA2, "p", grouping=grouping) for audit in audits)
        return list(map(of_test, found)).count("difference detected")

    planted, control = map(detected, GROUPINGS)
    return (
        f"The audit detects the planted difference in {planted} of {len(audits)} models, and one "
        f"between the control groups, a false alarm, in {control}."
    )


def _table(sides: Iterable[tuple[str, Verified]]) -> Table:
    """Return accuracy and the spread of norms of each arm and pack."""
    rows = [
        (
            *(arm, pack),
            f"{100 * accuracy.mean:.2f} % ± {100 * accuracy.sem:.2f}",
            f"{result.metrics['norm CV'].value:.4f}",
        )
        for arm, side in sides
        for pack, result in side.results.items()
        if (accuracy := result.folds.get("accuracy"))
    ]
    headings = "arm", "pack", "accuracy ± SEM", "CV ‖f‖"
    return Table("Verification of people that neither model has seen", headings, rows, ("pack",))


main = partial(run_command, demo)
