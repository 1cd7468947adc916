"""LFW's grammar, ``name i j`` and ``name1 i name2 j``: LFW, XQLFW and the four lists of RFW."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError
from facerec.report.words import counted
from facerec.verification.bench import Bench, contiguous_folds
from facerec.verification.protocols.lists import (
    Line,
    PairTable,
    file_source,
    folder_images,
    make_bench,
    parse_number,
    read_lines,
)

Row = tuple[str, str, bool, int]
"""Path of the first and the second image, whether they show one subject, number of the line."""


def read_lfw(path: Path, images: Path | None, format: str = "lfw") -> Bench:
    """Read ``pairs.txt`` (View 2), or a list of View 1 with or without its count.

    View 2 begins with ``folds TAB n`` and has n same and n different pairs in every fold; View 1
    begins with n, or copies of it with nothing, and has no folds.

    Raises:
        DatasetError: another grammar, or counts that are not those of the header.
    """
    lines, notes = read_lines(path)
    header = _header(lines[0][1])
    rows = list(parse_rows(path, lines[1:] if header else lines))
    if not rows:
        raise DatasetError(f"{path}: a header and no pairs; get the whole list")
    folds = None
    if len(header) == 2:
        folds = _view_2_folds(path, rows, *header)
    elif header:
        _check_counts(f"{path}, line {lines[0][0]}", rows, header[0], "after it")
    else:
        notes.append("the list begins without a count, so nothing says that it is whole")
    table = PairTable()
    for first, second, same, line in rows:
        table.add(first, second, same, f"{path}, line {line}")
    return make_bench(
        format if len(header) == 2 else path.stem,
        table,
        folder_images(path.parent if images is None else images, list(table.names)),
        folds=folds,
        subject_names=[name.partition("/")[0] for name in table.names],
        named_by="the list",
        source=file_source(path, format),
        notes=notes,
    )


def read_rfw(path: Path, images: Path | None) -> Bench:
    """Read one list of RFW, or the folder ``txts`` with those of several races.

    Lists are ``{race}_pairs.txt`` or ``{race}/{race}_pairs.txt``, without a header and with ten
    contiguous folds each. Image ids begin with the race. Subjects who occur under two races are
    dropped, with their pairs. The folder of images holds ``{race}/{subject}/``, or of a single list
    also ``{subject}/``; by default it is ``data`` beside ``txts``.

    Raises:
        DatasetError: no list, or another grammar.
    """
    files = [path]
    if path.is_dir():
        files = sorted([*path.glob("*_pairs.txt"), *path.glob("*/*_pairs.txt")])
    if not files:
        raise DatasetError(f"{path}: no file *_pairs.txt in it; name the folder of RFW's lists")
    notes: list[str] = []
    lists: dict[Path, tuple[str, list[Row]]] = {}
    for file in files:
        lines, remarks = read_lines(file)
        notes += remarks
        lists[file] = file.stem.removesuffix("_pairs"), list(parse_rows(file, lines))
    races: dict[str, set[str]] = {}
    for race, rows in lists.values():
        for subject in {_subject(image) for row in rows for image in row[:2]}:
            races.setdefault(subject, set()).add(race)
    dropped = {subject for subject, occurs_in in races.items() if len(occurs_in) > 1}
    table = PairTable()
    folds = []
    for file, (race, rows) in lists.items():
        numbers = contiguous_folds(len(rows))
        if numbers is None:
            raise DatasetError(f"{file}: {len(rows)} pairs cannot fill ten folds; check the list")
        for fold, (first, second, same, line) in zip(numbers.tolist(), rows, strict=True):
            if not dropped & {_subject(first), _subject(second)}:
                table.add(f"{race}/{first}", f"{race}/{second}", same, f"{file}, line {line}")
                folds.append(fold)
    if dropped:
        count = sum(len(rows) for _, rows in lists.values()) - len(table)
        notes.append(
            f"{counted(len(dropped), 'subject')} under two races, dropped with "
            f"{counted(count, 'pair')}: {', '.join(sorted(dropped))}"
        )
    root = _rfw_images(path) if images is None else images
    single = len(files) == 1 and not any((root / race).is_dir() for race, _ in lists.values())
    ids = list(table.names)
    paths = [name.partition("/")[2] for name in ids] if single else ids
    return make_bench(
        "rfw" if len(files) > 1 else files[0].stem,
        table,
        folder_images(root, ids, paths),
        folds=np.array(folds, dtype=np.int64),
        subject_names=[_subject(name) for name in ids],
        named_by="the list",
        source=file_source(path, "rfw", files if path.is_dir() else None),
        notes=notes,
    )


def parse_rows(path: Path, lines: list[Line]) -> Iterator[Row]:
    """Go through lines of three or four fields, separated by TAB or else by blanks.

    Raises:
        DatasetError: a line with other fields, or of two subjects who are the same.
    """
    for line, text in lines:
        where = f"{path}, line {line}"
        fields = [field.strip() for field in text.split("\t")] if "\t" in text else text.split()
        if len(fields) not in (3, 4):
            raise DatasetError(
                f"{where}: {len(fields)} fields, {text[:60]!r}, where 'name i j' or 'name1 i name2 "
                "j' belongs; mend the line or check the format"
            )
        same = len(fields) == 3
        first, i, second, j = [*fields[:2], fields[0], fields[2]] if same else fields
        if not same and first == second:
            raise DatasetError(
                f"{where}: a pair of different subjects names {first[:60]!r} twice; write "
                "'name i j' for a pair of the same subject"
            )
        yield _image(first, i, where), _image(second, j, where), same, line


def _image(name: str, number: str, where: str) -> str:
    if not name or "/" in name or "\\" in name:
        raise DatasetError(f"{where}: {name[:60]!r} is no name of a subject; mend the line")
    return f"{name}/{name}_{parse_number(number, where):04d}.jpg"


def _subject(image: str) -> str:
    return PurePosixPath(image).parent.name


def _header(text: str) -> list[int]:
    """Return the one or two counts of the first line; none where pairs begin at once."""
    fields = text.split()
    if len(fields) <= 2 and all(re.fullmatch(r"[0-9]{1,9}", field) for field in fields):
        return [int(field) for field in fields]
    return []


def _view_2_folds(path: Path, rows: list[Row], folds: int, size: int) -> NDArray[np.int64] | None:
    """Check the counts of every fold; return the fold of each pair, None if there is one only."""
    if len(rows) != 2 * folds * size:
        raise DatasetError(
            f"{path}: its header asks for {folds:,} folds of {size:,} same and {size:,} different "
            f"pairs, {2 * folds * size:,} together, but there are {len(rows):,}; get the whole list"
        )
    for fold in range(folds):
        block = rows[2 * fold * size : 2 * (fold + 1) * size]
        _check_counts(f"{path}, fold {fold + 1}", block, size, f"from line {block[0][3]} on")
    return np.repeat(np.arange(folds, dtype=np.int64), 2 * size) if folds > 1 else None


def _check_counts(where: str, rows: list[Row], size: int, span: str) -> None:
    same = sum(row[2] for row in rows)
    if (same, len(rows) - same) != (size, size):
        raise DatasetError(
            f"{where}: {size:,} same and {size:,} different pairs belong here, but {span} there "
            f"are {same:,} and {len(rows) - same:,}; get the whole list or check the format"
        )


def _rfw_images(path: Path) -> Path:
    """Return ``data`` beside the folder ``txts`` that ``path`` is, or lies in; else its folder."""
    for folder in (path, *path.parents[:2]):
        if folder.name == "txts" and (folder.parent / "data").is_dir():
            return folder.parent / "data"
    return path if path.is_dir() else path.parent
