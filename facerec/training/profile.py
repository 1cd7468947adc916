"""Where the time and the memory of training steps go, measured on the spot.

Times come from the ranges that `Trainer.train_step` names. On a GPU they are those of its stream of
work, taken by events in it, so nothing waits; elsewhere those of the host. torch.profiler is not
used: it records every operator, which makes a CPU's steps 3 to 10 % longer, and on a GPU it would
not tell which part the threads of autograd work for.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from facerec.devices import has_fast_bf16
from facerec.errors import RecipeError
from facerec.heads.class_sampling import sample_size
from facerec.records.dataset import open_dataset
from facerec.training.distributed import Processes, launched
from facerec.training.plan import forward_and_backward_passes, forward_flop, head_flop
from facerec.training.recipe import Recipe
from facerec.training.trainer import AUTOCAST, Figures, Trainer

DATA = "data"

PHASES = {
    DATA: "waiting for data",
    "forward": "forward",
    "head": "head",
    "backward": "backward",
    "optimizer": "optimizer",
}
"""The ranges of a step, all but the first named by `Trainer.train_step`, and their titles."""

WARM_UP = 3
"""Steps before the first measured one, besides those whose batches the loader has ready."""

REST = "rest"

_PREFETCHED = 2  # batches that each loader process prepares ahead

_RATE = 0.3  # of sampled classes, the mildest published

_PRODUCTS, _PRODUCT_SECONDS = 10, 2.0  # how often, and how long, products are measured

_NOTEWORTHY = 0.1  # of a step's time, below which no hint is given


@dataclass(frozen=True)
class Profile:
    """What one rank measured; times are means over the measured steps."""

    steps: int
    seconds: float
    """Of a step."""
    phases: dict[str, float]
    """Seconds of each part of a step by its title, the rest included; they add up to a step."""
    flop: int
    """Of backbone and head in a step."""
    product: str
    """Numbers in which the backbone multiplies: fp32, TF32, bf16 or fp16."""
    product_rates: dict[str, float]
    """FLOP/s of a large matrix product in those, and in fp32 and bf16 where there is a choice."""
    memory: dict[str, int]
    """Bytes of each part that is known."""
    peak: int | None
    """Bytes in use at most; None where the system does not tell."""

    @property
    def rate(self) -> float:
        """FLOP/s of backbone and head in a step."""
        return self.flop / self.seconds

    @property
    def product_rate(self) -> float:
        """FLOP/s of a large matrix product as the backbone multiplies."""
        return self.product_rates[self.product]

    @property
    def memory_known(self) -> int:
        """Bytes of the known parts together."""
        return sum(self.memory.values())


class PhaseClock:
    """Takes the place of `Trainer.phase` and adds up the time spent in each named range.

    Args:
        device: where the work is done; a GPU's own clock is read there.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._spans: dict[str, list[tuple[Any, Any]]] = defaultdict(list)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the block for a range."""
        start = self.mark()
        try:
            yield
        finally:
            self._spans[name].append((start, self.mark()))

    def mark(self) -> Any:
        """Return the present point of time, for `seconds`."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        if self.device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter()

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two marks; on a GPU all work must be done."""
        if self.device.type == "cuda":
            return float(start.elapsed_time(end)) / 1e3
        return float(end - start)

    def restart(self) -> Any:
        """Forget all ranges and return the present point of time."""
        self._spans.clear()
        return self.mark()

    def totals(self) -> dict[str, float]:
        """Return the seconds of each range; on a GPU all work must be done."""
        return {
            name: sum(self.seconds(start, end) for start, end in spans)
            for name, spans in self._spans.items()
        }


def profile_recipe(recipe: Recipe, device: str, steps: int, console: Console) -> None:
    """Measure some steps of ``recipe``, alone or as one of torchrun's processes, and print them.

    Nothing is written. Only the main process prints.

    Args:
        recipe: what would be trained.
        device: see `choose_device`.
        steps: how many to measure, after those that warm up.
        console: where the main process prints.

    Raises:
        FacerecError: the recipe cannot be trained, or is too short for so many steps.
    """
    with launched(device) as processes:
        # In a function, so that what holds on to the process group is gone before the group is.
        _profile(recipe, processes, steps, console)


def _profile(recipe: Recipe, processes: Processes, steps: int, console: Console) -> None:
    trainer = Trainer(recipe, open_dataset(recipe.data, recipe.seed), processes)
    profiles = processes.gather_objects(profile_steps(trainer, steps))
    if processes.is_main:
        show(profiles, trainer, console)


def profile_steps(trainer: Trainer, steps: int) -> Profile:
    """Train ``steps`` steps after some to warm up, and tell where their time and memory went.

    All ranks call this together.

    Args:
        trainer: fresh; its weights change.
        steps: how many to measure.

    Raises:
        RecipeError: the recipe has too few steps.
    """
    # The batches that lie ready hide how fast the loader is.
    warm_up = WARM_UP + _PREFETCHED * trainer.recipe.workers
    if steps < 1:
        raise RecipeError(f"profile_steps must be at least 1, found {steps}")
    if trainer.total_steps < warm_up + steps:
        raise RecipeError(
            f"the recipe has {trainer.total_steps} steps, too few to measure {steps} after "
            f"{warm_up} that warm up; set fewer --profile-steps, more --epochs or a smaller "
            "--batch-size"
        )
    device, clock = trainer.device, PhaseClock(trainer.device)
    start = clock.mark()
    pending: tuple[int, Figures] | None = None
    batches = trainer._batches()
    with _tapped(trainer, clock), _head_gradient(trainer) as head_gradients:
        for step in range(warm_up + steps):
            if step == warm_up:
                _wait(device)
                trainer.processes.barrier()
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats(device)
                start = clock.restart()
            with clock(DATA):
                batch = next(batches)
            figures = trainer.train_step(batch)
            if pending is not None:  # a step late, as `Trainer.fit` does
                trainer._check_finite(*pending)
            pending = (trainer.step, figures)
        end = clock.mark()
    _wait(device)
    seconds, totals = clock.seconds(start, end) / steps, clock.totals()
    phases = {title: totals[name] / steps for name, title in PHASES.items()}
    phases[REST] = seconds - sum(phases.values())
    memory, peak = _known_memory(trainer, max(head_gradients)), _peak_memory(device)
    trainer.processes.barrier()  # ranks that share a processor share it now as in the steps
    product = _multiplication(device, trainer.precision)
    kinds = {product, "fp32", "bf16"} if has_fast_bf16(device) else {product}
    return Profile(
        steps=steps,
        seconds=seconds,
        phases=phases,
        flop=_flop(trainer),
        product=product,
        product_rates={kind: product_rate(device, kind) for kind in sorted(kinds)},
        memory=memory,
        peak=peak,
    )


@contextlib.contextmanager
def _tapped(trainer: Trainer, clock: PhaseClock) -> Iterator[None]:
    """Let ``clock`` hear of the phases of the trainer's steps."""
    original, trainer.phase = trainer.phase, clock
    try:
        yield
    finally:
        trainer.phase = original


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---------------------------------------------------------------- products


def _flop(trainer: Trainer) -> int:
    """Return the FLOP of backbone and head on this rank in a step."""
    recipe, local = trainer.recipe, trainer.head.num_local
    rate, share = recipe.head.sample_rate, recipe.batch_size // trainer.processes.world_size
    visited = local if rate == 1 else sample_size(rate, local, recipe.batch_size)
    backbone = forward_and_backward_passes(recipe) * share * forward_flop(recipe.backbone)
    return backbone + head_flop(recipe.batch_size, visited, recipe.backbone.embedding_size)


def _multiplication(device: torch.device, precision: str) -> str:
    """Return the kind of numbers in which convolutions multiply at a backbone's precision."""
    tf32 = device.type == "cuda" and precision == "fp32" and torch.backends.cudnn.allow_tf32
    return "TF32" if tf32 else precision


def product_size(device: torch.device) -> int:
    """Return the length of the sides of the matrices that `product_rate` multiplies."""
    return 1024 if device.type == "cpu" else 8192


def product_rate(device: torch.device, kind: str) -> float:
    """Measure a large matrix product; the fastest of several counts.

    Args:
        device: where; a CPU uses the threads that the steps use.
        kind: of numbers: fp32, TF32, bf16 or fp16.

    Returns:
        FLOP/s.
    """
    size, dtype = product_size(device), AUTOCAST.get(kind, torch.float32)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    clock = PhaseClock(device)
    times: list[float] = []
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if kind == "TF32" else "highest")
    try:
        while len(times) < _PRODUCTS and sum(times) < _PRODUCT_SECONDS:
            start = clock.mark()
            torch.mm(left, right)
            end = clock.mark()
            _wait(device)
            times.append(clock.seconds(start, end))
    finally:
        torch.set_float32_matmul_precision(before)
    return 2 * size**3 / min(times)


# ---------------------------------------------------------------- memory


def _known_memory(trainer: Trainer, head_gradient: int) -> dict[str, int]:
    """Return the bytes of weights, gradients and optimizer state."""
    backbone, head = trainer.backbone, trainer.head
    gradients = [p.grad for p in backbone.parameters() if p.grad is not None]
    return {
        "backbone: weights": _bytes([*backbone.parameters(), *backbone.buffers()]),
        "backbone: gradients": _bytes(gradients),
        "backbone: optimizer state": _state(trainer.optimizer, backbone),
        "head: class centres": _bytes([*head.parameters(), *head.buffers()]),
        "head: gradient": head_gradient,
        "head: optimizer state": _state(trainer.optimizer, head),
    }


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@contextlib.contextmanager
def _head_gradient(trainer: Trainer) -> Iterator[list[int]]:
    """Fill a list with the bytes of the head's gradients, which a sampled head drops at once."""
    found: list[int] = []

    def measure(weight: Tensor) -> None:
        gradient = weight.grad
        assert gradient is not None
        parts = [gradient]
        if gradient.is_sparse:
            parts = [gradient._indices(), gradient._values()]
        found.append(_bytes(parts))

    handle = trainer.head.weight.register_post_accumulate_grad_hook(measure)
    try:
        yield found
    finally:
        handle.remove()


def _state(optimizer: torch.optim.Optimizer, module: nn.Module) -> int:
    values = [v for p in module.parameters() for v in optimizer.state.get(p, {}).values()]
    return _bytes([value for value in values if isinstance(value, Tensor)])


def _peak_memory(device: torch.device) -> int | None:
    """Return the bytes that tensors took at most on a GPU, or this process on a Linux CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if device.type != "cpu" or not status.is_file():
        return None
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


# ---------------------------------------------------------------- what is printed


def show(profiles: list[Profile], trainer: Trainer, console: Console) -> None:
    """Print the profiles of all ranks: mean times, and the memory of the fullest rank."""
    main = profiles[0]
    console.print(_times(profiles))
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
    console.print(_memory(profiles, trainer.device))
    found = hint(profiles, trainer)
    if found is not None:
        console.print(f"\nhint: {found}", style="yellow", highlight=False, markup=False)


def _times(profiles: list[Profile]) -> Table:
    several = len(profiles) > 1
    step = sum(profile.seconds for profile in profiles) / len(profiles)
    table = Table(
        title=f"time of a step, mean of {profiles[0].steps}", title_justify="left", show_footer=True
    )
    table.add_column("part", footer="step")
    table.add_column("ms", footer=f"{1e3 * step:,.1f}", justify="right")
    table.add_column("%", footer="100.0", justify="right")
    if several:
        table.add_column("ms, least and most of a rank", justify="right")
    for title in profiles[0].phases:
        values = [profile.phases[title] for profile in profiles]
        mean = sum(values) / len(values)
        row = [title, f"{1e3 * mean:,.1f}", f"{100 * mean / step:.1f}"]
        if several:
            row.append(f"{1e3 * min(values):,.1f} – {1e3 * max(values):,.1f}")
        table.add_row(*row)
    return table


def _memory(profiles: list[Profile], device: torch.device) -> Table:
    fullest = max(profiles, key=lambda p: p.peak or p.memory_known)
    known = fullest.memory_known
    unit, name = (10**9, "GB") if (fullest.peak or known) >= 10**9 else (10**6, "MB")
    of = "the fullest rank" if len(profiles) > 1 else "the process"
    table = Table(title=f"memory of {of}, {name}", title_justify="left", show_footer=True)
    table.add_column("part", footer="at most")
    shown = "not known here" if fullest.peak is None else f"{fullest.peak / unit:,.3f}"
    table.add_column(name, footer=shown, justify="right")
    for part, size in fullest.memory.items():
        table.add_row(part, f"{size / unit:,.3f}")
    if fullest.peak is not None:
        rest = "activations, images, work space"
        if device.type == "cpu":
            rest += ", Python, libraries"
        table.add_row(rest, f"{(fullest.peak - known) / unit:,.3f}")
    return table


def _flops(rate: float) -> str:
    for unit, name in ((1e15, "PFLOP/s"), (1e12, "TFLOP/s")):
        if rate >= unit:
            return f"{rate / unit:.2f} {name}"
    return f"{rate / 1e9:.1f} GFLOP/s"


def hint(profiles: list[Profile], trainer: Trainer) -> str | None:
    """Return a sentence on the largest part of the step that other settings would avoid, if any.

    Args:
        profiles: of all ranks.
        trainer: what was measured.
    """
    count = len(profiles)
    step = sum(profile.seconds for profile in profiles) / count
    share = {
        title: sum(profile.phases[title] for profile in profiles) / count / step
        for title in profiles[0].phases
    }
    found = [*_data_hint(share["waiting for data"], trainer), *_precision_hint(share, profiles[0])]
    # A rank that comes early waits in the head for the others.
    head = min(profile.phases["head"] for profile in profiles) / step
    found += _head_hint(head, profiles[0], trainer)
    avoidable, sentence = max(found, default=(0.0, ""))
    return sentence if avoidable >= _NOTEWORTHY else None


def _data_hint(share: float, trainer: Trainer) -> Iterator[tuple[float, str]]:
    recipe = trainer.recipe
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", trainer.processes.world_size))
    busy = torch.get_num_threads() if trainer.device.type == "cpu" else 1
    room = _cores() // ranks - busy - recipe.workers
    begin = f"waiting for data takes {100 * share:.0f} %"
    if room > 0:
        yield share, f"{begin}: raise --workers (now {recipe.workers}, cores for {room} more)"
    elif recipe.workers > 0:
        yield (
            share,
            f"{begin}, and {recipe.workers} workers a rank leave no core free: decode on more "
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
    if head.sample_rate == 1 and visited < local:
        yield (
            whole * (1 - visited / local),
            f"{begin}: --head.sample-rate {_RATE:g} would visit {visited:,} of its {local:,} "
            "classes in a step",
        )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
