"""Folders of reports: one takes the place of an earlier one, and of nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from facerec.base.errors import FacerecError
from facerec.base.files import atomic_folder, atomic_path, check_place


def check_replaceable(
    folder: str | os.PathLike[str], written: Callable[[Path], set[str]], kind: str
) -> None:
    """Refuse a folder that a report may not replace, before the work that it would show is done.

    A folder may be missing, empty, or hold an earlier report and nothing else. No disk may be
    mounted there, and what is beside it may be written.

    Args:
        folder: of the report.
        written: returns the files that an earlier report in the folder says it wrote.
        kind: of report, such as "an audit".

    Raises:
        FacerecError: there is a file of that name, or the folder holds anything else or
            cannot be replaced.
    """
    folder, problem = Path(folder), ""
    check_place(folder)
    paths = (path for path in folder.rglob("*") if not path.is_dir())
    there = {path.relative_to(folder).as_posix() for path in paths}
    if os.path.ismount(os.path.realpath(folder)):
        problem = "a disk is mounted here; name a folder inside it"
    elif folder.is_file():
        problem = "a report is a folder, and this is a file; choose another"
    elif foreign := sorted(there - written(folder) if there else there):
        strange = f"it holds {foreign[0]}, which is no part of {kind}"
        problem = f"{strange}; choose another folder or move that away"
    if problem:
        raise FacerecError(f"{folder}: {problem}")


def write_folder(path: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Write a folder that appears whole or not at all, and takes the place of the one before it.

    Args:
        path: the folder; whatever is there is replaced.
        files: path inside the folder → contents.

    Raises:
        FacerecError: the folder cannot be written; the old one is then still there.
    """
    with atomic_folder(path, replace=True) as temporary:
        for name, content in files.items():
            with atomic_path(temporary / name) as file:
                file.write_bytes(content)
