"""Speed and accuracy of variants, with engines and models whose answers are known."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np
import pytest

from facerec.embedding.engines import Engine
from facerec.embedding.onnx_file import ImageInput
from facerec.export import measure
from facerec.export.measure import measure_engine, median_ratio, take_turns


class Recorder(Engine):
    """Notes who was given what."""

    def __init__(
        self,
        name: str,
        log: list[tuple[str, np.ndarray]],
        dtype: Literal["float32", "uint8"] = "float32",
        layout: Literal["NCHW", "NHWC"] = "NCHW",
    ) -> None:
        self.name, self.log, self.where = name, log, name
        self.input = ImageInput("data", dtype, None, layout, 6, 4)

    def _compute(self, batch: Any) -> np.ndarray:
        self.log.append((self.name, batch))
        return np.zeros((len(batch), 2), np.float32)


def test_acts_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    now = itertools.accumulate(itertools.count(), initial=0.0)
    acts = [lambda name=name: order.append(name) for name in "ab"]
    times = take_turns(acts, 3, lambda: next(now))
    assert order == list("ab" * 4)
    # The clock's ticks grow by one.
    assert times == [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]]


def test_ratios_are_taken_side_by_side() -> None:
    # The machine was ten times slower in the second round, for both.
    assert median_ratio([2.0, 20.0, 2.2], [1.0, 10.0, 1.0]) == 2.0
    with pytest.raises(ValueError, match="zip"):
        median_ratio([1.0, 2.0], [1.0])


def test_an_engine_and_its_reference_get_the_same_pictures_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[tuple[str, np.ndarray]] = []
    given: list[int] = []

    def turns(acts: Any, repeats: int) -> list[list[float]]:
        given.append(repeats)
        for act in acts:
            act()
        return [[0.02, 0.04, 0.03], [0.06, 0.16, 0.06]]

    monkeypatch.setattr(measure, "take_turns", turns)
    engine, reference = Recorder("int8", log), Recorder("float32", log, "uint8", "NHWC")
    found = measure_engine(engine, (1, 8), reference=reference, repeats=3)
    assert [(row.batch, row.latency_ms, row.speedup) for row in found] == [
        (1, pytest.approx(30), pytest.approx(3)),
        (8, pytest.approx(30), pytest.approx(3)),
    ]
    assert [row.images_per_second for row in found] == [
        pytest.approx(1 / 0.03),
        pytest.approx(8 / 0.03),
    ]
    assert given == [3, 3]
    assert [name for name, _ in log] == ["int8", "float32"] * 2
    assert [batch.shape for _, batch in log] == [
        (1, 3, 6, 4), (1, 6, 4, 3), (8, 3, 6, 4), (8, 6, 4, 3),
    ]  # fmt: skip
    assert [batch.dtype for _, batch in log] == [np.float32, np.uint8] * 2
    scaled = log[2][1]
    assert -1 <= scaled.min() < -0.9 and 0.9 < scaled.max() <= 1


def test_an_engine_alone() -> None:
    log: list[tuple[str, np.ndarray]] = []
    (found,) = measure_engine(Recorder("engine", log), (4,), repeats=2)
    assert len(log) == 3
    assert found.batch == 4 and found.speedup is None
    assert found.images_per_second == pytest.approx(4000 / found.latency_ms)
