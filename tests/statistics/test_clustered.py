from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.stats import t

from facerec.errors import MetricError
from facerec.statistics.clustered import (
    DEPENDENT,
    Bound,
    ClusteredFigure,
    ClusteredShare,
    fnmr_interval,
    share_interval,
)
from facerec.statistics.curves import RocCurve
from facerec.statistics.intervals import wilson
from facerec.statistics.rates import roc_curve

few = settings(max_examples=examples(40), deadline=None)


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


def by_all_pairs_of_comparisons(
    events: NDArray[np.bool_], first: NDArray[np.int64], second: NDArray[np.int64]
) -> tuple[float, float]:
    """Sums of residual products: within a cell, and over different cells that share."""
    residuals = events - events.mean()
    within = across = 0.0
    for k, one in enumerate(residuals):
        for m, other in enumerate(residuals):
            cells = {first[k], second[k]}, {first[m], second[m]}
            if cells[0] == cells[1]:
                within += one * other
            elif cells[0] & cells[1]:
                across += one * other
    return within, across


def published_fmr_variance(errors: NDArray[np.int64], made: NDArray[np.int64]) -> float:
    """The loop over triples of subjects, on symmetric counts with both orders."""
    residuals = errors - made * errors.sum() / made.sum()
    squares = covariance = 0.0
    for i, j in itertools.permutations(range(len(made)), 2):
        squares += residuals[i, j] ** 2
        for k in range(len(made)):
            if k not in (i, j):
                covariance += residuals[i, j] * residuals[i, k]
    return (2 * squares + 4 * max(0.0, covariance)) / made.sum() ** 2


@pytest.mark.parametrize("mated", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_plug_in_is_the_sum_over_comparisons_that_share(mated: float, seed: int) -> None:
    events, first, second = draw_pairs(seed, mated=mated)
    within, across = by_all_pairs_of_comparisons(events, first, second)
    share = ClusteredShare.from_pairs(events, first, second)
    expected = (within + max(0.0, across)) / events.size**2
    assert share.plug_in == pytest.approx(expected, rel=1e-12)
    assert share.rate == events.mean()


@pytest.mark.parametrize("subjects", [3, 10, 30])
def test_plug_in_equals_the_published_triple_loop(subjects: int) -> None:
    generator = np.random.default_rng(subjects)
    wild = np.add.outer(*[generator.random(subjects)] * 2) / 2
    made = np.triu(generator.integers(0, 6, (subjects, subjects)), 1)
    errors = generator.binomial(made, wild)
    share = ClusteredShare.from_counts(coo_array(errors), coo_array(made))
    expected = published_fmr_variance(errors + errors.T, made + made.T)
    assert share.plug_in == pytest.approx(expected, rel=1e-12)


def test_mated_variance_by_hand() -> None:
    errors, made = np.array([0, 3, 1, 0, 2]), np.array([4, 4, 10, 1, 2])
    share = ClusteredShare.from_mated_counts(errors, made)
    rate = 6 / 21
    expected = sum((e - rate * m) ** 2 for e, m in zip(errors, made, strict=True)) / 21**2
    assert share.plug_in == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_all_layouts_agree(seed: int) -> None:
    generator = np.random.default_rng(seed)
    images = np.array([1, 4, 0, 2, 3, 7, 1])
    person = np.repeat(np.arange(images.size), images)
    i, j = np.triu_indices(person.size, 1)
    first, second = person[i], person[j]
    wild = generator.random(images.size)
    events = generator.random(i.size) < wild[first] * wild[second]
    different = first != second
    size = images.size

    def counts(weights: NDArray[np.generic], chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        table = np.zeros((size, size), dtype=np.int64)
        # Either order is legal.
        a, b = np.where(generator.random((1, i.size)) < 0.5, [first, second], [second, first])
        np.add.at(table, (a[chosen], b[chosen]), weights[chosen].astype(np.int64))
        return table

    ones = np.ones(i.size)
    pairs = ClusteredShare.from_pairs(*(x[different] for x in (events, first, second)))
    errors = counts(events, different)
    every = np.full(i.size, True)
    for other in (
        ClusteredShare.from_counts(csr_array(errors), csr_array(counts(ones, different))),
        ClusteredShare.from_images(csr_array(errors), images),
    ):
        assert_equal(pairs, other)
    assert_equal(
        ClusteredShare.from_pairs(events, first, second),
        ClusteredShare.from_counts(
            coo_array(counts(events, every)), coo_array(counts(ones, every))
        ),
    )
    assert_equal(
        ClusteredShare.from_pairs(*(x[~different] for x in (events, first, first))),
        ClusteredShare.from_mated_counts(
            np.diag(counts(events, ~different)), np.diag(counts(ones, ~different))
        ),
    )


def assert_equal(one: ClusteredShare, other: ClusteredShare) -> None:
    assert (one.events, one.comparisons) == (other.events, other.comparisons)
    assert one.subjects == other.subjects
    for name in ("plug_in", "variance", "effective_subjects"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-10)
    assert one.interval(0.9).low == pytest.approx(other.interval(0.9).low, rel=1e-9)
    assert one.interval(0.9).high == pytest.approx(other.interval(0.9).high, rel=1e-9)


def by_formula(rate: float, effective: float, quantile: float) -> tuple[float, float]:
    centre = math.log(rate / (1 - rate))
    margin = quantile / math.sqrt(effective * rate * (1 - rate))
    low, high = (1 / (1 + math.exp(-centre - sign * margin)) for sign in (-1, 1))
    return low, high


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_default_interval_by_its_formula(confidence: float) -> None:
    # A design in which all subjects take part equally often: all pairs of equal image counts.
    size = 15
    generator = np.random.default_rng(2)
    wild = np.add.outer(*[generator.random(size) ** 3] * 2) / 2
    errors = np.triu(generator.binomial(25, wild), 1)
    share = ClusteredShare.from_images(coo_array(errors), np.full(size, 5))
    quantile = t.ppf((1 + confidence) / 2, size - 1)
    assert share.effective_subjects == pytest.approx(size)
    effective = share.rate * (1 - share.rate) / (share.plug_in * (size / (size - 2)) ** 2)
    interval = share.interval(confidence)
    low, high = by_formula(share.rate, effective, quantile)
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-10)
    assert interval.effective == pytest.approx(effective)
    assert (interval.method, interval.assumption) == ("logit with effective n", DEPENDENT)

    misses = generator.binomial(10, generator.random(size) ** 4)
    share = ClusteredShare.from_mated_counts(misses, np.full(size, 10))
    effective = share.rate * (1 - share.rate) / (share.plug_in * size / (size - 1))
    interval = share.interval(confidence)
    low, high = by_formula(share.rate, effective, quantile)
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-10)


def test_one_person_with_most_comparisons_counts_as_few() -> None:
    made = np.array([200, *[1] * 50])
    errors = np.array([20, *[0] * 48, 1, 1])
    share = ClusteredShare.from_mated_counts(errors, made)
    assert share.effective_subjects == pytest.approx(250**2 / (200**2 + 50))
    assert (share.interval().low, share.interval().high) == (0, 1)
    assert "51 identities" in share.interval().assumption


def test_uneven_identities_get_the_spread_of_all() -> None:
    # Both subjects with many comparisons happen to agree; the others do not.
    made = np.array([100, 100, *[4] * 40])
    errors = np.array([10, 10, *[0, 1] * 10, *[0] * 16, *[4] * 4])
    share = ClusteredShare.from_mated_counts(errors, made)
    rate = errors.sum() / made.sum()
    single = (
        sum(e * (1 - rate) ** 2 + (m - e) * rate**2 for e, m in zip(errors, made, strict=True))
        / made.sum()
    )
    pearson = sum((e - m * rate) ** 2 / (m * single) for e, m in zip(errors, made, strict=True)) * (
        42 / 41
    )
    correlation = (pearson - 42) / sum(m - 1 for m in made)
    expected = sum(single * m * (1 + (m - 1) * correlation) for m in made)
    assert 0 < correlation < 1
    assert share.exchangeable == pytest.approx(expected, rel=1e-12)
    assert share.exchangeable > 1.5 * share.mated_squares
    assert share.variance == pytest.approx(expected / made.sum() ** 2)
    interval = share.interval()
    quantile = t.ppf(0.975, 41)
    assert (interval.low, interval.high) == pytest.approx(
        by_formula(rate, rate * (1 - rate) / share.variance, quantile)
    )


@pytest.mark.parametrize("mated", [0.0, 0.4])
def test_a_share_is_a_figure_whose_influences_are_residuals(mated: float) -> None:
    events, first, second = draw_pairs(3, mated=mated)
    share = ClusteredShare.from_pairs(events, first, second)
    influences = (events - share.rate) / events.size
    figure = ClusteredFigure.from_influences(share.rate, influences, first, second)
    for name in ("plug_in", "variance", "effective_subjects"):
        assert getattr(figure, name) == pytest.approx(getattr(share, name), rel=1e-10)
    one, other = figure.interval(0.9), share.interval(0.9)
    assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-9)
    assert (one.method, one.assumption) == ("logit with effective n", DEPENDENT)


def influences_on_auc(
    same: NDArray[np.float64], different: NDArray[np.float64]
) -> tuple[RocCurve, NDArray[np.float64]]:
    """What each score adds to the error of the AUC, by loops over all pairs of scores."""
    roc = roc_curve(same, different)
    beaten = [np.mean((s > different) + (s == different) / 2) for s in same]
    beaters = [np.mean((same > d) + (same == d) / 2) for d in different]
    added = [
        (np.array(beaten) - roc.auc()) / same.size,
        (np.array(beaters) - roc.auc()) / different.size,
    ]
    return roc, np.concatenate(added)


def test_auc_of_persons_that_occur_once_has_delongs_variance() -> None:
    generator = np.random.default_rng(0)
    same, different = generator.normal(1, 1, 60).round(1), generator.normal(size=90).round(1)
    roc, influences = influences_on_auc(same, different)
    first = np.arange(150)
    second = np.where(first < 60, first, 1000 + first)
    figure = ClusteredFigure.from_influences(roc.auc(), influences, first, second)
    delong = roc.auc() * (1 - roc.auc()) / roc.auc_interval().effective
    parts = [(influences[:60] ** 2).sum() * 60 / 59, (influences[60:] ** 2).sum() * 90 / 89]
    assert sum(parts) == pytest.approx(delong, rel=1e-12)
    assert figure.plug_in == pytest.approx(figure.independent) == pytest.approx(delong, rel=0.02)


@few
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_other_share_has_the_mirrored_interval(seed: int, mated: float) -> None:
    events, first, second = draw_pairs(seed, mated=mated)
    one = share_interval(events, first, second)
    other = share_interval(~events, first, second)
    assert (other.low, other.high) == pytest.approx((1 - one.high, 1 - one.low), abs=1e-12)


def test_no_event_is_bounded_by_disjoint_pairs() -> None:
    share = ClusteredShare.from_images(coo_array((61, 61), dtype=np.int64), [5] * 61)
    interval = share.interval()
    assert isinstance(interval, Bound)
    assert interval.low == 0 and interval.high == pytest.approx(1 - 0.05 ** (1 / 30))
    assert interval.if_independent == pytest.approx(3 / (61 * 30 * 25), rel=0.002)
    assert interval.effective == 30 and "45,750 comparisons" in interval.assumption

    mated = fnmr_interval(np.zeros(100), np.repeat(np.arange(20), 5))
    assert mated.high == pytest.approx(1 - 0.05 ** (1 / 20))


@pytest.mark.parametrize(
    ("cells", "count"),
    [
        ([(0, 1)], 1),
        ([(0, 0)], 1),
        ([(0, i) for i in range(1, 9)], 1),
        ([(i, i + 1) for i in range(7)], 4),
        ([(0, 0), (0, 1), (2, 3), (1, 1)], 3),
        (list(itertools.combinations(range(10), 2)), 5),
    ],
)
def test_disjoint_cells_of_known_graphs(cells: list[tuple[int, int]], count: int) -> None:
    first, second = np.array(cells).T
    assert share_interval(np.zeros(len(cells)), first, second).effective == count


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: ClusteredShare.from_pairs([], [], []), "there are no comparisons"),
        (lambda: ClusteredShare.from_pairs([0, 1], [1], [1]), "need one identity a side each"),
        (lambda: ClusteredShare.from_pairs([0, 0.5], [1, 2], [1, 2]), "must be true or false"),
        (lambda: ClusteredShare.from_mated_counts([3], [2]), "more events than comparisons"),
        (lambda: ClusteredShare.from_mated_counts([0, 1], [2]), "one count per identity"),
        (
            lambda: ClusteredShare.from_counts(coo_array((2, 3)), coo_array((2, 2))),
            r"must be \(identities, identities\)",
        ),
        (
            lambda: ClusteredShare.from_counts(coo_array([[0, 1], [0, 0]]), coo_array((2, 2))),
            "no comparisons",
        ),
        (
            lambda: ClusteredShare.from_images(coo_array([[0, 5], [0, 0]]), [2, 2]),
            "more events than comparisons",
        ),
        (
            lambda: ClusteredShare.from_images(coo_array([[1, 0], [0, 0]]), [2, 2]),
            "an identity with itself",
        ),
        (lambda: ClusteredShare.from_images(coo_array((2, 2)), [2, 2, 2]), "do not fit 3 and 3"),
        (lambda: fnmr_interval([0, 1], [1, 2], 95), "confidence 95 is not between 0 and 1"),
    ],
)
def test_impossible_input(build: object, sentence: str) -> None:
    with pytest.raises(MetricError, match=sentence):
        build()  # type: ignore[operator]


def draw_faces(generator: np.random.Generator, people: int, images: int) -> NDArray[np.float64]:
    """Unit embeddings of subjects who lean towards one direction and scatter unevenly."""
    centres = generator.standard_normal((people, 1, 32))
    centres[..., 0] += 0.3 * 32**0.5
    centres /= np.linalg.norm(centres, axis=-1, keepdims=True)
    scatter = np.exp(0.25 * generator.standard_normal((people, 1, 1))) / 32**0.5
    faces = centres + scatter * generator.standard_normal((people, images, 32))
    return faces / np.linalg.norm(faces, axis=-1, keepdims=True)


def test_default_intervals_cover_where_naive_ones_do_not() -> None:
    generator = np.random.default_rng(7)
    people, images, repetitions = 60, 5, 300
    i, j = np.triu_indices(images, 1)
    reference = draw_faces(generator, 2500, 1)[:, 0]
    different = (reference @ reference.T)[np.triu_indices(len(reference), 1)]
    same = np.prod(draw_faces(generator, 50_000, 2), axis=1).sum(axis=1)
    match, non_match = np.quantile(different, 0.99), np.quantile(same, 0.05)

    covered = np.zeros((2, 2))
    for _ in range(repetitions):
        faces = draw_faces(generator, people, images)
        flat = faces.reshape(-1, 32)
        hits = (flat @ flat.T >= match).reshape(people, images, people, images).sum(axis=(1, 3))
        misses = (np.einsum("pid,pjd->pij", faces, faces)[:, i, j] < non_match).sum(axis=1)
        shares = (
            ClusteredShare.from_images(coo_array(np.triu(hits, 1)), np.full(people, images)),
            ClusteredShare.from_mated_counts(misses, np.full(people, i.size)),
        )
        for row, (share, truth) in enumerate(zip(shares, (0.01, 0.05), strict=True)):
            intervals = share.interval(), wilson(share.events, share.comparisons)
            covered[row] += [interval.low <= truth <= interval.high for interval in intervals]
    default, naive = covered.T / repetitions
    # More than three Monte-Carlo errors around 94 %.
    assert np.all((default > 0.895) & (default < 0.985))
    assert naive[0] < 0.7 and naive[1] < 0.87
