"""Comparisons on features of a frozen network: what is read, and by how many processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facerec.base.errors import DatasetError
from facerec.commands.compare import main
from facerec.comparison import FeatureData
from facerec.comparison.features import open_features
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import write_embeddings

CLASSES, IMAGES, SIZE = 16, 6, 12
LABELS = np.arange(1, CLASSES + 1).repeat(IMAGES)
IDS = np.array([f"{label}/{i}.jpg" for label in range(CLASSES) for i in range(IMAGES)])


def draw(seed: int = 0, noise: float = 2.0) -> Any:
    """Return features ``(96, 12)`` around a direction for each class."""
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(CLASSES, SIZE))
    return centers[LABELS - 1] + noise * generator.normal(size=(len(LABELS), SIZE))


def write(path: Path, **changes: Any) -> Path:
    arrays = {"features": draw().astype(np.float16), "labels": LABELS, "images": IDS}
    arrays = {name: each for name, each in (arrays | changes).items() if each is not None}
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("features") / "cars.npz")


# ---------------------------------------------------------------- what is read


def test_features_are_read_as_float32_in_the_order_of_class_numbers(path: Path) -> None:
    found = open_features(FeatureData(path))
    assert found.features.dtype == np.float32 and found.features.shape[1] == SIZE
    assert np.array_equal(found.features, draw().astype(np.float16).astype(np.float32))
    assert found.class_names == [str(k) for k in range(1, 17)]  # 10 comes after 9
    assert np.array_equal(found.labels, LABELS - 1)
    assert found.ids.tolist() == IDS.tolist() and found.notes == []
    assert found.fingerprint()["files"][0]["sha256"]


def test_an_embeddings_file_serves(tmp_path: Path) -> None:
    """As `facerec embed` writes it; who was not acquired or has no name is left out and told."""
    vectors = draw().astype(np.float32)
    vectors[3] = np.nan
    subjects = np.array([f"person {k:02d}" for k in LABELS])
    subjects[10] = ""
    norms = np.linalg.norm(vectors, axis=1)
    file = tmp_path / "embeddings.npz"
    made = Embeddings(vectors, norms, True, IDS, subjects, failures={3: "no face"}, note={})
    write_embeddings(file, made)
    found = open_features(FeatureData(file))
    kept = np.delete(np.arange(len(IDS)), [3, 10])
    assert np.array_equal(found.features, vectors[kept])
    assert np.array_equal(found.labels, LABELS[kept] - 1)
    told = [re.findall("1 of 96 images have no (.*) and", note) for note in found.notes]
    assert told == [["features"], ["class"]]


def test_second_views_are_joined_by_image(path: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(len(IDS))
    other = draw(seed=5).astype(np.float32)
    second = write(tmp_path / "b.npz", features=other[order], images=IDS[order], labels=None)
    found = open_features(FeatureData(path, second))
    assert found.second_views is not None and np.array_equal(found.second_views, other)
    # Where a batch holds an image again, it is the second view.
    batch = np.array([4, 7, 4, 9, 7])
    read = found.train(batch, seed=0, epoch=0).numpy()
    expected = [found.features[4], found.features[7], other[4], found.features[9], other[7]]
    assert np.array_equal(read, expected)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("a.npz", {"labels": None}, "names no classes"),
        ("lfw.npz", {}, "verification bench"),
        ("a.npz", {"features": np.zeros((96, 3))}, "0 of 0 classes"),
        ("a.npz", {"labels": np.arange(96)}, "0 of 0 classes of two or more images"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, changes: Any, words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        open_features(FeatureData(write(tmp_path / name, **changes))).split(4, "kfold")


# ---------------------------------------------------------------- whole comparisons


RECIPE = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from helpers.tiny_comparison import comparison
recipe = comparison(Path("nowhere"), trials=1, repetitions=1)
"""


@pytest.mark.integration
def test_two_processes_compare_on_features_as_one_does(tmp_path: Path) -> None:
    """By a recipe for images, whose trunk is left out."""
    pytest.importorskip("optuna")
    recipe, features = tmp_path / "recipe.py", write(tmp_path / "cars.npz")
    recipe.write_text(RECIPE.format(tests=str(Path(__file__).parents[1])))
    tables = []
    for count in ("1", "2"):
        given = ["--features", str(features), "--processes", count]
        main([str(recipe), "--out", str(tmp_path / count), *given])
        tables.append((tmp_path / count / "table.csv").read_text())
    assert tables[0] == tables[1] and "untrained" in tables[0]
