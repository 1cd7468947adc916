"""``facerec train``: a recipe and overrides of its fields become a run."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from facerec.commands.cli import Console, run_command
from facerec.commands.models import print_notes
from facerec.commands.recipes import open_data, open_targets, recipe_argument
from facerec.limits import Count, Flags
from facerec.records.dataset import Skipped
from facerec.report import words
from facerec.report.progress import progress_bar
from facerec.report.table import fact_lines
from facerec.training import checkpoint
from facerec.training import run as runs
from facerec.training.distributed import Processes, launched
from facerec.training.finetuning import Finetune
from facerec.training.initialization import resolved
from facerec.training.lock import locked
from facerec.training.monitor import Monitor
from facerec.training.recipe import Recipe
from facerec.training.sampler import Shuffle
from facerec.training.trainer import Trainer
from facerec.training.validation import PackValidator, find_packs


@dataclass(frozen=True)
class Options(Flags):
    """Where a run is written and where it is computed."""

    name: str | None = None
    """Name of the run; by default the recipe file's name, with -2, -3, … where that is taken."""
    runs: Path = Path("runs")
    """Folder of all runs."""
    resume: bool = False
    """Continue the newest run of this name from its last checkpoint."""
    max_steps: Count | None = None
    """Stop when the run has so many optimizer steps behind it, with a checkpoint to --resume from:
    a trial of a long run, whose schedule stays that of all its epochs."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes CUDA, then MPS, then the CPU."""
    profile: bool = False
    """Instead of training measure some steps, print where time and memory go, and write nothing but
    a teacher's embeddings that are not there yet."""
    profile_steps: Count = 10
    """Steps that --profile measures, after a few to warm up."""


def train_recipe(
    recipe: Recipe, name: str, options: Options, console: Console | None
) -> Path | None:
    """Train ``recipe``, alone or as one of torchrun's processes.

    The run has this name unless ``options`` has one; no console prints nothing.

    Returns:
        The run's folder; None if the run was interrupted by SIGTERM or has more steps to do.
    """
    # What holds on to the process group is gone before the group is.
    with launched(options.device) as processes:
        return _train(recipe, name, options, console if processes.is_main else None, processes)


def _train(
    recipe: Recipe, name: str, options: Options, console: Console | None, processes: Processes
) -> Path | None:
    find_packs(recipe.validation)  # before the labels are read, which may take long
    launches = {launch for launch in processes.gather_objects(runs.launch()) if launch}

    name, exact = options.name or name, options.name is not None

    def find() -> tuple[Path | None, Path | None]:
        folder = runs.find_folder(
            options.runs, name, resume=options.resume, exact=exact, launches=launches
        )
        return folder, folder if folder and checkpoint.latest(folder / "checkpoints") else None

    begun, run = processes.on_main(find)
    recipe = processes.on_main(functools.partial(resolved, recipe, run))
    dataset = open_data(recipe, console)
    targets = open_targets(recipe, dataset, processes, console)
    validator = PackValidator(recipe, processes) if recipe.validation.benches else None
    teacher = None if targets is None else str(targets.note["teacher"])
    # The trainer before the run, so that what cannot be trained at all leaves none behind.
    trainer = Trainer(recipe, dataset, processes, validator=validator, targets=targets)
    if run is None:
        with progress_bar(console or Console(quiet=True), "images") as progress:
            trainer.initialize(progress)

    def prepare() -> tuple[Path, bool]:
        folder = begun or runs.new_folder(options.runs, name, exact=exact)
        stack.enter_context(locked(folder))
        runs.remember_launches(folder, launches)
        runs.remove_leftovers(folder)
        # torchrun may have started us again, before or after the first checkpoint.
        going_on = checkpoint.latest(folder / "checkpoints") is not None
        if going_on:
            runs.check_same_run(folder, recipe, dataset, teacher)
        else:
            runs.write_recipe(folder, recipe)
            chosen = {
                "head.kernel": trainer.head.kernel,
                "precision": trainer.precision,
                "compile": trainer.compile_mode,
            }
            runs.write_manifest(folder, recipe, dataset, processes, chosen, teacher, trainer.start)
        return folder, going_on

    with contextlib.ExitStack() as stack:
        folder, going_on = processes.on_main(prepare)
        trainer.folder = folder
        if going_on:
            trainer.resume()
        trainer.monitor = Monitor(
            folder,
            recipe,
            processes,
            total_steps=trainer.total_steps,
            steps_per_epoch=trainer.steps_per_epoch,
            start=trainer.step,
            validated=trainer.validated,
            losses=trainer.losses,
            console=console,
        )
        if console is not None:
            console.print(fact_lines(_summary(trainer, folder, processes)))
            print_notes([*dataset.notes, *trainer.warnings], console)
        trainer.fit(options.max_steps)
    shares = processes.gather_objects(trainer.skipped)
    if console is not None:
        skipped = [item for share in shares for item in share]
        _print_end(console, trainer, folder, options.max_steps, skipped)
    return None if trainer.interrupted else folder


def _summary(trainer: Trainer, folder: Path, processes: Processes) -> Iterator[tuple[str, str]]:
    """Yield what is about to be trained, as the settings really are."""
    recipe, dataset = trainer.recipe, trainer.dataset
    count = sum(p.numel() for p in trainer.backbone.parameters())
    penalty = recipe.regularizer or "none"
    yield "run", str(folder) + (f" (resumed at step {trainer.step})" if trainer.step else "")
    also = len(recipe.data.also)
    further = f" and {words.counted(also, 'further set')}" if also else ""
    known = words.counted(dataset.identities or 0, "identity", "identities")
    people = words.counted(dataset.num_classes, "class") if dataset.identities is None else known
    yield "data", f"{words.counted(len(dataset), 'image')} of {people}, {recipe.data.path}{further}"
    if recipe.sampling != Shuffle():
        yield "sampling", str(recipe.sampling)
    if recipe.head.centers_per_class > 1 and recipe.margin is not None:
        yield "head", f"{recipe.head.centers_per_class} centres for each class"
    (_, rate), *later = recipe.head.rates
    if recipe.margin is not None and (later or rate < 1):
        changes = "".join(f", {other:g} from epoch {at:g} on" for at, other in later)
        yield "head", f"visits {rate:g}{changes} of the classes in a step"
    yield "backbone", f"{recipe.backbone.name}, {count:,} parameters"
    yield from trainer.start.rows() if trainer.start else ()
    if recipe.finetune != Finetune():
        yield "finetune", str(recipe.finetune)
    yield "margin", str(recipe.margin or "none")
    yield "norm penalty", str(penalty)
    if trainer.targets is not None and recipe.distillation is not None:
        teacher, of = recipe.distillation, trainer.targets.shape
        yield (
            "teacher",
            f"{teacher.teacher}, {teacher.loss} × {teacher.weight:g}, {of[2]} dimensions of "
            f"{words.counted(of[1], 'picture')} an image, {trainer.targets.path.parent}",
        )
    yield "optimizer", f"{recipe.optimizer}, {recipe.schedule}"
    sizes: Counter[float] = Counter()
    for group in trainer.optimizer.param_groups:
        for parameter in group["params"]:
            # Of the class centres each process has a share.
            rows = trainer.head.num_classes * trainer.head.centers_per_class
            whole = rows * parameter.shape[1] if parameter is trainer.head.weight else None
            sizes[group["weight_decay"]] += whole or parameter.numel()
    for decay, size in sizes.items():
        yield "", f"{size:,} parameters with weight decay {decay:g}"
    own = {id(parameter) for parameter in trainer.backbone.parameters()}
    groups = [g for g in trainer.optimizer.param_groups if id(g["params"][0]) in own]
    factors = sorted(group["rate_factor"] for group in groups) or [1.0]
    if factors[0] != 1 or factors[-1] != 1:
        ends = dict.fromkeys(f"{factor:.3g}" for factor in (factors[0], factors[-1]))
        yield "", f"backbone at {' to '.join(ends)} of this rate"
    if recipe.ema is not None:
        yield "model", f"moving average of the weights, {recipe.ema:g}"
    yield (
        "steps",
        f"{trainer.total_steps:,} of {recipe.batch_size} images, "
        f"{words.counted(recipe.epochs, 'epoch')}, "
        f"{trainer.precision}{', compiled' if trainer.compile_mode else ''}",
    )
    threads = torch.get_num_threads()
    yield "processes", f"{processes.world_size} on {processes.device}, {threads} threads each"


def _print_end(
    console: Console,
    trainer: Trainer,
    folder: Path,
    max_steps: int | None,
    skipped: Sequence[Skipped],
) -> None:
    if trainer.interrupted:
        # A resumed run may have had more steps behind it already.
        why = "--max-steps" if max_steps is not None and trainer.step >= max_steps else "a signal"
        console.print(
            f"stopped by {why} at step {trainer.step} of {trainer.total_steps}; the state is "
            "saved, continue with --resume"
        )
        return
    if skipped:
        # An image that cannot be read comes up in every epoch.
        count = len({item.index for item in skipped})
        console.print(
            f"{words.counted(count, 'image')} skipped, replaced "
            f"{words.counted(len(skipped), 'time')}; first: "
            f"{skipped[0].cause}",
            style="yellow",
        )
    console.print(f"model: {folder / 'model.safetensors'}", soft_wrap=True, highlight=False)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; the recipe's path comes first."""
    name, given, arguments = recipe_argument("train", argv)

    @tyro.conf.configure(tyro.conf.AvoidSubcommands)
    def train(
        options: Annotated[Options, tyro.conf.arg(name="")] = Options(),
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = given,
    ) -> None:
        """Train a recipe: RECIPE.py [--name NAME] [--resume] [--FIELD VALUE …].

        The recipe's path comes first; every field of the recipe can then be overridden by its
        dotted name. The run appears under runs/ with its recipe, manifest, metrics, checkpoints
        and model.safetensors. On several processes: torchrun --nproc-per-node 2 tools/train.py
        RECIPE.py.
        """
        if options.profile:
            from facerec.commands.profile import profile_recipe  # loads what runs never need

            profile_recipe(recipe, options.device, options.profile_steps, Console())
            return
        train_recipe(recipe, name, options, Console())

    run_command(train, arguments)
