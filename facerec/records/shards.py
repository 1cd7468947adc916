"""Files that are one set: a folder of shards, ``part-*.parquet``, or ``shards-{000..009}.tar``."""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Iterator
from pathlib import Path

from facerec.base.errors import DatasetError
from facerec.base.files import check_regular, reading
from facerec.base.libraries import needed

RECORDS, TAR, PARQUET = ".rec", ".tar", ".parquet"

_BRACES = re.compile(r"\{(?:(\d{1,6})\.\.(\d{1,6})|([^{},]*(?:,[^{},]*)+))\}")
_STARS = re.compile(r"[*?\[]")


def is_pattern(path: str | Path) -> bool:
    """Tell whether a path stands for others: it has braces or stars, and no file has this name."""
    text = str(path)
    return bool(_BRACES.search(text) or _STARS.search(text)) and not Path(path).exists()


def set_kind(path: Path) -> str:
    """Return the suffix of the files that hold a set of images: .rec, .tar or .parquet, or none.

    A folder with a record file holds records, beside which an archive of them may lie; shards lie
    in a folder without others in it.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        entries = [entry for entry in path.iterdir() if entry.name[0] != "."]
        suffixes = {entry.suffix.lower() for entry in entries}
        shards = () if any(map(Path.is_dir, entries)) else (TAR, PARQUET)
        return next((kind for kind in (RECORDS, *shards) if kind in suffixes), "")
    there = suffix == RECORDS or path.is_file() or is_pattern(path)
    return suffix if there and suffix in (RECORDS, TAR, PARQUET) else ""


def shard_paths(path: str | Path, suffix: str) -> list[Path]:
    """Return the files that a path stands for, in the order of its numbers or of their names.

    A folder stands for the files with the suffix in it, hidden ones excepted. Braces are those of a
    shell and of WebDataset, ``{000..009}`` with its zeros or ``{train,test}``, and every file that
    they name must be there; ``*``, ``?`` and ``[…]`` take what they find. Nothing is found of a
    path without braces or stars that is no such file or folder: the list is then empty.

    Args:
        path: a file, a folder or a pattern.
        suffix: of the shards in lower case, such as ``.tar``.

    Raises:
        DatasetError: a file that braces name is missing, or a pattern that nothing fits.
    """
    path = Path(path)
    if path.is_dir():
        return sorted(
            entry
            for entry in path.iterdir()
            if entry.suffix.lower() == suffix and entry.name[0] != "." and entry.is_file()
        )
    if not is_pattern(path):
        return [path] if path.suffix.lower() == suffix and path.is_file() else []
    shards: list[Path] = []
    for text in _expanded(str(path)):
        named = not _STARS.search(text) or Path(text).exists()
        found = [text] if named else sorted(glob.glob(text))  # noqa: PTH207, it may be absolute
        there = [each for each in map(Path, found) if each.is_file()]
        if not there or any(each.suffix.lower() != suffix for each in there):
            raise DatasetError(
                f"{path}: {text} names no file, or one that is no {suffix} file; restore the file "
                "or correct the path"
            )
        shards += there
    return list(dict.fromkeys(shards))


def _expanded(text: str) -> list[str]:
    """Return the names that braces stand for; those on the left change slowest, as in a shell."""
    braces = _BRACES.search(text)
    if braces is None:
        return [text]
    first, last, listed = braces.groups()
    names = listed.split(",") if listed else []
    if first:
        width = len(first) if first[0] == "0" else 0
        names = [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
    rests = _expanded(text[braces.end() :])
    return [f"{text[: braces.start()]}{name}{rest}" for name in names for rest in rests]


@contextlib.contextmanager
def reading_parquet(path: Path, done: str = "read") -> Iterator[None]:
    """Word what goes wrong while a table is read, or written.

    Raises:
        DatasetError: anything did.
        MissingExtraError: pyarrow is not installed.
    """
    with (
        reading(path, DatasetError, "check the table, or write it again", Exception, done),
        needed("'facerec[parquet]'", str(path)),
    ):
        if path.exists():
            check_regular(path)
        yield
