"""Embedding, comparing and deciding through the one object that applications use."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.calibrations import model_calibration, point, refusing, toy_calibration
from helpers.marked_faces import Marked, marked_photo
from helpers.toy_files import encode, faces

import facerec
from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.base.errors import ImageError, ModelError
from facerec.embedding import TorchModel, extract, load_model, save_model
from facerec.embedding.align import MISPLACED, NotAcquiredError, displacement
from facerec.embedding.recognizer import FaceRecognizer, load
from facerec.verification import score_pairs

SMALL = Backbone("iresnet18", embedding_size=16, width=0.125)
ROWS = [point(0.31), point(0.2, "1e-2"), point(0.22, "1/100", "cfp_fp")]


def with_thresholds(*rows: Any) -> FaceRecognizer:
    model = TorchModel(create_backbone(SMALL, seed=1), Preprocessing(), name="mine")
    model.calibration = model_calibration(*rows)
    return FaceRecognizer(model)


@functools.cache
def in_memory() -> FaceRecognizer:
    return with_thresholds()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "first" / "model.safetensors"
    save_model(path, create_backbone(SMALL, seed=1), SMALL, Preprocessing("bgr"), {})
    return path


@pytest.fixture(scope="module")
def mine(path: Path) -> FaceRecognizer:
    return facerec.load(path, device="cpu", flip=False)


# --- embedding -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_arrays_and_lists_give_the_raw_embeddings_of_the_model(
    path: Path, mine: FaceRecognizer, count: int
) -> None:
    images = faces(count)
    expected = load_model(path).embed(images)
    for given_ in (images, list(images), tuple(images)):
        found = mine.embed(given_)
        assert found.shape == (count, 16) and found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
    for image, vector in zip(images, expected, strict=True):
        assert mine.embed(image).shape == (16,)
        np.testing.assert_allclose(mine.embed(image), vector, rtol=1e-4, atol=1e-5)


def test_flip_adds_the_mirror_image_as_verification_does(path: Path, mine: FaceRecognizer) -> None:
    images = faces(3)
    both = load(path, device="cpu", flip=True).embed(images)
    np.testing.assert_array_equal(both, extract(mine.model, images, flip=True).vectors)
    assert not np.allclose(both, mine.embed(images))
    # As every command does where nothing is said.
    np.testing.assert_array_equal(load(path, device="cpu").embed(images), both)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (faces(1)[0, :, :, 0], r"found uint8 \(112, 112\)"),
        (faces(2).astype(np.float32), r"image 0: .* found float32"),
        ([faces(1)[0], faces(1)[0, :100]], r"image 1: 100×112 .*detector"),
        ([faces(1)[0], np.zeros((112, 112, 4), np.uint8)], r"image 1: .*\(112, 112, 4\)"),
        (["face.jpg"], r"face\.jpg: cannot be read"),
        ([torch.zeros(112, 112, 3, dtype=torch.uint8)], "image 0: .* found torch.uint8"),
    ],
)
def test_images_that_do_not_fit(mine: FaceRecognizer, images: Any, sentence: str) -> None:
    with pytest.raises(ImageError, match=sentence) as caught:
        mine.embed(images)
    assert "\n" not in str(caught.value)


# --- similarity ------------------------------------------------------------------------------


def test_similarity_is_the_cosine_of_every_pair(mine: FaceRecognizer) -> None:
    a, b = mine.embed(faces(4, 1)), mine.embed(faces(3, 2))
    found = mine.similarity(a, b)
    assert found.shape == (4, 3) and found.dtype == np.float32
    for i, left in enumerate(a.astype(float)):
        for j, right in enumerate(b.astype(float)):
            cosine = sum(left * right) / (sum(left**2) * sum(right**2)) ** 0.5
            assert found[i, j] == pytest.approx(cosine, abs=1e-7)
            assert mine.similarity(a[i], b[j]).shape == ()
            assert mine.similarity(a[i], b[j]) == pytest.approx(cosine, abs=1e-7)
    np.testing.assert_allclose(mine.similarity(a, b[1]), found[:, 1], rtol=1e-6)
    np.testing.assert_allclose(mine.similarity(a[2], b), found[2], rtol=1e-6)
    assert mine.similarity(a[:0], b).shape == (0, 3)
    # ‖a − b‖² = 2 − 2·cosine for unit vectors.
    units = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (a, b)]
    distances = ((units[0][:, None] - units[1]) ** 2).sum(axis=2)
    np.testing.assert_allclose(distances, 2 - 2 * found, atol=1e-5)


# --- deciding --------------------------------------------------------------------------------


def test_verify_with_a_given_threshold(mine: FaceRecognizer) -> None:
    a, b = faces(2)
    similarity = float(mine.similarity(a, b))
    at = mine.verify(a, b, similarity)
    above = mine.verify(mine.embed(a), b, np.nextafter(similarity, 2))
    assert at.similarity == above.similarity == similarity
    assert at.same is True and above.same is False  # accept at or above
    assert at.threshold == similarity and at.source == "given"
    with pytest.raises(AttributeError):
        at.same = False  # type: ignore[misc]


def test_a_threshold_found_in_verification_decides_alike() -> None:
    """A float32 score at the threshold is accepted, as it was when the threshold was chosen."""
    mine = in_memory()
    vectors = np.random.default_rng(0).normal(size=(60, 16)).astype(np.float32)
    scores = score_pairs(vectors, np.arange(30), np.arange(30, 60))
    for i, score in enumerate(scores):
        assert mine.verify(vectors[i], vectors[30 + i], float(score)).same


def test_verify_with_the_thresholds_of_the_model() -> None:
    mine = with_thresholds(*ROWS)
    assert str(mine.thresholds[0]) == "FPR 1e-3 on lfw" and not mine.flip
    a, b = np.eye(16)[:2]
    result = mine.verify(a, 0.4 * a + 0.9 * b)
    assert result.threshold == 0.31 and result.same is True
    assert result.source == "FPR 1e-3 on lfw"
    assert result.similarity == pytest.approx(0.4 / np.hypot(0.4, 0.9))
    for fpr in ("0.001", 1e-3, "1/1000"):
        assert mine.verify(a, b, fpr=fpr).threshold == 0.31
    assert mine.verify(a, b, fpr="1e-2", bench="cfp_fp").threshold == 0.22
    assert mine.verify(a, b, 0.9, fpr="1e-3").source == "given"


def test_without_an_fpr_the_model_s_own_thresholds_serve() -> None:
    a = b = np.ones(16)
    # 1e-3 where it is known, else the lowest FPR.
    assert with_thresholds(*ROWS).threshold() == with_thresholds(*ROWS).threshold("1e-3")
    assert with_thresholds(ROWS[1]).verify(a, b).source == "FPR 1e-2 on lfw"
    higher = {**ROWS[1], "fpr": "1e-1"}
    assert with_thresholds(*ROWS[1:], higher).threshold(bench="lfw").fpr == "1e-2"
    for known, words in (
        (ROWS[1:], "has 2 thresholds .*lfw, .*cfp_fp"),
        ((), "which are none"),
    ):
        with pytest.raises(ModelError, match=words):
            with_thresholds(*known).threshold()


@pytest.mark.parametrize(
    ("fpr", "bench", "sentence"),
    [
        ("1e-2", None, "FPR 1e-2 on any bench: it has 2 .*, FPR 1e-3 on lfw, FPR 1e-2"),
        ("1e-5", None, "no thresholds .*FPR 1/100 on cfp_fp"),
        ("1e-3", "cfp_fp", "on cfp_fp: it has no thresholds"),
    ],
)
def test_thresholds_that_are_not_known(fpr: str, bench: str | None, sentence: str) -> None:
    with pytest.raises(ModelError, match=f"^mine, .*{sentence}"):
        with_thresholds(*ROWS).verify(np.ones(16), np.ones(16), fpr=fpr, bench=bench)


# --- pictures that are no faces --------------------------------------------------------------


def refusing_first(unchecked: bool = False) -> FaceRecognizer:
    """Return a recognizer that knows the first of some pictures as no face."""
    mine = with_thresholds(*ROWS)
    faces_ = refusing(mine.embed(faces(1)[0]))
    mine.model.calibration = model_calibration(
        *ROWS, faces=faces_, score_calibration=toy_calibration({})
    )
    return FaceRecognizer(mine.model, unchecked=unchecked)


def test_there_is_no_decision_on_a_picture_that_is_no_face() -> None:
    one, other, third = faces(3)
    mine, unchecked = refusing_first(), refusing_first(unchecked=True)
    vector = mine.embed(one)
    for sides in ((one, other), (other, one), (vector, other), (vector, vector)):
        answer, anyway = mine.verify(*sides), unchecked.verify(*sides)
        assert answer.same is answer.evidence is None and str(answer).startswith("no decision")
        assert len(answer.unknown) == (2 if sides[0] is sides[1] else 1)
        assert answer.similarity == anyway.similarity and answer.threshold == 0.31
        assert anyway.same is (anyway.similarity >= 0.31) and not anyway.unknown
        assert anyway.evidence is not None and anyway.face_scores == answer.face_scores
    assert answer.face_scores == pytest.approx([-1, -1])
    known = mine.verify(other, third)
    assert known.same is not None and known.evidence is not None and not known.unknown
    for score, side in zip(known.face_scores, (other, third), strict=True):
        cosine = mine.similarity(vector, side)
        assert score == mine.face_score(mine.embed(side)) == pytest.approx(-cosine, abs=1e-6)
    assert in_memory().verify(one, other).face_scores == (None, None)


def test_find_marks_what_is_no_face_and_looks_for_none(tmp_path: Path) -> None:
    for name, image in zip("abc", faces(3), strict=True):
        (tmp_path / f"{name}.png").write_bytes(encode(image))
    mine, unchecked = refusing_first(), refusing_first(unchecked=True)
    found = {item.image: item for item in facerec.find(faces(2)[1], tmp_path, model=mine)}
    assert found["a.png"].same is None and "does not look like" in found["a.png"].note
    assert found["b.png"].same is True and found["c.png"].same is not None
    assert found["a.png"].face_score == pytest.approx(-1) and not found["c.png"].note
    with pytest.raises(NotAcquiredError, match="does not look like"):
        facerec.find(faces(1)[0], tmp_path, model=mine)
    assert facerec.find(faces(1)[0], tmp_path, model=unchecked)[0].same is True


def test_a_crop_whose_face_lies_elsewhere_gets_no_decision() -> None:
    mine = with_thresholds(*ROWS)
    mine.detector = Marked()
    here, there = (marked_photo((1, x, 0, 1), height=112, width=112) for x in (0, 12))
    far = displacement(mine.detector, there)
    assert far is not None and far > MISPLACED and displacement(mine.detector, here) < MISPLACED
    answer = mine.verify(here, there)
    assert answer.same is None and len(answer.unknown) == 1 and "photo b" in answer.unknown[0]
    assert mine.misplaced(faces(1)[0], "x") == ""  # there is no face to be seen
    assert FaceRecognizer(mine.model, unchecked=True).misplaced(there, "x") == ""


# --- the contract ----------------------------------------------------------------------------


def test_the_contract_changes_with_what_changes_embeddings(path: Path, tmp_path: Path) -> None:
    base = load(path, device="cpu")
    assert base.contract is not None and base.contract.startswith("facerec-1-")
    assert load(path, device="cpu", precision="bf16", batch_size=2).contract == base.contract
    copy = tmp_path / "elsewhere.safetensors"
    copy.write_bytes(path.read_bytes())
    assert load(copy, device="cpu").contract == base.contract
    save_model(copy, create_backbone(SMALL, seed=2), SMALL, Preprocessing("bgr"), {})
    others = [load(copy, device="cpu"), load(path, device="cpu", flip=False)]
    assert len({base.contract, *(other.contract for other in others)}) == 3
    assert in_memory().contract is None
    assert " on cpu, fp32, 16 dimensions" in repr(base)
