"""Files that are either whole or not there: one writer, temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from facerec.base.errors import FacerecError, fault

_PATIENCE = 2.0
"""Seconds to wait for another writer of the same file, so that small files take turns."""

NOTE, PHOTO, LIST = 1 << 20, 1 << 28, 1 << 32
"""Bytes that are read at most of a note of facerec's own, as of a run or a model; of a photo or a
report; and of a list with a line for each of many million images."""

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}

_UMASK = os.umask(0o077)
os.umask(_UMASK)  # known by changing it alone, which other threads would see later

_held: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


# A forked process, as a loader's is, would keep a lock for seconds after the end of its owner.
os.register_at_fork(after_in_child=_let_go)


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file: the one opener of all that is read or written.

    Folders of others hold pipes, which would be waited for, and links to files of ours. What is
    written is reached through no link, is this user's own and has one name; with ``os.O_CREAT`` it
    is made where nothing is. Nothing is emptied before that is known.

    Raises:
        OSError: it cannot be opened; a `PermissionError` that says why for what is none of these.
    """
    writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
    if flags & os.O_CREAT:
        with contextlib.suppress(FileExistsError):
            return os.open(path, flags | os.O_EXCL, 0o644)
    kept = flags & ~(os.O_CREAT | os.O_TRUNC) | os.O_NONBLOCK | (os.O_NOFOLLOW if writes else 0)
    try:
        check_regular(path, Path(path).stat(follow_symlinks=not writes), writes)
        descriptor = os.open(path, kept)
    except FileNotFoundError:
        if flags & os.O_CREAT:  # somebody has just removed it
            return open_regular(path, flags)
        raise
    try:
        check_regular(path, os.fstat(descriptor), writes)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(
    path: str | os.PathLike[str], status: os.stat_result | None = None, writes: bool = False
) -> None:
    """Refuse what `open_regular` does, also for libraries that open a path themselves.

    Raises:
        OSError: there is nothing, or what must not be opened.
    """
    status = status or Path(path).stat()
    kind = stat.S_IFMT(status.st_mode)
    reasons = {
        "a symbolic link": kind == stat.S_IFLNK,
        "a pipe, a socket or a device": kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK),
        "a hard link, so that another file would change": writes and status.st_nlink > 1,
        "another user's": writes and status.st_uid != os.geteuid(),
    }
    if reason := _first(reasons):
        advice = "; take it away" if writes else ", no regular file"
        raise PermissionError(errno.EPERM, f"{Path(path).name} is {reason}{advice}", str(path))


def _first(reasons: dict[str, bool]) -> str | None:
    """Return the first reason that holds."""
    return next((reason for reason, holds in reasons.items() if holds), None)


def open_file(path: str | os.PathLike[str], mode: str = "rb", **options: Any) -> IO[Any]:
    """Return what ``open`` does, of what `open_regular` takes."""
    return open(path, mode, opener=open_regular, **options)


def read_file(path: str | os.PathLike[str], most: int = PHOTO) -> bytes:
    """Return the bytes of a file that `open_regular` takes, and that has so many at most.

    Raises:
        OSError: it cannot be read, or is larger: a file may claim far more than its disk holds.
    """
    with open_file(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            much = f"{size:,} bytes, of which {most:,} at most are read"
            raise OSError(errno.EFBIG, much, str(path))
        return bytes(file.read())


@contextlib.contextmanager
def reading(
    what: object,
    error: type[FacerecError],
    advice: str = "check the path",
    faults: type[Exception] | tuple[type[Exception], ...] = OSError,
    done: str = "read",
) -> Iterator[None]:
    """Word what goes wrong in a block that reads what others wrote.

    Args:
        what: it reads, as the sentence names it.
        error: of which kind the sentence is.
        advice: what to do.
        faults: what may go wrong; a damaged file ends in errors of many kinds, which are all meant
            by `Exception`. What is a sentence already passes.
        done: what cannot be done.

    Raises:
        FacerecError: of that kind.
    """
    try:
        yield
    except FacerecError:
        raise
    except faults as problem:
        why = getattr(problem, "strerror", None) or fault(problem)[:200]
        raise error(f"{what}: cannot be {done} ({why}); {advice}") from problem


def fsync_directory(folder: Path) -> None:
    """Make the names inside ``folder`` durable (a rename is only safe after this)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def full_disk_sentence(path: Path, error: OSError, then: str = "run the same command again") -> str:
    """Word an ``OSError`` met while writing ``path``; a full disk gets its own advice.

    Args:
        path: what is written.
        error: what was raised.
        then: what to do when there is space again.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(path.parent).free if path.parent.exists() else 0
        return (
            f"{path}: the disk is full ({free:,} bytes free), nothing was written; "
            f"free some space or choose another folder, then {then}"
        )
    return f"{path}: cannot be written ({error.strerror or error}); check the folder and its rights"


@contextlib.contextmanager
def exclusive(path: str | os.PathLike[str], *, file: bool = False) -> Iterator[None]:
    """Let one process at a time write ``path``, and sweep what a killed one left beside it.

    The lock is ``flock`` on the hidden file ``.NAME.lock``, which ends with its process however
    that ends. On file systems without such locks nothing is held and nothing is swept.

    Args:
        path: a file or folder that the block writes; its parent folder is made if needed, and is
            gone again if the block leaves it empty.
        file: it is to be a file, see `check_place`.

    Raises:
        FacerecError: another process is writing ``path``, the folder cannot be written, or a link
            is there, which in an unpacked archive leads to any file of ours.
    """
    final = Path(path)
    check_place(final, file=file)
    made = [folder for folder in final.parents if not folder.exists()]
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(final)
    except BlockingIOError as problem:
        raise FacerecError(
            f"{final}: {_owner(final)} is writing it; wait until that ends, or choose another name"
        ) from problem
    except OSError as problem:
        raise FacerecError(full_disk_sentence(final, problem)) from problem
    try:
        if lock is not None:
            _sweep(final)
        yield
    finally:
        if lock in _held:
            # Removed while it is held: whoever waits for this file looks for a new one.
            _lock_path(final).unlink(missing_ok=True)
            _held.remove(lock)
            os.close(lock)
        with contextlib.suppress(OSError):  # the first that holds something
            for folder in made:
                folder.rmdir()


def check_no_links(*folders: Path) -> None:
    """Refuse to go on in folders whose names of our choice may lead elsewhere; see `check_place`.

    Raises:
        FacerecError: something in one of them is a symbolic link.
    """
    for folder in folders:
        for path in (folder, *(folder.iterdir() if folder.is_dir() else ())):
            check_place(path)


def _lock_path(final: Path) -> Path:
    return final.parent / f".{final.name}.lock"  # with_name refuses "." and "/"


def _lock(final: Path) -> int | None:
    """Return the descriptor of the lock, None where the file system has none.

    Raises:
        BlockingIOError: somebody else holds it for longer than a small file takes.
        OSError: the lock file cannot be made.
    """
    path = _lock_path(final)
    deadline = time.monotonic() + _PATIENCE
    while True:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
                _held.add(descriptor)
                return descriptor
        except OSError as problem:
            if problem.errno in _NO_LOCKS:
                path.unlink(missing_ok=True)
                return None
            # Held by another, or its last owner has just removed it.
            if not isinstance(problem, (BlockingIOError, FileNotFoundError)) or (
                time.monotonic() > deadline
            ):
                os.close(descriptor)
                raise
            time.sleep(0.05)
        os.close(descriptor)


def _owner(final: Path) -> str:
    with contextlib.suppress(OSError):
        return read_file(_lock_path(final)).decode(errors="replace") or "another process"
    return "another process"


def _sweep(final: Path) -> None:
    """Remove temporary files and folders of dead writers; put back what one had moved aside."""
    name = re.compile(rf"\.{re.escape(final.name)}\.[a-z0-9_]{{8}}\.(tmp|old)")
    for path in [path for path in final.parent.iterdir() if name.fullmatch(path.name)]:
        if path.suffix == ".old" and not final.exists():
            path.rename(final)
        else:
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a folder with all that it holds, or a link, if it is there and can be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def check_place(path: str | os.PathLike[str], *, file: bool = False) -> None:
    """Refuse what cannot be made or replaced where it is to be, best before the work for it.

    Nothing is written through a link; of a name that a user typed, what it links to is named here.

    Args:
        path: a file or folder.
        file: it is to be a file.

    Raises:
        FacerecError: there are no rights to write beside it, or what is above it is no folder; it
            is a link, or in place of the file a folder, a device or a pipe.
    """
    path = Path(path)
    above = next(folder for folder in Path(os.path.realpath(path)).parents if folder.exists())
    may = above.is_dir() and os.access(above, os.W_OK | os.X_OK)
    reasons = {
        "a folder, a device or a pipe is there": file and path.exists() and not path.is_file(),
        f"{above} is no folder, or there are no rights to write into it": not may,
        "a link is there, and what it leads to would change": path.is_symlink(),
    }
    if reason := _first(reasons):
        raise FacerecError(f"{path}: cannot be written, {reason}; name another file or folder")


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that takes its place when the block succeeds.

    The block writes the temporary file and closes it; it is then flushed to the disk and renamed.
    If the block fails, the temporary file goes and whatever was at ``path`` stays. Errors of the
    block that concern other files pass unchanged.

    Args:
        path: the final file name; its folder is made if needed.
        private: it shows people, and nobody else may read it, as nobody may read the temporary one.

    Raises:
        FacerecError: the file cannot be written, for example because the disk is full, or another
            process is writing it.
    """
    final = Path(path)
    with _temporary(final, final, folder=False) as (temporary, descriptor):
        yield temporary
        if not private:
            os.fchmod(descriptor, 0o666 & ~_UMASK)
        os.fsync(descriptor)
        temporary.replace(final)
        fsync_directory(final.parent)


@contextlib.contextmanager
def _temporary(guarded: Path, shown: Path, *, folder: bool) -> Iterator[tuple[Path, int]]:
    """Give a temporary file or folder beside ``guarded``, which goes at the end if still there.

    Errors of the block name ``shown`` where they would name what is temporary.

    Args:
        guarded: the file or folder that one process at a time writes.
        shown: what is written.
        folder: which of both.

    Yields:
        Its path, and a descriptor of it, which no other file can take the place of.

    Raises:
        FacerecError: an ``OSError`` in writing it, or another process is writing ``guarded``.
    """
    temporary: Path | None = None
    with exclusive(guarded, file=not folder), contextlib.ExitStack() as opened:
        try:
            where: dict[str, Any] = {"dir": guarded.parent, "prefix": f".{guarded.name}."}
            if folder:
                name = tempfile.mkdtemp(".tmp", **where)
                descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            else:
                descriptor, name = tempfile.mkstemp(".tmp", **where)
            opened.callback(os.close, descriptor)
            temporary = Path(name)
            yield temporary, descriptor
        except FacerecError as problem:
            if temporary is None or str(temporary) not in str(problem):
                raise
            raise type(problem)(str(problem).replace(str(temporary), str(shown))) from problem
        except OSError as problem:
            # The block may also read files; what goes wrong with those is not ours to word.
            ours = (None, str(guarded), str(temporary), str(guarded.parent))
            if temporary is not None and not folder and problem.filename not in ours:
                raise
            raise FacerecError(full_disk_sentence(shown, problem)) from problem
        finally:
            if temporary is not None:
                remove(temporary)


@contextlib.contextmanager
def atomic_folder(
    path: str | os.PathLike[str], *, replace: bool = False, private: bool = False
) -> Iterator[Path]:
    """Give a temporary folder beside ``path`` that takes its name when the block succeeds.

    Args:
        path: the final name; nothing, or an empty folder, may be there.
        replace: take the place of whatever is there, which is back if that fails.
        private: it shows people, and nobody else may read what it holds.

    Raises:
        FacerecError: the folder cannot be written, or another process is writing it.
    """
    final = Path(path)
    with _temporary(final, final, folder=True) as (temporary, descriptor):
        yield temporary
        if private:
            for inside in temporary.rglob("*"):
                inside.chmod(0o700 if inside.is_dir() else 0o600)
        else:
            os.fchmod(descriptor, 0o777 & ~_UMASK)
        old = temporary.with_suffix(".old")
        if replace and final.exists():
            final.rename(old)
        try:
            temporary.rename(final)
        except OSError:
            if old.exists():
                old.rename(final)
            raise
        fsync_directory(final.parent)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def staged_folder(path: str | os.PathLike[str], *, last: str) -> Iterator[Path]:
    """Give a temporary folder inside ``path`` whose files move into that when the block succeeds.

    Args:
        path: the folder; files of the same names are replaced, others stay.
        last: the file that tells that the others belong together and are all there. It goes
            before the first of them moves, and comes after the last.

    Raises:
        FacerecError: the folder cannot be written, or another process is writing it.
    """
    final = Path(path)
    with _temporary(final / last, final, folder=True) as (temporary, _):
        yield temporary
        (final / last).unlink(missing_ok=True)
        names = [file.name for file in temporary.iterdir() if file.name != last]
        for name in [*names, last]:
            (temporary / name).replace(final / name)
        fsync_directory(final)


def write_json(path: str | os.PathLike[str], value: Any, *, private: bool = False) -> None:
    """Write ``value`` as indented JSON, whole or not at all; NaN is refused."""
    with atomic_path(path, private=private) as temporary:
        temporary.write_bytes(json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return ``value`` as a file of indented JSON; NaN is refused.

    Names of files that are no UTF-8 are spelled as JSON's escapes, which give them back.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode(errors="backslashreplace")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that others wrote, to the letter of the standard (RFC 8259).

    Python's own reader lets NaN and infinities pass, and ends in a ``RecursionError`` where
    brackets are nested more deeply than its stack.

    Args:
        text: bytes must be UTF-8.

    Raises:
        ValueError: it is no JSON, no UTF-8, nested too deeply, or holds a number that is not
            finite or beyond the range of a double.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is not finite")
    return number


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as lower-case hex."""
    with open_file(path) as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
