"""One description gives the page's table, the terminal's, the spreadsheet's and Markdown's."""

from __future__ import annotations

import csv
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
            Column("group", lambda row: row[0], lambda row: row[0], "group", words=True),
            Column("FNMR", lambda row: share_cell(row[1]), lambda row: row[1], "fnmr"),
            Column("why", lambda row: row[1].remark, words=True, terminal=False),
            Column("", data=lambda row: {"errors": row[1].events, "pairs": row[1].total}),
        ],
        [*ROWS.items(), Spanning("others", Cell("withheld", withheld=True))],
        remarks=["Counts are small."],
    )


def test_the_file_has_the_ends_of_intervals_and_no_formula(table: Table[object]) -> None:
    men, women = csv.DictReader(io.StringIO(table.csv().decode()))
    low, high = float(men["fnmr_low"]), float(men["fnmr_high"])
    assert (low, high) == (wilson(5, 100).low, wilson(5, 100).high)
    assert (men["fnmr"], men["errors"], men["pairs"]) == ("0.05", "5", "100")
    assert women["group"] == "'=women"
    assert women["fnmr"] == women["fnmr_low"] == women["errors"] == ""


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


def test_markdown_has_nothing_that_steers_a_terminal_or_turns_figures_round() -> None:
    table = Table("", [Column("n", lambda row: row)], ["\x1b[31m\u202e2/57"])
    text = table.markdown()
    assert "2/57" in text and "\x1b" not in text and "\u202e" not in text
