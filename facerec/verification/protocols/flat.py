"""Flat lists: ``a b label`` or ``label a b``, separated by TAB, comma, semicolon or blanks."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path

from facerec.errors import DatasetError
from facerec.records.images import FolderImages, text_array
from facerec.verification.bench import Bench, contiguous_folds, subjects_from_names
from facerec.verification.protocols.lists import (
    LABELS,
    Line,
    PairTable,
    file_source,
    make_bench,
    read_lines,
)

HEADERS = ("label", "target", "issame", "is_same", "decision")
"""Names of the label's column, none of which is a label itself."""


def read_flat(path: Path, images: Path | None) -> Bench:
    """Read two image paths and a label a line, with ten contiguous folds in the order of lines.

    The label is the first or the last field: the one that is 0 or 1, -1 or 1, or such a word (see
    `LABELS`) in all lines. Names may hold blanks where TAB, comma or semicolon separates, and then
    may be quoted, as spreadsheets do with commas even between TABs. A first line with ``label``,
    ``target``, ``issame`` or ``Decision`` in that place is a header, and so is one with ``same``
    above labels that are numbers. Where no name has a slash, backslashes are taken for slashes, as
    Windows writes paths.

    Raises:
        DatasetError: a line with other fields, or no place that holds labels only.
    """
    lines, notes = read_lines(path)
    rows = _split(path, lines)
    at = next((at for at in (2, 0) if _is_header(rows, at)), None)
    if at is None:
        at = _label_column(path, rows)
    else:
        rows = rows[1:]
    if not any("/" in field for _, fields in rows for field in fields):
        rows = [(line, [field.replace("\\", "/") for field in fields]) for line, fields in rows]
    table = PairTable()
    for line, fields in rows:
        where = f"{path}, line {line}"
        label = fields.pop(at)
        first, second = fields
        if label.lower() not in LABELS:
            raise DatasetError(
                f"{where}: {label[:60]!r} where a label, 0 or 1, belongs; mend the line or check "
                "the format"
            )
        table.add(first, second, LABELS[label.lower()], where)
    ids = list(table.names)
    # Only a folder for each subject says who is who.
    subjects = subjects_from_names(text_array(ids, str(path)))
    return make_bench(
        path.stem,
        table,
        FolderImages(path.parent if images is None else images, ids),
        folds=contiguous_folds(len(table)),
        subject_names=None if subjects is None else [str(subject) for subject in subjects],
        named_by="image names",
        source=file_source(path, "flat"),
        notes=notes,
    )


def _split(path: Path, lines: list[Line]) -> list[tuple[int, list[str]]]:
    """Split all lines by the separator that fits the first."""
    first = lines[0][1]
    split: Callable[[str], list[str]] = str.split
    for separator in "\t,;":
        if separator in first and (separator == "\t" or len(_quoted(first, separator)) == 3):
            split = partial(_quoted, separator=separator)
            break
    rows = []
    for line, text in lines:
        fields = split(text)
        if len(fields) != 3 or not all(fields):
            raise DatasetError(
                f"{path}, line {line}: {text[:60]!r} is not 'image image label', three fields "
                "apart as in the first line by TAB, comma, semicolon or blanks; mend the line, or "
                "separate by TAB where names have blanks"
            )
        rows.append((line, fields))
    return rows


def _quoted(text: str, separator: str) -> list[str]:
    try:
        # Spreadsheets end lines with separators where another column was once.
        reader = csv.reader([text.rstrip(separator)], delimiter=separator, strict=True)
        return [field.strip() for field in next(reader)]
    except csv.Error:
        return []


def _is_header(rows: list[tuple[int, list[str]]], at: int) -> bool:
    """Tell whether the first line names the column ``at`` as that of labels."""
    name, below = rows[0][1][at].lower(), [fields[at] for _, fields in rows[1:]]
    numbers = bool(below) and not any(map(str.isalpha, below))
    return name in HEADERS or (name == "same" and numbers)


def _label_column(path: Path, rows: list[tuple[int, list[str]]]) -> int:
    counts = {at: sum(fields[at].lower() in LABELS for _, fields in rows) for at in (0, 2)}
    full = [at for at, count in counts.items() if count == len(rows)]
    if len(full) == 2:
        raise DatasetError(
            f"{path}: the first and the last field are labels in all lines; give the images names "
            "that are no labels, or write a header such as image1,image2,label"
        )
    # With no full column, the fuller one leads to the first line that is wrong.
    return full[0] if full else max(counts, key=lambda at: (counts[at], at))
