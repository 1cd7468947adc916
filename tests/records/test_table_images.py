"""Hugging Face's tables of images train and become records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.toy_files import picture

from facerec.base.errors import DatasetError
from facerec.records.make import make_records
from facerec.records.training_set import Data, open_dataset

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PICTURES = [picture(i) for i in range(5)]


def write(path: Path, labels: list[Any], names: list[str] | None = None, **columns: Any) -> Path:
    cells = [{"bytes": data, "path": None} for data in PICTURES[: len(labels)]]
    table = pa.table({"image": cells, "label": labels} | columns)
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        note = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(note)
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, row_group_size=2)
    return path


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([2, 0, 2, 1, 0], ["b/c", "a", "d"]),
        ([1, 0, 1, 2, 0], None),
        (["y", "x", "y", "z", "x"], None),
    ],
)
def test_a_table_is_a_training_set_and_becomes_records(
    labels: list[Any], names: list[str] | None, tmp_path: Path
) -> None:
    first = write(tmp_path / "data" / "train-00000-of-00002.parquet", labels, names)
    write(first.with_name("train-00001-of-00002.parquet"), labels[:3], names)
    dataset = open_dataset(Data(first.parent), 0)
    both = [*labels, *labels[:3]]
    order = sorted({*labels}) if names is None else range(3)
    expected = [(PICTURES[i % 5], [*order].index(label)) for i, label in enumerate(both)]
    assert [dataset.sample(i) for i in range(8)] == expected
    made = make_records(first.parent, tmp_path / "out")
    assert (made.images, made.subjects) == (8, 3)
    packed = open_dataset(Data(tmp_path / "out"), 0)
    assert [packed.sample(i) for i in range(8)] == sorted(expected, key=lambda pair: pair[1])
    assert packed.names_of_classes() == dataset.names_of_classes()


@pytest.mark.parametrize(
    ("labels", "columns", "words"),
    [
        ([0, 0], {"image": [None, None]}, "row 0: the image itself"),
        (
            [],
            {"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())},
            "no image",
        ),
        ([0, -2], {}, "row 1: its label -2"),
        ([None, None], {}, "no label"),
    ],
)
def test_wrong_tables(labels: list[Any], columns: Any, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", labels, **columns)
    with pytest.raises(DatasetError, match=words):
        open_dataset(Data(path), 0)


def test_a_table_without_labels_several_splits_and_a_row_without(tmp_path: Path) -> None:
    path = write(tmp_path / "d" / "train-00000-of-00001.parquet", [0, None])
    with pytest.raises(DatasetError, match="row 1: it has no label"):
        make_records(path, tmp_path / "out")
    assert make_records(path, tmp_path / "out", on_error="skip").images == 1
    write(path.with_name("test-00000-of-00001.parquet"), [0])
    with pytest.raises(DatasetError, match="test, train"):
        open_dataset(Data(path.parent), 0)
    pq.write_table(pa.table({"image": [b"x"]}), path)
    with pytest.raises(DatasetError, match="columns image and label, found image"):
        open_dataset(Data(path), 0)
