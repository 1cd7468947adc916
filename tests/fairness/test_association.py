from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.errors import MetricError
from facerec.fairness.association import Association, associate
from facerec.fairness.covariates import adjust_for_covariates
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.norms import SubjectBootstrap, SubjectNorms
from facerec.fairness.two_groups import (
    cliffs_delta,
    difference_p,
    equivalence_p,
    hodges_lehmann,
    wasserstein,
)
from facerec.fairness.variance_shares import (
    anova,
    eta2_interval,
    minimum_detectable_eta2,
    moments_of,
)
from facerec.fairness.welch import permute
from facerec.statistics.multiplicity import holm

few = settings(max_examples=examples(25), deadline=None)
NIST = Path(scipy.stats.__file__).parent / "tests" / "data" / "nist_anova"

integers = st.lists(st.integers(-4, 4), min_size=2, max_size=12)


def draw(
    seed: int = 0,
    sizes: tuple[int, ...] = (12, 15, 9),
    shift: float = 0.5,
    icc: float = 0.5,
    images: tuple[int, int] = (2, 7),
) -> SubjectNorms:
    """Norms around 20 with SD 2, the first group higher by some SD, and two covariates."""
    generator = np.random.default_rng(seed)
    groups = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    subjects = np.repeat(np.arange(len(groups)), generator.integers(*images, size=len(groups)))
    own, pose = generator.standard_normal((2, len(groups)))
    noise, yaw, blur = generator.standard_normal((3, len(subjects)))
    yaw = yaw + pose[subjects] + 0.3 * groups[subjects]
    deviation = math.sqrt(icc) * own[subjects] + math.sqrt(1 - icc) * noise - 0.4 * yaw
    norms = 20 + 2 * (shift * (groups[subjects] == 0) + deviation)
    names = np.array(list("abcdefgh"))[groups[subjects]]
    return SubjectNorms.from_images(norms, subjects, names, {"yaw": yaw, "blur": blur})


def compare(sample: SubjectNorms, **options: object) -> Association:
    options = {"permutations": 199, **options}
    bootstrap = SubjectBootstrap(sample.groups, 200)
    found = associate(sample, bootstrap, **options)  # type: ignore[arg-type]
    assert isinstance(found, Association)
    return found


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


@pytest.mark.parametrize(
    ("name", "digits"),
    [
        ("SiRstv", 12),
        ("SmLs01", 13),
        ("SmLs02", 12),
        ("SmLs03", 12),
        ("SmLs04", 9),
        ("SmLs05", 9),
        ("SmLs06", 9),
        # Thirteen constant digits: float64 itself holds three of each value.
        ("SmLs07", 3),
        ("SmLs08", 3),
        ("SmLs09", 3),
        ("AtmWtAg", 8),
    ],
)
def test_nist_strd(name: str, digits: int) -> None:
    path = NIST / f"{name}.dat"
    if not path.is_file():
        pytest.skip("this SciPy comes without NIST's data sets")
    values, groups, certified = nist(path)
    found = anova(values, groups)
    assert found.eta2 == pytest.approx(certified["eta2"], rel=10**-digits)
    assert found.f == pytest.approx(certified["f"], rel=10**-digits)
    assert found.between == pytest.approx(certified["between"], rel=10**-digits)


def test_anova_by_hand() -> None:
    # Means 2, 4, 9 about 5: SSB = 2 · (9 + 1 + 16) = 52, SSW = 3 · 2 = 6.
    found = anova([1, 3, 3, 5, 8, 10], [0, 0, 1, 1, 2, 2])
    assert (found.between, found.within) == (52, 6)
    assert found.eta2 == 52 / 58 and found.f == 13
    assert found.omega2 == pytest.approx((52 - 2 * 2) / (58 + 2))
    assert anova([1, 1, 2, 2], [0, 0, 1, 1]).f is None


def test_figures_equal_scipy() -> None:
    sample = draw(3, (12, 15, 9, 20))
    found = compare(sample)
    means = [np.mean(sample.norms[sample.subjects == s]) for s in range(56)]
    parts = [np.array(means)[sample.groups == g] for g in range(4)]
    assert found.f == pytest.approx(scipy.stats.f_oneway(*parts).statistic)
    h = scipy.stats.kruskal(*parts).statistic
    assert found.kruskal_h == pytest.approx(h)
    tests = permute(
        np.stack([sample.means, scipy.stats.rankdata(sample.means)]), sample.groups, 199
    )
    assert (found.welch_f, found.p) == pytest.approx((tests[0].observed, tests[0].p))
    assert found.rank_p == tests[1].p
    assert found.epsilon2.value == pytest.approx(h / 55)
    assert found.eta2_h == pytest.approx((h - 3) / 52)
    ranks = scipy.stats.rankdata(np.concatenate(parts))
    assert found.epsilon2.value == pytest.approx(
        anova(ranks, np.repeat(range(4), [12, 15, 9, 20])).eta2
    )
    centred = np.concatenate([np.abs(x - np.median(x)) for x in parts])
    (test,) = permute(centred, np.repeat(range(4), [12, 15, 9, 20]), 1)
    assert found.spread_between.f == pytest.approx(test.observed)
    assert [(p.first, p.second) for p in found.pairs] == list(itertools.combinations("abcd", 2))
    raw = [difference_p(x, y) for x, y in itertools.combinations(parts, 2)]
    assert [pair.p for pair in found.pairs] == pytest.approx(raw)
    assert [pair.p_holm for pair in found.pairs] == pytest.approx(holm(raw))
    for pair, (x, y) in zip(found.pairs, itertools.combinations(parts, 2), strict=True):
        sd = math.sqrt(
            ((len(x) - 1) * x.var(ddof=1) + (len(y) - 1) * y.var(ddof=1)) / (len(x) + len(y) - 2)
        )
        assert pair.wasserstein.value == pytest.approx(scipy.stats.wasserstein_distance(x, y) / sd)
        assert pair.shift.value == pytest.approx(np.median(np.subtract.outer(x, y)))
        for estimate in (pair.delta, pair.shift, pair.wasserstein):
            assert estimate.interval is not None
            assert estimate.interval.low <= estimate.value <= estimate.interval.high


@pytest.mark.parametrize(
    ("groups", "row"),
    [
        (2, [0.171, 0.074, 0.047, 0.019, 0.0078, 0.0026, 0.0008]),
        (4, [0.233, 0.102, 0.065, 0.027, 0.0108, 0.0036, 0.0011]),
        (8, [0.307, 0.134, 0.086, 0.035, 0.0142, 0.0048, 0.0014]),
    ],
)
def test_minimum_detectable_effect(groups: int, row: list[float]) -> None:
    for subjects, expected in zip((40, 100, 160, 400, 1000, 3000, 10000), row, strict=True):
        found = minimum_detectable_eta2(subjects, groups)
        assert found == pytest.approx(expected, abs=0.5 * 10 ** -(4 if expected < 0.015 else 3))
        ratio = subjects * found / (1 - found)
        critical = scipy.stats.f.isf(0.05, groups - 1, subjects - groups)
        power = scipy.stats.ncf.sf(critical, groups - 1, subjects - groups, ratio)
        assert power == pytest.approx(0.8, abs=1e-6)


def test_no_minimum_without_subjects_to_spare() -> None:
    assert minimum_detectable_eta2(4, 4) is None and minimum_detectable_eta2(9, 1) is None
    found = minimum_detectable_eta2(3, 2)
    assert found is not None and 0.95 < found < 1


@few
@given(integers, integers)
def test_delta_and_shift_equal_all_differences(x: list[int], y: list[int]) -> None:
    differences = np.subtract.outer(x, y).ravel()
    found = cliffs_delta(x, y)
    assert found.value == pytest.approx(np.sign(differences).mean(), abs=1e-12)
    opposite = cliffs_delta(y, x)
    assert opposite.value == pytest.approx(-found.value, abs=1e-12)
    if found.interval:
        assert -1 <= found.interval.low <= found.value <= found.interval.high <= 1
        assert opposite.interval.low == pytest.approx(-found.interval.high, abs=1e-12)
    shift = hodges_lehmann(x, y)
    assert shift.value == pytest.approx(np.median(differences), abs=1e-12)
    if shift.interval:
        assert {shift.interval.low, shift.interval.high} <= set(differences.tolist())
        assert shift.interval.low <= shift.value <= shift.interval.high


def test_shift_interval_is_that_of_the_rank_sum() -> None:
    """No shift inside the interval is rejected by the rank sum test, and any well outside is."""
    generator = np.random.default_rng(2)
    x, y = generator.normal(1, 1, 30), generator.normal(0, 1, 40)
    interval = hodges_lehmann(x, y).interval
    for limit, inside in ((interval.low, 1e-9), (interval.high, -1e-9)):
        for step, rejected in ((inside, False), (-inside * 5e7, True)):
            p = scipy.stats.mannwhitneyu(x - limit - step, y, method="asymptotic").pvalue
            assert (p < 0.05) == rejected


def test_delta_follows_brunner_and_munzel() -> None:
    generator = np.random.default_rng(1)
    x, y = generator.integers(0, 9, 14), generator.integers(1, 12, 25)
    for bound in (1e-9, 0.3):
        found = equivalence_p(x, y, bound)
        statistic = scipy.stats.brunnermunzel(x, y)
        assert found is not None and 0 < found < 1
        if bound < 1e-6:  # against no bound the larger one-sided p is one minus the smaller
            assert found == pytest.approx(1 - statistic.pvalue / 2, abs=1e-6)
    assert equivalence_p(x, y, 0.9) < equivalence_p(x, y, 0.5) < equivalence_p(x, y, 0.2)
    assert equivalence_p([1, 2, 3], [4, 5, 6]) == 1
    assert equivalence_p([1, 1, 1], [1, 1, 1]) is None


def test_groups_apart_have_an_open_limit() -> None:
    found = cliffs_delta(np.arange(20.0), np.arange(30.0) + 100)
    assert found.value == -1 and found.interval.low == -1
    # Twenty disjoint pairs all went one way: P(X > Y) is below 1 − 0.05^(1/20).
    assert found.interval.high == pytest.approx(1 - 2 * 0.05 ** (1 / 20))
    mirrored = cliffs_delta(np.arange(30.0) + 100, np.arange(20.0))
    assert mirrored.value == 1 and mirrored.interval.low == pytest.approx(-found.interval.high)


def test_wasserstein_replicates_equal_resampled_subjects() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 6, 11).astype(float), generator.normal(2, 2, 17)
    bootstrap = SubjectBootstrap(np.repeat([0, 1], [11, 17]), 201)
    found = wasserstein(x, y, *bootstrap.multiplicities)
    replicates = []
    for a, b in zip(*bootstrap.multiplicities, strict=True):
        u, v = np.repeat(x, a), np.repeat(y, b)
        sd = math.sqrt((10 * u.var(ddof=1) + 16 * v.var(ddof=1)) / 26)
        replicates.append(scipy.stats.wasserstein_distance(u, v) / sd)
    assert min(abs(r - found.interval.high) for r in replicates) < 1e-9
    share = np.mean(np.array(replicates) > found.interval.high + 1e-9)
    assert 0 < share < 0.025  # expanded: fewer than 2.5 % lie beyond
    same = wasserstein(x, x, bootstrap.multiplicities[0], bootstrap.multiplicities[0][::-1])
    assert same.value == 0 and same.interval.low == 0 < same.interval.high
    apart = wasserstein(x, x + 50, bootstrap.multiplicities[0], bootstrap.multiplicities[0][::-1])
    assert apart.interval.low > 10


def test_eta2_interval_holds_zero_by_chance_only() -> None:
    nothing, much = compare(draw(1, (20, 20), shift=0.0)), compare(draw(1, (20, 20), shift=2.0))
    assert nothing.p > 0.05 and nothing.eta2.interval.low == 0
    assert much.p == 1 / 200 and much.eta2.interval.low > 0.2
    assert much.omega2.interval == much.eta2.interval
    for found in (nothing, much):
        for estimate in (found.eta2, found.epsilon2):
            assert estimate.interval.low <= estimate.value <= estimate.interval.high <= 1


@pytest.mark.parametrize("shift", [0.0, 1.5])
def test_eta2_interval_covers(shift: float) -> None:
    """Nominal 95 % of sixty sets with two groups of twenty, where η² is 0 and where it is large."""
    truth = shift**2 / 4 / (shift**2 / 4 + 1)
    groups = np.repeat([0, 1], 20)
    covered = 0
    for seed in range(60):
        means = 20 + np.random.default_rng(seed).standard_normal(40) + shift * groups
        sample = SubjectNorms.from_images(means, np.arange(40), groups)
        found = associate(sample, SubjectBootstrap(groups, 150, seed), permutations=1)
        assert isinstance(found, Association)
        covered += found.eta2.interval.low <= truth <= found.eta2.interval.high
    assert 52 <= covered <= 60


@pytest.mark.parametrize(("sizes", "sds"), [((50, 15), (1, 2)), ((30, 10, 20), (1, 1, 1))])
def test_eta2_of_few_subjects_is_covered(sizes: tuple[int, ...], sds: tuple[int, ...]) -> None:
    """Heavy tails, η² of the population 0.15: an interval about the biased estimate misses it."""
    groups, shares = np.repeat(range(len(sizes)), sizes), np.array(sizes) / sum(sizes)
    within = shares @ np.square(sds)
    shift = math.sqrt(0.15 / 0.85 * within / (shares[-1] * (1 - shares[-1])))
    generator, covered = np.random.default_rng(0), 0
    for seed in range(400):
        noise = generator.standard_t(5, len(groups)) / math.sqrt(5 / 3)
        means = 20 + np.array(sds)[groups] * noise + shift * (groups == len(sizes) - 1)
        p = permute(means, groups, 99, seed)[0].p
        moments = moments_of(means, SubjectBootstrap(groups, 199, seed))
        interval = eta2_interval(moments, p)
        assert interval is not None and (interval.low > 0) == (p < 0.05)
        covered += interval.low <= 0.15 <= interval.high
    assert 0.93 <= covered / 400 <= 0.99


@pytest.mark.parametrize("sizes", [(18, 10), (30, 10, 12), (90, 10)])
def test_interval_and_test_agree(sizes: tuple[int, ...]) -> None:
    """The interval holds zero where the test finds nothing, and nowhere else; it has a width."""
    detected = 0
    for seed in range(24):
        groups = np.repeat(range(len(sizes)), sizes)
        generator = np.random.default_rng(seed)
        means = generator.normal(0.02 * seed * groups, 1 + (groups == 1))
        sample = SubjectNorms.from_images(20 + means, np.arange(len(means)), groups)
        found = associate(sample, SubjectBootstrap(groups, 199, seed), permutations=199, seed=seed)
        for estimate, p in ((found.eta2, found.p), (found.epsilon2, found.rank_p)):
            assert (estimate.interval.low > 0) == (p < 0.05)
            assert estimate.interval.low <= estimate.value < estimate.interval.high <= 1
            assert estimate.interval.high > 1 / len(groups)
        detected += found.p < 0.05
        for pair in found.pairs:
            interval = pair.delta.interval
            assert (interval.low > 0 or interval.high < 0) == (pair.p < 0.05)
    assert 0 < detected < 24


def test_groups_with_equal_means_have_an_interval() -> None:
    sample = SubjectNorms.from_images(
        [1.0, 2, 3, 4, 1, 2, 3, 4, 2, 3], range(10), [0] * 4 + [1] * 6
    )
    found = compare(sample)
    assert found.eta2.value == pytest.approx(0, abs=1e-20) and found.p == 1
    assert found.eta2.interval.low == 0 and found.eta2.interval.high > 0.1


def test_adjusted_interval_and_test_agree() -> None:
    for seed in range(12):
        sample = draw(seed, (30, 10), shift=0.12 * seed)
        found = adjust_for_covariates(sample, SubjectBootstrap(sample.groups, 400))
        assert (found.partial_eta2.interval.low > 0) == (found.p < 0.05)


def test_p_of_delta_is_the_confidence_at_which_its_interval_reaches_zero() -> None:
    generator = np.random.default_rng(4)
    x, y = generator.integers(0, 9, 14), generator.integers(1, 12, 25)
    p = difference_p(x, y)
    assert 0 < p < 0.5 and p == pytest.approx(difference_p(y, x))
    interval = cliffs_delta(x, y, confidence=1 - p).interval
    assert min(abs(interval.low), abs(interval.high)) == pytest.approx(0, abs=1e-9)
    apart = difference_p(np.arange(6.0), np.arange(9.0) + 50)
    assert apart == 0.5**6
    assert cliffs_delta(np.arange(6.0), np.arange(9.0) + 50, 1 - apart).interval.high == 0
    assert difference_p([1, 1, 1], [1, 1, 1]) == 1


def test_minimum_detectable_effect_of_groups_that_spread_unlike() -> None:
    """Ten subjects of twice the SD make a difference harder to find than ninety of them."""
    generator = np.random.default_rng(0)
    groups = np.repeat([0, 1], [90, 10])
    found = [
        compare(
            SubjectNorms.from_images(generator.normal(20, sd[groups]), np.arange(100), groups)
        ).mde_eta2
        for sd in (np.array([1, 2]), np.array([2, 1]))
    ]
    alike = minimum_detectable_eta2(100, 2)
    assert found[1] < alike < 1.5 * alike < found[0]


def invariants(found: Association) -> list[float]:
    """Return what neither scale nor further images may change."""
    figures = [found.f, found.welch_f, *found.welch_df, found.p, found.rank_p, found.kruskal_h]
    figures += [found.eta2_h, found.spread_between.p]
    for estimate in (found.eta2, found.omega2, found.epsilon2):
        figures += [estimate.value, estimate.interval.low, estimate.interval.high]
    for pair in found.pairs:
        figures += [pair.p, pair.p_holm, pair.equivalence_p]
        for estimate in (pair.delta, pair.wasserstein):
            figures += [estimate.value, estimate.interval.low, estimate.interval.high]
    return figures


@few
@given(st.floats(1e-3, 1e3), st.integers(0, 3))
def test_scaling_norms_scales_shifts_only(factor: float, seed: int) -> None:
    sample = draw(seed)
    other = replace(sample, norms=factor * sample.norms)
    old, new = compare(sample), compare(other)
    np.testing.assert_allclose(invariants(new), invariants(old), rtol=1e-7, atol=1e-12)
    for a, b in zip(old.pairs, new.pairs, strict=True):
        assert b.shift.value == pytest.approx(factor * a.shift.value, rel=1e-7)
        assert b.shift.interval.low == pytest.approx(factor * a.shift.interval.low, rel=1e-7)
    bootstrap = SubjectBootstrap(sample.groups, 50)
    adjusted = [adjust_for_covariates(s, bootstrap) for s in (sample, other)]
    assert adjusted[1].partial_eta2.value == pytest.approx(adjusted[0].partial_eta2.value)
    assert adjusted[1].wald_f == pytest.approx(adjusted[0].wald_f)


@few
@given(st.integers(1, 4), st.integers(0, 3))
def test_further_images_with_the_same_means_change_nothing(copies: int, seed: int) -> None:
    sample = draw(seed)
    more = SubjectNorms(
        sample.name,
        sample.names,
        sample.groups,
        np.append(sample.norms, np.tile(sample.means, copies)),
        np.append(sample.subjects, np.tile(np.arange(len(sample.groups)), copies)),
    )
    np.testing.assert_allclose(
        invariants(compare(more)), invariants(compare(sample)), rtol=1e-9, atol=1e-12
    )


@few
@given(st.permutations(["a", "b", "c"]), st.integers(0, 3))
def test_renaming_groups_permutes_rows_only(names: list[str], seed: int) -> None:
    sample = draw(seed)
    texts = np.array(names)[sample.groups][sample.subjects]
    other = SubjectNorms.from_images(sample.norms, sample.subjects, texts, sample.covariates)
    old, new = compare(sample), compare(other)
    assert new.p == old.p
    for name in ("eta2", "epsilon2", "omega2"):
        a, b = getattr(old, name), getattr(new, name)
        assert (b.value, b.interval.low, b.interval.high) == pytest.approx(
            (a.value, a.interval.low, a.interval.high), abs=1e-9
        )
    renamed = dict(zip("abc", names, strict=True))
    pairs = {frozenset((p.first, p.second)): p for p in new.pairs}
    for pair in old.pairs:
        found = pairs[frozenset((renamed[pair.first], renamed[pair.second]))]
        sign = 1 if found.first == renamed[pair.first] else -1
        assert found.delta.value == pytest.approx(sign * pair.delta.value)
        assert found.shift.value == pytest.approx(sign * pair.shift.value)
        assert found.p_holm == pytest.approx(pair.p_holm)
        assert found.wasserstein.interval.high == pytest.approx(pair.wasserstein.interval.high)


def test_reproducible_by_seed() -> None:
    sample = draw(0)
    assert compare(sample) == compare(sample)
    assert compare(sample, seed=1).p != compare(sample, seed=2).p


def naive_fit(sample: SubjectNorms) -> tuple[float, float, float, float]:
    """Return partial η², Wald F, η² and degrees of freedom by explicit designs and a loop."""
    covariates = np.stack(list(sample.covariates.values()), axis=1)
    kept = np.isfinite(covariates).all(axis=1)
    y, c, people = sample.norms[kept], covariates[kept], sample.subjects[kept]
    codes = sample.groups[people]
    k = len(sample.names)
    dummies = (codes[:, None] == np.arange(1, k)).astype(float)
    full = np.column_stack([np.ones(len(y)), dummies, c])
    errors = []
    for design in (full, np.column_stack([np.ones(len(y)), c]), full[:, :k], full[:, :1]):
        slopes = np.linalg.lstsq(design, y, rcond=None)[0]
        errors.append(((y - design @ slopes) ** 2).sum())
    slopes = np.linalg.lstsq(full, y, rcond=None)[0]
    residuals = y - full @ slopes
    meat = np.zeros((full.shape[1],) * 2)
    clusters = np.unique(people)
    sizes = np.bincount(sample.groups[clusters])
    for person in clusters:
        score = full[people == person].T @ residuals[people == person]
        share = np.sum(people == person) / np.sum(codes == sample.groups[person])
        meat += np.outer(score, score) / (1 - share)
    n, p = len(y), full.shape[1]
    bread = np.linalg.inv(full.T @ full)
    covariance = (n - k) / (n - p) * bread @ meat @ bread
    effects, block = slopes[1:k], covariance[1:k, 1:k]
    # The error of each intercept, for Welch's approximation.
    rows = np.column_stack([np.ones(k), np.eye(k)[:, 1:], np.tile(c.mean(axis=0), (k, 1))])
    weights = 1 / np.einsum("ij,jk,ik->i", rows, covariance, rows)
    uneven = 0.0
    for g, weight in enumerate(weights):
        images = np.bincount(people[codes == g])
        images = images[images > 0].astype(float)
        effective = (images**2).sum() ** 2 / (images**4).sum() * (sizes[g] - 1) / sizes[g]
        uneven += (1 - weight / weights.sum()) ** 2 / effective
    scale = (k - 1) * (1 + 2 * (k - 2) / (k * k - 1) * uneven)
    wald = effects @ np.linalg.solve(block, effects) / scale
    within = (k * k - 1) / (3 * uneven)
    return 1 - errors[0] / errors[1], wald, 1 - errors[2] / errors[3], within


@pytest.mark.parametrize("seed", range(3))
def test_adjustment_equals_explicit_least_squares(seed: int) -> None:
    sample = draw(seed, (12, 15, 9, 20))
    yaw = sample.covariates["yaw"].copy()
    yaw[::7] = np.nan
    sample = replace(sample, covariates={"yaw": yaw, "blur": sample.covariates["blur"]})
    found = adjust_for_covariates(sample, SubjectBootstrap(sample.groups, 300))
    partial, wald, plain, within = naive_fit(sample)
    assert found.partial_eta2.value == pytest.approx(partial)
    assert found.eta2.value == pytest.approx(plain)
    assert found.wald_f == pytest.approx(wald)
    assert found.df == pytest.approx((3, within))
    assert found.p == pytest.approx(scipy.stats.f.sf(wald, *found.df))
    assert (found.covariates, found.dropped) == (("yaw", "blur"), int(np.isnan(yaw).sum()))
    assert found.images == len(yaw) - found.dropped
    interval = found.partial_eta2.interval
    assert 0 <= interval.low <= found.partial_eta2.value <= interval.high <= 1


def test_a_covariate_can_explain_the_whole_difference() -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat([0, 1], 40)
    subjects = np.repeat(np.arange(80), 5)
    blur = groups[subjects] + 0.5 * generator.standard_normal(400)
    norms = 20 - 2 * blur + generator.standard_normal(80)[subjects]
    sample = SubjectNorms.from_images(norms, subjects, groups[subjects], {"blur": blur})
    found = adjust_for_covariates(sample, SubjectBootstrap(sample.groups, 300))
    assert found.eta2.interval.low > 0.15
    assert found.partial_eta2.interval.low == 0 and found.partial_eta2.value < 0.05
    assert found.p > 0.05


def test_adjustment_for_nothing_is_welchs_test() -> None:
    """A covariate that is orthogonal to groups, subjects and norms leaves Welch's test."""
    generator = np.random.default_rng(3)
    groups = np.repeat([0, 1, 2], [8, 20, 12])
    subjects = np.repeat(np.arange(40), 2)
    norms = 20 + generator.normal(0, 1 + groups)[subjects]
    sample = SubjectNorms.from_images(norms, subjects, groups[subjects], {"side": [-1.0, 1.0] * 40})
    found = adjust_for_covariates(sample, SubjectBootstrap(groups, 200))
    plain = associate(sample, SubjectBootstrap(groups, 200), permutations=1)
    assert found.wald_f * 77 / 76 == pytest.approx(plain.welch_f)
    assert found.df == pytest.approx(plain.welch_df)


def test_covariates_that_tell_nothing_are_refused() -> None:
    sample = draw(0)
    bootstrap = SubjectBootstrap(sample.groups, 20)
    blur = sample.covariates["blur"]
    for bad in (
        {"light": np.ones_like(blur)},
        {"light": sample.groups[sample.subjects].astype(float)},
        {"blur": blur, "light": 3 * blur + 1},
    ):
        with pytest.raises(MetricError, match="light do not all vary"):
            adjust_for_covariates(replace(sample, covariates=bad), bootstrap)
    with pytest.raises(MetricError, match="no covariates"):
        adjust_for_covariates(replace(sample, covariates={}), bootstrap)
    lost = np.where(sample.groups[sample.subjects] == 1, np.nan, blur)
    found = adjust_for_covariates(replace(sample, covariates={"blur": lost}), bootstrap)
    assert found == NoComparison("group", "no image of group b has all covariates")


@pytest.mark.parametrize(
    ("means", "groups", "reason"),
    [
        ([1.0, 2.0, 3.0], [0, 0, 0], "all subjects are in one group"),
        ([1.0, 2.0, 3.0], [0, 1, 2], "there are no more subjects than groups"),
        ([0.1, 0.1, 0.1, 0.1], [0, 0, 1, 1], "all subjects have the same mean norm"),
    ],
)
def test_no_comparison(means: list[float], groups: list[int], reason: str) -> None:
    sample = SubjectNorms.from_images(means, np.arange(len(means)), groups, name="race")
    found = associate(sample, SubjectBootstrap(sample.groups, 20), permutations=9)
    assert found == NoComparison("race", reason)


def test_groups_without_spread_and_of_one_subject() -> None:
    ranks = compare(SubjectNorms.from_images(np.arange(24.0), np.arange(24), np.arange(24) // 12))
    assert ranks.epsilon2.interval is None and "wholly apart" in str(ranks.epsilon2.remark)
    assert ranks.eta2.interval is not None and ranks.eta2.interval.low > 0.4
    apart = SubjectNorms.from_images([1.0] * 12 + [2.0] * 12, np.arange(24), [0] * 12 + [1] * 12)
    found = compare(apart)
    assert found.f is None and found.eta2.value == 1 and found.eta2.interval is None
    assert found.spread_between.f is None and found.spread_between.p == 1
    assert not found.equivalent
    json.dumps(asdict(found), allow_nan=False)
    alone = SubjectNorms.from_images([1.0, 2.0, 3.0, 4.0], np.arange(4), [0, 0, 0, 1])
    found = compare(alone)
    assert found.eta2.interval is None and found.eta2.remark
    json.dumps(asdict(found), allow_nan=False)


def test_many_alike_subjects_are_equivalent_and_few_are_not() -> None:
    means = np.random.default_rng(0).normal(20, 2, 1600)
    many = compare(SubjectNorms.from_images(means, np.arange(1600), np.arange(1600) % 2))
    assert many.equivalent and many.pairs[0].equivalent and many.p > 0.05
    assert many.equivalence_p == many.pairs[0].equivalence_p
    few_subjects = compare(draw(0, (20, 20), shift=0.0))
    assert not few_subjects.equivalent and few_subjects.p > 0.05


def test_json_ready() -> None:
    found = compare(draw(0), role="primary")
    saved = json.loads(json.dumps(asdict(found), allow_nan=False))
    assert saved["role"] == "primary" and saved["eta2"]["interval"]["low"] >= 0
    adjusted = adjust_for_covariates(draw(0), SubjectBootstrap(draw(0).groups, 50))
    assert json.loads(json.dumps(asdict(adjusted), allow_nan=False))["df"][0] == 2


def simulate(
    generator: np.random.Generator, shift: float, icc: float = 0.5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return norms, subjects and groups: 4 groups × 40 subjects × 20 images, SD 1."""
    groups = np.repeat(np.arange(4), 40)
    subjects = np.repeat(np.arange(160), 20)
    own = math.sqrt(icc) * generator.standard_normal(160) + shift * (groups == 0)
    noise = math.sqrt(1 - icc) * generator.standard_normal(3200)
    return 20 + own[subjects] + noise, subjects, groups


def test_type_one_error_of_subjects_and_of_images() -> None:
    generator = np.random.default_rng(0)
    runs, rejected, naive = 200, 0, 0
    for seed in range(runs):
        norms, subjects, groups = simulate(generator, 0.0)
        sample = SubjectNorms.from_images(norms, subjects, groups[subjects])
        rejected += permute(sample.means, sample.groups, 199, seed)[0].p <= 0.05
        parts = [norms[groups[subjects] == g] for g in range(4)]
        naive += scipy.stats.kruskal(*parts).pvalue <= 0.05
    assert 0.01 <= rejected / runs <= 0.10
    assert naive / runs > 0.7


def test_power_to_find_half_an_sd() -> None:
    generator = np.random.default_rng(1)
    runs, rejected = 100, 0
    for seed in range(runs):
        norms, subjects, groups = simulate(generator, 0.5, icc=0.3)
        sample = SubjectNorms.from_images(norms, subjects, groups[subjects])
        rejected += permute(sample.means, sample.groups, 199, seed)[0].p <= 0.05
    assert rejected / runs >= 0.88
