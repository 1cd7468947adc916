"""Archives of others give arrays or a clause that says why not."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facerec.records.npz import ArchiveError, read_arrays

GOOD = {"a": np.arange(6.0).reshape(2, 3), "b": np.array("text")}


def read(path: Path, limit: int = 1 << 20) -> tuple[dict[str, Any], list[str]]:
    return read_arrays(path, ("a", "b", "absent"), limit)


def npy(header: str, body: bytes, version: int = 1) -> bytes:
    raw = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes((version, 0)) + len(raw).to_bytes(2, "little") + raw + body


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "x.npz", **GOOD, other=np.zeros(2))
    arrays, members = read(tmp_path / "x.npz")
    assert sorted(arrays) == ["a", "b"] and sorted(members) == ["a", "b", "other"]
    for name, array in GOOD.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': (%s)}"


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (b"no header at all", "magic string"),
        (npy(HEADER % ("<f8", "1099511627776,"), bytes(8)), "a"),
        (npy(HEADER % ("<f8", "-1, -1"), bytes(8)), "announces"),
        (npy(HEADER % ("|O", "1,"), b"cos\nsystem"), "pickled"),
        (npy(HEADER % ("<f8", ""), bytes(8), 3), "3, 0"),
        (npy("(" * 3000, b""), "Error"),
        (npy(HEADER % ("<U2", "1,"), b"\xff" * 4 + bytes(4)), "0xffffffff"),
    ],
)
def test_members_that_are_no_arrays(tmp_path: Path, member: bytes, words: str) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", member)
    with pytest.raises(ArchiveError, match=words):
        read(path)


def test_a_small_file_does_not_become_a_large_one(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(8 << 20))
    with pytest.raises(ArchiveError, match="its arrays claim 8,388,608 bytes, too many for a file"):
        read(path, 1 << 30)


def test_bytes_that_are_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(ArchiveError, match="BadZipFile"):
        read(tmp_path / "x.npz")
