from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.plain_rates import tpr_at_fpr
from helpers.toy_faces import TARGETS, Toy, of_all, of_list, pair_list, toy

from facerec.fairness.rates import (
    ErrorsAt,
    GroupErrors,
    GroupShare,
    Thresholds,
    all_pairs_rates,
)
from facerec.fairness.rows import rate

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
    # Images without a group, of subjects who have one, take no part in it.
    lost = np.random.default_rng(seed).random(len(faces.group)) < 0.1
    torn = replace(faces, group=np.where(lost, -1, faces.group))
    groupings = [faces.grouping, torn.grouping]
    found = all_pairs_rates(faces.vectors, faces.subject, groupings, targets=TARGETS)
    for one, errors in zip((faces, torn), found, strict=True):
        assert_same(of_list(one), errors)


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
    lacking = [rate(each[0]).interval.lacking for each in (after.fnmr, after.fnmr_of_pairs)]
    assert lacking[1] and not lacking[0]


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
