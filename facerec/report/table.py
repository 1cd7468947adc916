"""A table, described once: columns say what to show of a row.

From one description come the terminal's table, the page's and the one for Markdown, so that they
cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as TerminalTable
from rich.text import Text as TerminalText

from facerec.errors import printable

Row = TypeVar("Row")


@dataclass(frozen=True)
class Cell:
    """A cell of a table, for people."""

    text: str
    small: str = ""
    """What stands below the text, such as the interval and the counts."""
    picture: str = ""
    """Data URI of a small picture above the text."""
    withheld: bool = False
    """Whether a figure is missing here, so that the cell is hatched."""
    span: int = 1
    """Columns that it takes."""
    strong: bool = False


@dataclass(frozen=True)
class Column(Generic[Row]):
    """What a column shows of a row.

    Attributes:
        heading: above the column.
        show: row → what people read.
        words: whether it holds words rather than numbers, which stand at the right.
        terminal: whether a terminal, which is narrow, shows it too.
    """

    heading: str
    show: Callable[[Row], Cell | str]
    words: bool = False
    terminal: bool = True


@dataclass(frozen=True)
class Spanning:
    """A row with one cell over all columns but the first, such as for a group that is withheld."""

    name: str
    cell: Cell


@dataclass(frozen=True)
class Table(Generic[Row]):
    """A table; its first column has the headings of the rows.

    Rows are anything that the columns understand, or `Spanning`, which is for people alone. Remarks
    stand below the table; `groups` are headings above the columns, and how many of these each has.

    Examples:
        >>> counts = {"men": (3, 100), "women": (1, 90)}
        >>> table = Table(
        ...     "Errors",
        ...     [
        ...         Column("group", lambda row: row[0], words=True),
        ...         Column("errors", lambda row: f"{row[1][0]}/{row[1][1]}"),
        ...     ],
        ...     list(counts.items()),
        ... )
        >>> print(table.markdown())
        | group | errors |
        | --- | ---: |
        | men | 3/100 |
        | women | 1/90 |
    """

    caption: str
    columns: Sequence[Column[Row]]
    rows: Sequence[Row | Spanning]
    remarks: Sequence[str] = ()
    groups: Sequence[tuple[str, int]] = ()
    kind: ClassVar[str] = "table"

    @cached_property
    def cells(self) -> list[list[Cell]]:
        """What people see, row by row."""
        return [self._cells(row, self.columns) for row in self.rows]

    def terminal(self) -> RenderableType:
        """Return caption and table for a terminal; small print stands below its text."""
        columns = [column for column in self.columns if column.terminal]
        table = TerminalTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for position, column in enumerate(columns):
            left = column.words or position == 0
            # In a narrow terminal a name or a figure is folded, never cut.
            table.add_column(column.heading, justify="left" if left else "right", overflow="fold")
        for row in self.rows:
            cells = self._cells(row, columns)
            table.add_row(*(_terminal_cell(cell) for cell in cells))
        # A title of the table itself would be broken at its width.
        return Group(TerminalText(self.caption, "bold"), table) if self.caption else table

    def markdown(self) -> str:
        """Return the table as Markdown; nothing in it is markup, and no line is broken."""
        marks = [
            "---" if column.words or position == 0 else "---:"
            for position, column in enumerate(self.columns)
        ]
        lines = [[escape_markdown(column.heading) for column in self.columns], marks]
        for row in self.cells:
            texts = [escape_markdown(f"{cell.text} {cell.small}".strip()) for cell in row]
            lines.append(texts + [""] * (len(self.columns) - len(texts)))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _cells(self, row: Row | Spanning, columns: Sequence[Column[Row]]) -> list[Cell]:
        if isinstance(row, Spanning):
            return [Cell(row.name), replace(row.cell, span=len(columns) - 1)]
        cells = [column.show(row) for column in columns]
        return [Cell(cell) if isinstance(cell, str) else cell for cell in cells]


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    flat = " ".join(printable(text).split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", flat)


def text_table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell | str]],
    words: Sequence[str] = (),
    page_only: Sequence[str] = (),
    remarks: Sequence[str] = (),
) -> Table[Sequence[Cell | str]]:
    """Return a table of cells that are there already, for people alone.

    Beside the first column those whose heading is in ``words`` hold words; those in ``page_only``
    are not for the terminal.
    """

    def column(index: int, heading: str) -> Column[Sequence[Cell | str]]:
        kind, narrow = heading in words, heading not in page_only
        return Column(heading, lambda row: row[index], words=kind, terminal=narrow)

    columns = [column(*numbered) for numbered in enumerate(headings)]
    return Table(caption, columns, list(rows), remarks)


def facts_table(caption: str, facts: Mapping[str, str]) -> Table[Sequence[Cell | str]]:
    """Return a table of two columns, a fact a row."""
    return text_table(caption, ("fact", "value"), facts.items(), words=("value",))


def fact_lines(facts: Iterable[tuple[str, str]]) -> TerminalTable:
    """Return facts for a terminal, a name and what it is a line."""
    grid = TerminalTable.grid(padding=(0, 2))
    grid.add_column(style="bold")
    # What a user copies, such as a hash, is folded, never cut.
    grid.add_column(overflow="fold")
    for name, text in facts:
        grid.add_row(TerminalText(name), TerminalText(text))
    return grid


def _terminal_cell(cell: Cell) -> TerminalText:
    text = TerminalText(cell.text, "bold" if cell.strong else "")
    if cell.small:
        text.append(f"\n{cell.small}", "dim")
    return text
