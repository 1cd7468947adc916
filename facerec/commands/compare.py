"""``facerec compare``: arms under equal conditions, searched, trained anew and scored once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from facerec.base.defaults import ClusterMetric
from facerec.base.errors import RecipeError
from facerec.base.limits import Count, Flags
from facerec.base.recipe import load_recipe
from facerec.commands.cli import Console, run_command
from facerec.commands.embedder import print_notes
from facerec.records.processes import process_pool
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.base.progress import Progress
    from facerec.comparison.harness import Harness
    from facerec.comparison.protocol import Comparison, Protocol


@dataclass(frozen=True)
class Changed(Flags):
    """In place of what the recipe says."""

    trials: Count | None = None
    """Settings to try for each loss."""
    repetitions: Count | None = None
    """Fresh seeds that the best settings are trained with."""
    metrics: tuple[ClusterMetric, ...] | None = None
    """Figures besides those of retrieval: nmi and f1 of k-means clusters of the test images."""


def compare(
    recipe: tyro.conf.Positional[Path | None] = None,
    losses: tuple[str, ...] = (),
    data: Path | None = None,
    features: Path | None = None,
    second_views: Path | None = None,
    out: Path | None = None,
    smoke: bool = False,
    changed: tyro.conf.OmitArgPrefixes[Changed] = Changed(),
    storage: str | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    processes: Count = 1,
) -> None:
    """Compare losses and penalties fairly: equal trials, paired seeds, classes held out.

    Searches the settings of every loss by cross-validation over classes, trains the best anew with
    fresh seeds, and scores it once on the test classes. Writes report.html, tables and figures. The
    same command goes on where it was interrupted; started several times at once, also on machines
    that share the folder, the processes share the work.

    Args:
        recipe: the comparison, a file or a name such as compare/sec_on_margins, which is taken if
            there are --losses alone (papers/reality_check on --features).
        losses: compare these losses under the recipe's protocol in place of its own, each with the
            first one: names such as Triplet or ArcFace, or FILE.py:NAME for a class (or a function
            that makes one) of your own, called as loss(embeddings, labels). The file is run. A
            search changes what the class has in an attribute such as
            search = {"margin": searched(0.2, 0.0, 1.0)}.
        data: images to take in place of the recipe's: a record file or its folder, or a folder of
            class/image.jpg or with a list images.csv.
        features: embeddings of a frozen network in place of images, with the class of every image
            (.npz of facerec embed or of others, .parquet): a linear layer is trained on them, and a
            trial takes seconds.
        second_views: embeddings of other views of the same images, for losses that need two views.
        out: folder for state and results; by default compare/NAME.
        smoke: show in minutes that everything works: three trials, two seeds and few steps.
        changed: in place of what the recipe says.
        storage: where trials are kept: the URL of a database, or journal:PATH for a folder on a
            network; by default a SQLite file in the folder.
        device: where to compute; auto takes CUDA, then MPS, then the CPU.
        processes: processes on this machine that share the work. On --features each takes one core
            and losses of its own, and the table is the same for any number of them.
    """
    from facerec.comparison.report import write_comparison
    from facerec.comparison.summary import summarize, too_few_seeds
    from facerec.comparison.tables import headline_table, pair_table

    console = Console()
    changes = {name: value for name, value in vars(changed).items() if value is not None}
    whole = partial(_plan, recipe, losses, data, features, second_views, changes)
    make = partial(whole, smoke=smoke)
    plan = make()
    folder = out or Path("compare") / (f"{plan.name}-smoke" if smoke else plan.name)
    console.print(plan.question, style="bold")
    with progress_bar(console, "images") as progress:
        harness = _worker(plan, folder, device, storage, progress)
    few = too_few_seeds(whole() if smoke else plan)
    few = few and "without --smoke: " * smoke + few
    trial = "--smoke shows that everything works; its figures mean nothing" * smoke
    print_notes([*harness.manifest["notes"], few, trial], console)
    with process_pool(processes) as pool, progress_bar(console, "trials and final runs") as show:
        shared = make, folder, str(harness.device), storage
        helpers = [pool.submit(_help, *shared) for _ in range(1, processes)]
        results = harness.run(show)
        for helper in helpers:
            helper.result()
    summary = summarize(results)
    page = write_comparison(summary, folder)
    console.print(headline_table(summary).terminal())
    if summary.pairs:
        console.print(pair_table(summary).terminal())
    console.print(f"report: {page.resolve()}")


def _plan(
    recipe: Path | None,
    losses: tuple[str, ...],
    data: Path | None,
    features: Path | None,
    second_views: Path | None,
    changes: dict[str, Any],
    smoke: bool = False,
) -> Comparison:
    """Return the recipe's comparison with what the flags change, ``changes`` by their fields."""
    from facerec.comparison.features import FeatureData
    from facerec.comparison.image_sets import ImageData
    from facerec.comparison.protocol import Comparison, of_losses, on_features

    if recipe is None:
        if not losses:
            raise RecipeError("name a recipe, such as compare/sec_on_margins, or give --losses")
        recipe = Path("papers/reality_check" if features else "compare/sec_on_margins")
    plan = load_recipe(recipe, Comparison)
    if losses:
        plan = of_losses(plan, losses)
    if (data and features) or (second_views and not features):
        raise RecipeError("give --data with images, or --features, perhaps with --second-views")
    if data is not None:
        plan = replace(plan, data=ImageData(data))
    if features is not None:
        plan = on_features(plan, FeatureData(features, second_views))
    if smoke:
        plan = smaller(plan)
    return replace(plan, **changes)


def _help(make: Callable[[], Comparison], folder: Path, device: str, storage: str | None) -> None:
    _worker(make(), folder, device, storage).run()


def _worker(
    plan: Comparison, folder: Path, device: str, storage: str | None, faces: Progress | None = None
) -> Harness:
    import torch

    from facerec.base.devices import choose_device
    from facerec.comparison.features import FeatureData
    from facerec.comparison.harness import Harness

    if isinstance(plan.data, FeatureData):
        # Matrices so small gain nothing from threads that wait for one another.
        torch.set_num_threads(1)
    return Harness(plan, folder, choose_device(device), storage, faces)


def smaller(plan: Comparison) -> Comparison:
    """Return the comparison with few trials, seeds and steps."""

    def shortened(each: Protocol) -> Protocol:
        steps, epochs = min(each.steps_per_epoch, 8), min(each.epochs, 2)
        return replace(each, steps_per_epoch=steps, epochs=epochs)

    trials, repetitions = min(plan.trials, 3), min(plan.repetitions, 2)
    return replace(plan.with_protocols(shortened), trials=trials, repetitions=repetitions)


main = partial(run_command, compare)
