from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from facerec.embedding import Embeddings
from facerec.errors import DatasetError, MetricError, RecipeError
from facerec.fairness.attributes import EVERYBODY, OTHERS, Joined, join, read_attributes
from facerec.fairness.one_to_many import (
    Enrolment,
    OneToMany,
    OtherSubjects,
    SearchPlan,
    SearchRate,
    audit_searches,
)

GROUPS = ("east", "west")
PLAN = SearchPlan(targets=("1e-1", "5e-2"), reference="west")


def people(
    folder: Path, persons: int = 44, failures: tuple[int, ...] = (), seed: int = 0
) -> tuple[np.ndarray, Joined]:
    """Return vectors of persons of two groups with 1 to 5 images, and their attributes joined.

    Every fourth person is of group west, and one image has no group.
    """
    generator = np.random.default_rng(seed)
    images = generator.integers(1, 6, persons)
    person = np.repeat(np.arange(persons), images)
    centres = generator.normal(size=(persons, 6))
    vectors = centres[person] + 0.7 * generator.normal(size=(person.size, 6))
    vectors *= generator.uniform(5, 20, (person.size, 1))
    ids = [f"{one}/{row}.jpg" for row, one in enumerate(person)]
    path = folder / "attributes.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "subject_id", "region", "label_source"])
        for row, one in enumerate(person):
            region = GROUPS[int(one % 4 == 0)]
            writer.writerow([ids[row], f"p{one:02d}", "" if row == 7 else region, "made up"])
    vectors = vectors.astype(np.float32)
    vectors[list(failures)] = np.nan
    norms = np.linalg.norm(vectors, axis=1)
    joined = join(read_attributes(path, ["region"]), ids, norms, failures)
    return vectors, joined


def naive(
    vectors: np.ndarray, joined: Joined, plan: SearchPlan
) -> list[tuple[int, bool, float, float]]:
    """Return image, whether it is mated, best other score and mate of all searches, by loops."""
    drawn = Enrolment.draw(joined.subjects, joined.order, plan.template, plan.seed)
    units = vectors[joined.rows].astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    failed = ~joined.acquired
    templates = {}
    for one in range(joined.subjects.max() + 1):
        images = np.flatnonzero(joined.subjects == one)
        chosen = [units[i] for i in images if drawn.enrolled[i] and not failed[i]]
        if chosen:
            mean = np.mean(chosen, axis=0)
            templates[one] = mean / np.linalg.norm(mean)
    searches = []
    for half in (0, 1):
        entries = [one for one in templates if drawn.half[one] == half]
        for i, one in enumerate(joined.subjects):
            inside = drawn.half[one] == half
            if failed[i] or (inside and (drawn.enrolled[i] or one not in entries)):
                continue
            scores = {e: float(units[i] @ templates[e]) for e in entries}
            mate = scores.pop(one, -np.inf)
            searches.append((i, bool(inside), max(scores.values()), mate))
    return searches


def rate(
    found: OneToMany, figure: str, group: str, basis: str = "", target: str = ""
) -> SearchRate:
    def where(row: SearchRate) -> tuple[str, str]:
        return ("", "") if row.threshold is None else (row.threshold.basis, row.threshold.target)

    (row,) = [
        row
        for row in found.groupings[0].rates
        if (row.figure, row.group, *where(row)) == (figure, group, basis, target)
    ]
    return row


@pytest.mark.parametrize("template", ["one", "mean"])
@pytest.mark.parametrize("failures", [(), (3, 4, 30, 61)])
def test_all_counts_equal_those_of_a_naive_loop(
    tmp_path: Path, template: str, failures: tuple[int, ...]
) -> None:
    vectors, joined = people(tmp_path, failures=failures)
    plan = replace(PLAN, template=template)  # type: ignore[arg-type]
    found = audit_searches(vectors, joined, joined.groupings, plan)
    (audit,) = found.groupings
    assert audit.compared_with == "west"
    codes, searches = joined.groupings[0].codes, naive(vectors, joined, plan)
    for basis, code in ((EVERYBODY, None), ("west", 1)):
        of_basis = [
            best for i, mated, best, _ in searches if not mated and code in (None, codes[i])
        ]
        for target in plan.targets:
            (threshold,) = [
                one for one in audit.thresholds if (one.basis, one.target) == (basis, target)
            ]
            assert threshold.value is not None
            allowed = int(float(target) * len(of_basis) + 1e-9)
            alarms = sum(best >= threshold.value for best in of_basis)
            assert threshold.false_alarms == alarms <= allowed
            assert threshold.non_mated == len(of_basis)
            # A lower threshold would let one more in than the target allows.
            rejected = max(best for best in of_basis if best < threshold.value)
            assert sum(best >= rejected - 1e-6 for best in of_basis) > allowed
            for g, name in enumerate((*GROUPS, EVERYBODY)):
                mine = [x for x in searches if name == EVERYBODY or codes[x[0]] == g]
                fpir, fnir = (
                    rate(found, figure, name, basis, target).rate for figure in ("FPIR", "FNIR")
                )
                value = threshold.value
                assert fpir.total == sum(not mated for _, mated, *_ in mine)
                assert fpir.events == sum(not m and best >= value for _, m, best, _ in mine)
                assert fnir.total == sum(mated for _, mated, *_ in mine)
                assert fnir.events == sum(m and mate < value for _, m, _, mate in mine)
                first = rate(found, "rank-1 miss rate", name).rate
                assert first.events == sum(m and best >= mate for _, m, best, mate in mine)
                assert first.low <= first.value <= first.high


def test_failures_to_enrol_are_counted_by_group(tmp_path: Path) -> None:
    vectors, joined = people(tmp_path, failures=(3, 4, 30, 61, 62, 63))
    found = audit_searches(vectors, joined, joined.groupings, PLAN)
    drawn = Enrolment.draw(joined.subjects, joined.order, "one", 0)
    codes, failed = joined.groupings[0].codes, ~joined.acquired
    without = set(joined.subjects[drawn.enrolled & failed].tolist())
    for g, (name, row) in enumerate(found.groupings[0].failures):
        inside = codes == g if g < 2 else np.ones(codes.size, bool)
        here = set(joined.subjects[inside].tolist())
        assert name == (*GROUPS, EVERYBODY)[g]
        assert (row.events, row.total) == (len(without & here), len(here))


@pytest.mark.parametrize("template", ["one", "mean"])
def test_the_order_of_images_changes_nothing(tmp_path: Path, template: str) -> None:
    vectors, joined = people(tmp_path)
    plan = replace(PLAN, template=template)  # type: ignore[arg-type]
    ids = [f"{one}/{row}.jpg" for row, one in enumerate(joined.subjects)]
    turned = np.random.default_rng(3).permutation(len(ids))
    attributes = read_attributes(tmp_path / "attributes.csv", ["region"])
    again = join(attributes, np.array(ids)[turned], np.linalg.norm(vectors[turned], axis=1))
    sides = (vectors, joined), (vectors[turned], again)
    one, other = (audit_searches(found, of, of.groupings, plan) for found, of in sides)
    assert one == other
    assert replace(one, protocol="") != replace(
        audit_searches(vectors, joined, joined.groupings, replace(plan, seed=1)), protocol=""
    )
    named = [
        Embeddings(
            found,
            np.linalg.norm(found, axis=1),
            True,
            np.array(ids)[rows],
            joined.subjects[rows].astype(str),
        )
        for found, rows in ((vectors, np.arange(len(ids))), (vectors[turned], turned))
    ]
    best = [np.sort(OtherSubjects.of(each, "C.npz").best_scores(8, plan)) for each in named]
    np.testing.assert_allclose(*best, rtol=0, atol=1e-6)


def test_everybody_is_enrolled_once_and_outside_once(tmp_path: Path) -> None:
    _, joined = people(tmp_path, persons=41)
    images = np.bincount(joined.subjects)
    for template, wanted in (("one", np.ones(41)), ("mean", np.maximum(images // 2, 1))):
        drawn = Enrolment.draw(joined.subjects, joined.order, template, 5)  # type: ignore[arg-type]
        assert sorted(np.bincount(drawn.half)) == [20, 21]
        np.testing.assert_array_equal(np.bincount(joined.subjects[drawn.enrolled]), wanted)
    again = Enrolment.draw(joined.subjects, joined.order, "mean", 5)
    np.testing.assert_array_equal(again.enrolled, drawn.enrolled)
    other = Enrolment.draw(joined.subjects, joined.order, "mean", 6)
    assert (other.half != drawn.half).any() and (other.enrolled != drawn.enrolled).any()


def test_ratios_are_of_the_rates_and_withheld_for_few_errors(tmp_path: Path) -> None:
    vectors, joined = people(tmp_path, persons=120)
    plan = SearchPlan(targets=("3e-1", "1e-2"))
    found = audit_searches(vectors, joined, joined.groupings, plan)
    assert found.groupings[0].compared_with == "east"
    many = rate(found, "FPIR", "west", EVERYBODY, "3e-1")
    base = rate(found, "FPIR", "east", EVERYBODY, "3e-1")
    assert many.ratio is not None and base.ratio is None
    assert many.ratio.value == pytest.approx(many.rate.value / base.rate.value)
    assert many.ratio.low is not None and many.ratio.low < many.ratio.value < many.ratio.high
    few = rate(found, "FPIR", "west", EVERYBODY, "1e-2")
    assert few.ratio is not None and few.ratio.value is None
    assert few.ratio.remark.startswith("insufficient data")


def test_the_largest_detected_ratio_is_told_and_no_other(tmp_path: Path) -> None:
    vectors, joined = people(tmp_path, persons=160)
    plan = SearchPlan(targets=("3e-1",))
    # Images of west are noisier: their persons are missed more often.
    west = joined.groupings[0].codes == 1
    noise = np.random.default_rng(3).normal(size=vectors.shape)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[west] += (0.5 * length * noise)[west].astype(np.float32)
    found = audit_searches(vectors, joined, joined.groupings, plan)
    (largest,) = [one for one in found.groupings[0].largest if one.figure == "FNIR"]
    rows = {g: rate(found, "FNIR", g, EVERYBODY, "3e-1") for g in GROUPS}
    assert largest.ends == tuple((g, rows[g].rate.value) for g in ("west", "east"))
    assert largest.total == sum(row.rate.total for row in rows.values())
    # With two groups there is one pair, and its interval is that of the table.
    ratio = rows["west"].ratio
    assert ratio is not None and (largest.value, largest.interval) == (ratio.value, ratio.interval)
    assert largest.low is not None and largest.low > 1
    # Among three groups an interval holds for three pairs at once.
    codes = np.where(west, 2, joined.subjects % 2)
    three = replace(
        joined.groupings[0], cells=(("a",), ("b",), ("west",)), codes=codes.astype(np.int64)
    )
    (audit,) = audit_searches(vectors, joined, [three], plan).groupings
    wider = next(one for one in audit.largest if one.figure == "FNIR")
    assert wider.ends[0][0] == "west" and wider.interval is not None
    assert wider.interval.confidence == pytest.approx(1 - 0.05 / 3)
    # Groups drawn by chance differ by nothing that is detected.
    by_chance = replace(joined.groupings[0], codes=joined.subjects % 2)
    assert not audit_searches(vectors, joined, [by_chance], plan).groupings[0].largest


@pytest.mark.parametrize("template", ["one", "mean"])
def test_thresholds_of_other_people_are_those_of_galleries_of_that_size(
    tmp_path: Path, template: str
) -> None:
    vectors, joined = people(tmp_path)
    other, known = people(tmp_path, persons=70, seed=4)
    names = np.array([f"p{one}" for one in known.subjects])
    names[5], other[9], other[11] = "", np.nan, 0
    norms = np.linalg.norm(other, axis=1)
    others = OtherSubjects.of(Embeddings(other, norms, True, subjects=names), "C.npz")
    used = ~np.isin(np.arange(len(names)), (5, 9, 11))
    assert len(others.vectors) == used.sum() and others.count == len(set(names[used]))
    plan = replace(PLAN, template=template)  # type: ignore[arg-type]
    found = audit_searches(vectors, joined, joined.groupings, plan, others=others)
    size = 22  # half of the 44 subjects
    units = others.vectors / np.linalg.norm(others.vectors, axis=1, keepdims=True)
    enrolled = Enrolment.draw(others.subjects, others.order, plan.template, plan.seed).enrolled
    order = np.random.default_rng((plan.seed, 2)).permutation(others.count)
    best = []
    for start in range(0, others.count // size * size, size):
        inside = set(order[start : start + size].tolist())
        assert len(inside) == size
        sums = {one: units[enrolled & (others.subjects == one)].sum(axis=0) for one in inside}
        for unit, one in zip(units, others.subjects, strict=True):
            if one not in inside:
                best.append(max(unit @ t / np.linalg.norm(t) for t in sums.values()))
    rows = found.groupings[0].thresholds
    assert [one.basis for one in rows] == [OTHERS, OTHERS, "west", "west"]
    for threshold in rows[:2]:
        assert threshold.non_mated == len(best) and threshold.value is not None
        allowed = int(float(threshold.target) * len(best) + 1e-9)
        # Scores are rounded to a grid of 4e-7.
        sure = sum(score >= threshold.value + 1e-6 for score in best)
        rejected = max(score for score in best if score < threshold.value)
        perhaps = sum(score >= rejected - 1e-6 for score in best)
        assert sure <= threshold.false_alarms <= allowed < perhaps
    again = audit_searches(vectors, joined, joined.groupings, plan)
    assert rate(again, "rank-1 miss rate", "east") == rate(found, "rank-1 miss rate", "east")


def test_too_few_other_people_are_refused(tmp_path: Path) -> None:
    vectors, joined = people(tmp_path)
    norms, names = joined.norms, np.array([f"p{one}" for one in joined.subjects])
    few = joined.subjects < 22
    others = OtherSubjects.of(Embeddings(vectors[few], norms[few], True, None, names[few]), "C.npz")
    with pytest.raises(DatasetError, match=r"C\.npz.*22"):
        audit_searches(vectors, joined, joined.groupings, PLAN, others=others)
    with pytest.raises(DatasetError, match="nobody"):
        OtherSubjects.of(Embeddings(vectors, norms, True), "C.npz")


def test_scaling_changes_nothing(tmp_path: Path) -> None:
    vectors, joined = people(tmp_path)
    found = audit_searches(vectors, joined, joined.groupings, PLAN)
    scaled = audit_searches(4 * vectors, joined, joined.groupings, PLAN)
    assert scaled == found


@pytest.mark.parametrize("targets", [("2",), ("x",)])
def test_impossible_requests_are_refused(tmp_path: Path, targets: tuple[str, ...]) -> None:
    vectors, joined = people(tmp_path)
    with pytest.raises(MetricError):
        audit_searches(vectors, joined, joined.groupings, SearchPlan(targets=targets))
    with pytest.raises(DatasetError, match="north"):
        audit_searches(vectors, joined, joined.groupings, SearchPlan(reference="north"))
    with pytest.raises(RecipeError):
        SearchPlan(seed=-1)


def test_persons_with_one_image_make_no_mated_search(tmp_path: Path) -> None:
    vectors, joined = people(tmp_path)
    first = np.unique(joined.subjects, return_index=True)[1]
    single = replace(
        joined,
        rows=joined.rows[first],
        norms=joined.norms[first],
        subjects=joined.subjects[first],
        order=joined.order[first],
        groupings=(replace(joined.groupings[0], codes=joined.groupings[0].codes[first]),),
    )
    with pytest.raises(MetricError, match="two images"):
        audit_searches(vectors, single, single.groupings, PLAN)
