"""Comparisons counted for a calibration, against single ones."""

from __future__ import annotations

import numpy as np
import pytest

from facerec.cosines import counts, score_pairs
from facerec.statistics.calibration import CENTRES, LikelihoodRatio, ScoreCounts, cell_of, cllr
from facerec.statistics.costs import min_cllr
from facerec.statistics.rates import roc_curve
from facerec.verification.calibration import (
    MOST_IMAGES,
    count_scores,
    cross_validate,
    draw_images,
    least_cllr,
)


def people(subjects: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    who = np.repeat(np.arange(subjects), 1 + generator.integers(4, size=subjects))
    centres = generator.standard_normal((subjects, 16))
    vectors = centres[who] + 0.6 * generator.standard_normal((who.size, 16))
    order = generator.permutation(who.size)
    return vectors[order].astype(np.float32), who[order]


@pytest.mark.parametrize("size", [7, 1024])
def test_tiles_count_what_single_comparisons_count(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(counts.Sample, "SIZE", size)
    vectors, who = people(30)
    found = count_scores(vectors, who)
    first, second = np.triu_indices(len(who), 1)
    scores = score_pairs(vectors, first, second)
    naive = ScoreCounts.of_pairs(scores, who[first], who[second])
    np.testing.assert_array_equal(found.mated, naive.mated)
    np.testing.assert_array_equal(found.non_mated, naive.non_mated)
    np.testing.assert_array_equal(found.images, np.bincount(who))


def test_the_least_cost_is_that_of_the_roc() -> None:
    vectors, who = people(30)
    counts = count_scores(vectors, who)
    mated, others = (np.repeat(CENTRES, total.astype(int)) for total in counts.totals)
    curve = roc_curve(mated, others)
    assert least_cllr(*counts.totals) == pytest.approx(min_cllr(curve))


def test_a_draw_takes_few_images_of_everybody() -> None:
    who = np.repeat(np.arange(50), np.arange(1, 51))
    taken = draw_images(who.astype(np.str_))
    np.testing.assert_array_equal(
        np.bincount(who[taken]), np.minimum(np.arange(1, 51), MOST_IMAGES)
    )
    assert (np.diff(taken) > 0).all()


def test_people_held_out_are_judged_by_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts.Sample, "SIZE", 100)  # folds begin and end inside tiles
    vectors, who = people(300)
    cost, least = cross_validate(vectors, who, folds=5)
    fold, values, tested = np.random.default_rng(0).permutation(300)[who] % 5, [], []
    for number in range(5):
        known, new = (count_scores(vectors[p], who[p]) for p in (fold != number, fold == number))
        values.append(LikelihoodRatio.fit(known).log_ratio(CENTRES))
        tested.append(new.totals)
    mated, others = (np.concatenate(side) for side in zip(*tested, strict=True))
    assert cost == pytest.approx(cllr(np.concatenate(values), mated, others), rel=1e-12)
    own = LikelihoodRatio.fit(count_scores(vectors, who))
    assert least <= cost < 1.3 * least + 0.02
    assert cell_of(own.low) < cell_of(own.high)
