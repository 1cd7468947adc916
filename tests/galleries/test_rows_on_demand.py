"""Rows that are made on demand are those of whole matrices."""

from __future__ import annotations

import numpy as np
import pytest

from facerec.embedding import Embeddings
from facerec.galleries import overlap
from facerec.galleries.impostor_tail import standardise
from facerec.galleries.overlap import Side
from facerec.verification.unit_rows import UnitRows, row_norms, unit_rows


def embeddings(images: int, persons: int, size: int) -> Embeddings:
    generator = np.random.default_rng(0)
    person = np.arange(images) % persons
    centres = generator.normal(size=(persons, size)).astype(np.float32)
    vectors = centres[person] + generator.normal(size=(images, size)).astype(np.float32)
    people = np.array([f"a{one}" for one in person])
    ids = np.array([f"a{row}" for row in range(images)])
    return Embeddings(vectors, np.linalg.norm(vectors, axis=1), True, ids, people)


def test_rows_on_demand_are_those_of_matrices() -> None:
    generator = np.random.default_rng(0)
    matrix = generator.normal(size=(40, 5)).astype(np.float32)
    norms, rows = row_norms(matrix), generator.permutation(40)[:30]
    lazy, held = UnitRows(matrix, norms, rows), unit_rows(matrix, norms, rows)
    assert lazy.shape == held.shape and len(lazy) == 30
    order = generator.permutation(30)
    for index in (slice(3, 17), slice(None), order[:7]):
        np.testing.assert_array_equal(lazy[index], held[index])
        np.testing.assert_array_equal(lazy.take(order)[index], held[order][index])
    # What `standardise` promises of its products, by whole matrices.
    other = unit_rows(matrix, norms, np.arange(12))
    scaled = [side[:].astype(np.float64) for side in standardise(lazy, other)]
    centred = [
        side - side.sum(axis=0, dtype=np.float64) / (len(side) + 1000) for side in (held, other)
    ]
    moments = [side.T @ side / len(side) for side in centred]
    usual = (moments[0] * moments[1]).sum()
    for side, moment, count, found in zip(centred, moments[::-1], (12, 30), scaled, strict=True):
        own = np.einsum("nd,de,ne->n", side, moment, side)
        spread = (count * own + 2000 * usual) / (count + 2000)
        np.testing.assert_allclose(found, side / spread[:, None] ** 0.25, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("many", [0, 100])
def test_templates_on_demand_are_sums_of_raw_embeddings(
    monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(overlap, "_MANY", many)
    monkeypatch.setattr(overlap, "_BLOCK", 5)
    a = embeddings(50, 13, 4)
    a.vectors[7] = -a.vectors[20]  # one of 7's is opposite to another of the same person
    side = Side(a, "a")
    found = side.templates()
    assert isinstance(found, np.ndarray) == (many == 0)
    expected = np.stack(
        [a.vectors[side.of(one)].astype(np.float64).sum(axis=0) for one in range(len(side))]
    )
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    some = np.array([12, 0, 5, 5])
    np.testing.assert_allclose(found[:], expected, atol=1e-6)
    np.testing.assert_allclose(found[some], expected[some], atol=1e-6)
    np.testing.assert_allclose(found[3:9], expected[3:9], atol=1e-6)
