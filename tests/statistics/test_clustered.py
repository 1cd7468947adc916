from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.drawn_scores import few
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.stats import rankdata, t

from facerec.statistics.clustered import (
    Bound,
    ClusteredShare,
    paired_difference,
)
from facerec.statistics.influences import ScoredComparisons
from facerec.statistics.intervals import wilson
from facerec.statistics.rates import roc_curve


def draw_pairs(
    seed: int, subjects: int = 12, pairs: int = 150, mated: float = 0.0
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Comparisons in which some subjects err far more often than others."""
    generator = np.random.default_rng(seed)
    first = generator.integers(subjects, size=pairs)
    other = (first + generator.integers(1, subjects, size=pairs)) % subjects
    second = np.where(generator.random(pairs) < mated, first, other)
    wild = generator.random(subjects) ** 3
    events = generator.random(pairs) < (wild[first] + wild[second]) / 2
    return events, first, second


def draw_scores(
    seed: int, subjects: int = 30, pairs: int = 400
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    events, first, second = draw_pairs(seed, subjects, pairs, mated=0.5)
    same = first == second
    scores = np.random.default_rng(seed).normal(size=pairs) + 1.5 * same - events
    return scores, same, first, second


@given(st.integers(0, 10**6), st.sampled_from([0.0, 1.0]))
@few
def test_changes_are_those_of_leaving_each_subject_out(seed: int, mated: float) -> None:
    events, first, second = draw_pairs(seed, mated=mated)
    share = ClusteredShare.from_pairs(events, first, second)
    for subject in range(share.changes.size):
        rest = (first != subject) & (second != subject)
        change = events[rest].mean() - events.mean()
        assert share.changes[subject] == pytest.approx(change, abs=1e-12)


@given(st.integers(0, 10**6))
@few
def test_people_who_weigh_alike_are_those_of_a_loop(seed: int) -> None:
    events, subject, _ = draw_pairs(seed, mated=1.0)
    share = ClusteredShare.from_pairs(events, subject, subject, alike=True)

    def mean(people: NDArray[np.int64]) -> float:
        return float(np.mean([events[subject == person].mean() for person in people]))

    everyone = np.unique(subject)
    assert share.value == pytest.approx(mean(everyone), abs=1e-12)
    assert (share.events, share.comparisons) == (events.sum(), events.size)
    for person in everyone:
        change = mean(everyone[everyone != person]) - share.value
        assert share.changes[person] == pytest.approx(change, abs=1e-12)
    # Of single comparisons, each a share of its person.
    made = np.bincount(subject)[subject] * everyone.size
    assert share.independent == pytest.approx((((events - share.value) / made) ** 2).sum())
    assert share.effective_subjects == pytest.approx(everyone.size) and share.surplus < 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_auc_without_each_subject_is_the_figure_without_it_but_for_products(seed: int) -> None:
    scores, same, first, second = draw_scores(seed, subjects=60, pairs=3000)
    scored = ScoredComparisons(scores, same, (first, second))
    figure = scored.figure(scored.auc())
    exact = []
    for subject in range(60):
        rest = (first != subject) & (second != subject)
        kept = roc_curve(scores[rest & same], scores[rest & ~same])
        exact.append(kept.auc() - figure.value)
    # What a subject's mated and non-mated comparisons do together is left out.
    assert np.abs(figure.changes - exact).max() < 0.05 * np.abs(exact).max()


def test_auc_of_subjects_that_occur_once_has_delongs_variance() -> None:
    # DeLong's components by midranks (Sun and Xu 2014), a way that shares nothing with influences.
    generator = np.random.default_rng(1)
    mated, others = generator.normal(1, 1, 300), generator.normal(0, 1, 500)
    ranks = rankdata(np.concatenate([mated, others]))
    first = (ranks[:300] - rankdata(mated)) / 500
    second = 1 - (ranks[300:] - rankdata(others)) / 300
    expected = first.var(ddof=1) / 300 + second.var(ddof=1) / 500
    scored = ScoredComparisons(np.concatenate([mated, others]), np.arange(800) < 300)
    assert scored.figure(scored.auc()).variance == pytest.approx(expected, rel=0.01)


@given(st.integers(0, 10**6))
@few
def test_all_layouts_agree(seed: int) -> None:
    generator = np.random.default_rng(seed)
    images = generator.integers(1, 5, size=9)
    person = np.repeat(np.arange(9), images)
    first, second = np.triu_indices(person.size, 1)
    first, second = person[first], person[second]
    events = generator.random(first.size) < 0.3
    two = first != second

    def compare(found: ClusteredShare, expected: ClusteredShare) -> None:
        assert (found.events, found.comparisons) == (expected.events, expected.comparisons)
        np.testing.assert_allclose(found.changes, expected.changes, atol=1e-12)
        for name in ("effective_subjects", "noise", "surplus", "independent"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-12), name

    def matrix(kept: NDArray[np.bool_]) -> coo_array:
        return coo_array((np.ones(kept.sum()), (first[kept], second[kept])), (9, 9))

    expected = ClusteredShare.from_pairs(events[two], first[two], second[two])
    compare(ClusteredShare.from_images(matrix(two & events), images), expected)
    involved = np.bincount(first[two & events], minlength=9)
    involved += np.bincount(second[two & events], minlength=9)
    compare(ClusteredShare.from_involved(expected.events, involved, images), expected)

    mated = ClusteredShare.from_pairs(events[~two], first[~two], second[~two])
    made = np.bincount(first[~two], minlength=9)
    counted = np.bincount(first[~two], events[~two], minlength=9)
    found = ClusteredShare.from_mated_counts(counted, made)
    padded = np.pad(mated.changes, (0, 9 - mated.changes.size))
    compare(found, ClusteredShare(**vars(mated) | {"changes": padded}))

    split = np.arange(9) < 4
    crossing = split[first] & ~split[second]
    between = matrix(crossing & events).tocsr()[:4, 4:]
    compare(
        ClusteredShare.from_images(between, images[:4], images[4:]),
        ClusteredShare.from_pairs(events[crossing], first[crossing], second[crossing]),
    )


@pytest.mark.parametrize("mated", [0.0, 1.0])
def test_the_interval_by_its_formula(mated: float) -> None:
    events, first, second = draw_pairs(3, subjects=20, pairs=600, mated=mated)
    share = ClusteredShare.from_pairs(events, first, second)
    left_out = np.array([events[(first != k) & (second != k)].mean() for k in range(20)])
    rate, noise, skew = events.mean(), events.var() / 600, 0.0
    # On the logit scale itself, as much wider as its steps are than the slope tells.
    steps, slope = np.log(left_out / (1 - left_out)), rate * (1 - rate)
    delta, own = (19 * values.var() for values in (left_out, steps))
    if mated:
        variance = max(delta * own * slope**2 / delta, delta + share.surplus)
    else:
        # The noise of each comparison is in the changes of two subjects.
        variance = (delta - noise) * own * slope**2 / delta
        third = ((rate - left_out) ** 3).sum() - 2 * noise * (1 - 2 * rate) / 600
        loads = np.bincount(np.concatenate([first, second]))
        alike = loads.sum() ** 2 / (loads**2).sum() / 20
        skew = max(third, 0) / (delta - noise) ** 1.5 * alike
    quantile = t.ppf(0.975, 19)
    moved = skew * (2 * quantile**2 + 1) / 6
    centre, error = math.log(rate / (1 - rate)), math.sqrt(variance) / slope
    interval = share.interval()
    ends = centre - (quantile - moved) * error, centre + (quantile + moved) * error
    expected = [1 / (1 + math.exp(-end)) for end in ends]
    assert (skew > 0) == (mated == 0)
    assert [interval.low, interval.high] == pytest.approx(expected, rel=1e-9)


def test_independent_comparisons_get_wilsons_interval() -> None:
    events = np.arange(200) < 13
    own = np.arange(200)
    found, expected = ClusteredShare.from_pairs(events, own, own).interval(), wilson(13, 200)
    assert (found.low, found.high) == (expected.low, expected.high)


def test_uneven_subjects_get_the_spread_of_all() -> None:
    """Two subjects with most comparisons happen to agree: the others tell of the spread."""
    made = np.array([300, 300] + [6] * 40)
    events = np.array([30, 30] + [6, 0, 0, 0] * 10)
    share = ClusteredShare.from_mated_counts(events, made)
    assert share.surplus > 0
    even = ClusteredShare.from_mated_counts(events[2:], made[2:])
    assert even.surplus < 0.2 * even.jackknife


def test_too_few_effective_subjects_have_no_interval() -> None:
    made = np.array([500, 500, 3, 3])
    of = np.repeat(np.arange(4), made)
    interval = ClusteredShare.from_pairs(np.arange(1006) % 7 == 0, of, of).interval()
    assert (interval.low, interval.high) == (0, 1)
    assert "effectively 2.0" in interval.lacking


def test_families_are_left_out_as_a_whole() -> None:
    events, first, second = draw_pairs(6, subjects=30, pairs=2000)
    family = np.arange(30) // 3
    share = ClusteredShare.from_pairs(events, first, second)
    families = share.by_family(family)
    exact = []
    for one in range(10):
        rest = (family[first] != one) & (family[second] != one)
        exact.append(events[rest].mean() - events.mean())
    assert np.abs(families.changes - exact).max() < 0.2 * np.abs(exact).max()
    assert families.subjects == 10 and families.freedom == 9


def test_no_event_is_bounded_by_disjoint_pairs() -> None:
    images = np.full(40, 3)
    none = ClusteredShare.from_images(coo_array((40, 40)), images).interval()
    assert isinstance(none, Bound) and none.low == 0
    assert none.high == pytest.approx(1 - 0.05 ** (1 / 20))
    assert none.if_independent == pytest.approx(-math.log(0.05) / (780 * 9))
    every = ClusteredShare.from_mated_counts(np.full(40, 3), np.full(40, 3)).interval()
    assert isinstance(every, Bound) and every.high == 1
    assert every.low == pytest.approx(0.05 ** (1 / 40))


def test_a_paired_difference_adds_seeds_and_subjects() -> None:
    generator = np.random.default_rng(5)
    changes, values = generator.normal(size=50), 7 + generator.normal(size=4)
    changes -= changes.mean()
    subjects = paired_difference([values.mean()], changes)
    seeds = paired_difference(values, [])
    both = paired_difference(values, changes)
    assert subjects and seeds and both
    error = math.sqrt(49 / 50 * (changes**2).sum())
    freedom = 2 / ((changes**4).sum() / (changes**2).sum() ** 2 - 1 / 50)
    assert subjects.high - values.mean() == pytest.approx(t.ppf(0.975, min(freedom, 49)) * error)
    error = values.std(ddof=1) / 2
    assert seeds.high - values.mean() == pytest.approx(t.ppf(0.975, 3) * error)
    assert both.high >= max(subjects.high, seeds.high) and both.low <= min(subjects.low, seeds.low)
    # The middle of a variance by N is that by N − 1.
    without = [np.delete(changes, place).var() - changes.var() for place in range(50)]
    spread = paired_difference([changes.var()], without)
    assert spread and (spread.low + spread.high) / 2 == pytest.approx(changes.var(ddof=1))
    assert paired_difference([0.3], []) is None
    assert paired_difference([0.0], np.zeros(9)) is None


def test_a_difference_of_models_is_narrower_than_both_where_they_share_errors() -> None:
    scores, same, first, second = draw_scores(2, subjects=60, pairs=4000)
    other = scores + 0.1 * np.random.default_rng(9).normal(size=scores.size)
    one, two = (ScoredComparisons(each, same, (first, second)) for each in (scores, other))
    influences = one.auc(), two.auc()
    value = influences[1][0] - influences[0][0]
    figure = one.figure((value, influences[1][1] - influences[0][1]))
    interval = paired_difference([value], figure.changes, noise=figure.noise)
    alone = one.interval(influences[0])
    assert interval and interval.high - interval.low < 0.5 * (alone.high - alone.low)
