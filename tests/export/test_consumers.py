"""The exported file in the programs that will use it, and controls that must not pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pytest import CaptureFixture, MonkeyPatch

from facerec.backbones import Preprocessing
from facerec.base.errors import ExportError
from facerec.embedding import TorchModel
from facerec.embedding.onnx_file import parse_onnx, read_onnx
from facerec.export import check_consumers, check_parity, consumers, export_graph

pytestmark = pytest.mark.integration

NAMES = tuple(consumer.name for consumer in consumers._CONSUMERS)


@pytest.fixture
def exported(tmp_path: Path, tiny_onnx: bytes) -> Path:
    (tmp_path / "model.onnx").write_bytes(tiny_onnx)
    return tmp_path / "model.onnx"


@pytest.fixture(scope="module")
def photos(faces: np.ndarray) -> np.ndarray:
    """As OpenCV reads them: BGR."""
    return np.ascontiguousarray(faces[:3, ..., ::-1])


def only(monkeypatch: MonkeyPatch, name: str, **changes: object) -> None:
    """Leave one consumer alone in the check."""
    (kept,) = (consumer for consumer in consumers._CONSUMERS if consumer.name == name)
    monkeypatch.setattr(consumers, "_CONSUMERS", (replace(kept, **changes),))


def test_every_consumer_embeds_as_the_backbone_does(
    exported: Path, tiny_model: TorchModel, photos: np.ndarray, capfd: CaptureFixture
) -> None:
    rows = check_consumers(read_onnx(exported), tiny_model, photos)
    assert tuple(row.consumer for row in rows) == NAMES and rows[0].outcome == "same"
    for row in rows:
        if row.outcome == "same":
            assert row.version and row.max_abs is not None and row.min_cosine is not None
            assert row.max_abs <= 1e-4 and row.min_cosine >= 0.999999
        else:
            assert row.outcome == "not installed" and row.note
    assert capfd.readouterr() == ("", "")


def test_a_mean_for_each_channel_reaches_all_who_can_take_it(
    tiny_model: TorchModel, tmp_path: Path, photos: np.ndarray
) -> None:
    pixels = Preprocessing("bgr", (120.0, 110.0, 100.0), (60.0, 55.0, 50.0))
    model, path = TorchModel(tiny_model.backbone, pixels), tmp_path / "model.onnx"
    path.write_bytes(export_graph(model.backbone, pixels, note={"format": 1}))
    check_parity(model, parse_onnx(path.read_bytes(), "model"))
    rows = check_consumers(read_onnx(path), model, photos)
    assert {row.outcome for row in rows if row.consumer != "insightface"} == {"same"}
    (theirs,) = (row for row in rows if row.consumer == "insightface")
    assert theirs.outcome in ("not suited", "not installed")


@pytest.mark.parametrize(
    ("code", "outcome", "words"),
    [
        ("import cv2; raise cv2.error('unsupported opset')", "cannot load", "unsupported opset"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "cannot load", "signal 11"),
        (consumers._OPENCV.replace("net.forward()", "abs(net.forward())"), "not suited", "otherw"),
    ],
)
def test_an_opencv_that_fails_is_told(
    exported: Path,
    tiny_model: TorchModel,
    photos: np.ndarray,
    monkeypatch: MonkeyPatch,
    code: str,
    outcome: str,
    words: str,
) -> None:
    only(monkeypatch, "OpenCV")
    monkeypatch.setattr(consumers, "_OPENCV", code)
    (row,) = check_consumers(read_onnx(exported), tiny_model, photos)
    assert row.outcome == outcome and words in row.note


@pytest.mark.parametrize("name", NAMES)
def test_swapped_channels_fail_everywhere(
    exported: Path, tiny_model: TorchModel, photos: np.ndarray, monkeypatch: MonkeyPatch, name: str
) -> None:
    only(monkeypatch, name, required=True)
    trained_on_bgr = TorchModel(tiny_model.backbone, Preprocessing("bgr"))
    try:
        (row,) = check_consumers(read_onnx(exported), trained_on_bgr, photos)
    except ExportError as error:
        assert f"{name} " in str(error) and "does not embed as the backbone does" in str(error)
    else:
        assert row.outcome == "not installed"
        pytest.skip(row.note)
