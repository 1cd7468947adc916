"""``facerec train``: a recipe and overrides of its fields become a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from facerec.base.files import exclusive
from facerec.base.limits import Count, Flags
from facerec.commands.cli import Console, followed, run_command
from facerec.commands.embedder import print_notes
from facerec.commands.recipes import open_data, recipe_argument
from facerec.report import words
from facerec.report.progress import progress_bar
from facerec.report.table import print_facts
from facerec.training.recipe import Recipe

if TYPE_CHECKING:
    from facerec.training.distributed import Processes
    from facerec.training.loggers import Logger
    from facerec.training.trainer import Trainer

SHOWN = (
    *("data", "path", "backbone", "name", "embedding_size", "margin", "regularizer", "weight"),
    *("optimizer", "lr", "batch_size", "epochs", "precision", "workers", "seed"),
    *("logger", "validation", "benches", "init"),
)
"""Fields of the recipe that most people change; others are left to --help-all."""


@dataclass(frozen=True)
class Options(Flags):
    """Where a run is written and where it is computed."""

    name: str | None = None
    """Name of the run; by default the recipe file's name, with -2, -3, … where that is taken."""
    runs: Path = Path("runs")
    """Folder of all runs."""
    resume: bool = False
    """Continue the newest run of this name from its last checkpoint; where none has a checkpoint,
    start the newest from its first step, and where there is no run, a new one."""
    max_steps: Count | None = None
    """Stop when the run has so many optimizer steps behind it, with a checkpoint to --resume from:
    a trial of a long run, whose schedule stays that of all its epochs."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes CUDA, then MPS, then the CPU."""


def train_recipe(recipe: Recipe, name: str, options: Options, console: Console) -> Path | None:
    """Train ``recipe``, alone or as one of torchrun's processes.

    The run has this name unless ``options`` has one. The main process prints.

    Returns:
        The run's folder; None if the run was interrupted by SIGTERM or has more steps to do.

    Raises:
        KeyboardInterrupt: Ctrl-C has stopped the run, which is told already.
    """
    from facerec.training.distributed import launched

    try:
        # What holds on to the process group is gone before the group is.
        with launched(options.device) as processes:
            speaker = console if processes.is_main else Console(quiet=True)
            folder, stopped = _train(recipe, name, options, speaker, processes)
    except SystemExit as stop:
        if stop.code:
            raise
        return None  # SIGTERM in a validation, for one
    if stopped:
        raise KeyboardInterrupt
    return folder


def _train(
    recipe: Recipe, name: str, options: Options, console: Console, processes: Processes
) -> tuple[Path | None, bool]:
    """Return the folder of a run that is done, and whether Ctrl-C has stopped it."""
    from facerec.training import checkpoint
    from facerec.training import run as runs
    from facerec.training.initialization import resolved
    from facerec.training.learner import Learner
    from facerec.training.loggers import create_logger
    from facerec.training.trainer import Trainer
    from facerec.training.validation import PackValidator, without_missing

    name, exact = options.name or name, options.name is not None
    begun: Path | None = None
    trainer: Trainer | None = None
    logger: Logger | None = None  # of the main process

    def find() -> tuple[Path | None, Path | None]:
        nonlocal logger
        logger = None if recipe.logger is None else create_logger(recipe.logger)
        folder = runs.find_folder(
            options.runs, name, resume=options.resume, exact=exact, launches=launches
        )
        return folder, folder if folder and checkpoint.latest(folder / "checkpoints") else None

    def prepare() -> tuple[Path, bool]:
        nonlocal begun
        folder = followed("out", begun or runs.new_folder(options.runs, name, exact=exact))
        stack.enter_context(exclusive(folder))
        begun = folder
        runs.remember_launches(folder, launches)
        runs.remove_leftovers(folder)
        # torchrun may have started us again, before or after the first checkpoint.
        going_on = checkpoint.latest(folder / "checkpoints") is not None
        if going_on or (folder / "manifest.json").is_file():
            runs.check_same_run(folder, recipe, dataset, learner.teacher)
        if not going_on:
            runs.write_manifest(folder, learner)
        return folder, going_on

    try:
        launches = {launch for launch in processes.gather_objects(runs.launch()) if launch}
        # Before the labels are read, which may take long.
        validation, missing = processes.on_main(without_missing, recipe.validation)
        begun, run = processes.on_main(find)
        recipe = processes.on_main(resolved, replace(recipe, validation=validation), run)
        dataset = open_data(recipe, console)
        validator = PackValidator(recipe, processes) if recipe.validation.benches else None
        # The learner before the run, so that what cannot be trained at all leaves none behind.
        with progress_bar(console, "pictures") as progress:
            learner = Learner(recipe, dataset, processes, progress)
        if run is None:
            with progress_bar(console, "images") as progress:
                learner.initialize(progress)
        with contextlib.ExitStack() as stack:
            folder, going_on = processes.on_main(prepare)
            trainer = Trainer(learner, folder, console, validator, logger)
            if going_on:
                trainer.resume()
            print_facts(_summary(trainer, folder, processes), console)
            anew = "nothing to resume, so it starts" if options.resume and not going_on else ""
            print_notes([*dataset.notes, *trainer.warnings, missing or "", anew], console)
            trainer.fit(options.max_steps)
    except (KeyboardInterrupt, SystemExit) as stop:
        why = "Ctrl-C" if isinstance(stop, KeyboardInterrupt) else "SIGTERM"
        _tell_stop(console, why, begun, trainer)
        raise
    skipped = trainer.all_skipped()
    if not trainer.interrupted:
        if validator is not None and processes.is_main:
            print_notes([*validator.misplaced(trainer.final_backbone)], console)
        if skipped:
            images = words.counted(len({item["index"] for item in skipped}), "image")
            console.print(f"{images} skipped; first: {skipped[0]['cause']}", style="yellow")
        console.print(f"model: {folder / 'model.safetensors'}")
        return folder, False
    asked = trainer.stop_signal  # None where another rank was asked
    why = "a signal" if asked is None else "Ctrl-C" if asked == SIGINT else "SIGTERM"
    # A resumed run may have had more steps behind it already.
    if options.max_steps is not None and learner.step >= options.max_steps:
        why = "--max-steps"
    _tell_stop(console, why, folder, trainer)
    return None, asked == SIGINT


def _summary(trainer: Trainer, folder: Path, processes: Processes) -> Iterator[tuple[str, str]]:
    """Yield what is about to be trained, as the settings really are."""
    learner, recipe, dataset = trainer.learner, trainer.recipe, trainer.learner.dataset
    count = sum(p.numel() for p in learner.backbone.parameters())
    people = words.counted(dataset.num_classes, "class", "classes")
    if dataset.num_subjects is not None:
        people = words.counted(dataset.num_subjects, "subject")
    yield "run", str(folder) + (f" (resumed at step {learner.step})" if learner.step else "")
    yield "data", f"{words.counted(len(dataset), 'image')} of {people}, {recipe.data.path}"
    yield "backbone", f"{recipe.backbone.name}, {count:,} parameters"
    yield from learner.start.rows() if learner.start else ()
    if learner.targets is not None:
        yield "teacher", f"{recipe.distillation}, {learner.targets.path.parent}"
    always = ("margin", "regularizer", "optimizer", "schedule")
    for name in (*always, "sampling", "head", "finetune", "ema"):
        value = getattr(recipe, name)
        if name in always or value != getattr(Recipe(), name):
            yield name, str(value or "none")
    yield (
        "steps",
        f"{learner.total_steps:,} of {recipe.batch_size} images, "
        f"{words.counted(recipe.epochs, 'epoch')}, "
        f"{learner.precision}{', compiled' if learner.compiled else ''}",
    )
    yield "processes", f"{processes.world_size} on {processes.device}"


def _tell_stop(console: Console, why: str, folder: Path | None, trainer: Trainer | None) -> None:
    """Say what is saved of a run that was stopped, and how to go on with it."""
    from facerec.training import checkpoint

    last = None if folder is None else checkpoint.latest(folder / "checkpoints")
    at, saved, then = "before any step", "nothing is saved", "the same command starts again"
    if trainer is not None and trainer.learner.step:
        at = f"at step {trainer.learner.step} of {trainer.learner.total_steps}"
    if last is not None:
        saved = f"the state of step {int(last.name.rpartition('-')[2])} is saved"
    if folder is not None and (folder / "recipe.json").is_file():
        less = " and without --max-steps" if why == "--max-steps" else ""
        then = f"go on with the same command with --name {folder.name} --resume{less}"
    console.print(f"stopped by {why} {at}; {saved}; {then}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; the recipe's path comes first."""
    name, given, arguments = recipe_argument("train", argv)

    def train(
        options: Annotated[Options, tyro.conf.arg(name="")] = Options(),
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = given,
    ) -> None:
        """Train a network by a recipe.

        RECIPE is a file, or the name of one of facerec's, such as arcface_sec_r50; in its place,
        --from-arcface-torch CONFIG.py takes a configuration of arcface_torch, which is read and not
        run, and prints what becomes of each of its fields. What a recipe says can be changed by
        options, such as --data FOLDER (short for --data.path) or --optimizer.lr 0.05; here are
        those that most people change, with the values of this recipe, and --help-all shows all. The
        run is a folder under runs/ with its recipe, metrics, checkpoints and model.safetensors. On
        several GPUs: torchrun --nproc-per-node 8 -m facerec train RECIPE
        """
        train_recipe(recipe, name, options, Console())

    run_command(train, arguments, SHOWN)
