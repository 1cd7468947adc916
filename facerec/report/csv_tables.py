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
from collections.abc import Iterable, Mapping
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What OWASP names under "CSV injection", with the wide forms of East Asian keyboards."""


def to_csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a table as UTF-8 with a header; no cell is a formula for a spreadsheet.

    Rows are column → number, text or None; a column may be missing in some. Numbers given as text
    are text: ``"-1"`` gets its mark.
    """
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_harmless, columns))
    writer.writerows([_harmless(row.get(name)) for name in columns] for row in rows)
    return text.getvalue().encode(errors="backslashreplace")  # names of files may be no UTF-8


def _harmless(value: object) -> object:
    # A spreadsheet takes what follows an apostrophe for text.
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
