"""Rewrites of an exported graph that change no embedding, so that int8 covers all of it.

onnxruntime has integer kernels for convolutions, linear layers, sums, products and leaky
rectifiers, but none for the batch norm before a convolution or for PReLU. Each of those left
between two convolutions turns all values into float32 and back. Both are exactly made of what has
kernels; weights are computed in float64.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def split_batch_norms(model: Any) -> None:
    """Turn every batch norm before a convolution into weights and a map that is added behind it.

    With ``s`` and ``t`` such that the batch norm is ``s·x + t``, and ``conv`` padding with zeros:
    ``conv_W(s·x + t) + b = conv_{W·s}(x) + b + M`` with ``M = conv_W(t)``, where ``t`` is taken for
    an image of which every pixel is ``t``. ``M`` is one number a channel, which joins the bias,
    except where the kernel reaches into the padding; what differs there is added as a map.

    Args:
        model: an ``onnx.ModelProto``, changed in place.
    """
    import onnx

    graph = _Graph(model)
    sizes = _image_sizes(model)
    for norm in graph.nodes("BatchNormalization"):
        readers = graph.readers(norm.output[0])
        if len(readers) != 1 or not graph.owns_weights(readers[0], norm.output[0]):
            continue
        convolution = readers[0]
        size = sizes.get(norm.input[0])
        if size is None or _attributes(convolution).get("auto_pad", b"NOTSET") != b"NOTSET":
            continue
        gamma, beta, mean, variance = (graph.values(name) for name in norm.input[1:5])
        scale = gamma / np.sqrt(variance + _attributes(norm).get("epsilon", 1e-5))
        weight = graph.values(convolution.input[1])
        groups = _attributes(convolution).get("group", 1)
        # What each tap of the kernel contributes where the image is t everywhere.
        taps = (weight * _per_input(beta - mean * scale, weight, groups)).sum(axis=1)
        inside = taps.sum(axis=(1, 2))
        rows, columns = _taps_on_image(convolution, weight.shape[2:], size)
        graph.set(convolution.input[1], weight * _per_input(scale, weight, groups))
        graph.add_bias(convolution, inside)
        convolution.input[0] = norm.input[0]
        graph.remove(norm)
        if rows.all() and columns.all():
            continue
        border = np.einsum("hk,okl,wl->ohw", rows, taps, columns) - inside[:, None, None]
        output = convolution.output[0]
        convolution.output[0] = f"{output}_inside"
        graph.set(f"{output}_border", border[None])
        graph.insert_after(
            convolution,
            onnx.helper.make_node("Add", [convolution.output[0], f"{output}_border"], [output]),
        )
    graph.finish()


def split_prelus(model: Any) -> None:
    """Turn every PReLU before convolutions into a leaky rectifier, a product and a sum.

    For slopes ``a`` on the negative side, one a channel, and ``l`` the leaky rectifier of slope
    ``c``, ``PReLU(y) = (a − c)/(1 − c) · (y + k·l(y))`` where ``k = (1 − a)/(a − c)``. The first
    factor goes into the weights of the convolutions. ``c`` lies so far below all ``a`` that neither
    factor grows beyond bounds; where no slope is negative it is −1, and ``l(y) = |y|``.

    Args:
        model: an ``onnx.ModelProto``, changed in place.
    """
    import onnx

    graph = _Graph(model)
    for prelu in graph.nodes("PRelu"):
        (given, slope), (output,) = prelu.input, prelu.output
        readers = graph.readers(output)
        if slope not in graph.stored or not all(graph.owns_weights(r, output) for r in readers):
            continue
        a = graph.values(slope)
        c = min(a.min(), 0.0) - 1
        for reader in readers:
            weight = graph.values(reader.input[1])
            groups = _attributes(reader).get("group", 1)
            share = np.broadcast_to((a.reshape(-1) - c) / (1 - c), groups * weight.shape[1])
            graph.set(reader.input[1], weight * _per_input(share, weight, groups))
        factor = f"{output}_factor"
        graph.set(factor, (1 - a) / (a - c))
        make = onnx.helper.make_node
        graph.insert_after(
            prelu,
            make("LeakyRelu", [given], [f"{output}_leaky"], alpha=c),
            make("Mul", [f"{output}_leaky", factor], [f"{output}_part"]),
            make("Add", [given, f"{output}_part"], [output]),
        )
        graph.remove(prelu)
    graph.finish()


class _Graph:
    """The graph of a model with its weights by name."""

    def __init__(self, model: Any) -> None:
        self.graph = model.graph
        self.stored = {tensor.name: tensor for tensor in model.graph.initializer}
        self._readers = defaultdict(list)
        for node in model.graph.node:
            for name in node.input:
                self._readers[name].append(node)
        for value in model.graph.output:
            self._readers[value.name].append(None)

    def nodes(self, kind: str) -> list[Any]:
        return [node for node in self.graph.node if node.op_type == kind]

    def readers(self, name: str) -> list[Any]:
        """Return the nodes that read a value, and None for an output of the graph."""
        return self._readers[name]

    def owns_weights(self, node: Any, given: str) -> bool:
        """Tell whether this is a convolution of ``given`` with stored weights of its own."""
        return (
            node is not None
            and node.op_type == "Conv"
            and node.input[0] == given
            and all(
                name in self.stored and len(self._readers[name]) == 1 for name in node.input[1:]
            )
        )

    def values(self, name: str) -> Array:
        import onnx

        return onnx.numpy_helper.to_array(self.stored[name]).astype(np.float64)

    def set(self, name: str, values: Array) -> None:
        """Store float32 values, in place of those that have the name."""
        import onnx

        self.stored[name] = onnx.numpy_helper.from_array(values.astype(np.float32), name)

    def add_bias(self, convolution: Any, values: Array) -> None:
        if len(convolution.input) < 3:
            convolution.input.append(f"{convolution.input[1]}_bias")
            self.set(convolution.input[2], values)
        else:
            self.set(convolution.input[2], values + self.values(convolution.input[2]))

    def insert_after(self, place: Any, *nodes: Any) -> None:
        index = list(self.graph.node).index(place) + 1
        for node in reversed(nodes):
            self.graph.node.insert(index, node)

    def remove(self, node: Any) -> None:
        self.graph.node.remove(node)

    def finish(self) -> None:
        """Drop weights that nothing reads, and shapes that were inferred before."""
        used = {name for node in self.graph.node for name in node.input}
        kept = [tensor for name, tensor in self.stored.items() if name in used]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)
        del self.graph.value_info[:]


def _attributes(node: Any) -> dict[str, Any]:
    import onnx

    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _image_sizes(model: Any) -> dict[str, tuple[int, int]]:
    """Return height and width of every value that has them."""
    import onnx

    sizes = {}
    graph = onnx.shape_inference.infer_shapes(model).graph
    for value in (*graph.input, *graph.value_info):
        shape = [side.dim_value for side in value.type.tensor_type.shape.dim]
        if len(shape) == 4 and min(shape[2:]) > 0:
            sizes[value.name] = shape[2], shape[3]
    return sizes


def _per_input(values: Array, weight: Array, groups: int) -> Array:
    """Lay one number for each input channel, ``(I,)``, along weights ``(O, I / groups, h, w)``."""
    per_group = values.reshape(groups, -1)
    return np.repeat(per_group, len(weight) // groups, axis=0)[:, :, None, None]


def _taps_on_image(
    convolution: Any, kernel: tuple[int, ...], size: tuple[int, int]
) -> tuple[Array, Array]:
    """For each output row, and each column, tell by ones which taps lie on the image, not beside.

    Returns:
        ``(H', h)`` for rows and ``(W', w)`` for columns.
    """
    attributes = _attributes(convolution)
    found = []
    for axis in (0, 1):
        before, after = attributes.get("pads", [0, 0, 0, 0])[axis::2]
        step = attributes.get("strides", [1, 1])[axis]
        spread = attributes.get("dilations", [1, 1])[axis]
        reach = spread * (kernel[axis] - 1)
        starts = np.arange(-before, size[axis] + after - reach, step)
        places = starts[:, None] + spread * np.arange(kernel[axis])
        found.append(((places >= 0) & (places < size[axis])).astype(np.float64))
    return found[0], found[1]
