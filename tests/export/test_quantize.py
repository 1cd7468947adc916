"""The int8 variant: what is in it, what it computes, and on which faces it was calibrated."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from facerec.base.errors import ExportError, FacerecError
from facerec.embedding.model import OnnxModel
from facerec.embedding.onnx_file import parse_onnx
from facerec.export.quantize import int8_calibration_data, quantize_int8, value_ranges

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def int8(tiny_onnx: bytes, faces: np.ndarray) -> bytes:
    return quantize_int8(parse_onnx(tiny_onnx, "tiny"), faces)


def embed(content: bytes, faces: np.ndarray) -> np.ndarray:
    return OnnxModel(parse_onnx(content, "tiny")).embed(faces)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_the_embeddings_are_nearly_those_of_float32(
    int8: bytes, tiny_onnx: bytes, faces: np.ndarray
) -> None:
    main, variant = embed(tiny_onnx, faces), embed(int8, faces)
    found = cosines(main, variant)
    assert found.min() > 0.9 and found.mean() > 0.96
    assert np.abs(main - variant).max() > 0
    norms = (np.linalg.norm(each, axis=1) for each in (variant, main))
    np.testing.assert_allclose(*norms, rtol=0.25)


def test_dead_channels_of_batch_norms_keep_their_shift(tiny_onnx: bytes, faces: np.ndarray) -> None:
    model = onnx.load_from_string(tiny_onnx)
    norms = [node.input[1] for node in model.graph.node if node.op_type == "BatchNormalization"]
    for tensor in model.graph.initializer:
        if tensor.name in norms:
            gamma = numpy_helper.to_array(tensor).copy()
            gamma[::2], gamma[1::4] = 0, 1e-30
            tensor.CopyFrom(numpy_helper.from_array(gamma, tensor.name))
    file = parse_onnx(model.SerializeToString(), "dead")
    variant = quantize_int8(file, faces)
    assert cosines(embed(file.content, faces), embed(variant, faces)).min() > 0.99


def test_all_but_the_ends_runs_in_int8(int8: bytes, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(int8, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimised.onnx").graph.node
    count = Counter(node.op_type for node in nodes)
    # The convolution of the pixels, and the batch norm and the Gemm that make the embedding.
    assert count.pop("Conv") == count.pop("QGemm") == count.pop("BatchNormalization") == 1
    layout = {"Transpose", "Reshape", "ReorderOutput", "QuantizeLinear", "DequantizeLinear"}
    assert set(count) - layout == {"QLinearConv", "QLinearAdd", "QLinearMul", "QLinearLeakyRelu"}


def test_weights_have_seven_bits_and_a_scale_for_each_channel(int8: bytes) -> None:
    graph = onnx.load_from_string(int8).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    checked = 0
    for node in graph.node:
        weight = stored.get(node.input[0])
        if node.op_type != "DequantizeLinear" or weight is None or weight.dtype != np.int8:
            continue
        if weight.ndim == 4 and len(stored[node.input[1]]) == len(weight):
            # Two products of 255 and 64 still fit into 16 bits with a sign.
            assert weight.min() >= -64 and weight.max() <= 64
            assert (np.abs(weight).reshape(len(weight), -1).max(axis=1) >= 63).all()
            checked += 1
    assert checked == 21 - 1 + 8  # the first stays in float32, and 8 batch norms are convolutions


def test_ranges_over_batches_are_those_of_all_values() -> None:
    node, two = helper.make_node("Mul", ["data", "two"], ["double"]), np.array(2, np.float32)
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 50])
        for name in ("data", "double")
    )
    stored = [numpy_helper.from_array(two, "two")]
    graph = helper.make_graph([node], "double", [given], [made], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    values = np.random.default_rng(0).standard_gamma(2, (4000, 50)).astype(np.float32)
    alive = 0

    def batches() -> Any:
        nonlocal alive
        for start in range(0, 4000, 500):
            alive += 1
            yield values[start : start + 500]

    names = ["data", "double"]
    ranges = value_ranges(model, names, batches())
    assert alive == 8
    # 99.999 %, half of the rest on either side, to the width of a bin.
    wanted = np.percentile(values, 99.9995, method="lower")
    low, high = ranges["data"]
    assert low == pytest.approx(0, abs=0.1) and high == pytest.approx(wanted, abs=0.1)


def encoded(faces: np.ndarray) -> list[bytes]:
    return [cv2.imencode(".png", face[..., ::-1])[1].tobytes() for face in faces]


def write_folder(folder: Path, images: list[bytes]) -> None:
    for place, image in enumerate(images):
        path = folder / f"person{place % 3}" / f"{place:03}.PNG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)


def test_a_folder_of_faces(tmp_path: Path, faces: np.ndarray) -> None:
    images = encoded(faces)
    write_folder(tmp_path, images)
    (tmp_path / "notes.txt").write_text("no image")
    found, facts = int8_calibration_data(tmp_path)
    order = sorted(range(32), key=lambda place: (place % 3, place))
    np.testing.assert_array_equal(found, faces[order])
    assert facts["images"] == 32 and any(".txt" in note for note in facts["notes"])
    assert facts["sha256"] == hashlib.sha256(b"".join(images[place] for place in order)).hexdigest()


def test_calibration_sets_that_will_not_do(tmp_path: Path, faces: np.ndarray) -> None:
    write_folder(tmp_path / "few", encoded(faces[:31]))
    with pytest.raises(ExportError, match="31 of its 31 images are too few"):
        int8_calibration_data(tmp_path / "few")
    for name in ("missing.bin", "missing.rec", "missing"):
        with pytest.raises(FacerecError, match=name):
            int8_calibration_data(tmp_path / name)
