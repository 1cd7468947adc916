from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.plain_rates import tpr_at_fpr
from helpers.toy_faces import TARGETS, Toy, grouping, of_all, of_list, pair_list, toy
from numpy.typing import NDArray

from facerec.fairness.groupings import Grouping
from facerec.fairness.rates import (
    ErrorsAt,
    GroupErrors,
    GroupShare,
    Thresholds,
    all_pairs_rates,
)
from facerec.fairness.rows import rate
from facerec.statistics.clustered import ClusteredShare

Count = Callable[..., GroupErrors]


def both(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.parametrize("count", [of_list, of_all])(test)


def naive_counts(faces: Toy, threshold: float) -> Counter[tuple[str, tuple[int, ...]]]:
    """Count comparisons and errors one pair after another."""
    counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
    unit = faces.vectors / np.linalg.norm(faces.vectors, axis=1, keepdims=True)
    for one, other in itertools.combinations(range(len(unit)), 2):
        cell = tuple(sorted((int(faces.group[one]), int(faces.group[other]))))
        match = float(unit[one] @ unit[other]) >= threshold
        if faces.subject[one] == faces.subject[other]:
            counts["mated", cell] += 1
            counts["missed", cell] += not match
        else:
            counts["other", cell] += 1
            counts["matched", cell] += match
    return counts


def counted(share: GroupShare) -> tuple[int | None, int | None]:
    return rate(share).events, rate(share).total


def rows(at: ErrorsAt) -> list[tuple[Any, ...]]:
    found = map(rate, [*at.fmr, *at.fnmr, *at.fnmr_of_pairs, *at.between.values()])
    return [(one.value, one.low, one.high, one.events, one.total) for one in found]


def assert_same(one: GroupErrors, other: GroupErrors) -> None:
    assert one.grouping.names == other.grouping.names and one.group_subjects == other.group_subjects
    for a, b in zip(one.points, other.points, strict=True):
        assert a.point == b.point
        for mine, its in zip(rows(a), rows(b), strict=True):
            assert mine == pytest.approx(its, rel=1e-12, abs=1e-15)


@both
def test_counts_are_those_of_a_loop(count: Count) -> None:
    faces = toy(persons=18, images=3)
    for at in count(faces, ("5e-2", "1e-2")).points:
        counts = naive_counts(faces, at.point.threshold)
        for d in range(3):
            assert counted(at.fmr[d]) == (counts["matched", (d, d)], counts["other", (d, d)])
            assert counted(at.fnmr[d]) == (counts["missed", (d, d)], counts["mated", (d, d)])
        for cell, found in at.between.items():
            assert counted(found) == (counts["matched", cell], counts["other", cell])
        # Groups add up to everybody.
        every = sum(share.events for share in (*at.fmr[:-1], *at.between.values()))
        assert at.fmr[-1].events == every
        assert at.fnmr[-1].comparisons == sum(share.comparisons for share in at.fnmr[:-1])


@pytest.mark.parametrize("seed", [0, 1])
def test_all_pairs_are_a_list_of_all_pairs(seed: int) -> None:
    faces = toy(seed=seed)
    assert_same(of_list(faces), of_all(faces))


@both
def test_intervals_allow_for_shared_subjects(count: Count) -> None:
    faces = toy()
    pairs = pair_list(faces)
    sides = faces.subject[pairs.sides]
    groups = faces.group[pairs.sides]
    for at in count(faces).points:
        accepted = pairs.scores >= np.float64(at.point.threshold)
        for d in range(3):
            within = (groups == d).all(axis=0)
            mated, other = within & pairs.same, within & ~pairs.same
            expected = ClusteredShare.from_pairs(accepted[other], *sides[:, other]).interval()
            found = rate(at.fmr[d])
            assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
            assert found.interval.effective == pytest.approx(expected.effective)
            for alike, found in ((True, rate(at.fnmr[d])), (False, rate(at.fnmr_of_pairs[d]))):
                missed = ~accepted[mated], *sides[:, mated]
                expected = ClusteredShare.from_pairs(*missed, alike=alike).interval()
                assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
        between = (groups.min(axis=0) == 0) & (groups.max(axis=0) == 2)
        expected = ClusteredShare.from_pairs(accepted[between], *sides[:, between]).interval()
        assert rate(at.between[0, 2]).low == pytest.approx(expected.low)


@both
def test_thresholds_are_those_of_all_impostors(count: Count) -> None:
    faces = toy()
    pairs = pair_list(faces)
    both = pairs.scores[pairs.same], pairs.scores[~pairs.same]
    for at, target in zip(count(faces).points, TARGETS, strict=True):
        wanted = tpr_at_fpr(*both, target)
        assert at.point.threshold == pytest.approx(wanted.threshold, rel=1e-6)
        assert at.point.false_accepts == wanted.false_accepts == at.fmr[-1].events
    # They serve other groups too, and images without a group count for them.
    some = replace(faces, group=np.where(faces.subject < 4, -1, faces.group))
    assert count(some).thresholds.points == count(faces).thresholds.points


@both
def test_thresholds_of_other_data(count: Count) -> None:
    generator = np.random.default_rng(5)
    points = (tpr_at_fpr(generator.normal(0.7, 0.1, 300), generator.normal(0, 0.2, 5000), "0.01"),)
    faces = toy()
    (at,) = count(faces, ("1e-2",), thresholds=Thresholds("other.npz", points)).points
    assert (at.point.threshold, at.point.non_mated) == (points[0].threshold, 5000)
    pairs = pair_list(faces)
    accepted = pairs.scores >= np.float64(at.point.threshold)
    assert at.fmr[-1].events == np.count_nonzero(accepted & ~pairs.same)
    assert at.fnmr[-1].events == np.count_nonzero(~accepted & pairs.same)
    none = Thresholds("x", (tpr_at_fpr([1.0, 1.0], [np.inf, 0.0], "0"),))
    (at,) = count(faces, ("0",), thresholds=none).points
    assert (at.fmr[-1].events, at.fnmr[-1].value) == (0, 1.0)


@both
def test_images_without_subject_group_or_embedding_take_no_part(count: Count) -> None:
    faces = toy(persons=20, images=4)
    subject, group, vectors = faces.subject.copy(), faces.group.copy(), faces.vectors.copy()
    subject[faces.subject == 3] = -1
    group[faces.subject == 5] = -1
    vectors[[0, 30]] = 0
    vectors[44] = np.nan
    fixed = count(faces).thresholds
    found = count(replace(faces, subject=subject, group=group, vectors=vectors), thresholds=fixed)
    kept = (subject >= 0) & (group >= 0)
    kept[[0, 30, 44]] = False
    rest = replace(faces, vectors=vectors[kept], subject=subject[kept], group=group[kept])
    expected = count(rest, thresholds=fixed)
    for one, other in zip(found.points, expected.points, strict=True):
        assert rows(one) == [pytest.approx(row, rel=1e-12) for row in rows(other)]


# --- several groupings ------------------------------------------------------------------------


def made_up(seed: int, torn: bool = False) -> tuple[NDArray, NDArray, list[Grouping]]:
    """Return vectors, subjects and three groupings, in which some subjects have no group.

    With ``torn`` there are images without a group, of subjects who have one.
    """
    faces = toy(persons=36, images=4, seed=seed)
    generator = np.random.default_rng(seed)
    vectors = faces.vectors.copy()
    vectors[generator.choice(len(vectors), 5, replace=False)] = np.nan
    subject = np.where(generator.random(len(vectors)) < 0.03, -1, faces.subject)
    second = (generator.integers(-1, 2, 36))[faces.subject]
    third = np.where((faces.group < 2) & (second >= 0), 2 * faces.group + second, -1)
    if torn:
        second[generator.random(second.size) < 0.1] = -1
    names = faces.names, ("f", "m"), ("Af", "Am", "Bf", "Bm")
    return vectors, subject, list(map(grouping, (faces.group, second, third), names))


@pytest.mark.parametrize("torn", [False, True])
def test_several_groupings_are_counted_as_one_by_one(torn: bool) -> None:
    vectors, subject, groupings = made_up(int(torn), torn)
    found = all_pairs_rates(vectors, subject, groupings, targets=TARGETS)
    for errors, one in zip(found, groupings, strict=True):
        (expected,) = all_pairs_rates(vectors, subject, [one], targets=TARGETS)
        assert_same(errors, expected)


@both
def test_who_has_most_photos_does_not_speak_for_a_group(count: Count) -> None:
    """One person has nine in ten of the mated pairs of group A, which all match."""
    faces = toy(persons=60, images=3, noise=0.2)
    rows = np.append(np.where(faces.subject == 0, 0, np.arange(180)), np.zeros(30, np.int64))
    rows[rows == 0] = np.flatnonzero(faces.subject == 0)[0]
    many = Toy(*(each[rows] for each in (faces.vectors, faces.subject, faces.group)), faces.names)
    fixed = count(faces).thresholds
    before, after = (count(each, thresholds=fixed).points[0] for each in (faces, many))
    assert abs(after.fnmr[0].value - before.fnmr[0].value) <= 1 / 20
    assert after.fnmr_of_pairs[0].value < 0.2 * before.fnmr_of_pairs[0].value
    methods = [rate(each[0]).interval.method for each in (after.fnmr, after.fnmr_of_pairs)]
    assert methods[0] != methods[1] == "none"


@both
def test_families_are_left_out_as_a_whole(count: Count) -> None:
    faces = toy(persons=18, images=3)
    alone, twins = (
        count(faces, family=family) for family in (None, np.arange(18, dtype=np.int64) // 2)
    )
    for one, two in zip(alone.points, twins.points, strict=True):
        shares = zip((*one.fmr, *one.fnmr), (*two.fmr, *two.fnmr), strict=True)
        for of_subjects, of_families in shares:
            assert of_subjects.value == of_families.value
            changes = np.bincount(np.arange(18) // 2, of_subjects.changes)
            np.testing.assert_allclose(of_families.changes, changes, atol=1e-12)
            assert of_families.subjects == np.count_nonzero(changes) or not changes.any()


@both
def test_families_without_an_error_have_a_bound(count: Count) -> None:
    faces, family = toy(persons=24, images=3, noise=0.0), np.arange(24, dtype=np.int64)
    family[:2] = 0
    (at,) = count(faces, ("1e-1",), family=family).points
    for share in at.fnmr[:3]:
        assert (share.value, share.subjects) == (0, 7)
        assert share.interval().high == pytest.approx(1 - 0.05 ** (1 / 7))
        assert share.test_variance >= 0
