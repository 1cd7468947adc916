"""One description gives the page's table, the terminal's and Markdown's."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from facerec.report.table import Cell, Table


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_cuts_nothing_and_shows_its_columns_alone(width: int) -> None:
    names = ("Triplet+SEC-authors", "Triplet+SEC-searched")
    headings = ["arm", *(f"Recall@{10**k}" for k in range(5)), "why"]
    rows = [(name, *["100.00 ± 132.36"] * 4, Cell("–", "[2.15, 7]"), "secret") for name in names]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(Table("Errors", headings, rows, page_only=("why",)).terminal())
    text = console.export_text()
    assert "…" not in text and "secret" not in text and "Errors" in text
    folded = "".join(line[:9].strip() for line in text.splitlines())
    assert all(name[:4] in folded for name in names)


def test_markdown_shows_markup_as_it_is() -> None:
    table = Table("", ["na|me", "n"], [("<b>*x*", Cell("1", "of 2")), ("a\nb", "3")])
    assert table.markdown().splitlines() == [
        r"| na\|me | n |",
        "| --- | ---: |",
        r"| &lt;b&gt;\*x\* | 1 of 2 |",
        "| a b | 3 |",
    ]
