"""An audit as files: page, tables, a model card's section; and its lines on the terminal.

All are made from the rows of `facerec.fairness.rows`; a table has the rows of all attributes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from facerec.base.files import json_bytes
from facerec.fairness import rows as names
from facerec.fairness.baseline import READING
from facerec.fairness.differentials import MEASURES, NAMES, named
from facerec.fairness.findings import BESIDE, at_threshold, verdict
from facerec.fairness.groupings import ALL_GROUPS, EVERYBODY
from facerec.fairness.norm_errors import BINS
from facerec.fairness.plots import pictures
from facerec.fairness.result import SCHEMA, Audit
from facerec.report import words
from facerec.report.conclusions import of_test
from facerec.report.csv_tables import to_csv
from facerec.report.documents import files_listed
from facerec.report.folders import check_replaceable, write_folder
from facerec.report.page import FindingLine, Listed, Page, Section
from facerec.report.plotting import Drawing, data_uri, draw
from facerec.report.table import Cell, Table, escape_markdown
from facerec.report.tidy import OF_PAIRS, Row, cell, records, said

PAGE = "audit.html"
JSON = "audit.json"

_FATES = {
    "suppressed": "under ten subjects, or else such a group would follow from totals",
    "pooled": "under ten subjects",
}
_FIRST = 5
"""Findings at the head of a page."""
_MOST_SIZES = 4
"""Groups of an attribute whose sizes are said one by one."""
_MOST_PAIRS = 3
"""Pairs of groups whose δ a page shows."""
_ALIKE = ("FNMR", *names.TENTHS.values(), *names.DISCARDS.values())
"""Means over people, of which the counts of pairs are no quotient."""

_TERMS = {
    "FMR, FNMR": "False matches over non-mated (impostor) pairs, false non-matches over mated "
    "(genuine) pairs; of a group, of pairs within it. A pair matches at or above the threshold. "
    "The FNMR is the mean over people of the share of each one’s pairs, so that each person weighs "
    f"alike; “{OF_PAIRS}” lets each pair weigh alike, and so people by the square of their photos.",
    "FPD, FND": "False positive and false negative differential of ISO/IEC 19795-10: how far the "
    "FMRs and FNMRs of groups lie apart. max/geomean: max x / (Π x)^(1/n); Gini: "
    "n/(n−1) · Σᵢⱼ |xᵢ − xⱼ| / (2 n² mean x). p: how often groups of equal rates would differ as "
    "much or more.",
    "η²": "Share of the variance of subjects’ mean norms that lies between groups; p by Welch’s F, "
    "groups permuted over subjects.",
    "Cliff’s δ": "P(X > Y) − P(X < Y) of subjects’ mean norms.",
    "Interval": "95 %; it allows for images and pairs that share a subject. ● at least 30 errors, "
    "◐ 3 to 29, ○ fewer.",
}

_LEADS = {
    "Error rates": "One threshold for everybody; other targets and rates between groups are in "
    "audit.csv.",
    "Provenance": "On screen this page has more tables than on paper; audit.csv has all figures.",
    "Does the norm matter here?": "The norm of a mated pair is the lesser of its two; the "
    "threshold is that of all sentences.",
}


def check_audit_folder(folder: str | Path) -> None:
    """Refuse a folder that a report may not replace; see `check_replaceable`."""
    # Of whichever version.
    check_replaceable(folder, lambda at: files_listed(at / JSON, schema=SCHEMA[:-1]), "an audit")


def write_audit(folder: str | Path, audit: Audit, command: str) -> Path:
    """Write the whole report; it appears whole or not at all, and replaces an earlier one.

    Args:
        folder: of the report.
        audit: what it says.
        command: that makes the same report again.

    Returns:
        The path of the page.

    Raises:
        FacerecError: the folder holds anything but an audit, or cannot be written.
    """
    final = Path(folder).resolve()
    check_audit_folder(final)
    files = {
        **page_files(audit, command),
        "audit.csv": to_csv(audit.records),
        "model_card_section.md": card_section(audit).encode(),
    }
    document = audit.to_json(command, [*files, JSON])
    write_folder(final, {**files, JSON: json_bytes(document)})
    return final / PAGE


def page_files(audit: Audit, command: str) -> dict[str, bytes]:
    """Return ``audit.html`` and its pictures, path → contents; equal audits give equal bytes."""
    drawings, files, shown = {}, {}, dict(tables(audit))
    for name, figure, caption in pictures(audit):
        files[f"{name}.svg"] = draw(figure, "svg")
        place = "all_rates" if name == "rates" else name
        drawings[place] = Drawing(data_uri("image/svg+xml", files[f"{name}.svg"]), caption, caption)

    def block(*wanted: str) -> list[Any]:
        there = ((shown.get(name), drawings.get(name)) for name in wanted)
        return [piece for pieces in there for piece in pieces if piece is not None]

    lines = [FindingLine(one.said, "", "", one.conclusion, "", one.basis) for one in audit.findings]
    more = [f"{one.text}." for one in audit.findings[_FIRST:]]
    printed = {
        "Error rates": [*_listed(more), *([shown["rates"]] if "rates" in shown else [])],
        "Groups": [*block("groups"), *_listed(_left_out(audit))],
        "Limitations": _listed(audit.caveats[len(BESIDE) :]),
        "Provenance": _listed([*_provenance(audit), f"Command: {command}"]),
    }
    on_screen = {
        "How far the groups lie apart": block("apart", "norms", "all_rates"),
        "Does the norm matter here?": block("norm_and_errors", "quality_and_errors"),
        "Identification": block("searches"),
        "Against the baseline": [*block("changes"), *(_listed(READING) * ("changes" in shown))],
        "Terms": [_TERMS],
    }
    leads = {**_LEADS, "Identification": str(audit.facts["searches"])}
    page = Page(
        title=f"Audit of {'error rates' if audit.norms is None else 'norms and error rates'}: "
        f"{', '.join(audit.groupings)}",
        verdict=verdict(audit.findings),
        lead=" ".join([f"{lead(audit)}.", *group_sizes(audit), at_threshold(audit.rows, audit.at)]),
        findings=lines[:_FIRST],
        headline=[
            dict(zip(BESIDE, audit.caveats, strict=False)),
            *block("headline"),
            *_listed(audit.warnings, "notes"),
        ],
        sections=[
            Section(name, what, leads.get(name, ""), name in printed)
            for name, what in {**printed, **on_screen}.items()
            if what
        ],
        banner=audit.facts["banner"],
    )
    return {PAGE: page.render().encode(), **files}


def lead(audit: Audit) -> str:
    """Say what was audited, in a few words."""
    facts = audit.facts
    things = (
        f"{facts['images']:,} images"
        if facts["pairs"] is None
        else f"{facts['pairs']:,} scored pairs"
    )
    who = words.counted(facts["subjects"], "subject") if facts["subjects"] else "unnamed subjects"
    return f"{things} of {who}, {facts['failures']:,} not acquired"


def group_sizes(audit: Audit) -> list[str]:
    """Say how large the groups of each attribute are, before anything is found of them."""
    told = []
    for grouping in audit.groupings:
        known = names.select(audit.rows, names.SUBJECTS, "size", grouping=grouping)
        unit, column = "subjects", "value"
        if known.empty:
            known = names.select(audit.rows, names.FAILED, grouping=grouping)
            unit, column = "sides of pairs", "denominator"
        sizes = dict(zip(known["group"], known[column].astype(int), strict=True))
        each = ", ".join(f"{group} {size:,} {unit}" for group, size in sizes.items())
        if len(sizes) > _MOST_SIZES:
            ends = f"{min(sizes.values()):,} to {max(sizes.values()):,}"
            each = f"{len(sizes)} groups of {ends} {unit}"
        told.append(f"{grouping}: {each}.")
    return told


def tables(audit: Audit) -> Iterator[tuple[str, Table]]:
    """Yield name and table, those that the data have."""
    if audit.norms is not None:
        figures = (
            names.SUBJECTS, names.IMAGES, names.FAILED, names.NORM, names.BETWEEN, names.WITHIN,
        )  # fmt: skip
        columns = [(one, one, names.NOWHERE) for one in figures]
        yield "groups", _by_group(audit, "Groups and their norms", columns, audit.groupings)
    yield "apart", _apart(audit)
    if audit.at.target:
        yield "rates", _rates(audit, audit.groupings)
    for of, caption in ((names.NORMS, "Norm and errors"), (names.QUALITY, "Quality and errors")):
        tenth, left_out = names.TENTHS[of], names.DISCARDS[of]
        if names.select(audit.rows, tenth).empty:
            continue
        columns = [
            (f"FNMR, lowest tenth of {of}", tenth, names.At("1", of)),
            ("FNMR, highest tenth", tenth, names.At(str(BINS), of)),
            ("FNMR without the lowest 5 %", left_out, names.At("0.05", of)),
            ("without the lowest 20 %", left_out, names.At("0.20", of)),
            (names.AREA, names.AREA, names.At(basis=of)),
        ]
        table = _by_group(audit, caption, columns, audit.groupings, ALL_GROUPS)
        yield caption.lower().replace(" ", "_"), table
    if found := dict.fromkeys(itertools.chain(*audit.searches.values())):
        columns = [(f"{of}, {at.said}", of, at) for at in found for of in ("FPIR", "FNIR")]
        columns.append((names.RANK_1, names.RANK_1, names.NOWHERE))
        caption = "Identification at the thresholds for an FPIR"
        yield "searches", _by_group(audit, caption, columns, audit.groupings, EVERYBODY)
    compared = audit.rows[audit.rows["model"] != ""]
    if len(compared):
        yield "changes", _changes(compared)


def _rates(audit: Audit, groupings: Sequence[str]) -> Table:
    """Return FMR and FNMR at the threshold of the sentences."""
    figures: list[str] = [*NAMES, OF_PAIRS]
    columns = [(f"{of}, {audit.at.said}", of, audit.at) for of in figures]
    if len(names.select(audit.rows, names.REFUSED)):
        columns.append((names.REFUSED, names.REFUSED, names.NOWHERE))
    threshold = names.value_of(audit.rows, names.THRESHOLD, "threshold", at=audit.at)
    caption = f"Error rates at one threshold for all, {words.threshold(threshold)}"
    return _by_group(audit, caption, columns, groupings, ALL_GROUPS)


def _by_group(
    audit: Audit,
    caption: str,
    columns: Sequence[tuple[str, str, names.At]],
    groupings: Sequence[str],
    whole: str = "",
) -> Table:
    """Return a table with a row a group; a column has heading, figure and threshold.

    ``whole`` names the row of all groups together, if there is one.
    """
    rows = {
        (row["grouping"], row["group"], row["figure"], names.At(row["target"], row["basis"])): row
        for row in records(audit.of_groups)
    }
    lines = []
    for grouping in groupings:
        shown = audit.facts["groups"][grouping]["shown"]
        for group in [*shown, *([whole] if whole else [])]:
            found = [rows.get((grouping, group, figure, at)) for _, figure, at in columns]
            name = group if len(groupings) == 1 else f"{grouping}: {group}"
            lines.append((name, *(_cell(row) for row in found)))
    return Table(caption, ["group", *(title for title, *_ in columns)], lines)


def _cell(row: Row | None) -> Cell:
    """Return the cell of a figure; a dash where there is none."""
    return Cell(words.NOTHING) if row is None else cell(row, counted=row["figure"] not in _ALIKE)


def _apart(audit: Audit) -> Table:
    """Return η², δ, the differentials at the threshold of the findings, and ratios of searches."""
    lines: list[Sequence[Cell | str]] = []
    measures = [named(of, measure) for of in ("FMR", "FNMR") for measure in MEASURES]
    rows = audit.rows[(audit.rows["kind"] != "p") & (audit.rows["model"] == "")]
    ratios = rows[(rows["kind"] == "ratio") & rows["value"].notna()]  # audit.csv says of others why
    for grouping in audit.groupings:
        wanted = [(rows, figure, names.NOWHERE) for figure in (names.ETA2, names.DELTA)]
        wanted += [(rows, figure, audit.at) for figure in measures]
        searched = itertools.product(audit.searches[grouping], ("FPIR", "FNIR"))
        wanted += [(ratios, figure, at) for at, figure in searched]
        for among, figure, at in wanted:
            found = names.select(among, figure, None, at, grouping=grouping)
            # Of many pairs of groups those that lie furthest apart; all are in audit.csv.
            if len(found) > _MOST_PAIRS:
                found = found.loc[found["value"].abs().nlargest(_MOST_PAIRS).index]
            for row in records(found):
                where = {name: row[name] for name in ("grouping", "group", "other")}
                p = names.value_of(audit.rows, figure, "p", at=at, **where)
                small = ", ".join(filter(None, (names.compared(row), at.said)))
                title = figure if len(audit.groupings) == 1 else f"{grouping}: {figure}"
                lines.append((Cell(title, small), cell(row, counted=False), words.p_value(p)))
    return Table("How far the groups lie apart", ("figure", "value [95 %]", "p"), lines)


def _changes(rows: pd.DataFrame) -> Table:
    lines: list[Sequence[Cell | str]] = []
    for _, found in rows.groupby(names.PLACE, sort=False):
        of = {row["model"]: row for row in records(found)}
        change = of[names.CHANGE]
        at = filter(None, (change["figure"], change["target"]))
        title = Cell(" at ".join(at), names.compared(change))
        ends = (said(of[model])[0] for model in (names.BASELINE, names.NEW))
        lines.append((title, *ends, cell(change)))
    return Table("Changes", ("figure", "baseline", "new", "change [95 %]"), lines)


def _left_out(audit: Audit) -> list[str]:
    """Say what is left out, suppressed or pooled."""
    said = []
    for gone in audit.facts["left_out"]:
        of = "" if gone["attribute"] is None else f"{gone['attribute']}: "
        first = ", ".join(map(str, gone["positions"]))
        places = f" (first {gone['kind']}s: {first})" if first else ""
        said.append(f"Left out: {of}{gone['images']:,} × {gone['reason']}{places}.")
    for grouping, groups in audit.facts["groups"].items():
        for fate in ("suppressed", "pooled"):
            if groups[fate]:
                said.append(f"{grouping}, {fate} ({_FATES[fate]}): {', '.join(groups[fate])}.")
    return said


def _listed(sentences: Sequence[str], style: Literal["plain", "notes"] = "plain") -> list[Any]:
    return [Listed(sentences, style)] if sentences else []


def _provenance(audit: Audit) -> Iterator[str]:
    for file in audit.facts["inputs"]:
        yield f"{file['role']}: {file['name']}, SHA-256 {file['sha256']}"
    settings = audit.facts["settings"]
    yield (
        f"facerec {audit.facts['facerec']}; seed {settings['seed']}, {settings['replicates']:,} "
        f"resamples of subjects, {settings['permutations']:,} permutations"
    )


def print_audit(audit: Audit, console: Any) -> None:
    """Print tables and, at the end, findings, as fits 80 columns."""
    console.print(f"{lead(audit)}; labels: {'; '.join(audit.facts['label_sources'])}", style="bold")
    if audit.facts["banner"]:
        console.print(audit.facts["banner"], style="bold red")
    for line in _left_out(audit):
        console.print(line, style="yellow")
    for line in group_sizes(audit):
        console.print(line)
    for name, table in tables(audit):
        console.print()
        if name == "searches":
            console.print(str(audit.facts["searches"]))
        console.print(table.terminal())
    for warning in audit.warnings:
        console.print(f"note: {warning}", style="yellow")
    console.print(f"\n{verdict(audit.findings)}", style="bold")
    console.print(at_threshold(audit.rows, audit.at))
    for one in audit.findings:
        console.print(f"• {one.said}" + f" ({one.detail})" * (one.conclusion == of_test(None)))
    for about, caveat in zip(BESIDE, audit.caveats, strict=False):
        console.print(f"{about}. {caveat}", style="dim")


def card_section(audit: Audit) -> str:
    """Return a section of a screen for a model card, with the rates of the first attribute."""
    blocks = [
        "## Bias, Risks, and Limitations",
        "\n".join(f"- {escape_markdown(finding.text)}" for finding in audit.findings[:5]),
        _rates(audit, audit.groupings[:1]).markdown() if audit.at.target else "",
        escape_markdown(" ".join(audit.facts["not_compared"])),
        escape_markdown(
            f"{lead(audit)}; {group_sizes(audit)[0]} "
            f"Labels: {'; '.join(audit.facts['label_sources'])}. 95 % intervals. The figures "
            "describe one data set at one threshold; they are no basis for a decision about people."
        ),
    ]
    if audit.facts["banner"]:
        blocks.insert(1, f"> **{escape_markdown(audit.facts['banner'])}**")
    return "\n\n".join(filter(None, blocks)) + "\n"
