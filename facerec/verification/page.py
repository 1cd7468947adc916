"""The verification report: a folder with a page, JSON, two CSV tables and pictures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from facerec.base.files import json_bytes
from facerec.report import words
from facerec.report.conclusions import of_interval
from facerec.report.csv_tables import to_csv
from facerec.report.documents import files_listed, plain, provenance_of
from facerec.report.folders import check_replaceable, write_folder
from facerec.report.page import Block, FindingLine, Listed, Page, Section
from facerec.report.plotting import Drawing, Drawings, slug
from facerec.report.table import Table, facts_table
from facerec.report.tidy import estimate_of, records, rows_table, said, shown_name
from facerec.statistics.operating_points import RULE_OF_30
from facerec.verification.identification import IdentificationResult
from facerec.verification.plots import reliability_plot, roc_plot, score_plot
from facerec.verification.report import THRESHOLD_ADVICE
from facerec.verification.result import PairedComparison, Result, VerificationResult, pairs_of

Results = Mapping[str, VerificationResult]
Row = Mapping[str, Any]

KIND = "facerec verification report"
SCHEMA = "facerec.verification/4"

LISTED = 50
"""Failures that the page lists; the table has all."""
HARDEST = 10
"""Pairs of each kind that are shown."""

_READING = (
    "A pair matches if its score is at or above the threshold. TPR@FPR is the largest TPR whose "
    "FPR does not exceed the target, without interpolation; “few errors” says that the target "
    f"leaves room for fewer than {RULE_OF_30} false accepts.",
    "Accuracy is the mean over folds, with the best threshold of the others; SEM is the standard "
    "error of that mean. An effective n below the number of comparisons says that these share "
    "subjects. A pair without a score is in no rate.",
    THRESHOLD_ADVICE,
)


def check_report_folder(folder: str | Path) -> None:
    """Refuse a folder that a report may not replace; see `check_replaceable`."""
    check_replaceable(
        folder, lambda at: files_listed(at / "report.json", kind=KIND), "a verification report"
    )


def write_report(
    folder: str | Path,
    results: Results,
    *,
    comparisons: Sequence[PairedComparison] = (),
    searches: Sequence[IdentificationResult] = (),
    command: str | None = None,
) -> Path:
    """Write ``report.html``, ``report.json``, ``figures.csv``, ``pairs.csv`` and pictures.

    ``figures.csv`` has every figure, ``pairs.csv`` the pairs that err most and those without a
    score. The page needs nothing but itself: no network, no script. Equal results give equal
    bytes. The folder appears whole or not at all; an earlier report there is replaced.

    Args:
        folder: of the report.
        results: name → result; several benches or models share a report. There may be none where
            there are searches.
        comparisons: differences between results, see `compare`.
        searches: results of 1:N.
        command: the command line that led to this report, for the record.

    Returns:
        The path of the page.

    Raises:
        FacerecError: the folder holds anything but a report, or cannot be written.
    """
    final = Path(folder).resolve()
    check_report_folder(final)
    drawings = Drawings()
    curves = _curves(results, drawings) if results else []
    tables = [result.rows.assign(bench=name) for name, result in results.items()]
    pairs = {name: _pairs(name, result) for name, result in results.items()}
    every: list[Result] = [*results.values(), *searches]
    caption = "Figures with 95 % intervals"
    sections = [
        Section("All figures", [rows_table(caption, pd.concat(tables))] if tables else []),
        *(Section(f"Differences: {each.title}", [_differences(each)]) for each in comparisons),
        Section("Curves", curves[1:]),
        *(
            Section(f"Identification: {each.title}", [rows_table("", each.rows)], lead=_SEARCHES)
            for each in searches
        ),
        *(_section(name, result, pairs[name]) for name, result in results.items()),
        Section("How to read the figures", [Listed(_READING)]),
        Section("Provenance", [_provenance(each) for each in every]),
    ]
    provenance = provenance_of(command)
    files = dict(drawings.files)
    told = [*tables, *(each.rows for each in comparisons), *(each.rows for each in searches)]
    files["figures.csv"] = to_csv(records(pd.concat(told)))
    if rows := [row for of_result in pairs.values() for row in of_result]:
        files["pairs.csv"] = to_csv(rows)
    document = {
        "kind": KIND,
        "schema": SCHEMA,
        **provenance,
        "results": {name: result.to_json() for name, result in results.items()},
        "comparisons": [comparison.to_json() for comparison in comparisons],
        "identification": [each.to_json() for each in searches],
        "files": sorted([*files, "report.html", "report.json"]),
    }
    files["report.json"] = json_bytes(plain(document))
    findings = [
        *(
            _of_result(name, results[name], rows)
            for name, rows in zip(results, tables, strict=True)
        ),
        *itertools.chain(*map(_of_comparison, comparisons)),
        *map(_of_search, searches),
    ]
    models = sorted({str(result.model.get("name")) for result in every if result.model})
    page = Page(
        title="Verification report" + (f": {', '.join(models)}" if models else ""),
        verdict=f"{findings[0].figure}: {findings[0].estimate} {findings[0].limits}".strip() + ".",
        lead=f"{words.counted(len(every), 'result')}; facerec {provenance['facerec']}. "
        f"{command or ''}",
        findings=findings,
        headline=curves[:1],
        sections=sections,
    )
    files["report.html"] = page.render().encode()
    write_folder(final, files)
    return final / "report.html"


def _of_result(name: str, result: VerificationResult, rows: pd.DataFrame) -> FindingLine:
    detail, point = "", result.headline_point
    if point is not None:
        best = records(rows[(rows.figure == "TPR@FPR") & (rows.target == point.target)])[0]
        one = Fraction(point.target)
        detail = f"{' '.join(said(best))} of people recognised where {one.numerator:,} in "
        detail += f"{one.denominator:,} strangers is accepted (TPR@FPR)"
    if result.failures:
        detail += f"; {words.counted(len(result.failures), 'pair')} not acquired, in no rate"
    people = f"of {result.subjects:,} subjects" if result.subjects else "of unknown subjects"
    headline = rows[rows.figure.isin(("accuracy", "AUC"))]
    return _finding(name, headline, detail=detail, basis=f"{pairs_of(result)} {people}")


def _of_comparison(comparison: PairedComparison) -> Iterator[FindingLine]:
    changes = comparison.rows[comparison.rows.kind == "change"]
    if len(changes):
        conclusion = of_interval(estimate_of(records(changes)[0]).interval)
        yield _finding(comparison.title, changes, conclusion=conclusion, basis=pairs_of(comparison))


def _of_search(search: IdentificationResult) -> FindingLine:
    ranks = search.rows[search.rows.figure == "rank"]
    basis = f"1:N, {words.counted(len(search.galleries), 'gallery', 'galleries')}"
    last = ranks[ranks.gallery == ranks.gallery.iloc[-1]]
    return _finding(search.title, last, basis=basis)


def _finding(title: str, rows: pd.DataFrame, **more: str) -> FindingLine:
    """Return what the first of some rows says."""
    row = records(rows)[0]
    value, limits = said(row)
    return FindingLine(title, f"{shown_name(row)} {value}", limits, **more)


def _differences(comparison: PairedComparison) -> Table:
    said = [*comparison.remarks, *comparison.notes]
    return rows_table(comparison.heading, comparison.rows, list(map(words.sentence, said)))


def _curves(results: Results, drawings: Drawings) -> list[Drawing]:
    curves = drawings.draw(
        "roc",
        roc_plot(results),
        f"ROC curves of {', '.join(results)} over a logarithmic FPR axis.",
        "ROC: exact step functions. What is finer than the non-mated pairs resolve is shaded. Dots "
        "with whiskers are operating points; hollow ones rest on fewer than 30 false accepts.",
    )
    for number, (name, result) in enumerate(results.items(), start=1):
        curves += drawings.draw(
            f"scores-{slug(number, name)}",
            score_plot(name, result),
            f"Histograms of {result.mated} mated and {result.non_mated} non-mated scores.",
            f"Scores of {name}; dashed lines are the thresholds of the operating points.",
        )
        if result.calibration is not None:
            curves += drawings.draw(
                f"reliability-{slug(number, name)}",
                reliability_plot(result),
                f"Likelihood ratios that the pairs of {name} show over those that are claimed.",
                f"Likelihood ratios on {name}, {result.calibration.basis}: on the diagonal the "
                "claims are true, below it they are too high.",
            )
    return curves


_SEARCHES = (
    "A search is mated if the gallery holds its subject. Rank k: the share of mated searches with "
    "their subject among the k best entries; ties count against it. TPIR@FPIR: the share of mated "
    "searches that find their subject first, at or above the threshold at which at most the target "
    "share of the others find anybody."
)


def _section(name: str, result: VerificationResult, rows: Sequence[Row]) -> Section:
    headings = "list", "pair", "first", "second", "score", "reason"
    listed = [
        [words.number(row[key], ".4g") if key == "score" else str(row[key]) for key in headings]
        for row in rows[: 2 * HARDEST + LISTED]
    ]
    blocks: list[Block] = [Table("Pairs that err most", headings, listed, words=headings)]
    if result.notes:
        blocks.insert(0, Listed(list(map(words.sentence, result.notes)), "notes"))
    return Section(name, blocks, lead=f"{result.title}: {'; '.join(result.remarks)}.")


def _pairs(name: str, result: VerificationResult) -> list[Row]:
    """Return the pairs whose scores err most, worst first, and those without a score."""
    reasons = {failure.pair: failure.reason for failure in result.failures}
    chosen: dict[str, list[int]] = {}
    for kind, mated, sign in (("lowest mated", True, 1), ("highest non-mated", False, -1)):
        pairs = np.flatnonzero((result.pairs.issame == mated) & ~np.isnan(result.scores))
        order = np.argsort(sign * result.scores[pairs], kind="stable")[:HARDEST]
        chosen[kind] = pairs[order].tolist()
    chosen["failures"] = list(reasons)
    sides = [getattr(result.pairs, which) for which in ("first", "second")]
    first, second = (side if result.items is None else result.items[side] for side in sides)
    return [
        {
            "bench": name,
            "list": kind,
            "pair": pair,
            "mated": bool(result.pairs.issame[pair]),
            "first": str(first[pair]),
            "second": str(second[pair]),
            # As float32, whose shortest text gives the same number.
            "score": None if kind == "failures" else result.scores[pair],
            "reason": reasons.get(pair, ""),
        }
        for kind, pairs in chosen.items()
        for pair in pairs
    ]


def _provenance(result: Result) -> Table:
    """Return where a result comes from, one entry a line."""
    facts: dict[str, Any] = {"bench": result.name}
    for title, mapping in (("model", result.model), ("source", result.source)):
        known = {f"{title}: {key}": value for key, value in (mapping or {}).items()}
        facts |= known or {title: "unknown"}
    facts |= {"how": "; ".join(result.remarks)}
    return facts_table(result.title, facts)
