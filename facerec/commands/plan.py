"""``facerec plan``: what a recipe's step needs of every rank, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from facerec.commands.cli import Console, run_command
from facerec.commands.recipes import open_data, recipe_argument
from facerec.limits import Count, Flags, Limits, Positive
from facerec.report.table import Cell, Table, fact_lines, text_table
from facerec.training.recipe import Recipe

if TYPE_CHECKING:
    from facerec.training.plan import Plan

GB = 10**9


@dataclass(frozen=True)
class Options(Flags):
    """What the step is planned for."""

    ranks: Annotated[int, Limits(1, 2**20)] = 1
    """Processes that share the training, each with a device of its own."""
    classes: Count | None = None
    """People in the training set; by default those of the recipe's data, which is then opened."""
    device_memory: Positive | None = None
    """Memory of one device in GB of 10⁹ bytes: say whether the step fits."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Kind of device: cuda is a GPU that computes in bfloat16, cpu is this computer's."""


def show_plan(recipe: Recipe, options: Options, console: Console) -> None:
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
    console.print(fact_lines(_facts(recipe, options, classes, plan)))
    console.print()
    tables = [_memory(plan), *([_network(plan)] if plan.transfers else []), _arithmetic(plan)]
    for table in tables:
        console.print(table.terminal())
    if options.device_memory is not None:
        _print_verdict(plan, options.device_memory, console)
    for line in _assumptions(recipe, options, plan):
        console.print(line, style="dim", highlight=False)


def _facts(recipe: Recipe, options: Options, classes: int, plan: Plan) -> Iterator[tuple[str, str]]:
    micro = recipe.batch_size // (options.ranks * recipe.accumulation)
    times = f" in {recipe.accumulation} micro-batches" if recipe.accumulation > 1 else ""
    yield "backbone", f"{recipe.backbone.name}, {plan.precision} on {options.device}"
    yield (
        "batch",
        f"{recipe.batch_size:,} images on {options.ranks} ranks, "
        f"{recipe.batch_size // options.ranks:,} "
        f"each{times}" + (f" of {micro:,}" if times else ""),
    )
    yield (
        "classes",
        f"{classes:,}, of which rank 0 holds {plan.classes:,} and visits {plan.visited:,} "
        "in a step",
    )


def _memory(plan: Plan) -> Table[Any]:
    unit, name = _unit(plan.memory)

    rows: list[list[Cell | str]] = [
        [part, *(f"{size / unit:,.2f}" if size else "" for size in use)]
        for part, use in plan.uses.items()
        if any(use)
    ]
    totals = (Cell(f"{size / unit:,.2f}", strong=size == plan.memory) for size in plan.totals)
    rows.append(["together", *totals])
    caption = (
        f"memory of a rank in {name}, while the head's backward pass, the backbone's passes and "
        "the update are at work"
    )
    return text_table(caption, ("part", "head", "backbone", "update"), rows)


def _network(plan: Plan) -> Table[Any]:
    traffic = sum(plan.transfers.values())
    unit, name = _unit(traffic)
    rows = [(purpose, f"{size / unit:,.3f}") for purpose, size in plan.transfers.items()]
    caption = f"network, {name} that a rank sends in a step, and as many received"
    return _summed(caption, ("what", "sent"), rows, ("together", f"{traffic / unit:,.3f}"))


def _arithmetic(plan: Plan) -> Table[Any]:
    total = "together", f"{(plan.backbone_flop + plan.head_flop) / 1e12:,.3f}"
    rows = [
        ("backbone", f"{plan.backbone_flop / 1e12:,.3f}"),
        ("head", f"{plan.head_flop / 1e12:,.3f}"),
    ]
    return _summed("arithmetic of a rank, TFLOP a step", ("where", "TFLOP"), rows, total)


def _summed(
    caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], total: Sequence[str]
) -> Table[Any]:
    return text_table(caption, headings, [*rows, [Cell(text, strong=True) for text in total]])


def _print_verdict(plan: Plan, memory: float, console: Console) -> None:
    fits = plan.memory <= memory * GB
    console.print(
        f"{plan.memory / GB:.2f} GB {'fits in' if fits else 'does not fit in'} {memory:g} GB",
        style="green" if fits else "red",
        highlight=False,
    )
    if not fits:
        console.print(
            "less memory takes a smaller --head.sample-rate, --recompute, a larger --accumulation, "
            "or more --ranks",
            highlight=False,
        )


def _assumptions(recipe: Recipe, options: Options, plan: Plan) -> list[str]:
    from facerec.training.network import compile_mode

    lines = [
        "Memory counts tensors. Not in it: the allocator's fragmentation, the CUDA context, the "
        "work space of cuDNN and NCCL, and, on a CPU, Python, the libraries and the copy of the "
        "state that is made for a checkpoint."
        if options.device == "cpu"
        else "Memory counts tensors. Not in it: the allocator's fragmentation, the CUDA context "
        "and the work space of cuDNN, cuBLAS and NCCL.",
        "Activations are what autograd keeps on a CPU; FLOP are those of convolutions and matrix "
        "products, an addition and a product each one.",
    ]
    if options.ranks > 1:
        lines.append(
            "Rank 0 is planned for, which holds the most classes. Bytes on the network are those "
            "of ring algorithms."
        )
    if recipe.precision == "auto":
        lines.append(f"Precision auto is taken for {plan.precision}.")
    if compile_mode(recipe.compile, options.device, recipe.recompute):
        lines.append("The step is planned as if it were not compiled, which needs more memory.")
    return lines


def _unit(largest: int) -> tuple[int, str]:
    return (GB, "GB (10⁹ bytes)") if largest >= GB else (10**6, "MB (10⁶ bytes)")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; the recipe's path comes first."""
    _, given, arguments = recipe_argument("plan", argv)

    @tyro.conf.configure(tyro.conf.AvoidSubcommands)
    def plan(
        options: Annotated[Options, tyro.conf.arg(name="")] = Options(),
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = given,
    ) -> None:
        """Predict memory, network traffic and arithmetic of a step: RECIPE.py [--ranks W].

        Nothing is trained, and with --classes no data is read. The recipe's path comes first; every
        field of the recipe can then be overridden by its dotted name.
        """
        show_plan(recipe, options, Console())

    run_command(plan, arguments)
