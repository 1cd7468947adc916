"""Image sets: every layout from a tree of its own, and what is refused."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from scipy.io import savemat

from facerec.comparison import image_sets
from facerec.comparison.image_sets import ImageData, ImageSet, Layout, open_image_set, read_mat
from facerec.errors import DatasetError, ImageError
from facerec.records import RecordDataset, write_image_records, write_pack


def jpeg(number: int, height: int = 20, width: int = 30) -> bytes:
    return cv2.imencode(".png", np.full((height, width, 3), number, np.uint8))[1].tobytes()


def write(root: Path, names: Sequence[str]) -> None:
    """Write image number i, whose pixels are all i, under each name."""
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg(number))


def opened(path: Path, layout: Layout) -> ImageSet:
    return open_image_set(ImageData(path, layout))


def content(images: ImageSet) -> dict[str, tuple[str, int]]:
    """What an image set says of each image: class name and the number that its pixels hold."""
    return {
        str(name): (images.class_names[images.labels[i]], int(images.read(i).max()))
        for i, name in enumerate(images.ids)
    }


# ---- CUB-200-2011 ----------------------------------------------------------------------------

CUB = ("002.Auk/a.png", "001.Wren/b.png", "001.Wren/c.png", "002.Auk/d.png", "010.Owl/e.png")


@pytest.fixture
def cub(tmp_path: Path) -> Path:
    write(tmp_path / "images", CUB)
    lines = [f"{3 * i + 1} {name}" for i, name in enumerate(CUB)]
    (tmp_path / "images.txt").write_text("\n".join(lines) + "\n")
    classes = [f"{3 * i + 1} {int(name[:3])}" for i, name in enumerate(CUB)]
    # In another order than images.txt: the numbers join the two.
    (tmp_path / "image_class_labels.txt").write_text("\n".join(reversed(classes)) + "\n")
    (tmp_path / "classes.txt").write_text("10 010.Owl\n1 001.Wren\n2 002.Auk\n")
    return tmp_path


def test_cub(cub: Path) -> None:
    images = opened(cub, "cub")
    assert images.class_names == ["001.Wren", "002.Auk"]
    assert images.ids.tolist() == list(CUB[:4])
    assert images.labels.tolist() == [1, 0, 0, 1]
    assert content(images)[CUB[3]] == ("002.Auk", 3)
    assert images.read(0).shape == (20, 30, 3)
    (note,) = images.notes
    assert "1 of 3 classes have one image" in note
    assert "010.Owl" in note
    assert images.partition is None
    assert images.train_classes is None
    files = [file["name"] for file in images.fingerprint()["files"]]
    assert files == ["images.txt", "image_class_labels.txt", "classes.txt"]


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("images.txt", lambda t: t.replace("7 001.Wren/c.png", "7"), "images.txt, line 3: 2 col"),
        ("images.txt", lambda t: t.replace("7 001", "x 001"), "images.txt, line 3: 'x' is no"),
        ("images.txt", lambda t: t.replace("7 001", "4 001"), "images.txt: a number occurs twice"),
        ("images.txt", lambda t: t.replace("001.Wren/c", "../c"), "no path inside a folder"),
        ("images.txt", lambda t: "", "the list is empty"),
        ("images.txt", lambda t: t.replace("Wren/c", "W" * 2000), "is too long for the name"),
        ("images.txt", lambda t: t.replace("Wren/c", "W" * 300), "1 of 5 listed images are not"),
        ("image_class_labels.txt", lambda t: t.replace("13 10\n", ""), "does not give each image"),
        (
            "image_class_labels.txt",
            lambda t: t.replace("13 10", "13 9"),
            "does not give each image",
        ),
        (
            "image_class_labels.txt",
            lambda t: t.replace("13 10", "14 1"),
            "does not give each image",
        ),
        ("image_class_labels.txt", lambda t: t + "1 1\n", "a number occurs twice"),
        ("classes.txt", lambda t: t.replace("\n", "\0", 1), "classes.txt, line 1: a NUL byte"),
    ],
)
def test_cub_lines_that_are_wrong(
    cub: Path, file: str, change: Callable[[str], str], words: str
) -> None:
    (cub / file).write_text(change((cub / file).read_text()))
    with pytest.raises(DatasetError, match=words):
        opened(cub, "cub")


@pytest.mark.parametrize("name", ["images.txt", "image_class_labels.txt", "classes.txt"])
def test_a_file_of_the_set_is_missing(cub: Path, name: str) -> None:
    (cub / name).unlink()
    with pytest.raises(DatasetError, match=name):
        opened(cub, "cub")


def test_a_listed_image_is_missing(cub: Path) -> None:
    (cub / "images" / CUB[1]).unlink()
    (cub / "images" / CUB[4]).unlink()
    with pytest.raises(DatasetError, match=r"images\.txt: 2 of 5 listed images .*001\.Wren/b"):
        opened(cub, "cub")


def test_an_image_that_does_not_decode(cub: Path) -> None:
    (cub / "images" / CUB[2]).write_bytes(jpeg(3)[:40])
    images = opened(cub, "cub")
    with pytest.raises(ImageError, match=r"001\.Wren/c\.png: the PNG of 40 bytes does not decode"):
        images.read(2)


# ---- Cars196 ---------------------------------------------------------------------------------

CAR_NAMES = ["AM General Hummer", "Acura RL", "Audi TT"]


def annotations(column: str, rows: Sequence[tuple[Any, Any]]) -> np.ndarray:
    table = np.zeros(
        (1, len(rows)), dtype=[("bbox_x1", object), ("class", object), (column, object)]
    )
    for i, (name, label) in enumerate(rows):
        table[0, i] = (np.uint8(3), label, name)
    return table


def cell(names: Sequence[str]) -> np.ndarray:
    found = np.empty((1, len(names)), object)
    found[0, :] = names
    return found


def test_cars196_as_one_list(tmp_path: Path) -> None:
    names = [f"car_ims/{i:06}.jpg" for i in range(6)]
    write(tmp_path, names)
    labels = [3, 1, 2, 1, 3, 2]
    table = annotations("relative_im_path", list(zip(names, map(np.uint8, labels), strict=True)))
    savemat(tmp_path / "cars_annos.mat", {"annotations": table, "class_names": cell(CAR_NAMES)})
    images = opened(tmp_path, "cars196")
    assert images.class_names == CAR_NAMES
    assert images.labels.tolist() == [2, 0, 1, 0, 2, 1]
    assert content(images)["car_ims/000004.jpg"] == ("Audi TT", 4)
    assert [file["name"] for file in images.fingerprint()["files"]] == ["cars_annos.mat"]


@pytest.mark.parametrize("devkit", ["", "devkit"])
def test_cars196_as_the_devkit_has_it(tmp_path: Path, devkit: str) -> None:
    (tmp_path / devkit).mkdir(exist_ok=True)
    names = [f"{part}/{i:05}.jpg" for part in ("cars_train", "cars_test") for i in (1, 2)]
    write(tmp_path, names)
    train = annotations("fname", [("00001.jpg", 2.0), ("00002.jpg", 2.0)])
    savemat(tmp_path / devkit / "cars_train_annos.mat", {"annotations": train})
    test = annotations("fname", [("00001.jpg", 1), ("00002.jpg", 1)])
    savemat(tmp_path / "cars_test_annos_withlabels.mat", {"annotations": test})
    if devkit:
        savemat(tmp_path / devkit / "cars_meta.mat", {"class_names": cell(CAR_NAMES)})
    images = opened(tmp_path, "cars196")
    assert images.class_names == (CAR_NAMES[:2] if devkit else ["1", "2"])
    assert images.labels.tolist() == [1, 1, 0, 0]
    assert images.ids.tolist() == names
    assert len(images.fingerprint()["files"]) == (3 if devkit else 2)


def test_the_training_half_of_cars196_is_taken_with_a_note(tmp_path: Path) -> None:
    names = [f"cars_train/{i:05}.jpg" for i in range(1, 5)]
    write(tmp_path, names)
    rows = [(name.split("/")[1], label) for name, label in zip(names, (2, 1, 2, 1), strict=True)]
    savemat(tmp_path / "cars_train_annos.mat", {"annotations": annotations("fname", rows)})
    images = opened(tmp_path, "cars196")
    assert images.labels.tolist() == [1, 0, 1, 0] and images.train_classes is None
    (note,) = images.notes
    assert "Cars196, training half" in note and "4 images" in note


def test_cars196_without_its_lists(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"neither cars_annos\.mat nor cars_train_annos\.mat"):
        opened(tmp_path, "cars196")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (("a.jpg", 0), "annotation 1: .*found 'a.jpg' and 0"),
        (("a.jpg", 1.5), "annotation 1"),
        (("a.jpg", np.inf), "annotation 1"),
        (("a.jpg", "1"), "annotation 1"),
        ((7, 1), "annotation 1: .*found 7 and 1"),
        (("a.jpg", 4), "no name of class 4"),
    ],
)
def test_cars196_annotations_that_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: tuple[Any, Any], words: str
) -> None:
    write(tmp_path, ["a.jpg", "cars_annos.mat"])
    # What the reader gives for one row is no list, but the row.
    rows = {"relative_im_path": row[0], "class": row[1]}
    found = {"annotations": rows, "class_names": CAR_NAMES}
    monkeypatch.setattr(image_sets, "read_mat", lambda path, names: found)
    with pytest.raises(DatasetError, match=words):
        opened(tmp_path, "cars196")


def damaged_mat(at: int) -> bytes:
    """A list of Cars196 with one byte turned over."""
    rows = [(f"{i:05}.jpg", np.uint8(i % 2 + 1)) for i in range(4)]
    table = np.zeros((1, 4), dtype=[("class", object), ("fname", object)])
    for i, (name, label) in enumerate(rows):
        table[0, i] = (label, name)
    file = io.BytesIO()
    savemat(file, {"annotations": table})
    raw = bytearray(file.getvalue())
    raw[at] ^= 255
    return bytes(raw)


# In SciPy 1.17 the first two end the process that reads them with a segmentation fault.
@pytest.mark.parametrize("content", [damaged_mat(241), damaged_mat(369), b"%PDF" * 100])
def test_a_mat_file_that_is_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cars_annos.mat"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"no sound MATLAB file .* holds annotations"):
        read_mat(path, ["annotations"])


def test_a_mat_file_without_the_variable(tmp_path: Path) -> None:
    savemat(tmp_path / "x.mat", {"other": 1})
    with pytest.raises(DatasetError, match="KeyError: 'annotations'"):
        read_mat(tmp_path / "x.mat", ["annotations"])


# ---- Stanford Online Products ----------------------------------------------------------------

HEADER = "image_id class_id super_class_id path\n"
SOP_TRAIN = (("10", "b/1.JPG"), ("2", "b/2.JPG"), ("2", "b/3.JPG"), ("10", "b/4.JPG"))
SOP_TEST = (("11", "c/5.JPG"), ("11", "c/6.JPG"))


@pytest.fixture
def sop(tmp_path: Path) -> Path:
    write(tmp_path, [name for _, name in (*SOP_TRAIN, *SOP_TEST)])
    for file, rows in (("Ebay_train.txt", SOP_TRAIN), ("Ebay_test.txt", SOP_TEST)):
        lines = [f"{i + 1} {label} 1 {name}\n" for i, (label, name) in enumerate(rows)]
        (tmp_path / file).write_text(HEADER + "".join(lines))
    return tmp_path


def test_sop(sop: Path) -> None:
    images = opened(sop, "sop")
    assert images.class_names == ["2", "10", "11"]  # as numbers, not as text
    assert images.labels.tolist() == [1, 0, 0, 1, 2, 2]
    assert images.partition is not None
    assert images.partition.tolist() == ["train"] * 4 + ["test"] * 2
    assert images.train_classes == 2
    assert content(images)["c/6.JPG"] == ("11", 5)


def test_sop_counts_the_training_classes_that_remain(sop: Path) -> None:
    text = (sop / "Ebay_train.txt").read_text()
    (sop / "Ebay_train.txt").write_text(text.replace("2 2 1 b/2.JPG\n", ""))
    images = opened(sop, "sop")
    assert images.class_names == ["10", "11"]
    assert images.train_classes == 1
    assert images.partition is not None
    assert images.partition.tolist() == ["train", "train", "test", "test"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.replace(HEADER, ""), "the line of column names"),
        (lambda t: t.replace("1 10 1 b/1.JPG", "1 10 b/1.JPG"), "line 2: 4 columns .* found 3"),
        (lambda t: t.replace("1 10 1", "1 ten 1"), "line 2: 'ten' is no whole number"),
        (lambda t: t.replace(" 2 1", " 11 1"), "1 classes are in the training part and in the te"),
        (lambda t: HEADER, "it lists 0 images"),
    ],
)
def test_sop_lines_that_are_wrong(sop: Path, change: Callable[[str], str], words: str) -> None:
    file = sop / "Ebay_train.txt"
    file.write_text(change(file.read_text()))
    with pytest.raises(DatasetError, match=words):
        opened(sop, "sop")


# ---- In-Shop ---------------------------------------------------------------------------------

INSHOP = (
    ("img/MEN/id_00000007/1.jpg", "id_00000007", "train"),
    ("img/MEN/id_00000007/2.jpg", "id_00000007", "train"),
    ("img/WOMEN/id_00000002/1.jpg", "id_00000002", "query"),
    ("img/WOMEN/id_00000002/2.jpg", "id_00000002", "gallery"),
    ("img/WOMEN/id_00000001/1.jpg", "id_00000001", "gallery"),
    ("img/WOMEN/id_00000001/2.jpg", "id_00000001", "query"),
)


def write_inshop(root: Path, images: str, lists: str, count: int = len(INSHOP)) -> Path:
    write(root / images, [row[0] for row in INSHOP])
    file = root / lists / "list_eval_partition.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join("   ".join(row) + "\n" for row in INSHOP)
    file.write_text(f"{count}\nimage_name item_id evaluation_status\n{lines}")
    return file


@pytest.mark.parametrize(("folder", "lists"), [("", ""), ("Img", "Eval"), ("", "Eval")])
def test_inshop(tmp_path: Path, folder: str, lists: str) -> None:
    write_inshop(tmp_path, folder, lists)
    images = opened(tmp_path, "inshop")
    assert images.class_names == ["id_00000007", "id_00000001", "id_00000002"]
    assert images.labels.tolist() == [0, 0, 2, 2, 1, 1]
    assert images.train_classes == 1
    assert images.partition is not None
    assert images.partition.tolist() == [part for _, _, part in INSHOP]
    assert content(images)[INSHOP[4][0]] == ("id_00000001", 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.replace("6\n", "7\n", 1), "it lists 6 images, not all"),
        (lambda t: t.replace("6\n", "", 1), "line 1: 'image_name item_id evaluation_status' is no"),
        (lambda t: t.replace("query", "probe", 1), "'probe' is no part"),
        (lambda t: t.replace("gallery", "train", 1), "1 classes are in the training part and"),
        (lambda t: "6\n", "the line of column names"),
    ],
)
def test_inshop_lines_that_are_wrong(
    tmp_path: Path, change: Callable[[str], str], words: str
) -> None:
    file = write_inshop(tmp_path, "", "")
    file.write_text(change(file.read_text()))
    with pytest.raises(DatasetError, match=words):
        opened(tmp_path, "inshop")


def test_inshop_without_its_list(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"list_eval_partition\.txt: .* cannot be read"):
        opened(tmp_path, "inshop")


# ---- records and folders ---------------------------------------------------------------------


def test_records_and_folder_agree(tmp_path: Path) -> None:
    names = [f"p{label}/{n}.png" for label in range(3) for n in range(label + 1)]
    write(tmp_path / "faces", names)
    rows = [(int(name[1]), name, jpeg(i)) for i, name in enumerate(names)]
    write_image_records(tmp_path / "rec" / "train", rows, num_classes=5)
    folder, records = opened(tmp_path / "faces", "folder"), opened(tmp_path / "rec", "records")
    assert folder.ids.tolist() == names[1:]  # the person with one image is left out
    assert folder.class_names == ["p1", "p2"]
    assert records.class_names == ["1", "2"]
    assert folder.labels.tolist() == records.labels.tolist() == [0, 0, 1, 1, 1]
    for i in range(5):
        np.testing.assert_array_equal(folder.read(i), records.read(i))
    assert "2 of 5 classes have no image" in records.notes[-1]
    assert {"train.rec", "train.idx"} <= {file["name"] for file in records.fingerprint()["files"]}


def test_too_few_classes_with_two_images(tmp_path: Path) -> None:
    write(tmp_path, ["a/1.png", "a/2.png", "b/1.png", "c/1.png"])
    with pytest.raises(DatasetError, match="1 of 3 classes have two images or more"):
        opened(tmp_path, "folder")


def test_the_fingerprint_sees_classes_ids_and_files(cub: Path) -> None:
    first = opened(cub, "cub").fingerprint()
    assert opened(cub, "cub").fingerprint() == first
    assert first["images"] == 4
    assert first["classes"] == 2
    (cub / "classes.txt").write_text("1 001.Wren\n2 002.Auk\n10 010.Owl\n")
    moved = opened(cub, "cub").fingerprint()
    assert moved["labels_sha256"] == first["labels_sha256"]
    assert moved["files"][2] != first["files"][2]
    labels = (cub / "image_class_labels.txt").read_text()
    (cub / "image_class_labels.txt").write_text(labels.replace("13 10", "13 1"))
    assert opened(cub, "cub").fingerprint()["labels_sha256"] != first["labels_sha256"]


@pytest.mark.parametrize(
    "name", ["lfw", "LFW-deepfunneled", "lfw_112x112", "cfp-dataset", "CFP", "AgeDB", "agedb_30"]
)
@pytest.mark.parametrize("layout", ["folder", "records"])
def test_a_bench_by_name_is_refused(tmp_path: Path, name: str, layout: Layout) -> None:
    write(tmp_path / name, ["a/1.png", "a/2.png", "b/1.png", "b/2.png"])
    rows = [(i // 2, str(i), jpeg(i)) for i in range(4)]
    write_image_records(tmp_path / name / "train", rows)
    sentence = "this is a verification bench, and nothing may be selected on a bench"
    with pytest.raises(DatasetError, match=sentence):
        opened(tmp_path / name, layout)
    with pytest.raises(DatasetError, match=sentence):
        opened(tmp_path / name / "train.rec", "records")
    (tmp_path / "link").symlink_to(tmp_path / name)
    with pytest.raises(DatasetError, match=sentence):
        opened(tmp_path / "link", layout)


@pytest.mark.parametrize("name", ["any.bin", "any.npz", ""])
def test_a_pack_is_refused(tmp_path: Path, name: str) -> None:
    write_pack(tmp_path / (name or "any.bin"), [jpeg(1), jpeg(2)], [True])
    with pytest.raises(DatasetError, match="this is a verification bench"):
        opened(tmp_path / name, "records")


@pytest.mark.parametrize("name", ["cfp_train", "lfwa", "train", "ms1m"])
def test_training_sets_are_not_taken_for_benches(tmp_path: Path, name: str) -> None:
    rows = [(i // 2, str(i), jpeg(i)) for i in range(4)]
    write_image_records(tmp_path / name / "train", rows)
    write_pack(tmp_path / name / "lfw.bin", [jpeg(1), jpeg(2)], [True])  # lies beside many
    assert opened(tmp_path / name, "records").num_classes == 2


def test_a_folder_of_images_without_its_layout(tmp_path: Path) -> None:
    write(tmp_path, ["a/0.png", "a/1.png", "b/2.png", "b/3.png"])
    with pytest.raises(DatasetError, match=r"no .rec file.*'folder'"):
        opened(tmp_path, "records")


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="there is no such file or folder"):
        opened(tmp_path / "nowhere", "cub")


def test_real_records(shared_data: Path) -> None:
    images = opened(shared_data / "cfp_train", "records")
    dataset = RecordDataset(shared_data / "cfp_train")
    assert (len(images), images.num_classes) == (4130, 295)
    assert np.bincount(images.labels).tolist() == [14] * 295
    np.testing.assert_array_equal(images.read(4000), dataset[4000][0])
    assert images.notes == dataset.notes
