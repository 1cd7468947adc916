"""Arrays that may be larger than memory: above a size they lie in a file without a name.

Such an array is an ordinary NumPy array whose pages the operating system reads, writes and drops as
they are needed. Whoever works on it block by block needs the memory of a block; whatever holds for
the array in memory holds to the last digit.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from facerec.base.errors import FacerecError

LIMIT = 32 << 20
"""Bytes up to which an array is kept in memory."""

_ROWS = 1 << 12


def scratch_folder() -> Path:
    """Return where large arrays lie: ``$TMPDIR``, else ``/var/tmp``, as ``/tmp`` may be in memory.

    What lies there has no name, is readable for nobody else, and ends with its process.
    """
    if not os.environ.get("TMPDIR") and os.access("/var/tmp", os.W_OK | os.X_OK):
        return Path("/var/tmp")
    return Path(tempfile.gettempdir())


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of any content, in memory up to `LIMIT` bytes and in a file beyond.

    Raises:
        FacerecError: the file finds no room.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size <= LIMIT:
        return np.empty(shape, kind)
    folder = scratch_folder()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # Taken at once: a full disk would end the process when a page is written.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, kind, "r+", shape=shape).view(np.ndarray)
    except OSError as problem:
        free = shutil.disk_usage(folder).free if folder.is_dir() else 0
        raise FacerecError(
            f"{folder}: an array of {size:,} bytes finds no room there ({free:,} bytes free, "
            f"{problem.strerror or problem}); let TMPDIR name a folder with more room"
        ) from problem


def take(matrix: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return ``matrix[rows]``, in a file if it is large.

    Args:
        matrix: ``(N, …)``.
        rows: ``(n,)``.

    Raises:
        FacerecError: as `empty`.
    """
    taken = empty((len(rows), *matrix.shape[1:]), matrix.dtype)
    for start in range(0, len(rows), _ROWS):
        taken[start : start + _ROWS] = matrix[rows[start : start + _ROWS]]
    return taken


def as_type(matrix: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return ``matrix.astype(dtype)`` of ``(N, …)``, in a file if it is large.

    Raises:
        FacerecError: as `empty`.
    """
    if matrix.flags.f_contiguous and not matrix.flags.c_contiguous:
        return as_type(matrix.T, dtype).T
    converted = empty(matrix.shape, dtype)
    for start in range(0, len(matrix), _ROWS):
        converted[start : start + _ROWS] = matrix[start : start + _ROWS]
    return converted


def group_blocks(starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first group and the one after the last of blocks of so many rows as a block has.

    A group of more rows is a block of its own.

    Args:
        starts: first row of each group, ascending, and the number of rows, ``(G + 1,)``.
    """
    first, groups = 0, len(starts) - 1
    while first < groups:
        last = int(np.searchsorted(starts, starts[first] + _ROWS, side="right")) - 1
        # Groups without a row make a block too, of as many.
        last = min(max(last, first + 1), first + _ROWS, groups)
        yield first, last
        first = last
