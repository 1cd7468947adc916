"""Rows of a verification, which terminal, page, CSV and JSON show alike; see `report.tidy`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from facerec.report.documents import plain
from facerec.report.estimate import Estimate
from facerec.report.tidy import figure_row, records, tidy
from facerec.verification.result import (
    AccuracyEstimate,
    PairedComparison,
    VerificationResult,
)

if TYPE_CHECKING:
    import pandas as pd

ACCURACY, TPR, AUC = "accuracy", "TPR@FPR", "AUC"


def result_rows(result: VerificationResult, bench: str | None = None) -> pd.DataFrame:
    """Return all figures of one result, a row each; ``bench`` is its name if it has another."""
    found = _estimates(result)
    return tidy(figure_row(*each, bench=bench or result.name) for each in found)


def result_json(result: VerificationResult) -> dict[str, Any]:
    """Return `VerificationResult.to_json` with all figures as rows."""
    return {**result.to_json(), "figures": plain(records(result_rows(result)))}


def comparison_rows(comparison: PairedComparison) -> pd.DataFrame:
    """Return every figure of both results and their difference, second minus first."""
    rows, bench = [], f"A: {comparison.first}; B: {comparison.second}"
    for row in comparison.rows:
        for model, found in (("A", row.first), ("B", row.second)):
            rows.append(figure_row(row.figure, found, row.target, bench=bench, model=model))
        change = row.difference
        if change.value is not None:
            change = replace(change, remark=change.remark or "few errors" * (not row.reliable))
            keys = {"bench": bench, "model": "B − A"}
            rows.append(figure_row(row.figure, change, row.target, kind="change", **keys))
    return tidy(rows)


def _estimates(result: VerificationResult) -> Iterator[tuple[str, Estimate, str]]:
    """Yield name, figure and target."""
    if result.accuracy is not None:
        yield ACCURACY, _of_folds(result.accuracy), ""
    if result.compatible is not None:
        yield f"{ACCURACY} as insightface’s", _of_folds(result.compatible), ""
    for point in result.points:
        yield from point.figures()
    yield AUC, result.auc, ""
    yield "EER on the ROC hull", result.eer, ""
    for name, figure in result.metrics.items():
        yield name, figure, ""
    total = (failed := len(result.failures)) + result.mated + result.non_mated
    yield "failures to acquire", Estimate(failed / total, None, failed, total), ""


def _of_folds(found: AccuracyEstimate) -> Estimate:
    """Return an accuracy that says how it spreads over its folds."""
    folds = found.kfold
    spread = f"± {100 * folds.sem:.2f} SEM, ± {100 * folds.std:.2f} std"
    return replace(found, remark=f"{folds.folds} folds, {spread}")
