"""Checkpoints that are whole or not there, and that any number of processes can read.

A checkpoint is a folder ``checkpoints/step-00001200`` written by ``torch.distributed.checkpoint``:
every tensor of the training state, class-sharded ones as `DTensor`, and ``state.json`` with the few
numbers and the check sums of the other files. It is written under a hidden name and renamed when
every byte is on the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import warnings
import zlib
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from facerec.base.errors import CheckpointError, message_line
from facerec.base.files import fsync_directory, open_file, read_file
from facerec.training.distributed import Processes
from facerec.training.state import sharded

STATE_FILE = "state.json"
METADATA_FILE = ".metadata"
"""Which tensor is where, by ``torch.distributed.checkpoint``."""


class CheckpointWriter:
    """Writes the checkpoints of a run while training goes on.

    Training waits only for a copy of its state in memory; a thread writes that copy. The thread
    has a process group of its own, so that its messages and training's never mix. As a context
    manager it sees to it that no write outlives the block.

    Args:
        folder: the run's ``checkpoints`` folder, which all ranks must see.
        processes: this rank among its peers; all of them call `save` together.
        keep: how many checkpoints stay.
    """

    def __init__(self, folder: Path, processes: Processes, keep: int) -> None:
        self.folder, self.processes, self.keep = folder, processes, keep
        self._copy: dict[str, torch.Tensor] = {}
        self._group: dist.ProcessGroup | None = None
        self._pending: Future[None] | None = None
        _silence()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # An error of the block tells why training ended.
        with contextlib.suppress(*([] if error is None else [Exception])):
            self.wait()

    def save(self, step: int, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Write the checkpoint of ``step``, after the one before it, and delete all but the last.

        Args:
            step: optimizer steps done.
            tensors: replicated tensors as they are, sharded ones as `DTensor`; they may change as
                soon as this returns.
            state: small JSON-able facts (the same on every rank).

        Raises:
            CheckpointError: the one before it cannot be written, for example because the disk is
                full; earlier ones stay as they are.
        """
        self.wait()
        copy, pending = self._stage(tensors), Future[None]()

        def write() -> None:
            try:
                if self.processes.device.type == "cuda":  # each thread has a current one
                    torch.cuda.set_device(self.processes.device)
                self._write(step, copy, state)
                pending.set_result(None)
            except Exception as error:
                pending.set_exception(error)

        self._pending = pending
        # A daemon, so that a second Ctrl-C need not wait for peers that are gone.
        threading.Thread(target=write, name="checkpoint", daemon=True).start()

    def abandon(self) -> None:
        """Wait no more for the checkpoint that is being written, which may be lost."""
        self._pending = None

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is whole.

        Raises:
            CheckpointError: it cannot be written; the same one on every rank.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    @torch.no_grad()
    def _stage(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy this rank's part of ``tensors`` to memory on the CPU, the same one every time."""
        mesh = None
        if self.processes.world_size > 1:
            self._group = self._group or dist.new_group(backend="gloo")
            mesh = DeviceMesh.from_group(self._group, "cpu")
        result: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            copy = self._copy.setdefault(name, torch.empty_like(local, device="cpu")).copy_(local)
            result[name] = copy
            if isinstance(tensor, DTensor):
                result[name] = sharded(copy, mesh, len(tensor))
        return result

    def _write(self, step: int, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        final = self.folder / f"step-{step:08d}"
        temporary = _hidden(final)
        if self._gather(final, final.is_dir())[0]:  # the same step of the same run
            return
        processes = self.processes
        sums: dict[str, list[int]] = {}

        def write() -> None:
            temporary.mkdir(parents=True, exist_ok=True)
            dcp.save(
                tensors,
                storage_writer=dcp.FileSystemWriter(temporary, sync_files=True),
                process_group=self._group,
                no_dist=processes.world_size == 1,
            )
            own = sorted(temporary.glob(f"__{processes.rank}_*.distcp"))
            sums.update((path.name, _checksum(path)) for path in own)

        def finish() -> None:
            if processes.is_main:
                sums[METADATA_FILE] = _checksum(temporary / METADATA_FILE)
                facts = {"step": step, **state, "files": sums}
                sums[STATE_FILE] = _checksum_of(facts)
                with (temporary / STATE_FILE).open("w", encoding="utf-8") as file:
                    json.dump(facts, file, indent=2)
                    file.flush()
                    os.fsync(file.fileno())
                fsync_directory(temporary)
                temporary.rename(final)
                fsync_directory(self.folder)

        # After each stage all ranks agree whether it worked: one rank's failure ends all of them.
        for stage in (write, finish):
            problem = None
            try:
                stage()
            except (Exception, CheckpointException) as error:
                # torch's writer of tensors has no error of its own for a full disk.
                free = shutil.disk_usage(self.folder.parent).free
                problem = (
                    f"{final}: not saved ({message_line(_cause(error))}; {free:,} bytes are free "
                    "on its disk); mend that and go on with --resume"
                )
            answers = self._gather(final, (problem, sums))
            if problems := [text for text, _ in answers if text]:
                if processes.is_main:
                    shutil.rmtree(temporary, ignore_errors=True)
                last = latest(self.folder)
                kept = f"; the last good checkpoint is {last}" if last else ""
                raise CheckpointError(f"{problems[0]}{kept}")
            for _, own in answers:
                sums.update(own)
        if processes.is_main:
            for old in whole_checkpoints(self.folder)[: -self.keep]:
                # Out of sight first: a kill in between must not leave a part of it.
                with contextlib.suppress(OSError):
                    shutil.rmtree(old.rename(_hidden(old)))

    def _gather(self, final: Path, value: Any) -> list[Any]:
        """Return the values of all ranks; the thread has a group of its own for it."""
        try:
            return self.processes.gather_objects(value, self._group)
        except RuntimeError as error:
            raise CheckpointError(
                f"{final}: not saved, another process of this run is gone ({message_line(error)})"
            ) from error


def load_checkpoint(
    checkpoint: Path,
    tensors: dict[str, torch.Tensor],
    optional: dict[str, torch.Tensor],
    processes: Processes,
) -> dict[str, Any]:
    """Fill ``tensors`` in place from ``checkpoint``, whatever number of ranks wrote it.

    All ranks call this together.

    Args:
        checkpoint: a folder made by `CheckpointWriter`.
        tensors: what must be in it, with the right shapes; sharded ones as `DTensor`.
        optional: what is filled only if it is there (per-rank random states).
        processes: this rank among its peers.

    Returns:
        The JSON facts given to `CheckpointWriter.save`, with ``step``.

    Raises:
        CheckpointError: incomplete, damaged, or of another architecture.
    """
    _silence()
    try:
        state: dict[str, Any] = json.loads(read_file(checkpoint / STATE_FILE))
        # The sum of the facts stands among those of the files, so that none of these is missed.
        facts = state["files"].pop(STATE_FILE)
        wrong = [] if facts == _checksum_of(state) else [STATE_FILE]
        files = sorted(state.pop("files").items())[processes.rank :: processes.world_size]
        wrong += [
            name
            for name, written in files
            if not (checkpoint / name).is_file() or _checksum(checkpoint / name) != written
        ]
        if damage := [name for names in processes.gather_objects(wrong) for name in names]:
            raise ValueError(f"{damage[0]} holds other bytes than were written")
        reader = dcp.FileSystemReader(checkpoint)
        stored = reader.read_metadata().state_dict_metadata
        wanted = tensors | {name: t for name, t in optional.items() if name in stored}
        dcp.load(wanted, storage_reader=reader, no_dist=processes.world_size == 1)
    except (Exception, CheckpointException) as error:  # the latter is no Exception
        raise CheckpointError(
            f"{checkpoint}: cannot be loaded ({message_line(_cause(error))}); if it is damaged, "
            "delete it to go on from an earlier one, else resume with the recipe that wrote it"
        ) from error
    return state


def whole_checkpoints(folder: Path) -> list[Path]:
    """Return the whole checkpoints in ``folder``, oldest first."""
    return sorted(p for p in folder.glob("step-*") if (p / STATE_FILE).is_file())


def latest(folder: Path) -> Path | None:
    """Return the newest whole checkpoint in ``folder``, if there is one."""
    return max(whole_checkpoints(folder), default=None)


def _hidden(checkpoint: Path) -> Path:
    return checkpoint.with_name(f".{checkpoint.name}.tmp")


def _checksum_of(facts: dict[str, Any]) -> list[int]:
    """Return the length in bytes and the CRC-32 of JSON, however it is laid out."""
    text = json.dumps(facts, sort_keys=True).encode()
    return [len(text), zlib.crc32(text)]


def _checksum(path: Path) -> list[int]:
    """Return the length in bytes and the CRC-32 of a file."""
    size = crc = 0
    with open_file(path) as file:
        while chunk := file.read(1 << 20):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]


def _cause(error: BaseException) -> BaseException:
    """Return what went wrong on the first rank that failed, without torch's wrapper."""
    if isinstance(error, CheckpointException) and error.failures:
        return next(iter(error.failures.values()))[0]
    return error


def _silence() -> None:
    """Silence torch's remark that a single process saves without a process group.

    For good, because putting filters back is not safe beside a thread.
    """
    warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")
    warnings.filterwarnings("ignore", message=".*TypedStorage is deprecated.*")
