"""Two results on the same pairs: differences of their figures over the same subjects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.report.tidy import figure_row, tidy
from facerec.statistics.clustered import paired_difference
from facerec.statistics.influences import Influence, ScoredComparisons
from facerec.verification.bench import dependence
from facerec.verification.evaluation import held_out
from facerec.verification.result import PairedComparison, VerificationResult

Scores = NDArray[np.floating]


def compare(first: VerificationResult, second: VerificationResult) -> PairedComparison:
    """Return the differences, second minus first, between two results on the same pairs.

    Every figure is computed anew on the pairs that have a score in both. Intervals are those of
    `facerec.statistics.clustered.paired_difference`, by subjects where they are known, else by
    pairs: what both results share cancels out. FPR targets and subjects are those of the first
    result.

    Raises:
        MetricError: the pairs differ, or those with two scores are of one class only.
    """
    _check_pairs(first, second)
    notes: list[str] = []
    valid = ~(np.isnan(first.scores) | np.isnan(second.scores))
    kept = first.pairs[valid]
    same, folds = kept.issame, None if second.pairs.folds is None else kept.folds
    left_out = int((~valid & ~first.pairs.itself).sum())
    if left_out:
        notes.append(
            f"{left_out} of {valid.size} pairs have no score in one result or in both and are "
            "left out of both, so figures may differ from those of the single results"
        )
    targets = [estimate.point.target for estimate in first.points]
    (scored, number), (changed, _) = (
        kept.comparisons(result.scores[valid]) for result in (first, second)
    )
    one, other = (figures_of(side, folds, targets) for side in (scored, changed))
    rows = []
    bench = f"A: {first.title}; B: {second.title}"
    for (name, target), (a, influence, reliable) in one.items():
        b, against, _ = other[name, target]
        for model, estimate in (("A", a), ("B", b)):
            rows.append(figure_row(name, estimate, target, bench=bench, model=model))
        if influence is not None and against is not None:
            value = against[0] - influence[0]
            figure = scored.figure((value, against[1] - influence[1]))
            interval, remark = None, "too few subjects for an interval"
            if not math.isinf(figure.jackknife):
                interval = paired_difference([value], figure.changes, noise=figure.noise)
                few = "" if reliable else "few errors"
                remark = few if interval else "no subject makes a difference"
            change = Estimate(value, interval, remark=remark, unit=a.unit)
            rows.append(figure_row(name, change, target, kind="change", bench=bench, model="B − A"))
    notes += [f"B: {note}" for note in second.notes if note not in first.notes]
    return PairedComparison(
        first=first.title,
        second=second.title,
        mated=int(same.sum()),
        non_mated=int((~same).sum()),
        left_out=left_out,
        rows=tidy(rows),
        subjects=number,
        basis=dependence(number),
        notes=tuple(notes),
    )


def figures_of(
    scored: ScoredComparisons, folds: NDArray[np.int64] | None, targets: Sequence[str]
) -> dict[tuple[str, str], tuple[Estimate, Influence | None, bool]]:
    """Return accuracy, TPR at every target, AUC and EER, their influences, and whether reliable."""
    found: dict[tuple[str, str], tuple[Estimate, Influence | None, bool]] = {}
    if folds is not None:
        _, right = held_out(scored, folds)
        events, total = int(right.sum()), right.size
        accuracy = Estimate(events / total, None, events, total)
        found["accuracy", ""] = accuracy, scored.mean(right), True
    for point in map(scored.roc.tpr_at_fpr, targets):
        few, influence = f"{point.non_mated:,} non-mated pairs", None
        tpr = Estimate(None, remark=few, unresolved=True)
        if point.resolvable:
            tpr = Estimate(point.tpr, None, point.true_accepts, point.mated)
            influence = scored.tpr(point)
        found["TPR@FPR", point.target] = tpr, influence, point.reliable
    auc, eer = scored.auc(), scored.eer()
    found["AUC", ""] = Estimate(auc[0], unit="area"), auc, True
    found["EER", ""] = Estimate(eer[0]), eer, True
    return found


def _check_pairs(first: VerificationResult, second: VerificationResult) -> None:
    """Refuse results on different pairs, or on pairs in another order."""
    one, other = first.pairs, second.pairs
    advice = "verify both models on the same bench, with its pairs in the same order"
    where = f"{first.title} and {second.title}"
    if len(one) != len(other):
        raise MetricError(f"{where}: one has {len(one)} pairs, one {len(other)}; {advice}")
    # Subjects are numbered by their names, or as they first occur: equal where the lists are.
    names = (("image", first.items, second.items), ("subject", one.subjects, other.subjects))
    facts: list[tuple[str, Any, Any]] = [("label", one.issame, other.issame)]
    for what, left, right in names:
        if left is not None and right is not None:
            facts.append((f"first {what}", left[one.first], right[other.first]))
            facts.append((f"second {what}", left[one.second], right[other.second]))
            break
    if one.folds is not None and other.folds is not None:
        facts.append(("fold", one.folds, other.folds))
    for what, left, right in facts:
        unequal = np.flatnonzero(left != right)
        if unequal.size:
            raise MetricError(
                f"{where}: {unequal.size} of {len(one)} pairs have another {what} in the second "
                f"result, the first is pair {unequal[0]}; {advice}"
            )
