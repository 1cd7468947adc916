from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import onnx
import pytest

from facerec.backbones import Preprocessing
from facerec.embedding import TorchModel
from facerec.embedding.engines import OnnxruntimeEngine
from facerec.embedding.onnx_file import OnnxFile, guess_preprocessing, parse_onnx
from facerec.errors import ExportError, ModelError
from facerec.export import VARIANTS, check_parity, legacy_router_simulation, make_variant
from facerec.export.parity import deviation

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def variants(tiny_onnx: bytes) -> dict[str, OnnxFile]:
    kinds: Any = [kind for kind in VARIANTS if kind != "int8"]
    return {kind: parse_onnx(make_variant(kind, tiny_onnx, batch=3), kind) for kind in kinds}


@pytest.fixture(scope="module")
def wanted(tiny_model: TorchModel, faces: np.ndarray) -> np.ndarray:
    return tiny_model.embed(faces)


@pytest.mark.parametrize("kind", ["uint8", "norm", "fp16", "fixed-batch"])
def test_every_variant_reaches_its_bar(
    tiny_model: TorchModel, variants: dict[str, OnnxFile], kind: Any
) -> None:
    rows = check_parity(tiny_model, variants[kind], VARIANTS[kind].bar)
    assert all(row.passed for row in rows)
    assert {row.batch for row in rows} <= ({3} if kind == "fixed-batch" else {1, 2, 5, 64})


@pytest.mark.parametrize("kind", ["uint8", "norm", "fp16", "fixed-batch"])
def test_every_variant_names_itself_and_is_otherwise_like_the_main_file(
    tiny_onnx: bytes, variants: dict[str, OnnxFile], kind: str
) -> None:
    main, variant = parse_onnx(tiny_onnx, "main"), variants[kind]
    assert main.note is not None and variant.note is not None
    assert variant.note["variant"] == kind
    own = {"variant", "preprocessing"} if kind == "uint8" else {"variant"}
    assert {k: v for k, v in variant.note.items() if k not in own} == {
        k: v for k, v in main.note.items() if k not in own
    }
    assert (variant.opset, variant.ir_version) == (main.opset, main.ir_version)
    assert make_variant(kind, tiny_onnx, batch=3) == variant.content  # type: ignore[arg-type]


def test_uint8_takes_pixels(
    tiny_model: TorchModel, variants: dict[str, OnnxFile], faces: np.ndarray, wanted: np.ndarray
) -> None:
    file = variants["uint8"]
    image = file.image_input()
    assert (image.dtype, image.layout, image.batch) == ("uint8", "NCHW", None)
    assert guess_preprocessing(file).preprocessing is None
    pixels = np.ascontiguousarray(faces.transpose(0, 3, 1, 2))
    found = OnnxruntimeEngine(file).run(pixels)
    assert deviation(wanted, found).max_abs < 1e-5
    assert file.scaling is not None
    assert file.scaling.mean == (127.5,) and file.scaling.std == pytest.approx((127.5,))


def test_uint8_in_opencv_with_8_bit_blobs(
    variants: dict[str, OnnxFile], faces: np.ndarray, wanted: np.ndarray
) -> None:
    if int(cv2.__version__.split(".")[0]) < 5:
        pytest.skip(f"OpenCV {cv2.__version__}")
    net = cv2.dnn.readNetFromONNX(np.frombuffer(variants["uint8"].content, np.uint8))
    net.setInput(cv2.dnn.blobFromImages(list(faces[:2, ..., ::-1]), swapRB=True, ddepth=cv2.CV_8U))
    assert deviation(wanted[:2], np.array(net.forward())).max_abs < 1e-4


def test_uint8_in_insightface_as_embedded(
    tmp_path: Any, variants: dict[str, OnnxFile], faces: np.ndarray, wanted: np.ndarray
) -> None:
    model_zoo = pytest.importorskip("insightface.model_zoo", reason="needs the extra insightface")
    path = tmp_path / "uint8.onnx"
    path.write_bytes(variants["uint8"].content)
    options = {"providers": ["CPUExecutionProvider"]}
    # A bare path feeds float32: a loud failure, not a wrong embedding.
    route = legacy_router_simulation(variants["uint8"])
    assert (route.mean, route.std, route.problem) == (
        0.0,
        1.0,
        "an input of uint8, where it feeds float32",
    )
    with pytest.raises(Exception, match="expected: \\(tensor\\(uint8\\)\\)"):
        model_zoo.get_model(str(path), **options).get_feat(faces[0])
    model = model_zoo.get_model(
        str(path),
        model_task="recognition",
        model_metadata={"preprocessing": "embedded"},
        **options,
    )
    found = model.get_feat(list(faces[..., ::-1]))
    assert deviation(wanted, found).max_abs < 1e-5


def test_norm_is_a_second_output(variants: dict[str, OnnxFile]) -> None:
    file = variants["norm"]
    assert [(o.name, o.shape) for o in file.outputs] == [
        ("embedding", ("batch", 32)),
        ("norm", ("batch", 1)),
    ]
    assert file.embedding_output().name == "embedding"
    assert legacy_router_simulation(file).problem == "2 outputs, where it asserts one"


def test_fp16_halves_the_file_and_keeps_float32_outside(
    tiny_onnx: bytes, variants: dict[str, OnnxFile]
) -> None:
    file = variants["fp16"]
    assert (file.inputs[0].dtype, file.outputs[0].dtype) == ("float32", "float32")
    assert len(file.content) < 0.53 * len(tiny_onnx)
    stored = onnx.load_from_string(file.content).graph.initializer
    assert {t.data_type for t in stored} == {onnx.TensorProto.FLOAT16}
    assert legacy_router_simulation(file).problem is None


def test_fixed_batch_takes_no_other(variants: dict[str, OnnxFile]) -> None:
    file = variants["fixed-batch"]
    assert file.inputs[0].shape == (3, 3, 112, 112) and file.outputs[0].shape == (3, 32)
    engine = OnnxruntimeEngine(file)
    assert engine.run(np.zeros((3, 3, 112, 112), np.float32)).shape == (3, 32)
    with pytest.raises(ModelError, match=r"\(2, 3, 112, 112\)"):
        engine.run(np.zeros((2, 3, 112, 112), np.float32))
    assert legacy_router_simulation(file).problem is not None


def test_another_scale_goes_into_the_uint8_variant(tiny_onnx: bytes) -> None:
    model = onnx.load_from_string(tiny_onnx)
    text = model.metadata_props[0].value
    model.metadata_props[0].value = text.replace('"mean": 127.5', '"mean": 100.0')
    assert model.metadata_props[0].value != text
    file = parse_onnx(make_variant("uint8", model.SerializeToString()), "uint8")
    assert file.scaling is not None and file.scaling.mean == (100.0,)
    assert file.scaling.std == pytest.approx((Preprocessing().std,))


def test_variants_come_from_main_files_alone(
    tiny_onnx: bytes, variants: dict[str, OnnxFile]
) -> None:
    with pytest.raises(ExportError, match="made from a main file"):
        make_variant("norm", variants["fp16"].content)
    model = onnx.load_from_string(tiny_onnx)
    del model.metadata_props[:]
    with pytest.raises(ExportError, match="made from a main file"):
        make_variant("fp16", model.SerializeToString())


def test_a_batch_below_one_is_refused(tiny_onnx: bytes) -> None:
    with pytest.raises(ExportError, match="at least 1 image, found 0"):
        make_variant("fixed-batch", tiny_onnx, batch=0)
