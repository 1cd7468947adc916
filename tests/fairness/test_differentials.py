from __future__ import annotations

import functools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers.examples import examples
from helpers.toy_faces import Toy, of_all, of_list, pair_list, toy
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.fairness.differentials import (
    MEASURES,
    NAMES,
    Differential,
    comparable,
    differentials,
    gini,
    max_minus_min,
    max_over_geomean,
    max_over_min,
)
from facerec.fairness.rates import GroupErrors

# Other processes may hold a machine up, so there is no deadline.
few = settings(max_examples=examples(60), deadline=None)
rates = st.lists(st.floats(1e-6, 1), min_size=2, max_size=8)


# --- formulas against published figures -----------------------------------------------------


def test_compas_of_aequitas() -> None:
    # False positives, false and true negatives, true positives; African-Americans stand first,
    # Caucasians third.
    cells = [[805, 532, 990, 1369], [2, 3, 21, 6], [349, 461, 1139, 505]]
    cells += [[87, 129, 318, 103], [3, 1, 5, 9], [36, 90, 208, 43]]
    fp, fn, tn, tp = np.array(cells).T
    fpr, fnr = fp / (fp + tn), fn / (fn + tp)
    assert gini(fpr) == pytest.approx(0.332995910, abs=5e-10)
    assert gini(fnr) == pytest.approx(0.318256445, abs=5e-10)
    assert max_over_geomean(fpr) == pytest.approx(2.052835038, abs=5e-10)
    assert max_over_geomean(fnr) == pytest.approx(1.963601821, abs=5e-10)
    assert max_over_min(fpr) == pytest.approx(5.157382, abs=5e-7)
    two = [0, 2]
    assert max_over_min(fpr[two]) == pytest.approx(1.912093, abs=5e-7)
    assert 1 / max_over_min(fnr[two]) == pytest.approx(0.586416, abs=5e-7)


# --- formulas: laws -------------------------------------------------------------------------


@few
@given(rates)
def test_measures_by_their_definitions(values: list[float]) -> None:
    exact, count = [Fraction(value) for value in values], len(values)
    gaps = sum(abs(x - y) for x in exact for y in exact)
    expected = Fraction(count, count - 1) * gaps / (2 * count**2 * (sum(exact) / count))
    assert gini(values) == pytest.approx(float(expected), rel=1e-9, abs=1e-14)
    assert -1e-12 <= gini(values) <= 1 + 1e-12
    # The n-th power, so that the geometric mean is exact.
    power = max(exact) ** count / math.prod(exact)
    assert float(max_over_geomean(values)) ** count == pytest.approx(float(power), rel=1e-9)
    assert max_over_min(values) == max(values) / min(values)
    assert max_minus_min(values) == max(values) - min(values)


# --- the table ------------------------------------------------------------------------------


@functools.cache
def large() -> GroupErrors:
    return of_all(toy(persons=240, images=3, noise=0.2), ("5e-2", "1e-2", "1e-4"))


def row(rows: list[Differential], name: str, target: str, of: str = "FMR") -> Differential:
    (found,) = (r for r in rows if (r.measure, r.at.target, r.of) == (name, target, of))
    return found


def with_errors(counts: list[int], total: int = 40_000) -> list[Differential]:
    """Pretend that groups have other numbers of false matches at the first target."""
    at = large().points[0]
    fmr = tuple(
        replace(share, value=count / total, events=count, comparisons=total, effective_subjects=300)
        for count, share in zip(counts, at.fmr, strict=False)
        if share
    )
    return differentials(replace(large(), points=(replace(at, fmr=fmr),)), replicates=20)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([500, 2, 500], ["false matches", "2/40,000 in B"]),
        ([29, 12, 20], ["29/", "in A", "12/", "in B"]),
        ([500, 0, 20], ["undefined: false matches 0/40,000 in B, true rate at most 0.02"]),
        ([500, 12, 20], []),
    ],
)
def test_few_errors_are_no_ratio(counts: list[int], words: list[str]) -> None:
    found = with_errors(counts)
    one = row(found, "max/min", "5e-2")
    assert (one.value is None) == bool(words) and all(word in one.remark for word in words)
    # A difference is one all the same, and other errors are none of its business.
    assert row(found, "max−min", "5e-2").value is not None
    assert row(found, "max/min", "5e-2", "FNMR").value is not None


def test_what_cannot_be_compared_says_why() -> None:
    small = of_all(toy(persons=36, images=2), ("1e-2", "1e-9"))
    unresolved = [r for r in differentials(small, replicates=20) if r.at.target == "1e-9"]
    assert len(unresolved) == 2 * len(MEASURES)
    assert all(r.value is None and r.status == "unresolved" for r in unresolved)
    faces = toy(persons=60, images=3)
    group = np.where((faces.group == 2) & (faces.subject > 20), -1, faces.group)
    found = of_all(replace(faces, group=group), ("1e-2",))
    for of in NAMES:
        assert comparable(found, of) == ([0, 1], {"C": "7 subjects, fewer than 10"})
    single = replace(faces, group=np.zeros_like(faces.group), names=("everybody",))
    alone = of_all(single, ("1e-2",))
    assert differentials(alone, replicates=20) == []
    assert "two are needed" in comparable(alone, "FNMR")[1][""]


# --- against parity -------------------------------------------------------------------------


def simulated(generator: np.random.Generator, shift: float) -> GroupErrors:
    """Two groups of 40 subjects with three mated and some non-mated pairs each."""
    persons = 80
    subject = np.repeat(np.arange(persons), 3)
    group = subject % 2
    mated = np.arange(persons)[:, None] * 3 + np.array([[0, 1], [0, 2], [1, 2]])[:, None]
    others = generator.integers(subject.size, size=(2, 6000))
    others = others[:, subject[others[0]] != subject[others[1]]]
    sides = np.concatenate([mated.reshape(-1, 2).T, others], axis=1)
    first = sides[0]
    same = subject[first] == subject[sides[1]]
    # The mated pairs of a subject have something in common.
    spread = generator.normal(0, 1, persons)[subject[first]] * same
    scores = generator.normal(np.where(same, 1.5 - shift * group[first], 0), 1) + spread
    faces = Toy(np.empty((0, 0), np.float32), subject, group, ("A", "B"))
    return of_list(faces, ("5e-2",), pair_list(faces, scores, sides))


def test_p_of_two_groups_is_that_of_two_logarithms() -> None:
    """For two groups max/geomean exceeds parity as two logarithms of rates lie apart."""
    errors = simulated(np.random.default_rng(5), 0.3)
    found = differentials(errors, replicates=2000)
    generator = np.random.default_rng(0)
    for kind, of in enumerate(("FMR", "FNMR")):
        at = errors.points[0]
        shares = [share for share in (at.fmr, at.fnmr)[kind][:-1] if share]
        errors_of = [math.sqrt(share.test_variance) / share.value for share in shares]
        freedom = [share.effective_subjects - 1 for share in shares]
        draws = [
            e * generator.standard_t(f, 200_000) for e, f in zip(errors_of, freedom, strict=True)
        ]
        apart = abs(math.log(shares[0].value / shares[1].value))
        expected = np.mean(np.abs(draws[0] - draws[1]) >= apart)
        one = row(found, "max/geomean", "5e-2", of)
        assert one.p_value == pytest.approx(expected, abs=4 * (expected / 2000) ** 0.5)


def test_intervals_reach_parity_where_the_test_finds_nothing() -> None:
    detected = 0
    for seed in range(6):
        errors = simulated(np.random.default_rng(seed), 0.2 * seed)
        for one in differentials(errors, replicates=199):
            assert one.p_value is not None and one.low < one.high
            parity = float(MEASURES[one.measure][1] == "times")
            assert one.low <= one.value <= one.high
            assert (one.low != pytest.approx(parity, abs=1e-12)) == (one.p_value < 0.05)
            detected += one.p_value < 0.05
    assert detected > 5
