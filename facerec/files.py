"""Files that are either whole or not there: temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from facerec.errors import FacerecError


def fsync_directory(folder: Path) -> None:
    """Make the names inside ``folder`` durable (a rename is only safe after this)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def full_disk_sentence(path: Path, error: OSError) -> str:
    """Word an ``OSError`` met while writing ``path``; a full disk gets its own advice."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(path.parent).free if path.parent.exists() else 0
        return (
            f"{path}: the disk is full ({free:,} bytes free), nothing was written; "
            "free some space or choose another folder, then run the same command again"
        )
    return f"{path}: cannot be written ({error.strerror or error}); check the folder and its rights"


@contextlib.contextmanager
def atomic_path(
    path: str | os.PathLike[str], error: type[FacerecError] = FacerecError
) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that takes its place when the block succeeds.

    The block writes the temporary file and closes it; it is then flushed to the disk and renamed.
    If the block fails, the temporary file goes and whatever was at ``path`` stays. Errors of the
    block that concern other files pass unchanged.

    Args:
        path: the final file name; its folder is made if needed.
        error: the class raised in place of an ``OSError``.

    Raises:
        FacerecError: the file cannot be written, for example because the disk is full.
    """
    final = Path(path)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(
            dir=final.parent, prefix=f".{final.name}.", suffix=".tmp"
        )
        os.close(descriptor)
    except OSError as problem:
        raise error(full_disk_sentence(final, problem)) from problem
    temporary = Path(name)
    try:
        temporary.chmod(0o644)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(final)
        fsync_directory(final.parent)
    except OSError as problem:
        # The block may also read files; what goes wrong with those is not ours to word.
        if problem.filename not in (None, str(final), str(temporary), str(final.parent)):
            raise
        raise error(full_disk_sentence(final, problem)) from problem
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(
    path: str | os.PathLike[str], error: type[FacerecError] = FacerecError
) -> Iterator[Path]:
    """Give a temporary folder beside ``path`` that takes its name when the block succeeds.

    Args:
        path: the final name; nothing, or an empty folder, may be there.
        error: the class raised in place of an ``OSError``.

    Raises:
        FacerecError: the folder cannot be written.
    """
    final = Path(path)
    temporary: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        name = tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}.", suffix=".tmp")
        temporary = Path(name)
        temporary.chmod(0o755)
        yield temporary
        temporary.replace(final)
    except OSError as problem:
        raise error(full_disk_sentence(final, problem)) from problem
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def write_folder(path: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Write a folder that appears whole or not at all, and takes the place of the one before it.

    Args:
        path: the folder; whatever is there is replaced.
        files: path inside the folder → contents.

    Raises:
        FacerecError: the folder cannot be written; the old one is then still there.
    """
    final = Path(path)
    temporary: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(
            tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}.", suffix=".tmp")
        )
        temporary.chmod(0o755)
        for name, content in files.items():
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        old = temporary.with_suffix(".old")
        if final.exists():
            final.rename(old)
        try:
            temporary.rename(final)
        except OSError:
            if old.exists():
                old.rename(final)
            raise
        fsync_directory(final.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as problem:
        raise FacerecError(full_disk_sentence(final, problem)) from problem
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def check_replaceable(
    folder: str | os.PathLike[str], written: Callable[[Path], set[str]], kind: str
) -> None:
    """Refuse a folder that a report may not replace, before the work that it would show is done.

    A folder may be missing, empty, or hold an earlier report and nothing else.

    Args:
        folder: of the report.
        written: returns the files that an earlier report in the folder says it wrote.
        kind: of report, such as "an audit".

    Raises:
        FacerecError: there is a file of that name, or the folder holds anything else.
    """
    folder = Path(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FacerecError(f"{folder}: a report is a folder, and this is a file; choose another")
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    foreign = sorted(there - written(folder))
    if foreign:
        raise FacerecError(
            f"{folder}: it holds {foreign[0]}, which is no part of {kind}; choose another folder "
            "or move that away"
        )


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as indented JSON, whole or not at all; NaN is refused."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as lower-case hex."""
    with Path(path).open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
