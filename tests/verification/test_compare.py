from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.examples import examples
from helpers.plain_rates import auc, eer_rocch
from helpers.toy_results import make_result
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import INDEPENDENT
from facerec.statistics.kfold import kfold_accuracy
from facerec.statistics.rates import tpr_at_fpr
from facerec.verification import Pairs, VerificationResult, evaluate
from facerec.verification.compare import Comparison, PairedFigure, compare, describe_result


def row(comparison: Comparison, figure: str) -> PairedFigure:
    return next(row for row in comparison.rows if row.figure == figure)


def rescored(result: VerificationResult, scores: np.ndarray) -> VerificationResult:
    return replace(result, scores=scores)


def two(**flags: object) -> tuple[VerificationResult, VerificationResult]:
    first = make_result(replicates=0, **flags)  # type: ignore[arg-type]
    second = make_result(replicates=0, noise=2, strength=1.6, **flags)  # type: ignore[arg-type]
    return first, second


def test_differences_are_those_of_the_figures_on_shared_pairs() -> None:
    first, second = two()
    scores = [first.scores.copy(), second.scores.copy()]
    scores[0][[3, 40]] = np.nan
    scores[1][[3, 77, 150]] = np.nan
    first, second = rescored(first, scores[0]), rescored(second, scores[1])
    found = compare(first, second, replicates=40)
    kept = np.ones(200, bool)
    kept[[3, 40, 77, 150]] = False
    same = first.pairs.issame[kept]
    assert (found.left_out, found.mated, found.non_mated) == (4, same.sum(), (~same).sum())
    assert found.notes == (
        "4 of 200 pairs have no score in one result or in both and are left out of both, so "
        "figures may differ from those of the single results",
    )
    assert first.pairs.folds is not None
    values = []
    for result in (first, second):
        positives, negatives = (result.scores[kept & (first.pairs.issame == s)] for s in (1, 0))
        accuracy = kfold_accuracy(result.scores[kept], same, first.pairs.folds[kept])
        point = tpr_at_fpr(positives, negatives, "1e-1")
        values.append(
            {
                "accuracy": accuracy.correct / accuracy.pairs,
                "TPR@FPR=1e-1": point.tpr,
                "AUC": auc(positives, negatives),
                "EER": eer_rocch(positives, negatives),
            }
        )
    for figure, value in values[0].items():
        there = row(found, figure)
        assert (there.first.value, there.second.value) == (value, values[1][figure])
        difference = there.difference
        assert difference.value == values[1][figure] - value
        assert difference.low is not None and difference.high is not None
        assert difference.low <= difference.value <= difference.high
    first = row(found, "accuracy").first
    assert first.events is not None and first.total is not None
    assert first.events / first.total == values[0]["accuracy"]


def test_what_cannot_be_resolved_is_no_number() -> None:
    found = compare(*two(), replicates=10)
    fine = row(found, "TPR@FPR=1e-3")
    assert (fine.first.value, fine.second.value, fine.difference) == (None, None, Estimate(None))
    assert not row(found, "TPR@FPR=1e-1").reliable


@pytest.mark.parametrize("persons", [40, None])
def test_order_turns_the_signs_alone(persons: int | None) -> None:
    first, second = two(persons=persons)
    forth, back = compare(first, second, replicates=60), compare(second, first, replicates=60)
    for a, b in zip(forth.rows, back.rows, strict=True):
        if a.difference.value is None:
            continue
        assert b.difference.value == -a.difference.value
        one, other = a.difference.interval, b.difference.interval
        assert one is not None and other is not None
        assert (other.low, other.high) == (-one.high, -one.low)


@pytest.mark.parametrize("persons", [40, None])
@settings(max_examples=examples(10), deadline=None)
@given(power=st.sampled_from([3, 5]), shift=st.integers(-3, 3), seed=st.integers(0, 99))
def test_resamples_are_joint(persons: int | None, power: int, shift: int, seed: int) -> None:
    # Figures of the order of scores are equal in every replicate only if both are drawn alike.
    first = make_result(60, persons=persons, replicates=0)
    moved = first.scores.astype(np.float64) ** power + shift
    found = compare(first, rescored(first, moved), replicates=20, seed=seed)
    for figure in ("TPR@FPR=1e-1", "AUC", "EER"):
        there = row(found, figure)
        assert there.difference == Estimate(0)
    assert "the difference is the same in all 20 resamples" in found.notes[-1]


def test_persons_are_resampled_where_they_are_known() -> None:
    first, second = two()
    found = compare(first, second, replicates=30)
    assert found.subjects == 40
    assert found.basis == "30 joint bootstraps over 40 subjects"
    interval = row(found, "AUC").difference.interval
    assert interval is not None and interval.method.startswith("vertex bootstrap")
    again, other = compare(first, second, 30), compare(first, second, 30, seed=1)
    assert again == found
    assert row(other, "AUC").difference.interval != interval


def test_a_pair_counted_many_times_says_no_more_than_once() -> None:
    first, second = two()
    index = np.tile(np.arange(200), 9)
    wide = [
        replace(
            result,
            scores=result.scores[index],
            pairs=Pairs(
                result.pairs.first[index],
                result.pairs.second[index],
                result.pairs.issame[index],
                result.pairs.subjects,
            ),
        )
        for result in (first, second)
    ]
    once, often = compare(first, second, 100), compare(*wide, 100)  # type: ignore[arg-type]
    assert row(often, "AUC").difference.interval == row(once, "AUC").difference.interval
    # Without persons nothing tells that the copies depend on each other.
    blind = [replace(r, pairs=replace(r.pairs, subjects=None)) for r in wide]
    naive = row(compare(*blind, 100), "AUC").difference.interval  # type: ignore[arg-type]
    known = row(often, "AUC").difference.interval
    assert naive is not None and known is not None
    assert naive.high - naive.low < 0.6 * (known.high - known.low)


def test_pairs_are_resampled_where_persons_are_unknown() -> None:
    first, second = two(persons=None)
    found = compare(first, second, replicates=50, seed=7)
    assert found.subjects is None
    assert found.basis == f"50 joint bootstraps over pairs, {INDEPENDENT} (subjects are unknown)"
    # The same, pair by pair.
    generator = np.random.default_rng(7)
    same = first.pairs.issame
    drawn: dict[str, list[float]] = {"accuracy": [], "TPR@FPR=1e-1": [], "AUC": [], "EER": []}
    rights = []
    for result in (first, second):
        assert result.accuracy is not None and result.pairs.folds is not None
        thresholds = np.array(result.accuracy.kfold.thresholds)[result.pairs.folds]
        rights.append((result.scores >= thresholds) == same)
    for _ in range(50):
        rows = [
            np.flatnonzero(same == label)[generator.integers(100, size=100)]
            for label in (True, False)
        ]
        figures = []
        for result, right in zip((first, second), rights, strict=True):
            sets = [result.scores[chosen] for chosen in rows]
            figures.append(
                [
                    right[np.concatenate(rows)].mean(),
                    tpr_at_fpr(*sets, "1e-1").tpr,
                    auc(*sets),
                    eer_rocch(*sets),
                ]
            )
        for values, a, b in zip(drawn.values(), *figures, strict=True):
            values.append(b - a)
    for figure, values in drawn.items():
        interval = row(found, figure).difference.interval
        assert interval is not None
        assert (interval.method, interval.assumption) == (
            "bootstrap over pairs, percentile",
            INDEPENDENT,
        )
        expected = (
            np.quantile(values, 0.025, method="lower"),
            np.quantile(values, 0.975, method="higher"),
        )
        assert (interval.low, interval.high) == pytest.approx(expected, abs=1e-12)


def test_width_over_independent_pairs_is_that_of_the_paired_difference() -> None:
    first, second = two(pairs=2000, persons=None)
    found = row(compare(first, second, replicates=400), "accuracy")
    rights = []
    for result in (first, second):
        assert result.accuracy is not None and result.pairs.folds is not None
        thresholds = np.array(result.accuracy.kfold.thresholds)[result.pairs.folds]
        rights.append((result.scores >= thresholds) == result.pairs.issame)
    difference = rights[1].astype(float) - rights[0]
    assert found.difference.value == pytest.approx(difference.mean(), abs=1e-12)
    interval = found.difference.interval
    assert interval is not None
    width = 2 * 1.96 * difference.std() / np.sqrt(2000)
    assert interval.high - interval.low == pytest.approx(width, rel=0.15)


def test_few_persons_are_not_resampled() -> None:
    scores = np.array([0.9, 0.1, 0.8, 0.3])
    one, other = np.array([0, 0, 2, 1]), np.array([1, 2, 3, 3])
    pairs = Pairs(one, other, np.array([True, False, True, False]), np.array([0, 0, 1, 1]))
    first = evaluate(scores, pairs, name="few", fpr=["0.5"])
    second = evaluate(scores[::-1].copy(), pairs, name="few", fpr=["0.5"])
    found = compare(first, second, replicates=10)
    assert "(only 2 subjects)" in found.basis and found.subjects == 2


def test_labels_that_contradict_the_persons_stand() -> None:
    first, second = two()
    assert first.pairs.subjects is not None
    issame = first.pairs.issame.copy()
    issame[:12] = ~issame[:12]
    pairs = replace(first.pairs, issame=issame)
    found = compare(replace(first, pairs=pairs), replace(second, pairs=pairs), replicates=20)
    assert found.basis == "20 joint bootstraps over 40 subjects"
    assert (found.mated, found.non_mated) == (issame.sum(), (~issame).sum())


@pytest.mark.parametrize("replicates", [0, -1])
def test_no_replicates(replicates: int) -> None:
    with pytest.raises(MetricError, match=f"^{replicates} replicates; a comparison needs"):
        compare(*two(), replicates=replicates)


def test_another_number_of_pairs() -> None:
    first = make_result(200, replicates=0)
    with pytest.raises(MetricError) as error:
        compare(first, make_result(220, replicates=0))
    assert str(error.value) == (
        "toy · toynet and toy · toynet: the first has 200 pairs and the second 220; verify both "
        "models on the same bench"
    )


def test_the_first_pair_that_differs_is_named() -> None:
    first, second = two()
    pairs = second.pairs
    assert pairs.folds is not None and first.items is not None
    flipped, moved, shifted = pairs.issame.copy(), pairs.second.copy(), pairs.folds.copy()
    flipped[[17, 30]] ^= True
    moved[5] += 1
    shifted[9] = 4
    cases = {
        "pair 17 is labelled different in the first result and same in the second (2 of 200": {
            "issame": flipped
        },
        f"pair 5 is with the second image {first.items[moved[5] - 1]} in the first result and "
        f"{first.items[moved[5]]} in the second (1 of 200": {"second": moved},
        "pair 9 is in fold 1 in the first result and 5 in the second (1 of 200": {"folds": shifted},
    }
    for sentence, change in cases.items():
        with pytest.raises(MetricError) as error:
            compare(first, replace(second, pairs=replace(pairs, **change)))
        assert sentence in str(error.value)


def test_images_are_known_by_their_ids_not_their_numbers() -> None:
    first, second = two()
    assert second.items is not None and second.pairs.subjects is not None
    order = np.random.default_rng(0).permutation(second.items.size)
    place = np.argsort(order)
    pairs = replace(
        second.pairs,
        first=place[second.pairs.first],
        second=place[second.pairs.second],
        subjects=second.pairs.subjects[order],
    )
    found = compare(first, replace(second, pairs=pairs, items=second.items[order]), replicates=20)
    assert found.rows == compare(first, second, replicates=20).rows
    unnamed = compare(first, replace(second, pairs=pairs, items=None), replicates=20)
    assert unnamed.rows == found.rows
    assert unnamed.notes == (
        "only one result names its images, so only labels and folds were checked",
    )


def test_persons_tell_pairs_in_another_order() -> None:
    generator = np.random.default_rng(0)
    person = np.concatenate([np.repeat(np.arange(12), 2), generator.permutation(24) % 12])
    first, second = np.arange(0, 48, 2), np.arange(1, 48, 2)
    same = person[first] == person[second]
    assert 12 <= same.sum() < 24

    def result(people: np.ndarray, order: np.ndarray, swap: bool = False) -> VerificationResult:
        sides = (
            people[(second if swap else first)[order]],
            people[(first if swap else second)[order]],
        )
        numbered = np.unique(np.stack(sides, axis=1), return_inverse=True)[1].reshape(-1)
        pairs = Pairs(first, second, same[order], numbered)
        return evaluate(same[order] + generator.normal(size=24), pairs, replicates=0, name="s")

    order = np.arange(24)
    whole = result(person, order)
    # Other names and swapped sides are the same pairs.
    for other in (result(person, order), result(11 - person, order), result(person, order, True)):
        assert compare(whole, other, replicates=40).mated == same.sum()
    moved = order.copy()
    moved[[0, 1]] = [1, 0]
    with pytest.raises(MetricError, match=r"of other subjects .* same order"):
        compare(whole, result(person, moved), replicates=40)
    different = np.flatnonzero(~same)[:2]
    moved = order.copy()
    moved[different] = different[::-1]
    with pytest.raises(MetricError, match=f"pair {different[0]} is of other subjects"):
        compare(whole, result(person, moved), replicates=40)


def test_one_class_left_over() -> None:
    first, second = two()
    scores = second.scores.copy()
    scores[second.pairs.issame] = np.nan
    with pytest.raises(MetricError, match="0 are same and 100 different ones; a comparison needs"):
        compare(first, rescored(second, scores))


def test_a_protocol_without_folds_has_no_accuracy() -> None:
    found = compare(*two(folds=False), replicates=10)
    assert found.rows[0].figure == "TPR@FPR=1e-1"


def test_names() -> None:
    first, second = two()
    assert describe_result(first) == "toy · toynet"
    assert describe_result(replace(first, model=None)) == "toy"
    found = compare(first, replace(second, model={"name": "toynet", "sha256": "cd" * 32}), 5)
    assert (found.first, found.second) == (
        f"toy · toynet ({'ab' * 6})",
        f"toy · toynet ({'cd' * 6})",
    )
    found = compare(first, replace(second, model={"name": "other"}), 5)
    assert (found.first, found.second) == ("toy · toynet", "toy · other")


def test_json_is_strict_and_whole() -> None:
    found = compare(*two(broken=2), replicates=20)
    figures = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert figures["pairs"] == {
        "mated": found.mated,
        "non_mated": found.non_mated,
        "left_out": found.left_out,
    }
    assert [entry["figure"] for entry in figures["differences"]] == [
        "accuracy",
        *(f"TPR@FPR=1e-{k}" for k in (1, 2, 3, 4)),
        "AUC",
        "EER",
    ]
    area = figures["differences"][-2]
    assert area["difference"] == area["second"] - area["first"]
    assert area["interval"]["low"] == row(found, "AUC").difference.low
    assert figures["intervals"] == found.basis
