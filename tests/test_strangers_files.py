"""Folders of others: no link is written through, nothing that is no file is waited for."""

from __future__ import annotations

import operator
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.tiny_training import tiny_recipe

from facerec.comparison.harness import held
from facerec.embedding import read_embeddings
from facerec.embedding.calibration import ModelCalibration
from facerec.embedding.state_dict import read_state_dict
from facerec.errors import FacerecError
from facerec.files import (
    atomic_folder,
    atomic_path,
    exclusive,
    open_file,
    sha256,
    staged_folder,
)
from facerec.galleries import Gallery
from facerec.records.images import FolderImages
from facerec.records.layout import read_list, read_property, read_text
from facerec.records.packs import read_pack
from facerec.records.proposals import read_proposals
from facerec.records.recordio import read_index
from facerec.records.tar_shards import index_shard
from facerec.tables import TextTable
from facerec.training.distributed import Processes
from facerec.training.monitor import Monitor
from facerec.verification.protocols.lists import read_content


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------ what is written or locked


def write_metrics(folder: Path) -> None:
    processes = Processes(0, 1, torch.device("cpu"))
    facts = {"processes": processes, "device": processes.device, "step": 0}
    steps = {"total_steps": 8, "steps_per_epoch": 4}
    learner = SimpleNamespace(recipe=tiny_recipe(Path("nowhere")), **facts, **steps)
    monitor = Monitor(folder, learner)  # type: ignore[arg-type]
    numbers = {name: torch.tensor(2.0) for name in ("loss", "norm_mean", "norm_variance")}
    monitor.record(1, numbers, lr=0.1)


def take_turn(folder: Path) -> None:
    with held(folder / "locks" / "turn", wait=True):
        pass


def entered(context: Any) -> None:
    with context:
        pytest.fail("the block must not run")


WRITTEN: dict[str, tuple[str, Callable[[Path], object]]] = {
    "file": (".g.npz.lock", lambda folder: entered(atomic_path(folder / "g.npz"))),
    "folder": (".out.lock", lambda folder: entered(atomic_folder(folder / "out"))),
    "staged": (".last.lock", lambda folder: entered(staged_folder(folder, last="last"))),
    "beside": (".g.npz.enrol.lock", lambda f: entered(exclusive(f / "g.npz", suffix=".enrol"))),
    "metrics": ("metrics.jsonl", write_metrics),
    "turn": ("locks/turn", take_turn),
    "truncated": ("any", lambda folder: open_file(folder / "any", "w")),
    "appended": ("any", lambda folder: open_file(folder / "any", "a")),
}


def link(at: Path, victim: Path) -> None:
    at.symlink_to(victim)


def dangle(at: Path, victim: Path) -> None:
    at.symlink_to("made-by-us")


def link_hard(at: Path, victim: Path) -> None:
    at.hardlink_to(victim)


def pipe(at: Path, victim: Path) -> None:
    os.mkfifo(at)


def device(at: Path, victim: Path) -> None:
    at.symlink_to("/dev/zero")


def unix_socket(at: Path, victim: Path) -> None:
    before = Path.cwd()
    os.chdir(at.parent)  # a socket's path may be no longer than some hundred bytes
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(at.name)
    finally:
        os.chdir(before)


def foreign(at: Path, victim: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    at.write_text("theirs")
    os.chown(at, 12345, -1)


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("lay", [link, dangle, link_hard, pipe, unix_socket, foreign])
def test_nothing_is_written_through_what_a_stranger_laid(
    tmp_path: Path, kind: str, lay: Callable[[Path, Path], None]
) -> None:
    name, write = WRITTEN[kind]
    folder, victim = tmp_path / "unpacked", tmp_path / "bashrc"
    (folder / name).parent.mkdir(parents=True)
    victim.write_text("mine")
    lay(folder / name, victim)
    facts = operator.attrgetter("st_mode", "st_ino", "st_size")
    before = facts((folder / name).lstat())
    with pytest.raises((FacerecError, PermissionError)) as caught:
        write(folder)
    assert Path(name).name in str(caught.value) and "take it away" in str(caught.value)
    assert victim.read_text() == "mine" and names(tmp_path) == ["bashrc", "unpacked"]
    assert facts((folder / name).lstat()) == before
    assert names(folder) == [Path(name).parts[0]]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("private", [False, True])
def test_a_temporary_name_is_nobody_elses_until_it_is_whole(tmp_path: Path, private: bool) -> None:
    with atomic_path(tmp_path / "file", private=private) as temporary:
        temporary.write_text("half")
        assert mode_of(temporary) == 0o600
    with atomic_folder(tmp_path / "folder", private=private) as temporary:
        (temporary / "in").mkdir()
        (temporary / "in" / "face.jpg").write_bytes(b"x")
        assert mode_of(temporary) == 0o700
    found = [mode_of(tmp_path / name) for name in ("file", "folder", "folder/in/face.jpg")]
    assert found == ([0o600, 0o700, 0o600] if private else [0o644, 0o755, 0o644])
    assert not private or mode_of(tmp_path / "folder" / "in") == 0o700


# ------------------------------------------------------------------ what is read

READ: dict[str, Callable[[Path], object]] = {
    "image": lambda path: FolderImages(path.parent, [path.name]).encoded(0),
    "hash": sha256,
    "table": TextTable,
    "text": read_text,
    "property": read_property,
    "list": read_list,
    "pack": read_pack,
    "index": lambda path: read_index(path, 100),
    "shard": index_shard,
    "protocol": read_content,
    "proposals": read_proposals,
    "calibration": ModelCalibration.read,
    "e.parquet": read_embeddings,
    "embeddings.npz": read_embeddings,
    "gallery": Gallery.read,
    "weights": read_state_dict,
}


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("lay", [pipe, device, unix_socket])
def test_what_is_no_file_is_named_and_never_waited_for(
    tmp_path: Path, kind: str, lay: Callable[[Path, Path], None]
) -> None:
    path = tmp_path / kind
    lay(path, tmp_path)
    with pytest.raises((FacerecError, PermissionError), match=kind):
        READ[kind](path)
