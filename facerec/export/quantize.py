"""The int8 variant: static quantisation (QDQ, per channel), whose ranges come from faces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.backbones.preprocessing import normalize_array
from facerec.base.errors import ExportError
from facerec.base.libraries import needed
from facerec.embedding.engines import session_options
from facerec.embedding.onnx_file import OnnxFile
from facerec.embedding.onnx_preprocessing import guess_preprocessing
from facerec.export.graph import INPUT, quiet, serialized
from facerec.export.rewrites import split_batch_norms, split_prelus
from facerec.records.decode import decode_image
from facerec.records.images import FolderImages, ImageSource, PackImages
from facerec.records.packs import read_pack
from facerec.records.training_set import Data, open_dataset

Ranges = dict[str, tuple[np.float32, np.float32]]

MIN_IMAGES = 32
"""Fewer faces leave the ranges of the layers to chance."""

BATCH = 4
"""Faces that the network sees at once; all its values for them are kept."""

BINS = 2048
"""Bins of the first histogram of a value; wider ones get more."""

PERCENTILE = 99.999
"""Share of the values in the range, in percent."""

OPERATORS = ("Conv", "Gemm", "Add", "Mul", "LeakyRelu")
"""What onnxruntime and OpenVINO compute in int8."""


def int8_calibration_data(
    path: str | Path, count: int = 512
) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """Choose the faces that the ranges of an int8 model are taken from.

    Args:
        path: a pack (``.bin``, ``.npz``), a record file or its folder, or a folder with aligned
            images anywhere below it.
        count: images to choose at random; all, if there are no more.

    Returns:
        uint8 RGB ``(N, 112, 112, 3)``, and what a card says of them as JSON types: name, number,
        SHA-256 of the chosen encoded images one after the other, and notes on the source.

    Raises:
        ExportError: fewer than 32 images.
        FacerecError: missing or damaged data, or an image of another size.
    """
    path = Path(path)
    source = _open(path)
    number = min(count, len(source))
    if number < MIN_IMAGES:
        raise ExportError(
            f"{path}: {number} of its {len(source)} images are too few int8 calibration data; give "
            f"{MIN_IMAGES} aligned faces like those of the deployment or more, better some hundreds"
        )
    chosen = np.sort(np.random.default_rng(0).choice(len(source), number, replace=False))
    images = np.empty((number, 112, 112, 3), np.uint8)
    digest = hashlib.sha256()
    for row, index in enumerate(chosen.tolist()):
        encoded = source.encoded(index)
        digest.update(encoded)
        images[row] = decode_image(encoded, source.where(index), upright=source.upright)
    facts = {"source": path.name, "images": number, "sha256": digest.hexdigest()}
    return images, {**facts, "notes": list(source.notes)}


def quantize_int8(file: OnnxFile, images: NDArray[np.uint8]) -> bytes:
    """Make the int8 variant of an exported file.

    Batch norms and PReLUs are first rewritten into what has integer kernels, exactly. Weights get
    one scale for each output channel and 7 bits: with 8, the sum of two products can exceed the 16
    bits of processors without VNNI, which then give other embeddings. Values get 8 bits without
    sign and one scale for each layer, with a range that leaves out the utmost hundred-thousandth of
    its values. The first convolution stays in float32, and the embedding is not rounded.

    Args:
        file: what `export_graph` returned, parsed.
        images: aligned faces, uint8 RGB ``(N, 112, 112, 3)``; see `int8_calibration_data`.

    Raises:
        MissingExtraError: onnx or onnxruntime is not installed.
    """
    with needed("'facerec[onnx]'", "quantising"):
        import onnx
        from onnxruntime.quantization import CalibrationMethod, QuantType
        from onnxruntime.quantization.calibrate import TensorsData
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    preprocessing = guess_preprocessing(file).preprocessing
    model = onnx.load_from_string(file.content)
    split_batch_norms(model)
    split_prelus(model)
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type.lower()}_{index}"
    first = [node.name for node in model.graph.node if INPUT in node.input]
    stored = {tensor.name for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in OPERATORS]
    values = dict.fromkeys(name for node in nodes for name in (*node.input, *node.output))
    names = [name for name in values if name not in stored]
    batches = (images[start : start + BATCH] for start in range(0, len(images), BATCH))
    pixels = (np.ascontiguousarray(normalize_array(each, preprocessing)) for each in batches)
    ranges = value_ranges(model, names, pixels)
    with quiet():
        quantizer = QDQQuantizer(
            onnx.shape_inference.infer_shapes(model),
            per_channel=True,
            reduce_range=True,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QUInt8,
            tensors_range=TensorsData(CalibrationMethod.MinMax, ranges),
            nodes_to_quantize=[],
            nodes_to_exclude=first,
            op_types_to_quantize=list(OPERATORS),
            extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm"]},
        )
        quantizer.quantize_model()
        # It appends what it adds at the end.
        quantizer.model.topological_sort()
    return serialized(quantizer.model.model, {**(file.note or {}), "variant": "int8"}, file.opset)


def value_ranges(model: Any, names: list[str], batches: Iterator[NDArray[np.float32]]) -> Ranges:
    """Return the range of each value in an ``onnx.ModelProto``; see `quantize_int8`.

    One batch at a time is in memory.
    """
    import onnx
    import onnxruntime
    from onnxruntime.quantization.calibrate import HistogramCollector

    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    outputs = {value.name for value in watched.graph.output}
    watched.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in outputs)
    session = onnxruntime.InferenceSession(
        watched.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    histograms = HistogramCollector("percentile", False, BINS, 128, PERCENTILE, "same")
    for batch in batches:
        values = session.run(names, {INPUT: batch})
        histograms.collect_value(dict(zip(names, values, strict=True)))
    with quiet():
        chosen = histograms.compute_collection_result()
    return {name: (low, high) for name, (low, high, *_) in chosen.items()}


def _open(path: Path) -> ImageSource:
    if path.suffix in (".bin", ".npz"):
        return PackImages(read_pack(path))
    if path.is_file() or any(path.glob("*.rec")):
        return open_dataset(Data(path, layout="records"), seed=0)
    return FolderImages(path)
