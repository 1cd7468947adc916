"""One process at a time trains a run, whatever becomes of the one before it."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from facerec.errors import CheckpointError
from facerec.training.lock import LOCK_FILE, locked

CONTEXT = multiprocessing.get_context("fork")


def _hold(folder: Path, pipe: Connection) -> None:
    with locked(folder):
        child = os.fork()  # as loader processes are; it outlives its parent
        if not child:
            pipe.recv()
            os._exit(0)
        pipe.send(child)
        pipe.recv()


class Holder:
    """Another process that holds the lock."""

    def __init__(self, folder: Path) -> None:
        self.pipe, other = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_hold, args=(folder, other))
        self.process.start()
        self.child = self.pipe.recv()

    def end(self, *, kill: bool) -> None:
        if kill:
            self.process.kill()
        self.pipe.send("enough")
        self.pipe.send("enough")
        self.process.join()


def test_another_process_is_refused_and_named(tmp_path: Path) -> None:
    holder = Holder(tmp_path)
    for _ in range(2):  # being refused changes nothing
        with pytest.raises(CheckpointError) as caught, locked(tmp_path):
            pass
        who = f"process {holder.process.pid} on {socket.gethostname()} has been training this run"
        assert str(caught.value).startswith(f"{tmp_path}: {who} since 20")
        assert f"remove {LOCK_FILE} there if it is gone" in str(caught.value)
    holder.end(kill=False)
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["process"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path: Path) -> None:
    holder = Holder(tmp_path)
    holder.process.kill()
    holder.process.join()
    os.kill(holder.child, 0)  # which has inherited the file, and not the lock
    assert json.loads((tmp_path / LOCK_FILE).read_text())["process"] == holder.process.pid
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["process"] == os.getpid()
    holder.end(kill=True)
