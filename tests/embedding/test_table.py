from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

from facerec.embedding.file import is_embeddings, read_embeddings, write_embeddings
from facerec.errors import DatasetError, MissingExtraError


def table(folder: Path, text: str, name: str = "e.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def made(images: int = 6, size: int = 5) -> tuple[np.ndarray, list[str]]:
    vectors = np.random.default_rng(0).normal(size=(images, size)).astype(np.float32)
    return vectors, [f"p{i // 2}/ä {i}.jpg" for i in range(images)]


def columns(vectors: np.ndarray, ids: list[str]) -> str:
    """Write numbered columns in an odd order, with a person and something else."""
    size = vectors.shape[1]
    names = [f"e{k}" for k in reversed(range(size))]
    lines = [",".join(["note", *names, "image_id", "subject_id"])]
    for row, image in zip(vectors.tolist(), ids, strict=True):
        lines.append(",".join(["x", *map(repr, reversed(row)), image, image.split("/")[0]]))
    return "\n".join(lines) + "\n"


def test_numbered_columns_and_lists_hold_the_same(tmp_path: Path) -> None:
    vectors, ids = made()
    wide = read_embeddings(table(tmp_path, columns(vectors, ids)))
    np.testing.assert_array_equal(wide.vectors, vectors)
    assert wide.vectors.dtype == wide.norms.dtype == np.float32
    np.testing.assert_array_equal(wide.norms, np.linalg.norm(vectors, axis=1))
    assert wide.ids is not None and wide.ids.tolist() == ids
    assert wide.subjects is not None and wide.subjects.tolist() == [i.split("/")[0] for i in ids]
    assert wide.flip is None and not wide.failures
    rows = "".join(f'{i},"{row}"\n' for i, row in zip(ids, vectors.tolist(), strict=True))
    listed = read_embeddings(table(tmp_path, f"\ufeffimage_id,embedding\r\n{rows}", "l.csv"))
    np.testing.assert_array_equal(listed.vectors, vectors)
    assert listed.subjects is None
    # What was read can be written as embeddings of our own.
    write_embeddings(tmp_path / "e.npz", wide)
    again = read_embeddings(tmp_path / "e.npz")
    np.testing.assert_array_equal(again.vectors, vectors)


def test_empty_embeddings_are_failures_to_acquire(tmp_path: Path) -> None:
    found = read_embeddings(table(tmp_path, "image_id,e0,e1\na,1,2\nb,,\nc,nan,NaN\nd,3,4\n"))
    assert sorted(found.failures) == [1, 2] and "line 3" in found.failures[1]
    assert np.isnan(found.vectors[1:3]).all() and np.isnan(found.norms[1:3]).all()


NAN = float("nan")


@pytest.mark.parametrize("nothing", [[NAN, NAN], [None, None], [NAN, None], [], None])
@pytest.mark.parametrize("form", ["csv", "listed csv", "npz", "parquet", "listed parquet"])
def test_rows_of_nothing_are_failures_in_every_form(
    form: str, nothing: list[float | None] | None, tmp_path: Path
) -> None:
    rows, ids = [[1.0, 2.0], nothing, [3.0, 4.0]], ["a", "b", "c"]
    two = [[NAN if x is None else x for x in row or [NAN, NAN]] for row in rows]
    path = tmp_path / f"e.{form.split()[-1]}"
    if form == "npz":
        np.savez(path, ids=ids, embeddings=np.array(two, np.float32))
    elif form == "csv":
        lines = (f"{name},{row[0]},{row[1]}\n" for name, row in zip(ids, two, strict=True))
        path.write_text("image_id,e0,e1\n" + "".join(lines))
    elif form == "listed csv":
        cells = ("" if row is None else json.dumps(row) for row in rows)
        lines = (f'{name},"{cell}"\n' for name, cell in zip(ids, cells, strict=True))
        path.write_text("image_id,embedding\n" + "".join(lines))
    else:
        pa = pytest.importorskip("pyarrow")
        listed = {"embedding": pa.array(rows, pa.list_(pa.float32()))}
        both = {f"e{k}": [(row or [None] * 2)[k] for row in rows] for k in range(2)}
        content = pa.table({"image_id": ids, **(listed if "listed" in form else both)})
        pytest.importorskip("pyarrow.parquet").write_table(content, path)
    found = read_embeddings(path)
    assert list(found.failures) == [1] and np.isnan(found.vectors[1]).all()
    np.testing.assert_array_equal(found.vectors[[0, 2]], np.array([[1, 2], [3, 4]], np.float32))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: a table of embeddings has the columns image_id and e0"),
        ("image_id,e0\n", "there are no embeddings in it"),
        ("image_id,e0\na,\n", "no row has an embedding"),
        ("image,e0\na,1\n", "line 1: .*found image, e0"),
        ("image_id,e0,embedding\na,1,[1]\n", "line 1: a table of embeddings"),
        ("image_id,e0,e2\na,1,2\n", "line 1: the column e1 is missing, but there is e2"),
        ("image_id,e0,e0\na,1,2\n", "line 1: the column 'e0' occurs twice"),
        ("image_id,e0,e1\na,1,2\nb,1\n", "line 3: 2 fields where the first line has 3"),
        ("image_id,e0,e1\na,1,2\nb,1,x\n", "line 3: e1 is 'x', no number"),
        ("image_id,e0,e1\na,1,2\nb,1,\n", "line 3: e1 is '', no number"),
        ("image_id,e0,e1\na,1,2\nb,1,inf\n", "line 3: value 1 of the embedding is no finite"),
        ("image_id,e0,e1\na,1,2\nb,1,1e60\n", "line 3: value 1 of the embedding is no finite"),
        ("image_id,e0\na,1\n\na,2\n", "line 4: a second embedding of 'a', the first is at line 2"),
        ("image_id,e0\n ,1\n", "line 2: image_id is empty"),
        ('image_id,embedding\na,"[1, 2]"\nb,"[1]"\n', "line 3: 1 values where .* has 2"),
        ('image_id,embedding\na,"[1, [2]]"\n', "line 2: embedding is .* no list of numbers"),
        ("image_id,embedding\na,[0.1 ... 2]\n", "line 2: embedding is .* no list of numbers"),
        ('image_id,embedding\na,"' + "[" * 5000 + '"\n', "line 2: embedding is .* no list"),
        ('image_id,e0\n"a,1\n', "line 2: this is no CSV"),
    ],
)
def test_bad_tables_are_refused_by_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(DatasetError, match=rf"e\.csv.*{sentence}") as found:
        read_embeddings(table(tmp_path, text))
    assert len(str(found.value)) < 600 and "\n" not in str(found.value)


def test_the_names_of_arrays_serve_as_columns_too(tmp_path: Path) -> None:
    plain = read_embeddings(table(tmp_path, 'image_id,subject_id,embedding\na,p,"[1, 2]"\n'))
    other = read_embeddings(table(tmp_path, 'labels,features,images\np,"[1, 2]",a\n', "o.csv"))
    assert other.ids is not None and other.subjects is not None
    np.testing.assert_array_equal(other.vectors, plain.vectors)
    assert (other.ids.tolist(), other.subjects.tolist()) == (["a"], ["p"])
    assert is_embeddings(tmp_path / "o.csv")
    wide = read_embeddings(table(tmp_path, "features,image_id,e0,e1\nx,a,1,2\n", "w.csv"))
    np.testing.assert_array_equal(wide.vectors, plain.vectors)


def test_rows_without_ids_are_numbered_where_that_is_enough(tmp_path: Path) -> None:
    vectors, labels = np.eye(3, dtype=np.float32), ["a", "a", "b"]
    np.savez(tmp_path / "e.npz", features=vectors, labels=np.array(labels))
    rows = "".join(
        f'{label},"{row}"\n' for label, row in zip(labels, vectors.tolist(), strict=True)
    )
    paths = [tmp_path / "e.npz", table(tmp_path, f"labels,features\n{rows}")]
    with contextlib.suppress(ImportError):
        import pyarrow as pa
        import pyarrow.parquet as pq

        paths.append(tmp_path / "e.parquet")
        content = pa.table({"features": vectors.tolist(), "labels": labels})
        pq.write_table(content, paths[-1], row_group_size=2)
    for path in paths:
        read = read_embeddings(path, numbered=True)
        assert read.ids is not None and read.subjects is not None
        np.testing.assert_array_equal(read.vectors, vectors)
        assert (read.ids.tolist(), read.subjects.tolist()) == (["0", "1", "2"], labels)
        with pytest.raises(DatasetError, match="image_id"):
            read_embeddings(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"gone.csv: the table cannot be read"):
        read_embeddings(tmp_path / "gone.csv")
    (tmp_path / "e.csv").write_bytes(b"image_id,e0\n\xff,1\n")
    with pytest.raises(DatasetError, match="line 2: this is no UTF-8"):
        read_embeddings(tmp_path / "e.csv")


def test_tables_of_embeddings_are_told_from_scores(tmp_path: Path) -> None:
    assert is_embeddings(table(tmp_path, "image_id,e0\n"))
    assert is_embeddings(table(tmp_path, "embedding,image_id\n"))
    assert not is_embeddings(table(tmp_path, "label,score\n"))
    assert is_embeddings("e.parquet") and is_embeddings("e.npz")
    assert not is_embeddings("model.onnx") and not is_embeddings(tmp_path / "gone.csv")


def test_parquet_gives_what_csv_gives(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    vectors, ids = made()
    people = [i.split("/")[0] for i in ids]
    rows = [*vectors.tolist(), None]
    wide = {f"e{k}": [None if row is None else row[k] for row in rows] for k in range(5)}
    kinds = [pa.list_(pa.float32()), pa.large_list(pa.float64())]
    if int(pa.__version__.partition(".")[0]) >= 26:  # older ones cannot read such a null
        kinds.append(pa.list_(pa.float32(), 5))
    tables = [pa.array(rows, kind) for kind in kinds]
    shared = {"image_id": [*ids, "lost.jpg"], "subject_id": [*people, None]}
    written = [pa.table({**shared, "embedding": column}) for column in tables]
    written.append(pa.table({**shared, **wide}))
    for number, content in enumerate(written):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(content, path, row_group_size=4)
        found = read_embeddings(path)
        np.testing.assert_array_equal(found.vectors[:-1], vectors)
        assert found.ids is not None and found.ids.tolist() == shared["image_id"]
        assert found.subjects is not None and found.subjects.tolist() == [*people, ""]
        assert list(found.failures) == [6] and "row 6" in found.failures[6]

    def refused(sentence: str, **content: object) -> None:
        path = tmp_path / "bad.parquet"
        pq.write_table(pa.table(content), path)
        with pytest.raises(DatasetError, match=f"bad.parquet.*{sentence}"):
            read_embeddings(path)

    refused("row 1: value 0 of the embedding", image_id=["a", "b"], e0=[1.0, float("inf")])
    refused("row 1: 1 values where", image_id=["a", "b"], embedding=[[1.0, 2.0], [1.0]])
    refused("row 0: value 1", image_id=["a"], embedding=[[1.0, None]])
    refused("row 0: value 1", image_id=["a"], embedding=[[1.0, NAN]])
    refused("row 1: value 0", image_id=["a", "b"], e0=[1.0, None], e1=[1.0, 2.0])
    refused("holds string", image_id=["a"], embedding=["[1]"])
    refused("e0 holds string", image_id=["a"], e0=["1"])
    refused("has the columns image_id", e0=[1.0])
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DatasetError, match=r"bad\.parquet: "):
        read_embeddings(tmp_path / "bad.parquet")
    with pytest.raises(DatasetError, match=r"gone\.parquet: the table cannot be read"):
        read_embeddings(tmp_path / "gone.parquet")


def test_parquet_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'facerec\[parquet\]'"):
        read_embeddings(tmp_path / "e.parquet")
