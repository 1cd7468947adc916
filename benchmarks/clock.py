"""A clock for ranges of work, on a GPU its own; the rate of matrix products."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from facerec.training.step import AUTOCAST

_PRODUCTS, _PRODUCT_SECONDS = 10, 2.0  # how often, and how long, products are measured


class PhaseClock:
    """Adds up the time spent in named ranges, as a learner's ``phase`` too.

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
        return time.perf_counter()

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two marks; on a GPU all work must be done."""
        if self.device.type == "cuda":
            return float(start.elapsed_time(end)) / 1e3
        return float(end - start)

    def restart(self) -> None:
        """Forget all ranges."""
        self._spans.clear()

    def totals(self) -> dict[str, float]:
        """Return the seconds of each range; on a GPU all work must be done."""
        return {
            name: sum(self.seconds(start, end) for start, end in spans)
            for name, spans in self._spans.items()
        }


def product_rate(device: torch.device, kind: str, size: int | None = None) -> float:
    """Return the FLOP/s of a large matrix product, the fastest of several.

    Args:
        device: where; a CPU uses the threads that the steps use.
        kind: of numbers: fp32, TF32, bf16 or fp16.
        size: length of the sides of the matrices, by default 1024 on a CPU and 8192 elsewhere.
    """
    size = size or (1024 if device.type == "cpu" else 8192)
    dtype = AUTOCAST.get(kind, torch.float32)
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
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(clock.seconds(start, end))
    finally:
        torch.set_float32_matmul_precision(before)
    return 2 * size**3 / min(times)
