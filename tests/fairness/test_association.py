from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from helpers.examples import examples
from helpers.toy_faces import grouping
from helpers.toy_norms import draw
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.fairness import rows as names
from facerec.fairness.association import associate, cliffs_delta
from facerec.fairness.norms import SubjectNorms
from facerec.fairness.variance_shares import (
    eta2,
    minimum_detectable_eta2,
    permute,
    resampled,
)
from facerec.report.tidy import estimate_of
from facerec.statistics.multiplicity import holm

few = settings(max_examples=examples(25), deadline=None)
NIST = Path(scipy.stats.__file__).parent / "tests" / "data" / "nist_anova"

integers = st.lists(st.integers(-4, 4), min_size=2, max_size=12)


def compare(
    sample: SubjectNorms, permutations: int = 199, replicates: int = 200, seed: int = 0
) -> SimpleNamespace:
    """Return what the rows say, by short names."""
    rows: list[dict[str, Any]] = associate(sample, permutations, replicates, seed)
    of_all = {(row["figure"], row["kind"]): estimate_of(row) for row in rows if not row["other"]}
    pairs = [(row["group"], row["other"], estimate_of(row)) for row in rows if row["other"]]
    return SimpleNamespace(
        eta2=of_all[names.ETA2, "value"],
        p=of_all[names.ETA2, "p"].value,
        welch_f=of_all[names.WELCH, "value"].value,
        mde_eta2=of_all[names.DETECTABLE, "value"].value,
        pairs=[(*delta, p.value) for delta, (*_, p) in zip(pairs[::2], pairs[1::2], strict=True)],
    )


def nist(path: Path) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Return values, groups and certified figures of a data set of NIST's StRD."""
    lines = path.read_text(encoding="latin-1").splitlines()
    certified = {}
    for line in lines[39:60]:
        words = line.split()
        if words[:2] == ["Between", words[1] if len(words) > 1 else ""] and len(words) >= 6:
            certified["between"], certified["f"] = float(words[-3]), float(words[-1])
        if "R-Squared" in line:
            certified["eta2"] = float(words[-1])
    data = np.array([line.split() for line in lines[60:] if line.strip()], dtype=np.float64)
    # Most sets put the group first; this one puts the value first.
    return data[:, 1], data[:, 0].astype(int) - 1, certified


# Thirteen constant digits: float64 itself holds three of each value.
DIGITS = {"SiRstv": 12, "AtmWtAg": 8, "SmLs07": 3, "SmLs08": 3, "SmLs09": 3}
DIGITS |= {"SmLs01": 13, "SmLs02": 12, "SmLs03": 12, "SmLs04": 9, "SmLs05": 9, "SmLs06": 9}


@pytest.mark.parametrize(("name", "digits"), DIGITS.items())
def test_nist_strd(name: str, digits: int) -> None:
    path = NIST / f"{name}.dat"
    if not path.is_file():
        pytest.skip("this SciPy comes without NIST's data sets")
    values, groups, certified = nist(path)
    moments = resampled(values, groups, 9)
    share, _ = eta2(moments, 1.0)
    assert share == pytest.approx(certified["eta2"], rel=10**-digits)
    between, within = moments.sizes @ moments.means**2, moments.squares.sum()
    k = groups.max() + 1
    f = between / (k - 1) / (within / (len(values) - k))
    assert f == pytest.approx(certified["f"], rel=10**-digits)
    assert between == pytest.approx(certified["between"], rel=10**-digits)


def test_figures_equal_scipy() -> None:
    sample = draw(3, (12, 15, 9, 20))
    found = compare(sample)
    means = np.array([np.mean(sample.norms[sample.subjects == s]) for s in range(56)])
    parts = [means[sample.groups == g] for g in range(4)]
    test = permute(sample.means, sample.groups, 199)
    assert (found.welch_f, found.p) == pytest.approx(test)
    within = sum(((part - part.mean()) ** 2).sum() for part in parts)
    assert found.eta2.value == pytest.approx(1 - within / (len(means) * means.var()))
    both = [f"{x} − {y}" for x, y in itertools.combinations("abcd", 2)]
    assert [f"{one} − {other}" for one, other, *_ in found.pairs] == both
    raw = [cliffs_delta(x, y)[1] for x, y in itertools.combinations(parts, 2)]
    assert [p for *_, p in found.pairs] == pytest.approx(holm(raw))


def test_resamples_are_of_each_group_and_ignore_its_name() -> None:
    groups, values = np.array([0, 1, 1, 0, 2, 2, 2]), np.arange(7.0) ** 2
    found = resampled(values, groups, 4000, seed=3)
    renamed = resampled(values, np.array([2, 0, 1])[groups], 4000, seed=3)
    for old, new in ((0, 2), (1, 0), (2, 1)):
        assert np.array_equal(found.deviations[:, old], renamed.deviations[:, new])
    own = values[groups == 2]
    drawn = own[np.array(list(itertools.product(range(3), repeat=3)))]
    means = values.mean() + found.means[2] + found.deviations[:, 2]
    assert set(means.round(9)) == set(drawn.mean(axis=1).round(9))
    assert means.var() == pytest.approx(drawn.mean(axis=1).var(), rel=0.1)
    squares = 3 * drawn.var(axis=1)
    assert set(found.replicated[:, 2].round(6)) == set(squares.round(6))


@few
@given(integers, integers)
def test_delta_is_that_of_all_differences(x: list[int], y: list[int]) -> None:
    (found, _), (opposite, _) = cliffs_delta(x, y), cliffs_delta(y, x)
    assert found.value == pytest.approx(np.sign(np.subtract.outer(x, y)).mean(), abs=1e-12)
    assert opposite.value == pytest.approx(-found.value, abs=1e-12)
    if found.interval:
        assert -1 <= found.low <= found.value <= found.high <= 1
        assert opposite.low == pytest.approx(-found.high, abs=1e-12)


def test_delta_has_the_error_of_brunner_and_munzel() -> None:
    generator = np.random.default_rng(1)
    x, y = generator.normal(0, 1, 300), generator.normal(0.02, 2, 500)
    # Near 0 the interval of Feng and Cliff is that of the plain statistic.
    assert cliffs_delta(x, y)[1] == pytest.approx(scipy.stats.brunnermunzel(x, y).pvalue, abs=2e-3)


def invariants(found: SimpleNamespace) -> list[float]:
    """Return what neither scale nor further images may change."""
    figures = [found.welch_f, found.p, found.mde_eta2]
    for estimate in (found.eta2, *(delta for *_, delta, _ in found.pairs)):
        figures += [estimate.value, estimate.low, estimate.high]
    return figures + [p for *_, p in found.pairs]


@few
@given(st.floats(1e-3, 1e3), st.integers(1, 4), st.integers(0, 3))
def test_neither_scale_nor_further_images_change_anything(
    factor: float, copies: int, seed: int
) -> None:
    sample = draw(seed)
    norms = factor * np.append(sample.norms, np.tile(sample.means, copies))
    who = np.append(sample.subjects, np.tile(np.arange(len(sample.groups)), copies))
    more = SubjectNorms(sample.name, sample.names, sample.groups, norms, who)
    found, expected = (invariants(compare(each)) for each in (more, sample))
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_minimum_detectable_effect(groups: int) -> None:
    for subjects in (40, 100, 400, 3000, 10000):
        found = minimum_detectable_eta2(subjects, groups)
        ratio = subjects * found / (1 - found)
        critical = scipy.stats.f.isf(0.05, groups - 1, subjects - groups)
        power = scipy.stats.ncf.sf(critical, groups - 1, subjects - groups, ratio)
        assert power == pytest.approx(0.8, abs=1e-6)


def test_groups_apart_have_an_open_limit() -> None:
    found, _ = cliffs_delta(np.arange(20.0), np.arange(30.0) + 100)
    assert found.value == -1 and found.interval.low == -1
    # Twenty disjoint pairs all went one way: P(X > Y) is below 1 − 0.05^(1/20).
    assert found.interval.high == pytest.approx(1 - 2 * 0.05 ** (1 / 20))
    mirrored, _ = cliffs_delta(np.arange(30.0) + 100, np.arange(20.0))
    assert mirrored.value == 1 and mirrored.interval.low == pytest.approx(-found.interval.high)


@pytest.mark.parametrize(("sizes", "sds"), [((50, 15), (1, 2)), ((30, 10, 20), (1, 1, 1))])
def test_eta2_of_few_subjects_is_covered(sizes: tuple[int, ...], sds: tuple[int, ...]) -> None:
    """Heavy tails, η² of the population 0.15: an interval about the biased estimate misses it."""
    groups, shares = np.repeat(range(len(sizes)), sizes), np.array(sizes) / sum(sizes)
    noisy = shares @ np.square(sds)
    shift = math.sqrt(0.15 / 0.85 * noisy / (shares[-1] * (1 - shares[-1])))
    generator, covered, detected = np.random.default_rng(0), 0, 0
    for seed in range(400):
        noise = generator.standard_t(5, len(groups)) / math.sqrt(5 / 3)
        means = 20 + np.array(sds)[groups] * noise + shift * (groups == len(sizes) - 1)
        _, p = permute(means, groups, 99, seed)
        share, interval = eta2(resampled(means, groups, 199, seed), p)
        # The interval holds zero where the test finds nothing, and nowhere else; it has a width.
        assert interval is not None and (interval.low > 0) == (p < 0.05)
        assert interval.low <= share < interval.high <= 1
        covered += interval.low <= 0.15 <= interval.high
        detected += p < 0.05
    assert 0.93 <= covered / 400 <= 0.99 and 0 < detected < 400


def test_p_of_delta_is_the_confidence_at_which_its_interval_reaches_zero() -> None:
    generator = np.random.default_rng(4)
    x, y = generator.integers(0, 9, 14), generator.integers(1, 12, 25)
    p = cliffs_delta(x, y)[1]
    assert 0 < p < 0.5 and p == pytest.approx(cliffs_delta(y, x)[1])
    interval = cliffs_delta(x, y, confidence=1 - p)[0].interval
    assert min(abs(interval.low), abs(interval.high)) == pytest.approx(0, abs=1e-9)
    apart = cliffs_delta(np.arange(6.0), np.arange(9.0) + 50)[1]
    assert apart == 0.5**6
    assert cliffs_delta(np.arange(6.0), np.arange(9.0) + 50, 1 - apart)[0].interval.high == 0
    assert cliffs_delta([1, 1, 1], [1, 1, 1])[1] == 1


@pytest.mark.parametrize("groups", [[0, 0, 0], [0, 1, 2], [0, 0, 1, 1]])
def test_no_comparison(groups: list[int]) -> None:
    means = np.full(4, 0.1) if len(groups) == 4 else np.arange(3.0) + 1
    of_groups = grouping(np.array(groups), "abc"[: max(groups) + 1])
    sample = SubjectNorms.of(means, np.arange(len(means)), of_groups)
    (lacking,) = associate(sample, 9, 20)
    assert lacking["value"] is None and "takes two groups" in lacking["remark"]
