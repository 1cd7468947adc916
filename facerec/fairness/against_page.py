"""What changed between two releases, as a table and as a section of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from facerec.fairness.against import ReleaseChange, ReleaseComparison
from facerec.fairness.plain import Json, plain
from facerec.report import words
from facerec.report.page import Block, Folded, Listed, Section, Text
from facerec.report.table import Cell, Column, Table

_SHOWN = 25
"""Rows from which on those without a change are folded."""


def against_table(rows: Sequence[ReleaseChange], caption: str = "") -> Table[ReleaseChange]:
    """Return old, new and change of figures."""

    def named(row: ReleaseChange) -> Cell:
        where = row.grouping if row.group is None else f"{row.grouping} {row.group}"
        target = "" if row.target is None else f" at {row.target}"
        return Cell(f"{row.figure}{target}", where, strong=row.verdict_changed)

    def change(row: ReleaseChange) -> Cell:
        if row.value is None:
            return Cell(words.NOTHING, row.remark, withheld=True)
        limits = words.limits(row.interval, form="+.3g")
        paired = " paired" if row.paired else ""
        return Cell(words.number(row.value, "+.3g"), f"{limits}{paired}" or row.remark)

    def verdict(row: ReleaseChange) -> Cell:
        if row.new_verdict is None:
            return Cell(row.conclusion)
        if row.verdict_changed:
            return Cell(f"{row.old_verdict} → {row.new_verdict}", row.conclusion, strong=True)
        return Cell(row.new_verdict, row.conclusion)

    def written(*names: str) -> Callable[[ReleaseChange], Json]:
        """Put what files have of these names into columns of their own."""

        def values(row: ReleaseChange) -> Json:
            everything = plain(row)
            return {name: everything[name] for name in names}

        return values

    columns: list[Column[ReleaseChange]] = [
        Column("figure", named, written("figure", "grouping", "group", "fmr_nominal")),
        Column("old", lambda row: words.number(row.old), lambda row: row.old, "old"),
        Column("new", lambda row: words.number(row.new), lambda row: row.new, "new"),
        Column("change [95 %]", change, lambda row: row, "change"),
        Column(
            "verdict, and that of the change",
            verdict,
            written("paired", "old_verdict", "new_verdict", "conclusion", "reason"),
            words=True,
        ),
    ]
    return Table(caption, columns, rows)


def notable(comparison: ReleaseComparison) -> list[ReleaseChange]:
    """Return the rows whose verdict changed or whose change is detected."""
    return [row for row in comparison.rows if row.verdict_changed or row.moved]


def section(comparison: ReleaseComparison) -> Section:
    """Return the section of the page."""
    blocks: list[Block] = [Listed(comparison.notes)]
    moved = notable(comparison)
    rest = [row for row in comparison.rows if row not in moved]
    if moved:
        blocks.append(against_table(moved, "Verdicts that changed, then figures that moved"))
    else:
        blocks.append(Text("No verdict changed, and no figure moved by more than its interval."))
    if rest:
        table = against_table(rest, "Figures that did not")
        blocks.append(
            table
            if len(comparison.rows) <= _SHOWN
            else Folded(words.counted(len(rest), "figure") + " without a change", [table])
        )
    return Section(
        "Against the earlier release",
        blocks,
        f"{comparison.name}, made by facerec {comparison.facerec}: {comparison.summary}. "
        "A change is new − old.",
    )
