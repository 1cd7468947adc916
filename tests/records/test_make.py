"""Folder to records and back: bytes unchanged, deterministic, every failure a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.toy_files import picture, read_files, write_files

from facerec.base.errors import DatasetError
from facerec.records.decode import decode_image, image_kind
from facerec.records.layout import RecordImages, write_image_records
from facerec.records.make import export_folder, make_records

FACES = {
    **{f"person {c}/{n}.jpg": picture(10 * c + n) for c in range(12) for n in range(c % 4 + 1)},
    "Zoë/ärger 1.png": picture(500, suffix=".png"),
    **{f"many/{n:03d}.jpg": picture(1000 + n) for n in range(140)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("faces"), FACES)


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made")
    seen: list[tuple[str, int, int]] = []
    summary = make_records(folder, out, progress=lambda *now: seen.append(now))
    assert summary.path == out / "train.rec"
    assert summary.images == len(FACES) == len(seen) and summary.subjects == 14
    assert not summary.skipped and summary.counts == {"left out": 0}
    return out


def test_records_hold_the_files_in_the_order_of_names(made: Path) -> None:
    dataset = RecordImages(made)
    names = sorted({name.split("/")[0] for name in FACES})
    assert dataset.class_names == names and dataset.num_classes == len(names)
    expected = sorted(FACES, key=lambda name: name.split("/"))
    for i, name in enumerate(expected):
        assert dataset.sample(i) == (FACES[name], names.index(name.split("/")[0]))
    assert (made / "property").read_text().splitlines()[0] == "14,112,112"
    lines = (made / "train.lst").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[2] for line in lines] == expected


def test_the_way_back_gives_the_same_folder(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "back"
    summary = export_folder(made, out)
    assert (summary.images, summary.subjects, len(summary.skipped)) == (len(FACES), 14, 0)
    assert read_files(out) == FACES
    assert [path.name for path in tmp_path.iterdir()] == ["back"]
    modes = {path.stat().st_mode & 0o777 for path in (out, *out.rglob("*"))}
    assert modes == {0o700, 0o600}


# Bad images


BAD = {
    "a/1.jpg": picture(0),
    "a/2.jpg": picture(1)[:-50],
    "b/1.jpg": b"no image",
    "c/1.jpg": picture(2, 96, 96),
    "c/2.jpg": picture(3),
}


def test_other_formats_are_stored_as_png_of_the_same_pixels(tmp_path: Path) -> None:
    """Readers of others know JPEG and PNG alone."""
    files = {f"{name}/0{name}": picture(7, suffix=name) for name in (".webp", ".bmp", ".tiff")}
    files = {f"a{name}": data for name, data in files.items()} | {"b/0.webp": picture(8)}
    folder = write_files(tmp_path / "in", files)
    summary = make_records(folder, tmp_path / "out")
    assert summary.images == 4 and not summary.notes
    dataset = RecordImages(tmp_path / "out")
    for i, (name, data) in enumerate(sorted(files.items())):
        stored = dataset.encoded(i)
        if name == "b/0.webp":  # what it is its content says
            assert stored == data
        else:
            assert image_kind(stored) == "png"
        np.testing.assert_array_equal(decode_image(stored, "x"), decode_image(data, "x"))
    export_folder(tmp_path / "out", tmp_path / "back")
    endings = {"b/0.webp": "b/0.webp.jpg"}
    assert sorted(read_files(tmp_path / "back")) == sorted(
        endings.get(name, f"{name}.png") for name in files
    )


def test_skip_leaves_bad_images_out_and_lists_them(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "in", BAD)
    summary = make_records(folder, tmp_path / "out", on_error="skip")
    causes = ["lacks its end marker", "no JPEG, PNG", "96×96"]
    for item, cause in zip(summary.skipped, causes, strict=True):
        assert cause in item and item.startswith(str(folder))
    assert summary.images + len(summary.skipped) == len(BAD)
    dataset = RecordImages(tmp_path / "out")
    assert dataset.num_classes == 3 and dataset.labels.tolist() == [0, 2]
    assert len(summary.notes) == 1 and "1 of 3 subjects" in summary.notes[0]


# Names on the way back


def pack(folder: Path, names: list[tuple[int, str]]) -> Path:
    folder.mkdir()
    rows = [(label, name, picture(i)) for i, (label, name) in enumerate(names)]
    write_image_records(folder / "train", rows)
    return folder


@pytest.mark.parametrize(
    ("names", "files"),
    [
        # A list that tells the classes apart; deeper folders are joined.
        ([(0, "x/f/1.jpg"), (0, "x/p/1.jpg"), (1, "y/1")], ["x/f_1.jpg", "x/p_1.jpg", "y/1"]),
        # One folder for two classes, two folders for one class, no folder at all.
        ([(0, "x/1.jpg"), (1, "x/2.jpg")], ["0/x_1.jpg", "1/x_2.jpg"]),
        ([(0, "x/1.jpg"), (0, "y/2.jpg")], ["0/x_1.jpg", "0/y_2.jpg"]),
        ([(0, "1.jpg"), (1, "2.jpg")], ["0/1.jpg", "1/2.jpg"]),
    ],
)  # fmt: skip
def test_names_from_the_list(
    names: list[tuple[int, str]], files: list[str], tmp_path: Path
) -> None:
    export_folder(pack(tmp_path / "pack", names), tmp_path / "out")
    found = {name: picture(i) for i, name in enumerate(files)}
    assert read_files(tmp_path / "out") == found


def test_unsafe_names_are_refused(tmp_path: Path) -> None:
    folder = pack(tmp_path / "pack", [(0, "x/ok.jpg"), (1, "y/ok.jpg")])
    for name in ("/etc/a.jpg", "x/../../a.jpg", "C:/a.jpg", "x\\..\\a.jpg"):
        (folder / "train.lst").write_text(f"1\t0\tx/ok.jpg\n2\t1\t{name}\n")
        with pytest.raises(DatasetError, match=r"train\.lst, line 2: .* no path inside a folder"):
            export_folder(folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pack"]
