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
def test_commands_and_python(place: Path, model: str) -> None:
    embed = ["embed", "--model", model, "--out"]
    gallery = ["--gallery", "g.npz", "--model", model]
    text = run(
        model,
        [*embed, "images.npz", "--images", "people"],
        [*embed, "records.npz", "--records", "people"],
        ["enroll", "people", *gallery],
        ["identify", "people", *gallery, "--threshold", "0.9", "--json", "who.json"],
        ["same", "people/0/a.png", "people/1/a.png", "--model", model, "--json"],
    )
    both = both_views(PHOTOS)
    for name in ("images.npz", "records.npz"):
        np.testing.assert_allclose(read_embeddings(name).vectors, both, rtol=1e-4, atol=1e-4)
    assert "4 people enrolled" in text and "4 of 4 images identified" in text
    answers = json.loads(Path("who.json").read_text())["answers"]
    assert [answer["subject"] for answer in answers] == ["0", "1", "2", "3"]
    wanted = both[0] @ both[1] / np.linalg.norm(both[0]) / np.linalg.norm(both[1])
    similarity, found, vector = json.loads(text.strip().splitlines()[-1])
    assert similarity == pytest.approx(wanted, abs=1e-6)
    assert f'"similarity": {similarity}' in text  # of the command
    assert found[0] == pytest.approx(1) and found == sorted(found, reverse=True)
    alone = expected(PHOTOS[:1], Preprocessing())[0]
    np.testing.assert_allclose(vector, alone, rtol=1e-4, atol=1e-4)
