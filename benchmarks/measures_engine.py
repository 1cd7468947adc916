"""Measurements of the training engine against its plain PyTorch form, see `measures`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from apart import apart, peak
from clock import product_rate
from noise import empty_set, random_batches
from plain_loop import dense_arcface
from rows import Row
from torch import Tensor, nn

from facerec.backbones import Backbone
from facerec.base.devices import has_fast_bf16
from facerec.heads import SEC, ArcFace, MarginClassifier
from facerec.heads.classifier import Precision
from facerec.heads.margin_softmax import margin_softmax
from facerec.heads.tiles import TileSettings
from facerec.records import Data
from facerec.records.dataset import Batch
from facerec.training import SGD, Head, Recipe
from facerec.training.distributed import Processes
from facerec.training.learner import Learner
from facerec.training.plan import plan_step
from facerec.training.row_update import RowUpdate

_TURN = 4  # passes


class _Head:
    """One side of the comparison: forward and backward from zeroed gradients."""

    def __init__(self, side: str, embeddings: Tensor, weight: Tensor, labels: Tensor) -> None:
        self.embeddings = embeddings.clone().requires_grad_()
        self.weight, self.labels = nn.Parameter(weight), labels
        self.loss: Callable[[], Tensor]
        if side == "dense":
            self.loss = lambda: dense_arcface(self.embeddings, self.weight, labels)
        else:
            margin = ArcFace(wrap="none")
            self.loss = lambda: (
                margin_softmax(
                    *(self.embeddings, self.weight, labels, margin),
                    settings=TileSettings(reduced=side == "bf16"),
                ).loss
            )

    def __call__(self) -> float:
        self.embeddings.grad = self.weight.grad = None
        loss = self.loss()
        loss.backward()
        return loss.item()


def _heads(
    sides: list[str], batch: int, size: int, classes: int, kind: type[_Head] = _Head
) -> list[_Head]:
    """Return heads over the same centres."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.empty(classes, size).normal_(0, 0.01, generator=generator)
    embeddings = torch.randn(batch, size, generator=generator)
    labels = torch.randint(classes, (batch,), generator=generator)
    return [kind(side, embeddings, weight, labels) for side in sides]


def _fastest(
    heads: dict[str, _Head], expected: float, repeats: int, threads: int
) -> dict[str, float]:
    now = time.process_time if threads == 1 else time.perf_counter
    seconds = dict.fromkeys(heads, math.inf)
    for _ in range(repeats):
        for side, step in heads.items():
            for _ in range(_TURN):
                start = now()
                loss = step()
                seconds[side] = min(seconds[side], now() - start)
                assert math.isclose(loss, expected, rel_tol=1e-2 if side == "bf16" else 1e-5)
                # Or the next side would share the room.
                step.embeddings.grad = step.weight.grad = None
    return seconds


# glibc's malloc keeps all memory if it may neither map blocks by themselves nor give any back.
_KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


class _UpdatedHead(_Head):
    """A head with its optimizer: forward, backward and the step of SGD with momentum and decay.

    At a rate of 0, which takes the same time, the sides can share their centres.
    """

    def __init__(self, side: str, embeddings: Tensor, weight: Tensor, labels: Tensor) -> None:
        super().__init__(side, embeddings, weight, labels)
        self.optimizer = SGD(lr=1.0).create([{"params": [self.weight]}])
        self.optimizer.param_groups[0]["lr"] = 0.0
        held = torch.full_like(self.weight, 0.0)  # takes its memory
        self.optimizer.state[self.weight]["momentum_buffer"] = held
        if side != "dense":
            update = RowUpdate(self.optimizer, self.weight, at_once=True).gradients(last=True)
            margin = ArcFace(wrap="none")
            self.loss = lambda: (
                margin_softmax(
                    *(self.embeddings, self.weight, labels, margin),
                    settings=TileSettings(reduced=side == "bf16"),
                    update=update,
                ).loss
            )

    def __call__(self) -> float:
        loss = super().__call__()
        self.optimizer.step()
        return loss


def updated_times(sides: list[str], sizes: list[int], repeats: int) -> dict[str, float]:
    """Return the seconds of each side's fastest step with 1 and with 2 threads, see `head`."""
    heads = dict(zip(sides, _heads(sides, *sizes, kind=_UpdatedHead), strict=True))
    expected, found = heads["dense"](), {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for side, seconds in _fastest(heads, expected, repeats, threads).items():
            found[f"{side} {threads}"] = seconds
    return found


def updated_peak(side: str, sizes: list[int]) -> float:
    """Return by how many bytes a step raises what this process holds at most."""
    _heads([side], *sizes[:2], 2000, kind=_UpdatedHead)[0]()  # code and work space of libraries
    (step,) = _heads([side], *sizes, kind=_UpdatedHead)
    before = peak()
    step()
    return peak() - before


def head_update(
    *, batch: int = 128, size: int = 512, classes: int = 360_232, repeats: int = 2
) -> list[Row]:
    """Compare whole steps of the head: forward, backward, and SGD with momentum and decay.

    The chunked head takes its step inside backward; the dense one has a gradient of all centres and
    an optimizer's step afterwards. Both are timed in one process, once with glibc's malloc as it is
    and once with one that keeps all memory, for which the dense head's fresh pages cost nothing.
    Memory is the growth of the resident peak over a step, beyond centres and momentum, of a new
    process for each side.

    Args:
        batch: embeddings in a step.
        size: their dimensions.
        classes: of the head.
        repeats: turns of each side.
    """
    sides = ["dense", "fp32", *(["bf16"] if has_fast_bf16(torch.device("cpu")) else [])]
    sizes = [batch, size, classes]
    name = f"head step with update, batch {batch}, {size}-d, {classes:,} classes, against dense"
    rows = []
    for kind, variables in (("glibc's malloc", {}), ("malloc that keeps memory", _KEEPING)):
        seconds = apart(updated_times, sides, sizes, repeats, variables=variables)
        for threads, clock in ((1, "one thread, CPU time"), (2, "2 threads, clock")):
            dense = seconds[f"dense {threads}"]
            for side in sides[1:]:
                ours, bar = seconds[f"{side} {threads}"], 3.5 if side == "bf16" else 2.0
                told = f"{ours:.3f} s against {dense:.3f} s, fastest of {repeats * _TURN}"
                what = f"{name}, products in {side}, {kind}, {clock}"
                rows.append(Row(what, dense / ours, "×", bar, "higher", told))
    extra = {side: apart(updated_peak, side, sizes) / 2**20 for side in sides}
    for side in sides[1:]:
        told = f"{extra[side]:,.0f} MB against {extra['dense']:,.0f} MB, beyond the state"
        what = f"{name}, products in {side}, extra memory"
        rows.append(Row(what, extra[side] / extra["dense"], "×", 0.03, remark=told))
    return rows


def sampled_steps(rate: float, batch: int, size: int, classes: int, steps: int) -> list[float]:
    """Time steps of a class-sampled head, update included, on one thread.

    Args:
        rate: share of the classes that take part.
        batch: embeddings.
        size: their dimensions.
        classes: of the head.
        steps: after one that does not count.

    Returns:
        Seconds of CPU time of the fastest, and the bytes that the process held at most.
    """
    precision: Precision = "bf16" if has_fast_bf16(torch.device("cpu")) else "fp32"
    head = MarginClassifier(classes, size, ArcFace(), seed=0, precision=precision, sample_rate=rate)
    optimizer = SGD(lr=0.01).create([{"params": [head.weight]}])
    updates = RowUpdate(optimizer, head.weight, at_once=True)
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(batch, size, generator=generator)
    torch.set_num_threads(1)
    seconds = []
    for number in range(steps + 1):
        start = time.process_time()
        labels = torch.randint(classes, (batch,), generator=generator)
        head.draw(labels, number)
        optimizer.zero_grad(set_to_none=True)
        update = updates.gradients(last=True)
        head(embeddings.clone().requires_grad_(), labels, update).loss.backward()
        seconds.append(time.process_time() - start)
    return [min(seconds[1:]), peak()]


def sampled_head(
    *, batch: int = 128, size: int = 512, classes: int = 2_000_000, rate: float = 0.1
) -> list[Row]:
    """Compare a step with a share of many classes with one with as many classes, all of them.

    Forward, backward and SGD with momentum, in a new process each; the fastest of eight steps after
    one that is not counted, by the CPU time of one thread, which other processes hardly touch.
    Memory is the resident peak of the whole process.

    Args:
        batch: embeddings in a step.
        size: their dimensions.
        classes: of the sampled head; the other has ``rate`` · ``classes``.
        rate: share of the classes that take part.
    """
    few = round(rate * classes)
    (ours, memory), (theirs, _) = (
        apart(sampled_steps, share, batch, size, count, 8)
        for share, count in ((rate, classes), (1.0, few))
    )
    name = f"head step with update, {classes:,} classes at rate {rate:g}, batch {batch}, {size}-d"
    told = f"{ours:.2f} s against {theirs:.2f} s, CPU time of one thread"
    return [
        Row(f"{name}, against {few:,} classes at rate 1", ours / theirs, "×", 1.5, remark=told),
        Row(f"{name}: peak memory", memory / 2**30, "GiB", 12.0, remark="of the whole process"),
    ]


def utilization(
    *, backbone: str = "iresnet50", batch_size: int = 32, classes: int = 93_431, steps: int = 4
) -> list[Row]:
    """Set the FLOP/s of a whole training step against those of a matrix product, all threads.

    Counted are convolutions and matrix products: three times the backbone's forward pass, and the
    head's four products. The fastest of some steps counts, after one that is not timed, and so does
    the fastest of several products in the numbers of the backbone.

    Args:
        backbone: a registered name.
        batch_size: images.
        classes: of the ArcFace head.
        steps: that are timed.
    """
    device = torch.device("cpu")
    learner, batch = _training(backbone, batch_size, classes)
    seconds = _fastest_step(learner, batch, steps)
    plan = plan_step(learner.recipe, classes, device="cpu")
    rate = (plan.backbone_flop + plan.head_flop) / seconds
    product = product_rate(device, learner.precision)
    name = (
        f"{backbone} with {classes:,} classes, batch {batch_size}: FLOP/s of a training step "
        f"against a matrix product in {learner.precision}"
    )
    told = (
        f"{rate / 1e9:,.0f} of {product / 1e9:,.0f} GFLOP/s, {batch_size / seconds:.1f} images/s, "
        f"{torch.get_num_threads()} threads, fastest of {steps} steps"
    )
    bar = 50 if has_fast_bf16(device) else None
    return [Row(name, 100 * rate / product, "%", bar, "higher", told)]


def _training(backbone: str, batch_size: int, classes: int) -> tuple[Learner, Batch]:
    """Return a learner with an ArcFace head, and a batch for it."""
    device = torch.device("cpu")
    recipe = Recipe(
        data=Data(Path()),
        backbone=Backbone(backbone),
        regularizer=SEC(weight=1.0),
        head=Head(precision="bf16" if has_fast_bf16(device) else "fp32"),
        batch_size=batch_size,
    )
    learner = Learner(recipe, empty_set(classes), Processes(0, 1, device))
    return learner, random_batches(1, batch_size, classes)[0]


def _fastest_step(learner: Learner, batch: Batch, steps: int) -> float:
    """Return the time of the fastest step after one that is not timed."""
    seconds = math.inf
    for number in range(1 + steps):
        start = time.perf_counter()
        assert learner.train_step(batch)["loss"].isfinite()
        if number:
            seconds = min(seconds, time.perf_counter() - start)
    return seconds
