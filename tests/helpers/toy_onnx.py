"""A tiny embedding network as an ONNX graph, in every shape that files of strangers have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from facerec.backbones import Preprocessing
from facerec.embedding.onnx_file import METADATA_KEY, OnnxFile, parse_onnx

WEIGHT = np.random.default_rng(3).normal(size=(8, 147))
"""The embedding is this matrix times the means of 16×16 tiles."""


def tiles(
    *,
    batch: int | str = "batch",
    layout: str = "NCHW",
    dtype: int = TensorProto.FLOAT,
    side: int = 112,
    leading: Sequence[tuple[str, Any]] = (),
    metadata: dict[str, str] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """Build the network; ``leading`` are operators with a constant, applied to the pixels first."""
    shape = [batch, 3, side, side] if layout == "NCHW" else [batch, side, side, 3]
    nodes = [helper.make_node("Cast", ["data"], ["v0"], name="first", to=TensorProto.FLOAT)]
    stored = [numpy_helper.from_array(WEIGHT.astype(np.float32), "weight")]
    for number, (kind, value) in enumerate(leading):
        stored.append(numpy_helper.from_array(np.asarray(value, np.float32), f"c{number}"))
        operands = [f"v{number}", f"c{number}"]
        if kind.endswith("Reversed"):
            operands.reverse()
        kind = kind.removesuffix("Reversed")
        nodes.append(helper.make_node(kind, operands, [f"v{number + 1}"], name=f"step{number}"))
    last = f"v{len(leading)}"
    if layout == "NHWC":
        nodes.append(helper.make_node("Transpose", [last], ["planes"], perm=[0, 3, 1, 2]))
        last = "planes"
    size = [side // 7, side // 7]
    nodes += [
        helper.make_node("AveragePool", [last], ["pooled"], kernel_shape=size, strides=size),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weight"], ["embedding"], name="gemm", transB=1),
    ]
    data = helper.make_tensor_value_info("data", dtype, shape)
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [batch, 8])
    graph = helper.make_graph(nodes, "tiles", [data], [output], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    if metadata is not None:
        helper.set_model_props(model, metadata)
    return model


def followed(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, np.ndarray] | None = None,
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    """Let nodes behind those of the network make its outputs, which may be inner values of it."""
    graph = model.graph
    graph.node.extend(nodes)
    graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in (constants or {}).items()
    )
    del graph.output[:]
    graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs
    )
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def noted(**changes: Any) -> dict[str, str]:
    """Return the metadata of a file that facerec exported."""
    preprocessing = {"channels": "rgb", "mean": 127.5, "std": 127.5}
    note = {"format": 1, "preprocessing": preprocessing, "recipe": {"seed": 5}}
    return {METADATA_KEY: json.dumps(note | changes)}


def expected(images: np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    """Compute the embedding in float64, tile by tile."""
    ordered = images if preprocessing.channels == "rgb" else images[..., ::-1]
    x = (ordered.astype(np.float64) - preprocessing.mean) / preprocessing.std
    size = images.shape[1] // 7
    means = x.reshape(len(x), 7, size, 7, size, 3).mean(axis=(2, 4)).transpose(0, 3, 1, 2)
    return means.reshape(len(x), -1) @ WEIGHT.T


def parsed(model: onnx.ModelProto) -> OnnxFile:
    return parse_onnx(model.SerializeToString(), "x.onnx")


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, atol=2e-6 * np.abs(wanted).max())
