"""Embeddings of a long job, part by part: what is joined is the file written at once."""

from __future__ import annotations

import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_embeddings import NOTE, same, take, toy

from facerec.base.errors import DatasetError
from facerec.embedding import Embeddings
from facerec.embedding.file import read_embeddings, write_embeddings
from facerec.embedding.parts import BATCHES_PER_CHUNK, EmbeddingsWriter

COUNT = 2 * BATCHES_PER_CHUNK * 3 + 5
"""Three whole parts of two images a batch, and a short one."""


def whole() -> Embeddings:
    names = np.array([f"person {i % 7}" for i in range(COUNT)])
    digests = np.array([f"{i:032}" for i in range(COUNT)], "S32")
    found = toy(COUNT, {0: "a", 15: "b", 16: "c", COUNT - 1: "d"}, subjects=names, face_scores=None)
    return replace(found, digests=digests, several={3: "two", 20: "three"})


def writer(path: Path, note: dict[str, Any] = NOTE) -> EmbeddingsWriter:
    made = EmbeddingsWriter(path, whole().ids, note)
    made.subjects = whole().subjects
    return made


def share(rows: np.ndarray) -> Embeddings:
    return replace(take(whole(), rows), subjects=None)


def test_parts_in_any_order_give_the_file_written_at_once(tmp_path: Path) -> None:
    write_embeddings(tmp_path / "once.npz", whole())
    path = tmp_path / "new" / "e.npz"
    first = writer(path)
    assert first.begin() == [0, 1, 2, 3]
    assert [len(first.rows[part]) for part in range(4)] == [16, 16, 16, 5]
    first.write(2, share(first.rows[2]))
    first.write(3, share(first.rows[3]))
    # Another process, after a kill that left something half-written.
    (first.folder / ".part-000001.npz.x.tmp").write_bytes(b"half")
    second = writer(path)
    assert second.begin() == [0, 1]
    with pytest.raises(DatasetError, match=r"part-000000\.npz: cannot be read"):
        second.finish()
    for part in (1, 0):
        second.write(part, share(second.rows[part]))
    written = second.finish()
    assert path.read_bytes() == (tmp_path / "once.npz").read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert same(written, whole()) or written.failures == whole().failures
    np.testing.assert_array_equal(written.norms, whole().norms)
    assert [p.name for p in path.parent.iterdir()] == ["e.npz"]


def test_a_kill_while_parts_are_joined_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    first = writer(path)
    for part in first.begin():
        first.write(part, share(first.rows[part]))
    shutil.copytree(first.folder, tmp_path / "copy")
    first.finish()
    # Killed after the rename, before the parts were removed; and before the rename.
    for gone in (False, True):
        shutil.copytree(tmp_path / "copy", first.folder)
        (path.parent / ".e.npz.abcdefgh.tmp").write_bytes(b"half")
        if gone:
            path.unlink()
        again = writer(path)
        assert again.begin() == []
        again.finish()
        assert same(read_embeddings(path), whole())
        assert not first.folder.exists() and not [*path.parent.glob(".*")]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"flip": False}, "differs in flip"), ({"model": {"sha256": "cd"}}, r"model\.sha256")],
)
def test_parts_of_another_job_are_refused(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "e.npz"
    writer(path).begin()
    with pytest.raises(DatasetError, match=sentence) as error:
        writer(path, {**NOTE, **change}).begin()
    assert str(error.value).startswith(f"{path}.parts: ")
    other = toy(COUNT).ids
    with pytest.raises(DatasetError, match="differs in ids"):
        EmbeddingsWriter(path, other[::-1], NOTE).begin()
    # Names, paths and device numbers are free.
    model = {"sha256": "ab", "path": "elsewhere", "device": "cuda:3", "name": "other"}
    assert writer(path, {**NOTE, "model": model}).begin() == [0, 1, 2, 3]


def test_wrong_or_damaged_parts(tmp_path: Path) -> None:
    first = writer(tmp_path / "e.npz")
    first.begin()
    for part in range(4):
        first.write(part, share(first.rows[part]))
    (first.folder / "part-000002.npz").write_bytes(b"damaged")
    with pytest.raises(DatasetError, match=r"part-000002\.npz: no embeddings"):
        first.finish()
    assert not first.path.exists()
    for change in (Path.unlink, lambda job: job.write_bytes(b"damaged")):
        change(first.folder / "job.json")
        with pytest.raises(DatasetError, match="cannot be continued"):
            first.begin()
