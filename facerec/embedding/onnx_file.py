"""Reading of any ``.onnx`` file without trusting it: what it says of itself, what it is made of.

Nothing here computes with the model. onnx parses and checks it, within bounds that are set here;
what the format allows and an embedding network does not need is refused: operators of others,
functions, control flow, sparse tensors, huge tensors made of small ones. Weights in a file beside
it, as exporters write them, are read from its own folder alone. An engine gets the bytes that were
checked, with those weights inside, so nothing can change between the check and the use.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from facerec.base.errors import ModelError
from facerec.base.files import parse_json, read_file, reading
from facerec.base.libraries import needed

METADATA_KEY = "facerec"
"""The entry of ``metadata_props`` in which facerec's own exports say all about themselves."""

METADATA_FORMAT = 1

MAX_BYTES = 2**31
"""No ONNX file is larger: protobuf ends there."""

MAX_NODES = 50_000
"""A hundred times what the deepest recognition network has."""

MAX_NUMBERS = 2**24
"""In one tensor between two nodes, for one image: twenty times the widest of iResNet-200."""

MAX_SIDE = 1024
"""Of an image, in pixels."""

MAX_BATCH = 1024
"""Of a file with a fixed batch."""

DOMAINS = ("", "ai.onnx")
"""Operators that every runtime knows; others need code from elsewhere."""


@dataclass(frozen=True)
class TensorInfo:
    """An input or output as the file declares it."""

    name: str
    dtype: str
    """Number format, by numpy's name."""
    shape: tuple[int | str | None, ...]
    """A number, the name of a free dimension, or None where the file says nothing."""

    def __str__(self) -> str:
        sides = ", ".join("?" if side is None else str(side) for side in self.shape)
        return f"{self.name} {self.dtype} [{sides}]"


@dataclass(frozen=True)
class ImageInput:
    """The one input of an embedding model: a batch of images."""

    name: str
    dtype: str
    """``float32`` or ``uint8``."""
    batch: int | None
    """Images in a batch; None where that is free."""
    layout: str
    """``NCHW`` or ``NHWC``."""
    height: int
    width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of one image, in the file's layout."""
        sides = self.height, self.width
        return (3, *sides) if self.layout == "NCHW" else (*sides, 3)


@dataclass(frozen=True)
class OnnxFile:
    """A file that passed the checks of `parse_onnx`."""

    path: Path | None
    content: bytes = field(repr=False)
    """The bytes that were checked, with all weights; engines get these and never the path."""
    where: str
    """Names the file in messages."""
    sha256: str
    """SHA-256 of the file; where weights lie beside it, of its bytes and these weights."""
    opset: int
    """Version of the standard operators."""
    ir_version: int
    producer: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    metadata: Mapping[str, str]
    parameters: int
    """Numbers in the initialisers."""

    @property
    def note(self) -> dict[str, Any] | None:
        """What facerec wrote into the file at export; None for a file of others.

        Raises:
            ModelError: the entry is damaged.
        """
        if METADATA_KEY not in self.metadata:
            return None
        note: dict[str, Any] = {}
        with contextlib.suppress(ValueError, TypeError):
            note = dict(parse_json(self.metadata[METADATA_KEY]))
        if note.get("format") != METADATA_FORMAT or not isinstance(note.get("recipe", {}), dict):
            raise ModelError(
                f"{self.where}: its metadata entry {METADATA_KEY!r} is damaged or of another "
                f"format than {METADATA_FORMAT}; export the model again"
            )
        return note

    def facts(self) -> list[tuple[str, str]]:
        """Return what a person should know of a file of others, as names and lines of text."""
        said = [f"{key}: {text}"[:120] for key, text in self.metadata.items()]
        return [
            ("SHA-256", self.sha256),
            ("size", f"{len(self.content):,} bytes, {self.parameters:,} parameters"),
            ("format", f"opset {self.opset}, {self.producer[:80] or 'of an unknown producer'}"),
            *(("interface", str(info)[:200]) for info in (*self.inputs, *self.outputs)),
            *(("metadata", text) for text in said[:12]),
        ]

    def image_input(self) -> ImageInput:
        """Return the input, if it is one batch of images of a fixed size.

        There must be one output, or two of floating point: an embedding and its norm.

        Raises:
            ModelError: several inputs, other outputs, or an input of another rank, type or size.
        """
        embedding = len(self.outputs) == 1 or (
            len(self.outputs) == 2 and all("float" in output.dtype for output in self.outputs)
        )
        shape = self.inputs[0].shape if len(self.inputs) == 1 and embedding else ()
        batch, *sides = shape if len(shape) == 4 else (0, 0, 0, 0)
        layout = "NCHW" if sides[0] == 3 else "NHWC"
        channels = sides.pop(0 if layout == "NCHW" else -1)
        height, width = sides
        fixed = batch if isinstance(batch, int) else None
        if (
            channels != 3
            or self.inputs[0].dtype not in ("float32", "uint8")
            or not (isinstance(height, int) and 0 < height <= MAX_SIDE)
            or not (isinstance(width, int) and 0 < width <= MAX_SIDE)
            or not (fixed is None or 0 < fixed <= MAX_BATCH)
        ):
            found = "; ".join(map(str, (*self.inputs, *self.outputs)))
            raise ModelError(
                f"{self.where}: an embedding model has one output, or two of floats, the embedding "
                "and its norm, and one input, float32 or uint8 images (N, 3, H, W) or "
                f"(N, H, W, 3), H and W from 1 to {MAX_SIDE} and N free or up to {MAX_BATCH}, "
                f"found {found[:300]}; export the embedding alone, so"
            )
        return ImageInput(self.inputs[0].name, self.inputs[0].dtype, fixed, layout, height, width)


def read_onnx(path: str | Path) -> OnnxFile:
    """Read and check a file.

    Raises:
        ModelError: missing, too large, damaged, or with parts that are refused.
        MissingExtraError: onnx is not installed.
    """
    path = Path(path)
    with reading(path, ModelError):
        content = read_file(path, MAX_BYTES)
    return parse_onnx(content, str(path), path)


def parse_onnx(content: bytes, where: str, path: Path | None = None) -> OnnxFile:
    """Check the bytes of a file and return what they hold.

    Args:
        content: the whole file.
        where: names it in messages.
        path: where it came from, if from a file; weights beside it are read then.

    Raises:
        ModelError: damaged, or with parts that are refused.
        MissingExtraError: onnx is not installed.
    """
    with needed("'facerec[onnx]'", where):
        import onnx
    digest = hashlib.sha256(content)
    # protobuf, onnx and its checker raise classes that share no base but this.
    with reading(where, ModelError, "copy or export it again", Exception, "used as an .onnx file"):
        model = onnx.load_model_from_string(content)
        if path is not None and _take_in(model, path.parent, MAX_BYTES - len(content)):
            for tensor in model.graph.initializer:
                digest.update(tensor.raw_data)
            content = model.SerializeToString()
        if problem := next(_unneeded(model), None):
            raise ValueError(f"{problem}, which an embedding model does not need")
        onnx.checker.check_model(model)
        stored = {tensor.name for tensor in model.graph.initializer}
        file = OnnxFile(
            path=path,
            content=content,
            where=where,
            sha256=digest.hexdigest(),
            opset=next(int(e.version) for e in model.opset_import if e.domain in DOMAINS),
            ir_version=model.ir_version,
            producer=f"{model.producer_name} {model.producer_version}".strip(),
            inputs=tuple(_info(value) for value in model.graph.input if value.name not in stored),
            outputs=tuple(map(_info, model.graph.output)),
            metadata={entry.key: entry.value for entry in model.metadata_props},
            parameters=sum(math.prod(tensor.dims) for tensor in model.graph.initializer),
        )
        _check_sizes(model)  # which changes it
    return file


def _take_in(model: Any, folder: Path, room: int) -> bool:
    """Put weights that lie in files of a folder into the model; return whether there are any.

    onnx refuses places outside of the folder, links and what is no file.

    Raises:
        ValueError: more than ``room`` bytes.
    """
    from onnx import external_data_helper as external

    tensors = [t for t in model.graph.initializer if external.uses_external_data(t)]
    for tensor in tensors:
        said = external.ExternalDataInfo(tensor)
        size = (folder / said.location).stat().st_size if said.length is None else said.length
        room -= size
        if room < 0:
            raise ValueError("its weights in other files are more than is read in all")
        external.load_external_data_for_tensor(tensor, str(folder))
    return bool(tensors)


def _unneeded(model: Any) -> Iterator[str]:
    """Yield what of a model no embedding network needs."""
    graph = model.graph
    # protobuf gives names that are no UTF-8 as bytes, which join no text.
    "".join(name for node in graph.node for name in (node.name, *node.input, *node.output))
    "".join(value.name for value in (*graph.initializer, *graph.input, *graph.output))
    "".join(text for entry in model.metadata_props for text in (entry.key, entry.value))
    if model.functions or graph.sparse_initializer or len(graph.node) > MAX_NODES:
        yield f"it has functions, sparse tensors or more than {MAX_NODES:,} nodes"
    tensors = list(graph.initializer)
    for node in graph.node:
        if node.domain not in DOMAINS:
            yield f"the operator {node.op_type} of {node.domain} is not part of standard ONNX"
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs or attribute.HasField("sparse_tensor"):
                yield f"the operator {node.op_type} has a graph of its own or a sparse tensor"
            if attribute.name == "training_mode" and attribute.i:
                # onnxruntime 1.31 adds to the statistics with every batch, or crashes.
                yield f"the operator {node.op_type} is in training mode (call eval() before export)"
            tensors += (attribute.t, *attribute.tensors)
    for tensor in tensors:
        if tensor.data_location or tensor.external_data or len(tensor.dims) > 16:
            yield f"the tensor {tensor.name} lies in another file, or has more than 16 dimensions"


def _check_sizes(model: Any) -> None:
    """Refuse a graph that makes huge tensors out of small ones; empties ``model``'s weights.

    Shapes that depend on what is computed escape this; those of a network for images do not.

    Raises:
        ValueError: a tensor of more than `MAX_NUMBERS` for an image.
    """
    from onnx import shape_inference

    graph = model.graph
    stored = {tensor.name for tensor in graph.initializer}
    batch = 1
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in stored and len(dims) > 0:
            batch = min(max(batch, dims[0].dim_value), MAX_BATCH)
            dims[0].dim_value = max(1, dims[0].dim_value)
    # What the file says of shapes inside is not believed; values matter only where they are shapes.
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    for tensor in graph.initializer:
        if math.prod(tensor.dims) > 1024:
            for values in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
                tensor.ClearField(values)
    inferred = shape_inference.infer_shapes(model, data_prop=True)
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        sides = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if math.prod(side for side in sides if side > 0) > MAX_NUMBERS * batch:
            raise ValueError(f"the tensor {value.name} would have the shape {sides[:8]}")


def constants_of(graph: Any) -> dict[str, Any]:
    """Return the tensors that a graph stores, by name: initialisers and nodes of constants."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                constants[node.output[0]] = attribute.t
        if node.op_type == "Identity" and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]]
    return constants


def _info(value: Any) -> TensorInfo:
    from onnx import helper

    tensor = value.type.tensor_type
    kinds = ((dim, dim.WhichOneof("value")) for dim in tensor.shape.dim)
    shape = tuple(None if kind is None else getattr(dim, kind) for dim, kind in kinds)
    return TensorInfo(value.name, helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, shape)
