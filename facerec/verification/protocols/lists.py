"""What all pair lists share: reading lines, naming images, and becoming a bench."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from facerec.base.errors import DatasetError
from facerec.base.files import sha256
from facerec.base.names import same_name
from facerec.records.images import (
    SUFFIXES,
    FolderImages,
    ImageSource,
    check_relative,
    find_file,
    is_file,
)
from facerec.records.tables import read_text
from facerec.verification.bench import Bench, Pairs, contiguous_folds, find_subjects

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


class PairList:
    """Pairs of named images, collected one after the other, on their way to a bench.

    Attributes:
        names: every image with its number, in the order in which they occur.
        notes: what a reader must know, one sentence each.
    """

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.notes: list[str] = []
        self._pairs: list[tuple[int, int, bool, int]] = []
        self._folds: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, first: str, second: str, same: bool, where: str, fold: Hashable = 0) -> None:
        """Append a pair that was found at ``where``; folds are numbered as they come.

        Raises:
            DatasetError: a name would lead out of the folder of images.
        """
        sides = self._number(first, where), self._number(second, where)
        self._pairs.append((*sides, same, self._folds.setdefault(fold, len(self._folds))))

    def bench(
        self,
        name: str,
        images: Path | ImageSource,
        source: Mapping[str, Any],
        *,
        subject_of: Callable[[str], str] | None,
        named_by: str = "the list",
        ten_folds: bool = False,
        path_of: Callable[[str], str] = str,
    ) -> Bench:
        """Return the pairs as a bench.

        Args:
            name: of the bench.
            images: the folder of images, or the images in the order of the names.
            source: see `file_source`.
            subject_of: the subject of an image; without it same pairs tell who is who. Where it
                contradicts a label they do, too.
            named_by: where the subjects come from.
            ten_folds: the folds are ten contiguous ones, not those that pairs were added with.
            path_of: where an image lies in the folder.

        Raises:
            DatasetError: there are no pairs, or no such folder.
        """
        if not self._pairs:
            raise DatasetError(f"{source['path']}: there are no pairs in it; check the file")
        ids = list(self.names)
        if isinstance(images, Path):
            images = FolderImages(images, ids, _there(images, list(map(path_of, ids))))
        first, second, same, numbers = np.array(self._pairs, np.int64).T.copy()
        folds = contiguous_folds(len(self)) if ten_folds else numbers if numbers.any() else None
        pairs, named_by, doubts = find_subjects(
            Pairs(first, second, same.astype(bool), folds=folds),
            len(ids),
            subject_of and list(map(subject_of, ids)),
            named_by,
        )
        return Bench(
            name=name,
            images=images,
            pairs=pairs,
            subjects_from=named_by,
            notes=(*self.notes, *doubts),
            source=source,
        )

    def _number(self, name: str, where: str) -> int:
        if name in self.names:
            return self.names[name]
        check_relative(name, where)
        # Ids also become one array as wide as the longest.
        content = name.encode()
        if len(content) > MAX_NAME or max(map(len, content.split(b"/"))) > MAX_COMPONENT:
            raise DatasetError(
                f"{where}: {name[:60]!r}… is too long for the name of a file; check that this is "
                "the right list"
            )
        # "./a.jpg" is "a.jpg".
        return self.names.setdefault(same_name(str(PurePosixPath(name))), len(self.names))


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a list that are not blank, without outer blanks; names are composed.

    Raises:
        DatasetError: the file cannot be read, is no text, or is empty.
    """
    # Not splitlines(): names may hold the other characters that it takes for line ends.
    texts = read_text(path).split("\n")
    lines = [(number, line.strip()) for number, line in enumerate(texts, start=1)]
    lines = [line for line in lines if line[1]]
    if not lines:
        raise DatasetError(f"{path}: the list is empty; check the file")
    return lines


def read_matches(
    path: Path, pattern: str, expected: str
) -> Iterator[tuple[str, tuple[str | Any, ...]]]:
    """Yield where each line of a list stands, and the groups of a pattern that it matches wholly.

    Raises:
        DatasetError: as `read_lines`, or a line is no match.
    """
    for number, text in read_lines(path):
        where, match = f"{path}, line {number}", re.fullmatch(pattern, text)
        if match is None:
            raise malformed(where, text, expected)
        yield where, match.groups()


def malformed(where: str, text: object, expected: str) -> DatasetError:
    """Return the error of a text that stands ``where`` something else is ``expected``."""
    return DatasetError(
        f"{where}: {str(text)[:60]!r} where {expected} belongs; mend the line or check the format"
    )


def parse_label(text: str, where: str) -> bool:
    """Return whether a word of `LABELS`, in any case, is that of a same pair.

    Raises:
        DatasetError: naming ``where`` another word was found.
    """
    if text.lower() not in LABELS:
        raise malformed(where, text, "a label, 0 or 1,")
    return LABELS[text.lower()]


def parse_number(text: str, where: str, least: int = 0) -> int:
    """Return a decimal number of at most nine digits.

    Raises:
        DatasetError: naming ``where`` it was found.
    """
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise malformed(where, text, f"a whole number from {least}")
    return int(text)


def _there(root: Path, paths: Sequence[str]) -> Sequence[str]:
    """Return paths with the suffix that the first image has that is there.

    Re-packed copies hold ``.png`` in place of ``.jpg``.
    """
    for listed in paths[:LOOKED_AT]:
        if is_file(find_file(root, listed)):
            break
        for suffix in SUFFIXES if PurePosixPath(listed).suffix else ():
            if is_file(find_file(root, str(PurePosixPath(listed).with_suffix(suffix)))):
                return [str(PurePosixPath(path).with_suffix(suffix)) for path in paths]
    return paths


def file_source(path: Path, format: str, files: Sequence[Path] = ()) -> dict[str, Any]:
    """Return where a bench comes from: one file with its SHA-256, or several in a folder."""
    if not files:
        return {"path": str(path), "sha256": sha256(path), "format": format}
    sums = {file.relative_to(path).as_posix(): sha256(file) for file in sorted(files)}
    return {"path": str(path), "format": format, "files": sums}
