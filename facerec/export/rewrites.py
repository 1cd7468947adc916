"""Rewrites of an exported graph that change no embedding, so that int8 covers all of it.

onnxruntime has integer kernels for convolutions, linear layers, sums, products and leaky
rectifiers, but none for the batch norm before a convolution or for PReLU. Each of those left
between two convolutions turns all values into float32 and back. Both are exactly made of what has
kernels; weights are computed in float64. An ``onnx.ModelProto`` is changed in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def split_batch_norms(model: Any) -> None:
    """Turn batch norms that convolutions alone read into convolutions of one pixel and channel.

    A convolution that pads with zeros cannot take the shift of the batch norm before it.
    """
    from onnx.helper import make_node

    graph = Graph(model)
    for norm in graph.nodes("BatchNormalization"):
        given, gamma, beta, mean, variance = norm.input
        (output,) = norm.output
        if any(each is None or each.op_type != "Conv" for each in graph.readers(output)):
            continue
        deviation = np.sqrt(graph.values(variance) + attributes(norm).get("epsilon", 1e-5))
        scale = graph.values(gamma) / deviation
        names = f"{output}_weight", f"{output}_bias"
        graph.set(names[0], scale[:, None, None, None])
        graph.set(names[1], graph.values(beta) - scale * graph.values(mean))
        graph.replace(norm, make_node("Conv", [given, *names], [output], group=len(scale)))
    graph.finish()


def split_prelus(model: Any) -> None:
    """Turn PReLUs before convolutions into a leaky rectifier, a product and a sum.

    For slopes ``a`` on the negative side, one a channel, and ``l`` the leaky rectifier of slope
    ``c``, ``PReLU(y) = (a − c)/(1 − c) · (y + k·l(y))`` where ``k = (1 − a)/(a − c)``. The first
    factor goes into the weights of what reads it. ``c`` lies so far below all ``a`` that neither
    factor grows beyond bounds; where no slope is negative it is −1, and ``l(y) = |y|``.
    """
    from onnx.helper import make_node

    graph = Graph(model)
    for prelu in graph.nodes("PRelu"):
        (given, slope), (output,) = prelu.input, prelu.output
        readers = graph.readers(output)
        if slope not in graph.stored or not all(graph.scalable(r, output) for r in readers):
            continue
        a = graph.values(slope)
        c = min(a.min(), 0.0) - 1
        share = (a.reshape(-1) - c) / (1 - c)
        for reader in readers:
            weight = graph.values(reader.input[1])
            graph.set(reader.input[1], weight * _per_input(share, reader, weight))
        leaky, factor, part = (f"{output}_{name}" for name in ("leaky", "factor", "part"))
        graph.set(factor, (1 - a) / (a - c))
        graph.replace(
            prelu,
            make_node("LeakyRelu", [given], [leaky], alpha=c),
            make_node("Mul", [leaky, factor], [part]),
            make_node("Add", [given, part], [output]),
        )
    graph.finish()


class Graph:
    """The graph of an ``onnx.ModelProto`` with its weights by name."""

    def __init__(self, model: Any) -> None:
        self.graph = model.graph
        self.stored = {tensor.name: tensor for tensor in model.graph.initializer}

    def nodes(self, kind: str) -> list[Any]:
        """Return the nodes of a kind."""
        return [node for node in self.graph.node if node.op_type == kind]

    def readers(self, name: str) -> list[Any]:
        """Return the nodes that read a value, and None for an output of the graph."""
        nodes = [node for node in self.graph.node if name in node.input]
        return nodes + [None for value in self.graph.output if value.name == name]

    def scalable(self, node: Any, given: str) -> bool:
        """Tell whether a factor of what a node reads fits into stored weights of its own."""
        return (
            node is not None
            and node.op_type == "Conv"
            and node.input[0] == given
            and all(n in self.stored and self.readers(n) == [node] for n in node.input[1:])
        )

    def values(self, name: str) -> Array:
        """Return stored numbers in float64."""
        import onnx

        return onnx.numpy_helper.to_array(self.stored[name]).astype(np.float64)

    def set(self, name: str, values: Array) -> None:
        """Store float32 values, in place of those that have the name."""
        import onnx

        self.stored[name] = onnx.numpy_helper.from_array(values.astype(np.float32), name)

    def replace(self, node: Any, *others: Any) -> None:
        """Put other nodes in the place of one."""
        place = list(self.graph.node).index(node)
        del self.graph.node[place]
        for other in reversed(others):
            self.graph.node.insert(place, other)

    def finish(self) -> None:
        """Drop weights that nothing reads, and shapes that were inferred before."""
        used = {name for node in self.graph.node for name in node.input}
        kept = [tensor for name, tensor in self.stored.items() if name in used]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)
        del self.graph.value_info[:]


def attributes(node: Any) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    import onnx

    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _per_input(values: Array, convolution: Any, weight: Array) -> Array:
    """Lay numbers, one an input channel or one for all, along weights ``(O, I / g, h, w)``."""
    groups = attributes(convolution).get("group", 1)
    per_group = np.broadcast_to(values, groups * weight.shape[1]).reshape(groups, -1)
    return np.repeat(per_group, len(weight) // groups, axis=0)[:, :, None, None]
