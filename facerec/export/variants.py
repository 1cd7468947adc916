"""Variants of the exported file, each of which breaks a rule of some consumer.

They are made from the bytes of the main file and belong into a folder of their own: beside it,
insightface's package would load them by the order of their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from facerec.backbones import Preprocessing
from facerec.embedding.onnx_file import METADATA_KEY, NORM_OUTPUT, OnnxFile, parse_onnx
from facerec.errors import ExportError
from facerec.export.graph import INPUT, OUTPUT, finish, quiet
from facerec.export.parity import Bar
from facerec.recipe import from_dict

GraphVariant = Literal["uint8", "norm", "fp16", "fixed-batch"]
VariantKind = Literal["uint8", "norm", "fp16", "fixed-batch", "int8"]

_SUBTRACT, _MULTIPLY = "Sub_mean", "Mul_scale"
"""insightface's package looks for such names: they tell it that the graph normalises."""


@dataclass(frozen=True)
class Variant:
    """A kind of variant, for the model card and the checks."""

    made: str
    """What is different from the main file."""
    apart: str
    """Why it cannot be the main file."""
    consumers: tuple[str, ...]
    """Which consumers it suits."""
    bar: Bar | None
    """What it must reach against the backbone; None where only a bench can tell."""


VARIANTS: Mapping[VariantKind, Variant] = {
    "uint8": Variant(
        "takes RGB pixels 0…255 as uint8 (batch, 3, 112, 112) and normalises them itself",
        'insightface feeds float32 to a bare path; the manifest must say "embedded"',
        (
            "onnxruntime",
            'insightface ≥ 2 with preprocessing "embedded"',
            "OpenCV 5 with 8-bit blobs, not its FaceRecognizerSF, which feeds float32",
            "OpenVINO",
            "Triton (TYPE_UINT8)",
        ),
        Bar(),
    ),
    "norm": Variant(
        "has a second output, norm (batch, 1): the length of the raw embedding",
        "insightface asserts that a recognition model has exactly one output",
        ("onnxruntime", "OpenVINO", "Triton"),
        Bar(),
    ),
    "fp16": Variant(
        "stores and computes in float16; input and output stay float32",
        "its embeddings are not those of float32, and insightface's submission checker refuses "
        "weights of less than 4 bytes",
        ("onnxruntime", "insightface", "OpenCV 5", "OpenVINO", "Triton"),
        Bar(max_abs=0.01, min_cosine=0.999),
    ),
    "fixed-batch": Variant(
        "takes batches of exactly one size",
        "insightface feeds single images as well as batches of any size",
        ("onnxruntime", "OpenCV", "OpenVINO", "compilers that want every size fixed"),
        Bar(),
    ),
    "int8": Variant(
        "computes most layers in int8, calibrated on faces (QDQ, static)",
        "its embeddings are not those of float32, nor alike in programs that round otherwise, as "
        "OpenCV does",
        ("onnxruntime", "insightface", "OpenVINO", "Triton"),
        None,
    ),
}


def make_variant(kind: GraphVariant, main: bytes, *, batch: int = 1) -> bytes:
    """Make a variant of what `export_graph` returned; ``int8`` is made elsewhere.

    ``batch`` is the images in a batch, for ``fixed-batch``.

    Raises:
        ExportError: not a main file of ours, or a batch below 1.
    """
    import onnx

    file = parse_onnx(main, "the main file")
    note = main_note(file)
    model = onnx.load_from_string(main)
    keep: tuple[str, ...] = ()
    extra: dict[str, Any] = {"variant": kind}
    if kind == "uint8":
        _take_pixels(model.graph, from_dict(Preprocessing, note["preprocessing"], file.where))
        keep = (_SUBTRACT, _MULTIPLY)
        extra["preprocessing"] = "embedded"
    elif kind == "norm":
        _add_norm(model.graph, file.opset)
    elif kind == "fp16":
        model = _half(model)
    else:
        if batch < 1:
            raise ExportError(f"a fixed batch must have at least 1 image, found {batch}")
        _fix_batch(model.graph, batch)
    return finish(model, {**note, **extra}, file.opset, keep_names=keep)


def main_note(file: OnnxFile) -> dict[str, Any]:
    """Return what a main file of ours says about itself.

    Raises:
        ExportError: any other file.
    """
    note = file.note
    names = ([i.name for i in file.inputs], [o.name for o in file.outputs])
    if note is None or "variant" in note or names != ([INPUT], [OUTPUT]):
        raise ExportError(
            f"{file.where}: variants are made from a main file of facerec (metadata entry "
            f"{METADATA_KEY!r}, input {INPUT}, output {OUTPUT}); export the model again"
        )
    return note


def _take_pixels(graph: Any, preprocessing: Preprocessing) -> None:
    """Put the normalisation before the graph: uint8 → float32 → − mean → · 1/std."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    for node in graph.node:
        node.input[:] = ["normalized" if name == INPUT else name for name in node.input]
    first = [
        helper.make_node("Cast", [INPUT], ["pixels"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Sub", ["pixels", "mean"], ["centred"], _SUBTRACT),
        helper.make_node("Mul", ["centred", "scale"], ["normalized"], _MULTIPLY),
    ]
    rest = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    graph.node.extend(first + rest)
    for name, value in (("mean", preprocessing.mean), ("scale", 1 / preprocessing.std)):
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))


def _add_norm(graph: Any, opset: int) -> None:
    from onnx import TensorProto, helper, numpy_helper

    if opset < 18:
        node = helper.make_node("ReduceL2", [OUTPUT], [NORM_OUTPUT], axes=[1], keepdims=1)
    else:
        graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "norm_axes"))
        node = helper.make_node("ReduceL2", [OUTPUT, "norm_axes"], [NORM_OUTPUT], keepdims=1)
    graph.node.append(node)
    batch = graph.output[0].type.tensor_type.shape.dim[0].dim_param
    graph.output.append(helper.make_tensor_value_info(NORM_OUTPUT, TensorProto.FLOAT, [batch, 1]))


def _half(model: Any) -> Any:
    with quiet():
        from onnxruntime.transformers.float16 import convert_float_to_float16
        from onnxruntime.transformers.onnx_model import OnnxModel

        half = OnnxModel(convert_float_to_float16(model, keep_io_types=True))
        # It appends the casts at the end, where no reader wants them.
        half.topological_sort(is_deterministic=True)
        return half.model


def _fix_batch(graph: Any, batch: int) -> None:
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
