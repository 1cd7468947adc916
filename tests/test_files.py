"""Files are whole or not there, and every failure is a sentence."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from pathlib import Path

import pytest

from facerec import files
from facerec.errors import FacerecError, PackError
from facerec.files import atomic_path, sha256, write_json


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    final = tmp_path / "new" / "folder" / "file.txt"
    with atomic_path(final) as temporary:
        assert temporary.parent == final.parent
        temporary.write_text("whole")
        assert not final.exists()
    assert final.read_text() == "whole"
    assert names(final.parent) == ["file.txt"]
    assert final.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("problem", [ValueError("mine"), KeyboardInterrupt(), PackError("pack")])
def test_a_failing_block_leaves_the_old_file(tmp_path: Path, problem: BaseException) -> None:
    final = tmp_path / "file.txt"
    final.write_text("old")
    with pytest.raises(type(problem)) as caught, atomic_path(final) as temporary:
        temporary.write_text("half")
        raise problem
    assert caught.value is problem
    assert names(tmp_path) == ["file.txt"] and final.read_text() == "old"


@pytest.mark.parametrize("where", ["block", "fsync"])
def test_a_full_disk_is_a_sentence_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    final = tmp_path / "file.txt"
    final.write_text("old")
    if where == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(PackError, match=r"file\.txt: the disk is full \([\d,]+ bytes free\)"),
        atomic_path(final, PackError) as temporary,
    ):
        temporary.write_text("half")
        if where == "block":
            full()
    assert names(tmp_path) == ["file.txt"] and final.read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device_is_a_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(FacerecError, match=r"out: the disk is full .* free some space"),
        atomic_path(tmp_path / "out"),
        Path("/dev/full").open("w") as device,
    ):
        device.write("x")
    assert names(tmp_path) == []


def test_errors_of_other_files_pass_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, atomic_path(tmp_path / "out") as temporary:
        temporary.write_text((tmp_path / "gone").read_text())
    assert caught.value.filename == str(tmp_path / "gone")
    assert names(tmp_path) == []


def test_the_block_must_leave_a_file(tmp_path: Path) -> None:
    with (
        pytest.raises(FacerecError, match=r"out: cannot be written \(No such file"),
        atomic_path(tmp_path / "out") as temporary,
    ):
        temporary.unlink()


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for final in (tmp_path / "file" / "out", tmp_path / "file" / "a" / "b" / "out"):
        with pytest.raises(FacerecError) as caught, atomic_path(final):
            pytest.fail("the block must not run")
        assert str(caught.value).startswith(f"{final}: cannot be written (")
        assert str(caught.value).endswith("; check the folder and its rights")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FacerecError, match=r"folder: cannot be written \(Is a directory\)"):
        write_json(tmp_path / "folder", {})
    assert names(tmp_path) == ["file", "folder"]


def test_a_folder_without_rights_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, dir: Path, prefix: str, suffix: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), f"{dir}/{prefix}abc{suffix}")

    monkeypatch.setattr(files.tempfile, "mkstemp", refuse)
    with pytest.raises(FacerecError, match=r"out\.json: cannot be written \(Permission denied\)"):
        write_json(tmp_path / "out.json", {})


def test_write_json_writes_readable_text_and_refuses_nan(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    write_json(path, {"μ": [1, None, "é"]})
    text = path.read_text(encoding="utf-8")
    assert "μ" in text and text.endswith("}\n")
    assert json.loads(text) == {"μ": [1, None, "é"]}
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError):
            write_json(path, {"nested": [bad]})
    assert path.read_text(encoding="utf-8") == text
    assert names(tmp_path) == ["figures.json"]


def test_sha256_of_more_than_one_chunk(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()
