"""A backbone as an ONNX file: one float32 image input, one raw embedding, nothing else.

torch's own exporter (the one on ``torch.export``) makes the graph. What it leaves open is settled
here, so that every consumer reads the file alike and two exports have the same bytes.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

import facerec
from facerec.backbones import Preprocessing
from facerec.backbones.preprocessing import numbers_words
from facerec.base.defaults import OPSET
from facerec.base.errors import ExportError, message_line
from facerec.base.libraries import needed
from facerec.embedding.onnx_file import METADATA_KEY
from facerec.export.rewrites import Graph

INPUT = "data"
OUTPUT = "embedding"
BATCH = "batch"
IMAGE_SIZE = (112, 112)


def export_graph(
    backbone: nn.Module,
    preprocessing: Preprocessing,
    *,
    opset: int = OPSET,
    note: Mapping[str, Any],
) -> bytes:
    """Export a backbone as one float32 ONNX file without weights beside it.

    Input ``data`` ``(batch, 3, 112, 112)``, output ``embedding`` ``(batch, D)``, both float32, the
    batch free. Nothing in the graph normalises pixels or embeddings. Batch norms behind a layer are
    folded into it; those before a convolution stay. The channel order and, with mean 127.5,
    the standard deviation go into the first convolution, see `graph_preprocessing`.

    Args:
        backbone: maps normalised images to raw embeddings; it stays as it is, its mode too.
        preprocessing: what the backbone was trained with.
        opset: of the standard operators.
        note: what the file says about itself, as JSON types; its ``preprocessing`` is set here.

    Raises:
        ExportError: the exporter fails, or cannot honour the opset.
        MissingExtraError: onnx or onnxscript is not installed.
    """
    module = copy_for_export(backbone)
    model = _trace(module, opset)
    graph = Graph(model)
    wanted = graph_preprocessing(preprocessing)
    if wanted != preprocessing:
        _fold_preprocessing(graph, preprocessing, wanted)
    graph.finish()
    return serialized(model, {**note, "preprocessing": asdict(wanted)}, opset)


def graph_preprocessing(preprocessing: Preprocessing) -> Preprocessing:
    """Return what the exported graph wants its pixels to be.

    insightface's package and server know only RGB, and for a bare path only 127.5/127.5. A
    convolution takes another channel order as a permutation of its weights and, where padding with
    zeros means the same colour in both, another scale as a factor. Another mean stays as it is; a
    scale for each channel becomes one, since OpenCV knows no other.
    """
    if preprocessing.mean == Preprocessing().mean:
        return Preprocessing()
    mean, std = preprocessing.mean, preprocessing.std
    if preprocessing.channels == "bgr" and isinstance(mean, tuple):
        mean = mean[::-1]
    return Preprocessing("rgb", mean, std if isinstance(std, float) else Preprocessing().std)


def serialized(model: Any, note: Mapping[str, Any], opset: int) -> bytes:
    """Name, annotate and serialise an ``onnx.ModelProto``, always to the same bytes.

    The model is changed in place. The note becomes the metadata entry that
    `facerec.embedding.onnx_file` reads.

    Raises:
        ExportError: another opset.
    """
    import onnx

    opsets = [(entry.domain, entry.version) for entry in model.opset_import]
    if opsets != [("", opset)]:
        raise ExportError(
            f"the exporter wrote {opsets} where opset {opset} was asked for; ask for one that "
            f"torch {torch.__version__} can write of this network, such as {opsets[0][1]}"
        )
    # insightface's package takes first nodes whose names begin with Sub and Mul for a normalisation
    # in the graph, and then feeds raw pixels.
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type.lower()}_{index}"
    # The exporter's own remarks hold paths of this machine.
    for message in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        del message.metadata_props[:]
        message.doc_string = ""
    del model.graph.value_info[:]
    model.graph.name = "facerec"
    model.producer_name, model.producer_version = "facerec", facerec.__version__
    # Older runtimes refuse a newer format of the file, whatever the opset.
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
    text = json.dumps(note, sort_keys=True, ensure_ascii=False, allow_nan=False)
    onnx.helper.set_model_props(model, {METADATA_KEY: text})
    return bytes(model.SerializeToString(deterministic=True))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what libraries print, log and warn off the terminal."""
    disabled = logging.root.manager.disable
    sink = io.StringIO()
    with (
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


def copy_for_export(backbone: nn.Module) -> nn.Module:
    """Return a copy of a backbone on the CPU, in float32 and eval mode."""
    module = copy.deepcopy(backbone).to("cpu", torch.float32).eval()
    return module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def _trace(module: nn.Module, opset: int) -> Any:
    with needed("'facerec[onnx]'", "exporting"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    # Two images, since the exporter would take a batch of one for a constant.
    images = torch.zeros(2, 3, *IMAGE_SIZE)
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                module,
                (images,),
                dynamo=True,
                opset_version=opset,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim(BATCH)},),
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # the exporter wraps whatever went wrong, in classes of its own
        cause: BaseException = error  # its own words are advice on debugging
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ExportError(
            f"torch.onnx cannot export this {type(module).__name__} ({message_line(cause)}); give "
            "a backbone that maps float32 (B, 3, 112, 112) to (B, D) and branches on no values"
        ) from error
    assert program is not None
    return program.model_proto


def _fold_preprocessing(graph: Graph, trained: Preprocessing, wanted: Preprocessing) -> None:
    first, *others = graph.readers(INPUT)
    if others or first.op_type != "Conv" or first.input[1] not in graph.stored:
        raise ExportError(
            f"the backbone was trained with {trained.channels} and std "
            f"{numbers_words(trained.std)}, which only a first convolution can absorb, but it "
            f"begins with {first.op_type}; train it with {wanted.channels} and std "
            f"{numbers_words(wanted.std)}"
        )
    scale = wanted.per_channel()[1] / trained.per_channel()[1]
    weight = graph.values(first.input[1]) * scale[:, None, None]
    if trained.channels != wanted.channels:
        weight = weight[:, ::-1]
    graph.set(first.input[1], weight)
