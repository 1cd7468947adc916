"""Transforms: exact geometry, the same pixels in every arm, batches as single images."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import torch

from facerec.base.errors import ImageError
from facerec.comparison import transforms
from facerec.comparison.image_sets import ImageData, ImageSet, open_image_set
from facerec.comparison.transforms import (
    BatchReader,
    CropTransform,
    FaceTransform,
    Transform,
    _random_box,
)
from facerec.records import Augmentation

LIVELY = Augmentation(0.5, 0.5, 0.5, 0.5, 0.5)
PLAIN = Augmentation(flip=0.0)
BOTH = (FaceTransform(32, LIVELY), CropTransform(40, 24, 0.16, 1.0, "area"))


def photo(seed: int, height: int, width: int) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    root = tmp_path_factory.mktemp("faces")
    for i in range(12):
        path = root / f"p{i // 3}" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(cv2.imencode(".png", photo(i, 32, 32))[1].tobytes())
    return open_image_set(ImageData(root))


# ---- geometry --------------------------------------------------------------------------------


def sides(crop: CropTransform, height: int, width: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    boxes = [_random_box(height, width, crop, generator) for _ in range(4000)]
    return np.array([math.sqrt((r.stop - r.start) * (c.stop - c.start)) for r, c in boxes])


def test_the_crop_trap() -> None:
    """A share of 0.16 is a side of 102 pixels of 256, where the text says 40."""
    assert 39 <= sides(CropTransform(), 256, 256).min() < 45
    assert 102 <= sides(CropTransform(256, 227, 0.16, 1.0, "area"), 256, 256).min() < 110


def test_sizes_are_uniform_in_side_and_in_area() -> None:
    # On a large image every box fits, so none is drawn again and the law shows.
    side = sides(CropTransform(), 2000, 2000)
    np.testing.assert_allclose(np.quantile(side, [0.25, 0.5, 0.75]), [94, 148, 202], atol=5)
    area = sides(CropTransform(256, 227, 0.16, 0.5, "area"), 2000, 2000) ** 2 / 2000**2
    np.testing.assert_allclose(
        np.quantile(area, [0.25, 0.5, 0.75]), [0.245, 0.33, 0.415], atol=0.01
    )


def test_a_training_crop_is_a_scaled_part_of_the_image() -> None:
    # Red is the column and green the row, so a crop tells where it was taken.
    image = np.zeros((256, 256, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(256), np.arange(256)[:, None]
    crop = CropTransform(smallest=100, largest=200, augmentation=PLAIN).train(image, 1, 2, 3)
    assert crop.shape == (227, 227, 3)
    columns, rows = crop[113, :, 0].astype(int), crop[:, 113, 1].astype(int)
    for ramp in (columns, rows):
        assert (np.diff(ramp) >= 0).all()
        assert 80 <= ramp[-1] - ramp[0] + 1 <= 232
    flipped = CropTransform(smallest=100, largest=200, augmentation=Augmentation(flip=1.0))
    np.testing.assert_array_equal(flipped.train(image, 1, 2, 3), crop[:, ::-1])


# ---- pixels ----------------------------------------------------------------------------------


def test_faces_are_shrunk_by_averaging() -> None:
    image = photo(3, 24, 24)
    found = FaceTransform(6, shrink=4).prepare(image, "x.png")
    blocks = image.reshape(6, 4, 6, 4, 3).astype(np.float64).mean(axis=(1, 3))
    assert found.shape == (6, 6, 3)
    assert np.abs(found - blocks).max() <= 0.5
    with pytest.raises(ImageError, match=r"24×24 \(height×width\) where 28×28 is needed"):
        FaceTransform(7, shrink=4).prepare(image, "x.png")


# ---- batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", BOTH)
@pytest.mark.parametrize("cache_bytes", [0, 10_000, 1 << 30])
def test_a_batch_is_its_images_one_by_one(
    faces: ImageSet, transform: Transform, cache_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transforms, "_CACHE_BYTES", cache_bytes)
    reader = BatchReader(faces, transform)
    batches = [np.array([3, 0, 11, 7]), np.array([7, 5, 1, 2])]
    for epoch in range(2):
        for positions in batches:
            batch = reader.train(positions, 5, epoch)
            assert batch.dtype == torch.uint8
            assert batch.shape == (4, transform.size, transform.size, 3)
            for row, position in zip(batch.numpy(), positions.tolist(), strict=True):
                prepared = transform.prepare(faces.read(position), "x")
                np.testing.assert_array_equal(row, transform.train(prepared, 5, epoch, position))
    scored = list(reader.evaluate(np.arange(12), 5))
    assert [len(batch) for batch in scored] == [5, 5, 2]
    for row, position in zip(torch.cat(scored).numpy(), range(12), strict=True):
        prepared = transform.prepare(faces.read(position), "x")
        np.testing.assert_array_equal(row, transform.evaluate(prepared))
    assert sum(image.nbytes for image in reader._cache.values()) <= cache_bytes
    assert len(reader._cache) == {0: 0, 1 << 30: 12}.get(cache_bytes, len(reader._cache))


@pytest.mark.parametrize("transform", BOTH)
def test_two_views_differ_and_the_first_is_that_of_one_view(
    faces: ImageSet, transform: Transform
) -> None:
    reader = BatchReader(faces, transform)
    positions = np.arange(12)
    first, second = reader.train(np.tile(positions, 2), 0, 0).chunk(2)
    assert torch.equal(first, reader.train(positions, 0, 0))
    changed = (first != second).flatten(1).any(1)
    assert changed.sum() >= 6  # a face may by chance be left alone twice
