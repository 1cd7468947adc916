"""Arrays of ``.npz`` files that others wrote: never pickled, and never larger than they say."""

from __future__ import annotations

import math
import sys
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.base.files import check_regular
from facerec.base.large_arrays import empty

MAX_RATIO = 100
"""How much smaller than its arrays a file may be; numbers hardly compress."""

_PIECE = 1 << 20

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class ArchiveError(ValueError):
    """A file is no sound archive of arrays; the text is a clause that says why."""


def read_arrays(
    path: Path, names: Collection[str], max_bytes: int
) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Read those of some arrays that are there, after each header was held against the file.

    Args:
        path: the file.
        names: of the arrays that are wanted.
        max_bytes: of all arrays of the file together.

    Returns:
        The arrays, and the names of all members of the file.

    Raises:
        ArchiveError: damaged, pickled, too large, or an array that contradicts its header.
        OSError: the file cannot be read.
    """
    check_regular(path)
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            expanded = sum(info.file_size for info in archive.infolist())
            if expanded > min(max_bytes, MAX_RATIO * size + (1 << 20)):
                raise ArchiveError(
                    f"its arrays claim {expanded:,} bytes, too many for a file of {size:,} bytes "
                    f"(and {max_bytes:,} at most)"
                )
            wanted = sorted(members.keys() & set(names))
            return {name: _read_array(archive, members[name]) for name in wanted}, list(members)
    except (ArchiveError, OSError):
        raise
    # Damaged archives end in many kinds of error, down to those of zlib.
    except Exception as problem:
        raise ArchiveError(f"{type(problem).__name__}: {str(problem)[:200]}") from problem


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    name = info.filename
    with archive.open(info) as member:
        shape, transposed, dtype = _HEADERS[np.lib.format.read_magic(member)](member)
        if dtype.hasobject:
            raise ArchiveError(
                f"the array {name} holds pickled Python objects, which are never loaded; texts are "
                "saved as .astype(str)"
            )
        # NumPy would reserve whatever the header claims.
        held = info.file_size - member.tell()
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != held:
            raise ArchiveError(
                f"the array {name} announces {str(dtype)[:40]} {str(shape)[:60]}, which is not "
                f"what it holds, {held:,} bytes"
            )
        array = empty(shape[::-1] if transposed else shape, dtype)
        for start in range(0, held, _PIECE):
            piece = np.frombuffer(member.read(_PIECE), np.uint8)
            array.reshape(-1).view(np.uint8)[start : start + _PIECE] = piece
    if transposed:
        array = array.transpose()
    if dtype.kind == "U" and dtype.itemsize and array.size:
        numbers = np.atleast_1d(array).ravel(order="K").view(f"{dtype.byteorder}u4")
        # NumPy holds any number for a character, and Python ends in an error of its own at it.
        if (highest := int(numbers.max())) > sys.maxunicode:
            raise ArchiveError(f"the array {name} has the character {highest:#x}, which is none")
    return array


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an archive that is not compressed; the same arrays give the same bytes.

    Args:
        path: the file, overwritten; who needs it whole or not at all gives a temporary one.
        arrays: by name, without Python objects.
    """
    with path.open("wb") as file:  # to a path NumPy would add a suffix
        np.savez(file, **arrays)  # type: ignore[arg-type]
