"""CSV tables that people open in a spreadsheet.

A cell that begins like a formula would be computed there, and a formula can fetch addresses and
start programs. Names of images, subjects and groups come from others, so every table of a report is
written here.

Lists that programs read back, such as pair lists and attributes, are data and not written here:
their names must come back as they were.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from facerec.errors import FacerecError
from facerec.files import atomic_path

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What OWASP names under "CSV injection", with the wide forms of East Asian keyboards."""


def to_csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a table as UTF-8 with a header; no cell is a formula for a spreadsheet.

    Rows are column → number, text or None; a column may be missing in some.
    """
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    write_csv(text, columns, ([row.get(name) for name in columns] for row in rows))
    return text.getvalue().encode()


def write_csv(file: TextIO, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table row by row; no cell is a formula for a spreadsheet.

    The file was opened with ``newline=""``. Numbers given as text are text: ``"-1"`` gets its mark.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_harmless, header))
    writer.writerows(map(_harmless, row) for row in rows)


def save_csv(
    path: Path,
    header: Sequence[str],
    rows: Iterable[Iterable[object]],
    error: type[FacerecError] = FacerecError,
) -> None:
    """Write a file as `write_csv` does, whole or not at all."""
    with (
        atomic_path(path, error) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        write_csv(file, header, rows)


def _harmless(value: object) -> object:
    # A spreadsheet takes what follows an apostrophe for text.
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
