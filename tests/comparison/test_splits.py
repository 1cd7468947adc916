"""Splits of classes: disjoint, complete, and numbered as the two sources do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import KFold

from facerec.base.errors import DatasetError
from facerec.comparison.splits import Numbering, select_classes, split_classes


def published(num_classes: int, folds: int) -> list[tuple[list[int], list[int]]]:
    """The authors' rule, by walking: fold k starts at ⌊kD/K⌋, trains, then validates."""
    half = num_classes // 2
    validation = num_classes // (2 * folds)
    found = []
    for k in range(folds):
        walk = [(int(k / folds * half) + step) % half for step in range(half)]
        found.append((sorted(walk[: half - validation]), sorted(walk[half - validation :])))
    return found


@pytest.mark.parametrize("num_classes", [8, 196, 200])
def test_kfold_is_that_of_scikit_learn(num_classes: int) -> None:
    split = split_classes(num_classes, 4, "kfold")
    half = np.arange(num_classes // 2)
    for fold, (train, validation) in zip(split.folds, KFold(4).split(half), strict=True):
        np.testing.assert_array_equal(fold.train, train)
        np.testing.assert_array_equal(fold.validation, validation)
    np.testing.assert_array_equal(split.test, np.arange(num_classes // 2, num_classes))


@pytest.mark.parametrize("num_classes", [8, 9, 196, 200, 22634])
def test_mlrc_is_the_published_rule(num_classes: int) -> None:
    split = split_classes(num_classes, 4, "mlrc")
    found = [(fold.train.tolist(), fold.validation.tolist()) for fold in split.folds]
    assert found == published(num_classes, 4)


@given(
    st.integers(4, 120),
    st.integers(2, 7),
    st.sampled_from(["kfold", "mlrc"]),
    st.none() | st.integers(1, 119),
)
def test_laws(num_classes: int, folds: int, numbering: Numbering, development: int | None) -> None:
    size = num_classes // 2 if development is None else development
    if size < folds or size >= num_classes:
        with pytest.raises(DatasetError, match="for cross-validation"):
            split_classes(num_classes, folds, numbering, development)
        return
    split = split_classes(num_classes, folds, numbering, development)
    assert split.test.tolist() == list(range(size, num_classes))
    assert len(split.folds) == folds
    validated = np.concatenate([fold.validation for fold in split.folds])
    assert len(np.unique(validated)) == len(validated)  # nothing is validated twice
    for fold in split.folds:
        both = np.concatenate([fold.train, fold.validation])
        assert sorted(both.tolist()) == list(range(size))
        assert (np.diff(fold.train) > 0).all()
        assert (np.diff(fold.validation) > 0).all()
        assert abs(len(fold.validation) - size / folds) < 1
    if numbering == "kfold":
        assert len(validated) == size


@given(st.lists(st.integers(0, 9), max_size=40), st.sets(st.integers(0, 9)))
def test_select_classes_equals_a_loop(labels: list[int], chosen: set[int]) -> None:
    classes = np.array(sorted(chosen), np.int64)
    positions, numbers = select_classes(np.array(labels, np.int64), classes)
    expected = [i for i, label in enumerate(labels) if label in chosen]
    assert positions.tolist() == expected
    assert numbers.tolist() == [sorted(chosen).index(labels[i]) for i in expected]
