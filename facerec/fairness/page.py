"""An audit as files: page, tables, a model card's section; and its lines on the terminal.

All are made from the rows of `facerec.fairness.rows`; a table has the rows of all attributes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from facerec.base.files import json_bytes, parse_json, read_file
from facerec.fairness import rows as names
from facerec.fairness.baseline import READING
from facerec.fairness.differentials import MEASURES, NAMES
from facerec.fairness.findings import BESIDE, at_threshold, verdict
from facerec.fairness.groupings import ALL_GROUPS, EVERYBODY
from facerec.fairness.norm_errors import BINS
from facerec.fairness.plots import pictures
from facerec.fairness.result import SCHEMA, Audit
from facerec.fairness.rows import estimate
from facerec.report import words
from facerec.report.conclusions import of_test
from facerec.report.csv_tables import to_csv
from facerec.report.documents import files_listed
from facerec.report.estimate import Estimate
from facerec.report.folders import check_replaceable, write_folder
from facerec.report.page import FindingLine, Listed, Page, Section, Terms
from facerec.report.plotting import Drawing, data_uri, draw
from facerec.report.table import Cell, Table, escape_markdown
from facerec.report.tidy import OF_PAIRS

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
    check_replaceable(folder, lambda at: files_listed(at / JSON, schema=SCHEMA), "an audit")


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
    write_folder(final, {**files, JSON: json_bytes(document, indent=1)})
    return final / PAGE


def read_rows(path: str | Path) -> list[Mapping[str, Any]]:
    """Return the rows of an ``audit.json``."""
    return list(parse_json(read_file(path))["rows"])


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
        "Does the norm matter here?": block("norm_and_errors"),
        "Identification": block("searches"),
        "Against the baseline": [*block("changes"), *(_listed(READING) * ("changes" in shown))],
        "Terms": [Terms(_TERMS)],
    }
    leads = {**_LEADS, "Identification": str(audit.facts["searches"])}
    page = Page(
        title=f"Audit of {'error rates' if audit.norms is None else 'norms and error rates'}: "
        f"{', '.join(audit.groupings)}",
        verdict=verdict(audit.findings),
        lead=" ".join([f"{lead(audit)}.", *group_sizes(audit), _at_threshold(audit)]),
        findings=lines[:_FIRST],
        headline=[
            Terms(dict(zip(BESIDE, audit.caveats, strict=False))),
            *block("headline"),
            *_listed(audit.warnings, "notes"),
        ],
        sections=[
            Section(name, what, leads.get(name, ""), name in printed)
            for name, what in {**printed, **on_screen}.items()
            if what
        ],
        banner=audit.banner,
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
    said = []
    for grouping, groups in audit.facts["groups"].items():
        sizes = {}
        for group in groups["shown"]:
            where = {"grouping": grouping, "group": group}
            count = names.value_of(audit.rows, names.SUBJECTS, **where)
            unit = "subjects" if count is not None else "sides of pairs"
            total = names.select(audit.rows, names.FAILED, **where)["denominator"].iloc[0]
            sizes[group] = int(total if count is None else count)
        told = ", ".join(f"{group} {size:,} {unit}" for group, size in sizes.items())
        if len(sizes) > _MOST_SIZES:
            ends = f"{min(sizes.values()):,} to {max(sizes.values()):,}"
            told = f"{len(sizes)} groups of {ends} {unit}"
        said.append(f"{grouping}: {told}.")
    return said


def tables(audit: Audit) -> Iterator[tuple[str, Table]]:
    """Yield name and table, those that the data have."""
    rows = audit.rows
    if audit.norms is not None:
        figures = (
            names.SUBJECTS, names.IMAGES, names.FAILED, names.NORM, names.BETWEEN, names.WITHIN,
        )  # fmt: skip
        columns = [(one, one, "") for one in figures]
        yield "groups", _by_group(audit, "Groups and their norms", columns, audit.groupings)
    yield "apart", _apart(audit)
    if audit.facts["headline"]["target"]:
        yield "rates", _rates(audit, audit.groupings)
    if names.select(rows, names.TENTH.format(1)).size:
        columns = [
            ("FNMR, lowest tenth of norms", names.TENTH.format(1), ""),
            ("FNMR, highest tenth", names.TENTH.format(BINS), ""),
            ("FNMR without the lowest 5 %", names.DISCARD.format("5 %"), ""),
            ("without the lowest 20 %", names.DISCARD.format("20 %"), ""),
            ("area under error versus discard to 20 %", names.AREA, ""),
        ]
        table = _by_group(audit, "Norm and errors", columns, audit.groupings, ALL_GROUPS)
        yield "norm_and_errors", table
    found = dict.fromkeys(itertools.chain(*audit.facts["headline"]["searches"].values()))
    if found:
        columns = [(f"{of} at {at}", of, at) for at in found for of in ("FPIR", "FNIR")]
        columns.append((names.RANK_1, names.RANK_1, ""))
        caption = "Identification at the thresholds for an FPIR"
        yield "searches", _by_group(audit, caption, columns, audit.groupings, EVERYBODY)
    changes = rows[rows["figure"].str.startswith("change: ")]
    if len(changes):
        yield "changes", _changes(rows, changes)


def _rates(audit: Audit, groupings: Sequence[str]) -> Table:
    """Return FMR and FNMR at the threshold of the sentences."""
    target = audit.facts["headline"]["target"]
    columns = [(f"{of}, {names.at(target)}", str(of), target) for of in (*NAMES, OF_PAIRS)]
    if len(names.select(audit.rows, names.REFUSED)):
        columns.append((names.REFUSED, names.REFUSED, ""))
    told = words.threshold(names.value_of(audit.rows, names.THRESHOLD, target=target))
    caption = f"Error rates at one threshold for all, {told}"
    return _by_group(audit, caption, columns, groupings, ALL_GROUPS)


def _at_threshold(audit: Audit) -> str:
    return at_threshold(audit.rows, audit.facts["headline"]["target"])


def _by_group(
    audit: Audit,
    caption: str,
    columns: Sequence[tuple[str, str, str]],
    groupings: Sequence[str],
    whole: str = "",
) -> Table:
    """Return a table with a row a group; a column has heading, figure and target.

    ``whole`` names the row of all groups together, if there is one.
    """
    lines = []
    for grouping in groupings:
        shown = audit.facts["groups"][grouping]["shown"]
        for group in [*shown, *([whole] if whole else [])]:
            cells = [
                _cell(
                    names.select(audit.rows, figure, grouping=grouping, group=group, target=target)
                )
                for _, figure, target in columns
            ]
            lines.append((group if len(groupings) == 1 else f"{grouping}: {group}", *cells))
    return Table(caption, ["group", *(title for title, _, _ in columns)], lines)


def _apart(audit: Audit) -> Table:
    """Return η², δ, the differentials at the targets of the findings, and ratios of searches."""
    rows, lines, head = audit.rows, [], audit.facts["headline"]
    for grouping in audit.groupings:
        wanted = [(names.ETA2, ""), (names.DELTA, "")]
        for of in ("FMR", "FNMR"):
            wanted += [(f"{NAMES[of]} ({of} {measure})", head["target"]) for measure in MEASURES]
        ratios = rows[rows["figure"].str.contains(names.ratio_of("", ""), regex=False)]
        withheld = ratios.index[ratios["value"].isna()]  # audit.csv says why
        of_searches = dict.fromkeys(ratios["figure"])
        wanted += [(one, at) for at in head["searches"][grouping] for one in of_searches]
        for figure, target in wanted:
            where = {"grouping": grouping, "target": target}
            found = names.select(rows, figure, **where)
            found = found[~found.index.isin(withheld)]
            # Of many pairs of groups those that lie furthest apart; all are in audit.csv.
            if len(found) > _MOST_PAIRS:
                found = found.loc[found["value"].abs().nlargest(_MOST_PAIRS).index]
            for row in found.itertuples():
                p = names.value_of(rows, names.p_of(figure), group=str(row.group), **where)
                at = filter(None, (str(row.group), target and names.at(target)))
                title = figure if len(audit.groupings) == 1 else f"{grouping}: {figure}"
                value = _cell_of(estimate(row), ".3g")
                lines.append((Cell(title, ", ".join(at)), value, words.p_value(p)))
    return Table("How far the groups lie apart", ("figure", "value [95 %]", "p"), lines)


def _changes(rows: pd.DataFrame, changes: pd.DataFrame) -> Table:
    lines: list[tuple[Cell | str, ...]] = []
    for row in changes.itertuples():
        figure = str(row.figure).removeprefix("change: ")
        ends = [
            words.number(names.value_of(rows, f"{side}: {figure}", group=str(row.group)))
            for side in ("baseline", "new")
        ]
        lines.append((Cell(figure, str(row.group)), *ends, _cell_of(estimate(row), "+.3g")))
    return Table("Changes", ("figure", "baseline", "new", "change [95 %]"), lines)


def _cell(found: pd.DataFrame) -> Cell:
    """Return the cell of one figure; a dash where there is none."""
    if found.empty:
        return Cell(words.NOTHING)
    row: Any = next(found.itertuples())
    if row.figure in (names.SUBJECTS, names.IMAGES):
        return Cell(f"{int(row.value):,}")
    if row.figure == names.FAILED:
        return Cell(words.percent(row.value), f"{int(row.numerator):,}/{int(row.denominator):,}")
    # What is left out by norm has a denominator of its own, which says little; the counts of the
    # FNMR stand at that of pairs, whose quotient they are.
    counted = " norm" not in row.figure and row.figure != "FNMR"
    return _cell_of(estimate(row), "" if pd.notna(row.numerator) else ".4g", counted)


def _cell_of(one: Estimate, form: str, counted: bool = True) -> Cell:
    """Return an estimate with interval and counts: in percent where no form is given."""
    if one.value is None:
        return Cell(words.NOTHING, one.remark, withheld=True)
    if one.remark.startswith("not resolvable"):
        return Cell("not resolvable", words.counts(one), withheld=True)
    scale = 1 if form else 100
    text = words.number(one.value, form) if form else f"{words.number(100 * one.value, '.3g')} %"
    counts = words.counts(one) if counted and not form else ""
    return Cell(
        text,
        "\n".join(
            filter(None, (words.limits(one.interval, scale, form or ".3g") or one.remark, counts))
        ),
    )


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
    if audit.banner:
        console.print(audit.banner, style="bold red")
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
    console.print(_at_threshold(audit))
    for one in audit.findings:
        console.print(f"• {one.said}" + f" ({one.detail})" * (one.conclusion == of_test(None)))
    for about, said in zip(BESIDE, audit.caveats, strict=False):
        console.print(f"{about}. {said}", style="dim")


def card_section(audit: Audit) -> str:
    """Return a section of a screen for a model card, with the rates of the first attribute."""
    blocks = [
        "## Bias, Risks, and Limitations",
        "\n".join(f"- {escape_markdown(finding.text)}" for finding in audit.findings[:5]),
        *(_rates(audit, audit.groupings[:1]).markdown() for _ in [1] if _at_threshold(audit)),
        escape_markdown(" ".join(audit.facts["not_compared"])),
        escape_markdown(
            f"{lead(audit)}; {group_sizes(audit)[0]} "
            f"Labels: {'; '.join(audit.facts['label_sources'])}. 95 % intervals. The figures "
            "describe one data set at one threshold; they are no basis for a decision about people."
        ),
    ]
    if audit.banner:
        blocks.insert(1, f"> **{escape_markdown(audit.banner)}**")
    return "\n\n".join(filter(None, blocks)) + "\n"
