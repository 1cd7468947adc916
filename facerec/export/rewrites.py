"""Rewrites of an exported graph that change no embedding, so that int8 covers all of it.

onnxruntime has integer kernels for convolutions, linear layers, sums, products and leaky
rectifiers, but none for the batch norm before a convolution or for PReLU. Each of those left
between two convolutions turns all values into float32 and back. Both are exactly made of what has
kernels; weights are computed in float64. An ``onnx.ModelProto`` is changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

WIDEST = 4.0
"""How far from 0 a channel may be moved, in standard deviations of the widest channel: so far some
values of that channel lie anyway."""


def split_prelus(model: Any) -> None:
    """Turn PReLUs before convolutions and batch norms into a leaky rectifier, a product and a sum.

    For slopes ``a`` on the negative side, one a channel, and ``l`` the leaky rectifier of slope
    ``c``, ``PReLU(y) = (a − c)/(1 − c) · (y + k·l(y))`` where ``k = (1 − a)/(a − c)``. The first
    factor goes into the weights of what reads it. ``c`` lies so far below all ``a`` that neither
    factor grows beyond bounds; where no slope is negative it is −1, and ``l(y) = |y|``.
    """
    from onnx.helper import make_node as make

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
            if reader.op_type == "BatchNormalization":
                mean, variance = (graph.values(name) for name in reader.input[3:])
                epsilon = epsilon_of(reader)
                graph.set(reader.input[3], mean / share)
                graph.set(reader.input[4], (variance + epsilon) / share**2 - epsilon)
            else:
                weight = graph.values(reader.input[1])
                graph.set(reader.input[1], weight * _per_input(share, reader, weight))
        factor = f"{output}_factor"
        graph.set(factor, (1 - a) / (a - c))
        graph.insert_after(
            prelu,
            make("LeakyRelu", [given], [f"{output}_leaky"], alpha=c),
            make("Mul", [f"{output}_leaky", factor], [f"{output}_part"]),
            make("Add", [given, f"{output}_part"], [output]),
        )
        graph.remove(prelu)
    graph.finish()


def split_batch_norms(model: Any) -> None:
    """Turn every batch norm before a convolution into weights of its neighbours.

    A batch norm is ``s·x + t``, and a convolution that pads with zeros obeys
    ``conv_W(s·x + t) + b = conv_{W·s}(x + m) + b + conv_W(t − s·m)``, where ``m`` and ``t`` are
    taken for images of which every pixel is the same. With ``m = t/s`` the last term is nothing,
    and the layers before can make ``x + m`` in place of ``x`` by other biases, if the others that
    read it can take ``m`` off again in the same way; else ``m`` is added. For channels where it
    would widen the range of ``x``, ``m`` is 0 and the last term stays: one number, which joins
    ``b``, and a map where the kernel reaches into the padding.
    """
    from onnx.helper import make_node as make

    graph = Graph(model)
    sizes = _image_sizes(model)
    for norm in graph.nodes("BatchNormalization"):
        readers = graph.readers(norm.output[0])
        size = sizes.get(norm.input[0])
        if size is None or len(readers) != 1 or not graph.convolves(readers[0], norm.output[0]):
            continue
        convolution = readers[0]
        gamma, beta, mean, variance = (graph.values(name) for name in norm.input[1:5])
        deviation = np.sqrt(variance + epsilon_of(norm))
        scale = gamma / deviation
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted_mean = beta / scale
        movable = np.abs(wanted_mean) <= WIDEST * deviation.max()
        moved = np.where(movable, wanted_mean - mean, 0)
        rest = np.where(movable, 0, beta - mean * scale)
        given = norm.input[0]
        if not _move(graph, norm, moved):
            given = f"{norm.output[0]}_moved"
            graph.set(f"{given}_by", moved[:, None, None])
            graph.insert_after(norm, make("Add", [norm.input[0], f"{given}_by"], [given]))
        weight = graph.values(convolution.input[1])
        # What each tap of the kernel contributes where the image is the rest everywhere.
        taps = (weight * _per_input(rest, convolution, weight)).sum(axis=1)
        inside = taps.sum(axis=(1, 2))
        graph.set(convolution.input[1], weight * _per_input(scale, convolution, weight))
        graph.add_bias(convolution, inside)
        convolution.input[0] = given
        graph.remove(norm)
        rows, columns = _taps_on_image(convolution, weight.shape[2:], size)
        if not rest.any() or (rows.all() and columns.all()):
            continue
        border = np.einsum("hk,okl,wl->ohw", rows, taps, columns) - inside[:, None, None]
        output = convolution.output[0]
        convolution.output[0] = f"{output}_inside"
        graph.set(f"{output}_border", border[None])
        graph.insert_after(
            convolution,
            make("Add", [convolution.output[0], f"{output}_border"], [output]),
        )
    graph.finish()


def _move(graph: Graph, norm: Any, by: Array) -> bool:
    """Add a number to each channel of what a batch norm reads, without a change for other readers.

    Returns:
        False where that takes more than biases; nothing is changed then.
    """
    if not by.any():
        return True
    value = norm.input[0]
    source = graph.bias_behind(value)
    if source is None:
        return False
    changes = [(source, by)]
    for reader in graph.readers(value):
        if reader is norm:
            continue
        if reader is not None and reader.op_type == "Add":
            other = graph.summand_of(reader, but=value)
            if other is None:
                return False
            changes.append((other, -by))
        elif graph.convolves(reader, value) and not any(attributes(reader).get("pads", [])):
            weight = graph.values(reader.input[1])
            change = (weight * _per_input(by, reader, weight)).sum(axis=(1, 2, 3))
            changes.append((reader, -change))
        else:
            return False
    for convolution, change in changes:
        graph.add_bias(convolution, change)
    return True


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

    def owns(self, node: Any, names: Iterable[str]) -> bool:
        """Tell whether values are stored, and for this node alone."""
        return all(name in self.stored and self.readers(name) == [node] for name in names)

    def convolves(self, node: Any, given: str) -> bool:
        """Tell whether this is a convolution of ``given`` with stored weights of its own."""
        return (
            node is not None
            and node.op_type == "Conv"
            and node.input[0] == given
            and self.owns(node, node.input[1:])
        )

    def scalable(self, node: Any, given: str) -> bool:
        """Tell whether this reads the value so that a factor fits into its own weights."""
        if node is not None and node.op_type == "BatchNormalization":
            return node.input[0] == given and self.owns(node, node.input[3:])
        return self.convolves(node, given)

    def maker(self, name: str) -> Any:
        """Return the node that makes a value, or None."""
        return next((node for node in self.graph.node if name in node.output), None)

    def convolution_of(self, name: str) -> Any:
        """Return the convolution with weights of its own that makes a value, or None."""
        maker = self.maker(name)
        return maker if maker is not None and self.convolves(maker, maker.input[0]) else None

    def summand_of(self, add: Any, but: str = "") -> Any:
        """Return the convolution that makes a summand for this sum alone, or None."""
        own = (name for name in add.input if name != but and len(self.readers(name)) == 1)
        return next(filter(None, map(self.convolution_of, own)), None)

    def bias_behind(self, name: str) -> Any:
        """Return a convolution whose bias adds to a value and to nothing else, or None."""
        maker = self.maker(name)
        if maker is not None and maker.op_type == "Add":
            return self.summand_of(maker)
        return self.convolution_of(name)

    def values(self, name: str) -> Array:
        """Return stored numbers in float64."""
        import onnx

        return onnx.numpy_helper.to_array(self.stored[name]).astype(np.float64)

    def set(self, name: str, values: Array) -> None:
        """Store float32 values, in place of those that have the name."""
        import onnx

        self.stored[name] = onnx.numpy_helper.from_array(values.astype(np.float32), name)

    def add_bias(self, convolution: Any, values: Array) -> None:
        """Add to the bias of a convolution or a linear layer, which may have none yet."""
        if len(convolution.input) < 3:
            convolution.input.append(f"{convolution.input[1]}_bias")
            self.set(convolution.input[2], values)
        else:
            self.set(convolution.input[2], values + self.values(convolution.input[2]))

    def insert_after(self, anchor: Any, *nodes: Any) -> None:
        """Insert nodes behind another."""
        index = list(self.graph.node).index(anchor) + 1
        for node in reversed(nodes):
            self.graph.node.insert(index, node)

    def remove(self, node: Any) -> None:
        """Take a node out."""
        self.graph.node.remove(node)

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


def epsilon_of(norm: Any) -> float:
    """Return what a batch norm adds to the variance."""
    return attributes(norm).get("epsilon", 1e-5)


def _image_sizes(model: Any) -> dict[str, tuple[int, int]]:
    """Return height and width of every value that has them."""
    import onnx

    sizes = {}
    graph = onnx.shape_inference.infer_shapes(model).graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        shape = [side.dim_value for side in value.type.tensor_type.shape.dim]
        if len(shape) == 4 and min(shape[2:]) > 0:
            sizes[value.name] = shape[2], shape[3]
    return sizes


def _per_input(values: Array, convolution: Any, weight: Array) -> Array:
    """Lay numbers, one an input channel or one for all, along weights ``(O, I / g, h, w)``."""
    groups = attributes(convolution).get("group", 1)
    per_group = np.broadcast_to(values, groups * weight.shape[1]).reshape(groups, -1)
    return np.repeat(per_group, len(weight) // groups, axis=0)[:, :, None, None]


def _taps_on_image(
    convolution: Any, kernel: tuple[int, ...], size: tuple[int, int]
) -> tuple[Array, Array]:
    """For each output row, and each column, tell by ones which taps lie on the image, not beside.

    Returns:
        ``(H', h)`` for rows and ``(W', w)`` for columns.
    """
    options = attributes(convolution)
    taps = []
    for axis in (0, 1):
        before, after = options.get("pads", [0, 0, 0, 0])[axis::2]
        step = options.get("strides", [1, 1])[axis]
        spread = options.get("dilations", [1, 1])[axis]
        reach = spread * (kernel[axis] - 1)
        starts = np.arange(-before, size[axis] + after - reach, step)
        positions = starts[:, None] + spread * np.arange(kernel[axis])
        taps.append(((positions >= 0) & (positions < size[axis])).astype(np.float64))
    return taps[0], taps[1]
