"""Folders of others: no link is written through, nothing that is no file is waited for."""

from __future__ import annotations

import ast
import operator
import os
import re
import resource
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_training import tiny_recipe
from helpers.toy_files import write_tar
from rich.console import Console

import facerec
from facerec.base.errors import FacerecError
from facerec.base.files import (
    atomic_folder,
    atomic_path,
    exclusive,
    open_file,
    sha256,
    staged_folder,
    write_json,
)
from facerec.base.recipe import to_dict
from facerec.comparison.finals import read_final
from facerec.comparison.harness import held
from facerec.embedding import load_model, read_embeddings
from facerec.embedding.bundle import write_sums
from facerec.embedding.calibration import ModelCalibration
from facerec.embedding.parts import EmbeddingsWriter
from facerec.embedding.state_dict import read_state_dict
from facerec.galleries import Gallery
from facerec.records import write_image_records
from facerec.records.images import FolderImages
from facerec.records.layout import read_list, read_property
from facerec.records.make import repair_records
from facerec.records.packs import read_pack
from facerec.records.proposals import read_proposals
from facerec.records.recordio import read_index
from facerec.records.tables import TextTable, read_text
from facerec.records.tar_shards import TarImages, index_shard
from facerec.training.distributed import Processes
from facerec.training.monitor import Monitor
from facerec.training.recipe import Recipe
from facerec.training.run import check_same_run, remove_leftovers
from facerec.verification.protocols.matlab import read_mat


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------ what is written or locked


def write_metrics(folder: Path) -> None:
    processes = Processes(0, 1, torch.device("cpu"))
    facts = {"processes": processes, "device": processes.device, "step": 0}
    steps = {"total_steps": 8, "steps_per_epoch": 4}
    learner = SimpleNamespace(recipe=tiny_recipe(Path("nowhere")), **facts, **steps)
    monitor = Monitor(folder, learner, Console(quiet=True))  # type: ignore[arg-type]
    numbers = dict.fromkeys(("loss", "norm_mean", "norm_variance"), 2.0)
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
    "beside": (".g.npz.enrol.lock", lambda f: entered(exclusive(f / "g.npz.enrol"))),
    "metrics": ("metrics.jsonl", write_metrics),
    "turn": ("locks/turn", take_turn),
    "truncated": ("any", lambda folder: open_file(folder / "any", "w")),
    "appended": ("any", lambda folder: open_file(folder / "any", "a")),
}


def index_shard_beside(folder: Path) -> None:
    write_tar(folder / "0.tar", [("a.jpg", b"x"), ("a.cls", b"0")])
    raise FacerecError(*TarImages(folder / "0.tar").notes)  # it goes on, and says so


def repair_index(folder: Path) -> None:
    write_image_records(folder / "other", [(0, "a.jpg", b"x")])
    (folder / "other.rec").rename(folder / "data.rec")
    if not (folder / "data.idx").is_symlink():
        (folder / "other.idx").rename(folder / "data.idx")
    repair_records(folder / "data.rec")


def begin_parts(folder: Path) -> None:
    EmbeddingsWriter(folder / "e.npz", np.array(["a"]), {"batch_size": 1}).begin()


BESIDE: dict[str, Callable[[Path], object]] = {
    "0.tar.index.npz": index_shard_beside,
    "data.idx": repair_index,
    "data.idx.old": repair_index,
    "SHA256SUMS": write_sums,
    "e.npz.parts": begin_parts,
    "manifest.json": remove_leftovers,
    "checkpoints": remove_leftovers,
    "checkpoints/.step-00000001.tmp": remove_leftovers,
    "any": lambda folder: write_json(folder / "any", {}),
}
"""What facerec names itself, and who writes it; of calibrations see the tests of the command."""

ELSEWHERE = {
    "commands/cli.py",  # in the folder of torchrun
    "comparison/harness.py", "training/monitor.py",  # by open_file
    "report/folders.py", "records/npz.py", "embedding/parquet.py", "export/bundle.py",
    "comparison/finals.py", "records/make.py", "records/packs.py", "records/recordio.py",
    "training/distillation.py",  # all of these below a temporary name that has another name there
    "comparison/own_losses.py", "export/consumers.py",  # into memory
    "embedding/crops.py",  # a log, where no link is
}  # fmt: skip
"""Where files are written by other calls than those on a path called ``temporary``."""

WRITES = r"(write_(text|bytes|table)|touch|(^np|torch)\.save\w*|copy2|copy\w*file|to_parquet)$"


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


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("lay", [link, dangle])
def test_names_that_facerec_chooses_are_never_followed(
    tmp_path: Path, name: str, lay: Callable[[Path, Path], None]
) -> None:
    folder, victim = tmp_path / "unpacked", tmp_path / "bashrc"
    (folder / name).parent.mkdir(parents=True)
    victim.write_text("mine")
    lay(folder / name, victim)
    with pytest.raises(FacerecError, match=rf"{name}.* (a link|there already)"):
        BESIDE[name](folder)
    assert victim.read_text() == "mine" and (folder / name).is_symlink()
    assert names(tmp_path) == ["bashrc", "unpacked"] and not (folder / "made-by-us").exists()


def test_every_file_is_written_by_the_one_writer() -> None:
    package, found = Path(facerec.__file__).parent, set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or "temporary" in ast.unparse(node):
                continue
            name, modes = ast.unparse(node.func), [*map(ast.unparse, node.args)]
            opens = re.search(r"(^|\.)open(_file)?$", name)
            if re.search(WRITES, name) or (opens and re.search("'[rbt]*[wax+]", " ".join(modes))):
                found.add(path.relative_to(package).as_posix())
    assert found == ELSEWHERE


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


def read_manifest(path: Path) -> None:
    write_json(path.with_name("recipe.json"), to_dict(Recipe()))
    check_same_run(path.parent, Recipe(), SimpleNamespace())  # type: ignore[arg-type]


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
    "protocol": lambda path: read_mat(path, ["pairs"]),
    "proposals": read_proposals,
    "calibration": ModelCalibration.read,
    "e.parquet": read_embeddings,
    "embeddings.npz": read_embeddings,
    "gallery": Gallery.read,
    "weights": read_state_dict,
    "model.safetensors": load_model,
    "model.onnx": load_model,
    "manifest.json": read_manifest,
    "final": read_final,
}

STREAMED = ("hash", "shard", "weights")
"""Whose size is no matter, or is judged by a library."""


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("lay", [pipe, device, unix_socket])
def test_what_is_no_file_is_named_and_never_waited_for(
    tmp_path: Path, kind: str, lay: Callable[[Path, Path], None]
) -> None:
    path = tmp_path / kind
    lay(path, tmp_path)
    with pytest.raises((FacerecError, PermissionError), match=kind):
        READ[kind](path)


@pytest.mark.parametrize("kind", sorted({*READ} - {*STREAMED}))
def test_a_file_that_claims_more_than_its_disk_holds_is_not_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / kind).touch()
    os.truncate(tmp_path / kind, 5 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((FacerecError, OSError), match=kind):
        READ[kind](tmp_path / kind)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
