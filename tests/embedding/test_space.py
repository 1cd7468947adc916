from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from facerec.base.errors import ModelError
from facerec.embedding.extraction import Embeddings
from facerec.embedding.space import Space

ABOUT = {"name": "mine", "path": "runs/a/model.onnx", "sha256": "a" * 64}
ABOUT |= {"preprocessing": {"channels": "rgb", "mean": 127.5, "std": (1.0, 2.0, 3.0)}}
KNOWN = Space.of_model(ABOUT, True, 4)


@pytest.mark.parametrize(
    ("change", "flip", "size", "words"),
    [
        (
            {"name": "b", "path": "b.onnx", "sha256": "b"},
            True,
            4,
            r"r model, .*mine \(runs.*b \(b.onnx\)",
        ),
        ({"preprocessing": {"channels": "bgr"}}, True, 4, "another preprocessing, .* of mine"),
        ({}, False, 4, "another flip, True .* False"),
        ({}, True, 8, "another embedding_size, 4 .* 8"),
    ],
)
def test_what_is_known_to_differ_is_refused_for_every_purpose(
    change: dict[str, Any], flip: bool, size: int, words: str
) -> None:
    other = Space.of_model(ABOUT | change, flip, size)
    for asked in (KNOWN.compare, KNOWN.check):
        with pytest.raises(ModelError, match=words):
            asked(other, "a.npz and b.npz")


@pytest.mark.parametrize(
    ("about", "flip", "words"),
    [
        (None, True, "model, preprocessing"),
        ("a model", None, "model, preprocessing, flip"),
        (ABOUT | {"sha256": None}, True, "same model is"),
    ],
)
def test_what_one_side_does_not_know_is_told_and_decides_on_nobody(
    about: Any, flip: bool | None, words: str
) -> None:
    unknown = Space.of_model(about, flip, 4)
    for one, other in ((KNOWN, unknown), (unknown, KNOWN), (unknown, unknown)):
        assert words in one.compare(other, "a.npz and b.npz")
    for one, other, whose in ((KNOWN, unknown, "gallery"), (unknown, KNOWN, "images")):
        with pytest.raises(ModelError, match=f"known of the {whose} alone"):
            one.check(other, "b.npz")
    unknown.check(unknown, "b.npz")


def test_a_space_is_equal_to_itself_from_a_file_and_under_another_name() -> None:
    said = {"model": ABOUT | {"path": "elsewhere", "preprocessing": dict(ABOUT["preprocessing"])}}
    vectors = np.ones((2, 4), np.float32)
    made = Space.of(Embeddings(vectors, vectors[:, 0], True, note=said))
    assert made == KNOWN and not KNOWN.compare(replace(made, embedding_size=0), "both")
    KNOWN.check(made, "b.npz")
    assert made.contract((112, 112)) == KNOWN.contract((112, 112)) is not None
    assert Space.of_model(None, True, 4).contract((112, 112)) is None
