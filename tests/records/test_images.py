from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_files import write_files

from facerec.base.errors import DatasetError
from facerec.records.images import FolderImages

JPEG = b"\xff\xd8\xff"


def tree(root: Path) -> None:
    """A folder as people have them: three with photos, one with none that is read, and the rest."""
    files = {"ann/1.JPG": JPEG, "ann/deep/2.WebP": b"RIFF", "ann/note.TXT": b"x"}
    files |= {
        "bert/IMG.HEIC": b"x",
        "bert/b.gif": b"GIF",
        "carl/3.tiff": b"II",
        "dora/d.bmp": b"BM",
    }
    files |= {"__MACOSX/ann/1.jpg": b"x", "ann/._1.jpg": b"x", "ann/Thumbs.db": b"x"}
    files |= {"list.csv": b"x", "README": b"x", "eva/.DS_Store": b"x"}
    write_files(root, files)
    (root / "fritz" / "empty").mkdir(parents=True)


FOUND = ["ann/1.JPG", "ann/deep/2.WebP", "carl/3.tiff", "dora/d.bmp"]


def test_a_walk_uses_every_entry_or_counts_it(tmp_path: Path) -> None:
    tree(tmp_path)
    images = FolderImages(tmp_path)
    assert images.ids.tolist() == FOUND
    (passed,) = images.notes
    assert passed.startswith(f"{tmp_path}: ")
    for kind in ("1 .heic", "1 .gif", "1 .txt", "1 .csv", "1 without suffix"):
        assert kind in passed
    assert "1 person has no other photo: bert;" in passed and ".heic and .gif to JPEG" in passed
    for kind in ("1 __MACOSX", "1 hidden", "1 Thumbs.db", "1 .DS_Store", "2 empty folders"):
        assert kind in passed
    entries = sum(len(folders) + len(files) for _, folders, files in os.walk(tmp_path))
    counted = [int(text) for note in images.notes for text in re.findall(r"[:,] (\d+) ", note)]
    walked = len(["ann", "ann/deep", "bert", "carl", "dora", "fritz"])
    below_metadata = len(["__MACOSX/ann", "__MACOSX/ann/1.jpg"])
    assert entries == len(FOUND) + sum(counted) + walked + below_metadata


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_what_is_neither_file_nor_folder_is_counted_and_never_opened(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(JPEG)
    os.mkfifo(tmp_path / "a" / "2.jpg")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a" / "link.jpg").symlink_to("2.jpg")
    (tmp_path / "b").symlink_to("a")  # a person more, as in a data set
    (tmp_path / "a" / "b").symlink_to("../a")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "s.jpg"))
        images = FolderImages(tmp_path)
    assert images.ids.tolist() == ["a/1.jpg", "b/1.jpg"]
    (note,) = images.notes
    for kind in ("6 special files", "2 linked folders"):
        assert kind in note


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x.jpg", "a/../../x.jpg", "C:\\x.jpg", "..\\x.jpg", "", " ", "a\0b"]
)
def test_paths_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DatasetError, match="is no path inside a folder of images"):
        # As objects, since NumPy would cut a NUL at the end.
        FolderImages(tmp_path, np.array([name, "good.jpg"], dtype=object))


def test_symbolic_link_out_of_the_folder(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside.jpg"
    root.mkdir()
    outside.write_bytes(JPEG)
    (root / "link.jpg").symlink_to(outside)
    (root / "inside.jpg").write_bytes(JPEG + b"1")
    (root / "alias.jpg").symlink_to("inside.jpg")
    images = FolderImages(root, ["link.jpg", "alias.jpg"])
    with pytest.raises(DatasetError, match="link leads out of its folder"):
        images.encoded(0)
    assert images.encoded(1) == JPEG + b"1"
    # The folder itself may be reached through a link.
    (tmp_path / "way").symlink_to(root)
    assert FolderImages(tmp_path / "way", ["inside.jpg"]).encoded(0) == JPEG + b"1"
