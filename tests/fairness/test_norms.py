from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.errors import MetricError
from facerec.fairness.attributes import join, read_attributes
from facerec.fairness.norms import (
    NormSummary,
    NormTable,
    SubjectBootstrap,
    SubjectNorms,
    bca,
    between_sd,
    clustered_mean,
    norm_table,
    percentile,
    tail,
    variance_interval,
    within_interval,
)
from facerec.report.estimate import Estimate

few = settings(max_examples=examples(25), deadline=None)

ESTIMATES = [field.name for field in fields(NormSummary) if field.type == "Estimate"]


def draw(
    seed: int = 0,
    sizes: tuple[int, ...] = (12, 15, 9),
    icc: float = 0.5,
    images: tuple[int, int] = (1, 8),
) -> SubjectNorms:
    """Norms around 20 with SD 2, groups half an SD apart."""
    generator = np.random.default_rng(seed)
    groups = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    subjects = np.repeat(np.arange(len(groups)), generator.integers(*images, size=len(groups)))
    own = generator.standard_normal(len(groups))[subjects]
    noise = generator.standard_normal(len(subjects))
    norms = 20 + groups[subjects] + 2 * (math.sqrt(icc) * own + math.sqrt(1 - icc) * noise)
    return SubjectNorms.from_images(norms, subjects, np.array(list("abcdefgh"))[groups[subjects]])


def naive_figures(images: list[np.ndarray], inflation: float = 1.0) -> dict[str, float]:
    """Take one array of norms a subject and compute everything in plain words.

    The sum of squares between drawn subjects is inflated, as it is n / (n − 1) too small.
    """
    values = np.concatenate(images)
    counts = np.array([len(norms) for norms in images])
    subjects, total = len(images), len(values)
    between = sum(len(norms) * (norms.mean() - values.mean()) ** 2 for norms in images) * inflation
    within = sum(((norms - norms.mean()) ** 2).sum() for norms in images)
    size = (total - (counts**2).sum() / total) / (subjects - 1)
    msb, msw = between / (subjects - 1), within / (total - subjects)
    spread = np.var([norms.mean() for norms in images], ddof=1)
    sd = math.sqrt((between + within) / (total - 1))
    return {
        "mean": values.mean(),
        "subject_mean": np.mean([norms.mean() for norms in images]),
        "sd": sd,
        "cv": sd / values.mean(),
        "within_sd": math.sqrt(msw),
        "between_sd": math.sqrt(max(0, spread - msw * np.mean([1 / len(n) for n in images]))),
        "icc": (msb - msw) / (msb + (size - 1) * msw),
        "images_per_subject": size,
    }


def by_subject(sample: SubjectNorms, group: int) -> list[np.ndarray]:
    return [sample.norms[sample.subjects == s] for s in np.flatnonzero(sample.groups == group)]


def value(summary: NormSummary, name: str) -> float:
    found = getattr(summary, name)
    return found.value if isinstance(found, Estimate) else found


@pytest.mark.parametrize("seed", range(3))
def test_figures_equal_plain_words(seed: int) -> None:
    sample = draw(seed)
    table = norm_table(sample, SubjectBootstrap(sample.groups, 50))
    rows = [*((g, row) for g, row in enumerate(table.groups)), (None, table.overall)]
    everyone = [norms for g in range(3) for norms in by_subject(sample, g)]
    for g, row in rows:
        images = everyone if g is None else by_subject(sample, g)
        for name, expected in naive_figures(images).items():
            assert value(row, name) == pytest.approx(expected, rel=1e-10)
        assert (row.subjects, row.images) == (len(images), sum(map(len, images)))
        for name, share in (("p5", 0.05), ("median", 0.5), ("p95", 0.95)):
            assert row.quantiles[name].value == np.quantile(np.concatenate(images), share)
        icc = naive_figures(images)["icc"]
        effect = 1 + (row.images_per_subject - 1) * icc
        assert row.design_effect == pytest.approx(max(1, effect))
        assert row.effective_images == pytest.approx(row.images / row.design_effect)
        if g is not None:
            means = [np.mean([n.mean() for n in part]) for part in (images, everyone)]
            assert row.difference.value == pytest.approx(means[0] - means[1])
    assert table.overall.difference is None and not table.single_images


def test_replicates_equal_resampled_images() -> None:
    """Intervals are quantiles of figures of images of subjects drawn again and again."""
    sample = draw(4)
    bootstrap = SubjectBootstrap(sample.groups, 300, seed=7)
    table = norm_table(sample, bootstrap)
    ids = bootstrap.members[1]
    n = len(ids)
    figures = []
    differences = []
    for r in range(300):
        drawn = [
            [sample.norms[sample.subjects == s] for s in np.repeat(members, m[r])]
            for members, m in zip(bootstrap.members, bootstrap.multiplicities, strict=True)
        ]
        figures.append(naive_figures(drawn[1], n / (n - 1)))
        means = [np.mean([norms.mean() for norms in part]) for part in drawn]
        grand = np.average(means, weights=[len(part) for part in drawn])
        differences.append(means[1] - grand)
    left_out = [
        naive_figures([n for i, n in enumerate(by_subject(sample, 1)) if i != j]) for j in range(n)
    ]
    for name in ("sd", "cv", "icc"):
        expected = bca(
            value(table.groups[1], name),
            np.array([row[name] for row in figures]),
            np.array([row[name] for row in left_out]),
            n,
        )
        found = getattr(table.groups[1], name).interval
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    expected = percentile(np.array(differences), n)
    found = table.groups[1].difference.interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_multiplicities_sum_to_the_group_and_ignore_its_name() -> None:
    groups = np.array([0, 1, 1, 0, 2, 2, 2])
    bootstrap = SubjectBootstrap(groups, 500, seed=3)
    assert [m.sum(axis=1).tolist() for m in bootstrap.multiplicities] == [
        [2] * 500,
        [2] * 500,
        [3] * 500,
    ]
    renamed = SubjectBootstrap(np.array([2, 0, 1])[groups], 500, seed=3)
    for old, new in ((0, 2), (1, 0), (2, 1)):
        assert np.array_equal(bootstrap.multiplicities[old], renamed.multiplicities[new])
    again = SubjectBootstrap(groups, 500, seed=4)
    assert not np.array_equal(bootstrap.multiplicities[2], again.multiplicities[2])
    features = np.random.default_rng(0).normal(size=(3, 4))
    expected = bootstrap.multiplicities[2].astype(float) @ features
    np.testing.assert_allclose(bootstrap.sums(2, features), expected)
    with pytest.raises(MetricError, match="at least one"):
        SubjectBootstrap(groups, 0)


def test_intervals_are_those_of_few_subjects() -> None:
    # Of ten subjects: quantiles as far out as √(10 / 9) · t with nine degrees of freedom.
    assert tail(10, 0.95) == pytest.approx(0.00856, abs=5e-5)
    assert tail(10_000_000, 0.95) == pytest.approx(0.025, abs=1e-6)
    found = percentile(np.arange(1040.0), 10**9)
    assert (found.low, found.high) == (25, 1014)
    assert percentile(np.full(100, 3.0), 10) is None and percentile(np.arange(9.0), 1) is None
    found = percentile(np.append(np.arange(1040.0), [np.nan] * 3), 10**9)
    assert found.low == 25 and "3 of 1,043 replicates undefined" in found.assumption
    # Without bias and skew BCa is the percentile interval.
    left_out = np.array([-1.0, 1.0])
    symmetric = np.arange(-500.0, 501.0)
    assert bca(0.0, symmetric, left_out, 10).low == percentile(symmetric, 10).low
    assert bca(0.0, symmetric, np.array([-9.0, 1.0, 1.0]), 3, 0.999).high == 500
    assert bca(0.0, symmetric, left_out, 2, 0.999).low == -500
    assert bca(100.0, symmetric, left_out, 10).low > bca(0.0, symmetric, left_out, 10).low


def test_subject_means_of_normal_data_are_covered() -> None:
    """Nominal 95 % of the mean of ten subjects and of the ICC of forty."""
    covered = {"mean": 0, "icc": 0}
    for seed in range(120):
        small = draw(seed, (10,), images=(4, 5))
        mean = norm_table(small, SubjectBootstrap(small.groups, 200, seed)).groups[0].mean
        covered["mean"] += mean.interval.low <= 20 <= mean.interval.high
        large = draw(seed, (40,), images=(4, 5))
        icc = norm_table(large, SubjectBootstrap(large.groups, 200, seed)).groups[0].icc
        covered["icc"] += icc.interval.low <= 0.5 <= icc.interval.high
    assert all(0.87 <= count / 120 <= 0.995 for count in covered.values())


def test_mean_with_equal_weights_has_the_usual_interval() -> None:
    values = np.random.default_rng(0).normal(20, 3, 12)
    found = clustered_mean(values, np.full(12, 4.0), np.ones(12), 0.9)
    expected = scipy.stats.t.interval(0.9, 11, values.mean(), values.std(ddof=1) / 12**0.5)
    assert (found.low, found.high) == pytest.approx(expected)


def test_mean_over_images_by_a_loop() -> None:
    row = norm_table(draw(1), SubjectBootstrap(draw(1).groups, 50)).groups[0]
    images = by_subject(draw(1), 0)
    total = sum(map(len, images))
    residuals = [(n - row.mean.value).sum() / total for n in images]
    error = sum(r**2 / (1 - len(n) / total) for r, n in zip(residuals, images, strict=True))
    parts = [
        len(n) ** 2 * (row.between_sd.value**2 + row.within_sd.value**2 / len(n)) for n in images
    ]
    effective = sum(parts) ** 2 / sum(p**2 for p in parts)
    assert effective < len(images)
    freedom = effective * (len(images) - 1) / len(images)
    expected = scipy.stats.t.interval(0.95, freedom, row.mean.value, error**0.5)
    assert (row.mean.interval.low, row.mean.interval.high) == pytest.approx(expected)


def test_variance_interval_by_bonetts_formula() -> None:
    values = np.random.default_rng(3).gamma(2, 1, 16)
    trimmed = np.sort(values)[2:-2].mean()  # 16 / (2 √12) = 2.3 off either end
    squares = (values - values.mean()) ** 2
    kurtosis = 16 * ((values - trimmed) ** 4).sum() / squares.sum() ** 2
    factor = 16 / (16 - scipy.stats.norm.isf(0.025))
    margin = scipy.stats.t.isf(0.025, 15) * factor * math.sqrt((kurtosis - 13 / 16) / 15)
    expected = factor * squares.sum() / 15 * np.exp([-margin, margin])
    assert variance_interval(values) == pytest.approx(expected)
    assert variance_interval(values[:2]) is None and variance_interval(np.full(9, 0.1)) is None
    for count in (3, 4, 5, 6):
        low, high = variance_interval(values[:count])
        assert low < values[:count].var(ddof=1) < high


def test_within_interval_by_leaving_subjects_out() -> None:
    images = [norms for norms in by_subject(draw(2), 1) if len(norms) > 1]
    squares = np.array([((n - n.mean()) ** 2).sum() for n in images])
    counts = np.array([len(n) for n in images])

    def logarithm(kept: list[np.ndarray]) -> float:
        return math.log(naive_figures(kept)["within_sd"] ** 2)

    n = len(images)
    left = np.array([logarithm([x for i, x in enumerate(images) if i != j]) for j in range(n)])
    middle = n * logarithm(images) - (n - 1) * left.mean()
    error = math.sqrt((n - 1) / n * ((left - left.mean()) ** 2).sum())
    freedom = (counts - 1).sum() ** 2 / ((counts - 1) ** 2).sum() - 1
    margin = scipy.stats.t.isf(0.025, freedom) * error
    assert within_interval(squares, counts) == pytest.approx(
        (math.exp(middle - margin), math.exp(middle + margin))
    )
    assert within_interval(squares[:1], counts[:1]) is None
    assert within_interval(np.array([0.0, 2.0]), np.array([2, 2])) is None


def test_spread_between_subjects_with_as_many_images_is_that_of_the_analysis_of_variance() -> None:
    sample = draw(5, (30,), images=(4, 5))
    row = norm_table(sample, SubjectBootstrap(sample.groups, 50)).groups[0]
    share = row.icc.value / (1 - row.icc.value)
    assert row.between_sd.value == pytest.approx(row.within_sd.value * math.sqrt(share))
    interval = row.between_sd.interval
    assert 0 < interval.low < row.between_sd.value < interval.high


def test_intervals_cover_with_very_uneven_image_counts() -> None:
    """Nominal 95 % of the mean over images and of the SD between 20 subjects."""
    generator = np.random.default_rng(0)
    covered = np.zeros(2)
    for _ in range(400):
        counts = np.minimum(generator.zipf(1.8, 20), 80).astype(float)
        means = generator.normal(0, np.sqrt(1 + 1 / counts))
        squares = generator.chisquare(np.maximum(counts - 1, 1e-9))
        mean = clustered_mean(means, counts, 1 + 1 / counts)
        _, between = between_sd(means, squares, counts)
        covered += [mean.low <= 0 <= mean.high, between.low <= 1 <= between.high]
    assert (covered / 400 > 0.92).all() and (covered / 400 < 0.995).all()


def test_no_interval_of_norms_goes_below_zero() -> None:
    """Three subjects, of whom one has by far the longest embeddings."""
    norms = [0.1, 0.2, 0.2, 0.3, 40.0, 42.0, 0.1, 0.3, 0.2, 0.5, 80.0, 90.0]
    sample = SubjectNorms.from_images(norms, np.repeat(range(6), 2), np.repeat([0, 1], 6))
    table = norm_table(sample, SubjectBootstrap(sample.groups, 200))
    for row in (*table.groups, table.overall):
        figures = [row.mean, row.subject_mean, row.sd, row.cv, row.between_sd, row.within_sd]
        for figure in (*figures, *row.quantiles.values()):
            assert figure.value >= 0
            if figure.interval is not None:
                assert 0 <= figure.interval.low <= figure.value <= figure.interval.high
    assert table.groups[0].subject_mean.interval.low == 0
    assert table.groups[0].subject_mean.value == pytest.approx(np.mean(norms[:6]))


def test_quantile_intervals_cover() -> None:
    covered = 0
    for seed in range(120):
        sample = draw(seed, (30,), images=(2, 6))
        median = norm_table(sample, SubjectBootstrap(sample.groups, 200, seed)).groups[0].quantiles
        interval = median["median"].interval
        assert interval.low <= median["median"].value <= interval.high
        covered += interval.low <= 20 <= interval.high
    assert 0.87 <= covered / 120 <= 0.995


def scaled(table: NormTable, factor: float) -> list[tuple[str, float]]:
    powers = {"cv": 0, "icc": 0, "images_per_subject": 0, "design_effect": 0, "effective_images": 0}
    found = []
    for row in (*table.groups, table.overall):
        for name, power in powers.items():
            found.append((name, value(row, name) * factor**power))
        for name in ("mean", "subject_mean", "sd", "between_sd", "within_sd", "difference"):
            estimate = getattr(row, name)
            if estimate is not None:
                found.append((name, estimate.value * factor))
                found += [
                    (name, x * factor) for x in (estimate.interval.low, estimate.interval.high)
                ]
        for name, estimate in row.quantiles.items():
            found.append((name, estimate.interval.low * factor))
    return found


@few
@given(st.floats(1e-3, 1e3), st.integers(0, 3))
def test_scaling_norms_scales_means_and_spreads_only(factor: float, seed: int) -> None:
    sample = draw(seed)
    other = SubjectNorms(
        sample.name, sample.names, sample.groups, factor * sample.norms, sample.subjects
    )
    bootstrap = SubjectBootstrap(sample.groups, 60)
    expected = scaled(norm_table(sample, bootstrap), factor)
    found = scaled(norm_table(other, bootstrap), 1.0)
    assert [name for name, _ in found] == [name for name, _ in expected]
    np.testing.assert_allclose([x for _, x in found], [x for _, x in expected], rtol=1e-7)


def test_renaming_groups_permutes_rows_only() -> None:
    sample = draw(1)
    names = {"a": "<script>", "b": "Ä", "c": "0"}
    groups = np.array([names[sample.names[g]] for g in sample.groups])[sample.subjects]
    other = SubjectNorms.from_images(sample.norms, sample.subjects, groups)
    assert other.names == ("0", "<script>", "Ä")
    tables = [norm_table(s, SubjectBootstrap(s.groups, 200)) for s in (sample, other)]
    for name in ESTIMATES:
        old, new = (getattr(table.overall, name) for table in tables)
        assert new.interval.low == pytest.approx(old.interval.low, rel=1e-9)
        assert new.value == pytest.approx(old.value, rel=1e-9)
    rows = {row.name: row for row in tables[1].groups}
    for row in tables[0].groups:
        assert asdict(rows[names[row.name]]) == {**asdict(row), "name": names[row.name]}


def test_a_common_offset_keeps_the_digits() -> None:
    sample = draw(2)
    shifted = SubjectNorms(
        sample.name, sample.names, sample.groups, sample.norms + 1e8, sample.subjects
    )
    bootstrap = SubjectBootstrap(sample.groups, 20)
    pairs = zip(norm_table(sample, bootstrap).groups, norm_table(shifted, bootstrap).groups)  # noqa: B905
    for row, other in pairs:
        assert other.sd.value == pytest.approx(row.sd.value, rel=1e-6)
        assert other.icc.value == pytest.approx(row.icc.value, rel=1e-6)


def test_one_image_a_subject() -> None:
    sample = draw(0, images=(1, 2))
    table = norm_table(sample, SubjectBootstrap(sample.groups, 100))
    assert table.single_images
    for row in table.groups:
        for name in ("icc", "within_sd", "between_sd"):
            found = getattr(row, name)
            assert found.value is None and found.interval is None
            assert found.remark == "one image a subject"
        assert row.design_effect is None and row.effective_images is None
        assert row.mean.interval.low < row.mean.value < row.mean.interval.high


def test_one_subject_and_no_spread() -> None:
    sample = SubjectNorms.from_images(
        [1.0, 2.0, 5.0, 5.0, 5.0, 5.0], [0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1]
    )
    alone, equal = norm_table(sample, SubjectBootstrap(sample.groups, 50)).groups
    assert alone.mean.value == 1.5 and alone.mean.interval is None
    assert alone.icc.remark == "one subject" and alone.within_sd.value == pytest.approx(0.5**0.5)
    assert equal.sd.value == 0 and equal.cv.value == 0
    assert equal.icc.value is None and equal.icc.remark == "all norms are equal"


def test_everything_is_ready_for_json() -> None:
    sample = draw(0, (12, 1), images=(1, 3))
    table = norm_table(sample, SubjectBootstrap(sample.groups, 50))
    text = json.dumps(asdict(table), allow_nan=False)
    assert json.loads(text)["groups"][0]["subjects"] == 12
    assert set(ESTIMATES) >= {"mean", "sd", "cv", "icc"}


@pytest.mark.parametrize(
    ("norms", "subjects", "groups", "words"),
    [
        ([], [], [], "one an image"),
        ([1.0, 2.0], [0, 1], [0], "one an image"),
        ([1.0, math.nan], [0, 1], [0, 1], "finite norm"),
        ([1.0, math.inf], [0, 1], [0, 1], "finite norm"),
        ([1.0, 2.0, 3.0], ["s", "t", "s"], ["A", "B", "B"], "subject s is in the groups A and B"),
    ],
)
def test_bad_input_ends_in_a_sentence(
    norms: list[float], subjects: list[object], groups: list[object], words: str
) -> None:
    with pytest.raises(MetricError, match=re.escape(words)):
        SubjectNorms.from_images(norms, subjects, groups)


def test_named_groups_have_subjects() -> None:
    with pytest.raises(MetricError, match="2 groups are named but subjects are in 1"):
        SubjectNorms("race", ("A", "B"), np.zeros(2, int), np.ones(2), np.arange(2))
    with pytest.raises(MetricError, match="a subject has no image"):
        SubjectNorms("race", ("A",), np.zeros(2, int), np.ones(2), np.zeros(2, int))


def test_from_a_join_takes_what_was_acquired_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = ["image_id,subject_id,race,blur,label_source"]
    lines += [f"{r}{i}/{j},{r}{i},{r},{i},curator" for r in "AB" for i in range(12) for j in (0, 1)]
    lines += [f"x{j},x,C,0,curator" for j in range(2)]
    lines += [f"d{i}/{j},d{i},,{i},curator" for i in range(10) for j in (0, 1)]
    path.write_text("\n".join(lines))
    attributes = read_attributes(path, ["race"], covariates=["blur"])
    norms = np.random.default_rng(0).normal(20, 2, len(attributes.images))
    found = join(attributes, attributes.images, norms, failures=[0, 2, 3])
    sample = SubjectNorms.of(found, found.groupings[0])
    assert sample.names == ("A", "B") and sample.sizes.tolist() == [11, 12]
    assert sample.norms.tolist() == norms[[1, *range(4, 48)]].tolist()
    assert (
        sample.covariates["blur"].tolist() == (np.arange(48) // 2 % 12)[[1, *range(4, 48)]].tolist()
    )
    assert sample.counts.tolist() == [1, *[2] * 22]
