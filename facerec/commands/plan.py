"""``facerec plan``: what a recipe's step needs of every rank, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from facerec.base.limits import Count, Flags, Limits, Positive
from facerec.commands.cli import Console, run_command
from facerec.commands.recipes import open_data, recipe_argument
from facerec.report.table import Table, print_facts
from facerec.training.recipe import Recipe

GB = 10**9

SHOWN = (
    *("data", "path", "backbone", "name", "embedding_size", "head", "sample_rate"),
    *("batch_size", "accumulation", "precision", "recompute"),
)
"""Fields of the recipe that matter for a step; others are left to --help-all."""


@dataclass(frozen=True)
class Step(Flags):
    """What the step is planned for."""

    ranks: Annotated[int, Limits(1, 2**20)] = 1
    """Processes that share the training, each with a device of its own."""
    classes: Count | None = None
    """People in the training set; by default those of the recipe's data, which is then opened."""
    device_memory: Positive | None = None
    """Memory of one device in GB of 10⁹ bytes: say whether the step fits."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Kind of device: cuda is a GPU that computes in bfloat16, cpu is this computer's."""


def show_plan(recipe: Recipe, options: Step, console: Console) -> None:
    """Print what a step of ``recipe`` needs.

    Raises:
        FacerecError: the batch does not divide among the ranks, or the data cannot be opened.
    """
    from facerec.training.initialization import resolved
    from facerec.training.plan import plan_step

    recipe = resolved(recipe)
    classes = options.classes
    if classes is None:
        classes = open_data(recipe, console).num_classes
    plan = plan_step(recipe, classes, options.ranks, options.device)
    each = recipe.batch_size // (options.ranks * recipe.accumulation)
    facts = {
        "backbone": f"{recipe.backbone.name}, {plan.precision} on {options.device}",
        "batch": f"{recipe.batch_size:,} images on {options.ranks} ranks, {recipe.accumulation} × "
        f"{each:,} each",
        "classes": f"{classes:,}, of which rank 0 holds {plan.classes:,} and visits "
        f"{plan.visited:,} in a step",
    }
    print_facts(facts.items(), console)
    flop = {"backbone": plan.backbone_flop, "head": plan.head_flop}
    for caption, values, unit in (
        ("memory of a rank, GB (10⁹ bytes), estimated without the allocator", plan.parts, GB),
        ("network, GB that a rank sends in a step, and as many received", plan.transfers, GB),
        ("arithmetic of a rank, TFLOP a step", flop, 10**12),
    ):
        if values:
            every = {**values, "together": sum(values.values())}
            rows = [(name, f"{value / unit:,.3f}") for name, value in every.items()]
            console.print(Table(caption, ("what", "how much"), rows).terminal())
    if (size := options.device_memory) is not None:
        fits = plan.memory <= size * GB
        verb = "fits in" if fits else "does not fit in"
        console.print(f"{plan.memory / GB:.2f} GB {verb} {size:g} GB", style="bold")
        if not fits:
            console.print(
                "less memory takes a smaller --head.sample-rate, --recompute, a larger "
                "--accumulation, or more --ranks"
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; the recipe's path comes first."""
    _, given, arguments = recipe_argument("plan", argv)

    def plan(
        options: Annotated[Step, tyro.conf.arg(name="")] = Step(),
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = given,
    ) -> None:
        """Predict what a training step needs: memory, network traffic and arithmetic.

        Nothing is trained, and with --classes no data is read. RECIPE is a file, or the name of one
        of facerec's. What it says can be changed by options; here are those that matter for a step,
        and --help-all shows all.
        """
        show_plan(recipe, options, Console())

    run_command(plan, arguments, SHOWN)
