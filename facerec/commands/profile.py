"""`facerec train RECIPE --profile`: print where the time and the memory of steps go."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from facerec.commands.cli import Console
from facerec.commands.recipes import open_data, open_targets
from facerec.environment import available_cores
from facerec.report.table import Cell, Table, text_table
from facerec.training.recipe import Recipe

if TYPE_CHECKING:
    import torch

    from facerec.training.distributed import Processes
    from facerec.training.profile import Profile
    from facerec.training.trainer import Trainer

_RATE = 0.3  # of sampled classes, the mildest published

_NOTEWORTHY = 0.1  # of a step's time, below which no hint is given


def profile_recipe(recipe: Recipe, device: str, steps: int, console: Console) -> None:
    """Measure some steps of ``recipe``, alone or as one of torchrun's processes, and print them.

    Nothing is written. Only the main process prints.

    Raises:
        FacerecError: the recipe cannot be trained, or is too short for so many steps.
    """
    from facerec.training.distributed import launched

    with launched(device) as processes:
        # In a function, so that what holds on to the process group is gone before the group is.
        _profile(recipe, processes, steps, console)


def _profile(recipe: Recipe, processes: Processes, steps: int, console: Console) -> None:
    from facerec.training.initialization import resolved
    from facerec.training.profile import profile_steps
    from facerec.training.trainer import Trainer

    recipe = processes.on_main(functools.partial(resolved, recipe))
    if recipe.finetune.freeze_steps is not None:
        # Steps as most of them are: with all layers that learn.
        finetune = replace(recipe.finetune, freeze_steps=0, freeze_layers=())
        recipe = replace(recipe, finetune=finetune)
    speaker = console if processes.is_main else None
    dataset = open_data(recipe, speaker)
    targets = open_targets(recipe, dataset, processes, speaker)
    trainer = Trainer(recipe, dataset, processes, targets=targets)
    profiles = processes.gather_objects(profile_steps(trainer, steps))
    if processes.is_main:
        show(profiles, trainer, console)


def show(profiles: list[Profile], trainer: Trainer, console: Console) -> None:
    """Print the profiles of all ranks: mean times, and the memory of the fullest rank."""
    import torch

    from facerec.training.profile import product_size

    main = profiles[0]
    console.print(_times(profiles).terminal())
    images = trainer.recipe.batch_size / main.seconds
    threads = torch.get_num_threads()
    where = f"{len(profiles)} ranks" if len(profiles) > 1 else "one process"
    console.print(f"\n{images:,.1f} images/s over {where}", highlight=False)
    rate = sum(profile.rate for profile in profiles) / len(profiles)
    product = sum(profile.product_rate for profile in profiles) / len(profiles)
    side = product_size(trainer.device)
    kind = f"{side} × {side} × {side} in {main.product}"
    if trainer.device.type == "cpu":
        kind += f", {threads} threads" if threads > 1 else ", one thread"
    console.print(
        f"backbone and head: {_flops(rate)} on each rank, {100 * rate / product:.0f} % of the "
        f"{_flops(product)} of a matrix product ({kind})",
        highlight=False,
    )
    console.print()
    console.print(_memory(profiles, trainer.device).terminal())
    sentence = hint(profiles, trainer)
    if sentence is not None:
        console.print(f"\nhint: {sentence}", style="yellow", highlight=False)


def _times(profiles: list[Profile]) -> Table[Any]:
    several = len(profiles) > 1
    step = sum(profile.seconds for profile in profiles) / len(profiles)
    rows: list[list[Cell | str]] = []
    for title in profiles[0].phases:
        values = [profile.phases[title] for profile in profiles]
        mean = sum(values) / len(values)
        row: list[Cell | str] = [title, f"{1e3 * mean:,.1f}", f"{100 * mean / step:.1f}"]
        if several:
            row.append(f"{1e3 * min(values):,.1f} – {1e3 * max(values):,.1f}")
        rows.append(row)
    total = "step", f"{1e3 * step:,.1f}", "100.0", *([""] if several else [])
    rows.append([Cell(text, strong=True) for text in total])
    headings = "part", "ms", "%", *(["ms, least and most of a rank"] if several else [])
    return text_table(f"time of a step, mean of {profiles[0].steps}", headings, rows)


def _memory(profiles: list[Profile], device: torch.device) -> Table[Any]:
    fullest = max(profiles, key=lambda p: p.peak or p.memory_known)
    known = fullest.memory_known
    unit, name = (10**9, "GB") if (fullest.peak or known) >= 10**9 else (10**6, "MB")
    of = "the fullest rank" if len(profiles) > 1 else "the process"
    sizes = dict(fullest.memory)
    if fullest.peak is not None:
        rest = "activations, images, work space"
        if device.type == "cpu":
            rest += ", Python, libraries"
        sizes[rest] = fullest.peak - known
    rows: list[list[Cell | str]] = [[kind, f"{size / unit:,.3f}"] for kind, size in sizes.items()]
    shown = "not known here" if fullest.peak is None else f"{fullest.peak / unit:,.3f}"
    rows.append([Cell(text, strong=True) for text in ("at most", shown)])
    return text_table(f"memory of {of}, {name}", ("part", name), rows)


def _flops(rate: float) -> str:
    for unit, name in ((1e15, "PFLOP/s"), (1e12, "TFLOP/s")):
        if rate >= unit:
            return f"{rate / unit:.2f} {name}"
    return f"{rate / 1e9:.1f} GFLOP/s"


def hint(profiles: list[Profile], trainer: Trainer) -> str | None:
    """Return a sentence on the largest part of the step that other settings would avoid, if any."""
    count = len(profiles)
    step = sum(profile.seconds for profile in profiles) / count
    share = {
        title: sum(profile.phases[title] for profile in profiles) / count / step
        for title in profiles[0].phases
    }
    hints = [*_data_hint(share["waiting for data"], trainer), *_precision_hint(share, profiles[0])]
    # A rank that comes early waits in the head for the others.
    head = min(profile.phases["head"] for profile in profiles) / step
    hints += _head_hint(head, profiles[0], trainer)
    hints += _memory_hint(sum(profile.system for profile in profiles) / count, trainer)
    avoidable, sentence = max(hints, default=(0.0, ""))
    return sentence if avoidable >= _NOTEWORTHY else None


def _data_hint(share: float, trainer: Trainer) -> Iterator[tuple[float, str]]:
    import torch

    workers = trainer.workers
    busy = torch.get_num_threads() if trainer.device.type == "cpu" else 1
    room = available_cores() // trainer.processes.on_this_machine - busy - workers
    begin = f"waiting for data takes {100 * share:.0f} %"
    if room > 0:
        yield share, f"{begin}: raise --workers (now {workers}, cores for {room} more)"
    elif workers > 0:
        yield (
            share,
            f"{begin}, and {workers} workers a rank leave no core free: decode on more "
            "cores, or store images in the size that is trained",
        )


def _precision_hint(share: dict[str, float], profile: Profile) -> Iterator[tuple[float, str]]:
    factor = profile.product_rates.get("bf16", 0.0) / profile.product_rate
    if factor > 1:
        work = share["forward"] + share["backward"]
        yield (
            work * (1 - 1 / factor),
            f"forward and backward take {100 * work:.0f} %, and a matrix product in bf16 is "
            f"{factor:.1f} times as fast as in {profile.product} here: try --precision bf16",
        )


def _head_hint(share: float, profile: Profile, trainer: Trainer) -> Iterator[tuple[float, str]]:
    from facerec.heads.class_sampling import sample_size

    head, rates = trainer.recipe.head, profile.product_rates
    whole = min(4 * share, 1.0)  # of its four products one is forward
    begin = f"the head takes about {100 * whole:.0f} % with its share of backward"
    factor = rates.get("bf16", 0.0) / rates.get("fp32", math.inf)
    if head.precision == "fp32" and factor > 1:
        yield (
            whole * (1 - 1 / factor),
            f"{begin}, and a matrix product in bf16 is {factor:.1f} times as fast as in fp32 here: "
            "try --head.precision bf16",
        )
    local = trainer.head.num_local
    visited = sample_size(_RATE, local, trainer.recipe.batch_size)
    if head.largest_sample_rate == 1 and visited < local:
        yield (
            whole * (1 - visited / local),
            f"{begin}: --head.sample-rate {_RATE:g} would visit {visited:,} of its {local:,} "
            "classes in a step",
        )


def _memory_hint(share: float, trainer: Trainer) -> Iterator[tuple[float, str]]:
    if trainer.device.type == "cpu" and not _keeps_memory():
        yield (
            share,
            f"the system takes {100 * share:.0f} % of the CPU time, mostly to hand out memory that "
            "every step asks for anew: preload an allocator that keeps it, such as tcmalloc "
            "(LD_PRELOAD=libtcmalloc_minimal.so.4; package libtcmalloc-minimal4 on Debian)",
        )


def _keeps_memory() -> bool:
    """Tell whether an allocator is loaded that keeps freed memory, as glibc's does not."""
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return True  # not Linux: nothing is known of its allocator
    loaded = maps.read_text()
    return any(name in loaded for name in ("tcmalloc", "jemalloc", "mimalloc"))
