"""Data sets: the same sample is the same image in any batch, worker and process."""

from __future__ import annotations

import io
import tarfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from facerec.errors import DatasetError, ImageError
from facerec.records.augment import Augmentation
from facerec.records.dataset import (
    Batch,
    BatchLoader,
    BatchRequest,
    FolderDataset,
    RecordDataset,
    Subset,
)
from facerec.records.decode import decode_image
from facerec.records.layout import write_image_records
from facerec.records.training_set import Data, open_dataset

CLASSES, PER_CLASS = 6, 5
ALL = Augmentation(0.5, 0.2, 0.2, 0.2, 0.2, "adaface")


def jpeg(seed: int, size: int = 112) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    image = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)
    return cv2.imencode(".jpg", image)[1].tobytes()


def items(bad: tuple[int, ...] = ()) -> list[tuple[int, str, bytes]]:
    rows = [
        (label, f"id{label}/{n}.jpg", jpeg(label * PER_CLASS + n))
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
    for _, name, data in items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(data)
    return root


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
    assert isinstance(dataset, RecordDataset if kind == "records" else FolderDataset)
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


def test_replacements_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    write_image_records(tmp_path / "train", items(bad=(2, 9)))
    dataset = open_dataset(Data(tmp_path, on_error="skip"), seed=3)

    def replacement(epoch: int, row: list[int]) -> int:
        batch = dataset.__getitems__(BatchRequest(epoch, np.array(row)))
        return int(batch.indices[row.index(2)])

    assert replacement(0, [2]) == replacement(0, [9, 5, 2, 1]) == replacement(0, [1, 2, 3])
    assert len({replacement(epoch, [2]) for epoch in range(20)}) > 5


@pytest.mark.parametrize("seed", [0, 1])
def test_the_broken_pack_under_both_policies(shared_data: Path, seed: int) -> None:
    path = shared_data / "records" / "broken" / "corrupt_jpeg.rec"
    strict = open_dataset(Data(path), seed)
    assert len(strict) == 20 and strict.num_classes == 4
    bad = [4, 9, 13, 18]
    for key in range(1, 21):
        request = BatchRequest(0, np.array([key - 1]))
        if key in bad:
            with pytest.raises(ImageError, match=rf"corrupt_jpeg\.rec, key {key}, offset \d+: "):
                strict.__getitems__(request)
        else:
            assert len(strict.__getitems__(request)) == 1
    lenient = open_dataset(Data(path, on_error="skip"), seed)
    batches = [lenient.__getitems__(BatchRequest(0, np.arange(20)[i::3])) for i in range(3)]
    skipped = sorted(item.index + 1 for batch in batches for item in batch.skipped)
    assert skipped == bad
    assert sum(len(batch) - len(batch.skipped) for batch in batches) == 16
    assert all(batch.images.float().std(dim=(1, 2, 3)).min() > 5 for batch in batches)


def test_real_faces(shared_data: Path) -> None:
    dataset = open_dataset(Data(shared_data / "cfp_train"), seed=0)
    assert len(dataset) == 4130 and dataset.num_classes == 295
    np.testing.assert_array_equal(np.bincount(dataset.labels), np.full(295, 14))
    first = Subset(dataset, classes=range(236))
    assert first.num_classes == 236
    batch = first.__getitems__(BatchRequest(0, np.arange(0, len(first), 100)))
    # Faces are warm: with red and blue exchanged this would be the other way round.
    red, _, blue = batch.images.float().mean(dim=(0, 1, 2))
    assert red > blue + 5


# Labels and classes


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
    for _, name, data in images if kind == "folder" else ():
        (tmp_path / "set" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "set" / name).write_bytes(data)
    if kind == "tar":
        (tmp_path / "set").mkdir()
        with tarfile.open(tmp_path / "set" / "s.tar", "w") as archive:
            for number, (label, name, data) in enumerate(images):
                label_form = ("NFC", "NFD")[number % 2]
                text = unicodedata.normalize(label_form, ACCENTED[label]).encode()
                for suffix, content in (("jpg", data), ("cls", text)):
                    info = tarfile.TarInfo(f"{name.removesuffix('.jpg')}.{suffix}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    whole = open_dataset(Data(tmp_path / "set"), seed=0)
    assert whole.num_classes == CLASSES and whole.class_names is not None
    assert {"José", "Zoë"} < set(whole.class_names)
    assert [whole[i][0].shape for i in (0, 29)] == [(112, 112, 3)] * 2
    listed = [unicodedata.normalize(form, name) for name in ("José", "Zoë")]
    keep, leave = tmp_path / "keep.txt", tmp_path / "leave.csv"
    keep.write_text("\n".join(listed))
    assert open_dataset(Data(tmp_path / "set", identities=keep), seed=0).num_classes == 2
    leave.write_text("subject_id\n" + "\n".join(listed))
    left = open_dataset(Data(tmp_path / "set", exclude=leave), seed=0)
    assert left.class_names is not None and len(left) == (CLASSES - 2) * PER_CLASS
    assert all(name.startswith("id") for name in left.class_names)
    if kind != "records":  # whose images have numbers for names
        name = unicodedata.normalize(form, str(whole.ids[0]))
        leave.write_text(f"image_id\n{name}\n")
        assert len(open_dataset(Data(tmp_path / "set", exclude=leave), seed=0)) == len(whole) - 1


# Subsets


def test_subset_by_classes_relabels_in_order(pack: Path) -> None:
    dataset = open_dataset(Data(pack, augmentation=ALL), seed=0)
    subset = Subset(dataset, classes=[4, 1])
    assert subset.num_classes == 2 and subset.classes.tolist() == [1, 4]
    assert subset.labels.tolist() == [0] * PER_CLASS + [1] * PER_CLASS
    for i in range(len(subset)):
        image, label = subset[i]
        original, old = dataset[int(subset.indices[i])]
        np.testing.assert_array_equal(image, original)
        assert subset.classes[label] == old
    batch = subset.__getitems__(BatchRequest(0, np.array([7, 2])))
    assert batch.labels.tolist() == [1, 0] and batch.indices.tolist() == [7, 2]
    expected = ALL(subset[7][0], 0, 0, 7)
    np.testing.assert_array_equal(batch.images[0].numpy(), expected)


def test_subset_by_indices_keeps_their_order(pack: Path) -> None:
    dataset = open_dataset(Data(pack), seed=0)
    subset = Subset(dataset, indices=[28, 3, 29])
    assert subset.labels.tolist() == [1, 0, 1] and subset.num_classes == 2
    assert [subset.name(i) for i in range(3)] == ["29", "4", "30"]
    kept = Subset(dataset, indices=[28, 3], relabel=False)
    assert kept.labels.tolist() == [5, 0] and kept.num_classes == CLASSES
    nested = Subset(subset, classes=[1])
    assert [nested.where(i) for i in range(2)] == [dataset.where(28), dataset.where(29)]


def test_identities_from_a_file(tmp_path: Path, pack: Path, folder: Path) -> None:
    path = tmp_path / "keep.txt"
    path.write_text("id4\n\nid1\r\n")
    subset = open_dataset(Data(folder, identities=path), seed=0)
    assert subset.class_names == ["id1", "id4"] and len(subset) == 2 * PER_CLASS
    path.write_text("4\n1\n")
    by_number = open_dataset(Data(pack, identities=path), seed=0)
    for i in range(len(subset)):
        np.testing.assert_array_equal(by_number[i][0], subset[i][0])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1\n6\n", r"line 2: the data set has no identity '6'; write a class number below 6"),
        ("x\n", "line 1: the data set has no identity 'x'"),
        ("1\n²\n", "line 2"),
        ("1\n2\n1\n", "line 3: identity '1' is in line 1 already"),
        ("\n\n", "names no identity"),
        (b"\xff\xfe1\n", "byte 0 is not UTF-8"),
    ],
)
def test_bad_identity_files(text: str | bytes, sentence: str, tmp_path: Path, pack: Path) -> None:
    path = tmp_path / "keep.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DatasetError, match=sentence) as caught:
        open_dataset(Data(pack, identities=path), seed=0)
    assert str(caught.value).startswith(str(path))


# Folders


# Records beside the plain ones
