"""What a variant gains: its speed on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from facerec.embedding.engines import Engine


@dataclass(frozen=True)
class LoadMeasure:
    """Speed of an engine with one size of batch."""

    batch: int
    latency_ms: float
    """Of a whole batch; median."""
    images_per_second: float
    """At that latency."""
    speedup: float | None
    """Median ratio to the reference, which took turns; None without one."""


def measure_engine(
    engine: Engine,
    batches: Sequence[int],
    *,
    reference: Engine | None = None,
    repeats: int = 5,
) -> list[LoadMeasure]:
    """Time an engine on random images.

    Each batch is computed once before it counts. The reference computes every batch right after
    the engine, so that whatever else the machine does falls on both.
    """
    sides = [engine] if reference is None else [engine, reference]
    measures = []
    for batch in batches:
        inputs = [_random_batch(side, batch) for side in sides]
        acts = [
            lambda side=side, images=images: side.run(images)
            for side, images in zip(sides, inputs, strict=True)
        ]
        times = take_turns(acts, repeats)
        seconds = statistics.median(times[0])
        measures.append(
            LoadMeasure(
                batch,
                1000 * seconds,
                batch / seconds,
                None if reference is None else median_ratio(times[1], times[0]),
            )
        )
    return measures


def take_turns(
    acts: Sequence[Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Do all acts in turn, once uncounted and then ``repeats`` times.

    Returns:
        The seconds of each act, in the order of the repeats.
    """
    times: list[list[float]] = [[] for _ in acts]
    for act in acts:
        act()
    for _ in range(repeats):
        for act, seconds in zip(acts, times, strict=True):
            start = clock()
            act()
            seconds.append(clock() - start)
    return times


def median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the median of the ratios ``first / second`` of what was measured side by side."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def _random_batch(engine: Engine, count: int) -> np.ndarray:
    image = engine.input
    pixels = np.random.default_rng(0).integers(256, size=(count, *image.shape), dtype=np.uint8)
    if image.dtype == "uint8":
        return pixels
    return (pixels.astype(np.float32) - 127.5) / 127.5
