"""The figures of verification as tidy tables, which terminal, page, CSV and JSON show alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from facerec.report.documents import plain
from facerec.report.estimate import Estimate
from facerec.report.tidy import ALIKE, figure_row, records, tidy
from facerec.verification.result import (
    AccuracyEstimate,
    PairedComparison,
    TprEstimate,
    VerificationResult,
)

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, object]


def result_figures(result: VerificationResult, bench: str | None = None) -> pd.DataFrame:
    """Return all figures of one result, a row each; ``bench`` is its name if it has another."""
    return tidy({"bench": bench or result.name, **row} for row in _rows(result))


def result_json(result: VerificationResult) -> dict[str, Any]:
    """Return `VerificationResult.to_json` with all figures as rows."""
    return {**result.to_json(), "figures": plain(records(result_figures(result)))}


def comparison_figures(comparison: PairedComparison) -> pd.DataFrame:
    """Return every figure of both results and their difference, second minus first."""
    rows, bench = [], f"A: {comparison.first}; B: {comparison.second}"
    for row in comparison.rows:
        figure, _, at = row.figure.partition("=")
        rows.append(figure_row(figure, row.first, at, bench=bench, model="A"))
        rows.append(figure_row(figure, row.second, at, bench=bench, model="B"))
        change = row.difference
        if change.value is not None:
            few = "" if row.reliable else "few errors"
            few = change.remark or few
            change = Estimate(change.value, change.interval, remark=few)
            name = f"difference of {figure}"
            rows.append(figure_row(name, change, at, bench=bench, model="B − A"))
    return tidy(rows)


def _rows(result: VerificationResult) -> Iterator[Row]:
    if result.accuracy is not None:
        yield _accuracy("accuracy", result.accuracy)
    if result.compatible is not None:
        yield _accuracy("accuracy as insightface’s", result.compatible)
    for point in result.points:
        yield from _point(point)
    yield figure_row("AUC", result.auc)
    yield figure_row("EER on the ROC hull", result.eer)
    for name, figure in result.metrics.items():
        yield figure_row(name, figure)
    total = (failed := len(result.failures)) + result.mated + result.non_mated
    yield figure_row("failures to acquire", Estimate(failed / total, None, failed, total))


def _accuracy(name: str, accuracy: AccuracyEstimate) -> Row:
    spread = f"± {100 * accuracy.kfold.sem:.2f} SEM, ± {100 * accuracy.kfold.std:.2f} std"
    said = Estimate(accuracy.value, accuracy.interval, accuracy.events, accuracy.total, spread)
    return figure_row(f"{name}, {accuracy.kfold.folds} folds", said)


def _point(point: TprEstimate) -> Iterator[Row]:
    target = point.point.target
    yield figure_row("TPR@FPR", point.tpr, target)
    if point.tpr.value is not None:
        if point.alike is not None:
            yield figure_row(f"TPR@FPR{ALIKE}", point.alike, target)
        yield figure_row("realised FPR", point.fpr, target)
        yield figure_row("threshold", point.threshold, target)
