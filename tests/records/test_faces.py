"""Drawn faces: no photo is empty, each depends on its seed alone, and people differ."""

from __future__ import annotations

import numpy as np

from facerec.records.faces import DrawnFace, draw_circumstances


def test_no_photo_is_empty_and_none_depends_on_where_its_arrays_lie() -> None:
    for index in range(30):
        photos = []
        for _ in range(2):
            generator = np.random.default_rng([11, index])
            face = DrawnFace(generator)
            held = np.empty(index * 1001, np.uint8)  # pushes what follows to other addresses
            how = draw_circumstances(("everyday", "profile", "training")[index % 3], 40, generator)
            photos.append(face.photo(how, generator))
            del held
        assert photos[0].shape == (112, 112, 3) and photos[0].dtype == np.uint8
        assert photos[0].tobytes() == photos[1].tobytes(), index
        assert photos[0].std() > 8, index
        assert photos[0][30:90, 30:80].mean() > 15, index


def test_photos_of_one_subject_are_closer_than_photos_of_two() -> None:
    photos = []
    for index in range(12):
        face = DrawnFace(np.random.default_rng([7, index]))
        for number in range(3):
            generator = np.random.default_rng([index, number])
            photos.append(face.photo(draw_circumstances("everyday", 40, generator), generator))
    # The inner face only, without each image's mean: backgrounds and exposure say nothing.
    faces = np.array(photos, np.float32)[:, 24:104, 24:88].reshape(36, -1)
    faces = faces - faces.mean(axis=-1, keepdims=True)
    distance = np.linalg.norm(faces[:, None] - faces[None], axis=-1)
    same = np.kron(np.eye(12, dtype=bool), np.ones((3, 3), bool))
    within = distance[same & ~np.eye(36, dtype=bool)].mean()
    assert within < 0.9 * distance[~same].mean()
