"""What is said of verification results in tables; each is described once.

The terminal, the page and the files for spreadsheets show these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from facerec.report import words
from facerec.report.estimate import Estimate
from facerec.report.table import Cell, Column, Table, text_table
from facerec.statistics.clustered import Bound
from facerec.statistics.intervals import Interval
from facerec.verification.compare import Comparison, PairedFigure, describe_result
from facerec.verification.evaluation import (
    AccuracyEstimate,
    Failure,
    TprEstimate,
    VerificationResult,
)
from facerec.verification.identification import IdentificationResult
from facerec.verification.preprocessing import Trials

Picture = Callable[[int], str]
"""Item of a bench → data URI of its small picture; empty if it cannot be shown."""

LISTED = 50
"""Failures that a page lists; the file has all."""
HARDEST = 10

THRESHOLD_ADVICE = (
    "A threshold for use is set on other data than it is tested on: take it from one set, with the "
    "model, flip mode and kind of images of the deployment, and report the rates that it gives on "
    "another."
)

_HOW = "how the interval is made"
_INTERVAL = "95 % interval"
_UNRESOLVED = "not resolvable"


def pairs_of(one: VerificationResult | Comparison) -> str:
    """Return how many pairs of both kinds have a score."""
    return f"{one.mated:,} same and {one.non_mated:,} different pairs"


def subjects_of(result: VerificationResult) -> str:
    """Return how many subjects the pairs show."""
    return words.counted(result.subjects, "subject") if result.subjects else "subjects unknown"


def spread(accuracy: AccuracyEstimate) -> str:
    """Return both measures of spread over the folds, with their names."""
    return f"± {100 * accuracy.kfold.sem:.2f} SEM, ± {100 * accuracy.kfold.std:.2f} std"


def of_total(estimate: Estimate) -> str:
    """Return ``2961/3000``; empty without counts."""
    return "" if estimate.events is None else f"{estimate.events}/{estimate.total}"


# --- one result -------------------------------------------------------------------------------


def figures_table(result: VerificationResult) -> Table[Any]:
    """Return accuracy, areas, error rates, norms and failures of one result."""
    rows: list[Sequence[Cell | str]] = []
    intervals = []

    def add(name: Cell, estimate: Estimate, said: tuple[str, str], counts: str) -> None:
        rows.append((name, *said, counts, how_cell(estimate.interval)))
        intervals.append(estimate.interval)

    named = {"accuracy": result.accuracy, f"{result.compat}’s accuracy": result.compatible}
    for title, each in named.items():
        if each is not None:
            name = Cell(f"{title}, {each.kfold.folds} folds", spread(each))
            add(name, each, _share(each), of_total(each))
    sides = f"{result.mated} × {result.non_mated}"
    area, step, norms = result.auc, result.eer_step, result.norms
    low, high = (f"{100 * end:.2f}" for end in (step.low, step.high))
    rule = f"step rule: {low if low == high else f'{low} to {high}'} %"
    d_prime = Estimate(result.d_prime)
    add(Cell("AUC"), area, _number(area, ".4f", ".4f"), sides)
    add(Cell("EER on the ROC hull", rule), result.eer, _share(result.eer), sides)
    add(Cell("d′"), d_prime, _number(d_prime, ".3f"), sides)
    for title, metric in result.metrics.items():
        add(Cell(title, metric.remark), metric, _number(metric, ".4f"), sides)
    if norms is not None:
        decimals = max(0, 3 - math.floor(math.log10(norms.mean.value))) if norms.mean.value else 2
        said = _number(norms.mean, ".4g", f".{decimals}f")
        name = Cell("norm, insightface’s “XNorm”", f"CV {norms.cv:.4f}, std {norms.std:.4g}")
        add(name, norms.mean, said, f"{norms.values.size} images")
    failed, total = len(result.failures), len(result.pairs)
    acquired = Estimate(failed / total, None, failed, total)
    add(Cell("failures to acquire"), acquired, _share(acquired), f"{of_total(acquired)} pairs")
    headings = ("figure", "value", _INTERVAL, "counts", _HOW)
    remarks = [f"Intervals: {result.basis}.", *words.assumptions(intervals)]
    return text_table("Figures", headings, rows, words=(_HOW,), page_only=(_HOW,), remarks=remarks)


def points_table(name: str, result: VerificationResult) -> Table[TprEstimate]:
    """Return the TPR at every target FPR."""
    columns: list[Column[TprEstimate]] = [
        Column("", data=lambda row: name, key="result"),
        Column("target FPR", lambda row: row.point.target, _target, "target_fpr"),
        Column("", data=lambda row: row.point.resolvable, key="resolvable"),
        Column("", data=lambda row: row.point.reliable, key="reliable"),
        Column(
            "threshold", _if_resolvable(_threshold), lambda row: row.point.threshold, "threshold"
        ),
        Column("TPR", lambda row: _rate_cell(row.tpr), lambda row: _data("tpr", row.tpr)),
        Column(_INTERVAL, lambda row: words.percent_limits(row.tpr.interval) or words.NOTHING),
        Column(
            "accepted",
            _if_resolvable(lambda row: of_total(row.tpr)),
            lambda row: {"true_accepts": row.tpr.events, "same": row.tpr.total},
        ),
        Column(
            "realised FPR",
            _if_resolvable(lambda row: Cell(f"{row.fpr.value:.3g}", of_total(row.fpr))),
            lambda row: {
                "fpr_realised": row.fpr.value,
                **_limits("fpr", row.fpr.interval),
                "false_accepts": row.fpr.events,
                "different": row.fpr.total,
            },
        ),
        Column(
            _INTERVAL,
            _if_resolvable(lambda row: words.limits(row.fpr.interval, form=".2g")),
            terminal=False,
        ),
        Column(
            "how the TPR’s interval is made",
            lambda row: how_cell(row.tpr.interval),
            words=True,
            terminal=False,
        ),
    ]
    shown = [estimate for estimate in result.points if estimate.point.resolvable]
    remarks = [
        *(f"TPR: {text}" for text in words.assumptions(row.tpr.interval for row in shown)),
        *(f"FPR: {text}" for text in words.assumptions(row.fpr.interval for row in shown)),
    ]
    return Table("Operating points", columns, result.points, remarks)


def thresholds_table(name: str, result: VerificationResult) -> Table[TprEstimate]:
    """Return the threshold of every target FPR that the pairs can resolve."""

    def limits(row: TprEstimate) -> Cell:
        text = words.limits(
            row.threshold.interval, form=lambda end: words.threshold(float(f"{end:.4g}"))
        )
        return Cell(text or words.NOTHING, row.threshold.remark)

    columns: list[Column[TprEstimate]] = [
        Column("", data=lambda row: name, key="result"),
        Column("target FPR", _target, _target, "target_fpr"),
        Column("threshold", _threshold, lambda row: _data("threshold", row.threshold)),
        Column(_INTERVAL, limits),
        Column(_HOW, lambda row: how_cell(row.threshold.interval), words=True, terminal=False),
    ]
    rows = [estimate for estimate in result.points if estimate.point.resolvable]
    assumed = words.assumptions(row.threshold.interval for row in rows)
    return Table("Thresholds for deployment", columns, rows, [THRESHOLD_ADVICE, *assumed])


def folds_table(name: str, result: VerificationResult) -> Table[tuple[int, float, float]] | None:
    """Return accuracy and threshold of every fold; None without folds."""
    if result.accuracy is None:
        return None
    kfold = result.accuracy.kfold
    columns: list[Column[tuple[int, float, float]]] = [
        Column("", data=lambda row: name, key="result"),
        Column("fold", lambda row: str(row[0]), lambda row: row[0], "fold"),
        Column("accuracy", lambda row: words.percent(row[1]), lambda row: row[1], "accuracy"),
        Column(
            "threshold of the others",
            lambda row: words.threshold(row[2]),
            lambda row: row[2],
            "threshold",
        ),
    ]
    rows = list(zip(range(1, kfold.folds + 1), kfold.accuracies, kfold.thresholds, strict=True))
    caption = f"Accuracy by fold: mean {words.percent(kfold.mean)} {spread(result.accuracy)}"
    return Table(caption, columns, rows)


# --- pairs ------------------------------------------------------------------------------------


def hardest_table(
    name: str, result: VerificationResult, picture: Picture | None = None, *, mated: bool
) -> Table[tuple[int, int]]:
    """Return the pairs of one kind whose scores err most, worst first; equal ones in their order.

    Rows are (rank, pair).
    """
    pairs = np.flatnonzero((result.pairs.issame == mated) & ~np.isnan(result.scores))
    scores = result.scores[pairs]
    order = np.argsort(scores if mated else -scores, kind="stable")[:HARDEST]
    rows = list(enumerate(pairs[order].tolist(), start=1))
    rank: Column[tuple[int, int]] = Column("", data=lambda row: row[0], key="rank")
    first, *columns = _pair_columns(name, result, lambda row: row[1], picture)
    caption = f"{len(rows)} " + ("lowest mated scores" if mated else "highest non-mated scores")
    return Table(caption, [first, rank, *columns], rows)


def failures_table(
    name: str, result: VerificationResult, most: int | None = None
) -> Table[Failure]:
    """Return the pairs without a score; of many the first ``most``."""
    rows = result.failures[:most]
    *columns, _ = _pair_columns(name, result, lambda failure: failure.pair, kind=True)
    columns += [
        Column("", data=lambda failure: None, key="score"),
        Column("reason", lambda row: row.reason, lambda row: row.reason, "reason", words=True),
    ]
    more = len(result.failures) - len(rows)
    remarks = [f"And {more:,} more, all in tables/failures.csv."] if more else []
    count = words.counted(len(result.failures), "pair")
    return Table(f"{count} without a score, left out of all rates", columns, rows, remarks)


def scores_table(name: str, result: VerificationResult) -> Table[int]:
    """Return every pair with its score, for a file."""
    columns = _pair_columns(name, result, lambda pair: pair)
    return Table("Scores", columns, range(len(result.pairs)))


def _pair_columns(
    name: str,
    result: VerificationResult,
    pair_of: Callable[[Any], int],
    picture: Picture | None = None,
    *,
    kind: bool = False,
) -> list[Column[Any]]:
    """Return what identifies a pair, and its score; ``kind`` shows its label too."""

    def item(side: str, row: Any) -> str:
        index = int(getattr(result.pairs, side)[pair_of(row)])
        return str(index) if result.items is None else str(result.items[index])

    def cell(side: str, row: Any) -> Cell:
        face = picture and picture(int(getattr(result.pairs, side)[pair_of(row)]))
        # Only a picture that was asked for can be missed.
        missed = "its picture cannot be shown" if face == "" else ""
        return Cell(item(side, row), missed, picture=face or "")

    def issame(row: Any) -> bool:
        return bool(result.pairs.issame[pair_of(row)])

    def score(row: Any) -> np.floating | None:
        # As float32, whose shortest text gives the same number.
        value = result.scores[pair_of(row)]
        return None if np.isnan(value) else value

    def label(row: Any) -> str:
        return "mated" if issame(row) else "non-mated"

    return [
        Column("", data=lambda row: name, key="result"),
        Column("pair", lambda row: str(pair_of(row)), pair_of, "pair"),
        Column("kind", label if kind else None, issame, "issame", words=True),
        *(
            Column(
                f"{side} image",
                partial(cell, side),
                partial(item, side),
                side,
                words=True,
                terminal=not kind,
            )
            for side in ("first", "second")
        ),
        Column("score", lambda row: f"{score(row):.4g}", score, "score"),
    ]


# --- several results --------------------------------------------------------------------------


def summary_table(results: Mapping[str, VerificationResult]) -> Table[Any]:
    """Return the main figures of all results, a row each."""
    targets = dict.fromkeys(point.point.target for one in results.values() for point in one.points)
    Row = tuple[str, VerificationResult]

    def accuracy(row: Row) -> Cell:
        estimate = row[1].accuracy
        return Cell(*_share(estimate)) if estimate else Cell(words.NOTHING)

    def tpr(target: str, row: Row) -> Cell:
        points = {estimate.point.target: estimate for estimate in row[1].points}
        if target not in points:
            return Cell(words.NOTHING)
        estimate = points[target].tpr
        if estimate.value is None:
            return Cell(_UNRESOLVED, f"N = {row[1].non_mated:,}")
        lines = words.percent_limits(estimate.interval), estimate.remark
        return Cell(words.percent(estimate.value), "\n".join(filter(None, lines)))

    columns: list[Column[Row]] = [
        Column("result", lambda row: Cell(row[0], f"{pairs_of(row[1])}, {subjects_of(row[1])}")),
        Column("accuracy", accuracy),
        *(
            Column(
                # A target does not fall apart at its minus.
                f"TPR@FPR={target}".replace("-", "\N{NON-BREAKING HYPHEN}"),
                partial(tpr, target),
            )
            for target in targets
        ),
        Column("AUC", lambda row: Cell(*_number(row[1].auc, ".4f", ".4f"))),
        Column("EER", lambda row: Cell(*_share(row[1].eer))),
        Column("failures", lambda row: f"{len(row[1].failures):,}"),
    ]
    remarks = [
        f"{name}: intervals: {result.basis}." if len(results) > 1 else f"Intervals: {result.basis}."
        for name, result in results.items()
    ]
    caption = "Figures with 95 % intervals; pairs that failed to acquire"
    return Table(caption, columns, list(results.items()), remarks)


def comparison_table(comparison: Comparison) -> Table[PairedFigure]:
    """Return the differences between two results on the same pairs."""

    def value(row: PairedFigure, estimate: Estimate) -> Cell:
        if estimate.value is None:
            return Cell(_UNRESOLVED)
        known = row.difference.value is not None
        return Cell(words.percent(estimate.value), of_total(estimate) if known else "")

    columns: list[Column[PairedFigure]] = [
        Column("", data=lambda row: {"first": comparison.first, "second": comparison.second}),
        Column("figure", lambda row: row.figure, lambda row: row.figure, "figure"),
        Column("A", lambda row: value(row, row.first), lambda row: row.first.value, "first_value"),
        Column(
            "B", lambda row: value(row, row.second), lambda row: row.second.value, "second_value"
        ),
        Column("B − A, points", difference_points, lambda row: _data("difference", row.difference)),
        Column(_INTERVAL, difference_limits),
        Column(
            _HOW,
            lambda row: how_cell(row.difference.interval, "" if row.reliable else "few errors"),
            words=True,
            terminal=False,
        ),
        Column(
            "",
            data=lambda row: {
                "first_events": row.first.events,
                "second_events": row.second.events,
                "comparisons": row.first.total,
            },
        ),
    ]
    remarks = [
        f"On the {pairs_of(comparison)} with a score in both; {comparison.left_out:,} pairs are "
        "left out. The difference is in points of percent. Intervals of the differences: "
        f"{comparison.basis}.",
        *words.assumptions(row.difference.interval for row in comparison.rows),
        *map(words.sentence, comparison.notes),
    ]
    caption = f"A: {comparison.first}; B: {comparison.second}"
    return Table(caption, columns, comparison.rows, remarks)


def difference_points(row: PairedFigure) -> str:
    """Return a difference in points of percent."""
    value = row.difference.value
    return words.number(None if value is None else 100 * value, "+.2f")


def difference_limits(row: PairedFigure) -> str:
    """Return the interval of a difference in points of percent."""
    if row.difference.value is None:
        return words.NOTHING
    return words.limits(row.difference.interval, 100, "+.2f") or "no interval"


# --- 1:N and preprocessing --------------------------------------------------------------------


def identification_table(result: IdentificationResult) -> Table[Any]:
    """Return the figures of 1:N by gallery, and their means where there are several."""
    Row = tuple[str, str, Estimate, str]
    rows: list[Row] = []
    for gallery in result.galleries:
        for point in gallery.points:
            counts = f"{of_total(point.tpir)} at {of_total(point.fpir)}"
            if point.tpir.value is None:
                counts = f"N={point.fpir.total}"
            rows.append((f"TPIR@FPIR={point.point.target}", gallery.name, point.tpir, counts))
        for rank, rate in gallery.ranks.items():
            rows.append((f"rank {rank}", gallery.name, rate, of_total(rate)))
    if len(result.galleries) > 1:
        for target, mean in result.tpir.items():
            rows.append((f"TPIR@FPIR={target}", "mean", mean, ""))
        for rank, mean in result.rank_rates.items():
            rows.append((f"rank {rank}", "mean", mean, ""))
    columns: list[Column[Row]] = [
        Column("", data=lambda row: describe_result(result), key="result"),
        Column("figure", lambda row: row[0], lambda row: row[0], "figure"),
        Column("gallery", lambda row: row[1], lambda row: row[1], "gallery", words=True),
        Column("value", lambda row: _rate_cell(row[2]), lambda row: _data("value", row[2])),
        Column(_INTERVAL, lambda row: words.percent_limits(row[2].interval) or words.NOTHING),
        Column(
            "counts",
            lambda row: row[3],
            lambda row: {"events": row[2].events, "searches": row[2].total},
        ),
    ]
    return Table(f"{describe_result(result)}: 1:N identification", columns, rows)


def trials_table(trials: Trials) -> Table[Any]:
    """Return the ways of preprocessing, the best first."""
    rows = []
    for row in trials.rows:
        given, behind = row.preprocessing, row.behind
        limits = words.limits(behind.interval, form=".3f")
        rows.append(
            (
                f"{given.channels} {given.mean:g} {given.std:g}",
                words.percent(row.accuracy.value),
                f"{row.auc:.5f}",
                f"{row.d_prime:.3f}",
                limits and f"{behind.value:.3f} {limits}",
                "assumed" if given == trials.assumed else "",
            )
        )
    caption = f"ways of preprocessing on {trials.pairs:,} pairs of {trials.bench}, no flip"
    headings = ("channels, mean, std", "accuracy", "AUC", "d′", "behind the best", "")
    remark = (
        "d′: difference of the mean scores of same and different pairs over their pooled SD; "
        f"{trials.basis}"
    )
    return text_table(caption, headings, rows, words=("",), remarks=[remark])


# --- cells ------------------------------------------------------------------------------------


def how_cell(interval: Interval | None, remark: str = "") -> Cell:
    """Say how an interval is made, with its effective number of comparisons."""
    if interval is None:
        return Cell(words.NOTHING)
    method = interval.method
    if interval.effective is not None:
        name = "" if method.endswith("effective n") else ", effective n"
        method += f"{name} = {interval.effective:,.0f}"
    if isinstance(interval, Bound):
        alone = f"{interval.if_independent:.2g} if all comparisons were independent"
        remark = f"{remark}; {alone}" if remark else alone
    return Cell(method, remark)


def _share(estimate: Estimate) -> tuple[str, str]:
    limits = words.percent_limits(estimate.interval) or words.NOTHING
    return words.percent(estimate.value), limits


def _number(estimate: Estimate, form: str, ends: str = "") -> tuple[str, str]:
    finite = estimate.value is not None and math.isfinite(estimate.value)
    value = words.number(estimate.value if finite else None, form)
    return value, words.limits(estimate.interval, form=ends) or words.NOTHING


def _rate_cell(estimate: Estimate) -> Cell:
    if estimate.value is None:
        return Cell(_UNRESOLVED, estimate.remark)
    return Cell(words.percent(estimate.value), estimate.remark)


def _target(row: TprEstimate) -> str:
    return row.point.target


def _threshold(row: TprEstimate) -> str:
    return words.threshold(row.point.threshold)


def _if_resolvable(
    show: Callable[[TprEstimate], Cell | str],
) -> Callable[[TprEstimate], Cell | str]:
    return lambda row: show(row) if row.point.resolvable else words.NOTHING


def _data(name: str, estimate: Estimate) -> dict[str, Any]:
    return {name: estimate.value, **_limits(name, estimate.interval)}


def _limits(name: str, interval: Interval | None) -> dict[str, Any]:
    facts = {"low": "low", "high": "high", "interval": "method", "assumption": "assumption"}
    return {f"{name}_{key}": getattr(interval, fact, None) for key, fact in facts.items()}
