from __future__ import annotations

import numpy as np
import pytest

from facerec.backbones import Preprocessing, create_backbone
from facerec.embedding import Embeddings, TorchModel, extract
from facerec.errors import ImageError


def faces(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 112, 112, 3), dtype=np.uint8)


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


def test_without_flip_the_embeddings_are_the_models_own(model: TorchModel) -> None:
    images = faces(3)
    found = extract(model, images, flip=False)
    np.testing.assert_array_equal(found.vectors, model.embed(images))
    np.testing.assert_allclose(found.norms, np.sqrt((found.vectors**2).sum(axis=1)), rtol=1e-6)
    assert found.flip is False


def test_sequences_functions_and_arrays_are_alike(model: TorchModel) -> None:
    images = faces(4)
    asked: list[int] = []
    steps: list[int] = []

    def fetch(i: int) -> np.ndarray:
        asked.append(i)
        return images[i]

    expected = extract(model, images, flip=True)
    for given, count in ((list(images), None), (fetch, 4)):
        found = extract(model, given, count, flip=True, batch_size=3, progress=steps.append)
        np.testing.assert_array_equal(found.vectors, expected.vectors)
        np.testing.assert_array_equal(found.norms, expected.norms)
    assert asked == [0, 1, 2, 3]
    assert steps == [3, 1, 3, 1]
    np.testing.assert_array_equal(
        extract(model, images, 2, flip=True).vectors, expected.vectors[:2]
    )
    with pytest.raises(TypeError, match="needs count"):
        extract(model, fetch, flip=True)


def test_nothing_gives_nothing(model: TorchModel) -> None:
    found = extract(model, [], flip=True)
    assert found.vectors.shape == (0, 16) and found.norms.shape == (0,)


def test_a_wrong_image_is_named(model: TorchModel) -> None:
    images = [*faces(2), faces(1)[0][:96]]
    with pytest.raises(ImageError, match=r"image 2: .*found uint8 of shape \(96, 112, 3\)"):
        extract(model, images, flip=False)


def test_embeddings_do_not_change(model: TorchModel) -> None:
    found = extract(model, faces(1), flip=False)
    with pytest.raises(AttributeError):
        found.flip = True  # type: ignore[misc]
    assert isinstance(found, Embeddings)
