"""The benchmarks of exports at tiny size: they run, and say what they compared."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest

from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.embedding import save_model
from facerec.export.parity import sample_faces
from facerec.records.packs import write_pack

pytestmark = pytest.mark.integration  # whole exports

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TINY: dict[str, Any] = {"name": "iresnet18", "width": 0.125}


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    for extra in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(extra, reason="needs the extra onnx")
    import measures_export

    return measures_export


@pytest.fixture(scope="module")
def exported() -> dict[tuple[Any, ...], Any]:
    """What the measures exported, for the next one."""
    return {}


@pytest.fixture(autouse=True)
def _export_once(
    measures: ModuleType, exported: dict[tuple[Any, ...], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let one export serve all tests."""
    export = measures._export

    def once(*arguments: Any) -> Any:
        key = (*arguments, 32)[:3]
        if key not in exported:
            exported[key] = export(*arguments)
        return exported[key]

    monkeypatch.setattr(measures, "_export", once)


def test_parity(measures: ModuleType) -> None:
    difference, cosine = measures.parity(names=["iresnet18"], width=0.125)
    assert difference.met and cosine.met
    assert difference.value > 0 and cosine.value <= 1


def test_consumers(measures: ModuleType) -> None:
    rows = measures.consumers(**TINY)
    assert all(row.met in (True, None) for row in rows)
    bars = {row.measure.split(": ")[1].split()[0]: row.bar for row in rows}
    assert bars["onnxruntime"] is None
    assert bars.get("insightface", 1e-5) == 1e-5 and bars.get("OpenCV", 1e-4) == 1e-4


def test_float_speed(measures: ModuleType) -> None:
    rows = measures.float_speed(**TINY, batches=(1, 2), repeats=1)
    assert [row.bar for row in rows] == [None, 1.2, None, None]
    assert "channels last" in rows[2].measure and "batch 1" in rows[2].measure
    for row in rows:
        fast, slow = (float(word) for word in row.remark.split(" images")[0].split(" against "))
        assert row.value == pytest.approx(fast / slow, rel=0.02)


def test_int8(measures: ModuleType) -> None:
    *speeds, size, cosine = measures.int8(**TINY, batches=(1, 2), repeats=1, calibration=32)
    assert [row.bar for row in speeds] == [None, 2.5]
    assert all(math.isfinite(row.value) and row.value > 0 for row in speeds)
    # A narrow network is all overhead.
    assert size.bar == 0.3 and size.better == "lower" and 0.25 < size.value < 0.4
    assert 0.9 < cosine.value < 1 and cosine.bar is None


def test_openvino(measures: ModuleType) -> None:
    pytest.importorskip("openvino")
    rows = measures.openvino(**TINY, batch=2, repeats=1, calibration=32)
    assert [row.bar for row in rows] == [6.0, 0.999, 6.0, None]
    assert rows[1].met and 0.9 < rows[3].value < 1
    assert "computed in" in rows[0].remark


def test_accuracy(measures: ModuleType, tmp_path: Path) -> None:
    config = Backbone("iresnet18", embedding_size=16, width=0.125)
    backbone = create_backbone(config, seed=1)  # its float32 accuracy on these faces is 100 %
    save_model(tmp_path / "m.safetensors", backbone, config, Preprocessing(), {})
    people = sample_faces(20)
    second = np.where(np.arange(20)[:, None, None, None] % 2, 255 - people[::-1], people // 2)
    faces = np.stack([people, second], axis=1).reshape(40, *people.shape[1:])
    encoded = [cv2.imencode(".png", face[..., ::-1])[1].tobytes() for face in faces]
    write_pack(tmp_path / "faces.bin", encoded, [True, False] * 10)
    (row,) = measures.accuracy(
        tmp_path / "m.safetensors", tmp_path / "faces.bin", tmp_path / "faces.bin"
    )
    assert row.bar == 0.2 and row.unit == "points"
    before, after = map(float, re.findall(r"[\d.]+(?= %)", row.remark)[:2])
    assert before > 60 and row.value == pytest.approx(before - after, abs=0.011)


def test_micro_batching(measures: ModuleType) -> None:
    for extra in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        pytest.importorskip(extra, reason="needs the extra serve")
    ratio, tail = measures.micro_batching(**TINY, clients=3, requests=2, repeats=1)
    assert ratio.bar == 1.5 and ratio.value > 0
    assert tail.bar is None and tail.value > 0 and tail.unit == "ms"
