"""Two photos, one answer: decisions, thresholds beside the model, photos that are not aligned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from helpers.calibrations import model_calibration, point, refusing
from helpers.toy_files import png_header
from pytest import CaptureFixture, MonkeyPatch

import facerec
from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.base.errors import FacerecError
from facerec.base.files import sha256, write_json
from facerec.commands import same as command
from facerec.embedding import recognizer, save_model
from facerec.embedding.align import Detector, face_template
from tests.commands.conftest import Refused

SMALL = Backbone("iresnet18", embedding_size=16, width=0.125)


def write_photo(path: Path, image: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image[:, :, ::-1])
    return path


def noise(seed: int, height: int = 112, width: int = 112) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FACEREC_DETECTOR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    recognizer.loaded.cache_clear()
    save_model("m/model.safetensors", create_backbone(SMALL, seed=1), SMALL, Preprocessing(), {})
    for name, seed in (("a", 0), ("b", 1)):
        write_photo(Path(f"{name}.png"), noise(seed))
    return tmp_path


def same(capsys: CaptureFixture, *words: str) -> str:
    command.main(["--model", "m", *words])
    return capsys.readouterr().out


def cosine(place: Path) -> float:
    vectors = facerec.load("m", device="cpu").embed(np.stack([noise(0), noise(1)]))
    first, second = vectors.astype(np.float64)
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def test_without_a_threshold_there_is_no_decision(place: Path, capsys: CaptureFixture) -> None:
    text = same(capsys, "a.png", "b.png")
    assert f"{cosine(place):.4f}" in text and "no decision" in text and "facerec calibrate" in text
    found = json.loads(same(capsys, "a.png", "b.png", "--json"))
    assert found["same"] is found["threshold"] is None
    assert found["similarity"] == pytest.approx(cosine(place), abs=1e-5)


@pytest.mark.parametrize("above", [False, True])
def test_a_given_threshold_decides(place: Path, capsys: CaptureFixture, above: bool) -> None:
    limit = cosine(place) + (0.01 if above else -0.01)
    found = json.loads(same(capsys, "a.png", "b.png", "--threshold", str(limit), "--json"))
    assert found["same"] is not above and found["source"] == "given"
    assert found["threshold"] == pytest.approx(limit)


def refuse(name: str, *rows: dict[str, Any]) -> None:
    """Write a calibration beside the model that knows a photo as no face."""
    known = refusing(facerec.load("m", device="cpu", flip=False).embed(name))
    found = model_calibration(*rows, sha256=sha256("m/model.safetensors"), faces=known)
    write_json("m/model.safetensors.facerec.json", found.to_json())


def test_a_picture_that_is_no_face_gets_no_decision(place: Path, capsys: CaptureFixture) -> None:
    refuse("a.png", point(-1))
    found = json.loads(same(capsys, "b.png", "a.png", "--json"))
    assert found["same"] is found["evidence"] is None and "photo b" in found["unknown"][0]
    assert same(capsys, "b.png", "a.png").startswith("no decision: ")
    anyway = json.loads(same(capsys, "b.png", "a.png", "--unchecked", "--json"))
    assert anyway["same"] is True and not anyway["unknown"]


def test_one_threshold_of_the_model_decides(
    place: Path, capsys: CaptureFixture, refused: Refused
) -> None:
    refuse("a.png", point(-0.5), point(1.0, "1e-4"), point(0.9, "1e-4", "cfp"))
    found = json.loads(same(capsys, "b.png", "b.png", "--json"))
    assert (found["threshold"], found["fpr"], found["same"]) == (-0.5, "1e-3", True)
    assert "FPR 1e-3 on lfw" in same(capsys, "b.png", "b.png")
    found = json.loads(same(capsys, "b.png", "b.png", "--fpr", "1e-4", "--bench", "cfp", "--json"))
    assert found["threshold"] == 0.9
    for flags in (["--fpr", "1e-4"], ["--fpr", "1e-5"], ["--fpr", "1e-3", "--threshold", "0"]):
        assert refused(command.main, "--model", "m", "b.png", "b.png", *flags)


def test_python_takes_files_bytes_and_arrays(place: Path) -> None:
    expected = cosine(place)
    for first, second in (("a.png", Path("b.png").read_bytes()), (noise(0), Path("b.png"))):
        answer = facerec.verify(first, second, model="m")
        assert answer.similarity == pytest.approx(expected, abs=1e-6)
    loaded = facerec.load("m", device="cpu")
    one = loaded.embed("a.png")
    np.testing.assert_allclose(one, loaded.embed(noise(0)), rtol=1e-6)
    assert one.shape == (16,)
    assert loaded.embed(["a.png", noise(1), Path("b.png").read_bytes()]).shape == (3, 16)


class Two(Detector):
    """Finds the template at two places of a photo, of which the second is twice as large."""

    name = "two"

    def _detect(self, image: np.ndarray) -> Any:
        points = np.stack([face_template(), 2 * face_template() + (120, 0)])
        boxes = np.array([(0, 0, 112, 112), (120, 0, 344, 224)], float)
        there = slice(0 if image.shape[1] < 300 else 2)  # a crop, and black around it
        return boxes[there], points[there], np.array([0.9, 0.9])[there]

    def describe(self) -> dict[str, Any]:
        return {"method": "two"}


def test_faces_of_a_photo(
    place: Path, capsys: CaptureFixture, refused: Refused, monkeypatch: MonkeyPatch
) -> None:
    photo = np.zeros((240, 360, 3), np.uint8)
    photo[:112, :112] = noise(0)
    photo[:224, 120:344] = cv2.resize(noise(1), (224, 224), interpolation=cv2.INTER_NEAREST)
    write_photo(place / "both.png", photo)
    two = (command.main, "--model", "m", "both.png", "a.png")
    assert "download face_detection_yunet" in refused(*two)
    monkeypatch.setattr(recognizer, "detector_at_hand", lambda given, beside: Two(0.5))
    found = json.loads(same(capsys, "both.png", "a.png", "--face", "2", "1", "--json"))
    assert found["similarity"] == pytest.approx(1, abs=1e-5)
    found = json.loads(same(capsys, "both.png", "b.png", "--json"))
    assert found["similarity"] > 0.8 and "2 faces" in found["notes"][0]
    searched: list[str] = []
    looking = lambda *a: searched.append(a[2]) or Detector.faces(*a)  # noqa: E731
    monkeypatch.setattr(Two, "faces", looking)
    for looked in (1, 0):  # the second time at nothing but crops
        del searched[:]
        found = facerec.find("a.png", ".", model="m", detector="two", keep=True)
        assert len(found) == 3 and sum("both.png" in where for where in searched) == looked
        assert {item.image for item in found if item.note} == {"both.png"}
        assert found[0].similarity >= found[1].similarity > found[2].similarity
        assert {item.same for item in found} == {None}
        assert found[1].similarity == pytest.approx(1, abs=1e-5)  # by its smaller face
    Path(f"{place}.facerec.npz").rename(f"{place}.moved.npz")
    Path(f"{place}.facerec.npz").symlink_to(f"{place}.moved.npz")
    with pytest.raises(FacerecError, match="a link"):
        facerec.find("a.png", ".", model="m", detector="two", keep=True)
    assert "no face 3 among the 2" in refused(*two, "--face", "3", "1")


@pytest.mark.parametrize(
    ("photo", "words"),
    [("gone.png", "cannot"), (".", "cannot"), ("text.png", "no JPEG"), ("wide.png", "limit")],
)
def test_what_is_no_photo(place: Path, refused: Refused, photo: str, words: str) -> None:
    Path("text.png").write_text("no photo")
    Path("wide.png").write_bytes(png_header(20_000, 20_000))
    text = refused(command.main, "--model", "m", photo, "a.png")
    assert words in text and photo in text
