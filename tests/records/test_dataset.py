"""Data sets: the same sample is the same image in any batch, worker and process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.toy_files import picture, write_files

from facerec.base.errors import ImageError
from facerec.records.augment import Augmentation
from facerec.records.dataset import BatchLoader, BatchRequest
from facerec.records.decode import decode_image
from facerec.records.images import SubjectFolders
from facerec.records.layout import RecordImages, write_image_records
from facerec.records.training_set import Data, open_dataset

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


@pytest.mark.parametrize("kind", ["records", "folder"])
def test_samples_are_the_decoded_files(kind: str, pack: Path, folder: Path) -> None:
    dataset = open_dataset(Data(pack if kind == "records" else folder), seed=0)
    opened = dataset.sources[0].images
    assert isinstance(opened, RecordImages if kind == "records" else SubjectFolders)
    assert len(dataset) == CLASSES * PER_CLASS and dataset.num_classes == CLASSES
    for i, (label, name, data) in enumerate(items()):
        image, found = dataset[i]
        np.testing.assert_array_equal(image, decode_image(data, ""))
        assert found == label == dataset.labels[i]
        assert dataset.sample(i) == (data, label)
        assert dataset.ids[i] == (str(i + 1) if kind == "records" else name)
    np.testing.assert_array_equal(dataset[-1][0], dataset[len(dataset) - 1][0])
    with pytest.raises(IndexError):
        dataset[len(dataset)]


@pytest.mark.parametrize(
    ("workers", "method"),
    [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.integration)],
)
def test_the_loader_gives_the_same_batches_with_any_workers(
    workers: int, method: str | None, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facerec.records.dataset._START_METHOD", method)
    dataset = open_dataset(Data(pack, augmentation=ALL), seed=1)
    dataset[0]  # the file is mapped before the workers start
    rows = [[3, 29, 0], [11, 12, 13, 14], [7], [28, 1]]
    sampler = Batches(rows)
    loader = BatchLoader(dataset, sampler, workers=workers)  # type: ignore[arg-type]
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


# Subsets


def test_a_subset_is_numbered_anew_in_the_order_of_old_numbers(pack: Path) -> None:
    dataset = open_dataset(Data(pack, augmentation=ALL), seed=0)
    rows = np.array([28, 3, 29, 4])
    subset = dataset.subset(rows)
    assert subset.labels.tolist() == [1, 0, 1, 0] and subset.num_classes == 2
    assert subset.ids.tolist() == ["29", "4", "30", "5"]
    for i, row in enumerate(rows.tolist()):
        np.testing.assert_array_equal(subset[i][0], dataset[row][0])
        assert subset[i][1] == subset.labels[i] and subset.where(i) == dataset.where(row)
    batch = subset.__getitems__(BatchRequest(0, np.array([2, 1])))
    assert batch.labels.tolist() == [1, 0] and batch.indices.tolist() == [2, 1]
    np.testing.assert_array_equal(batch.images[0].numpy(), ALL(subset[2][0], 0, 0, 2))
    nested = subset.subset(np.array([1, 2, 3]))
    assert nested.sample(1) == (dataset.encoded(29), 1) and nested.labels.tolist() == [0, 1, 0]
    copy = pickle.loads(pickle.dumps(nested))
    assert [copy.sample(i) for i in range(3)] == [nested.sample(i) for i in range(3)]
