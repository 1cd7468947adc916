"""Several sets as one, sets without rare people, and visits beyond the first."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facerec.errors import DatasetError
from facerec.records.augment import Augmentation
from facerec.records.dataset import (
    BatchLoader,
    BatchRequest,
    FaceDataset,
    Progress,
    Subset,
)
from facerec.records.joined import JoinedDataset
from facerec.records.layout import write_image_records
from facerec.records.training_set import Data, Part, open_dataset

ALL = Augmentation(0.5, 0.2, 0.2, 0.2, 0.2)


class Numbers(FaceDataset):
    """Samples that are nothing but their labels and positions."""

    def __init__(self, name: str, labels: list[int], positions: list[int] | None = None) -> None:
        super().__init__()
        self._own, self._name = np.array(labels, np.int64), name
        self._places = np.array(positions or range(len(labels)))
        self.num_classes = max(labels, default=-1) + 1

    def __len__(self) -> int:
        return len(self._own)

    def sample(self, i: int) -> tuple[bytes, int]:
        return f"{self._name}{i}".encode(), int(self._own[i])

    def where(self, i: int) -> str:
        return f"{self._name}, sample {i}"

    def name(self, i: int) -> str:
        return str(i)

    def read_labels(self, progress: Progress | None = None) -> np.ndarray:
        if progress is not None:
            progress("reading labels", len(self), len(self))
        return self._own

    def positions(self, indices: np.ndarray) -> np.ndarray:
        return self._places[indices]


def face(seed: int) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    image = cv2.resize(coarse, (112, 112), interpolation=cv2.INTER_CUBIC)
    return cv2.imencode(".jpg", image)[1].tobytes()


def write(folder: Path, counts: list[int], first: int = 0, bad: tuple[int, ...] = ()) -> Path:
    """Write people with so many images each; the pixels are numbered from ``first``."""
    labels = np.repeat(np.arange(len(counts)), counts).tolist()
    images = [face(first + i)[: -200 if i in bad else None] for i in range(len(labels))]
    folder.mkdir()
    items = [(c, f"{c}/{i}.jpg", images[i]) for i, c in enumerate(labels)]
    write_image_records(folder / "train", items)
    return folder


def write_folder(folder: Path, people: dict[str, int], first: int = 0) -> Path:
    for name, count in people.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            (folder / name / f"{i}.jpg").write_bytes(face(first := first + 1))
    return folder


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    return write(tmp_path / "a", [2, 3, 1]), write(tmp_path / "b", [1, 4], first=100)


@st.composite
def parts(draw: st.DrawFn) -> list[tuple[list[int], bool]]:
    labels = st.lists(st.integers(-1, 4), min_size=1, max_size=8)
    return draw(st.lists(st.tuples(labels, st.booleans()), min_size=1, max_size=4))


@given(parts(), st.randoms(use_true_random=False))
def test_numbers_of_samples_and_classes(parts: list[tuple[list[int], bool]], random) -> None:
    shared = [True, *(same for _, same in parts[1:])]
    sets = []
    for number, (labels, _) in enumerate(parts):
        positions = list(range(len(labels)))
        random.shuffle(positions)
        sets.append(Numbers("abcd"[number], labels, positions))
    joined = JoinedDataset(sets, shared_classes=shared)
    # A person is (number of the own set, or 0 where classes are shared; class).
    people = [
        None if label < 0 else (0 if shared[p] else p, label)
        for p, (labels, _) in enumerate(parts)
        for label in labels
    ]
    found = joined.labels.tolist()
    assert [label < 0 for label in found] == [person is None for person in people]
    pairs = {(a, b) for a, b in zip(found, people, strict=True) if b is not None}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    # Numbers follow the order of the sets.
    numbered = sorted(pairs)
    assert [person for _, person in numbered] == sorted(person for _, person in numbered)
    assert max(found) < joined.num_classes
    assert joined.num_classes == sum(
        [max(s.num_classes for s, same in zip(sets, shared, strict=True) if same)]
        + [s.num_classes for s, same in zip(sets, shared, strict=True) if not same]
    )
    samples = [(p, i) for p, s in enumerate(sets) for i in range(len(s))]
    assert len(joined) == len(samples)
    for i, (p, within) in enumerate(samples):
        data, label = joined.sample(i)
        assert data == f"{'abcd'[p]}{within}".encode()
        assert label == found[i] or found[i] < 0
        assert joined.where(i) == f"{'abcd'[p]}, sample {within}"
    assert len({joined.name(i) for i in range(len(joined))}) == len(joined)
    asked = np.array(random.sample(range(len(joined)), random.randint(1, len(joined))))
    order = asked[np.argsort(joined.positions(asked), kind="stable")]
    expected = sorted(
        asked.tolist(), key=lambda i: (samples[i][0], sets[samples[i][0]]._places[samples[i][1]])
    )
    assert order.tolist() == expected


def test_images_come_from_their_files(two: tuple[Path, Path]) -> None:
    data = Data(two[0], also=(Part(two[1]),), augmentation=ALL)
    joined = open_dataset(data, seed=3)
    assert isinstance(joined, JoinedDataset) and joined.weights is None
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
    copy = pickle.loads(pickle.dumps(joined))
    np.testing.assert_array_equal(copy[8][0], joined[8][0])


class Requests:
    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[BatchRequest]:
        for row in self.rows:
            yield BatchRequest(0, np.array(row))


def test_workers_read_all_sets(two: tuple[Path, Path]) -> None:
    joined = open_dataset(Data(two[0], also=(Part(two[1]),), min_images=2), seed=3)
    rows = [[8, 0, 3], [5, 1], [2, 7]]
    loader = BatchLoader(joined, Requests(rows), workers=2)  # type: ignore[arg-type]
    for row, batch in zip(rows, loader, strict=True):
        expected = joined.__getitems__(BatchRequest(0, np.array(row)))
        assert batch.images.equal(expected.images) and batch.labels.equal(expected.labels)


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


def test_identities_of_sets_with_the_same_people(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", [2, 2, 2]), write(tmp_path / "b", [1, 1, 3, 2], first=50)
    third = write(tmp_path / "c", [2, 1, 1], first=90)
    keep = {name: tmp_path / f"{name}.txt" for name in "abc"}
    for name, numbers in {"a": "2\n0\n", "b": "2\n3\n", "c": "1\n"}.items():
        keep[name].write_text(numbers)
    data = Data(
        first,
        identities=keep["a"],
        also=(
            Part(second, shared_classes=True, identities=keep["b"]),
            Part(third, identities=keep["c"]),
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
    # A part without a list keeps everybody, also those whom the first leaves out.
    everybody = replace(data, also=(Part(second, shared_classes=True),))
    assert open_dataset(everybody, seed=0).num_classes == 4


def test_weights_follow_the_samples(two: tuple[Path, Path]) -> None:
    data = Data(two[0], also=(Part(two[1], weight=0.5), Part(two[0], weight=2.0)))
    joined = open_dataset(data, seed=0)
    expected = [1.0] * 6 + [0.5] * 5 + [2.0] * 6
    assert joined.weights is not None and joined.weights.tolist() == expected
    assert open_dataset(Data(two[0]), seed=0).weights is None
    subset = Subset(joined, indices=[12, 3, 8])
    assert subset.weights is not None and subset.weights.tolist() == [2.0, 1.0, 0.5]


# People with few images


@pytest.mark.parametrize("least", [1, 2, 3])
def test_people_with_few_images_are_left_out(two: tuple[Path, Path], least: int) -> None:
    dataset = open_dataset(Data(two[0], min_images=least), seed=0)
    counts = [count for count in (2, 3, 1) if count >= least]
    assert dataset.labels.tolist() == np.repeat(np.arange(len(counts)), counts).tolist()
    assert dataset.num_classes == len(counts)


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
