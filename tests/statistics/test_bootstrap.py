from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.examples import examples
from helpers.plain_rates import auc, eer_rocch
from hypothesis import settings
from numpy.typing import NDArray

from facerec.errors import MetricError
from facerec.statistics import bootstrap as module
from facerec.statistics.bootstrap import (
    VertexBootstrap,
    percentile_interval,
)
from facerec.statistics.rates import OperatingPoint, tpr_at_fpr

few = settings(max_examples=examples(25), deadline=None)
TARGETS = ["0", "1e-2", "1/7", "0.29", "1"]

Comparisons = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]


def draw(
    seed: int, subjects: int = 9, same: int = 20, different: int = 40, tied: bool = True
) -> tuple[Comparisons, NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    first = generator.integers(subjects, size=same + different)
    issame = generator.permutation(same + different) < same
    other = (first + generator.integers(1, subjects, size=first.size)) % subjects
    scores = generator.standard_normal(first.size) + 1.5 * issame
    scores = np.round(scores * 4) / 4 if tied else scores
    return (first, np.where(issame, first, other), issame), scores.astype(np.float32)


def expanded(
    bootstrap: VertexBootstrap, comparisons: Comparisons, replicate: int
) -> NDArray[np.int64]:
    """Comparisons of one replicate, each repeated once for every two copies that make it."""
    drawn = dict(zip(bootstrap.subjects, bootstrap.multiplicities[replicate].tolist(), strict=True))
    copies = [
        drawn[i] if same else drawn[i] * drawn[j] for i, j, same in zip(*comparisons, strict=True)
    ]
    return np.repeat(np.arange(len(copies)), copies)


def lowest(point: OperatingPoint, non_mated: NDArray[np.float32]) -> float:
    """Return the lowest threshold that rejects what the threshold of a point does."""
    rejected = non_mated[~(non_mated >= point.threshold)]
    if rejected.size == 0:
        return -math.inf
    highest = rejected.max()
    return math.nan if highest == np.inf else float(np.nextafter(highest, np.float32(np.inf)))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_every_figure_equals_the_plain_one_on_the_resampled_comparisons(
    tied: bool, seed: int
) -> None:
    comparisons, scores = draw(seed, tied=tied)
    if seed == 3:
        scores[::7], scores[1::9] = np.inf, -np.inf
    issame = comparisons[2]
    bootstrap = VertexBootstrap(*comparisons, replicates=40, seed=seed)
    right = (scores >= 0.75) == issame
    points = bootstrap.tpr_at_fpr(scores, TARGETS)
    found = {
        "auc": bootstrap.auc(scores),
        "eer": bootstrap.eer(scores),
        "accuracy": bootstrap.mean(right),
        "mean": bootstrap.mean(np.arange(60) / 7),
    }
    for replicate in range(40):
        chosen = expanded(bootstrap, comparisons, replicate)
        mated, non_mated = (
            scores[chosen[issame[chosen]]],
            scores[chosen[~issame[chosen]]],
        )
        both = mated.size and non_mated.size
        for target, point in zip(TARGETS, points, strict=True):
            values = point.tpr[replicate], point.threshold[replicate]
            expected = tpr_at_fpr(mated, non_mated, target) if both else None
            wanted = (expected.tpr, lowest(expected, non_mated)) if expected else (math.nan,) * 2
            assert values == pytest.approx(wanted, abs=0, nan_ok=True)
        wanted = {
            "auc": auc(mated, non_mated) if both else math.nan,
            "eer": eer_rocch(mated, non_mated) if both else math.nan,
            "accuracy": right[chosen].mean() if chosen.size else math.nan,
            "mean": chosen.mean() / 7 if chosen.size else math.nan,
        }
        for name, value in wanted.items():
            assert found[name][replicate] == pytest.approx(value, abs=1e-12, nan_ok=True), name


def test_equal_weights_give_the_estimates() -> None:
    comparisons, scores = draw(0, subjects=50, same=300, different=500, tied=False)
    bootstrap = VertexBootstrap(*comparisons, replicates=2)
    bootstrap.multiplicities[:] = 1
    mated, non_mated = scores[comparisons[2]], scores[~comparisons[2]]
    for target, point in zip(TARGETS, bootstrap.tpr_at_fpr(scores, TARGETS), strict=True):
        expected = tpr_at_fpr(mated, non_mated, target)
        assert point.tpr.tolist() == [expected.tpr] * 2
        assert point.threshold.tolist() == [lowest(expected, non_mated)] * 2
    assert bootstrap.auc(scores) == pytest.approx(auc(mated, non_mated), abs=1e-14)
    assert bootstrap.eer(scores) == pytest.approx(eer_rocch(mated, non_mated), abs=1e-14)


def test_multiplicities() -> None:
    comparisons, _ = draw(0, subjects=30)
    drawn = VertexBootstrap(*comparisons, replicates=500, seed=1).multiplicities
    size = np.unique(comparisons[:2]).size
    assert drawn.shape == (500, size)
    assert np.all(drawn.sum(axis=1) == size)
    # Poisson-like: P(0) is (1 − 1/G)^G.
    assert np.mean(drawn == 0) == pytest.approx((1 - 1 / size) ** size, abs=0.01)


def test_seeds() -> None:
    comparisons, scores = draw(0)
    one, again, other = (
        VertexBootstrap(*comparisons, replicates=30, seed=seed).auc(scores) for seed in (4, 4, 5)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other, equal_nan=True)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons, scores = draw(2, subjects=20, same=50, different=100)

    def figures() -> list[NDArray[np.float64]]:
        bootstrap = VertexBootstrap(*comparisons, replicates=37)
        points = bootstrap.tpr_at_fpr(scores, ["0.1"])[0]
        return [
            points.tpr,
            points.threshold,
            bootstrap.auc(scores),
            bootstrap.eer(scores),
            bootstrap.mean(scores >= 1),
            bootstrap.mean(scores >= 1),
        ]

    whole = figures()
    for cells in (1, 151 * 5):
        monkeypatch.setattr(module, "_CELLS", cells)
        for one, other in zip(whole, figures(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_selected_comparisons_keep_their_resample() -> None:
    comparisons, scores = draw(1, subjects=12, same=60, different=200)
    bootstrap = VertexBootstrap(*comparisons, replicates=25)
    group = (comparisons[0] < 6) & (comparisons[1] < 6)
    part = bootstrap.select(group)
    np.testing.assert_array_equal(part.multiplicities, bootstrap.multiplicities)
    np.testing.assert_array_equal(
        part.mean(scores[group] > 1), bootstrap.mean(scores > 1, among=group)
    )
    assert bootstrap.issame.size == 260 and part.issame.size == group.sum()


def test_replicates_without_a_class_are_undefined() -> None:
    # One mated subject, drawn by chance only; the others are impostors of each other.
    first, second = np.array([0, 1, 2, 3]), np.array([0, 2, 3, 1])
    bootstrap = VertexBootstrap(first, second, first == second, replicates=200)
    scores = np.array([0.9, 0.1, 0.2, 0.3])
    missing = bootstrap.multiplicities[:, 0] == 0
    assert 0 < missing.sum() < 200
    drawn = np.minimum(bootstrap.multiplicities[:, 1:], 1).sum(axis=1) >= 2
    point = bootstrap.tpr_at_fpr(scores, ["1e-3"])[0]
    for values in (point.tpr, point.threshold, bootstrap.auc(scores), bootstrap.eer(scores)):
        np.testing.assert_array_equal(np.isnan(values), missing | ~drawn)
    interval = percentile_interval(1.0, point.tpr)
    assert (interval.low, interval.high) == (1, 1)
    count = int((missing | ~drawn).sum())
    assert f"{count} of 200 replicates undefined and left out" in interval.assumption
    assert "equal replicates tell nothing of the spread" in interval.assumption


def test_percentile_interval_by_hand() -> None:
    replicates = np.random.default_rng(0).permutation(np.arange(1001.0))
    interval = percentile_interval(500, replicates, 0.9)
    assert (interval.low, interval.high, interval.confidence) == (50, 950, 0.9)
    assert interval.method == "vertex bootstrap, percentile"
    assert "conservative for rare false matches" in interval.assumption
    # Limits are replicates themselves, on the outer side.
    interval = percentile_interval(500, replicates, 0.95)
    assert (interval.low, interval.high) == (25, 975)
    halved = percentile_interval(400, replicates, 0.9, scale=0.5)
    assert (halved.low, halved.high) == (225, 675)
    assert halved.method.endswith("deviations × 0.50")
    assert "conservative" not in halved.assumption


def test_what_two_models_share_cancels_in_their_difference() -> None:
    comparisons, scores = draw(0, subjects=40, same=200, different=300, tied=False)
    generator = np.random.default_rng(1)
    other = scores + np.float32(0.2) * generator.standard_normal(scores.size).astype(np.float32)
    bootstrap = VertexBootstrap(*comparisons, replicates=500)
    values = [auc(s[comparisons[2]], s[~comparisons[2]]) for s in (scores, other)]
    replicates = [bootstrap.auc(s) for s in (scores, other)]
    joint = percentile_interval(values[0] - values[1], replicates[0] - replicates[1], 0.9)
    assert joint.low < values[0] - values[1] < joint.high
    alone = percentile_interval(values[0], replicates[0], 0.9)
    assert joint.high - joint.low < 0.5 * (alone.high - alone.low)


def test_impossible_figures() -> None:
    bootstrap = VertexBootstrap([1, 2], [1, 2], [True, True], replicates=5)
    with pytest.raises(MetricError, match="2 same and 0 different pairs: a ROC needs both"):
        bootstrap.auc([0.5, 0.6])
    with pytest.raises(MetricError, match="there are no comparisons"):
        bootstrap.mean([0.5, 0.6], [False, False])
    with pytest.raises(MetricError, match=r"scores of shape \(3,\) must be one for each of the 2"):
        bootstrap.eer([0.5, 0.6, 0.7])
    with pytest.raises(MetricError, match="1 of 2 scores are NaN, the first at index 1"):
        bootstrap.auc([0.5, math.nan])
    with pytest.raises(MetricError, match="not finite"):
        bootstrap.mean([0.5, math.nan])
    with pytest.raises(MetricError, match="undefined in all 5 replicates"):
        percentile_interval(0.5, np.full(5, np.nan))
    with pytest.raises(MetricError, match="confidence 1 is not between"):
        percentile_interval(0.5, np.arange(5.0), 1)
