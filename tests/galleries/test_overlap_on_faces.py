"""Overlap of two halves of real people's photos, by a published network."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from facerec.embedding import Embeddings, embed_images, load_model
from facerec.galleries import find_overlap
from facerec.records import Data, open_dataset

DATA = Path(__file__).parents[3] / "shared/data"


@pytest.mark.slow
def test_people_in_both_halves_of_real_photos_are_found() -> None:
    if not (DATA / "teacher/MobileFaceNet.onnx").is_file():
        pytest.skip("needs the network and the photos of ../shared/data")
    dataset = open_dataset(Data(DATA / "cfp_train"), seed=0)
    # Six images each of 120 people: 40 in both sets with three each, 40 in one of them alone.
    rows = np.concatenate([np.flatnonzero(dataset.labels == who)[:6] for who in range(120)])
    model = load_model(DATA / "teacher/MobileFaceNet.onnx", device="cpu", std=128.0)
    faces = embed_images(model, dataset, flip=False, indices=rows)
    people, place = dataset.labels[rows], np.arange(len(rows)) % 6

    def side(chosen: np.ndarray) -> Embeddings:
        return replace(
            faces,
            vectors=faces.vectors[chosen],
            norms=faces.norms[chosen],
            ids=dataset.ids[rows][chosen],
            subjects=people[chosen].astype(str),
        )

    a = side((people < 80) & ((people >= 40) | (place % 2 == 0)))
    b = side((people >= 80) | ((people < 40) & (place % 2 == 1)))
    found = find_overlap(a, b)
    proposed = {int(found.a.names[match.person]) for match in found.matches}
    right = len(proposed & set(range(40)))
    assert right / 40 >= 0.95
    assert right / len(proposed) >= 0.95
