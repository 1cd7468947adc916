"""What a tile of the margin softmax costs the host, see `measures`."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import torch
from rows import Row
from torch.utils._python_dispatch import TorchDispatchMode

from facerec.heads import ArcFace
from facerec.heads.margin_softmax import margin_softmax
from facerec.heads.tiles import TileSettings
from facerec.training import SGD, AdamW, Optimizer, RMSprop
from facerec.training.row_update import RowUpdate

_FEW, _MANY = 16, 80  # tiles
_SIZE = 16  # samples, dimensions, and classes in a tile


def no_card(counts: Counter[str]) -> Any:
    """Return Triton's driver for an H100 that is not there, which launches nothing but counts."""
    from triton.backends.compiler import GPUTarget

    return SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_device_capability=lambda *_: (9, 0),
        launcher_cls=lambda *_: lambda *_: counts.update(["launches"]),
        utils=SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 232_448},
            load_binary=lambda *_: (0, 0, 0, 0, 1024),
        ),
    )


class _Counting(TorchDispatchMode):
    """Counts torch's operations; a ``split`` into the views of all tiles is one."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts["operations"] += 1
        return func(*args, **(kwargs or {}))


def _passes(tiles: int, optimizer: Optimizer | None) -> tuple[float, float]:
    """Return the µs of both passes, backward with the optimizer's steps if there is one."""
    weight, update = torch.nn.Parameter(torch.ones(tiles * _SIZE, _SIZE)), None
    if optimizer is not None:
        rows = RowUpdate(optimizer.create([{"params": [weight]}]), weight, at_once=True)
        rows.state()
        update = rows.gradients(last=True)
    embeddings = torch.ones(_SIZE, _SIZE, requires_grad=True)
    labels = torch.zeros(_SIZE, dtype=torch.int64)
    settings = TileSettings(chunk=_SIZE, kernel="triton")
    start = time.process_time_ns()
    found = margin_softmax(embeddings, weight, labels, ArcFace(), settings=settings, update=update)
    between = time.process_time_ns()
    found.loss.backward()
    return (between - start) / 1000, (time.process_time_ns() - between) / 1000


def host_tile(*, repeats: int = 60) -> list[Row]:
    """Tell what one more tile costs the host: forward, backward, and the optimizer's step on it.

    Triton compiles for an H100 and launches by a driver that does nothing. So this is CPU time of
    Python, of finding the compiled kernel, and of torch's dispatch of operations on 16 × 16 numbers
    of the CPU. What CUDA's driver and allocator take is not in it. One tile is the 64th part of the
    difference between passes of 80 and of 16 tiles; medians, one thread.

    Args:
        repeats: passes of each kind.
    """
    from triton.runtime import driver

    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    driver.set_active(no_card(counts))

    def tile(optimizer: Optimizer | None) -> list[float]:
        few, many = (
            torch.tensor([_passes(tiles, optimizer) for _ in range(repeats)]).median(0).values
            for tiles in (_FEW, _MANY)
        )
        return ((many - few) / (_MANY - _FEW)).tolist()

    def counted(tiles: int, optimizer: Optimizer) -> Counter[str]:
        counts.clear()
        with _Counting(counts):
            _passes(tiles, optimizer)
        return counts.copy()

    rows, (forward, backward) = [], tile(None)
    for optimizer in (SGD(), AdamW(), RMSprop()):
        total = sum(tile(optimizer))
        more = counted(_MANY, optimizer) - counted(_FEW, optimizer)
        told = [f"{number / (_MANY - _FEW):.3g} {what}" for what, number in sorted(more.items())]
        parts = f"forward {forward:.0f}, backward {backward:.0f}, the step the rest"
        name = f"host time of a tile with {type(optimizer).__name__}, a driver that does nothing"
        rows.append(Row(name, total, "µs", 150, remark=f"{parts}; {', '.join(told)}"))
    return rows
