"""The measurements of exported models behind ``benchmarks/run.py``.

Networks are untrained; their batch norms have seen generated faces, so that numbers within them
are of the size that a trained network has.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from rows import Row
from torch import nn

from facerec.backbones import Preprocessing, create_backbone, normalize
from facerec.embedding import TorchModel, load_model
from facerec.embedding.bundle import ONNX_FILE
from facerec.embedding.engines import Engine, OnnxruntimeEngine, OpenVinoEngine
from facerec.embedding.onnx_file import OnnxFile, parse_onnx, read_onnx
from facerec.embedding.recognizer import FaceRecognizer
from facerec.export.consumers import check_consumers
from facerec.export.graph import export_graph
from facerec.export.parity import check_parity, deviation, sample_faces
from facerec.export.quantize import MIN_IMAGES, quantize_int8

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTE = {"format": 1, "name": "benchmark"}

BATCHES = 1, 32
"""Images at once; the bars are for the last."""
CALIBRATION_FACES, REPEATS = 64, 5

CONSUMER_BARS = {"insightface": 1e-5, "OpenCV": 1e-4}
"""Largest difference on unit-scale embeddings, by the first word of the consumer."""


@dataclass(frozen=True)
class _Exported:
    model: TorchModel
    file: OnnxFile
    images: np.ndarray
    """What the batch norms have seen, uint8 RGB."""

    def batch(self, count: int) -> np.ndarray:
        """Return normalised images, float32 ``(count, 3, 112, 112)``."""
        pixels = torch.from_numpy(np.resize(self.images, (count, *self.images.shape[1:])))
        return normalize(pixels, Preprocessing()).contiguous().numpy()


def parity() -> list[Row]:
    """Compare exported files in onnxruntime with torch."""
    rows = []
    for name in ("iresnet18", "iresnet50", "iresnet100", "mbf"):
        exported = _export(name)
        found = check_parity(exported.model, exported.file, exact=False)
        remark = f"{len(found)} comparisons: random, faces, constants; batch 1 to 64"
        worst = max(row.max_abs for row in found)
        cosine = min(row.min_cosine for row in found)
        title = f"{name}: onnxruntime against torch"
        rows += [
            Row(f"{title}, largest difference", worst, "", 1e-5, remark=remark),
            Row(f"{title}, least cosine", cosine, "", 0.999999, "higher", remark),
        ]
    return rows


def consumers(name: str = "iresnet18") -> list[Row]:
    """Compare the embeddings of every consumer that is installed with torch."""
    exported = _export(name)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / ONNX_FILE
        path.write_bytes(exported.file.content)
        photos = np.ascontiguousarray(exported.images[:8, ..., ::-1])
        found = check_consumers(read_onnx(path), exported.model, photos)
    rows = []
    for row in found:
        if row.max_abs is not None:
            told = f"version {row.version}, least cosine {row.min_cosine:.7f}"
            what = f"{name}: {row.consumer} against torch, largest difference"
            bar = CONSUMER_BARS.get(row.consumer.split()[0])
            rows.append(Row(what, row.max_abs, "", bar, remark=told))
    return rows


def float_speed(name: str = "iresnet50") -> list[Row]:
    """Compare onnxruntime with torch eager, both float32 on the same cores.

    torch computes in its default order of memory, as the bar means it, and then in the order that
    facerec gives it, which is faster.
    """
    exported = _export(name)
    engine = OnnxruntimeEngine(exported.file)
    backbone = exported.model.backbone
    rows = []
    for memory in (torch.contiguous_format, torch.channels_last):
        backbone.to(memory_format=memory)  # type: ignore[call-overload]
        order = "channels last" if memory == torch.channels_last else "default memory order"
        for count in BATCHES:
            batch = exported.batch(count)
            images = torch.from_numpy(batch).contiguous(memory_format=memory)

            def eager(images: torch.Tensor = images) -> None:
                with torch.inference_mode():
                    backbone(images)

            bar = 1.2 if count == BATCHES[-1] and memory == torch.contiguous_format else None
            what = f"{name}, batch {count}: onnxruntime against torch eager ({order}), float32"
            rows.append(_ratio(what, [eager, _runs(engine, batch)], count, bar))
    return rows


def int8(name: str = "iresnet50") -> list[Row]:
    """Compare the int8 variant with the float32 file, both in onnxruntime."""
    exported = _export(name, CALIBRATION_FACES)
    variant = _quantise(exported)
    engines = [OnnxruntimeEngine(file) for file in (exported.file, variant)]
    title = f"{name}: int8 against float32 in onnxruntime"
    rows = [
        _ratio(
            f"{title}, batch {count}",
            [_runs(engine, exported.batch(count)) for engine in engines],
            count,
            2.5 if count == BATCHES[-1] else None,
        )
        for count in BATCHES
    ]
    sizes = len(variant.content), len(exported.file.content)
    remark = f"{sizes[0] / 1e6:.1f} against {sizes[1] / 1e6:.1f} MB"
    rows.append(Row(f"{title}, size", sizes[0] / sizes[1], "×", 0.3, remark=remark))
    return [*rows, _cosine(title, engines, exported)]


def openvino(name: str = "iresnet50") -> list[Row]:
    """Compare OpenVINO, in bfloat16 and int8, with onnxruntime in float32."""
    exported, batch = _export(name, CALIBRATION_FACES), BATCHES[-1]
    reference = OnnxruntimeEngine(exported.file)
    rows = []
    for kind, file in (("bf16", exported.file), ("int8", _quantise(exported))):
        engine = OpenVinoEngine(file, "bf16")
        title = f"{name}: OpenVINO {kind} against onnxruntime float32"
        acts = [_runs(side, exported.batch(batch)) for side in (reference, engine)]
        rows += [
            _ratio(f"{title}, batch {batch}", acts, batch, 6.0, engine.precision),
            _cosine(title, [reference, engine], exported, 0.999 if kind == "bf16" else None),
        ]
    return rows


def micro_batching(
    name: str = "iresnet50", clients: int = 16, requests: int = 6, repeats: int = 3
) -> list[Row]:
    """Compare the service with itself when it computes one request at a time.

    The clients, each of which sends one image and waits, are in a process of their own.

    Args:
        name: backbone.
        clients: at once.
        requests: of each client that count.
        repeats: of both sides in turn.
    """
    from facerec.service.app import Bounds, Service

    exported = _export(name)
    image = cv2.imencode(".png", exported.images[0, ..., ::-1])[1].tobytes()
    with tempfile.TemporaryDirectory() as place, _examples() as client:
        path = Path(place) / ONNX_FILE
        path.write_bytes(exported.file.content)
        recognizer = FaceRecognizer(load_model(path), flip=False)

        def answer(max_batch: int) -> tuple[float, NDArray[np.float64]]:
            bounds = Bounds(max_batch=max_batch)
            with client.running(Service(recognizer, bounds)) as url:
                found = client.load_service(url, image, clients=clients, requests=requests)
            return found.seconds, found.latencies

        runs = [[answer(size) for size in (1, 32)] for _ in range(repeats)]
    alone, together = ([seconds for seconds, _ in side] for side in zip(*runs, strict=True))
    p99 = [
        1000 * float(np.percentile(np.concatenate([latencies for _, latencies in side]), 99))
        for side in zip(*runs, strict=True)
    ]
    rates = [clients * requests / float(np.median(side)) for side in (alone, together)]
    title = f"service, {name}, {clients} clients with one image each"
    told, name = f"one at a time {p99[0]:.0f} ms", f"{title}: micro-batching against one at a time"
    faster = f"{rates[1]:.1f} against {rates[0]:.1f} images/s, medians of {repeats}"
    return [
        Row(name, median_ratio(alone, together), "×", 1.5, "higher", faster),
        Row(f"{title}: p99 with micro-batching", p99[1], "ms", remark=told),
    ]


@contextmanager
def _examples() -> Iterator[ModuleType]:
    """Give the service's client of ``examples/``, which runs in a process of its own."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield importlib.import_module("load_service")
    finally:
        sys.path.remove(str(EXAMPLES))


def _export(name: str, faces: int = MIN_IMAGES) -> _Exported:
    """Export a backbone whose batch norms and slopes are like those of a trained one."""
    backbone = create_backbone(name, seed=0)
    images = sample_faces(faces)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in backbone.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = None
                module.bias.normal_(0, 0.2, generator=generator)
                if module.weight.requires_grad:
                    module.weight.uniform_(0.5, 1.5, generator=generator)
            elif isinstance(module, nn.PReLU):
                module.weight.uniform_(0, 0.5, generator=generator)
        backbone.train()(normalize(torch.from_numpy(images[:MIN_IMAGES]), Preprocessing()))
    model = TorchModel(backbone.eval(), Preprocessing(), name=name)
    file = parse_onnx(export_graph(backbone, Preprocessing(), note=NOTE), f"{name}.onnx")
    return _Exported(model, file, images)


def _quantise(exported: _Exported) -> OnnxFile:
    return parse_onnx(quantize_int8(exported.file, exported.images), "int8.onnx")


def _take_turns(acts: Sequence[Callable[[], object]]) -> list[list[float]]:
    """Return the seconds of acts that are done in turn, once uncounted and then `REPEATS` times.

    Whatever else the machine does falls on all of them.
    """
    times: list[list[float]] = [[] for _ in acts]
    for act in acts:
        act()
    for _ in range(REPEATS):
        for act, seconds in zip(acts, times, strict=True):
            start = time.perf_counter()
            act()
            seconds.append(time.perf_counter() - start)
    return times


def median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the median of the ratios ``first / second`` of what was measured side by side."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def _runs(engine: Engine, batch: np.ndarray) -> Callable[[], np.ndarray]:
    return lambda: engine.run(batch)


def _ratio(
    measure: str,
    acts: Sequence[Callable[[], object]],
    images: int,
    bar: float | None,
    about: str = "",
) -> Row:
    """Return how many times faster the second act is."""
    times = _take_turns(acts)
    slow, fast = (images / float(np.median(seconds)) for seconds in times)
    remark = f"{fast:.1f} against {slow:.1f} images/s, medians of {REPEATS}"
    remark += f"; computed in {about}" if about else ""
    return Row(measure, median_ratio(*times), "×", bar, "higher", remark)


def _cosine(
    title: str, engines: Sequence[Engine], exported: _Exported, bar: float | None = None
) -> Row:
    batch = exported.batch(MIN_IMAGES)
    found = deviation(*(engine.run(batch) for engine in engines))
    remark = f"{len(batch)} generated faces, untrained network"
    return Row(f"{title}, least cosine", found.min_cosine, "", bar, "higher", remark)
