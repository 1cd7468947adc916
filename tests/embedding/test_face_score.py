"""Which pictures a model knows as faces: the score by its definition, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.calibrations import faces_json
from helpers.toy_model import ToyModel, tile_means

from facerec.base.errors import FacerecError
from facerec.base.recipe import from_dict
from facerec.embedding import Embeddings, extract
from facerec.embedding.calibration import FaceScore
from facerec.embedding.face_score import _NEAR, FALSE_REFUSALS, SPOILT_WEIGHT, fit_face_score
from facerec.records.non_faces import SPOILT, without_face

SIDE = 56
FACE = np.random.default_rng(0).choice([-1.0, 1.0], 147)
"""What all faces of the toy share, by tile and channel."""


def drawn_faces(people: int = 60, images: int = 5) -> np.ndarray:
    generator = np.random.default_rng(1)
    own = np.repeat(FACE + 0.4 * generator.standard_normal((people, 147)), images, axis=0)
    tiles = 128 + 70 * (own + 0.2 * generator.standard_normal(own.shape))
    pixels = np.clip(tiles, 0, 255).astype(np.uint8).reshape(-1, 7, 7, 3)
    return pixels.repeat(SIDE // 7, axis=1).repeat(SIDE // 7, axis=2)


def model(length_of_others: float = 0.5) -> ToyModel:
    """Return a network that gives pictures without the face's pattern nearly one direction."""
    weight = np.random.default_rng(2).standard_normal((147, 16)) / 12

    def formula(pixels: np.ndarray) -> np.ndarray:
        tiles = tile_means(pixels)
        known = np.maximum(tiles @ FACE / 147 - 0.25, 0)[:, None]
        return known * 20 * (tiles @ weight) + length_of_others * (known < 0.1) * np.eye(16)[:1]

    return ToyModel(formula, SIDE)


def sample() -> np.ndarray:
    return drawn_faces()[::15]


def spread(values: Any) -> float:
    low, high = np.quantile(values, [0.159, 0.841])
    return (high - low) / 2


def fitted(network: ToyModel, spoilt: bool = True) -> tuple[FaceScore, np.ndarray]:
    faces = drawn_faces()
    vectors = extract(network, faces, flip=False).vectors
    some = sample() if spoilt else None
    return fit_face_score(network, vectors, flip=False, faces=some), vectors


@pytest.fixture(scope="module")
def known() -> tuple[FaceScore, np.ndarray]:
    return fitted(model())


def test_it_is_what_its_definition_says(known: tuple[FaceScore, np.ndarray]) -> None:
    score, vectors = known
    network, generator = model(), np.random.default_rng(0)

    def mean(pictures: Any) -> np.ndarray:
        rows = [network.embed(picture[None])[0].astype(float) for picture in pictures]
        return sum(row / np.linalg.norm(row) for row in rows) / len(rows)

    generated = without_face((SIDE, SIDE), generator).values()
    means = [sum(map(mean, generated))]
    for kind, spoil in SPOILT.items():
        if kind not in _NEAR:  # of the first half
            means.append(mean([spoil(face, generator) for face in sample()[:10]]))
    lengths = [float(np.linalg.norm(row)) for row in vectors]
    found = np.full(len(vectors), np.inf)
    for number, centre in enumerate(means):
        centre = centre / np.linalg.norm(centre)
        np.testing.assert_allclose(score.centres[number], centre, atol=1e-5)
        cosines = [float(v @ centre) / length for v, length in zip(vectors, lengths, strict=True)]
        away = (np.median(cosines) - cosines) / spread(cosines)
        found = np.minimum(found, away * (SPOILT_WEIGHT if number else 1))
    assert len(score.centres) == len(means) == 1 + len({*SPOILT} - {*_NEAR})
    np.testing.assert_allclose(score(vectors), found, atol=1e-3)
    refused = (score(vectors) < score.limit).sum()
    assert refused == int(FALSE_REFUSALS * (len(vectors) - 1)) and score.faces == len(vectors)
    assert score.limit in score(vectors)
    assert np.isnan(score(np.full((1, 16), np.nan))).all()


def test_it_refuses_pictures_without_a_face(known: tuple[FaceScore, np.ndarray]) -> None:
    score, _ = known
    assert set(score.power) == {"pictures without a face", *SPOILT}
    seen, of = score.power["pictures without a face"]
    assert seen == of and "pictures without a face" not in score.blind
    for pictures in without_face((SIDE, SIDE), np.random.default_rng(9)).values():
        assert (score(extract(model(), pictures, flip=False).vectors) < score.limit).all()
    # Upside down the toy's pattern is gone. The half that gave no centre tells.
    assert score.power["upside-down faces"] == (10, 10)
    assert all(kind in score.words for kind in score.power)


def test_without_faces_to_spoil_there_is_one_centre() -> None:
    score, _ = fitted(model(), spoilt=False)
    assert list(score.power) == ["pictures without a face"] and len(score.centres) == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"centres": [1.0, 1.0]},
        {"centres": [[1.0, 1.0]]},
        {"centres": []},
        {"cosines": [[0.1, 0.0]]},
        {"cosines": [0.1]},
        {"limit": float("inf")},
        {"faces": -1},
        {"power": {"cars": [3, 2]}},
    ],
)
def test_what_is_damaged_is_refused(
    known: tuple[FaceScore, np.ndarray], damage: dict[str, Any]
) -> None:
    good = faces_json(known[0])
    with pytest.raises((ValueError, FacerecError)):
        from_dict(FaceScore, good | damage, "a file")
    for name in good:
        with pytest.raises(FacerecError, match=name):
            from_dict(FaceScore, {each: good[each] for each in good if each != name}, "a file")


def test_embeddings_below_the_limit_can_be_left_out() -> None:
    vectors = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    scores = np.array([3, -2, np.nan, -1, 0.5], np.float32)
    vectors[2] = np.nan
    norms = np.linalg.norm(vectors, axis=1)
    failures, note = {2: "no face"}, {"face_limit": -1.0}
    found = Embeddings(vectors, norms, True, failures=failures, face_scores=scores, note=note)
    assert found.unlike.tolist() == [False, True, False, False, False] and found.face_limit == -1
    kept = found.without_unlike()
    assert list(kept.failures) == [2, 1] and np.isnan(kept.vectors[[1, 2]]).all()
    assert np.isnan(kept.norms[1]) and "-2.0" in kept.failures[1]
    np.testing.assert_array_equal(kept.vectors[[0, 3, 4]], vectors[[0, 3, 4]])
    assert np.isfinite(found.vectors[1]).all() and kept.without_unlike().failures == kept.failures
    for other in ({}, {"face_limit": "low"}):
        plain = Embeddings(vectors, norms, True, face_scores=scores, note=other)
        assert plain.face_limit is None and not plain.unlike.any()
        assert plain.without_unlike() is plain
