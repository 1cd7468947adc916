"""An ``.onnx`` file, or a bundle, embeds and compares without torch, as fast as that makes it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from helpers.toy_onnx import expected, noted, tiles

from facerec.backbones import Preprocessing
from facerec.embedding import read_embeddings
from facerec.embedding.bundle import BUNDLE_SCHEMA, write_sums

PHOTOS = np.random.default_rng(0).integers(0, 256, (4, 112, 112, 3), dtype=np.uint8)

CODE = """
import json, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        assert name.split(".")[0] != "torch", f"{name} is imported"

sys.meta_path.insert(0, NoTorch())
import facerec
from facerec.commands.main import run

model, steps = sys.argv[1], json.loads(sys.argv[2])
for name, *arguments in steps:
    run(name, arguments)
if not steps:
    first, second = "people/0/a.png", "people/1/a.png"
    cosine = facerec.verify(first, second, model=model).similarity
    found = facerec.find(first, "people", model=model)
    vector = facerec.load(model, flip=False).embed(first)
    print(json.dumps([cosine, [item.similarity for item in found], vector.tolist()]))
assert "torch" not in sys.modules
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photos of four people, a model, and the same model in a bundle."""
    monkeypatch.chdir(tmp_path)
    for number, photo in enumerate(PHOTOS):
        folder = Path("people", str(number))
        folder.mkdir(parents=True)
        assert cv2.imwrite(str(folder / "a.png"), photo[:, :, ::-1])
    onnx.save(tiles(metadata=noted()), "model.onnx")
    Path("bundle").mkdir()
    onnx.save(tiles(metadata=noted()), "bundle/model.onnx")
    Path("bundle/facerec.json").write_text(json.dumps({"schema": BUNDLE_SCHEMA}))
    write_sums("bundle")
    return tmp_path


def run(model: str, *steps: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE, model, json.dumps(steps)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def both_views(photos: np.ndarray) -> np.ndarray:
    mirrored = photos[:, :, ::-1]
    return expected(photos, Preprocessing()) + expected(mirrored, Preprocessing())


@pytest.mark.parametrize("model", ["model.onnx", "bundle"])
class TestWithoutTorch:
    def test_same(self, place: Path, model: str) -> None:
        first, second = both_views(PHOTOS[:2])
        cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        photos = ["people/0/a.png", "people/1/a.png"]
        found = json.loads(run(model, ["same", *photos, "--model", model, "--json"]))
        assert found["similarity"] == pytest.approx(cosine, abs=1e-6)

    @pytest.mark.parametrize("source", ["--images", "--records"])
    def test_embed(self, place: Path, model: str, source: str) -> None:
        run(model, ["embed", "--model", model, source, "people", "--out", "e.npz"])
        np.testing.assert_allclose(
            read_embeddings("e.npz").vectors, both_views(PHOTOS), rtol=1e-4, atol=1e-4
        )

    def test_enroll_and_identify(self, place: Path, model: str) -> None:
        options = ["--gallery", "g.npz", "--model", model]
        text = run(
            model,
            ["enroll", "people", *options],
            ["identify", "people", *options, "--threshold", "0.9", "--json", "who.json"],
        )
        assert "4 people enrolled" in text and "4 of 4 images identified" in text
        answers = json.loads(Path("who.json").read_text())["answers"]
        assert [answer["subject"] for answer in answers] == ["0", "1", "2", "3"]

    def test_python(self, place: Path, model: str) -> None:
        cosine, found, vector = json.loads(run(model))
        assert cosine == pytest.approx(found[1 + np.argmin(np.abs(np.array(found[1:]) - cosine))])
        assert found[0] == pytest.approx(1)
        np.testing.assert_allclose(
            vector, expected(PHOTOS[:1], Preprocessing())[0], rtol=1e-4, atol=1e-4
        )
