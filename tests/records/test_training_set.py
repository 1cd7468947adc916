"""Training sets of several files: who is whom, and who is left out."""

from __future__ import annotations

import pickle
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toy_files import picture, write_files, write_tar

from facerec.base.errors import DatasetError
from facerec.records.dataset import BatchRequest
from facerec.records.layout import write_image_records
from facerec.records.training_set import Data, Part, open_dataset
from tests.records.test_dataset import ALL, CLASSES, PER_CLASS, items

# Names in any Unicode form

ACCENTED = ("Jose\u0301", "Zo\xeb", "id2", "id3", "id4", "id5")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("kind", ["records", "folder", "tar"])
def test_lists_name_people_and_images_in_any_form(tmp_path: Path, kind: str, form: Any) -> None:
    images = [
        (label, name.replace(f"id{label}/", f"{ACCENTED[label]}/e\u0301"), data)
        for label, name, data in items()
    ]
    if kind == "records":
        write_image_records(tmp_path / "set" / "train", images)
        (tmp_path / "set" / "classes.txt").write_text("".join(f"{name}\n" for name in ACCENTED))
    if kind == "folder":
        write_files(tmp_path / "set", {name: data for _, name, data in images})
    if kind == "tar":
        members = []
        for number, (label, name, data) in enumerate(images):
            text = unicodedata.normalize(("NFC", "NFD")[number % 2], ACCENTED[label]).encode()
            members += [(name, data), (name.replace(".jpg", ".cls"), text)]
        write_tar(tmp_path / "set" / "s.tar", members)
    whole = open_dataset(Data(tmp_path / "set"), seed=0)
    assert whole.num_classes == CLASSES and whole.class_names is not None
    assert {"José", "Zoë"} < set(whole.class_names)
    assert [whole[i][0].shape for i in (0, 29)] == [(112, 112, 3)] * 2
    listed = [unicodedata.normalize(form, name) for name in ("José", "Zoë")]
    keep, leave = tmp_path / "keep.txt", tmp_path / "leave.csv"
    keep.write_text("\n".join(listed))
    assert open_dataset(Data(tmp_path / "set", subjects=keep), seed=0).num_classes == 2
    leave.write_text("subject_id\n" + "\n".join(listed))
    left = open_dataset(Data(tmp_path / "set", exclude=leave), seed=0)
    assert left.class_names is not None and len(left) == (CLASSES - 2) * PER_CLASS
    assert all(name.startswith("id") for name in left.class_names)
    if kind != "records":  # whose images have numbers for names
        name = unicodedata.normalize(form, str(whole.ids[0]))
        leave.write_text(f"image_id\n{name}\n")
        assert len(open_dataset(Data(tmp_path / "set", exclude=leave), seed=0)) == len(whole) - 1


# Several sets


def write(folder: Path, counts: list[int], first: int = 0, bad: tuple[int, ...] = ()) -> Path:
    """Write people with so many images each; the pixels are numbered from ``first``."""
    labels = np.repeat(np.arange(len(counts)), counts).tolist()
    images = [picture(first + i)[: -200 if i in bad else None] for i in range(len(labels))]
    folder.mkdir()
    items = [(c, f"{c}/{i}.jpg", images[i]) for i, c in enumerate(labels)]
    write_image_records(folder / "train", items)
    return folder


def write_folder(folder: Path, people: dict[str, int], first: int = 0) -> Path:
    names = [f"{name}/{i}.jpg" for name, count in people.items() for i in range(count)]
    return write_files(folder, {name: picture(i) for i, name in enumerate(names, first + 1)})


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    return write(tmp_path / "a", [2, 3, 1]), write(tmp_path / "b", [1, 4], first=100)


def test_images_come_from_their_files(two: tuple[Path, Path]) -> None:
    data = Data(two[0], also=(Part(two[1]),), augmentation=ALL)
    joined = open_dataset(data, seed=3)
    assert joined.weights is None
    assert joined.labels.tolist() == [0, 0, 1, 1, 1, 2, 3, 4, 4, 4, 4]
    assert joined.num_classes == 5 and joined.class_names is None
    singles = [open_dataset(Data(path), seed=3) for path in two]
    images = [single[i] for single in singles for i in range(len(single))]
    batch = joined.__getitems__(BatchRequest(1, np.array([10, 2, 6, 0])))
    assert batch.images.dtype == torch.uint8 and batch.labels.dtype == torch.int64
    assert len(batch) == 4 and not batch.skipped and batch.indices.tolist() == [10, 2, 6, 0]
    for row, i in enumerate([10, 2, 6, 0]):
        np.testing.assert_array_equal(joined[i][0], images[i][0])
        np.testing.assert_array_equal(batch.images[row], ALL(images[i][0], 3, 1, i))
    assert batch.labels.tolist() == [4, 1, 3, 0]
    assert joined.where(8).startswith(f"{two[1]}/train.rec, key 3, offset ")
    assert joined.ids[8] == "1/3"
    copy = pickle.loads(pickle.dumps(joined))
    np.testing.assert_array_equal(copy[8][0], joined[8][0])


def test_a_record_file_and_a_folder_share_their_people(tmp_path: Path) -> None:
    records = write(tmp_path / "a", [2, 2])
    (records / "classes.txt").write_text("ann\nbob\n")
    folder = write_folder(tmp_path / "more", {"ann": 1, "bob": 2, "eve": 1})
    shared = Data(records, also=(Part(folder, shared_classes=True),))
    joined = open_dataset(shared, seed=0)
    assert joined.labels.tolist() == [0, 0, 1, 1, 0, 1, 1, 2]
    assert joined.class_names == ["ann", "bob", "eve"]
    apart = open_dataset(replace(shared, also=(Part(folder),)), seed=0)
    assert apart.labels.tolist() == [0, 0, 1, 1, 2, 3, 3, 4]
    assert apart.class_names == ["ann", "bob", "ann", "bob", "eve"]
    (records / "classes.txt").write_text("ann\nben\n")
    with pytest.raises(
        DatasetError,
        match=r"a/train\.rec, key 1, .*: class 1 of its set is 'ben', but 'bob' in .*ann/0\.jpg;",
    ):
        open_dataset(shared, seed=0)


def test_subjects_of_sets_with_the_same_people(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", [2, 2, 2]), write(tmp_path / "b", [1, 1, 3, 2], first=50)
    third = write(tmp_path / "c", [2, 1, 1], first=90)
    keep = {name: tmp_path / f"{name}.txt" for name in "abc"}
    for name, numbers in {"a": "2\n0\n", "b": "2\n3\n", "c": "1\n"}.items():
        keep[name].write_text(numbers)
    data = Data(
        first,
        subjects=keep["a"],
        also=(
            Part(second, shared_classes=True, subjects=keep["b"]),
            Part(third, subjects=keep["c"]),
        ),
    )
    joined = open_dataset(data, seed=0)
    # People 0, 2, 3 of the shared numbers and 1 of the third set, numbered anew.
    assert joined.labels.tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 2, 3]
    assert joined.num_classes == 4
    whole = [open_dataset(Data(path), seed=0) for path in (first, second, third)]
    sources = [(0, 0), (0, 1), (0, 4), (0, 5), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 2)]
    for i, (p, within) in enumerate(sources):
        assert joined.sample(i) == (whole[p].encoded(within), joined.labels[i])
        assert joined.where(i) == whole[p].where(within)
    assert open_dataset(replace(data, min_images=5), seed=0).labels.tolist() == [0] * 5
    with pytest.raises(DatasetError, match=r"leave nobody .* are 5\)"):
        open_dataset(replace(data, min_images=6), seed=0)


# Visits beyond the first


def test_a_repeated_image_is_changed_in_another_way(two: tuple[Path, Path]) -> None:
    dataset = open_dataset(Data(two[0], augmentation=ALL), seed=3)
    indices = np.array([4, 4, 1, 4])
    repeats = np.array([0, 1, 0, 2])
    batch = dataset.__getitems__(BatchRequest(5, indices, repeats))
    for row, (index, again) in enumerate(zip(indices.tolist(), repeats.tolist(), strict=True)):
        expected = ALL(dataset[index][0], 3, 5, index + again * len(dataset))
        np.testing.assert_array_equal(batch.images[row], expected)
    plain = dataset.__getitems__(BatchRequest(5, indices))
    assert plain.images[0].equal(batch.images[0]) and plain.images[1].equal(batch.images[0])
    assert batch.labels.equal(plain.labels) and batch.indices.equal(plain.indices)
    many = np.full(40, 4)
    flips = dataset.__getitems__(BatchRequest(5, many, np.arange(40))).images
    assert len({image.numpy().tobytes() for image in flips}) > 10
