"""What all pair lists share: reading lines, naming images, and becoming a bench."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError
from facerec.files import read_file, sha256
from facerec.names import same_name
from facerec.records.images import (
    SUFFIXES,
    FolderImages,
    ImageSource,
    check_relative,
    check_unique,
    find_file,
    is_file,
    text_array,
)
from facerec.report.words import counted
from facerec.verification.bench import Bench, Pairs, find_subjects

MAX_LINE = 1 << 20
MAX_NAME = 1024
"""Bytes of an image name."""
MAX_COMPONENT = 255
"""Bytes between two slashes; what file systems take."""

LOOKED_AT = 1000
"""Images of a list that are looked for until one shows the suffix of a copy."""

LABELS = {
    **dict.fromkeys(("1", "+1", "1.0", "true", "same", "genuine", "mated", "yes"), True),
    **dict.fromkeys(("0", "-1", "0.0", "-1.0", "false", "different", "no"), False),
    **dict.fromkeys(("impostor", "imposter", "non-mated", "nonmated"), False),
}
"""Words for a same pair (true) or a different one (false), in lower case."""

Line = tuple[int, str]
"""Number of a line, from 1, and its text."""


class ListedImages(ImageSource):
    """Images that a protocol names, in a copy that may keep them under other paths.

    Re-packed copies insert a folder or hold ``.png`` in place of ``.jpg``. Ids are the protocol's
    own names, unique, so that attributes and embeddings fit every copy.
    """

    upright = True

    def __init__(self, ids: Sequence[str], folder: FolderImages) -> None:
        self.ids = text_array(ids, str(folder.root))
        self.folder = folder
        check_unique(self.ids, str(folder.root))

    def encoded(self, i: int) -> bytes:
        """Return the bytes of image ``i``."""
        return self.folder.encoded(i)

    def where(self, i: int) -> str:
        """Name the path of image ``i``."""
        return self.folder.where(i)


class PairTable:
    """Pairs of named images, collected one after the other."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        """Every image by its first name, with its number, in the order in which they occur."""
        self._numbers: dict[str, int] = {}
        self._pairs: list[tuple[int, int, bool]] = []

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, first: str, second: str, same: bool, where: str) -> None:
        """Append a pair that was found at ``where``.

        Raises:
            DatasetError: a name would lead out of the folder of images.
        """
        self._pairs.append((self._number(first, where), self._number(second, where), same))

    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return the numbers on both sides and the labels, ``(n,)`` each."""
        table = np.array(self._pairs, dtype=np.int64).reshape(-1, 3)
        return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].astype(bool)

    def _number(self, name: str, where: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            check_relative(name, where)
            # Ids also become one array as wide as the longest.
            content = name.encode("utf-8", "surrogatepass")
            longest = max(map(len, content.split(b"/")))
            if len(content) > MAX_NAME or longest > MAX_COMPONENT:
                raise DatasetError(
                    f"{where}: {name[:60]!r}… is too long for the name of a file; check that this "
                    "is the right list"
                )
            # "./a.jpg" is "a.jpg". It keeps its first name, since other files may have that too.
            path = same_name(str(PurePosixPath(name)))
            number = self._numbers.setdefault(path, len(self.names))
            if number == len(self.names):
                self.names[name] = number
            self._numbers[name] = number
        return number


def make_bench(
    name: str,
    table: PairTable,
    images: ImageSource,
    *,
    folds: NDArray[np.int64] | None,
    subject_names: Sequence[str] | None,
    named_by: str,
    source: dict[str, Any],
    notes: Iterable[str] = (),
) -> Bench:
    """Make a bench, with subjects by name where that agrees with every label.

    Images and names of subjects are in the order of the table; without names same pairs tell who is
    who.

    Raises:
        DatasetError: there are no pairs.
    """
    first, second, same = table.columns()
    if not len(table):
        raise DatasetError(f"{source['path']}: there are no pairs in it; check the file")
    subjects, named_by, doubts = find_subjects(
        first, second, same, len(images), subject_names, named_by
    )
    return Bench(
        name=name,
        images=images,
        pairs=Pairs(first, second, same, subjects, folds),
        subjects_from=named_by,
        notes=(*notes, *doubts),
        source=source,
    )


def read_content(path: Path) -> bytes:
    """Return the bytes of a protocol file.

    Raises:
        DatasetError: it cannot be read.
    """
    try:
        return read_file(path)
    except OSError as problem:
        raise DatasetError(
            f"{path}: the file cannot be read ({problem.strerror or problem}); check the path"
        ) from problem


def decode_text(path: Path, content: bytes) -> str:
    """Decode UTF-8, or UTF-16 with its mark, which is not part of the text; names are composed.

    Raises:
        DatasetError: it is neither, or holds NUL; the sentence names the line.
    """
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = same_name(content.decode("utf-16" if wide else "utf-8-sig"))
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise DatasetError(
            f"{path}, line {line}: this is no UTF-8 text (byte {problem.start}); check that this "
            "is the right file, or save it as UTF-8"
        ) from problem
    if (nul := text.find("\0")) >= 0:
        raise DatasetError(
            f"{path}, line {text.count(chr(10), 0, nul) + 1}: a NUL byte, this is no text; check "
            "that this is the right file"
        )
    return text


def read_lines(path: Path) -> tuple[list[Line], list[str]]:
    """Return the lines of a list that are not blank, without outer blanks, and notes.

    Line ends are LF or CRLF. Blank lines inside are passed over with a note; they do not end the
    list.

    Raises:
        DatasetError: the file cannot be read, is no text, or is empty.
    """
    # Not splitlines(): names may hold the other characters that it takes for line ends.
    texts = [text.strip() for text in decode_text(path, read_content(path)).split("\n")]
    while texts and not texts[-1]:
        texts.pop()
    if not texts:
        raise DatasetError(f"{path}: the list is empty; check the file")
    blank = [number for number, text in enumerate(texts, start=1) if not text]
    longest = max(range(len(texts)), key=lambda i: len(texts[i]))
    if len(texts[longest]) > MAX_LINE:
        raise DatasetError(
            f"{path}, line {longest + 1}: {len(texts[longest]):,} characters are no line of a "
            "list; check that this is the right file"
        )
    notes = []
    if blank:
        lines = counted(len(blank), "blank line")
        notes.append(f"{path}: {lines} inside the list, the first is line {blank[0]}")
    return [(number, text) for number, text in enumerate(texts, start=1) if text], notes


def parse_number(text: str, where: str, least: int = 0) -> int:
    """Return a decimal number of at most nine digits.

    Raises:
        DatasetError: naming ``where`` it was found.
    """
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise DatasetError(
            f"{where}: {text[:60]!r} is no whole number from {least}; mend the line or check the "
            "format"
        )
    return int(text)


def folder_images(
    root: Path, ids: Sequence[str], paths: Sequence[str] | None = None
) -> ListedImages:
    """Find images below ``root``, by the suffix of the list or by that of an aligned copy.

    They lie under their ids, the protocol's names, or else under ``paths``.

    Raises:
        DatasetError: there is no such folder.
    """
    paths = paths or ids
    suffix = _suffix_there(root, paths)
    if suffix is not None:
        paths = [str(PurePosixPath(path).with_suffix(suffix)) for path in paths]
    return ListedImages(ids, FolderImages(root, paths))


def _suffix_there(root: Path, paths: Sequence[str]) -> str | None:
    """Return the suffix of the first image that is there; None where it is as listed."""
    for listed in paths[:LOOKED_AT]:
        path = PurePosixPath(listed)
        if is_file(find_file(root, listed)):
            return None
        for suffix in SUFFIXES:
            if path.suffix and is_file(find_file(root, str(path.with_suffix(suffix)))):
                return suffix
    return None


def file_source(path: Path, format: str, files: Sequence[Path] | None = None) -> dict[str, Any]:
    """Say where a bench comes from.

    Of several ``files``, ``sha256`` is that of their list as ``sha256sum`` prints it inside the
    folder ``path``, in the order of the names.
    """
    if files is None:
        return {"path": str(path), "sha256": sha256(path), "format": format}
    sums = {file.relative_to(path).as_posix(): sha256(file) for file in sorted(files)}
    text = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    return {
        "path": str(path),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "format": format,
        "files": sums,
    }
