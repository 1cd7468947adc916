"""Tables in text files whose first line names the columns, as users and spreadsheets write them.

Fields are apart by commas, or where the first line has none by semicolons or TABs. The text is
UTF-8, with a mark or not, or UTF-16 with its mark; line ends are of any kind. Blanks around fields
do not count, lines without any text are passed over, and text is composed (`facerec.base.names`).
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from facerec.base.errors import DatasetError
from facerec.base.files import LIST, read_file, reading
from facerec.base.names import same_name


def read_text(path: Path) -> str:
    """Return a text file as UTF-8 or UTF-16 has it, with LF alone as ends, and names composed.

    Raises:
        DatasetError: it cannot be read or is no text.
    """
    advice = "check the path, and that it is text in UTF-8"
    with reading(path, DatasetError, advice, (OSError, ValueError)):
        content = read_file(path, LIST)
        wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        try:
            text = content.decode("utf-16" if wide else "utf-8-sig")
        except UnicodeDecodeError as problem:
            line = content.count(b"\n", 0, problem.start) + 1
            raise ValueError(f"line {line}: byte {problem.start} is no text") from problem
        if "\0" in text:
            raise ValueError("it has NUL bytes")
    return same_name(text.replace("\r\n", "\n").replace("\r", "\n"))


class TextTable:
    """A table whose columns are known and whose rows are read as they are asked for, once.

    Args:
        path: the file.
        called: columns that the file calls otherwise: the usual name → the file's.

    Raises:
        DatasetError: the file cannot be read, is no text, or has none, or several columns, of a
            name in ``called``.
    """

    def __init__(self, path: str | Path, called: Mapping[str, str] | None = None) -> None:
        self.path = Path(path)
        text = read_text(self.path)
        first = text.partition("\n")[0]
        separator = next((mark for mark in ",;\t" if mark in first), ",")
        # Line by line: a file in memory would hold four bytes of each character.
        lines = (line.group() for line in re.finditer(r".*\n|.+", text))
        self._reader = csv.reader(lines, delimiter=separator, strict=True)
        self._rows = self._read()
        self.line, self.columns = next(self._rows, (1, []))
        """Number of the line that names the columns, and their names."""
        wanted = {same_name(own): name for name, own in (called or {}).items()}
        self._called = set(wanted.values())
        self._check(list(wanted))
        self.columns = [
            wanted.get(own, "" if own in wanted.values() else own) for own in self.columns
        ]

    def where(self, line: int) -> str:
        """Name a line, for messages."""
        return f"{self.path}, line {line}"

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield the number of each line and its fields in some columns, without outer blanks.

        Raises:
            DatasetError: a column is missing or there twice, or a line has more or fewer fields
                than the first.
        """
        columns = [same_name(name) for name in columns]
        self._check(columns)
        if odd := sorted(self._called.difference(columns)):
            raise DatasetError(
                f"{self.path}: {odd[0][:60]!r} is no column that is read here; those are "
                f"{', '.join(columns)[:200]}"
            )
        places = [self.columns.index(name) for name in columns]
        for line, fields in self._rows:
            if len(fields) != len(self.columns):
                raise DatasetError(
                    f"{self.where(line)}: {len(fields)} fields where the first line has "
                    f"{len(self.columns)}; mend the line (a field with the separator in it needs "
                    "quotes)"
                )
            yield line, tuple([fields[place] for place in places])

    def _check(self, columns: Sequence[str]) -> None:
        if wrong := [name for name in columns if self.columns.count(name) != 1]:
            listed = ", ".join(self.columns[:20])[:200] or "none"
            lacking = ", ".join(repr(name[:60]) for name in wrong[:20])
            raise DatasetError(
                f"{self.where(self.line)}: there is no column {lacking}, or there are two (of "
                f"{listed}); the first line must name each of {', '.join(columns)[:200]}"
            )

    def _read(self) -> Iterator[tuple[int, list[str]]]:
        try:
            for fields in self._reader:
                stripped = [field.strip() for field in fields]
                if any(stripped):
                    yield self._reader.line_num, stripped
        except csv.Error as problem:
            raise DatasetError(
                f"{self.where(self._reader.line_num)}: this is no CSV ({problem}); name a text "
                "table, as .csv, or mend the line (often half a pair of quotation marks)"
            ) from problem
