"""Parquet tables of others: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facerec.embedding.file import read_embeddings, write_embeddings
from facerec.errors import DatasetError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LISTS = pa.list_(pa.float32())


def table(folder: Path, **columns: Any) -> Path:
    path = folder / "e.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_numbered_columns_and_lists_hold_the_same(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 12)).astype(np.float32)
    ids = [f"p{i // 2}/ä {i}.jpg" for i in range(6)]
    subjects = [name.split("/")[0] for name in ids]
    numbered = {f"e{k}": vectors[:, k] for k in reversed(range(12))}
    wide = read_embeddings(
        table(tmp_path, note=["x"] * 6, **numbered, image_id=ids, subject_id=subjects)
    )
    listed = read_embeddings(
        table(tmp_path, labels=subjects, features=pa.array(vectors.tolist(), LISTS), images=ids)
    )
    for found in (wide, listed):
        np.testing.assert_array_equal(found.vectors, vectors)
        np.testing.assert_array_equal(found.norms, np.linalg.norm(vectors, axis=1))
        assert found.ids is not None and found.ids.tolist() == ids
        assert found.subjects is not None and found.subjects.tolist() == subjects
        assert found.flip is None and not found.failures
    # What was read can be written as embeddings of our own.
    write_embeddings(tmp_path / "e.npz", wide)
    np.testing.assert_array_equal(read_embeddings(tmp_path / "e.npz").vectors, vectors)


NAN = float("nan")


@pytest.mark.parametrize("nothing", [[NAN, NAN], [None, None], [NAN, None], [], None])
@pytest.mark.parametrize("form", ["npz", "numbered", "listed"])
def test_rows_of_nothing_are_failures_in_every_form(
    form: str, nothing: list[float | None] | None, tmp_path: Path
) -> None:
    rows, ids = [[1.0, 2.0], nothing, [3.0, 4.0]], ["a", "b", "c"]
    two = [[NAN if x is None else x for x in row or [NAN, NAN]] for row in rows]
    if form == "npz":
        path = tmp_path / "e.npz"
        np.savez(path, ids=ids, embeddings=np.array(two, np.float32))
    elif form == "listed":
        path = table(tmp_path, image_id=ids, embedding=pa.array(rows, LISTS))
    else:
        both = {f"e{k}": [(row or [None] * 2)[k] for row in rows] for k in range(2)}
        path = table(tmp_path, image_id=ids, **both)
    found = read_embeddings(path)
    assert list(found.failures) == [1] and np.isnan(found.vectors[1]).all()
    np.testing.assert_array_equal(found.vectors[[0, 2]], np.array([[1, 2], [3, 4]], np.float32))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"image_id": pa.array([], pa.string()), "embedding": pa.array([], LISTS)}, "no embedding"),
        ({"image_id": ["a"], "embedding": pa.array([None], LISTS)}, "no embedding"),
        ({"image": ["a"], "e0": [1.0]}, "found image, e0"),
        ({"image_id": ["a"], "other": [1.0]}, "found image_id, other"),
        ({"image_id": ["a"], "e0": [1.0], "e2": [1.0]}, "found image_id, e0, e2"),
        ({"image_id": ["a", "a"], "e0": [1.0, 2.0]}, "the id 'a' names two images"),
        ({"image_id": ["a"], "e0": ["x"]}, "e.parquet"),
        ({"image_id": ["a", "b"], "e0": [1.0, 1.0], "e1": [None, 2.0]}, "row 0 .* not finite"),
        ({"image_id": ["a"], "e0": [1e60]}, "row 0 .* not finite"),
        ({"image_id": ["a"], "embedding": ["[1, 2]"]}, "e.parquet"),
        ({"image_id": ["a", "b"], "embedding": pa.array([[1], [1, 2]], LISTS)}, "1 to 2 values"),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    with pytest.raises(DatasetError, match=words) as found:
        read_embeddings(table(tmp_path, **columns))
    assert len(str(found.value)) < 600 and "\n" not in str(found.value)


def test_a_table_without_ids_may_be_numbered(tmp_path: Path) -> None:
    path = table(tmp_path, e0=[1.0, 2.0])
    found = read_embeddings(path, numbered=True).ids
    assert found is not None and found.tolist() == ["0", "1"]
