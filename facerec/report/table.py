"""A table for people: one description becomes the terminal's table, the page's and Markdown's."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as TerminalTable
from rich.text import Text as TerminalText

from facerec.base.errors import printable
from facerec.report.documents import plain


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    small: str = ""
    """What stands below the text, such as the interval and the counts."""
    picture: str = ""
    """Data URI of a small picture above the text."""
    withheld: bool = False
    """Whether a figure is missing here, so that the cell is hatched."""
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table; its first column has the headings of the rows.

    Examples:
        >>> table = Table("Errors", ("group", "errors"), [("men", "3/100"), ("women", "1/90")])
        >>> print(table.markdown())
        | group | errors |
        | --- | ---: |
        | men | 3/100 |
        | women | 1/90 |
    """

    caption: str
    headings: Sequence[str]
    rows: Iterable[Sequence[Cell | str]]
    words: Collection[str] = ()
    """Headings of columns that hold words, which stand at the left as the first column does."""
    page_only: Collection[str] = ()
    """Headings of columns that a terminal, which is narrow, does not show."""
    remarks: Sequence[str] = ()
    """What stands below the table."""
    kind: ClassVar[str] = "table"

    @cached_property
    def cells(self) -> list[list[Cell]]:
        """What people see, row by row."""
        return [
            [Cell(each) if isinstance(each, str) else each for each in row] for row in self.rows
        ]

    @cached_property
    def at_left(self) -> list[bool]:
        """Whether each column holds words."""
        return [not place or name in self.words for place, name in enumerate(self.headings)]

    def terminal(self) -> RenderableType:
        """Return caption and table for a terminal; small print stands below its text."""
        table = TerminalTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        shown = [name not in self.page_only for name in self.headings]
        for name, left, here in zip(self.headings, self.at_left, shown, strict=True):
            if here:  # in a narrow terminal a name or a figure is folded, never cut
                table.add_column(name, justify="left" if left else "right", overflow="fold")
        for row in self.cells:
            both = zip(row, shown, strict=True)
            table.add_row(*(_terminal_cell(cell) for cell, here in both if here))
        # A title of the table itself would be broken at its width.
        return Group(TerminalText(self.caption, "bold"), table) if self.caption else table

    def markdown(self) -> str:
        """Return the table as Markdown; nothing in it is markup, and no line is broken."""
        lines = [list(map(escape_markdown, self.headings))]
        lines.append(["---" if left else "---:" for left in self.at_left])
        for row in self.cells:
            lines.append([escape_markdown(f"{cell.text} {cell.small}".strip()) for cell in row])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def latex(self) -> str:
        """Return the table for LaTeX with the package booktabs, without its small print."""
        import pandas as pd

        rows = [[cell.text for cell in cells] for cells in self.cells]
        style = "l" + "c" * (len(self.headings) - 1)
        frame = pd.DataFrame(rows, columns=list(self.headings))
        return frame.to_latex(index=False, escape=True, column_format=style)


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    flat = " ".join(printable(text).split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", flat)


def facts_table(caption: str, facts: Mapping[str, Any]) -> Table:
    """Return a table of two columns, a fact a row; what is no text is shown as JSON."""
    rows = [
        (name, fact if isinstance(fact, str) else json.dumps(plain(fact), ensure_ascii=False))
        for name, fact in facts.items()
    ]
    return Table(caption, ("fact", "value"), rows, words=("value",))


def print_facts(facts: Iterable[tuple[str, str]], console: Console) -> None:
    """Print a name and what it is a line."""
    facts = list(facts)
    width = max(len(name) for name, _ in facts)
    for name, text in facts:
        console.print(f"{name.ljust(width)}  {text}", soft_wrap=True, highlight=False)


def _terminal_cell(cell: Cell) -> TerminalText:
    text = TerminalText(cell.text, "bold" if cell.strong else "")
    if cell.small:
        text.append(f"\n{cell.small}", "dim")
    return text
