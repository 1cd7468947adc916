"""Rows of a verification, which terminal, page, CSV and JSON show alike; see `report.tidy`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from facerec.report.documents import plain
from facerec.report.estimate import Estimate
from facerec.report.tidy import figure_row, records, tidy
from facerec.verification.result import AccuracyEstimate, VerificationResult

if TYPE_CHECKING:
    import pandas as pd

ACCURACY, TPR, AUC = "accuracy", "TPR@FPR", "AUC"


def result_rows(result: VerificationResult, bench: str | None = None) -> pd.DataFrame:
    """Return all figures of one result, a row each; ``bench`` is its name if it has another."""
    found = _estimates(result)
    return tidy(figure_row(*each, bench=bench or result.name) for each in found)


def result_json(result: VerificationResult) -> dict[str, Any]:
    """Return what was compared and all figures as rows, as JSON types.

    A value that is not finite is the text "inf" or "-inf" (as a threshold: accept all), or null.
    """
    folds = {ACCURACY: result.accuracy, "insightface": result.compatible}
    document = {
        "bench": result.name,
        "pairs": {
            "mated": result.mated,
            "non_mated": result.non_mated,
            "failures": result.failures,
        },
        "subjects": result.subjects,
        "rows": records(result_rows(result)),
        "folds": {name: found.kfold for name, found in folds.items() if found is not None},
        "flip": result.flip,
        "align": result.align,
        "score": result.score,
        "intervals": result.basis,
        "model": result.model,
        "source": result.source,
        "notes": result.notes,
    }
    return dict(plain(document))


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
