"""Whatever copies are multiplied first, answers are those of float64."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from facerec.cosines import UnitRows, best, cosines, nearest_entries, tiles
from facerec.cosines.coarse import Coarse, bounds, fast_kinds, products
from facerec.cosines.unit_rows import row_norms
from facerec.verification.scoring import score_all_pairs

KINDS: list[Any] = [("float32",), ("bfloat16",), ("int8",), ("int8", "bfloat16", "float32")]


@pytest.fixture(params=KINDS, ids="-".join)
def kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "SMALL", 0)
    monkeypatch.setattr("facerec.cosines.coarse.fast_kinds", lambda: request.param)
    monkeypatch.setattr(tiles, "_FEW", 0.1)
    monkeypatch.setattr(tiles, "_MANY", 200)
    monkeypatch.setattr("facerec.cosines.searches.SHAPE", (32, 150))


def crowd(count: int, size: int, seed: int) -> NDArray[np.float32]:
    """Likenesses, equal and opposite rows, signs whose cosines tie, and extreme sizes."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((count, size)) + 0.7 * generator.standard_normal((1, size))
    rows[: count // 4] = generator.choice([-1.0, 1.0], size=(count // 4, size))
    rows[count // 4 : count // 3] = np.eye(size)[
        generator.integers(size, size=count // 3 - count // 4)
    ]
    rows[-60:-40], rows[-40:-30] = rows[-1], -rows[-1]
    rows[-30:-20] = rows[-20:-10] * (1 + 2e-7 * generator.standard_normal((10, size)))
    rows *= 10.0 ** generator.choice([-30, -3, 0, 3, 15], size=(count, 1))
    return rows[generator.permutation(count)].astype(np.float32)


def table(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float64]:
    sides = [
        rows / np.linalg.norm(rows.astype(float), axis=1, keepdims=True) for rows in (left, right)
    ]
    return np.rint(sides[0] @ sides[1].T * 2.0**24) / 2.0**24


@pytest.mark.parametrize("size", [16, 200])
@pytest.mark.parametrize("count", [1, 5, 60])
def test_the_best_are_those_of_a_sorted_table(kinds: None, size: int, count: int) -> None:
    left, right = crowd(150, size, 0), crowd(700, size, 1)
    left[:20] = right[5:25]
    scores = table(left, right)
    for apart in (None, (np.arange(150) % 7, np.arange(700) % 7)):
        if apart is not None:
            scores[apart[0][:, None] == apart[1]] = -np.inf
        columns, found = best(UnitRows(left), UnitRows(right), count, apart=apart)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        np.testing.assert_array_equal(columns, order)
        np.testing.assert_array_equal(found, np.take_along_axis(scores, order, axis=1))


def test_products_of_rows_as_they_are(kinds: None) -> None:
    generator = np.random.default_rng(0)
    left, right = (generator.standard_normal((n, 40)).astype(np.float32) * 2 for n in (90, 400))
    right[7] = 0
    sides = [UnitRows(rows, norms=np.ones(len(rows))) for rows in (left, right)]
    columns, found = best(*sides, 9)
    scores = left.astype(float) @ right.T.astype(float)
    np.testing.assert_array_equal(columns, np.argsort(-scores, axis=1)[:, :9])
    np.testing.assert_allclose(found, -np.sort(-scores, axis=1)[:, :9], rtol=1e-6)


def test_counts_at_thresholds_that_scores_tie_with(kinds: None) -> None:
    vectors, subjects = crowd(600, 64, 2), np.random.default_rng(0).integers(90, size=600)
    vectors[[4, 9]] = 0
    there = np.delete(np.arange(600), [4, 9])
    first, second = np.triu_indices(len(there), 1)
    scores = table(vectors[there], vectors[there])[first, second]
    same = subjects[there][first] == subjects[there][second]
    given = [-0.5, 0.0, 0.25, *np.random.default_rng(1).choice(scores[~same], 4), 1.0, np.inf]
    found = score_all_pairs(vectors, subjects, fpr=["1e-1", "1e-3"], thresholds=given, tile=130)
    np.testing.assert_array_equal(found.mated_scores, np.sort(scores[same]))
    for line in found.tables:
        assert line.false_matches == np.count_nonzero(scores[~same] >= line.threshold)
        assert line.missed.sum() == np.count_nonzero(~(scores[same] >= line.threshold))
    for target, line in zip((0.1, 0.001), found.tables[-2:], strict=True):
        higher = np.sort(scores[~same])[::-1]
        allowed = int(target * higher.size)
        assert line.false_matches == np.count_nonzero(higher > higher[allowed])
    vectors[3] = np.nan
    nearest = nearest_entries(vectors, subjects, vectors, subjects)
    assert (nearest.entries[3] == -1).all()
    assert np.isneginf([*nearest.scores[3], nearest.mate[3]]).all()


@pytest.mark.parametrize("kind", ["int8", "bfloat16", "float32"])
def test_no_product_is_further_off_than_its_bound(kind: Any) -> None:
    sides = [UnitRows(crowd(500, 300, seed)) for seed in (3, 4)]
    left, right = (Coarse(rows, kind) for rows in sides)
    every = slice(0, 500)
    found, unit = products(left.values, right.values), left.scale * right.scale
    bound, rounded = bounds(left, right, every, every)
    exact = sides[0].unit(every) @ sides[1].unit(every).T
    off = np.abs(found.numpy() * unit - exact) - rounded * np.abs(found.numpy() * unit)
    assert off.max() <= bound
    row, column = np.divmod(np.arange(0, 250_000, 97), 500)
    one = cosines(*sides, row, column)
    np.testing.assert_array_equal(one, np.rint(exact[row, column] * 2**24) / 2**24)


def test_the_kinds_of_a_processor_end_with_float32() -> None:
    assert fast_kinds()[-1] == "float32" and len(set(fast_kinds())) == len(fast_kinds())


def test_what_is_zero_or_not_finite_has_no_norm_and_gives_no_warning() -> None:
    matrix = np.full((5, 3), 2, np.float32)
    matrix[0] = 0
    matrix[1, 1] = np.inf
    matrix[2].view(np.uint32)[:] = 0x7F800001  # a NaN that signals
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        norms = row_norms(matrix)
        large = row_norms(np.full((1, 3), 1e200))
    np.testing.assert_array_equal(np.isnan(norms), [True, True, True, False, False])
    np.testing.assert_allclose(norms[3:], np.sqrt(12), rtol=1e-15)
    assert np.isnan(large).all()
