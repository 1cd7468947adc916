"""Checkpoints that are whole or not there, and that any number of processes can read.

A checkpoint is a folder ``checkpoints/step-00001200`` written by ``torch.distributed.checkpoint``:
every tensor of the training state, class-sharded ones as `DTensor`, and ``state.json`` with the few
numbers. It is written under a temporary name and renamed when every byte is on the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from facerec.errors import CheckpointError
from facerec.files import fsync_directory, full_disk_sentence
from facerec.training.distributed import Processes

STATE_FILE = "state.json"


def save(
    folder: Path,
    step: int,
    tensors: dict[str, torch.Tensor],
    state: dict[str, Any],
    processes: Processes,
    keep: int,
) -> Path:
    """Write the checkpoint of ``step`` and delete all but the last ``keep``.

    All ranks call this together; ``folder`` must be one that all of them see.

    Args:
        folder: the run's ``checkpoints`` folder.
        step: optimizer steps done.
        tensors: replicated tensors as they are, sharded ones as `DTensor`.
        state: small JSON-able facts (the same on every rank).
        processes: this rank among its peers.
        keep: how many checkpoints stay.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: it cannot be written, for example because the disk is full; earlier
            checkpoints stay as they are.
    """
    final = folder / f"step-{step:08d}"
    if processes.broadcast_object(final.is_dir()):  # the same step of the same run
        return final
    temporary = folder / f".{final.name}.tmp"

    def prepare() -> None:
        if processes.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)

    def write() -> None:
        with _quiet():
            dcp.save(tensors, storage_writer=dcp.FileSystemWriter(temporary, sync_files=True))

    def finish() -> None:
        if processes.is_main:
            with (temporary / STATE_FILE).open("w", encoding="utf-8") as file:
                json.dump({"step": step, **state}, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            fsync_directory(temporary)
            temporary.rename(final)
            fsync_directory(folder)

    # After each stage all ranks agree whether it worked: one rank's failure ends all of them.
    for stage in (prepare, write, finish):
        problem = None
        try:
            stage()
        except (Exception, CheckpointException) as error:  # the latter is no Exception
            cause = _cause(error)
            problem = (
                full_disk_sentence(final, cause)
                if isinstance(cause, OSError)
                else f"{final}: not saved ({_words(cause)})"
            )
        problems = [text for text in processes.gather_objects(problem) if text]
        if problems:
            if processes.is_main:
                shutil.rmtree(temporary, ignore_errors=True)
            last = latest(folder)
            kept = f"; the last good checkpoint is {last}" if last else ""
            raise CheckpointError(f"{problems[0]}{kept}")
    if processes.is_main:
        for old in complete(folder)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    return final


def load(
    checkpoint: Path, tensors: dict[str, torch.Tensor], optional: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Fill ``tensors`` in place from ``checkpoint``, whatever number of ranks wrote it.

    Args:
        checkpoint: a folder made by `save`.
        tensors: what must be in it, with the right shapes; sharded ones as `DTensor`.
        optional: what is filled only if it is there (per-rank random states).

    Returns:
        The JSON facts given to `save`, with ``step``.

    Raises:
        CheckpointError: incomplete, damaged, or of another architecture.
    """
    try:
        state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        reader = dcp.FileSystemReader(checkpoint)
        stored = reader.read_metadata().state_dict_metadata
    except Exception as error:
        raise CheckpointError(
            f"{checkpoint}: not a whole checkpoint ({_words(error)}); "
            "delete it to go on from an earlier one"
        ) from error
    for name, tensor in tensors.items():
        entry = stored.get(name)
        found = tuple(entry.size) if isinstance(entry, TensorStorageMetadata) else None
        if found != tuple(tensor.shape):
            what = "no such tensor" if found is None else f"shape {found}"
            raise CheckpointError(
                f"{checkpoint}: belongs to another architecture or optimizer: {name} should have "
                f"shape {tuple(tensor.shape)}, found {what}; resume with the recipe that wrote it"
            )
    wanted = tensors | {name: t for name, t in optional.items() if name in stored}
    try:
        with _quiet():
            dcp.load(wanted, storage_reader=reader)
    except (Exception, CheckpointException) as error:
        raise CheckpointError(
            f"{checkpoint}: damaged, it cannot be read back ({_words(_cause(error))}); "
            "delete it to go on from an earlier one"
        ) from error
    return {**state, "found": sorted(set(optional) & set(stored))}


def complete(folder: Path) -> list[Path]:
    """Return the whole checkpoints in ``folder``, oldest first."""
    return sorted(p for p in folder.glob("step-*") if (p / STATE_FILE).is_file())


def latest(folder: Path) -> Path | None:
    """Return the newest whole checkpoint in ``folder``, if there is one."""
    found = complete(folder)
    return found[-1] if found else None


def _cause(error: BaseException) -> BaseException:
    """Return what went wrong on the first rank that failed, without torch's wrapper."""
    if isinstance(error, CheckpointException) and error.failures:
        return next(iter(error.failures.values()))[0]
    return error


def _words(error: BaseException) -> str:
    """Return an error as one line."""
    return " ".join([type(error).__name__, *str(error).split("\n")[:1]])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's remark that a single process saves without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")
        warnings.filterwarnings("ignore", message=".*TypedStorage is deprecated.*")
        yield
