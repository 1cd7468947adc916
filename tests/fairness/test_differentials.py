from __future__ import annotations

import csv
import functools
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers.examples import examples
from helpers.toy_faces import Toy, toy
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.errors import MetricError
from facerec.fairness.differentials import (
    MEASURES,
    Differential,
    accuracies,
    differentials,
    fdr,
    garbe,
    gini,
    inequity_rate,
    mape,
    max_minus_min,
    max_over_geomean,
    max_over_mean,
    max_over_min,
    rate_replicates,
    resample,
    ser,
    std,
    werm,
)
from facerec.fairness.rates import GroupErrors, all_pairs_group_rates, pair_group_rates
from facerec.statistics.bootstrap import VertexBootstrap, percentile_interval
from facerec.statistics.clustered import Bound
from facerec.verification.evaluation import score_pairs

# Other processes may hold a machine up, so there is no deadline.
few = settings(max_examples=examples(60), deadline=None)
rates = st.lists(st.floats(1e-6, 1), min_size=2, max_size=8)
pairs = st.lists(st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)), min_size=2, max_size=8)

A = np.array([1, 2, 4, 8]) * 1e-4
B = np.array([0.01, 0.02, 0.02, 0.05])


# --- formulas against published figures -----------------------------------------------------


def test_four_groups_by_hand() -> None:
    assert fdr(A, B) == pytest.approx(0.97965, abs=1e-15)
    assert inequity_rate(A, B) == pytest.approx(6.324555320, abs=5e-10)
    assert gini(A) == pytest.approx(0.511111, abs=5e-7)
    assert gini(B) == pytest.approx(0.4, abs=1e-15)
    assert garbe(A, B) == pytest.approx(0.455556, abs=5e-7)
    assert max_over_geomean(A) == pytest.approx(2.828427125, abs=5e-10)
    assert max_over_geomean(B) == pytest.approx(31.25**0.25, abs=1e-14)
    assert werm(A, B) == pytest.approx(2.527387016, abs=5e-10)
    assert mape(A, 2e-4) == pytest.approx(112.5, abs=1e-12)


def test_compas_of_aequitas(shared_data: Path) -> None:
    counts: Counter[tuple[str, bool, bool]] = Counter()
    path = shared_data / "oracles" / "compas_for_aequitas.csv"
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            counts[row["race"], row["label_value"] == "1", float(row["score"]) >= 1] += 1
    assert counts.total() == 7214
    races = sorted({race for race, _, _ in counts})
    assert races[0] == "African-American" and races[2] == "Caucasian"
    cells = [
        [counts[race, label, decision] for label, decision in
         ((False, True), (True, False), (False, False), (True, True))]
        for race in races
    ]  # fmt: skip
    assert cells == [
        [805, 532, 990, 1369],
        [2, 3, 21, 6],
        [349, 461, 1139, 505],
        [87, 129, 318, 103],
        [3, 1, 5, 9],
        [36, 90, 208, 43],
    ]
    fp, fn, tn, tp = np.array(cells).T
    fpr, fnr = fp / (fp + tn), fn / (fn + tp)
    assert fdr(fpr, fnr) == pytest.approx(0.530898412921, abs=5e-13)
    assert inequity_rate(fpr, fnr) == pytest.approx(5.907586211169, abs=5e-13)
    assert gini(fpr) == pytest.approx(0.332995910, abs=5e-10)
    assert gini(fnr) == pytest.approx(0.318256445, abs=5e-10)
    assert garbe(fpr, fnr) == pytest.approx(0.325626177523, abs=5e-13)
    assert max_over_geomean(fpr) == pytest.approx(2.052835038, abs=5e-10)
    assert max_over_geomean(fnr) == pytest.approx(1.963601821, abs=5e-10)
    assert max_over_mean(fpr) == pytest.approx(1.785156, abs=5e-7)
    assert max_over_mean(fnr) == pytest.approx(1.675575, abs=5e-7)
    assert max_over_min(fpr) == pytest.approx(5.157382, abs=5e-7)
    two = [0, 2]
    assert max_over_min(fpr[two]) == pytest.approx(1.912093, abs=5e-7)
    assert 1 / max_over_min(fnr[two]) == pytest.approx(0.586416, abs=5e-7)


def test_rows_of_score_norm_fairness() -> None:
    # Its README gives WERM beside the two ratios of which it is the geometric mean ...
    fmr, fnmr = np.array([1e-3, 4e-3]), np.array([0.02, 0.03])
    ratios = [rate.max() / math.exp(float(np.log(rate + 1e-5).mean())) for rate in (fmr, fnmr)]
    assert werm(fmr, fnmr) == pytest.approx(math.sqrt(ratios[0] * ratios[1]))
    assert math.sqrt(2.5718 * 1.0557) == pytest.approx(1.6477, abs=5e-5)
    # ... and a ratio of 5.85 on RFW, from 6, 3, 2 and 0 false matches of some 2970.
    found = werm(np.array([6, 3, 2, 0]) / 2970, np.full(4, 0.1), alpha=1)
    assert found == pytest.approx(5.85, abs=1e-2)


# --- formulas: laws -------------------------------------------------------------------------


@few
@given(rates)
def test_gini_is_the_double_sum(values: list[float]) -> None:
    exact = [Fraction(value) for value in values]
    count = len(exact)
    gaps = sum(abs(x - y) for x in exact for y in exact)
    expected = Fraction(count, count - 1) * gaps / (2 * count**2 * (sum(exact) / count))
    assert gini(values) == pytest.approx(float(expected), rel=1e-9, abs=1e-14)
    assert -1e-12 <= gini(values) <= 1 + 1e-12


@few
@given(rates)
def test_ratios_by_their_definitions(values: list[float]) -> None:
    product = math.prod(Fraction(value) for value in values)
    # The n-th power, so that the geometric mean is exact.
    power = Fraction(max(values)) ** len(values) / product
    assert float(max_over_geomean(values)) ** len(values) == pytest.approx(float(power), rel=1e-9)
    assert max_over_min(values) == max(values) / min(values)
    assert max_over_mean(values) == pytest.approx(max(values) / (sum(values) / len(values)))
    assert max_minus_min(values) == max(values) - min(values)


@few
@given(pairs, st.floats(0.01, 100))
def test_what_scaling_leaves_alone(values: list[tuple[float, float]], factor: float) -> None:
    fmr, fnmr = np.array(values).T
    for of_one in (gini, max_over_geomean, max_over_min, max_over_mean):
        assert of_one(fmr * factor) == pytest.approx(of_one(fmr), rel=1e-9, abs=1e-12)
    for of_both in (garbe, inequity_rate):
        scaled = of_both(fmr * factor, fnmr * factor)
        assert scaled == pytest.approx(of_both(fmr, fnmr), rel=1e-9, abs=1e-12)
    expected = 1 - factor * (1 - fdr(fmr, fnmr))
    assert fdr(fmr * factor, fnmr * factor) == pytest.approx(expected, abs=1e-9)


@few
@given(pairs, st.randoms(use_true_random=False))
def test_order_of_groups_does_not_matter(values: list[tuple[float, float]], random: object) -> None:
    shuffled = random.sample(values, len(values))  # type: ignore[attr-defined]
    for measure in MEASURES:
        first, second = (measure.compute(*np.array(side).T, 1e-3) for side in (values, shuffled))
        assert first == pytest.approx(second, rel=1e-9, abs=1e-12)


@few
@given(st.floats(1e-6, 0.9), st.floats(1e-6, 0.9), st.integers(2, 8))
def test_parity(fmr: float, fnmr: float, groups: int) -> None:
    a, b = np.full(groups, fmr), np.full(groups, fnmr)
    assert fdr(a, b) == 1
    assert inequity_rate(a, b) == 1
    assert garbe(a, b) == 0 and gini(a) == 0
    assert max_over_geomean(a) == 1 and max_over_min(a) == 1 and max_minus_min(a) == 0
    assert max_over_mean(a) == pytest.approx(1)
    assert std(accuracies(a, b)) == pytest.approx(0, abs=1e-12)
    assert ser(accuracies(a, b)) == 1
    assert mape(a, fmr) == 0


@few
@given(st.floats(1e-6, 1), st.floats(1e-6, 1), st.integers(2, 9))
def test_small_identities_of_gini(first: float, second: float, groups: int) -> None:
    expected = abs(first - second) / (first + second)
    assert gini([first, second]) == pytest.approx(expected, rel=1e-9, abs=1e-14)
    assert gini([first] + [0] * (groups - 1)) == pytest.approx(1, rel=1e-12)
    assert gini(np.zeros(groups)) == 0


def test_gini_of_two() -> None:
    assert gini([0.1, 0.3]) == pytest.approx(0.5, abs=1e-15)


def test_ratios_at_zero() -> None:
    some, none = [0.0, 0.1], [0.0, 0.0]
    for measure in (max_over_geomean, max_over_min):
        assert measure(some) == math.inf
        assert math.isnan(measure(none))
    assert inequity_rate(some, [0.1, 0.2]) == math.inf
    assert werm(none, [0.1, 0.2]) == 0


def test_accuracy_of_a_balanced_list() -> None:
    fmr, fnmr = np.array([30, 60]) / 3000, np.array([90, 60]) / 3000
    assert accuracies(fmr, fnmr).tolist() == pytest.approx([98.0, 98.0])
    assert std([97.0, 99.0]) == 1
    assert ser([97.0, 99.0]) == pytest.approx(3)


@few
@given(st.integers(0, 2**32))
def test_replicates_at_once_equal_one_by_one(seed: int) -> None:
    fmr, fnmr = np.random.default_rng(seed).random((2, 5, 3))
    for measure in MEASURES:
        together = measure.compute(fmr, fnmr, 0.1)
        single = [float(measure.compute(a, b, 0.1)) for a, b in zip(fmr, fnmr, strict=True)]
        np.testing.assert_allclose(together, single, rtol=1e-12)


def test_one_group_has_no_differential() -> None:
    with pytest.raises(MetricError, match="fewer than two groups"):
        gini([0.1])


# --- replicates -----------------------------------------------------------------------------


def counted(faces: Toy, targets: tuple[str, ...], listed: bool = False) -> GroupErrors:
    if not listed:
        return all_pairs_group_rates(
            faces.vectors, faces.subject, faces.group, faces.names, targets=targets
        )
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
    )


@pytest.mark.parametrize("listed", [False, True])
def test_replicates_are_those_of_the_vertex_bootstrap(listed: bool) -> None:
    faces = toy(persons=30, images=3)
    errors = counted(faces, ("5e-2",), listed)
    threshold = errors.rates.points[0].threshold.value
    assert threshold is not None
    first, second = faces.pairs
    sides = faces.subject[first], faces.subject[second]
    scores = score_pairs(faces.vectors, first, second).astype(np.float64)
    everybody = VertexBootstrap(*sides, sides[0] == sides[1], replicates=300, seed=7)
    weights = resample(errors.subjects, 300, 7)
    np.testing.assert_array_equal(weights, everybody.multiplicities)
    for place, counts in enumerate(errors.counts[0]):
        within = (faces.group[first] == place) & (faces.group[second] == place)
        group = everybody.select(within)
        fmr, fnmr = rate_replicates(counts, weights)
        np.testing.assert_allclose(fmr, group.fmr(scores[within], threshold), rtol=1e-12)
        np.testing.assert_allclose(fnmr, group.fnmr(scores[within], threshold), rtol=1e-12)


def test_replicates_without_comparisons_are_undefined() -> None:
    errors = counted(toy(persons=6, images=2), ("1e-1",))
    counts = errors.counts[0][0]
    weights = np.ones((3, 6), np.uint8)
    weights[0, counts.members] = 0
    weights[1, counts.members[1:]] = 0
    fmr, fnmr = rate_replicates(counts, weights)
    assert fmr is not None
    # Drawn alone, a person is compared with nobody, not with copies of itself.
    assert np.isnan(fmr).tolist() == [True, True, False]
    assert np.isnan(fnmr).tolist() == [True, False, False]


RATIOS = ("max/geomean", "max/min", "max/mean")


# --- the table ------------------------------------------------------------------------------


@functools.cache
def large() -> GroupErrors:
    return counted(toy(persons=240, images=3, noise=0.2), ("5e-2", "1e-2", "1e-4"))


def row(rows: tuple[Differential, ...], name: str, target: str, of: str = "FMR") -> Differential:
    (found,) = (r for r in rows if (r.measure, r.target, r.of) == (name, target, of))
    return found


def test_values_are_those_of_the_rates() -> None:
    found = differentials(large(), replicates=50)
    assert found.groups == ("A", "B", "C") and found.left_out == ()
    for point in large().rates.points[:2]:
        fmr = np.array([group.fmr.value for group in point.groups], float)
        fnmr = np.array([group.fnmr.value for group in point.groups], float)
        target = point.threshold.target
        for measure in MEASURES:
            one = row(found.rows, measure.name, target, measure.of)
            assert one.definition == measure.definition
            if one.value is not None:
                assert one.value == measure.compute(fmr, fnmr, float(target))
                assert one.interval is not None or one.remark
            else:
                assert one.remark and one.smoothed is not None
    # The measure of the headline is the first.
    assert (found.rows[0].measure, found.rows[0].of) == ("max/geomean", "FMR")


def test_intervals_come_from_one_joint_resample() -> None:
    errors = large()
    found = differentials(errors, replicates=400, seed=3)
    weights = resample(errors.subjects, 400, 3)
    drawn = [rate_replicates(counts, weights) for counts in errors.counts[0]]
    fmr = np.stack([fmr for fmr, _ in drawn if fmr is not None], axis=-1)
    one = row(found.rows, "MAPE", "5e-2")
    assert one.value is not None
    assert one.interval == percentile_interval(one.value, mape(fmr, 0.05))
    both = next(one for one in found.rows if one.measure == "area under FDR")
    assert both.value is not None and both.interval is not None
    assert both.interval.low <= both.value <= both.interval.high
    assert differentials(errors, replicates=400, seed=3) == found
    assert differentials(errors, replicates=400, seed=4) != found


def test_intervals_hold_a_value_that_replicates_lie_beyond() -> None:
    # Each of few persons matters, and both rates are close to nominal: replicates are further off.
    generator = np.random.default_rng(12)
    subject = np.repeat(np.arange(40), 2)
    vectors = generator.standard_normal((80, 8)) + generator.standard_normal((40, 8))[subject]
    errors = all_pairs_group_rates(vectors, subject, subject % 2, ("A", "B"), targets=("1e-1",))
    one = row(differentials(errors, replicates=200).rows, "MAPE", "1e-1")
    assert one.value is not None and one.interval is not None
    assert one.interval.low <= one.value <= one.interval.high


def test_area_under_fdr() -> None:
    found = differentials(large(), replicates=60)
    (area,) = (r for r in found.rows if r.measure == "area under FDR")
    targets = area.target.split(", ")
    values = [row(found.rows, "FDR", target, "FMR and FNMR").value for target in targets]
    assert len(targets) >= 2 and None not in values
    assert area.value == pytest.approx(np.mean(values))
    assert area.interval is not None and area.interval.low < area.value < area.interval.high


def test_zero_cells() -> None:
    errors = large()
    point = errors.rates.points[0]
    group = point.groups[1]
    bound = Bound(0.0, 0.02, method="bound", if_independent=3 / group.fmr.total)
    none = replace(group.fmr, events=0, value=0.0, interval=bound, reliable=False)
    groups = (point.groups[0], replace(group, fmr=none), point.groups[2])
    changed = replace(
        errors, rates=replace(errors.rates, points=(replace(point, groups=groups),)),
        counts=errors.counts[:1],
    )  # fmt: skip
    found = differentials(changed, replicates=50).rows
    comparisons = f"0/{none.total:,} in B"
    for name in ("max/geomean", "max/min", "max/mean"):
        one = row(found, name, "5e-2")
        assert one.value is None and one.interval is None and one.p_value is None
        assert one.remark == f"undefined: false matches {comparisons}, true rate at most 0.02"
        assert (one.upper, one.mark) == (0.02, "○")
        cells = [(0 if g.name == "B" else g.fmr.events, g.fmr.total) for g in groups]
        jeffreys = np.array([(k + 0.5) / (n + 1) for k, n in cells])
        measure = next(m for m in MEASURES if m.name == name)
        assert one.smoothed == measure.compute(jeffreys, jeffreys, 0.05)
    # What is no ratio is defined: differences, Gini, and WERM by its published constant.
    for name, of in (("max−min", "FMR"), ("Gini", "FMR"), ("WERM", "FMR and FNMR")):
        one = row(found, name, "5e-2", of)
        assert one.value is not None and one.upper == 0.02
        # Rates of 0 cannot be scaled to a common one.
        assert one.p_value is None
    # Other errors are none of its business.
    assert row(found, "max/min", "5e-2", "FNMR").value is not None
    assert row(found, "max/min", "5e-2", "FNMR").upper is None


def with_errors(errors: GroupErrors, counts: list[int]) -> tuple[Differential, ...]:
    """Pretend that groups have other numbers of false matches at the first target."""
    point = errors.rates.points[0]
    groups = tuple(
        replace(
            group,
            fmr=replace(group.fmr, events=count, value=count / group.fmr.total),
        )
        for group, count in zip(point.groups, counts, strict=True)
    )
    rates = replace(errors.rates, points=(replace(point, groups=groups),))
    return differentials(replace(errors, rates=rates, counts=errors.counts[:1]), replicates=20).rows


@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ([500, 2, 500], ["2/", "in B"]),
        ([29, 12, 20], ["29/", "in A", "12/", "in B"]),
        ([500, 12, 20], None),
        ([40, 35, 30], None),
    ],
)
def test_a_handful_against_a_handful_is_no_ratio(
    counts: list[int], named: list[str] | None
) -> None:
    one = row(with_errors(large(), counts), "max/min", "5e-2")
    if named is None:
        assert one.value is not None and one.smoothed is None
        return
    assert one.value is None and one.smoothed is not None
    assert one.remark.startswith("insufficient data: false matches")
    assert all(part in one.remark for part in named)


def test_targets_that_cannot_be_resolved() -> None:
    small = counted(toy(persons=36, images=2), ("1e-2", "1e-9"))
    found = differentials(small, replicates=20).rows
    rows = [r for r in found if r.target == "1e-9"]
    assert len(rows) == len(MEASURES)
    impostors = small.rates.points[0].fmr.total
    assert {r.remark for r in rows} == {
        f"not resolvable: FMR 1e-9 with the {impostors:,} non-mated pairs on which the threshold "
        "was fixed"
    }
    assert {r.value for r in rows} == {None}


def test_groups_too_small_for_the_nominal_rate() -> None:
    errors = counted(toy(persons=90, images=2), ("1e-3",))
    point = errors.rates.points[0]
    small = [g for g in point.groups if g.fmr.total < 1000 and g.fmr.events < 3]
    assert not small  # groups of this size are large enough ...
    first = replace(point.groups[0].fmr, events=1, total=500, value=1 / 500)
    groups = (replace(point.groups[0], fmr=first), *point.groups[1:])
    rates = replace(errors.rates, points=(replace(point, groups=groups),))
    found = differentials(replace(errors, rates=rates), replicates=20).rows
    one = row(found, "FDR", "1e-3", "FMR and FNMR")
    # ... and one of 500 comparisons is not, even for a difference.
    assert one.value is None
    assert one.remark == "insufficient data: false matches 1/500 in A at a nominal FMR of 1e-3"
    assert row(found, "Gini", "1e-3", "FNMR").value is not None


def test_small_groups_are_left_out() -> None:
    faces = toy(persons=60, images=3)
    group = np.where((faces.group == 2) & (faces.subject > 20), -1, faces.group)
    errors = counted(replace(faces, group=group), ("1e-2",))
    found = differentials(errors, replicates=20)
    assert found.groups == ("A", "B")
    assert found.left_out == ("C: 7 subjects, fewer than 10",)
    alone = counted(replace(faces, group=np.where(faces.group == 2, -1, faces.group)), ("1e-2",))
    assert differentials(alone, replicates=20).left_out == ("C: 0 subjects, fewer than 10",)


def test_one_group_is_no_comparison() -> None:
    faces = toy(persons=40, images=3)
    single = replace(faces, group=np.zeros_like(faces.group), names=("everybody",))
    for listed in (False, True):
        found = differentials(counted(single, ("1e-2",), listed), replicates=20)
        assert found.rows == ()
        assert found.reason == (
            "no comparison: 1 groups with enough subjects and pairs, two are needed"
        )


def test_everything_is_json() -> None:
    found = differentials(large(), replicates=20)
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["replicates"] == 20


# --- against parity -------------------------------------------------------------------------


def simulated(generator: np.random.Generator, shift: float) -> GroupErrors:
    """Two groups of 40 persons with three mated and some non-mated pairs each."""
    persons = 80
    subject = np.repeat(np.arange(persons), 3)
    group = subject % 2
    mated = np.arange(persons)[:, None] * 3 + np.array([[0, 1], [0, 2], [1, 2]])[:, None]
    others = generator.integers(subject.size, size=(2, 6000))
    others = others[:, subject[others[0]] != subject[others[1]]]
    first = np.concatenate([mated[..., 0].ravel(), others[0]])
    second = np.concatenate([mated[..., 1].ravel(), others[1]])
    same = subject[first] == subject[second]
    # The mated pairs of a person have something in common.
    spread = generator.normal(0, 1, persons)[subject[first]] * same
    mean = np.where(same, 1.5 - shift * group[first], 0)
    scores = generator.normal(mean, 1) + spread
    return pair_group_rates(
        scores, first, second, same, subject, group, ("A", "B"), targets=("5e-2",)
    )


def p_values(shift: float, runs: int, name: str = "max/geomean") -> list[float]:
    generator = np.random.default_rng(0)
    found = [
        row(differentials(simulated(generator, shift), replicates=199).rows, name, "5e-2", "FNMR")
        for _ in range(runs)
    ]
    return [one.p_value for one in found if one.p_value is not None]


@pytest.mark.integration
def test_equal_groups_seldom_seem_to_differ() -> None:
    values = p_values(0.0, 80)
    assert len(values) == 80
    # Of the binomial distribution of 80 runs at 5 %, 9 is the 99.5th percentile.
    assert sum(value <= 0.05 for value in values) <= 9
    assert 0.35 < np.mean(values) < 0.65


def test_p_of_two_groups_is_that_of_two_logarithms() -> None:
    """For two groups max/geomean exceeds parity as two logarithms of rates lie apart."""
    errors = simulated(np.random.default_rng(5), 0.3)
    found = differentials(errors, replicates=2000)
    generator = np.random.default_rng(0)
    for of in ("FMR", "FNMR"):
        one = row(found.rows, "max/geomean", "5e-2", of)
        shares = [
            counts.fmr_share() if of == "FMR" else counts.fnmr_share()
            for counts in errors.counts[0]
        ]
        draws = [
            generator.standard_t(share.effective_subjects - 1, 200_000)
            * math.sqrt(share.variance)
            / share.rate
            for share in shares
        ]
        apart = abs(math.log(shares[0].rate / shares[1].rate))
        expected = np.mean(np.abs(draws[0] - draws[1]) >= apart)
        assert one.p_value == pytest.approx(expected, abs=4 * (expected / 2000) ** 0.5)
        assert expected > 0.01
        assert one.at_parity == pytest.approx(
            np.exp(np.quantile(np.abs(draws[0] - draws[1]), 0.95) / 2), rel=0.02
        )


def test_shares_by_person_are_those_of_the_rates() -> None:
    for errors in (large(), counted(toy(persons=60, images=3), ("1e-1",), listed=True)):
        for point, counts in zip(errors.rates.points, errors.counts, strict=True):
            for group, one in zip(point.groups, counts, strict=True):
                share = one.fmr_share()
                assert share is not None
                assert (share.events, share.comparisons) == (
                    group.fmr.events,
                    group.fmr.total,
                )
                assert group.fmr.interval == share.interval()
                assert group.fnmr.interval == one.fnmr_share().interval()


def test_intervals_reach_parity_where_the_test_finds_nothing() -> None:
    detected = 0
    for seed in range(6):
        rows = differentials(
            simulated(np.random.default_rng(seed), 0.2 * seed), replicates=199
        ).rows
        for one in rows:
            if one.p_value is None or one.measure == "WERM":  # which parity leaves below 1
                continue
            best = {True: 1.0, False: 0.0}[one.measure in ("FDR", "IR", "SER", *RATIOS)]
            assert one.value is not None and one.interval is not None
            assert one.interval.low <= one.value <= one.interval.high
            assert one.interval.low < one.interval.high
            away = one.interval.high if one.better == "higher" else one.interval.low
            assert (away != pytest.approx(best, abs=1e-12)) == (one.p_value < 0.05)
            detected += one.p_value < 0.05
    assert detected > 10


def test_equal_groups_have_an_interval() -> None:
    """With as many errors in both groups there is no direction, but there is a width."""
    persons, generator = 30, np.random.default_rng(0)
    mated = np.array([[0, 1], [0, 2], [1, 2]]) + 3 * np.arange(persons)[:, None, None]
    others = generator.integers(3 * persons, size=(900, 2))
    others = others[others[:, 0] // 3 != others[:, 1] // 3]
    pairs = np.concatenate([mated.reshape(-1, 2), others])
    pairs = np.concatenate([pairs, pairs + 3 * persons])  # the same once more, of other people
    first, second = pairs.T
    same = first // 3 == second // 3
    scores = np.tile(generator.normal(2 * same[: len(same) // 2]), 2)
    subject = np.arange(6 * persons) // 3
    group = (subject >= persons).astype(int)
    alike = pair_group_rates(
        scores, first, second, same, subject, group, ("A", "B"), targets=("5e-2",)
    )
    one = row(differentials(alike, replicates=199).rows, "max/geomean", "5e-2", "FNMR")
    assert one.value == 1 and one.p_value == 1
    assert one.interval is not None and one.interval.low == 1 and one.interval.high > 1.02


def test_different_groups_seem_to_differ() -> None:
    values = p_values(1.5, 10)
    assert max(values) <= 0.05


@pytest.mark.parametrize("pick", [min, max])
def test_parity_of_a_measure_where_more_is_better(pick: Callable[..., float]) -> None:
    one = row(
        differentials(simulated(np.random.default_rng(1), 3 * (pick is max)), replicates=199).rows,
        "FDR",
        "5e-2",
        "FMR and FNMR",
    )
    assert one.better == "higher"
    assert one.p_value is not None and one.at_parity is not None and one.value is not None
    assert (one.p_value <= 0.05) == (one.value <= one.at_parity) == (pick is max)
