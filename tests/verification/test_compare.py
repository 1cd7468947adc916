from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.plain_rates import auc, eer_rocch, tpr_at_fpr
from helpers.toy_results import make_result

from facerec.base.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.report.tidy import estimate_of, records
from facerec.statistics.kfold import kfold_accuracy
from facerec.verification import VerificationResult
from facerec.verification.compare import compare
from facerec.verification.result import PairedComparison


def estimates(comparison: PairedComparison, figure: str, target: str = "") -> list[Estimate]:
    """Return a figure of both results, and their difference."""
    rows = comparison.rows[(comparison.rows.figure == figure) & (comparison.rows.target == target)]
    assert rows.model.tolist() == ["A", "B", "B − A"]
    return [*map(estimate_of, records(rows))]


def rescored(result: VerificationResult, scores: np.ndarray) -> VerificationResult:
    return replace(result, scores=scores)


def two(**flags: object) -> tuple[VerificationResult, VerificationResult]:
    first = make_result(**flags)  # type: ignore[arg-type]
    second = make_result(noise=2, strength=1.6, **flags)  # type: ignore[arg-type]
    return first, second


def test_differences_are_those_of_the_figures_on_shared_pairs() -> None:
    first, second = two()
    scores = [first.scores.copy(), second.scores.copy()]
    scores[0][[3, 40]] = np.nan
    scores[1][[3, 77, 150]] = np.nan
    first, second = rescored(first, scores[0]), rescored(second, scores[1])
    found = compare(first, second)
    kept = np.ones(200, bool)
    kept[[3, 40, 77, 150]] = False
    same = first.pairs.issame[kept]
    assert (found.left_out, found.mated, found.non_mated) == (4, same.sum(), (~same).sum())
    assert len(found.notes) == 1 and found.notes[0].startswith("4 of 200 pairs have no score in")
    values = []
    for result in (first, second):
        positives, negatives = (result.scores[kept & (first.pairs.issame == s)] for s in (1, 0))
        accuracy = kfold_accuracy(result.scores[kept], same, first.pairs.folds[kept])
        point = tpr_at_fpr(positives, negatives, "1e-1")
        share = accuracy.correct / accuracy.pairs
        values.append({("accuracy",): share, ("TPR@FPR", "1e-1"): point.tpr})
        values[-1] |= {("AUC",): auc(positives, negatives)}
        values[-1] |= {("EER",): eer_rocch(positives, negatives)}
    for named, value in values[0].items():
        one, other, difference = estimates(found, *named)
        assert (one.value, other.value) == (value, values[1][named])
        assert difference.value == values[1][named] - value
        assert difference.low <= difference.value <= difference.high
    first = estimates(found, "accuracy")[0]
    assert first.events / first.total == values[0]["accuracy",]


@pytest.mark.parametrize("persons", [40, None])
def test_order_turns_the_signs_alone(persons: int | None) -> None:
    first, second = two(persons=persons)
    forth, back = compare(first, second), compare(second, first)
    changes = [each.rows[each.rows.kind == "change"] for each in (forth, back)]
    for a, b in zip(*map(records, changes), strict=True):
        assert (b["value"], b["low"], b["high"]) == (-a["value"], -a["high"], -a["low"])


@pytest.mark.parametrize("persons", [40, None])
def test_figures_of_the_order_alone_do_not_differ(persons: int | None) -> None:
    first = make_result(60, persons=persons)
    found = compare(first, rescored(first, first.scores.astype(np.float64) ** 3 + 2))
    for named in (("TPR@FPR", "1e-1"), ("AUC",), ("EER",)):
        *_, difference = estimates(found, *named)
        assert (difference.value, difference.interval) == (0, None) and difference.remark
    assert (found.subjects is None) == ("unknown" in found.basis) == (persons is None)


def test_the_first_pair_that_differs_is_named() -> None:
    first, second = two()
    pairs = second.pairs
    flipped, moved, shifted = pairs.issame.copy(), pairs.second.copy(), pairs.folds.copy()
    flipped[[17, 30]] ^= True
    moved[5] += 1
    shifted[9] = 4
    cases: list[tuple[str, dict[str, Any]]] = [
        ("2 of 200 pairs have another label .* the first is pair 17", {"issame": flipped}),
        ("1 of 200 pairs have another second image .* pair 5", {"second": moved}),
        ("1 of 200 pairs have another fold .* pair 9", {"folds": shifted}),
    ]
    for sentence, change in cases:
        with pytest.raises(MetricError, match=sentence):
            compare(first, replace(second, pairs=replace(pairs, **change)))


def test_images_are_known_by_their_ids_not_their_numbers() -> None:
    first, second = two()
    order = np.random.default_rng(0).permutation(second.items.size)
    place = np.argsort(order)
    moved = {name: place[getattr(second.pairs, name)] for name in ("first", "second")}
    pairs = replace(second.pairs, **moved, subjects=second.pairs.subjects[order])
    found = compare(first, replace(second, pairs=pairs, items=second.items[order]))
    assert found.rows.equals(compare(first, second).rows)


def test_two_subjects_are_too_few_for_an_interval() -> None:
    found = compare(*two(persons=2))
    *_, area = estimates(found, "AUC")
    assert area.value is not None and area.interval is None and "too few subjects" in area.remark
