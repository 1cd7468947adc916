"""Two photos, one answer: decisions, thresholds beside the model, photos that are not aligned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from helpers.toy_files import png_header
from helpers.toy_packs import make_pack

import facerec
from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.commands import same as command
from facerec.commands.verify import main as verify
from facerec.embedding import recognizer, save_model
from facerec.embedding.align import Detector, face_template

SMALL = Backbone("iresnet18", embedding_size=16, width=0.125)


def write_photo(path: Path, image: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image[:, :, ::-1])
    return path


def noise(seed: int, height: int = 112, width: int = 112) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FACEREC_DETECTOR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    recognizer._loaded.cache_clear()
    save_model("m/model.safetensors", create_backbone(SMALL, seed=1), SMALL, Preprocessing(), {})
    for name, seed in (("a", 0), ("b", 1)):
        write_photo(Path(f"{name}.png"), noise(seed))
    return tmp_path


def same(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    command.main(["--model", "m", *words])
    return capsys.readouterr().out


def cosine(place: Path) -> float:
    vectors = facerec.load("m", device="cpu").embed(np.stack([noise(0), noise(1)]))
    first, second = vectors.astype(np.float64)
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def test_without_a_threshold_there_is_no_decision(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = same(capsys, "a.png", "b.png")
    assert f"{cosine(place):.4f}" in text and "no decision" in text and "facerec verify" in text
    found = json.loads(same(capsys, "a.png", "b.png", "--json"))
    assert found["same"] is found["threshold"] is None
    assert found["similarity"] == pytest.approx(cosine(place), abs=1e-5)


@pytest.mark.parametrize("above", [False, True])
def test_a_given_threshold_decides(
    place: Path, capsys: pytest.CaptureFixture[str], above: bool
) -> None:
    limit = cosine(place) + (0.01 if above else -0.01)
    found = json.loads(same(capsys, "a.png", "b.png", "--threshold", str(limit), "--json"))
    assert found["same"] is not above and found["source"] == "given"
    assert found["threshold"] == pytest.approx(limit)


def test_verify_leaves_thresholds_beside_the_model(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_pack(place / "lfw.bin", folds=10, per_fold=6)
    verify(["--bench", "lfw.bin", "--model", "m", "--fpr", "1e-1"])
    printed = capsys.readouterr().out
    assert "thresholds: " in printed
    beside = json.loads(Path("m/model.safetensors.thresholds.json").read_text())
    (row,) = beside["thresholds"]
    found = json.loads(same(capsys, "a.png", "b.png", "--json"))
    assert (found["threshold"], found["fpr"]) == (row["threshold"], "1e-1")
    assert found["same"] is (found["similarity"] >= row["threshold"])
    assert "lfw" in same(capsys, "a.png", "b.png")
    # They hold for this file alone.
    save_model("m/model.safetensors", create_backbone(SMALL, seed=2), SMALL, Preprocessing(), {})
    assert json.loads(same(capsys, "a.png", "b.png", "--json"))["threshold"] is None


def test_python_takes_files_bytes_and_arrays(place: Path) -> None:
    expected = cosine(place)
    for first, second in (
        ("a.png", "b.png"),
        (Path("a.png"), Path("b.png").read_bytes()),
        (noise(0), "b.png"),
    ):
        answer = facerec.verify(first, second, model="m")
        assert answer.similarity == pytest.approx(expected, abs=1e-6)
    loaded = facerec.load("m", device="cpu")
    one = loaded.embed("a.png")
    np.testing.assert_allclose(one, loaded.embed(noise(0)), rtol=1e-6)
    assert one.shape == (16,)
    assert loaded.embed(["a.png", noise(1), Path("b.png").read_bytes()]).shape == (3, 16)


def test_find_orders_a_folder(place: Path) -> None:
    for name, seed in (("dora/1.png", 3), ("anna/1.png", 0), ("carla/1.png", 4)):
        write_photo(place / "people" / name, noise(seed))
    found = facerec.find("a.png", "people", model="m")
    assert found[0].image == "anna/1.png" and found[0].similarity == pytest.approx(1)
    assert len(found) == 3 and all(item.same is None for item in found)
    similarities = [item.similarity for item in found]
    assert similarities == sorted(similarities, reverse=True)


class Two(Detector):
    """Finds the template at two places, of which the second is twice as large."""

    name = "two"

    def _detect(self, image: np.ndarray) -> Any:
        points = np.stack([face_template(), 2 * face_template() + (120, 0)])
        boxes = np.array([(0, 0, 112, 112), (120, 0, 344, 224)], float)
        return boxes, points, np.array([0.9, 0.9])

    def describe(self) -> dict[str, Any]:
        return {"method": "two"}


def test_faces_of_a_photo(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    photo = np.zeros((240, 360, 3), np.uint8)
    photo[:112, :112] = noise(0)
    photo[:224, 120:344] = cv2.resize(noise(1), (224, 224), interpolation=cv2.INTER_NEAREST)
    write_photo(place / "both.png", photo)
    assert "download face_detection_yunet" in refused(
        command.main, "--model", "m", "both.png", "a.png"
    )
    monkeypatch.setattr(recognizer, "detector_at_hand", lambda given, beside: Two(0.5))
    assert json.loads(same(capsys, "both.png", "a.png", "--face", "2", "1", "--json"))[
        "similarity"
    ] == pytest.approx(1, abs=1e-5)
    found = json.loads(same(capsys, "both.png", "b.png", "--json"))
    assert found["similarity"] > 0.8 and "2 faces" in found["notes"][0]
    found = facerec.find("a.png", ".", model="m", detector="two")
    assert {item.image for item in found if item.note} == {"both.png"} and len(found) == 3
    assert "no face 3 among the 2" in refused(
        command.main, "--model", "m", "both.png", "a.png", "--face", "3", "1"
    )


@pytest.mark.parametrize(
    ("photo", "words"),
    [
        ("gone.png", "cannot be read"),
        (".", "cannot be read"),
        ("text.png", "no image|not a|neither"),
        ("wide.png", "limit"),
    ],
)
def test_what_is_no_photo(place: Path, refused: Callable[..., str], photo: str, words: str) -> None:
    Path("text.png").write_text("no photo")
    Path("wide.png").write_bytes(png_header(20_000, 20_000))
    text = refused(command.main, "--model", "m", photo, "a.png")
    assert any(word in text for word in words.split("|")), text
    assert photo in text
