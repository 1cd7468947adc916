"""The exported file through the programs that will use it, from BGR photos on."""

from __future__ import annotations

import functools
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from facerec.backbones.preprocessing import Preprocessing, normalize_array
from facerec.base.errors import ExportError, message_line
from facerec.embedding import TorchModel
from facerec.embedding.engines import Engine, OnnxruntimeEngine, OpenVinoEngine
from facerec.embedding.onnx_file import OnnxFile
from facerec.embedding.onnx_preprocessing import guess_preprocessing
from facerec.embedding.trial import run_apart
from facerec.export.graph import quiet
from facerec.export.parity import (
    MAX_ABS,
    Images,
    Vectors,
    deviation,
    torch_embeddings,
    torch_rounding,
)

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
    """Why it is not the same; empty otherwise."""


@dataclass(frozen=True)
class _Consumer:
    name: str
    module: str
    embed: Callable[[OnnxFile, Images, Vectors], Vectors]
    """Embeds BGR photos, or what the file takes of them, the first alone, the others as a batch."""
    required: bool
    """Whether an installed one must embed as torch does, to the bar of the main check."""


def check_consumers(file: OnnxFile, model: TorchModel, images: Images) -> list[ConsumerRow]:
    """Embed photos with every consumer that is installed, and compare with the backbone.

    What torch itself rounds as much is no difference, as in `facerec.export.parity.check_parity`.

    Args:
        file: the exported file, on the disk.
        model: what was exported.
        images: aligned photos as OpenCV reads them, uint8 BGR ``(N, 112, 112, 3)``, N ≥ 2.

    Raises:
        ExportError: onnxruntime or insightface embeds otherwise, or does not load the file.
    """
    stated = guess_preprocessing(file).preprocessing
    pixels = np.ascontiguousarray(normalize_array(images[..., ::-1], stated))
    reference = torch_embeddings(model, pixels, stated)
    noise = functools.cache(partial(torch_rounding, model, pixels, stated, reference))
    rows = []
    for consumer in _CONSUMERS:
        name = consumer.name
        try:
            with quiet():
                version = str(importlib.import_module(consumer.module).__version__)
        except ImportError as error:
            rows.append(ConsumerRow(name, None, "not installed", note=message_line(error)))
            continue
        if consumer.module == "insightface" and stated != Preprocessing():
            why = "it feeds RGB by 127.5/127.5 alone"
            rows.append(ConsumerRow(name, version, "not suited", note=why))
            continue
        most, figures = MAX_ABS if consumer.required else 1e-4, dict[str, float]()
        outcome: Outcome = "cannot load"
        try:
            with quiet():
                found = deviation(reference, consumer.embed(file, images, pixels))
        except Exception as error:  # whatever a stranger's library raises
            why = message_line(error).removeprefix(f"{file.where}: ")
        else:
            figures, same = vars(found), found.small(most, noise)
            outcome, why = "same" if same else "not suited", ""
            if not same:
                why = f"it computes the network otherwise, {found.words()}"
        if consumer.required and outcome != "same":
            raise ExportError(
                f"{name} {version} does not embed as the backbone does: {why}; try another opset"
            )
        rows.append(ConsumerRow(name, version, outcome, **figures, note=why))
    return rows


def _with_engine(engine: type[Engine], file: OnnxFile, images: Images, pixels: Vectors) -> Vectors:
    opened = engine(file)
    return np.concatenate([opened.run(pixels[:1]), opened.run(pixels[1:])])


def _insightface(file: OnnxFile, images: Images, pixels: Vectors) -> Vectors:
    model_zoo = importlib.import_module("insightface.model_zoo")
    assert file.path is not None
    model = model_zoo.get_model(str(file.path.resolve()), providers=["CPUExecutionProvider"])
    return np.concatenate([model.get_feat(images[0]), model.get_feat(list(images[1:]))])


_OPENCV = """
import io, cv2, numpy
given = numpy.load(io.BytesIO(sys.stdin.buffer.read()))
images, mean, std = given["images"], given["mean"].tolist(), float(given["std"])
net = cv2.dnn.readNetFromONNX(given["model"])
outputs = []
for batch in (images[:1], images[1:]):
    net.setInput(cv2.dnn.blobFromImages(list(batch), 1 / std, (112, 112), mean, swapRB=True))
    outputs.append(net.forward().copy())
numpy.save(sys.stdout.buffer, numpy.concatenate(outputs))
"""


def _opencv(file: OnnxFile, images: Images, pixels: Vectors) -> Vectors:
    """Embed with OpenCV in a process of its own, since it crashes on some sound files."""
    stated = guess_preprocessing(file).preprocessing
    given = io.BytesIO()
    model = np.frombuffer(file.content, np.uint8)
    np.savez(given, model=model, images=images, mean=stated.per_channel()[0], std=stated.std)
    found = run_apart(file.where, "OpenCV", _OPENCV, given.getvalue())
    return np.load(io.BytesIO(found), allow_pickle=False)


_CONSUMERS = (
    _Consumer("onnxruntime", "onnxruntime", partial(_with_engine, OnnxruntimeEngine), True),
    _Consumer("insightface", "insightface", _insightface, True),
    _Consumer("OpenCV", "cv2", _opencv, False),
    _Consumer("OpenVINO", "openvino", partial(_with_engine, OpenVinoEngine), False),
)
