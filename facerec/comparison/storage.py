"""Where a comparison keeps its state: claims on units of work that end with their process.

Several processes, on one machine or several with a common folder, share the work of a comparison.
Each holds a lock file for as long as it lives, so that what a killed process had begun is found and
taken over at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from facerec.errors import ComparisonError
from facerec.files import full_disk_sentence, open_file, read_file


class Worker:
    """This process among those that share the folder.

    Attributes:
        name: unique among all workers that ever were.
    """

    def __init__(self, folder: Path) -> None:
        """Begin to live.

        Raises:
            ComparisonError: the folder cannot be written.
        """
        self._folder = folder / "workers"
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._path = self._folder / f"{self.name}.lock"
        self._turn = self._folder / "turn.lock"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = open_file(self._path, "w")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            raise ComparisonError(full_disk_sentence(self._path, error)) from error

    def close(self) -> None:
        """End; what was claimed and is not finished can be taken by others."""
        self._path.unlink(missing_ok=True)
        self._file.close()
        with contextlib.suppress(OSError):  # not empty, unless the comparison was refused
            self._folder.rmdir()
            self._folder.parent.rmdir()

    def is_alive(self, name: str) -> bool:
        """Tell whether the worker of a name still runs."""
        if name == self.name:
            return True
        try:
            with open_file(self._folder / f"{name}.lock", "r") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Let only one worker at a time look for work, so that none is claimed twice."""
        with open_file(self._turn, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def claim(self, path: Path) -> bool:
        """Claim the work whose result is to be ``path``, unless it is done or somebody does it."""
        mark = path.with_name(f"{path.name}.worker")
        with self.turn():
            if path.exists():
                mark.unlink(missing_ok=True)
                return False
            owner = read_file(mark).decode() if mark.is_file() else self.name
            if owner != self.name and self.is_alive(owner):
                return False
            mark.parent.mkdir(parents=True, exist_ok=True)
            with open_file(mark, "w") as file:
                file.write(self.name)
        return True

    def release(self, path: Path) -> None:
        """Give up the claim on ``path``, done or not."""
        path.with_name(f"{path.name}.worker").unlink(missing_ok=True)
