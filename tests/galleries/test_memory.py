"""Large sets are worked on without a second copy of their embeddings."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from facerec.embedding import Embeddings
from facerec.galleries import clean_set, find_overlap, overlap
from facerec.galleries.impostor_tail import standardise
from facerec.galleries.overlap import Side
from facerec.verification.unit_rows import UnitRows, row_norms, unit_rows

SIZE = 1024


def embeddings(
    images: int, persons: int, seed: int = 0, name: str = "a", named: bool = True, size: int = SIZE
) -> Embeddings:
    generator = np.random.default_rng(seed)
    person = np.arange(images) % persons
    centres = generator.normal(size=(persons, size)).astype(np.float32)
    vectors = centres[person] + generator.normal(size=(images, size)).astype(np.float32)
    people = np.array([f"{name}{one}" for one in person]) if named else None
    ids = np.array([f"{name}{row}" for row in range(images)])
    return Embeddings(vectors, np.linalg.norm(vectors, axis=1), True, ids, people)


def share_added(work: Callable[[], object], held: np.ndarray) -> float:
    """Return the largest memory of arrays while something is done, by that of the embeddings."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / held.nbytes
    finally:
        tracemalloc.stop()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "galleries.overlap._BLOCK",
        "galleries.impostor_tail._BLOCK",
        "galleries.label_faults._TILE",
        "verification.unit_rows._ROWS",
    ):
        monkeypatch.setattr(f"facerec.{name}", 64)
    monkeypatch.setattr("facerec.galleries.impostor_tail._SAMPLE", 1 << 12)


@pytest.mark.parametrize("named", [True, False])
def test_overlap_holds_no_second_copy(small_blocks: None, named: bool) -> None:
    a = embeddings(6000, 1000, named=named)
    b = embeddings(60, 20, seed=1, name="b")
    added = share_added(lambda: find_overlap(a, b), a.vectors)
    assert added < 0.3 + 0.17 * named  # named ones have templates, a sixth of the images


def test_cleaning_holds_no_second_copy(small_blocks: None) -> None:
    found = embeddings(6000, 100)
    assert found.subjects is not None
    names, ids = found.subjects, found.ids
    added = share_added(lambda: clean_set(found.vectors, names, ids, across=False), found.vectors)
    assert added < 0.3


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
    a = embeddings(50, 13, size=4)
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
