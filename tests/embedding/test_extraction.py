from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from helpers.calibrations import model_calibration, refusing
from helpers.toy_files import encode, faces, png_header
from helpers.toy_model import ToyModel

import facerec
from facerec.backbones import Preprocessing, create_backbone
from facerec.base.errors import DatasetError, ImageError, RecordError
from facerec.embedding import TorchModel, extract
from facerec.embedding.align import Aligner, NotAcquiredError, align_face, face_template
from facerec.embedding.extraction import Embeddings, constant, embed_images, image_digest
from facerec.records.images import FolderImages, MemoryImages


@pytest.fixture(scope="module")
def model() -> TorchModel:
    backbone = create_backbone("iresnet18", width=0.125, embedding_size=16, seed=1)
    return TorchModel(backbone, Preprocessing(), batch_size=1)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
def test_flip_is_the_sum_of_raw_embeddings(model: TorchModel, batch_size: int) -> None:
    images = faces(5)
    found = extract(model, images, flip=True, batch_size=batch_size)
    assert found.flip is True
    assert found.vectors.dtype == found.norms.dtype == np.float32
    for i, image in enumerate(images):
        mirrored = np.stack([[row[::-1] for row in image]])
        straight, mirror = model.embed(image[None])[0], model.embed(mirrored)[0]
        assert not np.allclose(straight, mirror)
        np.testing.assert_array_equal(found.vectors[i], straight + mirror)
        norms = np.linalg.norm(straight), np.linalg.norm(mirror)
        assert found.norms[i] == pytest.approx(sum(norms) / 2, rel=1e-6)
    # The mean norm of the views is not the norm of their sum.
    assert np.all(2 * found.norms > np.linalg.norm(found.vectors, axis=1))


# --- from encoded images ---------------------------------------------------------------------


def source(images: Sequence[np.ndarray]) -> MemoryImages:
    return MemoryImages("faces", [f"{i}.png" for i in range(len(images))], [*map(encode, images)])


def cut(image: np.ndarray) -> bytes:
    return cv2.imencode(".jpg", image)[1].tobytes()[:500]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_encoded_images_are_embedded_as_their_pixels(
    model: TorchModel, flip: bool, batch_size: int
) -> None:
    images, steps = faces(7), []
    how = {"flip": flip, "batch_size": batch_size}
    progress = {"progress": lambda *now: steps.append(now[1:])}
    found = embed_images(model, source(images), **how, **progress)
    expected = extract(model, images, **how)
    np.testing.assert_array_equal(found.vectors, expected.vectors)
    np.testing.assert_array_equal(found.norms, expected.norms)
    assert found.ids is not None and found.ids.tolist() == [f"{i}.png" for i in range(7)]
    assert (found.flip, found.failures, found.subjects) == (flip, {}, None)
    assert steps[0] == (min(batch_size, 7), 7) and steps[-1] == (7, 7)
    about = {"facerec": facerec.__version__, "model": model.describe(), "align": None}
    assert found.note == about | how


class Damaged(MemoryImages):
    """Its first record is damaged, which is known only when it is read."""

    def encoded(self, i: int) -> bytes:
        if i == 0:
            raise RecordError("train.rec, key 1: damaged")
        return super().encoded(i)


def test_images_that_do_not_decode(model: TorchModel) -> None:
    images = faces(8)
    given = source(images)
    contents = [*given.contents]
    contents[2], contents[5] = png_header(50_000, 50_000), cut(images[5])
    contents[6] = encode(images[6][:96])
    broken = Damaged("faces", given.ids.tolist(), contents)
    found = embed_images(model, broken, flip=True, batch_size=4, on_error="skip")
    assert list(found.failures) == [0, 2, 5, 6]
    assert found.failures[0] == "train.rec, key 1: damaged"
    assert found.failures[2].startswith("faces, image 2.png: ")
    assert "limit of" in found.failures[2]
    assert "lacks its end marker" in found.failures[5]
    assert "96×112" in found.failures[6]
    failed = np.isin(np.arange(8), [0, 2, 5, 6])
    assert np.isnan(found.vectors[failed]).all() and np.isnan(found.norms[failed]).all()
    # The others are what they would be without the failures, bit for bit.
    expected = embed_images(model, given, flip=True, batch_size=4)
    np.testing.assert_array_equal(found.vectors[~failed], expected.vectors[~failed])
    np.testing.assert_array_equal(found.norms[~failed], expected.norms[~failed])
    # By default the first one ends the work.
    with pytest.raises(RecordError, match=r"train\.rec, key 1: damaged"):
        embed_images(model, broken, flip=True)
    with pytest.raises(ImageError, match=r"^faces, image 2\.png: .*limit of"):
        embed_images(model, broken, flip=True, indices=[1, 2, 5])


def test_a_path_out_of_the_folder_is_an_error_in_any_case(
    model: TorchModel, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(encode(faces(1)[0]))
    (tmp_path / "b.png").write_bytes(encode(faces(1)[0]))
    (tmp_path / "in" / "b.png").symlink_to(tmp_path / "b.png")
    images = FolderImages(tmp_path / "in", ["a.png", "b.png", "gone.png"])
    with pytest.raises(DatasetError, match="leads out of its folder"):
        embed_images(model, images, flip=True, on_error="skip")
    found = embed_images(model, images, flip=True, on_error="skip", indices=[0, 2])
    assert "gone.png: cannot be read" in found.failures[1]


class Centre(Aligner):
    """Knows where the face is in all photos but one."""

    def __init__(self, points: np.ndarray) -> None:
        self.points = points

    def faces(self, image: np.ndarray, where: str, image_id: str = "") -> Any:
        if image_id == "2.png":
            raise NotAcquiredError(f"{where}: no face")
        return (self.points + (np.nan if image_id == "3.png" else 0))[None], np.zeros((1, 4))

    def choose(self, *where: Any) -> Any:
        return super().choose(*where)[0], f"several on {where[-1]}"

    def describe(self) -> dict[str, Any]:
        return {"method": "centre"}


@pytest.mark.parametrize("on_error", ["error", "skip"])
def test_photos_are_aligned_and_those_without_a_face_counted(
    model: TorchModel, on_error: Any
) -> None:
    photos = [np.pad(image, [(20 + i, 9), (30, 4), (0, 0)]) for i, image in enumerate(faces(5))]
    points = face_template() * 0.9 + (31.0, 27.5)
    found = embed_images(
        model, source(photos), flip=True, align=Centre(points), on_error=on_error, batch_size=3
    )
    assert [*found.failures] == [2, 3] and found.failures[2] == "faces, image 2.png: no face"
    assert "image 3.png: no face can be cut out" in found.failures[3]
    assert found.note["align"] == {"method": "centre"}
    assert found.several == {row: f"several on {row}.png" for row in (0, 1, 4)}
    assert found.digests is not None and found.digests[0] == image_digest(encode(photos[0]))
    assert [*np.flatnonzero(found.digests == b"")] == [2, 3]
    crops = np.stack([align_face(photo, points) for photo in photos])
    expected = extract(model, crops, flip=True, batch_size=3)
    kept = [0, 1, 4]
    np.testing.assert_array_equal(found.vectors[kept], expected.vectors[kept])
    assert np.isnan(found.vectors[[2, 3]]).all()


def brightness(images: np.ndarray) -> np.ndarray:
    return images.mean(axis=(1, 2))


def logarithm(images: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(brightness(images))


@pytest.mark.parametrize("network", [logarithm, brightness])
def test_an_embedding_of_no_direction_is_a_failure(network: Any) -> None:
    images = faces(4)
    images[[1, 3]] = 0
    found = embed_images(ToyModel(network), source(images), flip=True, batch_size=2)
    assert [*found.failures] == [1, 3]
    assert found.failures[1] == "faces, image 1.png: its embedding is zero or not finite"
    assert np.isnan(found.vectors[[1, 3]]).all() and np.isnan(found.norms[[1, 3]]).all()
    assert found.vectors[[0, 2]].all()


def test_face_scores_are_those_of_the_calibration() -> None:
    model, images = ToyModel(brightness), faces(4)
    images[1] = 0
    known = refusing(brightness(images)[0])
    model.calibration = model_calibration(faces=known)
    found = embed_images(model, source(images), flip=True)
    assert found.face_scores is not None and np.isnan(found.face_scores[1])
    np.testing.assert_array_equal(found.face_scores, known(found.vectors))
    # Grey noise points as the first does.
    assert found.face_limit == known.limit and found.unlike.tolist() == [True, False, True, True]
    assert [*found.without_unlike().failures] == [1, 0, 2, 3]


def embeddings(rows: Any) -> Embeddings:
    vectors = np.array(rows, np.float32)
    return Embeddings(vectors, np.linalg.norm(vectors, axis=1), flip=False)


def test_embeddings_that_all_point_the_same_way() -> None:
    direction, other = np.random.default_rng(0).normal(size=(2, 16))
    nothing = [np.full(16, np.nan), np.zeros(16)]
    alike = [*nothing, direction, 3 * direction, *nothing, direction, direction + 1e-5 * other]
    sentence = constant(embeddings(alike))
    assert sentence is not None and "4 embeddings" in sentence
    assert constant(embeddings([*alike, *nothing, -direction])) is None
    assert constant(embeddings([*alike, direction + 0.01 * other])) is None
    assert constant(embeddings([*nothing, direction])) is None
    assert constant(embeddings(np.empty((0, 16)))) is None


def test_at_most_two_batches_are_decoded_ahead(model: TorchModel) -> None:
    read: list[int] = []

    class Counting(MemoryImages):
        def encoded(self, i: int) -> bytes:
            read.append(i)
            return super().encoded(i)

    images = faces(12)
    given = source(images)
    counting = Counting("faces", given.ids.tolist(), given.contents)
    most: list[int] = []

    def progress(doing: str, done: int, total: int) -> None:
        most.append(len(read) - done)

    embed_images(model, counting, flip=False, batch_size=2, progress=progress)
    assert sorted(read) == list(range(12)) and max(most) <= 4
