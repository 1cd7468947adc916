"""The verification report: a folder with a page, JSON, CSV tables and figures."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2

from facerec.errors import FacerecError
from facerec.files import check_replaceable, parse_json, read_file, write_folder
from facerec.records.decode import decode_image
from facerec.report import words
from facerec.report.conclusions import of_interval
from facerec.report.csv_tables import to_csv
from facerec.report.documents import plain, provenance_of, to_json
from facerec.report.estimate import Estimate
from facerec.report.figures import Drawing, Drawings, Files, data_uri, slug
from facerec.report.page import (
    Beside,
    Block,
    Code,
    FindingLine,
    Heading,
    Listed,
    Page,
    Section,
    Text,
)
from facerec.report.table import Table, facts_table
from facerec.statistics.rates import RULE_OF_30
from facerec.verification import tables
from facerec.verification.compare import Comparison, PairedFigure, describe_result
from facerec.verification.evaluation import VerificationResult
from facerec.verification.identification import IdentificationResult
from facerec.verification.plots import det_figure, norm_figure, roc_figure, score_figure
from facerec.verification.report import describe_flip

Encoded = Callable[[int], bytes]
"""Item of a bench → its encoded image, such as `ImageSource.encoded`."""

Results = Mapping[str, VerificationResult]

KIND = "facerec verification report"

_FACE = 112
"""Longer side of the pictures in the page, pixels."""

_READING = (
    "A pair matches if its score is at or above the threshold. Mated (genuine) pairs show one "
    "subject, non-mated (impostor) pairs two. TPR is the share of mated pairs that match, "
    "FNMR = 1 − TPR; FPR, or FMR, is the share of non-mated pairs that match.",
    "TPR@FPR is the largest TPR whose FPR does not exceed the target: a value of the step "
    "function, nothing is interpolated. The realised FPR stands beside it. A target that leaves "
    "room for less than one false accept is “not resolvable”; one with room for fewer than "
    f"{RULE_OF_30} is marked “few errors” (rule of {RULE_OF_30}).",
    "Accuracy is the mean over folds; the threshold of each fold is the best one on the others. "
    "SEM is the standard error of that mean (ddof 1), std the standard deviation over folds (ddof "
    "0): name which one you quote. The interval is that of the share of all held-out pairs judged "
    "rightly.",
    "EER is read on the convex hull of the ROC; the step rule is that of FVC2000. AUC is the "
    "Mann–Whitney statistic, ties count one half. d′ uses variances with ddof 0.",
    "All intervals are 95 %. An effective n smaller than the number of comparisons says that these "
    "depend on each other, because they share subjects.",
    "A pair without a score is a failure to acquire: listed, counted, and left out of all rates.",
    "Norms are those of raw embeddings; CV is their standard deviation over their mean.",
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
    scores: bool = False,
    command: str | None = None,
) -> Path:
    """Write ``report.html``, ``report.json``, ``tables/*.csv`` and ``figures/*.{png,svg}``.

    The page begins with what was found; it needs nothing but itself: no network, no script. Equal
    results give equal bytes. The folder appears whole or not at all; an earlier report there is
    replaced. The path of the page is returned.

    Args:
        folder: of the report.
        results: name → result; several benches or models share a report. There may be none where
            there are searches.
        comparisons: differences between results, see `compare`.
        searches: results of 1:N.
        pictures: name → pictures of its items, for the hardest pairs; without it pairs are named
            by the ids of their images alone.
        scores: also write ``tables/scores.csv`` with the score of every pair.
        command: the command line that led to this report, for the record.

    Raises:
        FacerecError: the folder holds anything but a report, or cannot be written.
    """
    final = Path(folder).resolve()
    check_report_folder(final)
    drawings = Drawings()
    curves = _curves(results, drawings) if results else []
    sections = [
        _section(number, name, result, (pictures or {}).get(name), drawings)
        for number, (name, result) in enumerate(results.items(), start=1)
    ]
    files = drawings.files | _tables(results, comparisons, searches, scores)
    provenance = provenance_of(command)
    names = sorted([*files, "report.html", "report.json"])
    files["report.json"] = to_json(
        {
            "kind": KIND,
            **provenance,
            "results": {name: result.to_json() for name, result in results.items()},
            "comparisons": [comparison.to_json() for comparison in comparisons],
            "identification": [each.to_json() for each in searches],
            "files": names,
        }
    )
    differences = [tables.comparison_table(comparison) for comparison in comparisons]
    every: list[VerificationResult | IdentificationResult] = [*results.values(), *searches]
    models = {str(result.model.get("name")) for result in every if result.model}
    total = sum(result.mated + result.non_mated for result in results.values())
    page = Page(
        title="Verification report" + (f": {', '.join(sorted(models))}" if models else ""),
        verdict=_verdict(results, comparisons, searches),
        lead=f"{words.counted(len(every), 'result')}, {words.counted(total, 'scored pair')}; "
        f"facerec {provenance['facerec']}. Every figure has its 95 % interval and its counts.",
        findings=_findings(results, comparisons, searches),
        headline=curves[:1],
        sections=[
            *([Section("All figures", [tables.summary_table(results)])] if results else []),
            *([Section("Comparison", differences)] if differences else []),
            *([Section("Curves", curves[1:])] if curves else []),
            *([_identification(searches)] if searches else []),
            *sections,
            Section("How to read the figures", [Listed(_READING)]),
            Section("Provenance", _provenance(results, searches, provenance, names)),
        ],
    )
    files["report.html"] = page.render().encode()
    write_folder(final, files, private=bool(pictures))
    return final / "report.html"


# --- findings ---------------------------------------------------------------------------------


def _verdict(
    results: Results, comparisons: Sequence[Comparison], searches: Sequence[IdentificationResult]
) -> str:
    """Return the sentence at the head of the page, made by rule."""
    judged = {name: one.accuracy.kfold.mean for name, one in results.items() if one.accuracy}
    if not results:
        rates = [_first_rank(each)[1].value or 0 for each in searches]
        low, high = (words.percent(end) for end in (min(rates), max(rates)))
        said = f"{low if low == high else f'From {low} to {high}'} of the mated searches"
        said += f" find their subject by rank {_first_rank(searches[0])[0]}"
    elif not judged:
        areas = [result.auc.value or 0 for result in results.values()]
        low, high = f"{min(areas):.4f}", f"{max(areas):.4f}"
        said = f"AUC {low}" if low == high else f"AUC from {low} to {high}"
    elif len(judged) == 1:
        said = f"{words.percent(next(iter(judged.values())))} of the pairs are judged rightly"
        said += f" ({next(iter(judged))})" if len(results) > 1 else ""
    else:
        extremes = (pick(judged, key=judged.__getitem__) for pick in (min, max))
        ends = [f"{words.percent(judged[name])} ({name})" for name in extremes]
        said = f"From {' to '.join(ends)} of the pairs are judged rightly"
    if comparisons:
        detected = sum(
            of_interval(row.difference.interval) == "difference detected"
            for row in map(_compared, comparisons)
            if row
        )
        compared = words.counted(len(comparisons), "comparison")
        said += f"; a difference is detected in {detected} of {compared}"
    return f"{said}."


def _compared(comparison: Comparison) -> PairedFigure | None:
    """Return the difference that findings quote: the first that has a value."""
    return next((row for row in comparison.rows if row.difference.value is not None), None)


def _first_rank(result: IdentificationResult) -> tuple[int, Estimate]:
    """Return the best rank that was asked for and its rate."""
    return min(result.rank_rates.items())


def _findings(
    results: Results, comparisons: Sequence[Comparison], searches: Sequence[IdentificationResult]
) -> list[FindingLine]:
    lines = []
    for name, result in results.items():
        estimate = f"AUC {words.number(result.auc.value, '.4f')}"
        limits = words.limits(result.auc.interval, form=".4f")
        if result.accuracy is not None:
            estimate = f"accuracy {words.percent(result.accuracy.value)}"
            limits = words.percent_limits(result.accuracy.interval)
        # The finest target that rests on enough errors says most; else the coarsest of all.
        reliable = [each for each in result.points if each.point.reliable]
        points = [*reversed(reliable), *(e for e in result.points if e.point.resolvable)]
        rate = ""
        if points:
            tpr = points[0].tpr
            few = f", {tpr.remark}" if tpr.remark else ""
            rate = (
                f"TPR {words.percent(tpr.value)} {words.percent_limits(tpr.interval)} at FPR "
                f"{points[0].point.target}{few}"
            )
        if result.failures:
            rate += f"; {words.counted(len(result.failures), 'pair')} not acquired, in no rate"
        basis = f"{tables.pairs_of(result)}, {tables.subjects_of(result)}"
        lines.append(FindingLine(name, estimate, limits, detail=rate, basis=basis))
    for comparison in comparisons:
        title, basis = f"{comparison.second} less {comparison.first}", tables.pairs_of(comparison)
        line = FindingLine(title, words.NOTHING, "", of_interval(None), basis=basis)
        if row := _compared(comparison):
            estimate = f"{row.figure} {tables.difference_points(row)} points"
            limits, concluded = tables.difference_limits(row), of_interval(row.difference.interval)
            line = FindingLine(title, estimate, limits, concluded, basis=basis)
        lines.append(line)
    for each in searches:
        rank, best = _first_rank(each)
        galleries = words.counted(len(each.galleries), "gallery", "galleries")
        lines.append(
            FindingLine(
                describe_result(each),
                f"rank {rank} {words.percent(best.value)}",
                words.percent_limits(best.interval),
                basis=f"1:N, {galleries}, {each.galleries[0].searches.rank.size:,} searches each",
            )
        )
    return lines


# --- sections ---------------------------------------------------------------------------------


def _curves(results: Results, drawings: Drawings) -> list[Drawing]:
    areas = ", ".join(f"{name}: AUC {result.auc.value:.4f}" for name, result in results.items())
    errors = ", ".join(
        f"{name}: EER {words.percent(result.eer.value)}" for name, result in results.items()
    )
    norms = ", ".join(
        f"{name}: mean {one.norms.mean.value:.4g}, CV {one.norms.cv:.4f}"
        for name, one in results.items()
        if one.norms
    )
    return [
        *drawings.draw(
            "roc",
            roc_figure(results),
            f"ROC curves over a logarithmic FPR axis. {areas}.",
            "ROC: exact step functions. What is finer than the non-mated pairs resolve is shaded.",
        ),
        *drawings.draw(
            "det",
            det_figure(results),
            f"DET curves on probit axes. {errors}.",
            "DET: trade-off of both error rates on probit axes. Points at which a rate is exactly "
            "0 or 1 have no place there and are left out.",
        ),
        *drawings.draw(
            "norms",
            norm_figure(results),
            f"Histograms of embedding norms. {norms}.",
            "Norms of raw embeddings over the images of all pairs.",
        ),
    ]


def _section(
    number: int, name: str, result: VerificationResult, encoded: Encoded | None, drawings: Drawings
) -> Section:
    picture = None if encoded is None else functools.partial(face_picture, encoded)
    hardest = functools.partial(tables.hardest_table, name, result, picture)
    folds = tables.folds_table(name, result)
    warning = Text("These pictures show subjects. Handle this page as you handle the bench itself.")
    blocks: list[Block] = [
        *([Listed(list(map(words.sentence, result.notes)), "notes")] if result.notes else []),
        tables.figures_table(result),
        tables.points_table(name, result),
        tables.thresholds_table(name, result),
        *drawings.draw(
            f"scores-{slug(number, name)}",
            score_figure({name: result}),
            f"Histograms of {result.mated} mated and {result.non_mated} non-mated scores, "
            "thresholds marked.",
            "Scores on a logarithmic count axis; dashed lines are the thresholds of the operating "
            "points.",
        ),
        *([folds] if folds else []),
        Heading("Hardest pairs"),
        *([warning] if picture else []),
        Beside([hardest(mated=True), hardest(mated=False)]),
        Heading("Failures to acquire"),
        tables.failures_table(name, result, tables.LISTED)
        if result.failures
        else Text("None: every pair has a score."),
    ]
    return Section(
        name,
        blocks,
        lead=f"{describe_result(result)}: {result.mated:,} mated and {result.non_mated:,} "
        f"non-mated pairs with a score; {describe_flip(result.flip)}; score: {result.score}.",
    )


def _identification(searches: Sequence[IdentificationResult]) -> Section:
    blocks: list[Block] = []
    for each in searches:
        views = f"{describe_flip(each.flip)}; score: {each.score}."
        blocks += [tables.identification_table(each), Text(views)]
        if each.notes:
            blocks.append(Listed(list(map(words.sentence, each.notes)), "notes"))
    return Section(
        "Identification",
        blocks,
        lead="A search is mated if the gallery holds its person. Rank k: the share of mated "
        "searches with their person among the k best entries; ties count against it. TPIR@FPIR: "
        "the share of mated searches that find their person first, at or above the threshold at "
        "which at most the target share of the others find anybody.",
    )


def _provenance(
    results: Results,
    searches: Sequence[IdentificationResult],
    provenance: Mapping[str, Any],
    names: Sequence[str],
) -> list[Block]:
    listed = ", ".join(name for name in names if not name.startswith("report."))
    origins = {describe_result(each): _origin(each) for each in searches}
    origins = {name: _origin(result) for name, result in results.items()} | origins
    return [
        facts_table("This report", _texts(provenance)),
        *(facts_table(name, _texts(origin)) for name, origin in origins.items()),
        Text(
            "Beside this page: ",
            Code("report.json"),
            f" with all figures, tables as CSV, and figures as PNG and SVG: {listed}.",
        ),
    ]


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: fact if isinstance(fact, str) else json.dumps(plain(fact), ensure_ascii=False)
        for name, fact in facts.items()
    }


def _origin(result: VerificationResult | IdentificationResult) -> dict[str, Any]:
    """Return where a result comes from, one entry a line."""
    facts: dict[str, Any] = {"bench": result.name}
    for title, mapping in (("model", result.model), ("source", result.source)):
        if mapping is None:
            facts[title] = "unknown"
        else:
            facts |= {f"{title}: {key}": value for key, value in mapping.items()}
    return facts | {
        "views": describe_flip(result.flip),
        "alignment": result.align or "none, images as they are",
        "score": result.score,
        **({"intervals": result.basis} if isinstance(result, VerificationResult) else {}),
    }


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


# --- files ------------------------------------------------------------------------------------


def _tables(
    results: Results,
    comparisons: Sequence[Comparison],
    searches: Sequence[IdentificationResult],
    scores: bool,
) -> Files:
    named = list(results.items())
    kinds: dict[str, Sequence[Table[Any] | None]] = {
        "operating_points": [tables.points_table(*one) for one in named],
        "thresholds": [tables.thresholds_table(*one) for one in named],
        "folds": [tables.folds_table(*one) for one in named],
        "failures": [tables.failures_table(*one) for one in named],
        "hardest_pairs": [
            tables.hardest_table(*one, mated=mated) for one in named for mated in (True, False)
        ],
        "scores": [tables.scores_table(*one) for one in named] if scores else [],
        "comparison": [tables.comparison_table(comparison) for comparison in comparisons],
        "identification": [tables.identification_table(each) for each in searches],
    }
    rows = {
        name: [row for table in kind if table for row in table.records()]
        for name, kind in kinds.items()
    }
    return {f"tables/{name}.csv": to_csv(each) for name, each in rows.items() if each}


def _written_before(folder: Path) -> set[str]:
    """Return the files that an earlier report says it wrote; none if there is no report."""
    try:
        report = parse_json(read_file(folder / "report.json"))
        return set(report["files"]) if report["kind"] == KIND else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()
