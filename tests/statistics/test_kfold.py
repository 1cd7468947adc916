from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.drawn_scores import few
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import KFold

from facerec.statistics.kfold import check_folds, fold_indices, insightface_accuracy, kfold_accuracy


def naive_kfold(
    scores: np.ndarray, same: np.ndarray, folds: np.ndarray
) -> tuple[list[float], list[float]]:
    """The definition by brute force: try every cut between distinct scores of the other folds."""
    accuracies, thresholds = [], []
    for fold in range(folds.max() + 1):
        train, test = folds != fold, folds == fold
        distinct = np.unique(scores[train])
        halves = [(low, low / 2 + high / 2, high) for low, high in itertools.pairwise(distinct)]
        middles = [middle if low < middle <= high else high for low, middle, high in halves]
        best, chosen = -1, None
        for threshold in [-np.inf, *middles, np.inf]:
            hits = int(np.sum((scores[train] >= threshold) == same[train]))
            if hits > best:
                best, chosen = hits, threshold
        thresholds.append(float(chosen))
        accuracies.append(float(np.mean((scores[test] >= chosen) == same[test])))
    return accuracies, thresholds


@few
@given(
    st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=4, max_size=40),
    st.integers(2, 4),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 99),
)
def test_equals_brute_force(
    pairs: list[tuple[int, bool]], count: int, dtype: type, seed: int
) -> None:
    # In half of the cases no two scores are equal.
    generator = np.random.default_rng(seed)
    scores = np.array([score for score, _ in pairs], dtype) / 7
    scores += (generator.random(len(pairs)) * (seed % 2)).astype(dtype)
    same = np.array([label for _, label in pairs])
    folds = generator.permutation(fold_indices(len(pairs), count))
    result = kfold_accuracy(scores, same, folds)
    accuracies, thresholds = naive_kfold(scores, same, folds)
    assert list(result.thresholds) == thresholds
    assert list(result.accuracies) == accuracies
    assert result.mean == pytest.approx(np.mean(accuracies))
    assert result.sem == pytest.approx(np.std(accuracies, ddof=1) / np.sqrt(count))
    assert result.std == pytest.approx(np.std(accuracies))
    assert (result.pairs, result.folds) == (len(pairs), count)
    assert result.correct == round(sum(np.array(accuracies) * np.bincount(folds)))


def naive_insightface(first: np.ndarray, second: np.ndarray, same: np.ndarray) -> list[float]:
    """A plain reading of the protocol: every threshold, every fold, no vectorised counting."""
    first = first / np.sqrt((first**2).sum(axis=1, keepdims=True))
    second = second / np.sqrt((second**2).sum(axis=1, keepdims=True))
    distances = ((first - second) ** 2).sum(axis=1)
    accuracies = []
    for train, test in KFold(10).split(distances):
        hits = [np.mean((distances[train] < step / 100) == same[train]) for step in range(400)]
        threshold = np.argmax(hits) / 100
        accuracies.append(float(np.mean((distances[test] < threshold) == same[test])))
    return accuracies


@pytest.mark.parametrize("seed", range(3))
def test_insightface_mode(seed: int) -> None:
    generator = np.random.default_rng(seed)
    same = generator.random(157) < 0.5
    first = generator.normal(size=(157, 8)) * generator.uniform(1, 20, (157, 1))
    second = generator.normal(size=(157, 8)) + same[:, None] * first / 4
    result = insightface_accuracy(first, second, same, fold_indices(157))
    expected = naive_insightface(first, second, same)
    assert list(result.accuracies) == expected
    assert result.mean == np.mean(expected)
    assert result.std == np.std(expected)
    steps = 100 * np.array(result.thresholds)
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-10)
    assert result.method.startswith("insightface")


def test_single_class_folds_are_reported() -> None:
    # CALFW's list: all same pairs first.
    same = np.repeat([True, False], 100)
    (sentence,) = check_folds(same, fold_indices(200), {})
    assert sentence.startswith("folds 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 of 10 hold pairs of one class")


def test_shared_identities_are_reported() -> None:
    same = np.tile([True, False], 10)
    people, names = np.arange(40).reshape(20, 2), [f"person {number}" for number in range(40)]
    people[19, 1] = 0
    (sentence,) = check_folds(same, fold_indices(20), {"subject": (people, np.array(names))})
    assert "1 subject occurs in more than one fold (person 0 in folds 1 and 10)" in sentence
