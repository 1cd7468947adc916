from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.flat_onnx import flat_onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from facerec.backbones import Preprocessing
from facerec.errors import ExportError
from facerec.export.manifest import (
    DETECTOR_FILE,
    LICENSE_FILE,
    SERVER_REMARK,
    model_id,
    package_manifest,
    server_manifest,
)

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@given(st.text())
def test_every_name_becomes_a_legal_id(name: str) -> None:
    found = model_id(name)
    assert ID.fullmatch(found)
    # A legal id is a fixed point, so folder and manifest agree.
    assert model_id(found) == found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("arcface_sec_r50", "arcface_sec_r50"),
        ("run 2 (best)", "run-2-best"),
        ("../../etc", "etc"),
        ("人", "facerec-model"),
        ("", "facerec-model"),
        ("a" * 200, "a" * 128),
    ],
)
def test_ids(name: str, wanted: str) -> None:
    assert model_id(name) == wanted


def test_the_package_manifest_field_by_field() -> None:
    file = flat_onnx(dimension=24)
    manifest = package_manifest("My run", file, Preprocessing(mean=120.0, std=64.0))
    assert manifest == {
        "manifest_version": 2,
        "model_id": "My-run",
        "display_name": "My run",
        "license": "MODEL.LICENSE",
        "tasks": {
            "recognition": {
                "file": "model.onnx",
                "sha256": file.sha256,
                "preprocessing": {"mean": 120.0, "std": 64.0},
                "preprocessing_version": "insightface-arcface-1",
                "input_size": [112, 112],
                "embedding_dimension": 24,
            }
        },
    }
    assert type(manifest["manifest_version"]) is int
    assert re.fullmatch("[0-9a-f]{64}", file.sha256)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.UINT8])
def test_preprocessing_in_the_graph_is_embedded(dtype: int) -> None:
    manifest = package_manifest("m", flat_onnx(dtype=dtype), None)
    assert manifest["tasks"]["recognition"]["preprocessing"] == "embedded"


@pytest.mark.parametrize(
    ("file", "preprocessing", "sentence"),
    [
        ({"side": (112, 96)}, Preprocessing(), "square NCHW images"),
        ({"channels_last": True}, Preprocessing(), "square NCHW images"),
        ({}, Preprocessing("bgr"), "found a model for float32 BGR"),
        ({"dtype": TensorProto.UINT8}, Preprocessing(), "found a model for uint8 RGB"),
    ],
)
@pytest.mark.parametrize("manifest", [package_manifest, server_manifest])
def test_what_insightface_cannot_feed(
    manifest: Any, file: dict[str, Any], preprocessing: Preprocessing, sentence: str
) -> None:
    with pytest.raises(ExportError, match=sentence):
        manifest("m", flat_onnx(**file), preprocessing)


def test_the_server_manifest_field_by_field() -> None:
    file = flat_onnx()
    manifest = server_manifest("My run", file, Preprocessing())
    version = manifest.pop("model_version")
    assert manifest == {
        "manifest_version": 1,
        "model_id": "My-run",
        "display_name": "My run",
        "files": {"detector": DETECTOR_FILE, "recognizer": "model.onnx"},
        "recognition": {
            "input_size": [112, 112],
            "embedding_dimension": 8,
            "preprocessing": "insightface-arcface-1",
        },
        "license": LICENSE_FILE,
    }
    assert file.sha256[:12] in version
    other = server_manifest("My run", flat_onnx(dimension=9), Preprocessing())
    assert other["model_version"] != version
    for lacking in (LICENSE_FILE, DETECTOR_FILE, "signed by InsightFace"):
        assert lacking in SERVER_REMARK


@pytest.mark.parametrize("preprocessing", [None, Preprocessing(std=128.0), Preprocessing(mean=0.0)])
def test_the_server_scales_in_one_way_only(preprocessing: Preprocessing | None) -> None:
    with pytest.raises(ExportError, match=r"always scales by mean 127\.5"):
        server_manifest("m", flat_onnx(), preprocessing)


# --- read by insightface itself ---------------------------------------------------------------


def write_package(folder: Path, preprocessing: Preprocessing | None, **options: Any) -> Path:
    file = flat_onnx(**options)
    (folder / "model.onnx").write_bytes(file.content)
    manifest = package_manifest("run 1", file, preprocessing)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_insightface_parses_what_was_meant(tmp_path: Path) -> None:
    packages = pytest.importorskip("insightface.model_zoo.package_manifest")
    folder = write_package(tmp_path, Preprocessing(mean=1.5, std=2.5), dimension=24)
    package = packages.load_model_package(folder)
    task = package.verify_task("recognition")
    assert package.model_id == "run-1" and package.display_name == "run 1"
    assert set(package.tasks) == {"recognition"}
    assert task.path == folder.resolve() / "model.onnx"
    assert task.metadata["preprocessing"] == {"mean": 1.5, "std": 2.5}
    assert task.metadata["input_size"] == (112, 112)
    assert task.metadata["embedding_dimension"] == 24
    (folder / "model.onnx").write_bytes(flat_onnx(dimension=25).content)
    with pytest.raises(RuntimeError, match="SHA-256 mismatch"):
        package.verify_task("recognition")


def test_insightface_scales_as_the_manifest_says(tmp_path: Path) -> None:
    zoo = pytest.importorskip("insightface.model_zoo")
    folder = write_package(tmp_path, Preprocessing(mean=10.0, std=4.0))
    model = zoo.get_model(str(folder), model_task="recognition", providers=["CPUExecutionProvider"])
    image = np.full((112, 112, 3), (30, 20, 14), np.uint8)
    # The mean of (pixel − 10) / 4 over the channels, times the weight 0.5 of three channels.
    np.testing.assert_allclose(model.get_feat(image), np.full((1, 8), 0.5 * (5 + 2.5 + 1)), 1e-6)
