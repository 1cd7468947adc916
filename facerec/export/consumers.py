"""The exported bundle through the programs that will use it, from BGR photos on."""

from __future__ import annotations

import functools
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from facerec.backbones import Preprocessing, normalize
from facerec.embedding import TorchModel
from facerec.embedding.bundle import ONNX_FILE
from facerec.embedding.engines import Engine, OnnxruntimeEngine, OpenVinoEngine
from facerec.embedding.onnx_file import (
    OnnxFile,
    first_line,
    guess_preprocessing,
    insightface_normalizes,
    parse_onnx,
)
from facerec.embedding.trial import run_opencv
from facerec.errors import ExportError, ModelError
from facerec.export.graph import copy_for_export, quiet
from facerec.export.parity import Bar, Deviation, Vectors, deviation, judge, rounding_words

Photos = npt.NDArray[np.uint8]
Outcome = Literal["same", "not installed", "cannot load", "not suited", "not available"]

OPENVINO = "OpenVINO"
OPENVINO_BF16 = "OpenVINO, bf16"
OPENVINO_EXACT, OPENVINO_ROUNDED = Bar(1e-4), Bar(np.inf, 0.999)
"""What OpenVINO must reach, in float32 and in fewer bits."""


@dataclass(frozen=True)
class ConsumerRow:
    """What one consumer made of the bundle."""

    consumer: str
    version: str | None
    outcome: Outcome
    """``not suited``: it can only feed models trained on other pixels, or computes otherwise. ``not
    available``: this processor lacks what it needs."""
    max_abs: float | None = None
    """Largest difference to torch on unit-scale embeddings."""
    min_cosine: float | None = None
    note: str = ""
    """Why it is not the same, or is so beyond the bar; empty otherwise."""


@dataclass(frozen=True)
class LegacyRoute:
    """What insightface's package makes of a bare path."""

    mean: float | None
    """What it subtracts from RGB pixels 0…255; None unless it takes the file for recognition."""
    std: float | None
    problem: str | None
    """Why recognition would not work, or None."""


def legacy_router_simulation(file: OnnxFile) -> LegacyRoute:
    """Apply the rules by which insightface's package reads a path that ends in ``.onnx``.

    They look at shapes and node names alone (``insightface/model_zoo/model_zoo.py``,
    ``ModelRouter``, and ``arcface_onnx.py``; alike from 0.7 to 2.1).
    """
    shape = file.inputs[0].shape
    height, width = shape[2:] if len(shape) == 4 else (None, None)
    side = f"images of {height}×{width}"
    problems = {
        "5 outputs or more make it a detector": len(file.outputs) >= 5,
        f"the input has {len(shape)} dimensions, not 4": len(shape) != 4,
        f"{side} make it a model of landmarks": (height, width) == (192, 192),
        f"{side} make it a model of attributes": (height, width) == (96, 96),
        "2 inputs and images of 128×128 make it a face swapper": len(file.inputs) == 2
        and (height, width) == (128, 128),
        f"{side} are not square": height != width,
        f"the image size is open ({height})": not isinstance(height, int),
        f"{height} pixels are below 112 or no multiple of 16": isinstance(height, int)
        and (height < 112 or height % 16 != 0),
    }
    if problem := next((words for words, applies in problems.items() if applies), None):
        return LegacyRoute(None, None, problem)
    mean, std = (127.5, 127.5) if insightface_normalizes(file) else (0.0, 1.0)
    return LegacyRoute(mean, std, _recognition_problem(file))


def _recognition_problem(file: OnnxFile) -> str | None:
    """Return why ArcFaceONNX fails on a file that was routed to it."""
    info = file.inputs[0]
    if len(file.outputs) != 1:
        return f"{len(file.outputs)} outputs, where it asserts one"
    if info.dtype != "float32":
        return f"an input of {info.dtype}, where it feeds float32"
    if isinstance(info.shape[0], int) and info.shape[0] != 1:
        return f"a fixed batch of {info.shape[0]}, where it feeds single images"
    if info.shape[1] != 3:
        return f"{info.shape[1]} channels, where it feeds 3"
    return None


def check_consumers(folder: Path, model: TorchModel, images: Photos) -> list[ConsumerRow]:
    """Embed photos with every consumer that is installed, and compare with the backbone.

    Each gets the first photo alone and the others as one batch. What torch itself rounds as much is
    no difference, as in `facerec.export.parity.check_parity`.

    The folder holds ``model.onnx`` and insightface's ``manifest.json``; images are aligned photos
    as OpenCV reads them, uint8 BGR ``(N, 112, 112, 3)``, N ≥ 2.

    Raises:
        ExportError: a consumer embeds otherwise, or one that must load the file does not.
    """
    path = folder / ONNX_FILE
    # The folder has a temporary name as yet, which would tell the user nothing.
    file = parse_onnx(path.read_bytes(), ONNX_FILE, path)
    stated = guess_preprocessing(file).preprocessing
    if stated is None:
        raise ExportError(f"{ONNX_FILE}: it normalises pixels itself, which only variants may do")
    reference = _reference(model, images)

    @functools.cache  # in float64, which takes long, only where something differs
    def noise() -> float:
        return deviation(_reference(model, images, torch.float64), reference).max_abs

    rows = [_simulated_row(file, stated)]
    for consumer in _CONSUMERS:
        rows.append(_row(consumer, _Bundle(folder, file, stated), images, reference, noise))
    if (rows[-1].consumer, rows[-1].outcome) == (OPENVINO, "same"):
        rows.append(_bf16_row(_Bundle(folder, file, stated), images, reference, rows[-1].version))
    return rows


@dataclass(frozen=True)
class _Bundle:
    folder: Path
    file: OnnxFile
    preprocessing: Preprocessing


@dataclass(frozen=True)
class _Consumer:
    name: str
    module: str
    embed: Callable[[_Bundle, Photos], Vectors]
    bar: Bar
    required: bool
    """Whether an installed one must load the file."""
    only: Preprocessing | None = None
    """What it always feeds, if it can feed nothing else."""
    embed_normalized: Callable[[_Bundle, Photos], Vectors] | None = None
    """What it makes of pixels that torch has normalised. Where that is not what onnxruntime makes
    of them, the program computes the network wrongly, and the bundle is not at fault."""


def _row(
    consumer: _Consumer,
    bundle: _Bundle,
    images: Photos,
    reference: Vectors,
    noise: Callable[[], float],
) -> ConsumerRow:
    name, where = consumer.name, bundle.file.where
    try:
        with quiet():
            version = str(importlib.import_module(consumer.module).__version__)
    except ImportError as error:
        return ConsumerRow(name, None, "not installed", note=first_line(error))
    if consumer.only is not None and consumer.only != bundle.preprocessing:
        return ConsumerRow(name, version, "not suited", note=_unsuited(bundle.preprocessing))
    try:
        with quiet():
            embeddings = consumer.embed(bundle, images)
    except Exception as error:  # whatever a stranger's library raises
        if consumer.required:
            raise ExportError(
                f"{where}: {name} {version} cannot use it ({first_line(error)}); try another opset"
            ) from error
        note = first_line(error).removeprefix(f"{where}: ")
        return ConsumerRow(name, version, "cannot load", note=note)
    measured = deviation(reference, embeddings)
    passed, rounding = judge(measured, consumer.bar, noise)
    if not passed:
        if consumer.embed_normalized is not None:
            usual = _with_engine(OnnxruntimeEngine)(bundle, images)
            apart = deviation(usual, consumer.embed_normalized(bundle, images))
            if not consumer.bar.passes(apart):
                note = "it computes this network otherwise than onnxruntime does"
                figures = apart.max_abs, apart.min_cosine
                return ConsumerRow(name, version, "not suited", *figures, note)
        raise ExportError(
            f"{where}: {name} {version} does not embed as the backbone does: max |Δ| "
            f"{measured.max_abs:.2g} (at most {consumer.bar.max_abs:g}), cosine "
            f"{measured.min_cosine:.7f} (at least {consumer.bar.min_cosine:g}); its pixels go "
            "through another channel order, mean or std than the bundle states"
        )
    note = "" if rounding is None else rounding_words(rounding)
    return ConsumerRow(name, version, "same", measured.max_abs, measured.min_cosine, note)


def _bf16_row(
    bundle: _Bundle, images: Photos, reference: Vectors, version: str | None
) -> ConsumerRow:
    """Tell what OpenVINO does on processors with bfloat16 unless float32 is asked for."""
    try:
        engine = OpenVinoEngine(bundle.file, "bf16")
        if engine.precision != "bf16":
            note = "this processor does not compute in bfloat16"
            return ConsumerRow(OPENVINO_BF16, version, "not available", note=note)
        measured = deviation(reference, _with_engine(lambda file: engine)(bundle, images))
    except ModelError as error:
        return ConsumerRow(OPENVINO_BF16, version, "cannot load", note=first_line(error))
    note = f"its cosines to float32 fall below {OPENVINO_ROUNDED.min_cosine:g}"
    return bar_row(OPENVINO_BF16, version, measured, OPENVINO_ROUNDED, note)


def bar_row(
    name: str, version: str | None, measured: Deviation, bar: Bar, note: str
) -> ConsumerRow:
    """Return ``same`` where the bar is reached, else ``not suited`` with the note."""
    outcome: Outcome = "same" if bar.passes(measured) else "not suited"
    figures = measured.max_abs, measured.min_cosine
    return ConsumerRow(name, version, outcome, *figures, "" if outcome == "same" else note)


def _simulated_row(file: OnnxFile, stated: Preprocessing) -> ConsumerRow:
    name = "insightface's rules for a path (simulated)"
    route = legacy_router_simulation(file)
    if route.problem is not None:
        raise ExportError(f"{file.where}: insightface cannot use it: {route.problem}")
    if route.std == 1:
        raise ExportError(
            f"{file.where}: insightface would feed raw pixels, because of names among its first "
            f"nodes ({', '.join(file.nodes[:8])}), but it wants {_words(stated)}"
        )
    if (route.mean, route.std) != (stated.mean, stated.std):
        return ConsumerRow(name, None, "not suited", note=_unsuited(stated))
    return ConsumerRow(name, None, "same")


def _unsuited(stated: Preprocessing) -> str:
    return f"it feeds any bare path with {_words(Preprocessing())}; this wants {_words(stated)}"


def _words(preprocessing: Preprocessing) -> str:
    return f"mean {preprocessing.mean:g} and std {preprocessing.std:g}"


def _reference(
    model: TorchModel, images: Photos, dtype: torch.dtype = torch.float32
) -> npt.NDArray[Any]:
    backbone = copy_for_export(model.backbone).to(dtype)
    with torch.no_grad():
        return backbone(_fed(images, model.preprocessing).to(dtype)).numpy()


def _fed(photos: Photos, preprocessing: Preprocessing) -> torch.Tensor:
    """Return what a backbone is fed of BGR photos."""
    return normalize(torch.from_numpy(np.ascontiguousarray(photos[..., ::-1])), preprocessing)


def _with_engine(open_engine: Callable[[OnnxFile], Engine]) -> Callable[[_Bundle, Photos], Vectors]:
    def embed(bundle: _Bundle, images: Photos) -> Vectors:
        x = _normalized(bundle, images)
        engine = open_engine(bundle.file)
        return np.concatenate([engine.run(x[:1]), engine.run(x[1:])])

    return embed


def _normalized(bundle: _Bundle, images: Photos) -> Vectors:
    return np.ascontiguousarray(_fed(images, bundle.preprocessing).numpy())


def _insightface_path(bundle: _Bundle, images: Photos) -> Vectors:
    return _insightface(images, bundle.folder / ONNX_FILE)


def _insightface_manifest(bundle: _Bundle, images: Photos) -> Vectors:
    return _insightface(images, bundle.folder, model_task="recognition")


def _insightface(images: Photos, name: Path, **options: str) -> Vectors:
    model_zoo = importlib.import_module("insightface.model_zoo")
    model = model_zoo.get_model(str(name.resolve()), providers=["CPUExecutionProvider"], **options)
    if model is None:
        raise ExportError("its get_model returns None")
    return np.concatenate([model.get_feat(images[0]), model.get_feat(list(images[1:]))])


_OPENCV = """
import io, cv2, numpy
given = numpy.load(io.BytesIO(sys.stdin.buffer.read()))
images, (mean, std) = given["images"], given["pixels"]
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
net = cv2.dnn.readNetFromONNX(given["model"])
outputs = []
for batch in (images[:1], images[1:]):
    if batch.dtype == numpy.uint8:
        sides = batch.shape[2:0:-1]
        batch = cv2.dnn.blobFromImages(list(batch), 1 / std, sides, (mean,) * 3, swapRB=True)
    net.setInput(batch)
    outputs.append(net.forward().copy())
numpy.save(sys.stdout.buffer, numpy.concatenate(outputs))
"""


def _opencv(bundle: _Bundle, images: Photos | Vectors) -> Vectors:
    """Embed photos, or normalised pixels, with OpenCV in a process of its own."""
    pixels = bundle.preprocessing.mean, bundle.preprocessing.std
    model = np.frombuffer(bundle.file.content, np.uint8)
    given = io.BytesIO()
    np.savez(given, model=model, images=images, pixels=np.array(pixels))
    embeddings = run_opencv(bundle.file.where, _OPENCV, given.getvalue())
    return np.load(io.BytesIO(embeddings), allow_pickle=False)


_CONSUMERS = (
    _Consumer("onnxruntime", "onnxruntime", _with_engine(OnnxruntimeEngine), Bar(), True),
    _Consumer(
        "insightface, path", "insightface", _insightface_path, Bar(), True, only=Preprocessing()
    ),
    _Consumer("insightface, manifest", "insightface", _insightface_manifest, Bar(), True),
    _Consumer(
        "OpenCV DNN",
        "cv2",
        _opencv,
        Bar(1e-4),
        False,
        embed_normalized=lambda bundle, images: _opencv(bundle, _normalized(bundle, images)),
    ),
    # Last, since its row in bfloat16 follows.
    _Consumer(OPENVINO, "openvino", _with_engine(OpenVinoEngine), OPENVINO_EXACT, False),
)
