"""``facerec study``: both arms over seeds, audited and compared; the answer with its precision."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

import facerec
from facerec.commands.cli import Console, run_command
from facerec.errors import RecipeError, TrainingError
from facerec.files import atomic_path, parse_json, write_json
from facerec.limits import Count, Seed
from facerec.progress import section
from facerec.recipe import load_recipe, to_dict
from facerec.records.synthetic import PACKS, SyntheticSet, write_synthetic
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.fairness.study import (
        FaceSet,
        FairnessStudy,
        KnownTruth,
        SetResult,
        StudyRun,
        TrainedRun,
    )
    from facerec.training.recipe import Recipe


@dataclass(frozen=True)
class Real:
    """Real faces: give records, bench and attributes, or none."""

    records: Path | None = None
    """Training set: a record file or its folder."""
    bench: Path | None = None
    """Pack of other people, by path or name."""
    attributes: Path | None = None
    """CSV of the pack's images: image_id, subject_id, label_source and the study's attribute."""
    epochs: int | None = None
    """Of training on them, in place of those of the study, where time is short."""
    also: tuple[Path, ...] = ()
    """Further training sets, of other people."""
    init: Path | None = None
    """Weights that every run starts from, where the study's recipe starts from weights."""


def study(
    recipe: tyro.conf.Positional[Path],
    out: Path = Path("study"),
    seeds: tuple[Seed, ...] | None = None,
    smoke: bool = False,
    real: Real = Real(),
    processes: Count = 2,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
) -> None:
    """Train with and without SEC over several seeds, audit and compare, and write the answer.

    Generates faces with a planted difference, trains both arms on them (and on real faces where
    they are given), audits every model and compares the arms on the same images. Writes answer.md
    and study.json. The same command goes on where it was interrupted; complete runs are kept.

    Args:
        recipe: the study, such as studies/sec_fairness.
        out: folder of faces, runs and results.
        seeds: of training, in place of those of the study.
        smoke: one seed, a tiny backbone and few faces: shows that everything works, in a minute.
        real: real faces to repeat the study on.
        processes: processes that draw faces.
        device: where to compute.
    """
    from facerec.fairness.study import FairnessStudy, known_truths, smaller
    from facerec.fairness.study_answer import answer

    console, started = Console(), time.perf_counter()
    plan = load_recipe(recipe, FairnessStudy)
    if smoke:
        plan = smaller(plan)
    if seeds is not None:
        if not seeds or len(set(seeds)) < len(seeds):
            raise RecipeError(f"--seeds must be different numbers, found {list(seeds)}")
        plan = replace(plan, seeds=seeds)
    real_set = _real_set(plan, real)  # what is missing shows before minutes of work
    results = []
    if plan.generated is not None:
        console.rule("generated faces")
        faces = _generated_set(plan.generated, plan.faces, out / "data", processes, console)
        known = {
            name: _generated_set(plan.generated, config, out / name, processes, console)
            for name, config in known_truths(plan).items()
        }
        results.append(_examine(plan, faces, known, out / "runs", device, console))
    elif real_set is None:
        raise RecipeError(
            f"{recipe}: is a study of real faces alone; give --real.records, --real.bench and "
            "--real.attributes"
        )
    if real_set is not None:
        results.append(_examine(plan, real_set, {}, out / "runs", device, console))
    seconds = time.perf_counter() - started
    _write(out, plan, results, smoke, seconds)
    console.rule("answer")
    for result in results:
        console.print(result.faces.title, style="bold")
        for line in answer(plan, result):
            console.print(f"  {line}", highlight=False)
    console.print(f"{seconds:.0f} seconds; answer: {(out / 'answer.md').resolve()}", soft_wrap=True)


def _generated_set(
    recipe: Recipe, config: SyntheticSet, folder: Path, processes: int, console: Console
) -> FaceSet:
    """Generate the faces unless these are there."""
    from facerec.fairness.attributes import read_attributes
    from facerec.fairness.study import FaceSet
    from facerec.verification import pack_bench

    if not _is_generated(folder, config):
        with progress_bar(console, "images") as progress:
            write_synthetic(folder, config, processes, progress)
    return FaceSet(
        name="generated",
        title="Generated faces with a planted difference",
        recipe=replace(recipe, data=replace(recipe.data, path=folder)),
        benches=tuple(pack_bench(folder / f"{name}.bin") for name in PACKS),
        attributes=read_attributes(folder / "attributes.csv", ["group"]),
        attribute="group",
    )


def _is_generated(folder: Path, faces: SyntheticSet) -> bool:
    """Tell whether the folder holds these faces; refuse others."""
    try:
        stored = parse_json((folder / "dataset.json").read_bytes())["config"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if stored != json.loads(json.dumps(asdict(faces))):
        raise RecipeError(
            f"{folder}: holds faces of another configuration; choose another folder with --out"
        )
    return (folder / "train.rec").is_file()  # which comes last


def _real_set(plan: FairnessStudy, real: Real) -> FaceSet | None:
    from facerec.fairness.attributes import read_attributes
    from facerec.fairness.study import FaceSet
    from facerec.records import Part
    from facerec.records.training_set import open_dataset
    from facerec.training.initialization import resolved
    from facerec.verification import find_pack, pack_bench

    given = [name for name, value in vars(real).items() if value not in (None, ())]
    if real.records is None or real.bench is None or real.attributes is None:
        if given:
            raise RecipeError(
                "real faces need --real.records, --real.bench and --real.attributes, found only "
                + ", ".join(f"--real.{name}" for name in given)
            )
        return None
    epochs = plan.real.epochs if real.epochs is None else real.epochs
    also = tuple(Part(path=path) for path in real.also)
    data = replace(plan.real.data, path=real.records, also=also)
    recipe = replace(plan.real, data=data, epochs=epochs)
    if real.init is not None:
        recipe = replace(recipe, init=replace(recipe.init, path=real.init))
    recipe = resolved(recipe)
    open_dataset(recipe.data, recipe.seed)
    return FaceSet(
        name="real",
        title=f"Real faces: {real.records.name}, tested on {real.bench.name}",
        recipe=recipe,
        benches=(pack_bench(find_pack(real.bench)),),
        attributes=read_attributes(real.attributes, [plan.attribute]),
        attribute=plan.attribute,
    )


def _examine(
    plan: FairnessStudy,
    faces: FaceSet,
    known: Mapping[str, FaceSet],
    folder: Path,
    device: str,
    console: Console,
) -> SetResult:
    """Train, embed and audit every run, compare the arms, and look where the truth is known."""
    from facerec.fairness.study import ARMS, SetResult, TrainedRun, compare_arms

    trained = []
    for seed in plan.seeds:
        for arm in ARMS:
            name = f"{faces.name}_{arm}_seed{seed}"
            console.rule(name)
            recipe = replace(faces.recipe, seed=seed)
            if arm == "baseline":
                recipe = replace(recipe, regularizer=None)
            path, seconds = _train(recipe, folder, name, device, console)
            trained.append(TrainedRun(name, arm, seed, path, seconds))
    runs = [_audit_run(plan, faces, run, device, console) for run in trained]
    console.rule(f"{faces.name}: comparison")
    with progress_bar(console) as progress:
        comparison = compare_arms(plan, faces, runs, progress)
    truths = list(_known_truths(plan, known, trained, device, console))
    return SetResult(faces, tuple(runs), comparison, tuple(truths))


def _known_truths(
    plan: FairnessStudy,
    known: Mapping[str, FaceSet],
    runs: Sequence[TrainedRun],
    device: str,
    console: Console,
) -> Iterator[KnownTruth]:
    """Yield the excess error rates of groups on images of which the truth is known."""
    from facerec.embedding import load_model
    from facerec.fairness.study import KnownTruth, errors_by_group, group_excess

    done, total = 0, len(runs) * sum(len(faces.ids) for faces in known.values())
    with progress_bar(console, "images") as progress:
        for run in runs:
            model = load_model(run.folder, device=device)
            for name, faces in known.items():
                tell = section(progress, "embedding faces of known truth", done, total)
                errors = errors_by_group(model, faces, plan.targets, tell)
                done += len(faces.ids)
                yield KnownTruth(run.name, name, group_excess(errors, replicates=plan.replicates))


def _train(
    recipe: Recipe, runs: Path, name: str, device: str, console: Console
) -> tuple[Path, float | None]:
    """Train a run to its end, from its last checkpoint if it has one, unless it is complete."""
    from facerec.commands.train import Options, train_recipe
    from facerec.records.training_set import open_dataset
    from facerec.training.checkpoint import latest
    from facerec.training.run import check_same_run

    folder = runs / name
    if folder.exists():
        complete = (folder / "model.safetensors").is_file()
        if not complete and latest(folder / "checkpoints") is None:
            shutil.rmtree(folder)
        else:
            check_same_run(folder, recipe, open_dataset(recipe.data, recipe.seed))
        if complete:
            console.print(f"{folder} is complete", soft_wrap=True)
            return folder, None
    started = time.perf_counter()
    options = Options(name=name, runs=runs, resume=folder.exists(), device=device)  # type: ignore[arg-type]
    if train_recipe(recipe, name, options, console) is None:
        raise TrainingError(f"{folder}: training was interrupted; the same command goes on with it")
    return folder, time.perf_counter() - started


def _audit_run(
    plan: FairnessStudy, faces: FaceSet, run: TrainedRun, device: str, console: Console
) -> StudyRun:
    from facerec.embedding import load_model
    from facerec.fairness.audit import audit
    from facerec.fairness.study import StudyRun, embed_faces

    console.rule(f"audit of {run.name}")
    model = load_model(run.folder, device=device)
    with progress_bar(console) as progress:
        raw, unit = embed_faces(model, faces, progress)
        audited = audit(
            raw,
            faces.attributes,
            targets=plan.targets,
            permutations=plan.permutations,
            replicates=plan.replicates,
            source=run.name,
            progress=progress,
        )
    for finding in audited.findings:
        console.print(f"  {finding.text}", highlight=False)
    return StudyRun(run, raw, unit, audited)


def _write(
    out: Path, plan: FairnessStudy, results: Sequence[SetResult], smoke: bool, seconds: float
) -> None:
    from facerec.fairness.study_answer import answer_page

    runs = [run.trained for result in results for run in result.runs]
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    cost = {
        "seconds": round(seconds, 1),
        "trained": sum(run.seconds is not None for run in runs),
        "complete_before": sum(run.seconds is None for run in runs),
        "cores": os.cpu_count(),
        "system": platform.platform(),
    }
    write_json(
        out / "study.json",
        {
            "schema": "facerec.study/1",
            "facerec": facerec.__version__,
            "command": command,
            "smoke": smoke,
            "study": to_dict(plan),
            "sets": [result.to_json() for result in results],
            "cost": cost,
        },
    )
    text = "\n".join(answer_page(plan, results, smoke, command, cost))
    with atomic_path(out / "answer.md") as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


main = partial(run_command, study)
