"""Identification by group for people: tables, and the section of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from facerec.fairness.attributes import EVERYBODY
from facerec.fairness.figures import search_figure
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.one_to_many import (
    Figure,
    OneToMany,
    SearchAudit,
    SearchRate,
    SearchThreshold,
    working_thresholds,
)
from facerec.fairness.tables import figure_cell, fmr_cell, rate_cell
from facerec.report import words
from facerec.report.estimate import Estimate
from facerec.report.figures import Drawings, slug
from facerec.report.page import Block, Folded, Heading, Section, Text
from facerec.report.table import Cell, Column, Table, text_table
from facerec.statistics.intervals import complement

TITLE = "One to many: identification by group"


_AtThreshold: TypeAlias = "dict[Figure, SearchRate]"
"""Figures of one group, or of a third of it, at one threshold."""


def failure_table(audit: SearchAudit) -> Table[Sequence[Cell | str]]:
    """Return failures to acquire and to enrol by group."""
    headings = ("group", "failure to acquire, images", "failure to enrol, subjects")
    rows = [(row.group, rate_cell(row.acquire), rate_cell(row.enrol)) for row in audit.failures]
    remark = (
        "Images without an embedding; subjects of whom no image to enrol was acquired, so that "
        "they are in no gallery."
    )
    return text_table(f"{audit.name}: failures", headings, rows, remarks=[remark])


def rank_table(audit: SearchAudit, kind: str) -> Table[SearchRate]:
    """Return the share of mated searches whose mate comes first, by group."""
    rows = [
        row for row in audit.rates if row.figure == "rank-1 miss rate" and row.galleries == kind
    ]
    columns: list[Column[SearchRate]] = [
        Column("group", lambda row: row.group),
        Column("rank-1 identification rate", _rank_one),
        Column(f"misses, ratio to {audit.compared_with}", lambda row: _ratio(row.ratio)),
    ]
    remarks = words.assumptions(row.interval for row in rows)
    return Table(f"{audit.name}: rank 1, {kind} galleries", columns, rows, remarks)


def search_table(
    audit: SearchAudit, threshold: SearchThreshold, strata: bool = False
) -> Table[_AtThreshold]:
    """Return FPIR and FNIR by group at one threshold, with ratios; by third of covariates too."""
    lines = _lines(audit, threshold, strata)
    columns: list[Column[_AtThreshold]] = [
        Column("group", lambda row: Cell(row["FPIR"].group, row["FPIR"].stratum or "")),
        Column("FPIR", lambda row: fmr_cell(row["FPIR"])),
        Column(f"ratio to {audit.compared_with}", lambda row: _ratio(row["FPIR"].ratio)),
        Column("FNIR", lambda row: rate_cell(row["FNIR"])),
        Column(f"ratio to {audit.compared_with}", lambda row: _ratio(row["FNIR"].ratio)),
    ]
    if any("FNIR with failures" in row for row in lines):
        columns.append(
            Column(
                "FNIR with failures as misses",
                lambda row: (
                    rate_cell(row["FNIR with failures"]) if "FNIR with failures" in row else ""
                ),
            )
        )
    false_positives = [row["FPIR"] for row in lines]
    remarks = words.assumptions(rate.interval for rate in false_positives)
    ratios = [rate.ratio.interval for rate in false_positives if rate.ratio is not None]
    caption = (
        f"{audit.name}: threshold {words.threshold(threshold.value)}, set at FPIR "
        f"{threshold.target} of {threshold.basis} ({threshold.false_alarms:,}/"
        f"{threshold.non_mated:,}); {threshold.galleries} galleries"
    )
    return Table(caption, columns, lines, [*remarks, *words.assumptions(ratios)])


def section(one_to_many: OneToMany | NoComparison, drawings: Drawings) -> Section:
    """Return the section of the page."""
    if isinstance(one_to_many, NoComparison):
        return Section(TITLE, [Text(f"Not computed: {one_to_many.reason}.")])
    blocks: list[Block] = [Text(one_to_many.protocol)]
    for number, audit in enumerate(one_to_many.groupings, start=1):
        blocks.append(Heading(audit.name))
        blocks += _blocks(audit, drawings.of(f"{slug(number, audit.name)}-"))
    return Section(
        TITLE,
        blocks,
        "FPIR: non-mated searches in which somebody else reaches the threshold. FNIR: mated "
        "searches in which the mate does not, whatever its rank. Thresholds are taken as given. "
        "These figures belong to galleries of this size.",
    )


def _blocks(audit: SearchAudit, drawings: Drawings) -> Iterator[Block]:
    yield failure_table(audit)
    first = working_thresholds(audit.thresholds)
    points = []
    for threshold in first:
        lines = [row for row in _lines(audit, threshold) if row["FPIR"].group != EVERYBODY]
        fpir, fnir = [row["FPIR"] for row in lines], [row["FNIR"] for row in lines]
        basis = threshold.basis
        if threshold.galleries == "homogeneous":
            basis = f"{basis}, homogeneous"
        points.append((threshold.target, basis, fpir, fnir))
    yield from drawings.draw(
        "searches",
        search_figure(audit.groups, points),
        "FPIR and FNIR of every group at each threshold; the tables below have all figures.",
        "FPIR (left, logarithmic) and FNIR (right) by group at one threshold for everybody, "
        "errors/searches beside. Full marks: at least 30 errors; half: 3 to 29; hollow: fewer.",
    )
    for threshold in first:
        yield search_table(audit, threshold)
    for searched in audit.entries:
        yield rank_table(audit, searched.galleries)
        if searched.galleries == "homogeneous":
            size = searched.entries[0]  # that of all of them
            yield Text(
                f"Homogeneous galleries hold one group alone, {size:,} subjects each, and are "
                "searched by that group."
            )
    yield from (Text(reason) for reason in audit.reasons)
    if any(rate.stratum for rate in audit.rates):
        mixed = [threshold for threshold in first if threshold.galleries == "mixed"]
        yield Folded(
            "By third of each covariate of the probe, at the same thresholds",
            [search_table(audit, threshold, strata=True) for threshold in mixed],
        )
    others = [one for one in audit.thresholds if one not in first]
    few = [one for one in others if one.value is None or not one.resolvable]
    tables = [search_table(audit, one) for one in others if one not in few]
    if tables:
        yield Folded("Figures at other thresholds", tables)
    for one in few:
        reason = one.reason or f"not resolvable with {one.non_mated:,} non-mated searches"
        yield Text(f"FPIR {one.target} of {one.basis}, {one.galleries} galleries: {reason}.")


def _lines(
    audit: SearchAudit, threshold: SearchThreshold, strata: bool = False
) -> list[_AtThreshold]:
    """Return the figures at a threshold by group; with ``strata`` by third of covariates too."""
    key = threshold.galleries, threshold.basis, threshold.target
    rows: dict[tuple[str | None, str], _AtThreshold] = {}
    for rate in audit.rates:
        if (rate.galleries, rate.basis, rate.target) == key and bool(rate.stratum) == strata:
            rows.setdefault((rate.stratum, rate.group), {})[rate.figure] = rate
    return list(rows.values())


def _rank_one(row: SearchRate) -> Cell:
    """Return the share that was identified, though misses were counted."""
    if row.value is None:
        return Cell(words.NOTHING, row.remark, withheld=True)
    limits = None if row.interval is None else complement(row.interval)
    counts = f"{row.total - row.events:,}/{row.total:,}"
    small = [words.percent_limits(limits), counts]
    return Cell(words.percent(1 - row.value), "\n".join(filter(None, small)))


def _ratio(ratio: Estimate | None) -> Cell:
    return Cell("") if ratio is None else figure_cell(ratio, ".3g")


def summary_tables(one_to_many: OneToMany) -> list[Table[Any]]:
    """Return what a terminal shows: of every grouping rank 1, and the thresholds to look at."""
    tables: list[Table[Any]] = []
    for audit in one_to_many.groupings:
        tables.append(rank_table(audit, "mixed"))
        tables += [
            search_table(audit, threshold) for threshold in working_thresholds(audit.thresholds)
        ]
    return tables
