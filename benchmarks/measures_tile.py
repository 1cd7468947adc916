"""What a tile of the margin softmax costs the host, without a card, see `measures`."""

from __future__ import annotations

import time
from functools import partial
from statistics import median
from typing import Any

import torch
from rows import Row
from torch.utils._python_dispatch import TorchDispatchMode

from facerec.heads import ArcFace
from facerec.heads.margin_softmax import Arithmetic, CenterUpdate, margin_softmax
from facerec.training import SGD, AdamW, Optimizer, RMSprop
from facerec.training.row_update import RowUpdate

_TILES = (16, 80)
_SIZE = 16  # samples, dimensions, and classes in a tile


class _NoCard:
    """Triton's driver, launcher and tools for an H100 that is not there: nothing is launched."""

    launches = 0

    def __init__(self) -> None:
        from triton.backends.compiler import GPUTarget

        self.target, self.utils = GPUTarget("cuda", 90, 32), self

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232_448}

    def load_binary(self, *_: Any) -> tuple[object, object, int, int, int]:
        return object(), object(), 0, 0, 1024

    def launcher_cls(self, *_: Any) -> Any:
        return self._launch

    def _launch(self, *_: Any) -> None:
        self.launches += 1


class _Operations(TorchDispatchMode):
    """Counts the operations of torch, views too."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _passes(tiles: int, optimizer: Optimizer | None) -> tuple[float, float]:
    """Return the seconds of both passes, the second with the optimizer's steps if there is one."""
    weight = torch.nn.Parameter(torch.ones(tiles * _SIZE, _SIZE))
    update: CenterUpdate | None = None
    if optimizer is not None:
        created = optimizer.create([{"params": [weight]}])
        update = RowUpdate(created, weight, at_once=True).gradients(last=True)
    embeddings = torch.ones(_SIZE, _SIZE, requires_grad=True)
    labels = torch.zeros(_SIZE, dtype=torch.int64)
    call = partial(margin_softmax, embeddings, weight, labels, ArcFace(wrap="none"))
    times = []
    for _ in range(2):  # the first makes the optimizer's state
        start = time.process_time()
        loss = call(arithmetic=Arithmetic(chunk=_SIZE, kernel="triton"), update=update).loss
        between = time.process_time()
        loss.backward()
        times = [between - start, time.process_time() - between]
    return times[0], times[1]


def host_tile(*, repeats: int = 40) -> list[Row]:
    """Tell what one more tile costs the host in both passes of Triton's form and its update.

    Triton compiles for an H100, and the launches go to a driver that does nothing. So this is the
    time of Python, of Triton's search for the compiled kernel, and of torch's dispatch of
    operations on tiles of 16 × 16 on the CPU; what CUDA's driver takes for a launch (some 2 to
    5 µs) is not in it, nor what a card's allocator takes. One tile is the difference between passes
    of 80 and of 16 tiles, by 64; medians, one thread.

    Args:
        repeats: passes of each kind.
    """
    from triton.runtime import driver

    torch.set_num_threads(1)
    card = _NoCard()
    driver.set_active(card)
    kinds: dict[str, Optimizer | None] = {
        "none": None,
        **{type(each).__name__: each for each in (SGD(), AdamW(), RMSprop())},
    }
    found: dict[str, list[float]] = {}
    for name, optimizer in kinds.items():
        for tiles in _TILES:
            _passes(tiles, optimizer)  # compiles
        times = [[_passes(tiles, optimizer) for tiles in _TILES] for _ in range(repeats)]
        found[name] = [
            1e6
            * (median(many[part] for _, many in times) - median(few[part] for few, _ in times))
            / (_TILES[1] - _TILES[0])
            for part in range(2)
        ]
    counts = []
    for tiles in _TILES:
        before = card.launches
        with _Operations() as operations:
            _passes(tiles, SGD())
        counts.append((operations.count, card.launches - before))
    operations_, launches = (
        (many - few) / (_TILES[1] - _TILES[0]) / 2 for few, many in zip(*counts, strict=True)
    )
    add, spread = found["none"]
    rows = [
        Row("host time of a tile: forward", add, "µs", remark="the loop and add"),
        Row("host time of a tile: backward", spread, "µs", remark="the loop and spread"),
    ]
    for name in list(kinds)[1:]:
        update = found[name][1] - spread
        told = f"{launches:.3g} launches, {operations_:.3g} operations of torch with SGD"
        rows += [
            Row(f"host time of a tile: update by {name}", update, "µs"),
            Row(f"host time of a tile, with {name}", add + spread + update, "µs", 150, remark=told),
        ]
    return rows
