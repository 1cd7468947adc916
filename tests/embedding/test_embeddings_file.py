from __future__ import annotations

import json
import os
import shutil
import stat
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.embedding import Embeddings
from facerec.embedding import file as files
from facerec.embedding.file import read_embeddings, write_embeddings
from facerec.embedding.parts import BATCHES_PER_CHUNK, EmbeddingsWriter
from facerec.errors import DatasetError

NOTE = {"flip": True, "batch_size": 2, "model": {"sha256": "ab", "path": "m", "device": "cuda:0"}}


def toy(
    count: int = 5, failures: dict[int, str] | None = None, seed: int = 0, **fields: Any
) -> Embeddings:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(count, 3)).astype(np.float32)
    norms = generator.random(count).astype(np.float32)
    failures = failures or {}
    vectors[list(failures)] = np.nan
    norms[list(failures)] = np.nan
    ids = np.array([f"persön {i}/{i}.jpg" for i in range(count)], np.str_)
    return Embeddings(vectors, norms, True, ids=ids, failures=failures, note=NOTE, **fields)


def same(first: Embeddings, second: Embeddings) -> bool:
    arrays = ("vectors", "norms", "ids", "subjects")
    for name in arrays:
        one, other = getattr(first, name), getattr(second, name)
        if (one is None) != (other is None):
            return False
        if one is not None:
            np.testing.assert_array_equal(one, other)
            assert one.dtype.kind == other.dtype.kind
    assert first.vectors.dtype == second.vectors.dtype == np.float32
    assert (first.flip, first.failures) == (second.flip, second.failures)
    return dict(first.note) == dict(second.note)


# --- one file --------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "e.npz"
    full = toy(failures={3: "it's “broken”", 1: "no face"}, subjects=np.array([*"abca", ""]))
    for embeddings in (toy(), toy(0), full, replace(toy(), flip=False, note={"flip": False})):
        write_embeddings(path, embeddings)
        assert same(read_embeddings(path), embeddings)
    write_embeddings(path, replace(toy(), note={}))
    assert read_embeddings(path).note == {"flip": True}


def test_the_file_is_plain_private_and_reproducible(tmp_path: Path) -> None:
    path, again = tmp_path / "e.npz", tmp_path / "again.npz"
    write_embeddings(path, toy(failures={1: "no face"}))
    write_embeddings(again, toy(failures={1: "no face"}))
    assert path.read_bytes() == again.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with np.load(path, allow_pickle=False) as arrays:
        assert sorted(arrays) == sorted(files._OWN)
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
    )
    path = tmp_path_factory.mktemp("any") / "e.npz"
    write_embeddings(path, embeddings)
    assert same(read_embeddings(path), replace(embeddings, note={"flip": embeddings.flip}))


def nan_at(row: int, embeddings: Embeddings) -> Embeddings:
    embeddings.vectors[row, 1] = np.nan
    return embeddings


@pytest.mark.parametrize(
    ("embeddings", "words"),
    [
        (replace(toy(), ids=None), "without ids"),
        (replace(toy(), ids=np.array(["a"] * 5)), "the id 'a' names two images"),
        (replace(toy(), ids=toy().ids[:4]), r"<U14 \(4,\)"),
        (replace(toy(), norms=toy().norms.astype(float)), "float64"),
        (replace(toy(), vectors=toy().vectors[:, :0]), r"found float32 \(5, 0\)"),
        (replace(toy(), subjects=np.arange(5)), "int64"),
        (nan_at(2, toy()), r"row 2 .id 'persön 2/2.jpg'. is not finite but is not listed"),
        (replace(toy(), failures={4: "x"}), "row 4 .* has an embedding but is listed as a failure"),
        (replace(toy(), failures={5: "x"}), "failures of these rows"),
    ],
)
def test_contradictions_are_refused_and_nothing_is_written(
    tmp_path: Path, embeddings: Embeddings, words: str
) -> None:
    with pytest.raises(DatasetError, match=words) as error:
        write_embeddings(tmp_path / "e.npz", embeddings)
    assert str(error.value).startswith(str(tmp_path / "e.npz"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DatasetError, match=r"a name that ends in \.npz"):
        write_embeddings(tmp_path / "e.npy", toy())


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
        ({"norms": None}, "the array norms is missing .there is failure_reasons, failure_rows"),
        ({"ids": np.array(["a"] * 5)}, "the id 'a' names two images"),
        ({"ids": np.arange(5)}, "ids .N,. as text"),
        ({"vectors": np.zeros((5, 3), np.float32)}, "row 1 .* has an embedding but is listed"),
        ({"vectors": np.full((5, 3), np.nan, np.float32)}, "row 0 .* is not finite"),
        ({"vectors": np.zeros((5, 3), np.int64)}, "vectors .N, D. and norms"),
        ({"vectors": np.float32(1)}, "vectors .N, D. and norms"),
        ({"note": np.array('{"format": 1, "flip": true, "x": NaN}')}, "NaN is not finite"),
        ({"failure_rows": np.array([7])}, "failures of these rows"),
        ({"failure_rows": np.array([1, 2])}, "failures are not rows and reasons"),
        ({"failure_rows": np.array([1.0])}, "failures are not rows and reasons"),
        ({"note": np.array("[" * 100_000)}, "its note is no JSON"),
        ({"note": np.array('{"flip": true}')}, "its note is no JSON"),
        ({"note": np.array('{"format": 1, "flip": "both"}')}, "flip 'both'"),
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
    with pytest.raises(DatasetError, match=r"not a whole \.npz file"):
        read_embeddings(path)
    assert not (tmp_path / "PWNED").exists()


def test_lies_about_sizes_reserve_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 512)}
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("vectors.npy", "w") as member:
            np.lib.format.write_array_header_1_0(member, header)
        with archive.open("ids.npy", "w") as member:
            np.lib.format.write_array(member, np.array(["a"]))
    with pytest.raises(
        DatasetError, match=r"vectors\.npy announces float32 \(1099511627776, 512\)"
    ):
        read_embeddings(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vectors.npy", bytes(8 << 20))
    with pytest.raises(DatasetError, match="its arrays claim 8,388,608 bytes, too many for a file"):
        read_embeddings(path)


def test_missing_and_cut_files(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"gone\.npz: the embeddings file cannot be read \(No su"
    ):
        read_embeddings(tmp_path / "gone.npz")
    with pytest.raises(DatasetError, match="cannot be read"):
        read_embeddings(tmp_path)
    path = tmp_path / "e.npz"
    write_embeddings(path, toy(40))
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(DatasetError, match=r"e\.npz: "):
            read_embeddings(path)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 3000), st.integers(0, 255))
def test_a_changed_byte_gives_embeddings_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("byte") / "e.npz"
    write_embeddings(path, toy(failures={1: "no face"}))
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(content)
    try:
        found = read_embeddings(path)
    except DatasetError as error:
        assert str(error).startswith(str(path))
        return
    # What the archive's checksums let pass is no content.
    np.testing.assert_array_equal(found.vectors, toy(failures={1: "no face"}).vectors)


@pytest.mark.parametrize("compressed", [False, True])
def test_plain_files_of_others(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "foreign.npz"
    save = np.savez_compressed if compressed else np.savez
    vectors = np.random.default_rng(0).normal(size=(4, 6))
    save(path, embeddings=vectors, names=np.array(["a", "b", "c", "d"]), other=np.zeros(3))
    found = read_embeddings(path)
    np.testing.assert_array_equal(found.vectors, vectors.astype(np.float32))
    np.testing.assert_allclose(found.norms, np.sqrt((vectors**2).sum(axis=1)), rtol=1e-6)
    assert found.ids is not None and found.ids.tolist() == ["a", "b", "c", "d"]
    assert (found.flip, found.subjects, found.failures) == (None, None, {})
    assert found.note["stored_dtype"] == "float64"
    # What was read can be written in our own form.
    write_embeddings(tmp_path / "own.npz", found)
    assert same(read_embeddings(tmp_path / "own.npz"), found)

    half = vectors.astype(np.float16)
    half[2, 3], half[3] = np.inf, np.nan
    subjects = np.array([b"x", b"y", b"x", b"y"])
    save(path, vectors=half, image_id=np.array([7, 3, 5, 1]), subjects=subjects)
    found = read_embeddings(path)
    np.testing.assert_array_equal(found.vectors[:2], half[:2].astype(np.float32))
    assert np.isnan(found.vectors[2:]).all() and np.isnan(found.norms[2:]).all()
    assert sorted(found.failures) == [2, 3] and "not finite" in found.failures[2]
    assert found.ids is not None and found.ids.tolist() == ["7", "3", "5", "1"]
    assert found.subjects is not None and found.subjects.tolist() == ["x", "y", "x", "y"]
    assert found.note["stored_dtype"] == "float16"


def test_files_of_others_that_do_not_do(tmp_path: Path) -> None:
    path, two = tmp_path / "f.npz", np.array(["a", "b"])
    for arrays, words in (
        ({"vectors": np.zeros((2, 3))}, "image_id or .* is missing .there is v"),
        ({"data": np.zeros(3)}, "vectors or .* is missing .there is data"),
        ({"vectors": np.zeros((2, 3), np.int64), "ids": two}, "found int64"),
        ({"vectors": np.zeros((3, 3)), "ids": two}, r"found float64 \(3, 3\), <U1 \(2,\)"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(DatasetError, match=words):
            read_embeddings(path)


def test_half_precision_of_our_own_form_is_widened(tmp_path: Path) -> None:
    embeddings = toy(failures={1: "no face"})
    half = embeddings.vectors.astype(np.float16)
    found = read_embeddings(rewritten(tmp_path / "e.npz", vectors=half))
    np.testing.assert_array_equal(found.vectors, half.astype(np.float32))
    assert found.note == {**NOTE, "stored_dtype": "float16"}


# --- part by part ----------------------------------------------------------------------------

COUNT = 2 * BATCHES_PER_CHUNK * 3 + 5
"""Three whole parts of two images a batch, and a short one."""


def whole() -> Embeddings:
    names = np.array([f"person {i % 7}" for i in range(COUNT)])
    return toy(COUNT, {0: "a", 15: "b", 16: "c", COUNT - 1: "d"}, subjects=names)


def writer(path: Path, note: dict[str, Any] = NOTE) -> EmbeddingsWriter:
    embeddings = whole()
    assert embeddings.ids is not None
    return EmbeddingsWriter(path, embeddings.ids, note, subjects=embeddings.subjects)


def share(embeddings: Embeddings, rows: np.ndarray) -> Embeddings:
    assert embeddings.ids is not None
    return replace(
        embeddings,
        vectors=embeddings.vectors[rows],
        norms=embeddings.norms[rows],
        ids=embeddings.ids[rows],
        subjects=None,
        failures={
            place: embeddings.failures[row]
            for place, row in enumerate(rows.tolist())
            if row in embeddings.failures
        },
    )


def test_parts_in_any_order_give_the_file_written_at_once(tmp_path: Path) -> None:
    write_embeddings(tmp_path / "once.npz", whole())
    path = tmp_path / "new" / "e.npz"
    first = writer(path)
    assert first.begin() == [0, 1, 2, 3]
    assert [len(first.rows(part)) for part in range(4)] == [16, 16, 16, 5]
    first.write(2, share(whole(), first.rows(2)))
    first.write(3, share(whole(), first.rows(3)))
    # Another process, after a kill that left something half-written.
    (first.folder / ".part-000001.npz.x.tmp").write_bytes(b"half")
    second = writer(path)
    assert second.begin() == [0, 1]
    with pytest.raises(DatasetError, match="2 parts are missing, the first is number 0"):
        second.finish()
    for part in (1, 0):
        second.write(part, share(whole(), second.rows(part)))
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
        first.write(part, share(whole(), first.rows(part)))
    shutil.copytree(first.folder, tmp_path / "copy")
    first.finish()
    # Killed after the rename, before the parts were removed; and before the rename.
    for gone in (False, True):
        shutil.copytree(tmp_path / "copy", first.folder)
        (first.folder / "joined.npz").write_bytes(b"half")
        if gone:
            path.unlink()
        again = writer(path)
        assert again.begin() == []
        again.finish()
        assert same(read_embeddings(path), whole())
        assert not first.folder.exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"flip": False}, r"differs in flip; run that command again"),
        ({"batch_size": 4}, "batch_size"),
        (
            {"model": {"sha256": "cd"}},
            r"model\.sha256, model\.device",
        ),
        ({"align": {"method": "yunet"}}, "align"),
    ],
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
    assert other is not None
    with pytest.raises(DatasetError, match="differs in ids"):
        EmbeddingsWriter(path, other[::-1], NOTE).begin()
    with pytest.raises(DatasetError, match="differs in images, ids"):
        EmbeddingsWriter(path, other[:50], NOTE).begin()


def test_names_paths_and_device_numbers_are_free(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    writer(path).begin()
    model = {"sha256": "ab", "path": "elsewhere", "device": "cuda:3", "name": "other"}
    assert writer(path, {**NOTE, "model": model}).begin() == [0, 1, 2, 3]


def test_wrong_or_damaged_parts(tmp_path: Path) -> None:
    first = writer(tmp_path / "e.npz")
    first.begin()
    with pytest.raises(DatasetError, match=r"part-000000\.npz: holds other images than it should"):
        first.write(0, share(whole(), first.rows(1)))
    for part in range(4):
        first.write(part, share(whole(), first.rows(part)))
    (first.folder / "part-000002.npz").write_bytes(b"damaged")
    with pytest.raises(DatasetError, match=r"part-000002\.npz: not a whole \.npz file"):
        first.finish()
    assert not first.path.exists()
    (first.folder / "job.json").write_bytes(b"damaged")
    with pytest.raises(DatasetError, match=r"job\.json: cannot be read"):
        first.begin()


def test_a_folder_of_strangers_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "e.npz.parts"
    folder.mkdir()
    (folder / "thesis.tex").write_text("words")
    with pytest.raises(DatasetError, match=r"holds thesis\.tex but no parts of embeddings"):
        writer(tmp_path / "e.npz").begin()
    assert (folder / "thesis.tex").read_text() == "words"


def test_a_job_without_parts_leaves_no_folder(tmp_path: Path) -> None:
    first = writer(tmp_path / "e.npz")
    first.begin()
    assert first.abandon() == 0 and not first.folder.exists()
    first.begin()
    first.write(3, share(whole(), first.rows(3)))
    assert first.abandon() == 5 and first.folder.exists()


def test_jobs_that_cannot_be(tmp_path: Path) -> None:
    empty = np.array([], np.str_)
    with pytest.raises(DatasetError, match="there is no image to embed"):
        EmbeddingsWriter(tmp_path / "e.npz", empty, NOTE)
    with pytest.raises(DatasetError, match="the id 'a' names two images"):
        EmbeddingsWriter(tmp_path / "e.npz", np.array(["a", "a"]), NOTE)
    with pytest.raises(DatasetError, match=r"ends in \.npz"):
        EmbeddingsWriter(tmp_path / "e.h5", np.array(["a"]), NOTE)
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="cannot be written"):
        EmbeddingsWriter(tmp_path / "file" / "e.npz", np.array(["a"]), NOTE).begin()


# --- names in any Unicode form ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["own", "text", "bytes", "parquet"])
def test_names_are_composed_whatever_the_file(tmp_path: Path, kind: str) -> None:
    names = ["Zoe\u0308/1.jpg", "Zo\xeb/2.jpg", "a/3.jpg"]
    people = ["Zoe\u0308", "Zo\xeb", "a"]
    vectors = toy(3).vectors
    path = tmp_path / "e.npz"
    if kind == "own":  # as it was written when names were kept as they came
        write_embeddings(path, replace(toy(3), subjects=np.array(people)))
        arrays = dict(np.load(path))
        np.savez(path, **{**arrays, "ids": names, "subjects": people})
    elif kind in ("text", "bytes"):
        columns = [np.array([name.encode() for name in column]) for column in (names, people)]
        if kind == "text":
            columns = [np.array(names), np.array(people)]
        np.savez(path, vectors=vectors, ids=columns[0], labels=columns[1])
    else:
        path = tmp_path / f"e.{kind}"
        frame = pd.DataFrame(vectors, columns=["e0", "e1", "e2"])
        frame = frame.assign(image_id=names, subject_id=people)
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    found = read_embeddings(path)
    assert found.ids is not None and found.subjects is not None
    assert found.ids.tolist() == ["Zoë/1.jpg", "Zoë/2.jpg", "a/3.jpg"]
    assert found.subjects.tolist() == ["Zoë", "Zoë", "a"]
    np.testing.assert_array_equal(found.vectors, vectors)


def test_ids_that_become_one_are_refused(tmp_path: Path) -> None:
    ids = np.array(["\xe9.jpg", "e\u0301.jpg"])
    np.savez(tmp_path / "e.npz", vectors=toy(2).vectors, ids=ids)
    with pytest.raises(DatasetError, match=r"'é\.jpg' names two images"):
        read_embeddings(tmp_path / "e.npz")
    with pytest.raises(DatasetError, match="names two images"):
        EmbeddingsWriter(tmp_path / "w.npz", ids, NOTE)


def test_parts_of_names_in_another_form_are_joined(tmp_path: Path) -> None:
    ids = np.array(["e\u0301.jpg", "b.jpg"])
    writer = EmbeddingsWriter(tmp_path / "e.npz", ids, NOTE)
    (part,) = writer.begin()
    writer.write(part, replace(toy(2), ids=ids))
    writer.finish()
    found = read_embeddings(tmp_path / "e.npz").ids
    assert found is not None and found.tolist() == ["é.jpg", "b.jpg"]
