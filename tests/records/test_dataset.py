"""Data sets: the same sample is the same image in any batch, worker and process."""

from __future__ import annotations

import pickle
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toy_files import picture, write_files, write_tar

from facerec.base.errors import DatasetError, ImageError
from facerec.records.augment import Augmentation
from facerec.records.dataset import Batch, BatchLoader, BatchRequest
from facerec.records.decode import decode_image
from facerec.records.images import SubjectFolders
from facerec.records.layout import RecordImages, write_image_records
from facerec.records.training_set import Data, Part, open_dataset

CLASSES, PER_CLASS = 6, 5
ALL = Augmentation(0.5, 0.2, 0.2, 0.2, 0.2)


def items(bad: tuple[int, ...] = ()) -> list[tuple[int, str, bytes]]:
    rows = [
        (label, f"id{label}/{n}.jpg", picture(label * PER_CLASS + n))
        for label in range(CLASSES)
        for n in range(PER_CLASS)
    ]
    return [(c, name, data[:-200] if i in bad else data) for i, (c, name, data) in enumerate(rows)]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack")
    write_image_records(folder / "train", items())
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folder")
    return write_files(root, {name: data for _, name, data in items()})


class Batches:
    """A sampler: fixed index rows of one epoch."""

    def __init__(self, rows: list[list[int]], epoch: int = 0) -> None:
        self.rows, self.epoch = rows, epoch

    def __iter__(self) -> Iterator[BatchRequest]:
        for row in self.rows:
            yield BatchRequest(self.epoch, np.array(row))


def by_index(batches: list[Batch]) -> dict[int, tuple[bytes, int]]:
    return {
        int(index): (image.numpy().tobytes(), int(label))
        for batch in batches
        for index, image, label in zip(batch.indices, batch.images, batch.labels, strict=True)
    }


@pytest.mark.parametrize("kind", ["records", "folder"])
def test_samples_are_the_decoded_files(kind: str, pack: Path, folder: Path) -> None:
    dataset = open_dataset(Data(pack if kind == "records" else folder), seed=0)
    assert isinstance(dataset.sources[0], RecordImages if kind == "records" else SubjectFolders)
    assert len(dataset) == CLASSES * PER_CLASS and dataset.num_classes == CLASSES
    for i, (label, name, data) in enumerate(items()):
        image, found = dataset[i]
        np.testing.assert_array_equal(image, decode_image(data, ""))
        assert found == label == dataset.labels[i]
        assert dataset.sample(i) == (data, label)
        assert dataset.name(i) == (str(i + 1) if kind == "records" else name)
    np.testing.assert_array_equal(dataset[-1][0], dataset[len(dataset) - 1][0])
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_a_batch_equals_the_naive_loop(pack: Path) -> None:
    dataset = open_dataset(Data(pack, augmentation=ALL), seed=5)
    indices = np.random.default_rng(0).permutation(len(dataset))[:17]
    batch = dataset.__getitems__(BatchRequest(3, indices))
    assert batch.images.dtype == torch.uint8 and batch.images.shape == (17, 112, 112, 3)
    assert batch.labels.dtype == batch.indices.dtype == torch.int64
    assert len(batch) == 17 and batch.skipped == []
    for row, index in enumerate(indices.tolist()):
        image, label = dataset[index]
        expected = ALL(image, 5, 3, index)
        np.testing.assert_array_equal(batch.images[row].numpy(), expected)
        assert batch.labels[row] == label and batch.indices[row] == index


def test_batches_do_not_depend_on_their_composition(pack: Path) -> None:
    dataset = open_dataset(Data(pack, augmentation=ALL), seed=1)
    n = len(dataset)
    whole = by_index([dataset.__getitems__(BatchRequest(0, np.arange(n)))])
    assert len(whole) == n
    shuffled = np.random.default_rng(0).permutation(n)
    for size in (1, 4, 7):
        rows = [shuffled[i : i + size] for i in range(0, n, size)]
        assert by_index([dataset.__getitems__(BatchRequest(0, row)) for row in rows]) == whole
    other_epoch = by_index([dataset.__getitems__(BatchRequest(1, np.arange(n)))])
    other_seed = open_dataset(Data(pack, augmentation=ALL), seed=2)
    for other in (other_epoch, by_index([other_seed.__getitems__(BatchRequest(0, np.arange(n)))])):
        assert sum(whole[i] != other[i] for i in range(n)) > n / 3


@pytest.mark.parametrize(
    ("workers", "method"),
    [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.integration)],
)
def test_the_loader_gives_the_same_batches_with_any_workers(
    workers: int, method: str | None, pack: Path
) -> None:
    dataset = open_dataset(Data(pack, augmentation=ALL), seed=1)
    dataset[0]  # the file is mapped before the workers start
    rows = [[3, 29, 0], [11, 12, 13, 14], [7], [28, 1]]
    sampler = Batches(rows)
    loader = BatchLoader(dataset, sampler, workers=workers, start_method=method)  # type: ignore[arg-type]
    for epoch in (0, 1):
        sampler.epoch = epoch
        batches = list(loader)
        assert [batch.indices.tolist() for batch in batches] == rows
        for row, batch in zip(rows, batches, strict=True):
            expected = dataset.__getitems__(BatchRequest(epoch, np.array(row)))
            assert torch.equal(batch.images, expected.images)
            assert torch.equal(batch.labels, expected.labels)


def test_errors_of_workers_arrive_as_one_sentence(tmp_path: Path) -> None:
    write_image_records(tmp_path / "train", items(bad=(4,)))
    dataset = open_dataset(Data(tmp_path), seed=0)
    for workers in (0, 1):
        # Not `pytest.raises`, whose traceback would hold the loader and with it the workers.
        sentence = ""
        try:
            list(BatchLoader(dataset, Batches([[0, 1], [3, 4]]), workers=workers))
        except ImageError as error:
            sentence = str(error)
        assert sentence.startswith(f"{tmp_path}/train.rec, key 5, offset ")
        assert "end marker" in sentence and "\n" not in sentence


# Damaged samples


def test_skip_replaces_counts_and_lists(tmp_path: Path) -> None:
    bad = (2, 9, 21)
    write_image_records(tmp_path / "train", items(bad))
    dataset = open_dataset(Data(tmp_path, on_error="skip", augmentation=ALL), seed=3)
    n = len(dataset)
    rows = [np.arange(n)[i : i + 8] for i in range(0, n, 8)]
    batches = [dataset.__getitems__(BatchRequest(0, row)) for row in rows]
    skipped = [item for batch in batches for item in batch.skipped]
    assert [item.index for item in skipped] == list(bad)
    for item in skipped:
        assert item.where == dataset.where(item.index) and item.where in item.cause
        assert "end marker" in item.cause
    for row, batch in zip(rows, batches, strict=True):
        asked = torch.from_numpy(row)
        replaced = batch.indices != asked
        assert asked[replaced].tolist() == [item.index for item in batch.skipped]
        assert int((~replaced).sum()) + len(batch.skipped) == len(batch)
        assert not np.isin(batch.indices.numpy(), bad).any()
        assert batch.labels.tolist() == dataset.labels[batch.indices.numpy()].tolist()
        for at, (index, asked_index) in enumerate(zip(batch.indices, asked, strict=True)):
            expected = ALL(dataset[int(index)][0], 3, 0, int(asked_index))
            np.testing.assert_array_equal(batch.images[at].numpy(), expected)


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


# Subsets


def test_a_subset_is_numbered_anew_in_the_order_of_old_numbers(pack: Path) -> None:
    dataset = open_dataset(Data(pack, augmentation=ALL), seed=0)
    rows = np.array([28, 3, 29, 4])
    subset = dataset.subset(rows)
    assert subset.labels.tolist() == [1, 0, 1, 0] and subset.num_classes == 2
    assert [subset.name(i) for i in range(4)] == ["29", "4", "30", "5"]
    for i, row in enumerate(rows.tolist()):
        np.testing.assert_array_equal(subset[i][0], dataset[row][0])
        assert subset[i][1] == subset.labels[i] and subset.where(i) == dataset.where(row)
    batch = subset.__getitems__(BatchRequest(0, np.array([2, 1])))
    assert batch.labels.tolist() == [1, 0] and batch.indices.tolist() == [2, 1]
    np.testing.assert_array_equal(batch.images[0].numpy(), ALL(subset[2][0], 0, 0, 2))
    nested = subset.subset(np.array([1, 2, 3]), np.array([0, 1]))
    assert nested.sample(1) == (dataset.encoded(29), 1) and nested.labels.tolist() == [0, 1, 0]
    copy = pickle.loads(pickle.dumps(nested))
    assert [copy.sample(i) for i in range(3)] == [nested.sample(i) for i in range(3)]


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
    for row, i in enumerate([10, 2, 6, 0]):
        np.testing.assert_array_equal(joined[i][0], images[i][0])
        np.testing.assert_array_equal(batch.images[row], ALL(images[i][0], 3, 1, i))
    assert batch.labels.tolist() == [4, 1, 3, 0]
    assert joined.where(8).startswith(f"{two[1]}/train.rec, key 3, offset ")
    assert joined.name(8) == "1/3"
    assert joined.best_order(np.array([10, 2, 6, 0])).tolist() == [3, 1, 2, 0]
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


# People with few images


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
