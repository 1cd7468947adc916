"""The verification report: a folder with a page, JSON, two CSV tables and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd

from facerec.errors import FacerecError
from facerec.files import check_replaceable, parse_json, read_file, write_folder
from facerec.records.decode import decode_image
from facerec.report import words
from facerec.report.conclusions import of_interval
from facerec.report.csv_tables import to_csv
from facerec.report.documents import plain, provenance_of, to_json
from facerec.report.figures import Drawing, Drawings, data_uri, slug
from facerec.report.page import Beside, Block, FindingLine, Listed, Page, Section, Text
from facerec.report.table import Cell, Table, facts_table, text_table
from facerec.report.tidy import figures_table, records
from facerec.statistics.rates import RULE_OF_30
from facerec.verification.compare import Comparison, describe_result
from facerec.verification.evaluation import VerificationResult
from facerec.verification.figures import comparison_figures, result_figures
from facerec.verification.identification import IdentificationResult
from facerec.verification.plots import det_figure, norm_figure, roc_figure, score_figure
from facerec.verification.report import (
    THRESHOLD_ADVICE,
    describe_flip,
    difference_limits,
    difference_points,
    pairs_of,
    remarks_of,
)

Encoded = Callable[[int], bytes]
"""Item of a bench → its encoded image, such as `ImageSource.encoded`."""

Results = Mapping[str, VerificationResult]

KIND = "facerec verification report"

LISTED = 50
"""Failures that the page lists; the table has all."""
HARDEST = 10
"""Pairs of each kind that are shown."""

_FACE = 112
"""Longer side of the pictures in the page, pixels."""

_READING = (
    "A pair matches if its score is at or above the threshold. TPR is the share of mated pairs "
    "that match, FPR (or FMR) that of non-mated pairs.",
    "TPR@FPR is the largest TPR whose FPR does not exceed the target: nothing is interpolated. A "
    "target that leaves room for less than one false accept is “not resolvable”; one with room "
    f"for fewer than {RULE_OF_30} is marked “few errors” (rule of {RULE_OF_30}).",
    "Accuracy is the mean over folds, with the best threshold of the others. SEM is the standard "
    "error of that mean (ddof 1), std the standard deviation over folds (ddof 0).",
    "All intervals are 95 %. An effective n smaller than the number of comparisons says that these "
    "depend on each other, because they share subjects.",
    "A pair without a score is a failure to acquire: listed, counted, and left out of all rates.",
    THRESHOLD_ADVICE,
)


def check_report_folder(folder: str | Path) -> None:
    """Refuse a folder that a report may not replace; see `check_replaceable`."""
    check_replaceable(folder, _written_before, "a verification report")


def write_report(
    folder: str | Path,
    results: Results,
    *,
    comparisons: Sequence[Comparison] = (),
    searches: Sequence[IdentificationResult] = (),
    pictures: Mapping[str, Encoded] | None = None,
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
        pictures: name → pictures of its items, for the hardest pairs; without it pairs are named
            by the ids of their images alone.
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
    tables = [result_figures(result, name) for name, result in results.items()]
    differences = [comparison_figures(comparison) for comparison in comparisons]
    found = [each.figures for each in searches]
    pairs = {name: _pairs(name, result) for name, result in results.items()}
    every: list[VerificationResult | IdentificationResult] = [*results.values(), *searches]
    sections = [
        Section("All figures", [figures_table("Figures with 95 % intervals", pd.concat(tables))])
        if tables
        else None,
        *(
            Section("Comparison", [_compared(*both)])
            for both in zip(comparisons, differences, strict=True)
        ),
        Section("Curves", curves[1:]) if curves else None,
        *(
            Section("Identification", [figures_table(describe_result(each), one)], lead=_SEARCHES)
            for each, one in zip(searches, found, strict=True)
        ),
        *(
            _section(name, result, pairs[name], (pictures or {}).get(name))
            for name, result in results.items()
        ),
        Section("How to read the figures", [Listed(_READING)]),
        Section("Provenance", [_provenance(each) for each in every]),
    ]
    provenance = provenance_of(command)
    files = dict(drawings.files)
    files["figures.csv"] = to_csv(records(pd.concat([*tables, *differences, *found])))
    if rows := [row for of_result in pairs.values() for row in of_result]:
        files["pairs.csv"] = to_csv(rows)
    document = {
        "kind": KIND,
        **provenance,
        "results": {name: result.to_json() for name, result in results.items()},
        "comparisons": [comparison.to_json() for comparison in comparisons],
        "identification": [each.to_json() for each in searches],
        "files": sorted([*files, "report.html", "report.json"]),
    }
    files["report.json"] = to_json(document)
    findings = list(_findings(results, comparisons, searches))
    models = sorted({str(result.model.get("name")) for result in every if result.model})
    page = Page(
        title="Verification report" + (f": {', '.join(models)}" if models else ""),
        verdict=f"{findings[0].figure}: {findings[0].estimate} {findings[0].limits}".strip() + ".",
        lead=f"{words.counted(len(every), 'result')}; facerec {provenance['facerec']}. "
        f"{command or ''}",
        findings=findings,
        headline=curves[:1],
        sections=[section for section in sections if section is not None],
    )
    files["report.html"] = page.render().encode()
    write_folder(final, files, private=bool(pictures))
    return final / "report.html"


def _findings(
    results: Results, comparisons: Sequence[Comparison], searches: Sequence[IdentificationResult]
) -> Iterator[FindingLine]:
    for name, result in results.items():
        estimate = f"AUC {words.number(result.auc.value, '.4f')}"
        limits = words.limits(result.auc.interval, form=".4f")
        if result.accuracy is not None:
            estimate = f"accuracy {words.percent(result.accuracy.value)}"
            limits = words.percent_limits(result.accuracy.interval)
        # The finest target that rests on enough errors says most; else the coarsest of all.
        there = [each for each in result.points if each.point.resolvable]
        told = [each for each in there if each.point.reliable][-1:] or there[:1]
        rate = ""
        for best in told:
            tpr = best.tpr
            limits_of = words.percent_limits(tpr.interval)
            rate = f"TPR {words.percent(tpr.value)} {limits_of} at FPR {best.point.target}"
            rate += f", {tpr.remark}" if tpr.remark else ""
        if result.failures:
            rate += f"; {words.counted(len(result.failures), 'pair')} not acquired, in no rate"
        subjects = (
            words.counted(result.subjects, "subject") if result.subjects else "subjects unknown"
        )
        basis = f"{pairs_of(result)}, {subjects}"
        yield FindingLine(name, estimate, limits, detail=rate, basis=basis)
    for comparison in comparisons:
        title, basis = f"{comparison.second} less {comparison.first}", pairs_of(comparison)
        row = next((row for row in comparison.rows if row.difference.value is not None), None)
        if row is None:
            yield FindingLine(title, words.NOTHING, conclusion=of_interval(None), basis=basis)
            continue
        estimate = f"{row.figure} {difference_points(row)} points"
        concluded = of_interval(row.difference.interval)
        yield FindingLine(title, estimate, difference_limits(row), concluded, basis=basis)
    for each in searches:
        ranks = each.figures[each.figures.figure == "rank"]
        best = ranks[ranks.gallery == ranks.gallery.iloc[-1]].iloc[:1]
        name, value, limits, _ = (cell.text for cell in figures_table("", best).cells[0])
        basis = f"1:N, {words.counted(len(each.galleries), 'gallery', 'galleries')}"
        yield FindingLine(describe_result(each), f"{name} {value}", limits, basis=basis)


def _curves(results: Results, drawings: Drawings) -> list[Drawing]:
    areas = ", ".join(f"{name}: AUC {one.auc.value:.4f}" for name, one in results.items())
    errors = ", ".join(f"{n}: EER {words.percent(one.eer.value)}" for n, one in results.items())
    curves = drawings.draw(
        "roc",
        roc_figure(results),
        f"ROC curves over a logarithmic FPR axis. {areas}.",
        "ROC: exact step functions. What is finer than the non-mated pairs resolve is shaded.",
    )
    curves += drawings.draw(
        "det",
        det_figure(results),
        f"DET curves on probit axes. {errors}.",
        "DET: points at which a rate is exactly 0 or 1 have no place and are left out.",
    )
    for number, (name, result) in enumerate(results.items(), start=1):
        curves += drawings.draw(
            f"scores-{slug(number, name)}",
            score_figure(name, result),
            f"Histograms of {result.mated} mated and {result.non_mated} non-mated scores.",
            f"Scores of {name}; dashed lines are the thresholds of the operating points.",
        )
    return curves + drawings.draw(
        "norms",
        norm_figure(results),
        "Histograms of embedding norms.",
        "Norms of raw embeddings over the images of all pairs.",
    )


_SEARCHES = (
    "A search is mated if the gallery holds its subject. Rank k: the share of mated searches with "
    "their subject among the k best entries; ties count against it. TPIR@FPIR: the share of mated "
    "searches that find their subject first, at or above the threshold at which at most the target "
    "share of the others find anybody."
)


def _compared(comparison: Comparison, figures: pd.DataFrame) -> Table[Any]:
    remarks = [
        f"On {pairs_of(comparison)} with a score in both; {comparison.left_out:,} are left out. "
        f"Intervals of the differences: {comparison.basis}.",
        *map(words.sentence, comparison.notes),
    ]
    caption = f"A: {comparison.first}; B: {comparison.second}"
    return figures_table(caption, figures, remarks)


def _section(
    name: str,
    result: VerificationResult,
    rows: Sequence[Mapping[str, Any]],
    encoded: Encoded | None,
) -> Section:
    def side(row: Mapping[str, Any], which: str) -> Cell:
        if encoded is None:
            return Cell(str(row[which]))
        face = face_picture(encoded, int(getattr(result.pairs, which)[row["pair"]]))
        return Cell(str(row[which]), "" if face else "its picture cannot be shown", face)

    def table(caption: str, kind: str, last: str, most: int) -> Table[Any]:
        cells = [
            (str(row["pair"]), side(row, "first"), side(row, "second"), _short(row[last]))
            for row in rows
            if row["list"] == kind
        ][:most]
        headings = "pair", "first image", "second image", last
        return text_table(caption, headings, cells, words=("first image", "second image", "reason"))

    warning = Text("These pictures show subjects. Handle this page as you handle the bench itself.")
    blocks: list[Block] = [
        *([Listed(list(map(words.sentence, result.notes)), "notes")] if result.notes else []),
        *([warning] if encoded else []),
        Beside(
            [
                table("Lowest mated scores", "lowest mated", "score", HARDEST),
                table("Highest non-mated scores", "highest non-mated", "score", HARDEST),
            ]
        ),
    ]
    if result.failures:
        count = words.counted(len(result.failures), "pair")
        blocks.append(table(f"{count} without a score", "failures", "reason", LISTED))
    said = [*remarks_of(result), f"intervals: {result.basis}"]
    return Section(name, blocks, lead=f"{describe_result(result)}: {'; '.join(said)}.")


def _short(value: object) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _pairs(name: str, result: VerificationResult) -> list[dict[str, Any]]:
    """Return the pairs whose scores err most, worst first, and those without a score."""
    reasons = {failure.pair: failure.reason for failure in result.failures}
    chosen: dict[str, list[int]] = {}
    for kind, mated, sign in (("lowest mated", True, 1), ("highest non-mated", False, -1)):
        pairs = np.flatnonzero((result.pairs.issame == mated) & ~np.isnan(result.scores))
        order = np.argsort(sign * result.scores[pairs], kind="stable")[:HARDEST]
        chosen[kind] = pairs[order].tolist()
    chosen["failures"] = list(reasons)

    def item(index: int) -> str:
        return str(index if result.items is None else result.items[index])

    return [
        {
            "bench": name,
            "list": kind,
            "pair": pair,
            "mated": bool(result.pairs.issame[pair]),
            "first": item(int(result.pairs.first[pair])),
            "second": item(int(result.pairs.second[pair])),
            # As float32, whose shortest text gives the same number.
            "score": None if kind == "failures" else result.scores[pair],
            "reason": reasons.get(pair, ""),
        }
        for kind, pairs in chosen.items()
        for pair in pairs
    ]


def _provenance(result: VerificationResult | IdentificationResult) -> Table[Any]:
    """Return where a result comes from, one entry a line."""
    facts: dict[str, Any] = {"bench": result.name}
    for title, mapping in (("model", result.model), ("source", result.source)):
        known = {f"{title}: {key}": value for key, value in (mapping or {}).items()}
        facts |= known or {title: "unknown"}
    facts |= {
        "views": describe_flip(result.flip),
        "alignment": result.align or "none, images as they are",
        "score": result.score,
    }
    texts = {
        name: fact if isinstance(fact, str) else json.dumps(plain(fact), ensure_ascii=False)
        for name, fact in facts.items()
    }
    return facts_table(describe_result(result), texts)


def face_picture(encoded: Encoded, item: int) -> str:
    """Return a small JPEG as a data URI, without whatever else the file carried; empty if none."""
    try:
        image = decode_image(encoded(item), f"image {item}", size=None, upright=True)
    except FacerecError:
        return ""
    scale = _FACE / max(image.shape[:2])
    if scale < 1:
        image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    _, content = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return data_uri("image/jpeg", content.tobytes())


def _written_before(folder: Path) -> set[str]:
    """Return the files that an earlier report says it wrote; none if there is no report."""
    try:
        report = parse_json(read_file(folder / "report.json"))
        return set(report["files"]) if report["kind"] == KIND else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()
