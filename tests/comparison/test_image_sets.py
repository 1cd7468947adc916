"""Image sets: records, folders and lists, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
from helpers.toy_files import write_files
from scipy.io import savemat

from facerec.base.errors import DatasetError
from facerec.comparison.image_sets import ImageData, ImageSet, open_image_set
from facerec.records import write_image_records, write_pack

EXAMPLES = Path(__file__).parents[2] / "examples"


def jpeg(number: int, height: int = 20, width: int = 30) -> bytes:
    return cv2.imencode(".png", np.full((height, width, 3), number, np.uint8))[1].tobytes()


def write(root: Path, names: Sequence[str]) -> None:
    """Write image number i, whose pixels are all i, under each name."""
    write_files(root, {name: jpeg(number) for number, name in enumerate(names)})


def opened(path: Path) -> ImageSet:
    return open_image_set(ImageData(path))


# ---- lists -----------------------------------------------------------------------------------

ROWS = (
    ("b/1.png", "10", "train"),
    ("b/2.png", "2", "train"),
    ("b/3.png", "2", "train"),
    ("b/4.png", "10", "train"),
    ("c/5.png", "11", "query"),
    ("c/6.png", "11", "gallery"),
    ("d/7.png", "1", "query"),
)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    write(tmp_path, [name for name, *_ in ROWS])
    frame = pd.DataFrame(ROWS, columns=["path", "class", "part"])
    frame.to_csv(tmp_path / "images.csv", index=False)
    return tmp_path


def test_a_list(listed: Path) -> None:
    images = opened(listed)
    assert images.class_names == ["2", "10", "11"]  # as numbers, those for training first
    assert images.labels.tolist() == [1, 0, 0, 1, 2, 2] and images.train_classes == 2
    assert images.partition.tolist() == [part for *_, part in ROWS[:6]]
    assert images.ids.tolist() == [name for name, *_ in ROWS[:6]]
    assert [int(images.read(i).max()) for i in range(6)] == list(range(6))
    (note,) = images.notes
    assert "1 of 4 classes have one image" in note and note.endswith(": 1")
    frame = pd.read_csv(listed / "images.csv").drop(columns="part")
    frame.to_csv(listed / "images.csv", index=False)
    plain = opened(listed)
    assert plain.partition is None and plain.train_classes is None
    assert plain.class_names == ["2", "10", "11"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("path,", "file,", r"images\.csv, line 1: there is no column 'path'"),
        ("2.png,2,", "2.png,,", "1 images have no class"),
        ("2.png,2,train", "2.png,11,train", "1 classes are in the training part and in the test"),
        ("b/2.png", "../2.png", "1 of 7 listed images are not in"),
        ("b/2.png", "b/" + "x" * 2000, "1 of 7 listed images are not in"),
    ],
)
def test_lists_that_are_wrong(listed: Path, before: str, after: str, words: str) -> None:
    file = listed / "images.csv"
    file.write_text(file.read_text().replace(before, after, 1))
    with pytest.raises(DatasetError, match=words):
        opened(listed)


def example(kind: str, root: Path) -> pd.DataFrame:
    namespace: dict[str, object] = {"__name__": "example"}
    exec((EXAMPLES / "retrieval_sets.py").read_text(), namespace)
    frame = namespace[kind](root)  # type: ignore[operator]
    frame.to_csv(root / "images.csv", index=False)
    return frame


def test_lists_of_published_sets(tmp_path: Path) -> None:
    names = ["002.Auk/a.png", "001.Wren/b.png", "001.Wren/c.png", "002.Auk/d.png"]
    birds = tmp_path / "birds"
    write(birds / "images", names)
    (birds / "images.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(names)))
    numbers = [f"{i} {int(name[:3])}\n" for i, name in enumerate(names)]
    (birds / "image_class_labels.txt").write_text("".join(reversed(numbers)))
    (birds / "classes.txt").write_text("1 001.Wren\n2 002.Auk\n")
    example("cub", birds)
    assert opened(birds).labels.tolist() == [1, 0, 0, 1]

    cars = tmp_path / "cars"
    write(cars / "cars_train", names)
    rows = np.zeros((1, 4), dtype=[("class", object), ("fname", object)])
    for i, (name, label) in enumerate(zip(names, (2, 10, 10, 2), strict=True)):
        rows[0, i] = (np.uint8(label), name)
    (cars / "devkit").mkdir()
    savemat(cars / "devkit" / "cars_train_annos.mat", {"annotations": rows})
    example("cars196", cars)
    assert opened(cars).class_names == ["2", "10"] and opened(cars).train_classes is None

    shop = tmp_path / "shop"
    write(shop, names)
    for part, lines in (("train", names[1:3]), ("test", [names[0], names[3]])):
        body = "".join(f"{i} {int(name[:3])} 1 {name}\n" for i, name in enumerate(lines))
        (shop / f"Ebay_{part}.txt").write_text(f"image_id class_id super_class_id path\n{body}")
    example("sop", shop)
    assert opened(shop).class_names == ["1", "2"] and opened(shop).train_classes == 1

    clothes = tmp_path / "clothes"
    write(clothes / "Img" / "img", names)
    parts = ("query", "train", "train", "gallery")
    body = "".join(f"img/{n}   id_{n[:3]}  {part}\n" for n, part in zip(names, parts, strict=True))
    (clothes / "Eval").mkdir()
    header = "4\nimage_name item_id evaluation_status\n"
    (clothes / "Eval" / "list_eval_partition.txt").write_text(header + body)
    example("inshop", clothes)
    found = opened(clothes)
    assert found.class_names == ["id_001", "id_002"] and found.partition is not None
    assert found.partition.tolist() == list(parts)


# ---- records and folders ---------------------------------------------------------------------


def test_records_and_folder_agree(tmp_path: Path) -> None:
    names = [f"p{label}/{n}.png" for label in range(3) for n in range(label + 1)]
    write(tmp_path / "faces", names)
    rows = [(int(name[1]), name, jpeg(i)) for i, name in enumerate(names)]
    write_image_records(tmp_path / "rec" / "train", rows, num_classes=5)
    folder, records = opened(tmp_path / "faces"), opened(tmp_path / "rec")
    assert folder.ids.tolist() == names[1:]  # the person with one image is left out
    assert folder.class_names == ["p1", "p2"] and records.class_names == ["1", "2"]
    assert folder.labels.tolist() == records.labels.tolist() == [0, 0, 1, 1, 1]
    for i in range(5):
        np.testing.assert_array_equal(folder.read(i), records.read(i))
    assert "2 of 5 classes have no image" in records.notes[-1]
    assert {"train.rec", "train.idx"} <= {file["name"] for file in records.fingerprint()["files"]}


def test_the_fingerprint_sees_classes_ids_and_files(listed: Path) -> None:
    first = opened(listed).fingerprint()
    assert opened(listed).fingerprint() == first
    assert (first["images"], first["classes"]) == (6, 3)
    text = (listed / "images.csv").read_text()
    (listed / "images.csv").write_text(text.replace("query", "test"))
    moved = opened(listed).fingerprint()
    assert moved["labels_sha256"] == first["labels_sha256"] and moved["files"] != first["files"]
    (listed / "images.csv").write_text(text.replace("d/7.png,1", "d/7.png,11"))
    assert opened(listed).fingerprint()["labels_sha256"] != first["labels_sha256"]


@pytest.mark.parametrize(
    "name", ["lfw", "LFW-deepfunneled", "lfw_112x112", "cfp-dataset", "CFP", "AgeDB", "agedb_30"]
)
def test_a_bench_by_name_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, ["a/1.png", "a/2.png", "b/1.png", "b/2.png"])
    (tmp_path / "link").symlink_to(tmp_path / name)
    rows = [(i // 2, str(i), jpeg(i)) for i in range(4)]
    write_image_records(tmp_path / name / "train", rows)
    sentence = "this is a verification bench, and nothing may be selected on a bench"
    for path in (tmp_path / name, tmp_path / name / "train.rec", tmp_path / "link"):
        with pytest.raises(DatasetError, match=sentence):
            opened(path)


@pytest.mark.parametrize("name", ["any.bin", "any.npz", ""])
def test_a_pack_is_refused(tmp_path: Path, name: str) -> None:
    write_pack(tmp_path / (name or "any.bin"), [jpeg(1), jpeg(2)], [True])
    with pytest.raises(DatasetError, match="this is a verification bench"):
        opened(tmp_path / name)


@pytest.mark.parametrize("name", ["cfp_train", "lfwa", "train", "ms1m"])
def test_training_sets_are_not_taken_for_benches(tmp_path: Path, name: str) -> None:
    rows = [(i // 2, str(i), jpeg(i)) for i in range(4)]
    write_image_records(tmp_path / name / "train", rows)
    write_pack(tmp_path / name / "lfw.bin", [jpeg(1), jpeg(2)], [True])  # lies beside many
    assert opened(tmp_path / name).num_classes == 2
