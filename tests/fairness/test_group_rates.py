from __future__ import annotations

import csv
import functools
import itertools
import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from helpers.plain_rates import error_rates
from helpers.toy_faces import Toy, toy
from numpy.typing import NDArray
from scipy.special import ndtri

from facerec.errors import MetricError
from facerec.fairness import rates as module
from facerec.fairness.rate_results import DIAGNOSTIC, Calibration, RatesAtThreshold
from facerec.fairness.rates import GroupErrors, all_pairs_group_rates, pair_group_rates
from facerec.statistics.clustered import Bound, fmr_interval, fnmr_interval
from facerec.statistics.rates import operating_points, tpr_at_fpr
from facerec.verification.evaluation import score_pairs

TARGETS = ("1e-1", "1e-2", "1e-3")


def false_matches(point: RatesAtThreshold) -> NDArray[np.int64]:
    return np.array([[cell.events for cell in row] for row in point.matrix])


def of_list(faces: Toy, targets: tuple[str, ...] = TARGETS, **options: object) -> GroupErrors:
    first, second = faces.pairs
    return pair_group_rates(
        score_pairs(faces.vectors, first, second),
        first,
        second,
        faces.subject[first] == faces.subject[second],
        faces.subject,
        faces.group,
        faces.names,
        targets=targets,
        **options,  # type: ignore[arg-type]
    )


def of_all(faces: Toy, targets: tuple[str, ...] = TARGETS, **options: object) -> GroupErrors:
    return all_pairs_group_rates(
        faces.vectors,
        faces.subject,
        faces.group,
        faces.names,
        targets=targets,
        **options,  # type: ignore[arg-type]
    )


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


def assert_close(one: object, other: object) -> None:
    """Compare two reports: floats to twelve digits, for sums run in another order."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        one, other = tuple(one.values()), tuple(other.values())
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_close(left, right)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-12, abs=1e-15)
    else:
        assert one == other


# --- counts ---------------------------------------------------------------------------------


def test_counts_are_those_of_a_loop() -> None:
    faces = toy(persons=18, images=3)
    for point in of_list(faces, ("5e-2", "1e-2")).rates.points:
        assert point.threshold.value is not None
        counts = naive_counts(faces, point.threshold.value)
        for (one, left), (other, right) in itertools.product(enumerate("ABC"), repeat=2):
            cell = min(one, other), max(one, other)
            matrix = point.matrix
            assert matrix[one][other].events == counts["matched", cell]
            assert matrix[one][other].total == counts["other", cell]
            rate = counts["matched", cell] / counts["other", cell]
            assert matrix[one][other].value == rate
            found = matrix[one][other].log10
            assert found == (pytest.approx(np.log10(rate)) if rate else None), (left, right)
        for place, group in enumerate(point.groups):
            assert group.name == "ABC"[place]
            within = place, place
            assert group.fmr.events == counts["matched", within]
            assert group.fmr.total == counts["other", within]
            assert group.fnmr.events == counts["missed", within]
            assert group.fnmr.total == counts["mated", within]


@pytest.mark.parametrize("seed", [0, 1])
def test_all_pairs_are_a_list_of_all_pairs(seed: int) -> None:
    faces = toy(seed=seed)
    listed, everyone = of_list(faces), of_all(faces)
    first, second = asdict(listed.rates), asdict(everyone.rates)
    # How policies are worded differs, nothing else does.
    for report in (first, second):
        report.pop("policy")
    assert_close(first, second)
    for one, other in zip(listed.counts, everyone.counts, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a.members, b.members)
            np.testing.assert_array_equal(a.missed, b.missed)
            np.testing.assert_array_equal(a.mated, b.mated)
            assert a.false_matches is not None and b.false_matches is not None
            both = [x.toarray() + x.toarray().T for x in (a.false_matches, b.false_matches)]
            np.testing.assert_array_equal(*both)


def test_groups_recombine_to_the_whole() -> None:
    for point in of_all(toy()).rates.points:
        cells = list(itertools.combinations_with_replacement(range(3), 2))
        matrix = point.matrix
        errors = sum(matrix[d][e].events for d, e in cells)
        comparisons = sum(matrix[d][e].total for d, e in cells)
        assert (errors, comparisons) == (point.fmr.events, point.fmr.total)
        weighted = sum(
            matrix[d][e].total * rate for d, e in cells if (rate := matrix[d][e].value) is not None
        )
        assert weighted / comparisons == pytest.approx(point.fmr.value, rel=1e-12)
        missed = sum(group.fnmr.events for group in point.groups)
        assert missed == point.fnmr.events


def test_names_of_groups_permute_rows_only() -> None:
    faces = toy()
    order = [2, 0, 1]  # new code → old code
    renamed = replace(
        faces, group=np.argsort(order)[faces.group], names=tuple(faces.names[i] for i in order)
    )
    before, after = of_all(faces).rates, of_all(renamed).rates
    assert [before.composition[i] for i in order] == list(after.composition)
    assert [before.det[i] for i in order] == list(after.det)
    for one, other in zip(before.points, after.points, strict=True):
        assert one.threshold == other.threshold
        assert [one.groups[i] for i in order] == list(other.groups)
        matrix = false_matches(one)[np.ix_(order, order)]
        np.testing.assert_array_equal(matrix, false_matches(other))


# --- intervals, flags -----------------------------------------------------------------------


def test_intervals_allow_for_shared_persons() -> None:
    faces = toy()
    first, second = faces.pairs
    scores = score_pairs(faces.vectors, first, second)
    sides = faces.subject[first], faces.subject[second]
    groups = faces.group[first], faces.group[second]
    for point in of_list(faces).rates.points:
        accepted = scores >= np.float64(point.threshold.value)
        for place, group in enumerate(point.groups):
            within = (groups[0] == place) & (groups[1] == place)
            mated, other = within & (sides[0] == sides[1]), within & (sides[0] != sides[1])
            expected = fmr_interval(accepted[other], sides[0][other], sides[1][other])
            assert group.fmr.interval == expected
            assert group.fmr.effective == expected.effective
            assert group.fnmr.interval == fnmr_interval(~accepted[mated], sides[0][mated])
        between = ((groups[0] == 0) & (groups[1] == 2)) | ((groups[0] == 2) & (groups[1] == 0))
        expected = fmr_interval(accepted[between], sides[0][between], sides[1][between])
        assert point.matrix[0][2].interval == point.matrix[2][0].interval == expected


def test_marks_and_flags() -> None:
    seen = set()
    for point in of_list(toy(150, 3), ("1e-1", "1e-2", "1e-3", "1e-5")).rates.points:
        for group in point.groups:
            rate = group.fmr
            errors = rate.events
            assert rate.mark == ("●" if errors >= 30 else "◐" if errors >= 3 else "○")
            assert rate.resolvable == (float(point.threshold.target) * rate.total >= 1)
            assert rate.value is not None and rate.effective is not None
            assert rate.reliable == (errors >= 30 and rate.value * rate.effective >= 30)
            assert isinstance(rate.interval, Bound) == (errors == 0)
            seen.add((rate.mark, rate.resolvable, rate.reliable))
    assert {mark for mark, _, _ in seen} == {"●", "◐", "○"}
    assert {flag for _, flag, _ in seen} == {flag for _, _, flag in seen} == {True, False}


def test_within_groups_all_is_counted_by_person(monkeypatch: pytest.MonkeyPatch) -> None:
    faces = toy()
    usual = of_all(faces)
    limited = functools.partial(module.score_all_pairs, pair_limit=100)
    monkeypatch.setattr(module, "score_all_pairs", limited)
    found = of_all(faces)
    for one, other in zip(usual.rates.points, found.rates.points, strict=True):
        assert one.groups == other.groups
        assert (false_matches(one) == false_matches(other)).all()
        within = [other.matrix[d][d].interval for d in range(3)]
        assert within == [one.matrix[d][d].interval for d in range(3)]
    assert found.rates.points[0].matrix[0][1].interval is None
    for a, b in zip(usual.counts[0], found.counts[0], strict=True):
        assert a.false_matches is not None and b.false_matches is not None
        assert (a.false_matches != b.false_matches).nnz == 0


# --- thresholds -----------------------------------------------------------------------------


def test_thresholds_of_pooled_impostors() -> None:
    faces = toy()
    first, second = faces.pairs
    same = faces.subject[first] == faces.subject[second]
    scores = score_pairs(faces.vectors, first, second)
    expected = operating_points(scores[same], scores[~same], TARGETS)
    for point, wanted in zip(of_all(faces).rates.points, expected, strict=True):
        threshold = point.threshold
        assert (threshold.target, threshold.value) == (wanted.target, wanted.threshold)
        assert threshold.false_matches == wanted.false_accepts == point.fmr.events
        assert threshold.resolvable == wanted.resolvable
        assert threshold.source == "this data: non-mated pairs within and between all groups pooled"


@pytest.mark.parametrize("count", [of_list, of_all])
def test_thresholds_serve_other_groups(count: functools.partial[GroupErrors]) -> None:
    faces = toy()
    usual = count(faces)
    other = replace(faces, group=faces.subject % 2, names=("even", "odd"))
    found, expected = count(other, calibration=usual.calibration), count(other)
    assert found.rates == expected.rates and found.histograms == expected.histograms
    assert found.calibration == usual.calibration
    assert usual.calibration.source == usual.rates.points[0].threshold.source


@pytest.mark.parametrize("count", [of_list, of_all])
def test_thresholds_of_calibration_data(count: functools.partial[GroupErrors]) -> None:
    generator = np.random.default_rng(5)
    points = operating_points(
        generator.normal(0.7, 0.1, 300), generator.normal(0, 0.2, 5000), ["0.01"]
    )
    calibration = Calibration("other.npz", points)
    faces = toy()
    point = count(faces, ("1e-2",), calibration=calibration).rates.points[0]
    assert point.threshold.value == points[0].threshold
    assert (point.threshold.source, point.threshold.non_mated) == ("other.npz", 5000)
    first, second = faces.pairs
    same = faces.subject[first] == faces.subject[second]
    scores = score_pairs(faces.vectors, first, second)
    expected = error_rates(scores[same], scores[~same], points[0].threshold)
    assert (point.fmr.events, point.fnmr.events) == (
        expected.false_matches,
        expected.false_non_matches,
    )
    with pytest.raises(MetricError, match=r"other\.npz: it has no threshold for FMR 1e-4"):
        count(faces, ("1e-4",), calibration=calibration)


def test_a_calibration_that_rejects_all() -> None:
    points = operating_points([1.0, 1.0], [np.inf, 0.0], ["0"])
    for count in (of_list, of_all):
        point = count(toy(), ("0",), calibration=Calibration("x", points)).rates.points[0]
        assert (point.threshold.value, point.threshold.reason) == (None, "it accepts nothing")
        assert (point.fmr.events, point.fnmr.value) == (0, 1.0)


def test_group_thresholds_are_diagnostic() -> None:
    faces = toy()
    first, second = faces.pairs
    scores = score_pairs(faces.vectors, first, second)
    for point in of_all(faces, ("1e-1", "1e-2", "1e-5")).rates.points:
        for place, group in enumerate(point.groups):
            own = group.own_threshold
            assert own.use == DIAGNOSTIC
            within = (faces.group[first] == place) & (faces.group[second] == place)
            same = within & (faces.subject[first] == faces.subject[second])
            expected = tpr_at_fpr(scores[same], scores[within & ~same], point.threshold.target)
            assert own.resolvable == expected.resolvable
            if not own.resolvable:
                assert own.value is None and own.tmr.value is None
                assert own.reason == f"not resolvable with {expected.non_mated:,} non-mated pairs"
                continue
            assert (own.value, own.tmr.value) == (expected.threshold, expected.tpr)
            assert own.false_matches == expected.false_accepts
            missed = fnmr_interval(
                scores[same] < np.float64(expected.threshold), faces.subject[first[same]]
            )
            assert own.tmr.interval is not None
            assert own.tmr.interval.low == 1 - missed.high
            assert own.tmr.interval.high == 1 - missed.low


def test_det_points_lie_on_the_curve() -> None:
    faces = toy(persons=60, noise=0.25)
    first, second = faces.pairs
    scores = score_pairs(faces.vectors, first, second)
    rates = of_all(faces).rates
    for place, curve in enumerate(rates.det):
        assert len(curve.x) > 5
        within = (faces.group[first] == place) & (faces.group[second] == place)
        same = within & (faces.subject[first] == faces.subject[second])
        for threshold, x, y in zip(curve.thresholds, curve.x, curve.y, strict=True):
            errors = error_rates(scores[same], scores[within & ~same], threshold)
            assert (x, y) == (pytest.approx(ndtri(errors.fmr)), pytest.approx(ndtri(errors.fnmr)))
        for mark, point in zip(curve.marks, rates.points, strict=True):
            group = point.groups[place]
            assert (mark.threshold, mark.fmr) == (point.threshold.value, group.fmr.value)
            assert mark.fnmr == group.fnmr.value
            if mark.x is not None and mark.y is not None:
                assert any(
                    (mark.x, mark.y) == (pytest.approx(x), pytest.approx(y))
                    for x, y in zip(curve.x, curve.y, strict=True)
                )


def test_long_det_curves_keep_their_ends() -> None:
    generator = np.random.default_rng(0)
    faces = toy(persons=60)
    first, second = faces.pairs
    same = faces.subject[first] == faces.subject[second]
    scores = generator.normal(np.where(same, 1.5, 0), 1)
    rates = pair_group_rates(
        scores, first, second, same, faces.subject, faces.group, faces.names, targets=("1e-2",)
    ).rates
    within = (faces.group[first] == 0) & (faces.group[second] == 0)
    curve = rates.det[0]
    assert 100 < len(curve.x) <= 200
    assert curve.x[0] == pytest.approx(ndtri(1 / (within & ~same).sum()))
    assert np.all(np.diff(curve.x) >= 0) and np.all(np.diff(curve.y) <= 0)
    # No gap of the thinned curve is much longer than the others.
    steps = np.abs(np.diff(curve.x)) + np.abs(np.diff(curve.y))
    assert steps.max() < 0.5


# --- what takes no part ---------------------------------------------------------------------


def hidden(faces: Toy) -> Toy:
    """Take the subject from one person's images, and the group from another's."""
    subject, group = faces.subject.copy(), faces.group.copy()
    subject[faces.subject == 3] = -1
    group[faces.subject == 5] = -1
    return replace(faces, subject=subject, group=group)


def test_all_pairs_without_attributes_are_counted() -> None:
    faces = toy(persons=20, images=4)
    found, kept = of_all(hidden(faces)).rates, (faces.subject != 3) & (faces.subject != 5)
    rest = replace(
        faces, vectors=faces.vectors[kept], subject=faces.subject[kept], group=faces.group[kept]
    )
    assert found.points == of_all(rest).rates.points
    out = found.excluded
    assert out.contradictory == 0
    # Person 5 is known to be one person; of 3 nobody knows.
    assert (out.mated, out.non_mated) == (6, 4 * 18 * 4)
    assert out.unknown == 4 * 76 + 6
    point = found.points[0]
    total = 80 * 79 // 2
    assert total == (point.fmr.total + point.fnmr.total + out.mated + out.non_mated + out.unknown)


def test_pairs_of_a_list_without_attributes_are_counted() -> None:
    faces = toy(persons=20, images=4)
    first, second = faces.pairs
    same = faces.subject[first] == faces.subject[second]
    scores = score_pairs(faces.vectors, first, second)
    wrong = same.copy()
    wrong[np.flatnonzero(same)[:2]] = False
    wrong[np.flatnonzero(~same)[:3]] = True
    masked = hidden(faces)
    known = (masked.subject >= 0) & (masked.group >= 0)
    among = known[first] & known[second]
    scores[np.flatnonzero(among & (wrong == same))[:7]] = np.nan
    found = pair_group_rates(
        scores, first, second, wrong, masked.subject, masked.group, faces.names, targets=("1e-1",)
    ).rates
    assert found.excluded.mated == np.count_nonzero(~among & wrong)
    assert found.excluded.non_mated == np.count_nonzero(~among & ~wrong)
    assert found.excluded.contradictory == np.count_nonzero(among & (wrong != same))
    point = found.points[0]
    assert len(scores) == 7 + sum(
        [
            point.fmr.total,
            point.fnmr.total,
            found.excluded.mated,
            found.excluded.non_mated,
            found.excluded.contradictory,
        ]
    )


@pytest.mark.parametrize("count", [of_list, of_all])
def test_pairs_with_a_failure_are_lost(count: functools.partial[GroupErrors]) -> None:
    faces = toy()
    bad = np.flatnonzero(faces.group == 1)[:5]
    vectors = faces.vectors.copy()
    vectors[bad[:3]], vectors[bad[3:]] = 0, np.nan
    broken = replace(faces, vectors=vectors)
    failed = np.isin(np.arange(len(vectors)), bad)
    found = count(broken).rates
    rest = count(
        replace(
            faces,
            vectors=vectors[~failed],
            subject=faces.subject[~failed],
            group=faces.group[~failed],
        )
    ).rates
    assert found.points == rest.points
    for place, group in enumerate(found.composition):
        left = rest.composition[place]
        total, size = (np.count_nonzero(mask & (faces.group == place)) for mask in (True, ~failed))
        lost = total * (total - 1) // 2 - size * (size - 1) // 2
        assert group.lost_mated + group.lost_non_mated == lost
        assert (group.mated, group.non_mated) == (left.mated, left.non_mated)
    assert found.composition[1].lost_mated > 0


def test_groups_that_lack_pairs() -> None:
    faces = toy(names=("A", "B"))
    # A group of one person, and one without any.
    group = np.where(faces.subject == 0, 2, faces.group)
    sparse = replace(faces, group=group, names=("A", "B", "one", "none"))
    for count in (of_list, of_all):
        found = count(sparse).rates
        one, none = found.points[0].groups[2:]
        assert (one.fmr.value, one.fmr.remark, one.fmr.interval) == (None, "no comparison", None)
        assert one.fnmr.total == 6
        assert one.own_threshold.reason == "the group lacks mated pairs or non-mated pairs"
        assert found.det[2].x == () and found.det[2].reason == one.own_threshold.reason
        assert (none.fmr.total, none.fnmr.total) == (0, 0)
        assert found.composition[3].subjects == 0
        assert found.composition[3].smallest_fmr is None
        assert found.points[0].matrix[0][3].value is None
        json.dumps(asdict(found), allow_nan=False)


def test_single_images_make_no_det() -> None:
    faces = toy(names=("A", "B"))
    # Group B: one image a person, no mated pair.
    _, single = np.unique(faces.subject, return_index=True)
    kept = (faces.group == 0) | np.isin(np.arange(len(faces.subject)), single)
    part = Toy(faces.vectors[kept], faces.subject[kept], faces.group[kept], faces.names)
    listed, everyone = of_list(part).rates, of_all(part).rates
    assert_close(*([asdict(point) for point in side.points] for side in (listed, everyone)))
    assert listed.points[0].groups[1].fnmr.remark == "no comparison"
    assert everyone.det[1].reason == "the group lacks mated pairs or non-mated pairs"


# --- real lists -----------------------------------------------------------------------------


def test_lfw_with_recorded_gender(shared_data: Path) -> None:
    folder = shared_data / "lfw"
    with (folder / "attributes.csv").open(newline="", encoding="utf-8") as file:
        people = {
            row["image_id"]: (row["subject_id"], row["gender"]) for row in csv.DictReader(file)
        }
    with (folder / "pairs_images.csv").open(newline="", encoding="utf-8") as file:
        entries = [row["image_id"] for row in csv.DictReader(file)]
    images = sorted(set(entries))
    place = {name: index for index, name in enumerate(images)}
    names = ("female", "male")
    codes = {"female": 0, "male": 1, "": -1}
    subjects = sorted({people[image][0] for image in images})
    number = {name: index for index, name in enumerate(subjects)}
    sides = np.array([place[name] for name in entries]).reshape(-1, 2).T
    same = np.tile(np.repeat([True, False], 300), 10)
    generator = np.random.default_rng(0)
    rates = pair_group_rates(
        generator.normal(np.where(same, 3, 0), 1),
        *sides,
        same,
        [number[people[image][0]] for image in images],
        [codes[people[image][1]] for image in images],
        names,
        targets=("1e-2", "1e-3"),
    ).rates
    female, male = rates.composition
    assert (female.mated, male.mated) == (777, 2219)
    assert (female.non_mated, male.non_mated) == (176, 1671)
    cells = rates.points[0].matrix
    assert [[cell.total for cell in row] for row in cells] == [[176, 1145], [1145, 1671]]
    assert (rates.excluded.mated, rates.excluded.non_mated) == (4, 8)
    assert rates.excluded.contradictory == 0
    # 176 comparisons resolve nothing below about 1 %.
    assert female.smallest_fmr == 1 / 176
    assert [point.groups[0].fmr.resolvable for point in rates.points] == [True, False]
    assert not any(point.groups[0].fmr.reliable for point in rates.points)


# --- JSON, errors ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [of_list, of_all])
def test_everything_is_json(count: functools.partial[GroupErrors]) -> None:
    text = json.dumps(asdict(count(toy(), ("1", "1e-2", "1e-9", "0")).rates), allow_nan=False)
    assert "it accepts everything" in text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"group": [0, 0, 1, 1]}, "subject 0 has images in the groups 'A' and 'B'"),
        ({"group": [0, 0, 2, 0]}, "groups 0 to 2 do not fit 2 names"),
        ({"group": [0, 1]}, "4 images have a subject but 2 a group"),
        ({"subject": ["a", "b", "a", "b"]}, "subjects of images must be whole numbers"),
        ({"scores": [0.5]}, "scores, sides and labels of pairs have shapes (1,)"),
        ({"second": [2, 9]}, "pairs name the images 0 to 9, but 4 images"),
        ({"issame": [True, True]}, "1 mated and 0 non-mated pairs have a score"),
    ],
)
def test_bad_lists(change: dict[str, list], sentence: str) -> None:
    arguments = {
        "scores": [0.9, 0.1],
        "first": [0, 0],
        "second": [2, 1],
        "issame": [True, False],
        "subject": [0, 1, 0, 1],
        "group": [0, 1, 0, 1],
        "names": ("A", "B"),
    }
    with pytest.raises(MetricError) as error:
        pair_group_rates(**(arguments | change))
    assert sentence in str(error.value)


def test_bad_embeddings() -> None:
    with pytest.raises(MetricError, match="but 3 subjects and groups"):
        all_pairs_group_rates(np.ones((2, 4), np.float32), [0, 1, 1], [0, 0, 0], ("A",))
