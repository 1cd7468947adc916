from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from helpers.toy_embeddings import NOTE, same, take, toy
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.base.errors import DatasetError, ModelError
from facerec.embedding import Embeddings
from facerec.embedding.file import (
    embeddings_sha256,
    is_embeddings,
    read_embeddings,
    write_embeddings,
)

# --- one file --------------------------------------------------------------------------------


def test_the_file_is_plain_private_and_reproducible(tmp_path: Path) -> None:
    path, again = tmp_path / "e.npz", tmp_path / "again.npz"
    write_embeddings(path, toy(failures={1: "no face"}))
    write_embeddings(again, toy(failures={1: "no face"}))
    assert path.read_bytes() == again.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with np.load(path, allow_pickle=False) as arrays:
        said = "failure_rows", "failure_reasons", "several_rows", "several_faces"
        named = {"vectors", "norms", "ids", "face_scores", "note", *said}
        assert {*arrays} == named
        np.testing.assert_array_equal(arrays["vectors"], toy(failures={1: "no face"}).vectors)
        assert arrays["failure_rows"].tolist() == [1]
        assert arrays["failure_reasons"].tolist() == ["no face"]
        assert json.loads(str(arrays["note"])) == {"format": 1, **NOTE}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.npz", "e.npz"]


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_any_embeddings_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    # NumPy's text cannot end in NUL, and no file of ours holds half a character.
    text = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]))
    ids = data.draw(st.lists(text, unique=True, max_size=6))
    rows = st.integers(0, max(len(ids) - 1, 0))
    failures = data.draw(st.dictionaries(rows, text)) if ids else {}
    numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
    vectors = np.array([[data.draw(numbers), 1.0] for _ in ids], np.float32).reshape(-1, 2)
    norms = np.array([data.draw(numbers) for _ in ids], np.float32)
    vectors[list(failures)] = np.nan
    norms[list(failures)] = np.nan
    subjects = data.draw(st.none() | st.lists(text, min_size=len(ids), max_size=len(ids)))
    embeddings = Embeddings(
        vectors,
        norms,
        data.draw(st.sampled_from([True, False, None])),
        ids=np.array(ids, np.str_),
        subjects=None if subjects is None else np.array(subjects, np.str_),
        failures=failures,
        several=data.draw(st.dictionaries(rows, text)) if ids else {},
        face_scores=data.draw(st.sampled_from([None, norms * 2 - 1])),
        digests=data.draw(st.sampled_from([None, np.full(len(ids), b"ab" * 16)])),
    )
    path = tmp_path_factory.mktemp("any") / "e.npz"
    write_embeddings(path, embeddings)
    assert same(read_embeddings(path), replace(embeddings, note={"flip": embeddings.flip}))


def test_what_contradicts_itself_is_refused_or_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    for wrong, words in (
        (replace(toy(), ids=None), "ids and subjects"),
        (replace(toy(), ids=np.array(["a"] * 5)), "the id 'a' names two images"),
        (replace(toy(), norms=toy().norms.astype(float)), "float64"),
        (replace(toy(), failures={5: "x"}), "failures of these rows"),
        (replace(toy(), several={5: "x"}), "of these rows"),
        (replace(toy(), digests=np.full(4, b"ab" * 16)), "digests .N,. of bytes"),
        (replace(toy(), digests=np.full(5, "ab")), "digests .N,. of bytes"),
    ):
        with pytest.raises(DatasetError, match=f"{path}: .*{words}"):
            write_embeddings(path, wrong)
    with pytest.raises(DatasetError, match=r"a name that ends in \.npz"):
        write_embeddings(tmp_path / "e.npy", toy())
    assert list(tmp_path.iterdir()) == []
    broken = replace(toy(), failures={4: "no face"})
    broken.vectors[2, 1] = np.nan
    write_embeddings(path, broken)
    found = read_embeddings(path)
    assert [*found.failures] == [2, 4] and found.failures[4] == "no face"
    assert np.isnan(found.vectors).all(axis=1).tolist() == [False, False, True, False, True]


# --- files that others wrote, or damaged -----------------------------------------------------


def rewritten(path: Path, **changes: Any) -> Path:
    """Write a good file, then change, add or (with None) remove arrays."""
    write_embeddings(path, toy(failures={1: "no face"}))
    with np.load(path) as arrays:
        content = {**arrays, **changes}
    np.savez(path, **{name: array for name, array in content.items() if array is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"norms": None}, "no 'norms'"),
        ({"ids": np.zeros(5)}, "ids and subjects .N,. of text"),
        ({"ids": None}, "image_id or .* is missing .there is face_scores, failure_r"),
        ({"vectors": np.float32(1)}, "vectors .N, D. and norms"),
        ({"failure_rows": np.array([7])}, "failures of these rows"),
        ({"failure_rows": np.array([1, 2])}, "no embeddings that can be read"),
        ({"note": np.array("[" * 100_000)}, "its note.* cannot be read"),
        ({"note": np.array('{"format": 2, "flip": true}')}, "format 2"),
        ({"ids": np.array(["a", 1, 2, 3, 4], object)}, "ids.npy holds pickled Python objects"),
    ],
)
def test_bad_content_is_a_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    path = rewritten(tmp_path / "e.npz", **changes)
    with pytest.raises(DatasetError, match=sentence) as error:
        read_embeddings(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("PWNED",)


def test_a_pickle_inside_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ids", "note", "vectors"):
        path = rewritten(tmp_path / "e.npz", **{name: np.array([Bomb()], object)})
        with pytest.raises(DatasetError, match="pickled Python objects, which are never loaded"):
            read_embeddings(path)
    path.write_bytes(b"cos\nmkdir\n(S'PWNED'\ntR.")
    with pytest.raises(DatasetError, match="no embeddings that can be read"):
        read_embeddings(path)
    assert not (tmp_path / "PWNED").exists()


# --- tables of others ------------------------------------------------------------------------

LISTS = [[1.0, 2.0], None, [-3.0, 0.5]]
VECTORS = np.array([[1, 2], [np.nan, np.nan], [-3, 0.5]], np.float32)


def table(path: Path, **columns: Any) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path)
    return path


IDS, PEOPLE = ["Zoe\u0308/1.jpg", "a/2.jpg", "Zo\xeb/3.jpg"], ["Zoe\u0308", "a", "Zo\xeb"]


def of_others(folder: Path, kind: str, ids: Sequence[str] = IDS) -> Path:
    """Write three images of two people, one without an embedding, in one of the usual forms."""
    path = folder / f"e.{kind.split()[0]}"
    if kind == "npz":
        np.savez_compressed(path, features=VECTORS, images=np.array(ids), labels=np.array(PEOPLE))
    elif kind == "npz of bytes in half precision":
        names = [np.array([text.encode() for text in column]) for column in (ids, PEOPLE)]
        np.savez(path, vectors=VECTORS.astype(np.float16), ids=names[0], subjects=names[1])
    elif kind == "parquet":
        table(path, other=[1, 2, 3], embedding=LISTS, image_id=ids, subject_id=PEOPLE)
    elif kind == "npy":
        np.save(path, VECTORS)
        path.with_suffix(".txt").write_text("\n".join(ids) + "\n")
    elif kind == "mat":
        pytest.importorskip("scipy.io").savemat(path, {"features": VECTORS, "names": ids})
    else:
        mark, first = (",", "image_id,e0,e1\n") if kind == "csv" else (" ", "")
        rows = zip(ids, VECTORS.tolist(), strict=False)
        path.write_text(first + "".join(f"{mark.join([n, *map(repr, r)])}\n" for n, r in rows))
    return path


TABLES = ["npz", "npz of bytes in half precision", "parquet"]
LISTED = ["npy", "csv", "list", "txt", "mat"]


@pytest.mark.parametrize("kind", [*TABLES, *LISTED])
def test_all_forms_of_others_are_the_same_embeddings(tmp_path: Path, kind: str) -> None:
    path = of_others(tmp_path, kind)
    assert is_embeddings(path) == (kind not in ("csv", "txt"))
    found = read_embeddings(path)
    np.testing.assert_array_equal(found.vectors, VECTORS)
    np.testing.assert_allclose(found.norms, [5**0.5, np.nan, 9.25**0.5], rtol=1e-6)
    assert found.ids.tolist() == ["Zo\xeb/1.jpg", "a/2.jpg", "Zo\xeb/3.jpg"]
    if kind in TABLES:
        assert found.subjects.tolist() == ["Zo\xeb", "a", "Zo\xeb"]
    assert list(found.failures) == [1] and "row 1" in found.failures[1] and found.flip is None
    # What was read can be written in our own form.
    for name in ("own.npz", "own.parquet")[: 1 + (kind == "parquet")]:
        write_embeddings(tmp_path / name, found)
        assert same(read_embeddings(tmp_path / name), found)


def test_files_of_others_that_do_not_do(tmp_path: Path) -> None:
    path, two = tmp_path / "f.npz", np.array(["a", "b"])
    for arrays, words in (
        ({"vectors": np.zeros((2, 3))}, "image_id or .* is missing .there is v"),
        ({"data": np.zeros(3)}, "vectors or .* is missing .there is data"),
        ({"vectors": np.zeros((2, 3), np.int64), "ids": two}, "found int64"),
        ({"vectors": np.zeros((3, 3)), "ids": two}, r"found float32 \(3, 3\), .*<U1 \(2,\)"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(DatasetError, match=words):
            read_embeddings(path)
    np.savez(path, vectors=np.ones((2, 3)))
    found = read_embeddings(path, numbered=True).ids
    assert found is not None and found.tolist() == ["0", "1"]


def test_columns_of_any_name_are_named_or_asked_for(tmp_path: Path) -> None:
    names = {"id": "picture", "subject": "person", "vector": "emb"}
    ids, people = ["a", "b", "c"], ["p", "p", "q"]
    pairs = "picture,person,x,y\na,p,1,2\nb,p,nan,nan\nc,q,-3,0.5\n"
    (tmp_path / "e.csv").write_text(pairs)
    np.savez(tmp_path / "e.npz", emb=VECTORS, picture=np.array(ids), person=np.array(people))
    mat = {"emb": VECTORS, "picture": ids, "person": people}
    pytest.importorskip("scipy.io").savemat(tmp_path / "e.mat", mat)
    table(tmp_path / "e.parquet", emb=LISTS, picture=ids, person=people)
    for kind in ("csv", "npz", "mat", "parquet"):
        path, called = tmp_path / f"e.{kind}", {**names}
        if kind == "csv":
            with pytest.raises(DatasetError, match="leave vector"):
                read_embeddings(path, columns=called)
            del called["vector"]
        else:
            with pytest.raises(DatasetError, match=r"emb.*--columns (id|vector)="):
                read_embeddings(path)
        found = read_embeddings(path, columns=called)
        assert found.ids is not None and found.ids.tolist() == ids
        assert found.subjects is not None and found.subjects.tolist() == people
        np.testing.assert_array_equal(found.vectors, VECTORS)
        for wrong, words in (({"id": "pictures"}, "nearest is 'picture'"), ({"ids": "x"}, "'id'")):
            with pytest.raises(DatasetError, match=words):
                read_embeddings(path, columns=wrong)


@pytest.mark.parametrize("kind", LISTED)
def test_damaged_lists_of_other_projects_end_in_a_sentence(tmp_path: Path, kind: str) -> None:
    path = of_others(tmp_path, kind, IDS[:2])
    words = r"found float32 \(3, 2\), .*<U\d+ \(2,\)"
    if kind in ("csv", "list", "txt"):
        path.write_text(path.read_text() + "q/3.jpg" + (",1" if kind == "csv" else " 1"))
        words = f"line {3 + (kind == 'csv')}: "
    with pytest.raises(DatasetError, match=words):
        read_embeddings(path)
    path.write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(DatasetError, match=f"e.{kind}"):
        read_embeddings(path)


# --- shards ----------------------------------------------------------------------------------

SIZES = (5, 1, 4, 3)
LOST = (5, 7)
"""Of all images, those without an embedding: one is alone in its shard."""


def rows(start: int, stop: int) -> Embeddings:
    people = np.array([f"p{i // 3}" if i else "" for i in range(sum(SIZES))])
    whole = toy(sum(SIZES), {row: f"no face in {row}" for row in LOST}, subjects=people)
    return take(whole, slice(start, stop))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("pyarrow")
    start = 0
    for number, size in enumerate(SIZES):
        write_embeddings(tmp_path / "shards" / f"{number}.parquet", rows(start, start + size))
        start += size
    return tmp_path / "shards"


def test_shards_are_read_as_the_file_that_they_are_of(folder: Path) -> None:
    whole = rows(0, sum(SIZES))
    for path in (folder, folder / "*.parquet", folder / "{0..3}.parquet"):
        assert is_embeddings(path)
        found = read_embeddings(path)
        assert same(found, replace(whole, note={**NOTE, "shards": len(SIZES)}))
    assert same(
        read_embeddings(folder / "{0,1}.parquet"), replace(rows(0, 6), note={**NOTE, "shards": 2})
    )
    write_embeddings(folder.parent / "one.parquet", whole)
    assert stat.S_IMODE((folder.parent / "one.parquet").stat().st_mode) == 0o600
    assert same(read_embeddings(folder.parent / "one.parquet"), whole)
    before = embeddings_sha256(folder)
    write_embeddings(folder / "1.parquet", replace(rows(5, 6), failures={0: "other"}))
    assert embeddings_sha256(folder) != before
    (folder.parent / "empty").mkdir()
    assert not is_embeddings(folder.parent / "empty")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("3", {"note": {**NOTE, "model": {"sha256": "cd"}}}, "3.parquet cannot.*another model"),
        ("3", {"flip": False}, "another flip"),
        ("3", {"ids": np.array(["pers\xf6n 0/0.jpg", "b", "c"])}, "names two images"),
        ("3", {"vectors": np.ones((3, 2), np.float32)}, "3.parquet"),
        ("4", {"ids": np.array(["\udcff.jpg", "b", "c"])}, "cannot be written"),
        ("job.json", None, r"job of job\.json has not ended"),
        (".job.json", None, r"lost shards since \(1 .*\['9\.parquet'\]"),
        ("0.parquet", None, "0.parquet"),
    ],
)
def test_shards_of_two_jobs_or_half_a_job_are_refused(
    folder: Path, name: str, change: dict[str, Any] | None, words: str
) -> None:
    with pytest.raises((DatasetError, ModelError), match=words):
        if change is None:
            (folder / name).write_bytes(b'{"shards": {"3.parquet": 3, "9.parquet": 1}}')
        else:
            write_embeddings(folder / f"{name}.parquet", replace(rows(10, 13), **change))
        read_embeddings(folder)
