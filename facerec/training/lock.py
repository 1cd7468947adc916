"""One process at a time in a run's folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from facerec.errors import CheckpointError
from facerec.files import full_disk_sentence, open_regular, read_file

LOCK_FILE = "lock.json"
"""In a run's folder while a process trains there: its host, its number and since when."""

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}

_held: dict[tuple[int, Path], dict[str, Any]] = {}
"""By process and file: the kernel does not hold a process's locks against itself, and drops them
when it closes the file, even one that it only read."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from training in ``folder`` while the block runs.

    The lock is the kernel's and ends with its process, however that ends. It is POSIX's rather than
    the ``flock`` of `facerec.files.exclusive`, which loader processes would inherit by their fork
    and keep for seconds after a kill, when torchrun has long started the run again. A file system
    without locks keeps nobody out.

    Raises:
        CheckpointError: another process trains there, or the file cannot be written.
    """
    path = folder.resolve() / LOCK_FILE
    key = os.getpid(), path
    if key in _held:
        raise _taken(folder, _held[key])
    owner = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    try:
        descriptor = _acquire(folder, path)
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(owner).encode())
        except OSError:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
    except OSError as error:
        raise CheckpointError(full_disk_sentence(path, error)) from error
    _held[key] = owner
    try:
        yield
    finally:
        del _held[key]
        path.unlink(missing_ok=True)  # before the lock goes, or it may be another process's
        os.close(descriptor)


def _acquire(folder: Path, path: Path) -> int:
    """Return a descriptor of the file that holds the lock."""
    while True:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise _taken(folder, _read(path)) from error
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.lstat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # its owner has just removed it


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(read_file(path)))
    except (OSError, ValueError, TypeError):
        return {}


def _taken(folder: Path, owner: dict[str, Any]) -> CheckpointError:
    who = f"process {owner.get('process', '?')} on {owner.get('host', 'an unknown host')}"
    return CheckpointError(
        f"{folder}: {who} has been training this run since {owner.get('since', 'just now')}; stop "
        f"it first, or remove {LOCK_FILE} there if it is gone"
    )
