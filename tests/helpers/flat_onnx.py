"""ONNX files of three nodes with any interface, for tests that only look at names and shapes."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper

from facerec.embedding.onnx_file import OnnxFile, parse_onnx


def flat_onnx(
    *,
    batch: int | str = "batch",
    side: int | tuple[int, int] = 112,
    dimension: int = 8,
    dtype: int = TensorProto.FLOAT,
    channels_last: bool = False,
    name: str = "data",
) -> OnnxFile:
    """Return a file that averages over pixels and maps the three channels linearly."""
    height, width = (side, side) if isinstance(side, int) else side
    shape = [batch, height, width, 3] if channels_last else [batch, 3, height, width]
    nodes: list[Any] = [
        helper.make_node("Cast", [name], ["x"], to=TensorProto.FLOAT),
        helper.make_node(
            "ReduceMean", ["x"], ["m"], axes=[1, 2] if channels_last else [2, 3], keepdims=0
        ),
        helper.make_node("MatMul", ["m", "w"], ["embedding"]),
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, dimension], [0.5] * 3 * dimension)
    graph = helper.make_graph(
        nodes,
        "flat",
        [helper.make_tensor_value_info(name, dtype, shape)],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [batch, dimension])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return parse_onnx(model.SerializeToString(), "flat.onnx")
