"""The writer of checkpoints: whole or not there, beside training, on one rank or several."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.lives import Ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from facerec.base.errors import CheckpointError
from facerec.training import checkpoint
from facerec.training.checkpoint import CheckpointWriter
from facerec.training.distributed import Processes, launched

ALONE = Processes(0, 1, torch.device("cpu"))


def state(step: int) -> dict[str, torch.Tensor]:
    """Tensors of several kinds and layouts whose values tell the step."""
    return {
        "weight": torch.arange(24.0).reshape(4, 6) + step,
        "kernel": torch.arange(48.0).reshape(2, 3, 4, 2).permute(0, 3, 1, 2) - step,
        "count": torch.tensor(step),
        "random": torch.full((8,), step, dtype=torch.uint8),
    }


def loaded(path: Path, processes: Processes = ALONE) -> dict[str, torch.Tensor]:
    found = state(0)
    assert checkpoint.load_checkpoint(path, found, {}, processes)["step"] == int(path.name[5:])
    return found


def assert_is(path: Path, step: int) -> None:
    found, expected = loaded(path), state(step)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Gate:
    """Holds up every write until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        save = checkpoint.dcp.save

        def held(*arguments: object, **options: object) -> object:
            self.threads.append(threading.current_thread())
            self.entered.set()
            assert self.open.wait(60)
            return save(*arguments, **options)

        monkeypatch.setattr(checkpoint.dcp, "save", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.open.set()


# ---------------------------------------------------------------- beside training


def test_training_goes_on_while_a_copy_is_written(tmp_path: Path, gate: Gate) -> None:
    tensors = state(3)
    with CheckpointWriter(tmp_path, ALONE, keep=2) as writer:
        writer.save(3, tensors, {"note": "x"})
        assert gate.entered.wait(60)
        assert gate.threads != [threading.current_thread()]
        for tensor in tensors.values():
            tensor.zero_()
        assert names(tmp_path) == [".step-00000003.tmp"]
        gate.open.set()
    assert names(tmp_path) == ["step-00000003"]
    assert_is(tmp_path / "step-00000003", 3)
    facts = checkpoint.load_checkpoint(tmp_path / "step-00000003", state(0), {}, ALONE)
    assert facts == {"step": 3, "note": "x"}
    assert not any(thread.name == "checkpoint" for thread in threading.enumerate())


# ---------------------------------------------------------------- faults


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)


def test_a_full_disk_is_told_when_training_next_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CheckpointWriter(tmp_path, ALONE, keep=2)
    writer.save(3, state(3), {})
    writer.wait()
    with monkeypatch.context() as patch:
        full_disk(patch)
        writer.save(4, state(4), {})
        with pytest.raises(
            CheckpointError, match=r"step-00000004: not saved.*No space.*checkpoint is .*00000003"
        ) as caught:
            writer.wait()
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["step-00000003"]
    writer.wait()  # told once
    writer.save(6, state(6), {})
    writer.wait()
    assert_is(tmp_path / "step-00000006", 6)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("__0_0.distcp", Path.unlink, r"__0_0\.distcp"),
        ("__0_0.distcp", cut, r"__0_0\.distcp holds other bytes than were written"),
        ("__0_0.distcp", flip, r"__0_0\.distcp holds other bytes than were written"),
        (".metadata", flip, r"\.metadata holds other bytes than were written"),
        ("state.json", cut, "(Expecting|Unterminated)"),
    ],
)
def test_a_damaged_checkpoint_says_how_to_go_on_from_the_one_before(
    tmp_path: Path, name: str, damage: Callable[[Path], None], words: str
) -> None:
    with CheckpointWriter(tmp_path, ALONE, keep=2) as writer:
        for step in (3, 6):
            writer.save(step, state(step), {})
    newest = checkpoint.latest(tmp_path)
    assert newest is not None and newest.name == "step-00000006"
    damage(newest / name)
    sentence = (
        f"^{newest}: cannot be loaded \\({words}.*; if it is damaged, delete it to go on from"
    )
    with pytest.raises(CheckpointError, match=sentence) as caught:
        loaded(newest)
    assert "\n" not in str(caught.value)
    shutil.rmtree(newest)
    before = checkpoint.latest(tmp_path)
    assert_is(before, 3)


# ---------------------------------------------------------------- several ranks


ROWS = 7  # uneven over two ranks and over three


def sharded(step: int, processes: Processes) -> dict[str, torch.Tensor]:
    rows = torch.arange(ROWS * 3.0).reshape(ROWS, 3) * (step + 1)
    mesh = init_device_mesh("cpu", (processes.world_size,))
    parts = [*rows.chunk(processes.world_size), *[rows[:0]] * processes.world_size]
    own, whole = parts[processes.rank].clone(), {"shape": rows.shape, "stride": rows.stride()}
    return {
        **state(step),
        "rows": DTensor.from_local(own, mesh, [Shard(0)], run_check=False, **whole),
    }


def save_beside_collectives(folder: Path) -> None:
    """Save three times, with other collectives before, between and after, in this rank's order."""
    with launched("cpu") as processes, CheckpointWriter(folder, processes, keep=2) as writer:
        for step in (1, 2, 3):
            tensors = sharded(step, processes)
            writer.save(step, tensors, {"world_size": processes.world_size})
            for tensor in tensors.values():
                (tensor.to_local() if isinstance(tensor, DTensor) else tensor).zero_()
            for number in range(200):
                total = torch.tensor(float(processes.rank + number))
                dist.all_reduce(total)
                assert total == sum(range(processes.world_size)) + number * processes.world_size


@pytest.mark.integration
def test_ranks_write_beside_their_collectives(tmp_path: Path) -> None:
    world = 3
    ranks = Ranks(world, tmp_path, save_beside_collectives, tmp_path / "checkpoints")
    assert ranks.join() == [0] * world, ranks.log.read_text()
    folder = tmp_path / "checkpoints"
    assert names(folder) == ["step-00000002", "step-00000003"]
    for step in (2, 3):
        path = folder / f"step-{step:08d}"
        files = json.loads((path / "state.json").read_text())["files"]
        shards = [f"__{rank}_0.distcp" for rank in range(world)]
        assert sorted(files) == [".metadata", *shards, "state.json"]
        assert_is(path, step)
        found = {"rows": torch.zeros(ROWS, 3)}
        checkpoint.load_checkpoint(path, found, {}, ALONE)
        assert torch.equal(found["rows"], torch.arange(ROWS * 3.0).reshape(ROWS, 3) * (step + 1))


def one_dies_while_writing(folder: Path) -> None:
    with launched("cpu") as processes:
        writer = CheckpointWriter(folder, processes, keep=2)
        writer.save(1, sharded(1, processes), {})
        writer.wait()
        if processes.rank == 1:
            checkpoint.fsync_directory = checkpoint.dcp.save = lambda *_, **__: os._exit(9)  # type: ignore
        writer.save(2, sharded(2, processes), {})
        with pytest.raises(CheckpointError, match=r"step-00000002: not saved, another process"):
            writer.wait()
        assert [path.name for path in checkpoint.whole_checkpoints(folder)] == ["step-00000001"]
        os._exit(0)  # without the peer there is no orderly end


@pytest.mark.integration
def test_a_rank_that_dies_while_writing_does_not_hold_up_the_other(tmp_path: Path) -> None:
    ranks = Ranks(2, tmp_path, one_dies_while_writing, tmp_path / "checkpoints")
    assert ranks.join() == [0, 9], ranks.log.read_text()
    with CheckpointWriter(tmp_path / "checkpoints", ALONE, keep=2) as writer:
        writer.save(2, state(2), {})
    assert names(tmp_path / "checkpoints") == ["step-00000001", "step-00000002"]
