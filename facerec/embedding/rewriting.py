"""Rewrites of a file in memory that change no embedding and are faster on a CPU."""

from __future__ import annotations

from facerec.embedding.onnx_file import constants_of


def without_prelu(content: bytes, least_axes: int = 0) -> bytes | None:
    """Return a file with each PReLU as ``a·x + (1 − a)·Relu(x)``; None if it has none.

    onnxruntime 1.31 has no PReLU in its blocked channel layout: each one costs two reorders, and
    the convolution before it is not fused with what follows. The four operators of the same
    function stay in that layout. Slopes are taken as they are stored, of any shape that broadcasts;
    one that is computed keeps its PReLU.

    Args:
        content: a file that passed the checks.
        least_axes: PReLUs whose slopes have so many axes or more keep their form, unless it is 0.
    """
    import onnx
    from onnx import numpy_helper
    from onnx.helper import make_node

    model = onnx.load_model_from_string(content)
    graph = model.graph
    constants, nodes = constants_of(graph), list(graph.node)
    del graph.node[:]
    for node in nodes:
        slope = constants.get(node.input[1]) if node.op_type == "PRelu" else None
        if slope is None or 0 < least_axes <= len(slope.dims):
            graph.node.append(node)
            continue
        (given, stored), (made,) = node.input, node.output
        rectified, positive, negative, rest = (
            f"{made}/{part}" for part in ("rectified", "positive", "negative", "rest")
        )
        values = numpy_helper.to_array(slope)
        graph.initializer.append(numpy_helper.from_array((1 - values).astype(values.dtype), rest))
        graph.node.extend(
            [
                make_node("Relu", [given], [rectified]),
                make_node("Mul", [rectified, rest], [positive]),
                make_node("Mul", [given, stored], [negative]),
                make_node("Add", [negative, positive], [made]),
            ]
        )
    return model.SerializeToString() if len(graph.node) > len(nodes) else None
