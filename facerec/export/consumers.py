"""The exported file through the programs that will use it, from BGR photos on."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from facerec.backbones.preprocessing import Preprocessing, normalize_array
from facerec.embedding import TorchModel
from facerec.embedding.engines import Engine, OnnxruntimeEngine, OpenVinoEngine
from facerec.embedding.onnx_file import OnnxFile, parse_onnx
from facerec.embedding.onnx_preprocessing import guess_preprocessing
from facerec.embedding.trial import run_apart
from facerec.errors import ExportError, message_line
from facerec.export.graph import copy_for_export, quiet
from facerec.export.parity import Bar, Images, Vectors, deviation, judge, rounding_words

Outcome = Literal["same", "not installed", "cannot load", "not suited"]


@dataclass(frozen=True)
class ConsumerRow:
    """What one program made of the file."""

    consumer: str
    version: str | None
    outcome: Outcome
    """``not suited``: it can only feed models trained on other pixels, or computes otherwise."""
    max_abs: float | None = None
    """Largest difference to torch on unit-scale embeddings."""
    min_cosine: float | None = None
    note: str = ""
    """Why it is not the same, or is so beyond the bar; empty otherwise."""


@dataclass(frozen=True)
class _Consumer:
    name: str
    module: str
    embed: Callable[[OnnxFile, Images], Vectors]
    """Embeds BGR photos, the first one alone and the others as a batch."""
    bar: Bar
    required: bool
    """Whether an installed one must embed as torch does."""


def check_consumers(path: Path, model: TorchModel, images: Images) -> list[ConsumerRow]:
    """Embed photos with every consumer that is installed, and compare with the backbone.

    What torch itself rounds as much is no difference, as in `facerec.export.parity.check_parity`.

    Args:
        path: the exported file.
        model: what was exported.
        images: aligned photos as OpenCV reads them, uint8 BGR ``(N, 112, 112, 3)``, N ≥ 2.

    Raises:
        ExportError: onnxruntime or insightface embeds otherwise, or does not load the file.
    """
    # Its folder has a temporary name as yet, which would tell the user nothing.
    file = parse_onnx(path.read_bytes(), path.name, path)
    stated = guess_preprocessing(file).preprocessing
    reference = _reference(model, images, torch.float32)
    return [_row(consumer, file, stated, model, images, reference) for consumer in _CONSUMERS]


def _row(
    consumer: _Consumer,
    file: OnnxFile,
    stated: Preprocessing,
    model: TorchModel,
    images: Images,
    reference: Vectors,
) -> ConsumerRow:
    name = consumer.name
    try:
        with quiet():
            version = str(importlib.import_module(consumer.module).__version__)
    except ImportError as error:
        return ConsumerRow(name, None, "not installed", note=message_line(error))
    if consumer.module == "insightface" and stated != Preprocessing():
        return ConsumerRow(name, version, "not suited", note="it feeds RGB by 127.5/127.5 alone")
    try:
        with quiet():
            embeddings = consumer.embed(file, images)
    except Exception as error:  # whatever a stranger's library raises
        if consumer.required:
            raise ExportError(
                f"{name} {version} cannot use the exported file ({message_line(error)}); try "
                "another opset"
            ) from error
        note = message_line(error).removeprefix(f"{file.where}: ")
        return ConsumerRow(name, version, "cannot load", note=note)
    measured = deviation(reference, embeddings)
    figures = measured.max_abs, measured.min_cosine
    passed, rounding = judge(
        measured,
        consumer.bar,
        lambda: deviation(_reference(model, images, torch.float64), reference).max_abs,
    )
    if passed:
        note = "" if rounding is None else rounding_words(rounding)
        return ConsumerRow(name, version, "same", *figures, note)
    if consumer.required:
        raise ExportError(
            f"{name} {version} does not embed as the backbone does: max |Δ| {figures[0]:.2g} (at "
            f"most {consumer.bar.max_abs:g}), cosine {figures[1]:.7f} (at least "
            f"{consumer.bar.min_cosine:g})"
        )
    return ConsumerRow(name, version, "not suited", *figures, "it computes the network otherwise")


def _reference(model: TorchModel, images: Images, dtype: torch.dtype) -> Vectors:
    backbone = copy_for_export(model.backbone).to(dtype)
    pixels = torch.from_numpy(normalize_array(images[..., ::-1], model.preprocessing))
    with torch.no_grad():
        embeddings: Vectors = backbone(pixels.to(dtype)).numpy()
    return embeddings


def _with_engine(
    open_engine: Callable[[OnnxFile], Engine],
) -> Callable[[OnnxFile, Images], Vectors]:
    def embed(file: OnnxFile, images: Images) -> Vectors:
        stated = guess_preprocessing(file).preprocessing
        x = np.ascontiguousarray(normalize_array(images[..., ::-1], stated))
        engine = open_engine(file)
        return np.concatenate([engine.run(x[:1]), engine.run(x[1:])])

    return embed


def _insightface(file: OnnxFile, images: Images) -> Vectors:
    model_zoo = importlib.import_module("insightface.model_zoo")
    assert file.path is not None
    model = model_zoo.get_model(str(file.path.resolve()), providers=["CPUExecutionProvider"])
    if model is None:
        raise ExportError("its get_model returns None")
    return np.concatenate([model.get_feat(images[0]), model.get_feat(list(images[1:]))])


_OPENCV = """
import io, cv2, numpy
given = numpy.load(io.BytesIO(sys.stdin.buffer.read()))
images, (mean, std) = given["images"], given["pixels"]
net = cv2.dnn.readNetFromONNX(given["model"])
outputs = []
for batch in (images[:1], images[1:]):
    net.setInput(cv2.dnn.blobFromImages(list(batch), 1 / std, (112, 112), (mean,) * 3, swapRB=True))
    outputs.append(net.forward().copy())
numpy.save(sys.stdout.buffer, numpy.concatenate(outputs))
"""


def _opencv(file: OnnxFile, images: Images) -> Vectors:
    """Embed with OpenCV in a process of its own, since it crashes on some sound files."""
    stated = guess_preprocessing(file).preprocessing
    given = io.BytesIO()
    model = np.frombuffer(file.content, np.uint8)
    np.savez(given, model=model, images=images, pixels=np.array([stated.mean, stated.std]))
    run = run_apart(file.where, "OpenCV", _OPENCV, given.getvalue())
    if run.returncode:
        raise ExportError(run.stderr.decode(errors="replace").strip().rpartition("\n")[2])
    return np.load(io.BytesIO(run.stdout), allow_pickle=False)


_CONSUMERS = (
    _Consumer("onnxruntime", "onnxruntime", _with_engine(OnnxruntimeEngine), Bar(), True),
    _Consumer("insightface", "insightface", _insightface, Bar(), True),
    _Consumer("OpenCV", "cv2", _opencv, Bar(1e-4), False),
    _Consumer("OpenVINO", "openvino", _with_engine(OpenVinoEngine), Bar(1e-4), False),
)
