"""The verification report: a folder with a page, JSON, CSV tables and figures."""

from __future__ import annotations

import base64
import json
import math
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from matplotlib.figure import Figure

import facerec
from facerec.errors import FacerecError
from facerec.files import check_replaceable, parse_json, write_folder
from facerec.records.decode import decode_image
from facerec.report.blocks import Cell, Drawing, FindingLine, Table, render_page
from facerec.report.csv_tables import to_csv
from facerec.statistics.clustered import Bound
from facerec.statistics.intervals import Interval, wilson
from facerec.statistics.rates import RULE_OF_30
from facerec.verification.compare import Comparison, PairedFigure, describe_result
from facerec.verification.evaluate import TprEstimate, VerificationResult
from facerec.verification.plots import det_figure, draw, norm_figure, roc_figure, score_figure
from facerec.verification.report import (
    THRESHOLD_ADVICE,
    describe_flip,
    format_difference,
    format_interval,
    format_percent,
    format_spread,
    format_threshold,
)

Picture = Callable[[int], bytes]
"""Item of a bench → its encoded image, such as `ImageSource.encoded`."""

KIND = "facerec verification report"
LISTED = 50
"""Failures that the page lists; the table has all."""
HARDEST = 10

_PACKAGES = ("numpy", "scipy", "torch", "opencv-python", "matplotlib")
_FACE = 112
"""Longer side of the pictures in the page, pixels."""


Files = dict[str, bytes]
"""Path inside the report → contents."""


def check_report_folder(folder: str | Path) -> None:
    """Refuse a folder that a report may not replace; see `check_replaceable`."""
    check_replaceable(folder, _written_before, "a verification report")


def write_report(
    folder: str | Path,
    results: Mapping[str, VerificationResult],
    *,
    comparisons: Sequence[Comparison] = (),
    pictures: Mapping[str, Picture] | None = None,
    scores: bool = False,
    command: str | None = None,
) -> Path:
    """Write ``report.html``, ``report.json``, ``tables/*.csv`` and ``figures/*.{png,svg}``.

    The page begins with what was found; it needs nothing but itself: no network, no script. Equal
    results give equal bytes. The folder appears whole or not at all; an earlier report there is
    replaced.

    Args:
        folder: of the report.
        results: name → result; several benches or models share a report.
        comparisons: differences between results, see `compare`.
        pictures: name → pictures of its items, for the hardest pairs; without it pairs are named
            by the ids of their images alone.
        scores: also write ``tables/scores.csv`` with the score of every pair.
        command: the command line that led to this report, for the record.

    Returns:
        The path of the page.

    Raises:
        FacerecError: the folder holds anything but a report, or cannot be written.
    """
    final = Path(folder).resolve()
    check_report_folder(final)
    figures = {
        "roc": roc_figure(results),
        "det": det_figure(results),
        **{
            f"scores-{slug(number, name)}": score_figure({name: result})
            for number, (name, result) in enumerate(results.items(), start=1)
        },
    }
    norms = norm_figure(results)
    if norms is not None:
        figures["norms"] = norms
    files = _tables(results, comparisons, scores) | _draw_all(figures)
    provenance = provenance_of(command)
    names = sorted([*files, "report.html", "report.json"])
    files["report.json"] = _json(
        {
            "kind": KIND,
            **provenance,
            "results": {name: result.to_json() for name, result in results.items()},
            "comparisons": [comparison.to_json() for comparison in comparisons],
            "files": names,
        }
    )
    page = _page(results, comparisons, pictures or {}, files, provenance, names)
    files["report.html"] = page.encode()
    write_folder(final, files)
    return final / "report.html"


# --- the page ---------------------------------------------------------------------------------


def _page(
    results: Mapping[str, VerificationResult],
    comparisons: Sequence[Comparison],
    pictures: Mapping[str, Picture],
    files: Files,
    provenance: Mapping[str, Any],
    names: Sequence[str],
) -> str:
    models = {str(result.model.get("name")) for result in results.values() if result.model}
    title = "Verification report" + (f": {', '.join(sorted(models))}" if models else "")
    sections = [
        _section(number, name, result, pictures.get(name), files)
        for number, (name, result) in enumerate(results.items(), start=1)
    ]
    total = sum(result.mated + result.non_mated for result in results.values())
    roc, *curves = _curves(results, files)
    return render_page(
        "facerec.verification",
        "report.html.j2",
        "report.css",
        title=title,
        verdict=_verdict(results, comparisons),
        findings=_findings(results, comparisons),
        lead=f"{counted(len(results), 'result')}, {counted(total, 'scored pair')}; facerec "
        f"{provenance['facerec']}. Every figure has its 95 % interval and its counts.",
        summary=_summary(results),
        comparisons=[_difference_table(comparison) for comparison in comparisons],
        roc=roc,
        curves=curves,
        sections=sections,
        rule=RULE_OF_30,
        provenance=[
            _facts("This report", provenance),
            *(_facts(name, _origin(result)) for name, result in results.items()),
        ],
        files=[name for name in names if not name.startswith("report.")],
    )


def _verdict(results: Mapping[str, VerificationResult], comparisons: Sequence[Comparison]) -> str:
    """Return the sentence at the head of the page, made by rule."""
    judged = {
        name: result.accuracy.mean
        for name, result in results.items()
        if result.accuracy is not None
    }
    if not judged:
        areas = [result.auc.value for result in results.values()]
        low, high = f"{min(areas):.4f}", f"{max(areas):.4f}"
        said = f"AUC {low}" if low == high else f"AUC from {low} to {high}"
    elif len(judged) == 1:
        said = f"{format_percent(*judged.values())} of the pairs are judged rightly"
        said += f" ({next(iter(judged))})" if len(results) > 1 else ""
    else:
        ends = [
            f"{format_percent(judged[name])} ({name})"
            for name in (min(judged, key=judged.__getitem__), max(judged, key=judged.__getitem__))
        ]
        said = f"From {' to '.join(ends)} of the pairs are judged rightly"
    if comparisons:
        found = [_conclusion(row.interval) for each in comparisons if (row := _compared(each))]
        said += (
            f"; a difference is detected in {found.count(_DETECTED)} of "
            f"{counted(len(comparisons), 'comparison')}"
        )
    return f"{said}."


_DETECTED, _UNDETECTED = "difference detected", "none detected at this precision"


def _conclusion(interval: Interval | None) -> str:
    """Say whether an interval of a difference lies beside zero."""
    if interval is None:
        return "insufficient data"
    return _DETECTED if interval.low > 0 or interval.high < 0 else _UNDETECTED


def _compared(comparison: Comparison) -> PairedFigure | None:
    """Return the difference that findings quote: the first that has a value."""
    return next((row for row in comparison.rows if row.difference is not None), None)


def _findings(
    results: Mapping[str, VerificationResult], comparisons: Sequence[Comparison]
) -> list[FindingLine]:
    """Return a line for every result, and one for every comparison."""
    lines = []
    for name, result in results.items():
        persons = counted(result.subjects, "person") if result.subjects else "persons unknown"
        estimate, limits = f"AUC {result.auc.value:.4f}", format_interval(result.auc.interval, 1, 4)
        if result.accuracy is not None and result.accuracy_interval is not None:
            estimate = f"accuracy {format_percent(result.accuracy.mean)}"
            limits = format_interval(result.accuracy_interval)
        # The finest target that rests on enough errors says most; else the coarsest of all.
        reliable = [each for each in result.points if each.point.reliable]
        points = [*reversed(reliable), *(e for e in result.points if e.point.resolvable)]
        rate = ""
        if points:
            few = "" if points[0].point.reliable else ", few errors"
            rate = (
                f"TPR {format_percent(points[0].point.tpr)} "
                f"{format_interval(points[0].tpr_interval)} at FPR {points[0].point.target}{few}"
            )
        if result.failures:
            rate += f"; {counted(len(result.failures), 'pair')} not acquired, in no rate"
        pairs = f"{result.mated:,} same and {result.non_mated:,} different pairs, {persons}"
        lines.append(FindingLine(name, estimate, limits, detail=rate, basis=pairs))
    for comparison in comparisons:
        figure = f"{comparison.second} less {comparison.first}"
        basis = f"{comparison.mated:,} same and {comparison.non_mated:,} different pairs"
        row = _compared(comparison)
        if row is None:
            lines.append(FindingLine(figure, "–", conclusion=_conclusion(None), basis=basis))
            continue
        _, _, difference, limits = format_difference(row)
        estimate = f"{row.figure} {difference} points"
        lines.append(FindingLine(figure, estimate, limits, _conclusion(row.interval), basis=basis))
    return lines


def _summary(results: Mapping[str, VerificationResult]) -> Table:
    targets = list(
        dict.fromkeys(
            estimate.point.target for result in results.values() for estimate in result.points
        )
    )
    # A target does not fall apart at its minus.
    at = (target.replace("-", "\N{NON-BREAKING HYPHEN}") for target in targets)
    titles = ["accuracy", *(f"TPR@FPR={target}" for target in at), "AUC", "EER", "failures"]
    rows = []
    for name, result in results.items():
        points = {estimate.point.target: estimate for estimate in result.points}
        persons = counted(result.subjects, "person") if result.subjects else "persons unknown"
        accuracy = Cell("–")
        if result.accuracy is not None and result.accuracy_interval is not None:
            limits = format_interval(result.accuracy_interval)
            accuracy = Cell(format_percent(result.accuracy.mean), limits)
        rows.append(
            [
                Cell(
                    name,
                    f"{result.mated:,} same and {result.non_mated:,} different pairs, {persons}",
                ),
                accuracy,
                *(_rate_cell(points.get(target)) for target in targets),
                Cell(f"{result.auc.value:.4f}", format_interval(result.auc.interval, 1, 4)),
                Cell(format_percent(result.eer.value), format_interval(result.eer.interval)),
                Cell(f"{len(result.failures):,}"),
            ]
        )
    columns = ["result", *titles]
    remarks = [
        f"{name}: intervals: {result.basis}." if len(results) > 1 else f"Intervals: {result.basis}."
        for name, result in results.items()
    ]
    return Table(
        "Figures with 95 % intervals; pairs that failed to acquire", columns, rows, remarks
    )


def _rate_cell(estimate: TprEstimate | None) -> Cell:
    if estimate is None:
        return Cell("–")
    point = estimate.point
    if not point.resolvable:
        return Cell("not resolvable", f"N = {point.non_mated:,}")
    few = "" if point.reliable else "\nfew errors"
    return Cell(format_percent(point.tpr), f"{format_interval(estimate.tpr_interval)}{few}")


def _difference_table(comparison: Comparison) -> Table:
    rows = []
    for row in comparison.rows:
        first, second, difference, limits = format_difference(row)
        counts = [
            "" if pair is None or row.difference is None else f"{pair[0]}/{pair[1]}"
            for pair in (row.first_counts, row.second_counts)
        ]
        rows.append(
            [
                Cell(row.figure),
                Cell(first, counts[0]),
                Cell(second, counts[1]),
                Cell(difference),
                Cell(limits),
                _method_cell(row.interval, "" if row.reliable else "few errors"),
            ]
        )
    columns = ["figure", "A", "B", "B − A, points of percent", "95 % interval", "how"]
    caption = f"A: {comparison.first}; B: {comparison.second}"
    pairs = (
        f"On the {comparison.mated:,} same and {comparison.non_mated:,} different pairs with a "
        f"score in both; {comparison.left_out:,} pairs are left out. Intervals of the differences: "
        f"{comparison.basis}."
    )
    remarks = [pairs, *assumptions(row.interval for row in comparison.rows)]
    remarks += [_sentence(note) for note in comparison.notes]
    return Table(caption, columns, rows, remarks, words=["how"])


def _curves(results: Mapping[str, VerificationResult], files: Files) -> list[Drawing]:
    areas = ", ".join(f"{name}: AUC {result.auc.value:.4f}" for name, result in results.items())
    errors = ", ".join(
        f"{name}: EER {format_percent(result.eer.value)}" for name, result in results.items()
    )
    curves = [
        Drawing(
            _svg(files, "roc"),
            f"ROC curves over a logarithmic FPR axis. {areas}.",
            "ROC: exact step functions. What is finer than the impostor pairs resolve is shaded.",
        ),
        Drawing(
            _svg(files, "det"),
            f"DET curves on probit axes. {errors}.",
            "DET: trade-off of both error rates on probit axes. Points at which a rate is exactly "
            "0 or 1 have no place there and are left out.",
        ),
    ]
    norms = {name: result.norms for name, result in results.items() if result.norms is not None}
    if norms:
        means = ", ".join(
            f"{name}: mean {found.mean:.4g}, CV {found.cv:.4f}" for name, found in norms.items()
        )
        caption = "Norms of raw embeddings over the images of all pairs."
        curves.append(
            Drawing(_svg(files, "norms"), f"Histograms of embedding norms. {means}.", caption)
        )
    return curves


def _section(
    number: int,
    name: str,
    result: VerificationResult,
    picture: Picture | None,
    files: Files,
) -> dict[str, Any]:
    """Return what the template needs to show one result."""
    scores = Drawing(
        _svg(files, f"scores-{slug(number, name)}"),
        f"Histograms of {result.mated} genuine and {result.non_mated} impostor scores, "
        "thresholds marked.",
        "Scores on a logarithmic count axis; dashed lines are the thresholds of the operating "
        "points.",
    )
    return {
        "name": name,
        "lead": f"{describe_result(result)}: {result.mated:,} genuine and {result.non_mated:,} "
        f"impostor pairs with a score; {describe_flip(result.flip)}; score: {result.score}.",
        "notes": [_sentence(note) for note in result.notes],
        "tables": [_headline(result), _operating_points(result), _thresholds(result)],
        "scores": scores,
        "folds": _folds(result),
        "pictures": picture is not None,
        "hardest": [
            _hardest_table(result, picture, genuine=True),
            _hardest_table(result, picture, genuine=False),
        ],
        "failures": _failures(result),
    }


def _headline(result: VerificationResult) -> Table:
    rows, intervals = [], []

    def add(
        figure: str,
        value: str,
        counts: str,
        interval: Interval | None = None,
        limits: str = "–",
        small: str = "",
    ) -> None:
        cells = [Cell(value), Cell(limits), Cell(counts), _method_cell(interval)]
        rows.append([Cell(figure, small), *cells])
        intervals.append(interval)

    accuracies = [(result.accuracy, result.accuracy_interval, "accuracy")]
    if result.insightface is not None:
        counts = result.insightface.correct, result.insightface.pairs
        accuracies.append((result.insightface, wilson(*counts), "accuracy in insightface’s way"))
    for accuracy, interval, name in accuracies:
        if accuracy is not None and interval is not None:
            add(
                f"{name}, {accuracy.folds} folds",
                format_percent(accuracy.mean),
                f"{accuracy.correct}/{accuracy.pairs}",
                interval,
                format_interval(interval),
                format_spread(accuracy),
            )
    sides = f"{result.mated} × {result.non_mated}"
    area, equal, step = result.auc, result.eer, result.eer_step
    add("AUC", f"{area.value:.4f}", sides, area.interval, format_interval(area.interval, 1, 4))
    add(
        "EER on the ROC hull",
        format_percent(equal.value),
        sides,
        equal.interval,
        format_interval(equal.interval),
        f"step rule: {100 * step.low:.2f} to {100 * step.high:.2f} %",
    )
    add("d′", f"{result.d_prime:.3f}" if math.isfinite(result.d_prime) else "–", sides)
    norms = result.norms
    if norms is not None:
        add(
            "mean norm of raw embeddings",
            f"{norms.mean:.4g}",
            f"{norms.values.size} images",
            norms.interval,
            format_interval(norms.interval, 1, 2),
            f"CV {norms.cv:.4f}, std {norms.std:.4g}; insightface’s “XNorm”",
        )
    failed, total = len(result.failures), len(result.pairs)
    add("failures to acquire", format_percent(failed / total), f"{failed}/{total} pairs")
    how = "how the interval is made"
    columns = ["figure", "value", "95 % interval", "counts", how]
    remarks = [f"Intervals: {result.basis}.", *assumptions(intervals)]
    return Table("Figures", columns, rows, remarks, words=[how])


def _operating_points(result: VerificationResult) -> Table:
    rows = []
    for estimate in result.points:
        point = estimate.point
        if not point.resolvable:
            finest = (
                f"one of {point.non_mated:,} impostor pairs is an FPR of {1 / point.non_mated:.1e}"
            )
            cells = [Cell("not resolvable"), *[Cell("–")] * 5, Cell("–", finest)]
            rows.append([Cell(point.target), *cells])
            continue
        false_accepts = f"{point.false_accepts}/{point.non_mated}"
        rows.append(
            [
                Cell(point.target),
                Cell(format_percent(point.tpr)),
                Cell(format_interval(estimate.tpr_interval)),
                Cell(f"{point.true_accepts}/{point.mated}"),
                Cell(f"{point.fpr_realised:.3g}", false_accepts),
                Cell(f"[{estimate.fpr_interval.low:.2g}, {estimate.fpr_interval.high:.2g}]"),
                Cell(format_threshold(point.threshold)),
                _method_cell(estimate.tpr_interval, "" if point.reliable else "few errors"),
            ]
        )
    titles = ("TPR", "95 % interval", "accepted", "realised FPR", "95 % interval", "threshold")
    how = "how the TPR’s interval is made"
    shown = [estimate for estimate in result.points if estimate.point.resolvable]
    kinds = (
        [estimate.tpr_interval for estimate in shown],
        [estimate.fpr_interval for estimate in shown],
    )
    remarks = [
        f"{rate}: {assumption}"
        for rate, intervals in zip(("TPR", "FPR"), kinds, strict=True)
        for assumption in assumptions(intervals)
    ]
    columns = ["target FPR", *titles, how]
    return Table("Operating points", columns, rows, remarks, words=[how])


def _thresholds(result: VerificationResult) -> Table:
    rows = []
    for estimate in result.points:
        point, interval = estimate.point, estimate.threshold_interval
        if not point.resolvable:
            continue
        if interval is None:
            limits, method = "–", Cell("too few persons for an interval")
        else:
            low, high = (format_threshold(end) for end in (interval.low, interval.high))
            limits, method = f"[{low}, {high}]", _method_cell(interval)
        rows.append(
            [Cell(point.target), Cell(format_threshold(point.threshold)), Cell(limits), method]
        )
    how = "how the interval is made"
    columns = ["target FPR", "threshold", "95 % interval", how]
    remarks = [
        THRESHOLD_ADVICE,
        *assumptions(estimate.threshold_interval for estimate in result.points),
    ]
    return Table("Thresholds for deployment", columns, rows, remarks, words=[how])


def _folds(result: VerificationResult) -> Table | None:
    if result.accuracy is None:
        return None
    accuracy = result.accuracy
    rows = [
        [Cell(str(fold)), Cell(format_percent(share)), Cell(format_threshold(threshold))]
        for fold, (share, threshold) in enumerate(
            zip(accuracy.accuracies, accuracy.thresholds, strict=True), start=1
        )
    ]
    columns = ["fold", "accuracy", "threshold of the others"]
    caption = f"Accuracy by fold: mean {format_percent(accuracy.mean)} {format_spread(accuracy)}"
    return Table(caption, columns, rows)


def _hardest_table(result: VerificationResult, picture: Picture | None, *, genuine: bool) -> Table:
    rows = []
    for pair in _hardest(result, genuine=genuine):
        items = [int(side[pair]) for side in (result.pairs.first, result.pairs.second)]
        rows.append(
            [
                Cell(str(pair)),
                Cell(f"{result.scores[pair]:.4g}"),
                *(_item_cell(result, item, picture) for item in items),
            ]
        )
    caption = (
        f"{len(rows)} lowest genuine scores" if genuine else f"{len(rows)} highest impostor scores"
    )
    columns = ["pair", "score", "first image", "second image"]
    return Table(caption, columns, rows, words=columns[2:])


def _failures(result: VerificationResult) -> Table | None:
    if not result.failures:
        return None
    rows = [
        [
            Cell(str(failure.pair)),
            Cell("genuine" if failure.issame else "impostor"),
            Cell(failure.reason),
        ]
        for failure in result.failures[:LISTED]
    ]
    more = len(result.failures) - len(rows)
    remarks = [f"And {more:,} more, all in tables/failures.csv."] if more else []
    columns = ["pair", "kind", "reason"]
    caption = f"{counted(len(result.failures), 'pair')} without a score, left out of all rates"
    return Table(caption, columns, rows, remarks, words=columns)


def _facts(caption: str, facts: Mapping[str, Any]) -> Table:
    rows = []
    for name, fact in facts.items():
        text = fact if isinstance(fact, str) else json.dumps(fact, ensure_ascii=False)
        rows.append([Cell(name), Cell(text)])
    return Table(caption, ["fact", "value"], rows, words=["value"])


def _origin(result: VerificationResult) -> dict[str, Any]:
    """Return where a result comes from, one entry a line."""
    facts: dict[str, Any] = {"bench": result.name}
    for title, mapping in (("model", result.model), ("source", result.source)):
        if mapping is None:
            facts[title] = "unknown"
        else:
            facts |= {f"{title}: {key}": _strict(value) for key, value in mapping.items()}
    return facts | {
        "views": describe_flip(result.flip),
        "alignment": _strict(result.align) if result.align else "none, images as they are",
        "score": result.score,
        "intervals": result.basis,
    }


def provenance_of(command: str | None) -> dict[str, Any]:
    """Return versions and the command line, for the record."""
    return {
        "facerec": facerec.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
        "command": command,
    }


# --- words and pictures -----------------------------------------------------------------------


def _method_cell(interval: Interval | None, remark: str = "") -> Cell:
    """Say how an interval is made, with its effective number of comparisons."""
    if interval is None:
        return Cell("–")
    method = interval.method
    if interval.effective is not None:
        name = "" if method.endswith("effective n") else ", effective n"
        method += f"{name} = {interval.effective:,.0f}"
    if isinstance(interval, Bound):
        alone = f"{interval.if_independent:.2g} if all comparisons were independent"
        remark = f"{remark}; {alone}" if remark else alone
    return Cell(method, remark)


def assumptions(intervals: Iterable[Interval | None]) -> list[str]:
    """Return what each method assumes, once."""
    assumed = [
        f"{interval.method}: {interval.assumption}."
        for interval in intervals
        if interval is not None and interval.assumption
    ]
    return list(dict.fromkeys(assumed))


def _scientific(interval: Interval) -> str:
    return f"[{interval.low:.2g}, {interval.high:.2g}]"


def counted(number: int, noun: str) -> str:
    """Return ``1 pair`` or ``2,000 pairs``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _sentence(note: str) -> str:
    return note if note.endswith(".") else f"{note}."


def _item(result: VerificationResult, item: int) -> str:
    return str(item) if result.items is None else str(result.items[item])


def _hardest(result: VerificationResult, *, genuine: bool) -> list[int]:
    """Return the pairs whose scores err most, worst first; of equal ones the earlier pair."""
    pairs = np.flatnonzero((result.pairs.issame == genuine) & ~np.isnan(result.scores))
    scores = result.scores[pairs]
    order = np.argsort(scores if genuine else -scores, kind="stable")
    return pairs[order[:HARDEST]].tolist()


def _item_cell(result: VerificationResult, item: int, picture: Picture | None) -> Cell:
    name = _item(result, item)
    if picture is None:
        return Cell(name)
    face = _face(picture, item)
    return Cell(name, "" if face else "its picture cannot be shown", picture=face)


def _face(picture: Picture, item: int) -> str:
    """Return a small JPEG as a data URI, without whatever else the file carried; empty if none."""
    try:
        image = decode_image(picture(item), f"image {item}", size=None)
    except FacerecError:
        return ""
    scale = _FACE / max(image.shape[:2])
    if scale < 1:
        image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    _, content = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return data_uri("image/jpeg", content.tobytes())


def _svg(files: Files, name: str) -> str:
    return data_uri("image/svg+xml", files[f"figures/{name}.svg"])


def data_uri(kind: str, content: bytes) -> str:
    """Return content as the address of an image inside the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


# --- files ------------------------------------------------------------------------------------


def _draw_all(figures: Mapping[str, Figure]) -> Files:
    return {
        f"figures/{name}.{kind}": draw(figure, kind)
        for name, figure in figures.items()
        for kind in ("png", "svg")
    }


def slug(number: int, name: str) -> str:
    """Return a file name for a result; the number keeps names apart that become alike."""
    return f"{number}-{re.sub('[^A-Za-z0-9_.-]+', '_', name)[:60]}"


def _tables(
    results: Mapping[str, VerificationResult], comparisons: Sequence[Comparison], scores: bool
) -> Files:
    points, thresholds, folds, failures, hardest, every = [], [], [], [], [], []
    for name, result in results.items():
        points += [{"result": name, **_point_row(estimate)} for estimate in result.points]
        thresholds += [
            {"result": name, **_threshold_row(estimate)}
            for estimate in result.points
            if estimate.point.resolvable
        ]
        if result.accuracy is not None:
            folds += [
                {"result": name, "fold": fold, "accuracy": share, "threshold": threshold}
                for fold, (share, threshold) in enumerate(
                    zip(result.accuracy.accuracies, result.accuracy.thresholds, strict=True), 1
                )
            ]
        failures += [
            {
                "result": name,
                **_pair_row(result, failure.pair),
                "reason": failure.reason,
            }
            for failure in result.failures
        ]
        hardest += [
            {"result": name, "rank": rank, **_pair_row(result, pair)}
            for genuine in (True, False)
            for rank, pair in enumerate(_hardest(result, genuine=genuine), start=1)
        ]
        if scores:
            every += [
                {"result": name, **_pair_row(result, pair)} for pair in range(len(result.pairs))
            ]
    files = {
        "operating_points": points,
        "thresholds": thresholds,
        "folds": folds,
        "failures": failures,
        "hardest_pairs": hardest,
        "scores": every,
        "comparison": [row for comparison in comparisons for row in _difference_rows(comparison)],
    }
    return {f"tables/{name}.csv": to_csv(rows) for name, rows in files.items() if rows}


def _point_row(estimate: TprEstimate) -> dict[str, Any]:
    point = estimate.point
    return {
        "target_fpr": point.target,
        "resolvable": point.resolvable,
        "reliable": point.reliable,
        "threshold": point.threshold,
        "tpr": point.tpr if point.resolvable else None,
        **_limits("tpr", estimate.tpr_interval if point.resolvable else None),
        "true_accepts": point.true_accepts,
        "same": point.mated,
        "fpr_realised": point.fpr_realised,
        **_limits("fpr", estimate.fpr_interval),
        "false_accepts": point.false_accepts,
        "different": point.non_mated,
    }


def _threshold_row(estimate: TprEstimate) -> dict[str, Any]:
    return {
        "target_fpr": estimate.point.target,
        "threshold": estimate.point.threshold,
        **_limits("threshold", estimate.threshold_interval),
    }


def _limits(name: str, interval: Interval | None) -> dict[str, Any]:
    return {
        f"{name}_low": None if interval is None else interval.low,
        f"{name}_high": None if interval is None else interval.high,
        f"{name}_interval": None if interval is None else interval.method,
        f"{name}_assumption": None if interval is None else interval.assumption,
    }


def _pair_row(result: VerificationResult, pair: int) -> dict[str, Any]:
    score = result.scores[pair]
    return {
        "pair": pair,
        "issame": bool(result.pairs.issame[pair]),
        "first": _item(result, int(result.pairs.first[pair])),
        "second": _item(result, int(result.pairs.second[pair])),
        # As float32, whose shortest text gives the same number.
        "score": None if np.isnan(score) else score,
    }


def _difference_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for row in comparison.rows:
        counts = row.first_counts or (None, None), row.second_counts or (None, None)
        yield {
            "first": comparison.first,
            "second": comparison.second,
            "figure": row.figure,
            "first_value": row.first,
            "second_value": row.second,
            "difference": row.difference,
            **_limits("difference", row.interval),
            "first_events": counts[0][0],
            "second_events": counts[1][0],
            "comparisons": counts[0][1],
        }


def _json(value: Any) -> bytes:
    text = json.dumps(_strict(value), indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def _strict(value: Any) -> Any:
    """Replace what JSON lacks: NaN becomes null, an infinity its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    return value


def _written_before(folder: Path) -> set[str]:
    """Return the files that an earlier report says it wrote; none if there is no report."""
    try:
        report = parse_json((folder / "report.json").read_bytes())
        return set(report["files"]) if report["kind"] == KIND else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()
