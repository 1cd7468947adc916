"""The file beside a model that decides: what it says, what it takes over, what it refuses."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.calibrations import (
    faces_json,
    model_calibration,
    point,
    refusing,
    toy_calibration,
)
from helpers.marked_faces import Marked, marked_photo
from helpers.toy_files import faces

from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.base.errors import ModelError
from facerec.base.files import sha256, write_json
from facerec.embedding import EmbeddingModel, extract, load_model, save_model
from facerec.embedding.align import align_face
from facerec.embedding.calibration import ModelCalibration, calibration_file, find_calibration
from facerec.embedding.model import shifted
from facerec.embedding.recognizer import FaceRecognizer

SMALL = Backbone("iresnet18", embedding_size=16, width=0.125)
BGR = {"channels": "bgr", "mean": (120.0, 110.0, 100.0), "std": 64.0}
PIXELS = Preprocessing(**BGR)
ALIGNED = {"method": "yunet"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a model of BGR pixels."""
    path, pixels = tmp_path / "model.safetensors", Preprocessing(**BGR)
    save_model(path, create_backbone(SMALL, seed=1), SMALL, pixels, {})
    return path


def put(path: Path, *rows: dict[str, Any], **changes: Any) -> ModelCalibration:
    """Write a calibration beside a model, and return it."""
    fields = {"sha256": sha256(path), "preprocessing": PIXELS, **changes}
    found = model_calibration(*rows, **fields)
    write_json(calibration_file(path), found.to_json())
    return found


def whole() -> dict[str, Any]:
    """Return the JSON of a calibration that says everything, as a file gives it."""
    faces_ = refusing(np.arange(1, 17))
    worth = toy_calibration({"name": "mine", "preprocessing": BGR}, flip=False)
    rows, more = (point(0.3), point(0.2, "1e-2")), {"faces": faces_, "score_calibration": worth}
    found = model_calibration(*rows, preprocessing=PIXELS, shift=(3, -2), align=ALIGNED, **more)
    return json.loads(json.dumps(found.to_json(), allow_nan=False))


def test_a_file_says_the_same_again(path: Path) -> None:
    write_json(calibration_file(path), whole() | {"sha256": sha256(path)})
    known = load_model(path).calibration
    assert known is not None and known.faces is not None and known.score_calibration is not None
    again = json.loads(json.dumps(known.to_json(), allow_nan=False))
    assert again == whole() | {"sha256": sha256(path)}
    assert (known.shift, known.flip, known.align) == ((3, -2), False, ALIGNED)
    assert [(each.fpr, each.threshold) for each in known.thresholds] == [
        ("1e-3", 0.3),
        ("1e-2", 0.2),
    ]
    assert known.preprocessing == PIXELS and load_model(path, calibrated=False).calibration is None


DAMAGES: list[dict[str, Any]] = [
    {"schema": "facerec.model_calibration/1"},
    {"preprocessing": "embedded"},
    {"sha256": 7},
    {"shift": [0.5, 0]},
    {"align": 7},
    {"thresholds": [{"fpr": "1e-3", "threshold": 0.3, "flip": False}]},
    {"thresholds": [point(1.5)]},
    {"faces": {**faces_json(refusing(np.ones(16))), "limit": float("nan")}},
    *(
        {"score_calibration": toy_calibration({}).to_json() | {name: value}}
        for name, value in (("flip", "yes"), ("model", 7), ("ratio", {}), ("other", 1))
    ),
]
"""Further ones are drawn in `tests/fuzz`."""


@pytest.mark.parametrize("damage", [*DAMAGES, "", "[1]", "no JSON", "7", "null"])
def test_a_damaged_one_is_refused_by_name(path: Path, damage: dict[str, Any] | str) -> None:
    if isinstance(damage, dict):
        damage = json.dumps(whole() | {"sha256": sha256(path)} | damage)
    calibration_file(path).write_text(damage)
    with pytest.raises(ModelError, match=r"facerec calibrate") as caught:
        load_model(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert load_model(path, calibrated=False).calibration is None


def test_whatever_is_left_out_is_missed(tmp_path: Path) -> None:
    for name in whole():
        write_json(tmp_path / "c.json", {n: value for n, value in whole().items() if n != name})
        with pytest.raises(ModelError, match=rf"c\.json.*{name}"):
            ModelCalibration.read(tmp_path / "c.json")


def test_that_of_another_model_is_named_and_not_used(path: Path) -> None:
    put(path, point(0.3), sha256="b" * 64)
    model = load_model(path)
    assert model.calibration is None and not FaceRecognizer(model).thresholds
    assert len(model.notes) == 1 and "another model" in model.notes[0]
    assert not load_model(path, calibrated=False).notes
    put(path)
    assert load_model(path).calibration is not None and not load_model(path).notes


@pytest.mark.parametrize(
    ("flags", "name"),
    [({"channels": "rgb"}, "channels"), ({"mean": 127.5}, "mean"), ({"std": 1.0}, "std")],
)
def test_pixels_are_taken_over_and_nothing_else_is_allowed(
    path: Path, tmp_path: Path, flags: dict[str, Any], name: str
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from helpers.toy_onnx import expected, tiles

    file = tmp_path / "theirs.onnx"
    onnx.save(tiles(), file)
    put(file)
    model = load_model(file)
    assert model.preprocessing == Preprocessing(**BGR) and not model.assumed
    np.testing.assert_allclose(
        model.embed(faces(2)), expected(faces(2), Preprocessing(**BGR)), atol=1e-4
    )
    put(path)
    for each in (file, path):
        assert load_model(each, **BGR).preprocessing == Preprocessing(**BGR)
        with pytest.raises(ModelError, match=f"made with {name} .*contradicts"):
            load_model(each, **flags)
        if each == file:  # a file that says nothing of its pixels
            assert load_model(each, calibrated=False, **flags).calibration is None


@pytest.mark.parametrize("flip", [False, True])
def test_a_flip_that_contradicts_is_refused(path: Path, flip: bool) -> None:
    put(path, point(0.3, flip=flip))
    model = load_model(path)
    assert FaceRecognizer(model).flip is FaceRecognizer(model, flip=flip).flip is flip
    vectors = FaceRecognizer(model).embed(faces(2))
    np.testing.assert_array_equal(vectors, extract(model, faces(2), flip=flip).vectors)
    with pytest.raises(ModelError, match="contradicts"):
        FaceRecognizer(model, flip=not flip)


def test_a_shift_is_taken_over_or_said_otherwise(path: Path) -> None:
    pictures, plain = faces(2), load_model(path)
    put(path, shift=(6, -4))
    model, other = load_model(path), load_model(path, shift=(1, 0))
    assert (model.shift, other.shift, other.cut) == ((6, -4), (1, 0), (0, 0))
    for moved in (model, other):
        wanted = extract(plain, shifted(pictures, moved.shift), flip=True).vectors
        np.testing.assert_array_equal(extract(moved, pictures, flip=True).vectors, wanted)
        assert moved.describe()["shift"] == [*moved.shift] and "shift" not in plain.describe()
    assert load_model(path, shift=(0, 0)).shift == (0, 0)
    for far in ((112, 0), (0, -112)):
        with pytest.raises(ModelError, match="out of a picture"):
            load_model(path, shift=far)


def inside(model: EmbeddingModel, photo: np.ndarray) -> np.ndarray:
    """Return the middle of what the network sees of the face in a photo."""
    recognizer = FaceRecognizer(model, flip=False)
    recognizer.detector = Marked()
    crop, _ = recognizer.face(photo)
    (box,) = [crop for crop, _ in recognizer.faces(photo, "photo")[0]]
    np.testing.assert_array_equal(crop, box)
    return shifted(crop[None], model.shift)[0, 12:100, 12:100]


def test_faces_of_photos_are_cut_out_where_crops_of_the_calibration_lie(path: Path) -> None:
    """Crops that had to be moved lay beside the template, and so does what is cut out of photos."""
    photo = marked_photo((1, 60.0, 50.0, 1.0))
    plain = inside(load_model(path), photo)
    put(path, shift=(6, -4))
    crops = load_model(path)
    assert crops.cut == (-6, 4)
    np.testing.assert_allclose(inside(crops, photo), plain, atol=1)  # of 255, by rounding
    # Faces that were found lay at the template, and were moved from there.
    put(path, shift=(6, -4), align=ALIGNED)
    assert load_model(path).cut == (0, 0)
    assert not np.array_equal(inside(load_model(path), photo), plain)
    points = Marked().faces(photo, "photo")[0][0]
    moved = align_face(photo, points, (112, 112), "photo", (6, -4))
    np.testing.assert_allclose(moved[12:100, 12:100], inside(load_model(path), photo), atol=1)


def holding(note: dict[str, Any], digest: str = "") -> Any:
    """Return a file that says this of itself."""
    return SimpleNamespace(note=note, sha256=digest)


def test_an_exported_file_brings_its_own(path: Path) -> None:
    put(path, point(0.9))
    worth = toy_calibration({}, flip=False).to_json()
    note = {"preprocessing": asdict(PIXELS), "alignment": "arcface", "thresholds": [point(0.3)]}
    more = {"score_calibration": worth, "faces": faces_json(refusing(np.ones(16)))}
    for extra in ({}, more):
        known, unused = find_calibration(path, holding(note | extra))
        assert known is not None and not unused and known.thresholds[0].threshold == 0.3
        assert known.flip is False
        assert (known.score_calibration is None) is (known.faces is None) is not extra
    known, _ = find_calibration(path, holding({"thresholds": []}, sha256(path)))
    assert known is not None and known.thresholds[0].threshold == 0.9
    damages = [{name: 7} for name in ("thresholds", "faces", "score_calibration")]
    damages += [{"thresholds": [each]} for each in ({}, point(0.3, flip=None))]
    for damage in (*damages, {"preprocessing": {}}, {"preprocessing": 7}):
        with pytest.raises(ModelError, match=r"model\.safetensors: "):
            find_calibration(path, holding(note | damage))
