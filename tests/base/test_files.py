"""Files are whole or not there, and every failure is a sentence."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from facerec.base import files
from facerec.base.errors import FacerecError, PackError
from facerec.base.files import (
    atomic_folder,
    atomic_path,
    check_place,
    exclusive,
    staged_folder,
    write_json,
)
from facerec.report.folders import check_replaceable, write_folder


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


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "link", "loop"):
        with (
            pytest.raises(FacerecError, match=f"{name}: .*name another file"),
            atomic_path(tmp_path / name),
        ):
            pass
    assert names(tmp_path) == ["link", "loop", "pipe"] and (tmp_path / "pipe").is_fifo()


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
        pytest.raises(FacerecError, match=r"file\.txt: the disk is full \([\d,]+ bytes free\)"),
        atomic_path(final) as temporary,
    ):
        temporary.write_text("half")
        if where == "block":
            full()
    assert names(tmp_path) == ["file.txt"] and final.read_text() == "old"


def test_a_place_without_rights_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "report").mkdir()
    (tmp_path / "link").symlink_to("theirs/new")
    may = os.access

    def refuse(path: Path, mode: int) -> bool:  # rights do not bind the user root
        return Path(path) != Path(os.path.realpath(tmp_path / "theirs")) and may(path, mode)

    monkeypatch.setattr(os, "access", refuse)
    for name in ("theirs/a", "theirs/b/c", "theirs/report", "link"):
        with pytest.raises(FacerecError, match=f"{name}: .*theirs is .*rights to write"):
            check_place(tmp_path / name)
    with pytest.raises(FacerecError, match=r"x: .*file is no folder"):
        check_place(tmp_path / "file" / "x")
    for name in ("theirs/report/a", "a/b/c", "file"):
        check_place(tmp_path / name)
    with pytest.raises(FacerecError, match=r"report: .*rights"):
        check_replaceable(tmp_path / "theirs" / "report", lambda folder: set(), "a report")


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


# ------------------------------------------------------------------ one writer at a time

WRITER = """
import sys, time
from pathlib import Path
from facerec.base.files import atomic_folder, atomic_path, staged_folder
kind, path, ready = sys.argv[1:]
give = {"file": atomic_path, "folder": atomic_folder,
        "staged": lambda path: staged_folder(path, last="last")}[kind]
with give(path) as temporary:
    target = temporary if kind == "file" else temporary / "inside"
    target.write_text("half")
    Path(ready).touch()
    time.sleep(600)
"""


GIVE: dict[str, Any] = {
    "file": atomic_path, "folder": atomic_folder, "staged": partial(staged_folder, last="last")
}  # fmt: skip


def start_writer(kind: str, path: Path, ready: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, kind, str(path), str(ready)])
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.02)
    return process


def rewrite(kind: str, path: Path) -> None:
    with GIVE[kind](path) as temporary:
        (temporary if kind == "file" else temporary / "inside").write_text("whole")
        if kind == "staged":
            (temporary / "last").write_text("all")


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["file", "folder", "staged"])
def test_a_second_writer_is_refused_and_the_next_sweeps_what_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    final = tmp_path / "out" / "result"
    process = start_writer(kind, final, tmp_path / "ready")
    try:
        with pytest.raises(FacerecError, match=rf"result.*process {process.pid} on .*is writing"):
            rewrite(kind, final)
        assert kind == "staged" or not final.exists()
    finally:
        process.kill()
        process.wait()
    assert len(names(final if kind == "staged" else final.parent)) == 2  # the lock, and what it is
    rewrite(kind, final)
    assert names(final.parent) == ["result"]
    assert (final if kind == "file" else final / "inside").read_text() == "whole"
    assert kind != "staged" or names(final) == ["inside", "last"]


def _hold(path: Path, pipe: Connection) -> None:
    with exclusive(path):
        child = os.fork()  # as loader processes are; it outlives its parent
        if not child:
            pipe.recv()
            os._exit(0)
        pipe.send(child)
        pipe.recv()


def test_the_lock_of_a_killed_process_ends_before_those_that_it_forked(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    pipe, other = context.Pipe()
    process = context.Process(target=_hold, args=(tmp_path / "run", other))
    process.start()
    child = pipe.recv()
    process.kill()
    process.join()
    os.kill(child, 0)
    with exclusive(tmp_path / "run"):
        assert names(tmp_path) == [".run.lock"]
    assert names(tmp_path) == []
    pipe.send("enough")


def test_writers_of_small_files_take_turns(tmp_path: Path) -> None:
    def write(number: int) -> None:
        with atomic_path(tmp_path / "file") as temporary:
            temporary.write_text(str(number) * 100)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert names(tmp_path) == ["file"]
    assert len(set((tmp_path / "file").read_text())) == 1


def test_a_folder_moved_aside_by_a_killed_writer_comes_back(tmp_path: Path) -> None:
    old = tmp_path / ".out.abcdefgh.old"
    old.mkdir()
    (old / "report").write_text("old")
    stranger = tmp_path / ".out.other.abcdefgh.tmp"  # of another output
    stranger.touch()
    with pytest.raises(ValueError), atomic_folder(tmp_path / "out", replace=True):
        raise ValueError
    assert (tmp_path / "out" / "report").read_text() == "old"
    write_folder(tmp_path / "out", {"report": b"new"})
    assert (tmp_path / "out" / "report").read_text() == "new"
    assert names(tmp_path) == [stranger.name, "out"]


@pytest.mark.parametrize("kind", ["folder", "staged"])
def test_errors_name_the_folder_and_not_the_temporary_one(tmp_path: Path, kind: str) -> None:
    with pytest.raises(PackError) as caught, GIVE[kind](tmp_path / "out") as temporary:
        raise PackError(f"{temporary / 'train.rec'}: broken")
    assert str(caught.value) == f"{tmp_path / 'out' / 'train.rec'}: broken"


def test_staged_files_leave_strangers_and_the_last_one_tells_that_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("inside", "last", "stranger"):
        (out / name).write_text("old")
    moved = Path.replace

    def stopped(self: Path, target: Path) -> Path:
        if target.name == "last":
            raise KeyboardInterrupt
        return moved(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            rewrite("staged", out)
    assert names(out) == ["inside", "stranger"]
    rewrite("staged", out)
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        "inside": "whole", "last": "all", "stranger": "old"
    }  # fmt: skip
    assert names(tmp_path) == ["out"]


def test_a_folder_that_is_a_disk_of_its_own_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a volume of a container is, into which nothing can be renamed from beside it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    mounted = os.path.realpath(tmp_path / "disk")
    monkeypatch.setattr(os.path, "ismount", lambda path: os.fspath(path) == mounted)
    for name in ("disk", "link"):
        with pytest.raises(FacerecError, match=f"{name}: .*(mounted|a link)"):
            check_replaceable(tmp_path / name, lambda folder: set(), "a report")
