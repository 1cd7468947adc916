"""Retrieval figures against naive loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from facerec.base.errors import MetricError
from facerec.comparison import retrieval
from facerec.comparison.retrieval import Retrieval, clustering, retrieve

Array = NDArray[np.floating]
Labels = NDArray[np.int64]
KS = (1, 2, 5)


def unit(x: Array) -> Array:
    values = x.astype(np.float64)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def naive(
    scores: Array, labels: Labels, reference_labels: Labels, itself: bool
) -> tuple[list[list[float]], list[int]]:
    """Rate every query by loops over all references; rows as in `table`, and classes."""
    rows, classes = [], []
    for query, label in enumerate(labels):
        others = [j for j in range(len(reference_labels)) if not (itself and j == query)]
        order = sorted(others, key=lambda j: (-scores[query, j], j))
        right = [bool(reference_labels[j] == label) for j in order]
        relevant = sum(right)
        if not relevant:
            continue
        hits, precision = 0, 0.0
        for rank in range(1, relevant + 1):
            if right[rank - 1]:
                hits += 1
                precision += hits / rank
        rows.append([right[0], hits / relevant, precision / relevant])
        rows[-1] += [any(right[:k]) for k in KS]
        classes.append(int(label))
    return rows, classes


def table(found: Retrieval) -> Array:
    recalls = [f"recall@{k}" for k in KS]
    assert list(found.figures) == ["precision_at_1", "r_precision", "map_at_r", *recalls]
    return np.stack([*found.figures.values()], axis=1)


def check(found: Retrieval, expected: tuple[list[list[float]], list[int]]) -> None:
    rows, classes = expected
    np.testing.assert_allclose(table(found), rows, rtol=0, atol=1e-12)
    assert found.labels.tolist() == classes


@st.composite
def sets(draw: st.DrawFn) -> dict[str, Any]:
    """Sign vectors, so that every cosine is exact and many are equal; lone classes too."""
    dimensions = draw(st.sampled_from([1, 4, 16]))

    def side(least: int) -> tuple[Array, Labels]:
        size = draw(st.integers(least, 40))
        generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        vectors = generator.choice([-1.0, 1.0], size=(size, dimensions))
        return vectors, generator.integers(draw(st.integers(1, 12)), size=size)

    x, labels = side(2)
    others = side(1) if draw(st.booleans()) else None
    return {"x": x, "labels": labels, "others": others, "queries": draw(st.sampled_from([1, 500]))}


@settings(max_examples=examples(150), deadline=None)
@given(sets())
def test_equals_the_naive_loop_with_ties_and_lone_queries(case: dict[str, Any]) -> None:
    x, labels, others = case["x"], case["labels"], case["others"]
    references, reference_labels = others or (x, labels)
    scores = unit(x) @ unit(references).T
    expected = naive(scores, labels, reference_labels, others is None)
    options: dict[str, Any] = {"ks": KS}
    if others is not None:
        options["references"] = others
    if not expected[0]:
        with pytest.raises(MetricError, match="has a reference of its class"):
            retrieve(x, labels, **options)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "_QUERIES", case["queries"])
        found = retrieve(x, labels, **options)
    check(found, expected)
    assert found.dropped == len(labels) - len(expected[0])
    shares, means = found.figures["r_precision"], found.figures["map_at_r"]
    assert (means <= shares + 1e-12).all() and ((means == 1) == (shares == 1)).all()


def test_clusters_of_separated_classes() -> None:
    labels = np.arange(60) % 3
    noise = np.random.default_rng(0).standard_normal((60, 3))
    found = clustering(np.eye(3)[labels] + 0.02 * noise, labels, seed=0)
    assert found["nmi"] == pytest.approx(1) and found["f1"] == 1
    alone = clustering(np.eye(3), np.arange(3), seed=0)
    assert alone["nmi"] == pytest.approx(1) and alone["f1"] == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"embeddings": np.array([[1, 1], [0, 0], [1, 0], [1, 1.0]])}, "of query 1 is zero"),
        ({"references": (np.array([[0.0, np.inf]]), [0])}, "reference 0 is zero"),
        ({"labels": [0, 1, 2, 3]}, "none of the 4 queries has a reference of its class"),
    ],
)
def test_bad_input(changes: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"embeddings": np.ones((4, 2)), "labels": [0, 0, 1, 1]}
    with pytest.raises(MetricError, match=sentence):
        retrieve(**{**arguments, **changes})
