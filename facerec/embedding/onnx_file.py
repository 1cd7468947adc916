"""Reading of any ``.onnx`` file without trusting it: what it says of itself, what it is made of.

Nothing here computes with the model. What the format allows and an embedding network does not need
is refused: operators of others, functions, control flow, sparse tensors, more numbers declared than
the file holds. Weights in a file beside it, as exporters write them, are read from its own folder
alone. An engine gets the bytes that were checked, with those weights inside, so nothing can change
between the check and the use. Names that come from the file are printed escaped.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from facerec.backbones.preprocessing import Preprocessing
from facerec.errors import MissingExtraError, ModelError, RecipeError, message_line
from facerec.files import parse_json
from facerec.recipe import from_dict

METADATA_KEY = "facerec"
"""The entry of ``metadata_props`` in which facerec's own exports say all about themselves."""

METADATA_FORMAT = 1

MAX_BYTES = 2**31
"""No ONNX file is larger: protobuf ends there."""

MAX_NODES = 50_000
"""A hundred times what the deepest recognition network has."""

MAX_NUMBERS = 2**24
"""In one tensor between two nodes, for one image: twenty times the widest of iResNet-200."""

MAX_RANK = 16
"""Dimensions of one tensor; numpy ends at 64, images have 4."""

MAX_SIDE = 1024
"""Of an image, in pixels."""

MAX_BATCH = 1024
"""Of a file with a fixed batch."""

DOMAINS = ("", "ai.onnx")
"""Operators that every runtime knows; others need code from elsewhere."""

NORM_OUTPUT = "norm"
"""The second output that a variant of our own exports may have."""


@dataclass(frozen=True)
class TensorInfo:
    """An input or output as the file declares it."""

    name: str
    dtype: str
    """As numpy names it; something else than a tensor goes by its ONNX name."""
    shape: tuple[int | str | None, ...]
    """A number, the name of a free dimension, or None where the file says nothing."""

    def __str__(self) -> str:
        sides = ", ".join("?" if side is None else printable(str(side)) for side in self.shape)
        return f"{printable(self.name)} {self.dtype} [{sides}]"


@dataclass(frozen=True)
class ImageInput:
    """The one input of an embedding model: a batch of images."""

    name: str
    dtype: Literal["float32", "uint8"]
    batch: int | None
    """Images in a batch; None where that is free."""
    layout: Literal["NCHW", "NHWC"]
    height: int
    width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image, in the file's layout."""
        sides = self.height, self.width
        return (3, *sides) if self.layout == "NCHW" else (*sides, 3)


@dataclass(frozen=True)
class Scaling:
    """The normalisation with which a graph begins: ``(x − mean) / std``."""

    mean: tuple[float, ...]
    """One number, or one for each channel."""
    std: tuple[float, ...]
    nodes: tuple[str, ...]
    """The nodes that do it, with their constants, for people to read."""

    @property
    def trivial(self) -> bool:
        """Whether it changes nothing."""
        return set(self.mean) == {0.0} and set(self.std) == {1.0}


@dataclass(frozen=True)
class OnnxFile:
    """A file that passed the checks of `parse_onnx`."""

    path: Path | None
    content: bytes = field(repr=False)
    """The bytes that were checked, with all weights; engines get these and never the path."""
    where: str
    """Names the file in messages."""
    sha256: str
    """Of the file; of one with weights beside it, of its bytes and these weights."""
    opset: int
    """Of the standard operators."""
    ir_version: int
    producer: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    metadata: Mapping[str, str]
    operators: Mapping[str, int]
    """Type → how many nodes, most frequent first."""
    nodes: tuple[str, ...]
    """Names of the nodes in the order of the file."""
    parameters: int
    """Numbers in the initialisers."""
    scaling: Scaling | None
    """None where the graph does not begin with a normalisation."""
    beside: tuple[str, ...] = ()
    """Names of the files in its folder that hold weights of it."""

    @property
    def note(self) -> dict[str, Any] | None:
        """What facerec wrote into the file at export; None for a file of others.

        Raises:
            ModelError: the entry is damaged.
        """
        text = self.metadata.get(METADATA_KEY)
        if text is None:
            return None
        damaged = f"{self.where}: its metadata entry {METADATA_KEY!r} is damaged"
        try:
            note = parse_json(text)
        except ValueError as error:
            raise ModelError(
                f"{damaged} (not JSON: {first_line(error)}); export the model again"
            ) from error
        if not isinstance(note, dict) or not isinstance(note.get("recipe", {}), dict):
            raise ModelError(f"{damaged} (no object, or its recipe is none); export it again")
        if note.get("format") != METADATA_FORMAT:
            raise ModelError(
                f"{self.where}: its metadata are of format "
                f"{printable(str(note.get('format')))}, this facerec reads format "
                f"{METADATA_FORMAT}; use the facerec that wrote it, or a newer one"
            )
        return note

    def image_input(self) -> ImageInput:
        """Return the input, if it is one batch of images of a fixed size.

        Raises:
            ModelError: several inputs, or one of another rank, type or size.
        """
        self._check_interface()
        info = self.inputs[0]
        shape = info.shape
        if (
            info.dtype not in ("float32", "uint8")
            or len(shape) != 4
            or (shape[1] != 3 and shape[3] != 3)
        ):
            raise ModelError(
                f"{self.where}: the input must be float32 images or uint8 images (N, 3, H, W) or "
                f"(N, H, W, 3), found {info}; export the model with such an input"
            )
        layout: Literal["NCHW", "NHWC"] = "NCHW" if shape[1] == 3 else "NHWC"
        height, width = shape[2:4] if layout == "NCHW" else shape[1:3]
        for side in (height, width):
            if not isinstance(side, int) or not 0 < side <= MAX_SIDE:
                raise ModelError(
                    f"{self.where}: the input must have a height and width from 1 to {MAX_SIDE} "
                    f"pixels, found {info}; export the model with the size of its images"
                )
        batch = shape[0] if isinstance(shape[0], int) else None
        if batch is not None and not 0 < batch <= MAX_BATCH:
            raise ModelError(
                f"{self.where}: a fixed batch must have from 1 to {MAX_BATCH} images, found "
                f"{info}; export the model with a free batch"
            )
        assert isinstance(height, int) and isinstance(width, int)
        kind: Literal["float32", "uint8"] = "uint8" if info.dtype == "uint8" else "float32"
        return ImageInput(info.name, kind, batch, layout, height, width)

    def embedding_output(self) -> TensorInfo:
        """Return the output that holds the embeddings.

        Its declared shape may be symbolic or wrong; only running the model tells the truth.

        Raises:
            ModelError: several outputs (a second one, ``norm``, is allowed in our own exports), or
                one of another type.
        """
        self._check_interface()
        output = self.outputs[0]
        if output.dtype != "float32":
            raise ModelError(
                f"{self.where}: the output must be float32 embeddings, found {output}; export the "
                "model with a float32 output"
            )
        return output

    def _check_interface(self) -> None:
        names = [output.name for output in self.outputs]
        ours = len(names) == 2 and names[1] == NORM_OUTPUT and self.note is not None
        if len(self.inputs) != 1 or (len(names) != 1 and not ours):
            raise ModelError(
                f"{self.where}: an embedding model has one input and one output, found inputs "
                f"{_listed([info.name for info in self.inputs])} and outputs {_listed(names)}; "
                "export the embedding alone"
            )


@dataclass(frozen=True)
class GuessedPreprocessing:
    """What must happen to pixels before the model, and how that is known."""

    preprocessing: Preprocessing | None
    """None: the graph itself normalises, it wants RGB pixels 0…255."""
    stated: bool
    """Whether the file says so itself; else it is an inference or an assumption."""
    evidence: tuple[str, ...]
    """Sentences, the decisive one first."""
    assumed: tuple[str, ...] = ()
    """Parts of which the file itself tells nothing: ``channels``, ``mean``, ``std``."""
    named: bool = False
    """Whether its name tells, if nothing in it does."""


@dataclass(frozen=True)
class KnownLayout:
    """A family of models that goes by its file names."""

    pattern: str
    """Of the name without suffix, in lower case."""
    preprocessing: Preprocessing
    family: str
    """Who trains so, and where that is written."""


KNOWN_LAYOUTS = (
    KnownLayout(
        r"adaface", Preprocessing("bgr", 127.5, 127.5), "AdaFace (mk-minchul/AdaFace: inference.py)"
    ),
    KnownLayout(
        r"(?<!mobile)facenet",
        Preprocessing("rgb", 127.5, 128.0),
        "facenet (davidsandberg/facenet: src/facenet.py, fixed_image_standardization)",
    ),
    KnownLayout(
        r"w600k_|glintr100|buffalo|antelope",
        Preprocessing("rgb", 127.5, 127.5),
        "InsightFace's model packs (python-package/insightface/model_zoo/arcface_onnx.py)",
    ),
)
"""Looked at where nothing inside a file tells."""


def read_onnx(path: str | Path, *, max_bytes: int = MAX_BYTES) -> OnnxFile:
    """Read and check a file.

    Args:
        path: the ``.onnx`` file.
        max_bytes: larger files are refused before they are read, with those that hold its weights.

    Raises:
        ModelError: missing, too large, damaged, or with parts that are refused.
        MissingExtraError: onnx is not installed.
    """
    path = Path(path)
    try:
        content = _read(path, max_bytes)
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its rights"
        ) from error
    return parse_onnx(content, str(path), path, max_bytes=max_bytes)


def _read(path: Path, max_bytes: int) -> bytes:
    # Looked at by descriptor: what is read is what was judged. A pipe must not be waited for.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ModelError(f"{path}: not a regular file; give an .onnx file")
    with os.fdopen(descriptor, "rb") as file:
        content = b"" if status.st_size > max_bytes else file.read(max_bytes + 1)
    size = max(status.st_size, len(content))
    if size > max_bytes:
        raise ModelError(
            f"{path}: {size:,} bytes, at most {max_bytes:,} are read; this is no embedding model "
            "in one file"
        )
    return content


def parse_onnx(
    content: bytes, where: str, path: Path | None = None, *, max_bytes: int = MAX_BYTES
) -> OnnxFile:
    """Check the bytes of a file and return what they hold.

    Args:
        content: the whole file.
        where: names it in messages.
        path: where it came from, if from a file; weights beside it are read then.
        max_bytes: of all together.

    Raises:
        ModelError: damaged, or with parts that are refused.
        MissingExtraError: onnx is not installed.
    """
    model = _parsed(content, where)
    graph = model.graph
    opset = _opset(model, where)
    digest = hashlib.sha256(content)
    beside = _take_in(model, path, max_bytes - len(content), digest) if path is not None else ()
    content = model.SerializeToString() if beside else content
    _check_structure(model, where)
    stored = {tensor.name for tensor in graph.initializer}
    inputs = tuple(_info(value) for value in graph.input if value.name not in stored)
    file = OnnxFile(
        path=path,
        content=content,
        where=where,
        sha256=digest.hexdigest(),
        opset=opset,
        ir_version=model.ir_version,
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        inputs=inputs,
        outputs=tuple(_info(value) for value in graph.output),
        metadata={entry.key: entry.value for entry in model.metadata_props},
        operators=dict(Counter(node.op_type for node in graph.node).most_common()),
        nodes=tuple(node.name for node in graph.node),
        parameters=sum(math.prod(tensor.dims) for tensor in graph.initializer),
        scaling=_leading_scaling(graph, inputs[0].name) if inputs else None,
        beside=beside,
    )
    _check_sizes(model, where)
    return file


def _take_in(model: Any, path: Path, room: int, digest: Any) -> tuple[str, ...]:
    """Put weights that lie in files beside ``path`` into the model; return the files' names.

    Raises:
        ModelError: a place outside of the folder, a file that is missing or too short, or more than
            ``room`` bytes.
    """
    from onnx import TensorProto

    files: dict[str, bytes] = {}
    folder, left = path.parent.resolve(), room
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        name = entries.get("location", "")
        where = f"{path}: the tensor '{printable(tensor.name)}' lies in '{printable(name)}'"
        place = PurePosixPath(name)
        target = folder / place
        if place.is_absolute() or ".." in place.parts or not name.strip(".") or "\0" in name:
            raise ModelError(f"{where}, which is no file in its folder; save the model again")
        if not target.resolve().is_relative_to(folder):
            raise ModelError(f"{where}, a link that leaves its folder; copy the file itself there")
        if name not in files:
            try:
                files[name] = _read(target, left)
            except OSError as error:
                raise ModelError(
                    f"{where}, which cannot be read ({error.strerror or error}); keep both files "
                    "in one folder"
                ) from error
        data, numbers = files[name], (entries.get("offset", "0"), entries.get("length", "-1"))
        if not all(re.fullmatch(r"-1|[0-9]{1,18}", number) for number in numbers):
            raise ModelError(f"{where} at no place that is a number; export it again")
        offset, length = map(int, numbers)
        length = len(data) - offset if length < 0 else length
        left -= length
        if offset < 0 or length < 0 or offset + length > len(data) or left < 0:
            raise ModelError(
                f"{where} from byte {offset:,}, {length:,} bytes long, but that file has "
                f"{len(data):,} bytes, and {room:,} are read in all; copy or export both files "
                "again"
            )
        tensor.raw_data = data[offset : offset + length]
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
        digest.update(tensor.raw_data)
    return tuple(files)


def guess_preprocessing(file: OnnxFile) -> GuessedPreprocessing:
    """Find out what the model wants its pixels to be, and say what speaks for it.

    The first that applies decides: what facerec wrote into the file; an input of type uint8; a
    normalisation at the start of the graph, read from its constants; a name of `KNOWN_LAYOUTS`;
    else the assumption that the model was trained as InsightFace's are.

    Raises:
        ModelError: facerec's own entry in the file is damaged.
    """
    others = tuple(_remarks(file))
    if (note := file.note) is not None:
        return GuessedPreprocessing(
            _stated(file, note.get("preprocessing")),
            True,
            (f"its metadata entry {METADATA_KEY!r} says so", *others),
        )
    if file.inputs and file.inputs[0].dtype == "uint8":
        evidence = "the input is uint8, so the graph itself must normalise"
        return GuessedPreprocessing(
            None, False, (evidence, _CHANNELS_ASSUMED, *others), ("channels",)
        )
    scaling = file.scaling
    if scaling is not None and not scaling.trivial:
        steps = " → ".join(scaling.nodes)
        if max(map(abs, scaling.mean)) > 2 or min(map(abs, scaling.std)) > 2:
            evidence = f"the graph begins with {steps}, which fits pixels 0…255"
            return GuessedPreprocessing(
                None, False, (evidence, _CHANNELS_ASSUMED, *others), ("channels",)
            )
        evidence = f"the graph begins with {steps}, which fits pixels scaled to 0…1"
        return GuessedPreprocessing(
            Preprocessing("rgb", 0.0, 255.0),
            False,
            (evidence, _CHANNELS_ASSUMED, *others),
            ("channels",),
        )
    named = guess_by_name(file.path)
    return replace(named, evidence=(*named.evidence, *others))


def guess_by_name(path: Path | None) -> GuessedPreprocessing:
    """Return what `KNOWN_LAYOUTS` says of a file's name, else that it wants what InsightFace's do.

    For files in which nothing tells.
    """
    everything = ("channels", "mean", "std")
    name = "" if path is None else path.stem
    for layout in KNOWN_LAYOUTS:
        if re.search(layout.pattern, name.lower()):
            evidence = (
                f"the name '{printable(name)}' is that of {layout.family}; nothing else tells"
            )
            return GuessedPreprocessing(layout.preprocessing, False, (evidence,), everything, True)
    evidence = (
        "an assumption: nothing in the file tells; RGB with mean 127.5 and std 127.5 is what "
        "InsightFace's models want"
    )
    return GuessedPreprocessing(Preprocessing(), False, (evidence,), everything)


_CHANNELS_ASSUMED = "the channel order is an assumption: nothing in the file tells; RGB is usual"


def insightface_normalizes(file: OnnxFile) -> bool:
    """Tell whether insightface's package would feed normalised pixels (127.5/127.5).

    For a path that ends in ``.onnx`` it looks at nothing but the names of the first 8 nodes; with
    one beginning ``Sub`` or ``_minus`` and one beginning ``Mul`` or ``_mul`` it feeds raw pixels
    (``insightface/model_zoo/arcface_onnx.py``).
    """
    first = file.nodes[:8]
    subtracts = any(name.startswith(("Sub", "_minus")) for name in first)
    multiplies = any(name.startswith(("Mul", "_mul")) for name in first)
    return not (subtracts and multiplies)


def printable(text: str, limit: int = 80) -> str:
    """Return text of a file with everything escaped that a terminal would obey or hide."""
    escaped = "".join(c if c.isprintable() and c != "\\" else _escape(c) for c in text[:limit])
    return escaped + ("…" if len(text) > limit else "")


_SOURCES = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : "
    r"|\S*\.(?:cc|cpp|h|hpp|cuh?):\d+ [^(]*\((?:[^()]|\([^()]*\))*\)"
    r"(?: const)?(?: \[with [^]]*\])? "
)
"""What a library says of its own sources, before what it says of the model."""


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, which may quote names of the file.

    Without the library's own sources; of a long one the end is kept, which says what is wrong.
    """
    text = _SOURCES.sub("", message_line(error)[-2000:])
    return printable(text if len(text) <= 300 else f"{text[:80]} … {text[-200:]}", 300)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{printable(name)}'" for name in names[:8])
    return f"[{shown}{', …' if len(names) > 8 else ''}]"


def _stated(file: OnnxFile, entry: Any) -> Preprocessing | None:
    """Return the preprocessing that facerec's own note tells."""
    wrong = f"{file.where}: the preprocessing in its metadata entry {METADATA_KEY!r} is damaged"
    if entry == "embedded":
        return None
    if not isinstance(entry, dict) or not {"channels", "mean", "std"} <= entry.keys():
        raise ModelError(f"{wrong} (neither 'embedded' nor channels, mean and std); export again")
    if file.inputs and file.inputs[0].dtype == "uint8":
        raise ModelError(f"{wrong} (uint8 pixels cannot be normalised beforehand); export again")
    try:
        return from_dict(Preprocessing, entry, file.where)
    except (RecipeError, ValueError) as error:
        raise ModelError(f"{wrong} ({printable(str(error), 200)}); export again") from error


def _remarks(file: OnnxFile) -> Iterator[str]:
    """Yield what else bears on the preprocessing, whether or not it decided."""
    if file.scaling is not None and file.scaling.trivial:
        yield f"the graph begins with {' → '.join(file.scaling.nodes)}, which changes nothing"
    normalizes = insightface_normalizes(file)
    yield (
        "insightface would feed "
        + ("RGB normalised by 127.5/127.5" if normalizes else "raw RGB pixels 0…255")
        + ", judging by the names of the first 8 nodes alone"
    )


def _parsed(content: bytes, where: str) -> Any:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise MissingExtraError(
            f"{where}: reading .onnx needs onnx; run: pip install 'facerec[onnx]'"
        ) from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(
            f"{where}: not a whole .onnx file (it is cut, damaged or nested too deeply); copy or "
            "export it again"
        ) from error
    if any(isinstance(text, bytes) for text in _texts(model)):
        raise ModelError(
            f"{where}: not a whole .onnx file (a name in it is not text in UTF-8); copy or export "
            "it again"
        )
    if not model.graph.node:
        raise ModelError(f"{where}: not a whole .onnx file (no graph in it); export it again")
    return model


def _texts(model: Any) -> Iterator[str | bytes]:
    """Yield all names; protobuf gives those that do not decode as bytes."""
    yield from (model.producer_name, model.producer_version)
    for entry in model.metadata_props:
        yield from (entry.key, entry.value)
    for imported in model.opset_import:
        yield imported.domain
    for value in (*model.graph.input, *model.graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    tensors = list(model.graph.initializer)
    for node in model.graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            tensors += (attribute.t, *attribute.tensors)
    for tensor in tensors:
        yield tensor.name
        yield from (entry.value for entry in tensor.external_data)


def _check_structure(model: Any, where: str) -> None:
    """Refuse what an embedding network does not need and what reaches outside the file."""
    from onnx import checker, defs

    graph = model.graph
    context = _node_context(model, where)
    refused = {
        "functions of its own": len(model.functions),
        "instructions for training": len(model.training_info),
        "sparse initialisers": len(graph.sparse_initializer),
    }
    for what, count in refused.items():
        if count:
            raise ModelError(
                f"{where}: the file brings {what} ({count}), which an embedding model does not "
                "need; export it without"
            )
    if len(graph.node) > MAX_NODES:
        raise ModelError(
            f"{where}: the graph has {len(graph.node):,} nodes, at most {MAX_NODES:,} are read"
        )
    for tensor in graph.initializer:
        _check_tensor(tensor, where)
    for node in graph.node:
        kind = f"'{printable(node.op_type)}'"
        if node.domain not in DOMAINS or not defs.has(node.op_type):
            domain = "" if node.domain in DOMAINS else f" of '{printable(node.domain)}'"
            raise ModelError(
                f"{where}: the operator {kind}{domain} is not part of standard ONNX; export the "
                "model with standard operators alone"
            )
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                raise ModelError(
                    f"{where}: the operator {kind} holds a graph of its own (control flow), which "
                    "an embedding model does not need; export it without"
                )
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise ModelError(
                    f"{where}: the operator {kind} holds a sparse tensor; export the model without"
                )
            for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
                _check_tensor(tensor, where)
        try:
            checker.check_node(node, context)
        except checker.ValidationError as error:
            raise ModelError(
                f"{where}: the operator {kind} is not as ONNX defines it ({first_line(error)}); "
                "export the model again"
            ) from error


def _node_context(model: Any, where: str) -> Any:
    """Return what ONNX needs to know to check a node: the versions of what the file uses."""
    from onnx import checker, defs

    context = type(checker.DEFAULT_CONTEXT)()
    if not 0 <= model.ir_version < 1 << 31:
        raise ModelError(
            f"{where}: the file is of IR version {model.ir_version}, which does not exist; export "
            "the model again"
        )
    context.ir_version = model.ir_version
    newest = defs.onnx_opset_version()
    for entry in model.opset_import:
        if not 1 <= entry.version <= newest:
            raise ModelError(
                f"{where}: the file is of opset {entry.version}, this onnx knows 1 to {newest}; "
                "export it for an older opset, or install a newer onnx"
            )
    context.opset_imports = {
        "" if entry.domain in DOMAINS else entry.domain: entry.version
        for entry in model.opset_import
    }
    return context


def _check_tensor(tensor: Any, where: str) -> None:
    """Refuse a tensor that is elsewhere or is not as large as it says."""
    from onnx import TensorProto

    named = f"{where}: the tensor '{printable(tensor.name)}'"
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
        raise ModelError(
            f"{named} lies in another file ('{printable(''.join(locations))}'), which is not read "
            "here; save the model with its weights inside"
        )
    known = tensor.data_type in TensorProto.DataType.values()
    bits = _BITS.get(TensorProto.DataType.Name(tensor.data_type)) if known else None
    if bits is None:
        raise ModelError(f"{named} holds no real numbers (type {tensor.data_type}); export again")
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"{named} has a negative size {list(tensor.dims)[:8]}; export again")
    if len(tensor.dims) > MAX_RANK:
        raise ModelError(
            f"{named} has {len(tensor.dims):,} dimensions, at most {MAX_RANK} are read; this is no "
            "embedding model"
        )
    declared = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        actual, expected, unit = len(tensor.raw_data), -(-declared * bits // 8), "bytes"
    else:
        fields = (tensor.float_data, tensor.int32_data, tensor.int64_data)
        actual = sum(map(len, (*fields, tensor.double_data, tensor.uint64_data)))
        expected, unit = (declared if bits >= 8 else -(-declared * bits // 8)), "numbers"
    if actual != expected:
        raise ModelError(
            f"{named} of shape {list(tensor.dims)[:8]} needs {expected:,} {unit}, the file holds "
            f"{actual:,}; it is damaged, copy or export it again"
        )


_BITS = {
    **dict.fromkeys(("FLOAT", "INT32", "UINT32"), 32),
    **dict.fromkeys(("DOUBLE", "INT64", "UINT64"), 64),
    **dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 16),
    **dict.fromkeys(("INT8", "UINT8", "BOOL"), 8),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 8),
    **dict.fromkeys(("INT4", "UINT4"), 4),
}
"""Bits of one number, by the ONNX name of the type."""


def _check_sizes(model: Any, where: str) -> None:
    """Refuse a graph that makes huge tensors out of small ones; empties ``model``'s weights.

    Shapes that depend on what is computed escape this; those of a network for images do not.
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
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # onnx raises classes that share no base but this
        raise ModelError(
            f"{where}: the graph contradicts itself ({first_line(error)}); export it again"
        ) from error
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        sides = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        numbers = math.prod(side for side in sides if side > 0)
        if numbers > MAX_NUMBERS * batch:
            raise ModelError(
                f"{where}: the tensor '{printable(value.name)}' would have {numbers:,} numbers of "
                f"shape {sides[:8]}; this is no embedding model"
            )


def _opset(model: Any, where: str) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in DOMAINS]
    if not versions:
        raise ModelError(f"{where}: the file names no opset; it is damaged or older than ONNX 1.0")
    return int(versions[0])


def _info(value: Any) -> TensorInfo:
    from onnx import helper

    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return TensorInfo(value.name, str(kind), ())
    tensor = value.type.tensor_type
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    except (KeyError, ValueError):
        dtype = f"type {tensor.elem_type}"
    shape = tuple(_side(dim) for dim in tensor.shape.dim)
    return TensorInfo(value.name, dtype, shape)


def _side(dim: Any) -> int | str | None:
    kind = dim.WhichOneof("value")
    return None if kind is None else getattr(dim, kind)


def _leading_scaling(graph: Any, name: str) -> Scaling | None:
    """Follow the chain of single nodes from the input as long as they only add and multiply."""
    constants = _constants(graph)
    users: dict[str, list[Any]] = {}
    for node in graph.node:
        for source in set(node.input):
            users.setdefault(source, []).append(node)
    factor, shift = np.ones(1), np.zeros(1)
    steps: list[str] = []
    for _ in graph.node:  # a chain without end would be a cycle
        following = users.get(name, [])
        if len(following) != 1 or not following[0].output:
            break
        node = following[0]
        if node.op_type not in ("Cast", "Identity", "Transpose"):
            step = _scaling_step(node, name, constants)
            if step is None:
                break
            times, plus, shown = step
            with np.errstate(all="ignore"):  # infinite constants are looked for below
                factor, shift = factor * times, shift * times + plus
            steps.append(shown)
        name = node.output[0]
    if not steps or not np.isfinite(factor + shift).all() or not factor.all():
        return None
    mean, std = np.broadcast_arrays(-shift / factor, 1 / factor)
    return Scaling(tuple(mean.tolist()), tuple(std.tolist()), tuple(steps))


def _constants(graph: Any) -> dict[str, Any]:
    """Return the tensors that are known without computing, by name."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            values = [entry.t for entry in node.attribute if entry.name == "value"]
            constants.update((node.output[0], value) for value in values)
        elif node.op_type == "Identity" and node.output and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]]
    return constants


Numbers = npt.NDArray[np.float64]


def _scaling_step(
    node: Any, name: str, constants: Mapping[str, Any]
) -> tuple[Numbers, Numbers, str] | None:
    """Return (times, plus, words) of a node that computes ``x · times + plus``, else None."""
    from onnx import numpy_helper

    if node.op_type not in ("Sub", "Add", "Mul", "Div") or len(node.input) != 2:
        return None
    left, right = node.input
    tensor = constants.get(right if left == name else left)
    if tensor is None or left == right or math.prod(tensor.dims) not in (1, 3):
        return None
    value = numpy_helper.to_array(tensor).astype(np.float64).ravel()
    one, zero = np.ones(1), np.zeros(1)
    shown = f"{node.op_type} {', '.join(f'{number:.6g}' for number in value)}"
    if node.op_type == "Add":
        return one, value, shown
    if node.op_type == "Mul":
        return value, zero, shown
    if node.op_type == "Sub":
        return (one, -value, shown) if left == name else (-one, value, f"{shown} − x")
    return (1 / value, zero, shown) if left == name and value.all() else None
