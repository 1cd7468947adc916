from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from facerec.backbones import Preprocessing, normalize
from facerec.embedding import TorchModel
from facerec.embedding.engines import openvino_core
from facerec.embedding.onnx_file import METADATA_KEY, OnnxFile, parse_onnx
from facerec.errors import ExportError
from facerec.export import Bar, check_consumers, consumers, legacy_router_simulation, make_variant
from facerec.export.graph import finish

pytestmark = pytest.mark.integration

NAMES = (
    "insightface's rules for a path (simulated)",
    "onnxruntime",
    "insightface, path",
    "insightface, manifest",
    "OpenCV DNN",
    "OpenVINO",
)
BF16 = "OpenVINO, bf16"


def write_bundle(folder: Path, content: bytes, *, mean: float = 127.5, std: float = 127.5) -> Path:
    """Write what the consumers read."""
    (folder / "model.onnx").write_bytes(content)
    recognition = {"file": "model.onnx", "preprocessing": {"mean": mean, "std": std}}
    manifest = {
        "manifest_version": 2,
        "model_id": "tiny",
        "license": "MODEL.LICENSE",
        "tasks": {"recognition": recognition},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def bundle(tmp_path: Path, tiny_onnx: bytes) -> Path:
    return write_bundle(tmp_path, tiny_onnx)


@pytest.fixture(scope="module")
def photos(faces: np.ndarray) -> np.ndarray:
    """As OpenCV reads them: BGR."""
    return np.ascontiguousarray(faces[:3, ..., ::-1])


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Leave these consumers alone in the check."""
    kept = tuple(c for c in consumers._CONSUMERS if c.name in names)
    assert len(kept) == len(names)
    monkeypatch.setattr(consumers, "_CONSUMERS", kept)


def pixels_inside(content: bytes, sub: str, mul: str) -> bytes:
    """Return a file that takes raw float32 pixels, with nodes of these names."""
    model = onnx.load_from_string(make_variant("uint8", content))
    graph = model.graph
    graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    graph.node[0].CopyFrom(helper.make_node("Identity", ["data"], graph.node[0].output, "same"))
    graph.node[1].name, graph.node[2].name = sub, mul
    note = json.loads(model.metadata_props[0].value)
    return finish(model, note, 17, keep_names=(sub, mul))


# --- the bundle as it should be --------------------------------------------------------------


def test_every_consumer_embeds_as_the_backbone_does(
    bundle: Path,
    tiny_model: TorchModel,
    photos: np.ndarray,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows = check_consumers(bundle, tiny_model, photos)
    names = [row.consumer for row in rows]
    # Without OpenVINO nothing is said of its bfloat16.
    assert names in ([*NAMES], [*NAMES, BF16])
    for row in rows[1:]:
        if row.consumer == BF16:
            able = "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            assert (row.outcome == "not available") != able
        elif row.outcome == "same":
            assert row.version and row.max_abs is not None and row.min_cosine is not None
            assert row.max_abs <= (1e-5 if "OpenV" not in row.consumer else 1e-4)
            assert row.min_cosine >= 0.999999
        else:
            assert row.outcome == "not installed" and row.note
    assert {rows[0].outcome, rows[1].outcome} == {"same"}
    assert capfd.readouterr() == ("", "")


def test_what_torch_rounds_itself_is_no_fault_of_a_consumer(
    bundle: Path, tiny_model: TorchModel, photos: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = tuple(replace(c, bar=Bar(max_abs=0.0)) for c in consumers._CONSUMERS)
    monkeypatch.setattr(consumers, "_CONSUMERS", strict[:1])
    row = check_consumers(bundle, tiny_model, photos)[1]
    x = normalize(torch.from_numpy(photos[..., ::-1].copy()), Preprocessing())
    backbone = copy.deepcopy(tiny_model.backbone).eval()
    with torch.no_grad():
        single, exact = backbone(x).double(), backbone.double()(x.double())
    rounding = ((single - exact).abs().max() / exact.norm(dim=1).mean()).item()
    assert row.outcome == "same" and row.max_abs is not None and row.max_abs > 0
    assert f"{rounding:.1e}" in row.note and "torch itself rounds" in row.note


@pytest.mark.parametrize(("digits", "outcome"), [(7, "same"), (1, "not suited")])
def test_bf16_is_measured_and_stops_nothing(
    bundle: Path,
    tiny_model: TorchModel,
    photos: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    play_bf16: Callable[[int], None],
    digits: int,
    outcome: str,
) -> None:
    """On a processor with bfloat16, played by one that keeps so many binary digits."""
    play_bf16(digits)
    only(monkeypatch, "OpenVINO")
    exact, half = check_consumers(bundle, tiny_model, photos)[1:]
    assert exact.outcome == "same" and half.outcome == outcome
    assert half.max_abs is not None and exact.max_abs is not None
    assert half.max_abs > 10 * exact.max_abs
    assert ("0.999" in half.note) == (outcome == "not suited")


def test_a_missing_consumer_is_told(
    bundle: Path,
    tiny_model: TorchModel,
    photos: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, "OpenVINO")
    monkeypatch.setitem(sys.modules, "openvino", None)
    row = check_consumers(bundle, tiny_model, photos)[1]
    assert (row.outcome, row.version, row.max_abs) == ("not installed", None, None)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import cv2; raise cv2.error('unsupported opset')", "unsupported opset"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("print('no embeddings')", ""),
    ],
)
def test_an_opencv_that_cannot_read_the_file_is_told(
    bundle: Path,
    tiny_model: TorchModel,
    photos: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    words: str,
) -> None:
    only(monkeypatch, "OpenCV DNN")
    monkeypatch.setattr(consumers, "_OPENCV", code)
    row = check_consumers(bundle, tiny_model, photos)[1]
    assert (row.version, row.outcome) == (cv2.__version__, "cannot load")
    assert words in row.note and row.note


def test_an_opencv_that_computes_otherwise_is_told(
    bundle: Path, tiny_model: TorchModel, photos: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "OpenCV DNN")
    wrong = consumers._OPENCV.replace("net.forward()", "abs(net.forward())")
    monkeypatch.setattr(consumers, "_OPENCV", wrong)
    row = check_consumers(bundle, tiny_model, photos)[1]
    assert row.outcome == "not suited" and "otherwise" in row.note
    assert row.min_cosine is not None and row.min_cosine < 0.99


def test_insightface_must_load_the_file(
    bundle: Path,
    tiny_model: TorchModel,
    photos: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("insightface", reason="needs the extra insightface")
    only(monkeypatch, "insightface, manifest")
    (bundle / "manifest.json").write_text('{"manifest_version": 2}')
    with pytest.raises(ExportError, match=r"model\.onnx: insightface, manifest .* cannot use it"):
        check_consumers(bundle, tiny_model, photos)


# --- negative controls -----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES[1:])
def test_swapped_channels_fail_everywhere(
    bundle: Path,
    tiny_model: TorchModel,
    photos: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    only(monkeypatch, name)
    trained_on_bgr = TorchModel(tiny_model.backbone, Preprocessing("bgr"))
    try:
        rows = check_consumers(bundle, trained_on_bgr, photos)
    except ExportError as error:
        assert f"{name} " in str(error) and "does not embed as the backbone does" in str(error)
    else:
        assert rows[1].outcome == "not installed"
        pytest.skip(rows[1].note)


@pytest.mark.parametrize(("mean", "std"), [(127.5, 128.0), (0.0, 255.0)])
def test_another_scale_in_the_manifest_fails(
    tmp_path: Path,
    tiny_onnx: bytes,
    tiny_model: TorchModel,
    photos: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    mean: float,
    std: float,
) -> None:
    pytest.importorskip("insightface", reason="needs the extra insightface")
    only(monkeypatch, "insightface, manifest")
    folder = write_bundle(tmp_path, tiny_onnx, mean=mean, std=std)
    with pytest.raises(ExportError, match=r"insightface, manifest .* does not embed as"):
        check_consumers(folder, tiny_model, photos)


@pytest.mark.parametrize("names", [("sub_0", "mul_0"), ("Sub_0", "Mul_0")])
def test_a_main_file_that_normalises_is_refused(
    tmp_path: Path,
    tiny_onnx: bytes,
    tiny_model: TorchModel,
    photos: np.ndarray,
    names: tuple[str, str],
) -> None:
    folder = write_bundle(tmp_path, pixels_inside(tiny_onnx, *names))
    with pytest.raises(ExportError, match="it normalises pixels itself"):
        check_consumers(folder, tiny_model, photos)


def test_normalisation_twice_fails(
    tmp_path: Path,
    tiny_onnx: bytes,
    tiny_model: TorchModel,
    photos: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file that normalises but states that it does not."""
    model = onnx.load_from_string(pixels_inside(tiny_onnx, "sub_0", "mul_0"))
    note = json.loads(model.metadata_props[0].value)
    note["preprocessing"] = {"channels": "rgb", "mean": 127.5, "std": 127.5}
    model.metadata_props[0].value = json.dumps(note)
    folder = write_bundle(tmp_path, model.SerializeToString())
    for name in NAMES[1:]:
        with monkeypatch.context() as patch:
            only(patch, name)
            try:
                rows = check_consumers(folder, tiny_model, photos)
            except ExportError as error:
                assert "does not embed as the backbone does" in str(error)
            else:
                assert rows[1].outcome == "not installed"


def test_names_of_a_normalisation_without_one_are_refused(
    tmp_path: Path, tiny_onnx: bytes, tiny_model: TorchModel, photos: np.ndarray
) -> None:
    model = onnx.load_from_string(tiny_onnx)
    model.graph.node[2].name, model.graph.node[7].name = "Sub_2", "Mul_7"
    folder = write_bundle(tmp_path, model.SerializeToString())
    with pytest.raises(ExportError, match=r"insightface would feed raw pixels.*Sub_2.*Mul_7"):
        check_consumers(folder, tiny_model, photos)


def test_another_mean_does_not_suit_a_bare_path(
    tmp_path: Path,
    tiny_onnx: bytes,
    tiny_model: TorchModel,
    photos: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, "onnxruntime", "insightface, path")
    model = onnx.load_from_string(tiny_onnx)
    text = model.metadata_props[0].value
    model.metadata_props[0].value = text.replace('"mean": 127.5', '"mean": 100.0')
    folder = write_bundle(tmp_path, model.SerializeToString(), mean=100.0)
    trained = TorchModel(tiny_model.backbone, Preprocessing("rgb", 100.0, 127.5))
    rows = check_consumers(folder, trained, photos)
    assert [row.outcome for row in rows][:2] == ["not suited", "same"]
    assert rows[2].outcome in ("not suited", "not installed")
    assert "this wants mean 100 and std 127.5" in rows[0].note


# --- the rules for a bare path ---------------------------------------------------------------


def shaped(
    shape: list[int | str], *, outputs: int = 1, inputs: int = 1, dtype: int = TensorProto.FLOAT
) -> OnnxFile:
    """Return a file of this interface that computes nothing of interest."""
    values = [helper.make_tensor_value_info(f"x{i}", dtype, shape) for i in range(inputs)]
    nodes = [helper.make_node("Cast", ["x0"], [f"y{i}"], to=1) for i in range(outputs)]
    made = [
        helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, shape) for i in range(outputs)
    ]
    graph = helper.make_graph(nodes, "shaped", values, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return parse_onnx(model.SerializeToString(), "shaped")


@pytest.mark.parametrize(
    ("shape", "options", "problem"),
    [
        (["n", 3, 112, 112], {}, None),
        ([1, 3, 112, 112], {}, None),
        (["n", 3, 144, 144], {}, None),
        (["n", 3, 128, 128], {}, None),
        ([2, 3, 112, 112], {}, "fixed batch of 2"),
        (["n", 1, 112, 112], {}, "1 channels"),
        (["n", 3, 112, 112], {"dtype": TensorProto.UINT8}, "uint8"),
        (["n", 3, 112, 112], {"outputs": 2}, "2 outputs"),
        (["n", 3, 112, 112], {"outputs": 5}, "detector"),
        (["n", 3, 128, 128], {"inputs": 2}, "swapper"),
        (["n", 3, 192, 192], {}, "landmarks"),
        (["n", 3, 96, 96], {}, "attributes"),
        (["n", 3, 112, 96], {}, "not square"),
        (["n", 112, 112, 3], {}, "not square"),
        (["n", 3, 80, 80], {}, "below 112"),
        (["n", 3, 120, 120], {}, "no multiple of 16"),
        (["n", 3, "side", "side"], {}, "open"),
        (["n", 3, "h", "w"], {}, "not square"),
        (["n", 3], {}, "2 dimensions"),
    ],
)
def test_the_simulation_follows_the_shapes(
    shape: list[int | str], options: dict[str, Any], problem: str | None
) -> None:
    route = legacy_router_simulation(shaped(shape, **options))
    assert (problem or "") in (route.problem or "") and (route.problem is None) == (problem is None)
    routed = None, "fixed batch of 2", "1 channels", "uint8", "2 outputs"
    assert (route.mean is not None) == (problem in routed)


@pytest.mark.parametrize(
    ("names", "scale"),
    [
        (("conv_0",), (127.5, 127.5)),
        (("Sub_0", "Mul_1"), (0.0, 1.0)),
        (("_minusscalar0", "_mulscalar0"), (0.0, 1.0)),
        (("Sub_0", *"abcdef", "Mul_7"), (0.0, 1.0)),
        (("Sub_0", *"abcdefg", "Mul_8"), (127.5, 127.5)),
        (("Sub_0", "node_mul"), (127.5, 127.5)),
        (("Mul_0",), (127.5, 127.5)),
    ],
)
def test_the_simulation_says_what_insightface_does(
    tmp_path: Path, tiny_onnx: bytes, names: tuple[str, ...], scale: tuple[float, float]
) -> None:
    model = onnx.load_from_string(tiny_onnx)
    for node, name in zip(model.graph.node, names, strict=False):
        node.name = name
    content = model.SerializeToString()
    route = legacy_router_simulation(parse_onnx(content, "named"))
    assert (route.mean, route.std) == scale
    model_zoo = pytest.importorskip("insightface.model_zoo", reason="needs the extra insightface")
    path = tmp_path / "named.onnx"
    path.write_bytes(content)
    real = model_zoo.get_model(str(path), providers=["CPUExecutionProvider"])
    assert (real.input_mean, real.input_std) == scale


def test_a_normalisation_with_the_right_names_gets_raw_pixels(
    tmp_path: Path, tiny_onnx: bytes, tiny_model: TorchModel, photos: np.ndarray
) -> None:
    """The simulation of such a file agrees with the embeddings that insightface makes."""
    model_zoo = pytest.importorskip("insightface.model_zoo", reason="needs the extra insightface")
    wanted = tiny_model.embed(np.ascontiguousarray(photos[..., ::-1]))
    unit = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    for names, right in ((("Sub_0", "Mul_0"), True), (("sub_0", "mul_0"), False)):
        path = tmp_path / f"{names[0]}_{right}.onnx"
        path.write_bytes(pixels_inside(tiny_onnx, *names))
        assert (legacy_router_simulation(parse_onnx(path.read_bytes(), "x")).mean == 0) is right
        found = model_zoo.get_model(str(path), providers=["CPUExecutionProvider"])
        vectors = found.get_feat(list(photos))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cosine = float((unit * vectors).sum(axis=1).min())
        assert (cosine > 0.99999) is right


def test_the_note_survives_in_onnxruntime(tiny_onnx: bytes) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(tiny_onnx, providers=["CPUExecutionProvider"])
    note = session.get_modelmeta().custom_metadata_map[METADATA_KEY]
    assert json.loads(note) == parse_onnx(tiny_onnx, "tiny").note
