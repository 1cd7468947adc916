"""One description gives the page's table, the terminal's and Markdown's."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from facerec.report import words
from facerec.report.estimate import Estimate
from facerec.report.table import Cell, Column, Spanning, Table
from facerec.statistics.intervals import wilson

ROWS = {"men": Estimate(0.05, wilson(5, 100), 5, 100), "=women": Estimate(None, remark="no pair")}


def share_cell(estimate: Estimate) -> Cell:
    small = (words.limits(estimate.interval, 100), words.counts(estimate), estimate.remark)
    missing = estimate.value is None
    return Cell(words.percent(estimate.value), "\n".join(filter(None, small)), withheld=missing)


@pytest.fixture
def table() -> Table[tuple[str, Estimate]]:
    return Table(
        "Errors",
        [
            Column("group", lambda row: row[0], words=True),
            Column("FNMR", lambda row: share_cell(row[1])),
            Column("why", lambda row: row[1].remark, words=True, terminal=False),
        ],
        [*ROWS.items(), Spanning("others", Cell("withheld", withheld=True))],
        remarks=["Counts are small."],
    )


def test_people_see_what_is_missing_and_what_is_withheld(table: Table[object]) -> None:
    men, women, others = table.cells
    assert men[1].text == "5.00 %" and "[2.15," in men[1].small and "◐" in men[1].small
    assert women[1] == Cell("–", "no pair", withheld=True)
    assert others == [Cell("others"), Cell("withheld", withheld=True, span=2)]


def test_a_narrow_terminal_cuts_nothing() -> None:
    names = ("Triplet+SEC-authors", "Triplet+SEC-searched")
    headings = ["arm", *(f"Recall@{10**k}" for k in range(5))]
    columns = [
        Column(heading, lambda row, i=i: row if not i else "100.00 ± 132.36")  # type: ignore[misc]
        for i, heading in enumerate(headings)
    ]
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(Table("", columns, names).terminal())
    text = console.export_text()
    assert "…" not in text
    folded = "".join(line[:9].strip() for line in text.splitlines())
    assert all(name in folded for name in names)


def test_a_terminal_shows_its_columns_alone(table: Table[object]) -> None:
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(table.terminal())
    text = console.export_text()
    assert "why" not in text and "5.00 %" in text and "withheld" in text


def test_markdown_shows_markup_as_it_is() -> None:
    table = Table("", [Column("na|me", lambda row: row)], ["<b>*x*", "a\nb"])
    assert table.markdown().splitlines() == [
        r"| na\|me |",
        "| --- |",
        r"| &lt;b&gt;\*x\* |",
        "| a b |",
    ]
