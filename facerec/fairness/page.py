"""The page of an audit, its tables, the terminal's lines and the section for a model card.

All are made from the rows of `facerec.fairness.rows`; a table has the rows of all attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from facerec.fairness import rows as names
from facerec.fairness.attributes import ALL_GROUPS, EVERYBODY
from facerec.fairness.baseline import READING
from facerec.fairness.channels import BINS
from facerec.fairness.differentials import MEASURES, NAMES
from facerec.fairness.figures import pictures
from facerec.fairness.findings import Of, estimate, head_target, verdict, working_targets
from facerec.fairness.result import Audit
from facerec.report import words
from facerec.report.estimate import Estimate
from facerec.report.figures import Drawing, data_uri, draw
from facerec.report.page import FindingLine, Listed, Page, Section, Terms
from facerec.report.table import Cell, Table, escape_markdown, text_table

SUPPRESSED = "under ten subjects, or else such a group would follow from totals"
_MOST_PAIRS = 3
"""Pairs of groups whose δ a page shows."""

_TERMS = {
    "FMR, FNMR": "False matches over non-mated (impostor) pairs, false non-matches over mated "
    "(genuine) pairs; of a group, of pairs within it. A pair matches at or above the threshold.",
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


def render(audit: Audit, command: str) -> dict[str, bytes]:
    """Return ``audit.html`` and its pictures, path → contents; equal audits give equal bytes."""
    drawings, files = {}, {}
    for name, figure, caption in pictures(audit):
        files[f"{name}.svg"] = draw(figure, "svg")
        drawings[name] = Drawing(data_uri("image/svg+xml", files[f"{name}.svg"]), caption, caption)
    found = dict(tables(audit))

    def block(*wanted: str) -> list[Any]:
        return [
            piece
            for name in wanted
            for piece in (found.get(name), drawings.get(name))
            if piece is not None
        ]

    of_scores = audit.norms is None
    sections = [
        Section("Groups", [*block("groups", "norms"), *_left_out(audit)]),
        Section("How far the groups lie apart", block("apart")),
        Section(
            "Error rates",
            block("rates"),
            "One threshold for everybody; other targets and rates between groups are in audit.csv.",
        ),
    ]
    if not of_scores:
        sections.append(
            Section(
                "Does the norm matter here?",
                block("norm_and_errors"),
                "The norm of a mated pair is the lesser of its two, at the threshold of the lowest "
                "target that leaves room for 30 false matches.",
            )
        )
    if audit.facts["searches"]:
        sections.append(Section("Identification", block("searches"), str(audit.facts["searches"])))
    if "changes" in found:
        sections.append(Section("Against the baseline", [*block("changes"), Listed(READING)]))
    sections += [
        Section("Limitations", [Listed(audit.caveats)]),
        Section("Terms", [Terms(_TERMS)]),
        Section("Provenance", [Listed([*_provenance(audit), f"Command: {command}"])]),
    ]
    page = Page(
        title=f"Audit of {'error rates' if of_scores else 'norms and error rates'}: "
        f"{', '.join(audit.groupings)}",
        verdict=verdict(audit.findings),
        lead=f"{lead(audit)}. {' '.join(group_sizes(audit))}",
        findings=[
            FindingLine(
                one.said, "", "", one.conclusion, "", f"{one.detail}{' [E]' * one.exploratory}"
            )
            for one in audit.findings
        ],
        headline=[*block("headline"), *_notes(audit.warnings)],
        sections=sections,
        banner=audit.banner,
    )
    return {"audit.html": page.render().encode(), **files}


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
        sizes = []
        for group in groups["shown"]:
            where = {"grouping": grouping, "group": group}
            count = names.number(audit.rows, names.SUBJECTS, **where)
            unit = "subjects" if count is not None else "sides of pairs"
            total = names.select(audit.rows, names.FAILED, **where)["denominator"].iloc[0]
            sizes.append(f"{group} {int(total if count is None else count):,} {unit}")
        said.append(f"{grouping}: {', '.join(sizes)}.")
    return said


def tables(audit: Audit) -> Iterator[tuple[str, Table[Sequence[Cell | str]]]]:
    """Yield name and table, those that the data have."""
    rows = audit.rows
    if audit.norms is not None:
        figures = (
            names.SUBJECTS,
            names.IMAGES,
            names.FAILED,
            names.NORM,
            names.BETWEEN,
            names.WITHIN,
        )
        columns = [(one, one, "") for one in figures]
        yield "groups", _by_group(audit, "Groups and their norms", columns, audit.groupings)
    yield "apart", _apart(audit)
    if _heads(audit):
        yield "rates", _rates(audit, audit.groupings)
    if names.select(rows, names.TENTH.format(1)).size:
        columns = [
            ("FNMR, lowest tenth of norms", names.TENTH.format(1), ""),
            ("FNMR, highest tenth", names.TENTH.format(BINS), ""),
            ("FNMR without the lowest 5 %", names.DISCARD.format("5 %"), ""),
            ("without the lowest 20 %", names.DISCARD.format("20 %"), ""),
            ("area under error versus discard to 20 %", names.AREA, ""),
        ]
        yield (
            "norm_and_errors",
            _by_group(audit, "Norm and errors", columns, audit.groupings, ALL_GROUPS),
        )
    if len(names.select(rows, "FPIR", grouping=audit.groupings[0])):
        yield "searches", _searches(audit)
    changes = rows[rows["figure"].str.startswith("change: ")]
    if len(changes):
        yield "changes", _changes(rows, changes)


def _rates(audit: Audit, groupings: Sequence[str]) -> Table[Sequence[Cell | str]]:
    """Return FMR and FNMR at the targets that head the tables."""
    columns = [
        (f"{of}, threshold for {target}", of, target)
        for target in _heads(audit)
        for of in ("FMR", "FNMR")
    ]
    values = {
        target: names.number(audit.rows, names.THRESHOLD, target=target) for target in _heads(audit)
    }
    told = " and ".join(f"{words.threshold(at)} (FMR {target})" for target, at in values.items())
    caption = f"Error rates at one threshold for all: {told}"
    return _by_group(audit, caption, columns, groupings, ALL_GROUPS)


def _heads(audit: Audit) -> list[str]:
    """Return the targets that head the tables."""
    kinds: tuple[Of, Of] = ("FMR", "FNMR")
    found = [head_target(audit.rows, name, of) for name in audit.groupings for of in kinds]
    return list(dict.fromkeys(filter(None, found)))[:2]


def _by_group(
    audit: Audit,
    caption: str,
    columns: Sequence[tuple[str, str, str]],
    groupings: Sequence[str],
    whole: str = "",
) -> Table[Sequence[Cell | str]]:
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
    return text_table(caption, ["group", *(title for title, _, _ in columns)], lines)


def _apart(audit: Audit) -> Table[Sequence[Cell | str]]:
    """Return η², δ and the differentials at the targets of the findings."""
    rows, lines = audit.rows, []
    kinds: tuple[Of, Of] = ("FMR", "FNMR")
    for grouping in audit.groupings:
        wanted = [(names.ETA2, "")]
        wanted += [(names.DELTA, "")]
        for of in kinds:
            target = head_target(rows, grouping, of)
            wanted += [(f"{NAMES[of]} ({of} {measure})", target) for measure in MEASURES]
        for figure, target in wanted:
            found = names.select(rows, figure, grouping=grouping, target=target)
            # Of many pairs of groups those that lie furthest apart; all are in audit.csv.
            if len(found) > _MOST_PAIRS:
                found = found.loc[found["value"].abs().nlargest(_MOST_PAIRS).index]
            for row in found.itertuples():
                p = names.number(
                    rows, names.p_of(figure), grouping=grouping, group=str(row.group), target=target
                )
                where = filter(None, (str(row.group), target and f"at FMR {target}"))
                lines.append(
                    (
                        Cell(_name(audit, grouping, figure), ", ".join(where)),
                        _cell_of(estimate(row), ".3g"),
                        words.p_value(p),
                    )
                )
    return text_table("How far the groups lie apart", ("figure", "value [95 %]", "p"), lines)


def _searches(audit: Audit) -> Table[Sequence[Cell | str]]:
    """Return FPIR and FNIR at one threshold of each basis, and misses at rank 1."""
    lines = []
    for grouping, groups in audit.facts["groups"].items():
        for target in working_targets(audit.rows, grouping):
            set_at = {"grouping": grouping, "target": target}
            value = words.threshold(names.number(audit.rows, names.FPIR_THRESHOLD, **set_at))
            for group in [*groups["shown"], EVERYBODY]:
                where = {"grouping": grouping, "group": group}
                lines.append(
                    (
                        Cell(_name(audit, grouping, group), f"threshold {value}, FPIR {target}"),
                        _with_ratio(audit.rows, "FPIR", {**where, "target": target}),
                        _with_ratio(audit.rows, "FNIR", {**where, "target": target}),
                        _with_ratio(audit.rows, names.RANK_1, where),
                    )
                )
    headings = ("group", "FPIR", "FNIR", names.RANK_1)
    return text_table("Identification by group", headings, lines)


def _with_ratio(rows: pd.DataFrame, figure: str, where: dict[str, str]) -> Cell:
    """Return a rate with its ratio to the group that others are compared with, if it has one."""
    cell = _cell(names.select(rows, figure, **where))
    ratios = rows[rows["figure"].str.startswith(f"{figure} over that of ")]
    for column, value in where.items():
        ratios = ratios[ratios[column] == value]
    for row in ratios.dropna(subset=["value"]).itertuples():
        ratio = estimate(row)
        said = f"{words.number(ratio.value)} × {str(row.figure).rpartition(' of ')[2]} "
        return Cell(
            cell.text, f"{cell.small}\n{said}{words.limits(ratio.interval)}", withheld=cell.withheld
        )
    return cell


def _changes(rows: pd.DataFrame, changes: pd.DataFrame) -> Table[Sequence[Cell | str]]:
    lines: list[tuple[Cell | str, ...]] = []
    for row in changes.itertuples():
        figure = str(row.figure).removeprefix("change: ")
        ends = [
            words.number(names.number(rows, f"{side}: {figure}", group=str(row.group)))
            for side in ("baseline", "new")
        ]
        lines.append((Cell(figure, str(row.group)), *ends, _cell_of(estimate(row), "+.3g")))
    return text_table("Changes", ("figure", "baseline", "new", "change [95 %]"), lines)


def _name(audit: Audit, grouping: str, name: str) -> str:
    """Return a name, after that of the attribute if there are several."""
    return name if len(audit.groupings) == 1 else f"{grouping}: {name}"


def _cell(found: pd.DataFrame) -> Cell:
    """Return the cell of one figure; a dash where there is none."""
    if found.empty:
        return Cell(words.NOTHING)
    row: Any = next(found.itertuples())
    if row.figure in (names.SUBJECTS, names.IMAGES):
        return Cell(f"{int(row.value):,}")
    if row.figure == names.FAILED:
        return Cell(words.percent(row.value), f"{int(row.numerator):,}/{int(row.denominator):,}")
    # What is left out by norm has a denominator of its own, which says little.
    counted = " norm" not in row.figure
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


def _left_out(audit: Audit) -> list[Any]:
    """Say what is left out, suppressed or pooled."""
    said = []
    for gone in audit.facts["left_out"]:
        of = "" if gone["attribute"] is None else f"{gone['attribute']}: "
        first = ", ".join(map(str, gone["positions"]))
        said.append(
            f"Left out: {of}{gone['images']:,} × {gone['reason']}"
            f"{f' (first {_places(gone)}: {first})' if first else ''}."
        )
    for grouping, groups in audit.facts["groups"].items():
        if groups["suppressed"]:
            said.append(
                f"{grouping}, suppressed ({SUPPRESSED}): {', '.join(groups['suppressed'])}."
            )
        if groups["pooled"]:
            said.append(f"{grouping}, pooled (under ten subjects): {', '.join(groups['pooled'])}.")
    return [Listed(said)] if said else []


def _places(gone: dict[str, Any]) -> str:
    """Return what the positions of an exclusion are."""
    return "lines" if gone["kind"] == "line" else "rows"


def _notes(warnings: Sequence[str]) -> list[Any]:
    return [Listed(warnings, "notes")] if warnings else []


def _provenance(audit: Audit) -> Iterator[str]:
    for file in audit.facts["inputs"]:
        yield f"{file['role']}: {file['name']}, SHA-256 {file['sha256']}"
    settings = audit.facts["settings"]
    yield (
        f"facerec {audit.facts['facerec']}; seed {settings['seed']}, {settings['replicates']:,} "
        f"resamples of subjects, {settings['permutations']:,} permutations"
    )


def print_audit(audit: Audit, console: Any) -> None:
    """Print findings and tables, as fits 80 columns."""
    console.print(f"{lead(audit)}; labels: {'; '.join(audit.facts['label_sources'])}", style="bold")
    if audit.banner:
        console.print(audit.banner, style="bold red")
    for listed in _left_out(audit):
        for line in listed.items:
            console.print(line, style="yellow")
    for line in group_sizes(audit):
        console.print(line)
    console.print()
    for finding in audit.findings:
        console.print(f"• {finding.text}")
    for name, table in tables(audit):
        console.print()
        if name == "searches":
            console.print(str(audit.facts["searches"]))
        console.print(table.terminal())
    for warning in audit.warnings:
        console.print(f"note: {warning}", style="yellow")


def model_card(audit: Audit) -> str:
    """Return a section of a screen for a model card, with the rates of the first attribute."""
    blocks = [
        "## Bias, Risks, and Limitations",
        "\n".join(f"- {escape_markdown(finding.text)}" for finding in audit.findings[:5]),
        *([_rates(audit, audit.groupings[:1]).markdown()] if _heads(audit) else []),
        escape_markdown(
            f"{lead(audit)}; {group_sizes(audit)[0]} "
            f"Labels: {'; '.join(audit.facts['label_sources'])}. 95 % intervals. The figures "
            "describe one data set at one threshold; they are no basis for a decision about people."
        ),
    ]
    if audit.banner:
        blocks.insert(1, f"> **{escape_markdown(audit.banner)}**")
    return "\n\n".join(blocks) + "\n"
