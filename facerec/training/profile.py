"""Where the time and the memory of training steps go, measured on the spot.

Times come from the ranges that `Learner.train_step` names. On a GPU they are those of its stream of
work, taken by events in it, so nothing waits; elsewhere those of the host. torch.profiler is not
used: it records every operator, which makes a CPU's steps 3 to 10 % longer, and on a GPU it would
not tell which part the threads of autograd work for.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from facerec.devices import has_fast_bf16
from facerec.errors import RecipeError
from facerec.heads.class_sampling import sample_size
from facerec.training.learner import AUTOCAST, Learner
from facerec.training.nonfinite import LateFigures
from facerec.training.plan import backbone_flop, head_flop
from facerec.training.trainer import Trainer

DATA = "data"

PHASES = {
    DATA: "waiting for data",
    "forward": "forward",
    "head": "head",
    "backward": "backward",
    "optimizer": "optimizer",
}
"""The ranges of a step, all but the first named by `Learner.train_step`, and their titles."""

WARM_UP = 3
"""Steps before the first measured one, besides those whose batches the loader has ready."""

REST = "rest"

_PREFETCHED = 2  # batches that each loader process prepares ahead

_PRODUCTS, _PRODUCT_SECONDS = 10, 2.0  # how often, and how long, products are measured


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
    system: float
    """Share of the CPU time of the steps that the system took, mostly to hand out fresh memory."""

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
    """Takes the place of `Learner.phase` and adds up the time spent in each named range.

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
    warm_up = WARM_UP + _PREFETCHED * trainer.workers
    if steps < 1:
        raise RecipeError(f"profile_steps must be at least 1, found {steps}")
    if trainer.total_steps < warm_up + steps:
        raise RecipeError(
            f"the recipe has {trainer.total_steps} steps, too few to measure {steps} after "
            f"{warm_up} that warm up; set fewer --profile-steps, more --epochs or a smaller "
            "--batch-size"
        )
    device, clock = trainer.device, PhaseClock(trainer.device)
    start, before = clock.mark(), os.times()
    pending: tuple[int, LateFigures] | None = None
    batches = trainer._batches()
    with _tapped(trainer, clock), _head_gradient(trainer) as head_gradients:
        for step in range(warm_up + steps):
            if step == warm_up:
                _wait(device)
                trainer.processes.barrier()
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats(device)
                start, before = clock.restart(), os.times()
            with clock(DATA):
                batch = next(batches)
            figures = trainer.train_step(batch)
            if pending is not None:  # a step late, as `Trainer.fit` does
                trainer._check_finite(*pending)
            pending = (trainer.step, LateFigures(figures["loss"], figures["norm_mean"]))
        end, after = clock.mark(), os.times()
    _wait(device)
    seconds, totals = clock.seconds(start, end) / steps, clock.totals()
    phases = {title: totals[name] / steps for name, title in PHASES.items()}
    phases[REST] = seconds - sum(phases.values())
    memory, peak = _known_memory(trainer, max(head_gradients, default=0)), peak_memory(device)
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
        system=_system_share(before, after),
    )


def _system_share(before: os.times_result, after: os.times_result) -> float:
    system, user = after.system - before.system, after.user - before.user
    return system / (system + user) if system + user > 0 else 0.0


@contextlib.contextmanager
def _tapped(learner: Learner, clock: PhaseClock) -> Iterator[None]:
    """Let ``clock`` hear of the phases of the learner's steps."""
    original, learner.phase = learner.phase, clock
    try:
        yield
    finally:
        learner.phase = original


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---------------------------------------------------------------- products


def _flop(learner: Learner) -> int:
    """Return the FLOP of backbone and head on this rank in a step."""
    recipe, local = learner.recipe, learner.head.num_local
    rate, share = learner.head.sample_rate, recipe.batch_size // learner.processes.world_size
    visited = local if rate == 1 else sample_size(rate, local, recipe.batch_size)
    centers = visited * learner.head.centers_per_class
    backbone = share * backbone_flop(recipe)
    return backbone + head_flop(recipe.batch_size, centers, recipe.backbone.embedding_size)


def _multiplication(device: torch.device, precision: str) -> str:
    """Return the kind of numbers in which convolutions multiply at a backbone's precision."""
    tf32 = device.type == "cuda" and precision == "fp32" and torch.backends.cudnn.allow_tf32
    return "TF32" if tf32 else precision


def product_size(device: torch.device) -> int:
    """Return the length of the sides of the matrices that `product_rate` multiplies."""
    return 1024 if device.type == "cpu" else 8192


def product_rate(device: torch.device, kind: str, size: int | None = None) -> float:
    """Measure a large matrix product; the fastest of several counts.

    Args:
        device: where; a CPU uses the threads that the steps use.
        kind: of numbers: fp32, TF32, bf16 or fp16.
        size: length of the sides of the matrices, by default `product_size`.

    Returns:
        FLOP/s.
    """
    size, dtype = size or product_size(device), AUTOCAST.get(kind, torch.float32)
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


def _known_memory(learner: Learner, head_gradient: int) -> dict[str, int]:
    """Return the bytes of weights, their average, gradients and optimizer state."""
    backbone, head, average = learner.backbone, learner.head, learner.average
    gradients = [p.grad for p in backbone.parameters() if p.grad is not None]
    kept = [] if average is None else [*average.module.parameters(), *average.module.buffers()]
    return {
        "backbone: weights": _bytes([*backbone.parameters(), *backbone.buffers()]),
        **({"backbone: moving average": _bytes(kept)} if kept else {}),
        "backbone: gradients": _bytes(gradients),
        "backbone: optimizer state": _state(learner.optimizer, backbone),
        "head: class centres": _bytes([*head.parameters(), *head.buffers()]),
        "head: gradient": head_gradient,
        "head: optimizer state": _state(learner.optimizer, head),
    }


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@contextlib.contextmanager
def _head_gradient(learner: Learner) -> Iterator[list[int]]:
    """Fill a list with the bytes of the head's gradients, of which there are none if none is kept.

    A step takes a gradient as soon as it can, so it is measured where it is made.
    """
    sizes: list[int] = []
    centers = learner.centers
    if centers is None:
        yield sizes
        return
    keep = centers.keep

    def measure(rows: Tensor | None, tiles: Iterator[tuple[slice, Tensor]]) -> None:
        keep(rows, tiles)
        gradient = learner.head.weight.grad
        assert gradient is not None
        sizes.append(_bytes([gradient._values() if gradient.is_sparse else gradient]))

    centers.keep = measure  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        del centers.keep


def _state(optimizer: torch.optim.Optimizer, module: nn.Module) -> int:
    values = [v for p in module.parameters() for v in optimizer.state.get(p, {}).values()]
    return _bytes([value for value in values if isinstance(value, Tensor)])


def peak_memory(device: torch.device) -> int | None:
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
