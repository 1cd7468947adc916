"""What all pair lists share: reading lines, naming images, and becoming a bench."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

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


class NamedPair(NamedTuple):
    """A pair as a list names it."""

    first: str
    second: str
    same: bool
    where: str
    """Where it stands, for messages."""
    fold: Hashable = None
    """Its fold by any name; all pairs without one are in ten contiguous folds."""


def list_bench(
    path: Path,
    format: str,
    pairs: Sequence[NamedPair],
    images: Path | ImageSource,
    *,
    subject_of: Callable[[str], str] | None,
    named_by: str = "image names",
    name: str | None = None,
    files: Sequence[Path] = (),
    path_of: Callable[[str], str] = str,
    notes: Sequence[str] = (),
) -> Bench:
    """Return the pairs of a list as a bench.

    Args:
        path: of the list.
        format: its form.
        pairs: in their order; folds are numbered as they come.
        images: the folder of images, or the images in the order in which pairs name them.
        subject_of: the subject of an image; without it same pairs tell who is who. Where it
            contradicts a label they do, too.
        named_by: where the subjects come from.
        name: of the bench, by default that of the file.
        files: where ``path`` is a folder, those in it that were read.
        path_of: where an image lies in the folder.
        notes: what a reader must know, one sentence each.

    Raises:
        DatasetError: there are no pairs, or no such folder, or a name would lead out of it.
    """
    if not pairs:
        raise DatasetError(f"{path}: there are no pairs in it; check the file")
    numbers: dict[str, int] = {}
    known: dict[Hashable, int] = {}
    places = []
    for pair in pairs:
        for side in pair[:2]:
            check_relative(side, pair.where)
            # "./a.jpg" is "a.jpg".
            image = same_name(str(PurePosixPath(side)))
            places.append(numbers.setdefault(image, len(numbers)))
        known.setdefault(pair.fold, len(known))
    folds = None
    if None in known:
        folds = contiguous_folds(len(pairs))
    elif len(known) > 1:
        folds = np.array([known[pair.fold] for pair in pairs])
    ids = list(numbers)
    if isinstance(images, Path):
        images = FolderImages(images, ids, _there(images, list(map(path_of, ids))))
    first, second = np.array(places).reshape(-1, 2).T.copy()
    same = np.array([pair.same for pair in pairs])
    subjects = subject_of and list(map(subject_of, ids))
    listed = Pairs(first, second, same, folds=folds)
    listed, named_by, doubts = find_subjects(listed, len(ids), subjects, named_by)
    source = file_source(path, format, files)
    return Bench(name or path.stem, images, listed, named_by, (*notes, *doubts), source)


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
