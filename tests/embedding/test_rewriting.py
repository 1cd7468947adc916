"""A file rewritten in memory embeds equally, or is computed as it is."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from helpers.toy_files import faces

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from helpers.toy_onnx import followed, parsed, tiles  # noqa: E402
from onnx.helper import make_node  # noqa: E402

from facerec.embedding import OnnxModel, engines  # noqa: E402
from facerec.embedding.engines import OnnxruntimeEngine, open_engine  # noqa: E402
from facerec.embedding.onnx_file import OnnxFile  # noqa: E402
from facerec.embedding.rewriting import without_prelu  # noqa: E402


def sloped(slope: Any, on: str = "pooled", **options: Any) -> OnnxFile:
    """Return a file with a PReLU on the tiles ``(N, 3, 7, 7)`` or on the embedding ``(N, 8)``."""
    model = tiles(**options)
    nodes = [make_node("PRelu", [on, "slope"], ["y"])]
    if on == "pooled":
        nodes += [
            make_node("Flatten", ["y"], ["rows"]),
            make_node("Gemm", ["rows", "weight"], ["z"], transB=1),
        ]
    last = nodes[-1].output
    return parsed(followed(model, nodes, {"slope": np.asarray(slope, np.float32)}, outputs=last))


def pixels(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 3, 112, 112)).astype(np.float32)


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call of a file as it is take longer."""
    run, clock = OnnxruntimeEngine.run, [0.0]

    def slow(self: OnnxruntimeEngine, *given: Any) -> np.ndarray:
        clock[0] += 1.0 if self.form else 2.0
        return run(self, *given)

    monkeypatch.setattr(OnnxruntimeEngine, "run", slow)
    monkeypatch.setattr(engines.time, "process_time", lambda: clock[0])


SLOPES = [
    (0.25, "pooled"),
    ([-0.5], "pooled"),
    ([[[0.1]], [[1.5]], [[-0.3]]], "pooled"),
    (np.linspace(-1, 2, 147).reshape(3, 7, 7), "pooled"),
    (np.linspace(0, 1, 7), "pooled"),
    (np.linspace(-1, 1, 8), "embedding"),
]


@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize(("slope", "on"), SLOPES)
def test_slopes_of_every_shape(slope: Any, on: str) -> None:
    file = sloped(slope, on)
    opened = open_engine(file, batches=[pixels(1)])
    assert opened.form and file.content == sloped(slope, on).content
    assert {"2000.0", "1000.0"} <= {*opened.timing.split()}
    wanted = OnnxruntimeEngine(file).run(pixels(5))
    found = opened.run(pixels(5))
    assert np.abs(found - wanted).max() <= 1e-5 * np.linalg.norm(wanted, axis=1).min()


@pytest.mark.parametrize(("slope", "on"), SLOPES)
def test_openvino_takes_slopes_as_the_standard_has_them(slope: Any, on: str) -> None:
    pytest.importorskip("openvino")
    file = sloped(slope, on)
    wanted, found = (open_engine(file, name).run(pixels(2)) for name in ("onnxruntime", "openvino"))
    assert np.abs(found - wanted).max() <= 1e-5 * np.linalg.norm(wanted, axis=1).min()


@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize(
    "file",
    [
        sloped(1e6),  # the difference of two large numbers
        parsed(tiles()),
    ],
)
def test_what_would_not_be_equal_is_computed_as_it_is(file: OnnxFile) -> None:
    opened = open_engine(file, batches=[abs(pixels(1))])
    assert not opened.form
    np.testing.assert_array_equal(opened.run(pixels(2)), OnnxruntimeEngine(file).run(pixels(2)))


def test_what_is_not_faster_is_computed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.time, "process_time", lambda: 0.0)
    opened = open_engine(sloped(0.25), batches=[pixels(1)])
    assert not opened.form and "ReLUs" in opened.timing


@pytest.mark.usefixtures("faster")
def test_a_slope_that_is_computed_keeps_its_prelu() -> None:
    model = tiles()
    nodes = [
        make_node("Mul", ["embedding", "embedding"], ["slope"]),
        make_node("PRelu", ["embedding", "slope"], ["y"]),
    ]
    file = parsed(followed(model, nodes))
    assert without_prelu(file.content) is None


@pytest.mark.parametrize("engine", ["auto", "onnxruntime", "openvino"])
def test_who_computes_is_decided_by_name_or_by_time(
    monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    pytest.importorskip("openvino")
    ticks = iter(range(10**6))
    monkeypatch.setattr(engines.time, "process_time", lambda: float(next(ticks) ** 0.5))
    model = OnnxModel(parsed(tiles()), engine=engine)
    # Differences of roots become smaller, so that the second one seems faster.
    assert model.runtime.startswith("onnxruntime" if engine == "onnxruntime" else "OpenVINO")
    assert bool(model.timing) is (engine == "auto")


@pytest.mark.parametrize("batch", ["n", 1, 3])
@pytest.mark.parametrize("count", [1, 2, 9, 70])
def test_several_threads_embed_as_one_does(
    monkeypatch: pytest.MonkeyPatch, batch: Any, count: int
) -> None:
    images = np.concatenate([faces(10)] * 7)[:count]
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(engines, "default_threads", lambda threads=threads: threads)
        found.append(OnnxModel(parsed(tiles(batch=batch))).embed(images))
    np.testing.assert_allclose(*found, atol=1e-6 * np.abs(found[0]).max())


def test_what_is_stopped_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, counted = OnnxModel(parsed(tiles())), []
    going, begun = threading.Event(), threading.Event()
    run = model._engine.run

    def slow(batch: Any, alone: bool) -> np.ndarray:
        begun.set()
        going.wait(60)
        counted.append(len(batch))
        return run(batch, alone)

    monkeypatch.setattr(model._engine, "run", slow)
    model.embed_later(np.concatenate([faces(10)] * 6))
    begun.wait(60)
    model.stop()
    going.set()
    assert model.embed(faces(2)).shape == (2, 8)  # the threads are still there
    assert sum(counted) < 60
