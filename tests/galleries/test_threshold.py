"""FPIRs by gallery size: against every sub-gallery there is, and against known tails."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import betainc

from facerec.errors import MetricError
from facerec.galleries import Calibration
from facerec.galleries.threshold import _cumulative, _slopes, _Tail


def random_calibration(
    probes: int = 40, entries: int = 9, seed: int = 0, depth: int = 256
) -> tuple[Calibration, np.ndarray]:
    """Return a calibration with ties, and its matrix; −inf where a person meets itself."""
    generator = np.random.default_rng(seed)
    scores = (generator.integers(0, 40, (probes, entries)) / 64).astype(np.float32)
    people = np.arange(entries)
    who = generator.integers(-5, entries, probes)
    matrix = np.where(who[:, None] == people, -np.inf, scores)
    return Calibration.from_scores(scores, who, people, depth), matrix


def every_sub_gallery(matrix: np.ndarray, size: int, threshold: float) -> float:
    """Return the share of searches with an alarm, over all sub-galleries a probe can meet."""
    shares = []
    for row in matrix:
        mine = row[row > -np.inf]
        drawn = list(itertools.combinations(mine, min(size, mine.size)))
        shares.append(np.mean([max(some) >= threshold for some in drawn]))
    return float(np.mean(shares))


@pytest.mark.parametrize("size", [1, 2, 4, 8, 9])
@pytest.mark.parametrize("threshold", [0.2, 0.5])
def test_exact_resampling_is_the_mean_over_every_sub_gallery(size: int, threshold: float) -> None:
    calibration, matrix = random_calibration()
    found = calibration.fpir(threshold, size)
    assert found.method == "exact resampling"
    assert found.value == pytest.approx(every_sub_gallery(matrix, size, threshold), rel=1e-12)
    assert found.events == np.count_nonzero((matrix >= threshold).any(axis=1))
    assert found.low is not None and found.high is not None
    assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("target", ["0.9", "1/2", "0.3"])
def test_the_threshold_is_the_lowest_that_keeps_to_the_target(size: int, target: str) -> None:
    calibration, matrix = random_calibration(probes=200)
    found = calibration.threshold(target, size)
    assert found.method == "exact resampling"
    goal = 0.9 if target == "0.9" else 0.5 if target == "1/2" else 0.3
    assert found.value == every_sub_gallery(matrix, size, found.threshold) <= goal
    below = np.nextafter(np.float32(found.threshold), np.float32(-1))
    assert every_sub_gallery(matrix, size, float(below)) > goal


def test_scores_that_were_not_kept_widen_the_interval() -> None:
    whole, _ = random_calibration(probes=100)
    short = Calibration(
        whole.scores[:, :3], whole.entries[:, :3], whole.probe_subjects, whole.entry_subjects
    )
    high, low = 0.55, 0.1
    # Nobody has more than three scores as high as that.
    assert np.count_nonzero(whole.scores >= high, axis=1).max() <= 3
    assert short.fpir(high, 4).value == whole.fpir(high, 4).value
    truth, found = whole.fpir(low, 2), short.fpir(low, 2)
    assert found.value < truth.value <= found.high and "kept" in found.remark


def test_a_person_goes_as_if_never_met() -> None:
    calibration, matrix = random_calibration()
    people = calibration.probe_subjects
    left = calibration.without(4)
    stay = people != 4
    expected = Calibration.from_scores(
        np.delete(matrix, 4, axis=1)[stay], people[stay], np.delete(np.arange(9), 4)
    )
    assert left is not None
    # Where a person met itself there is one place more in the row.
    np.testing.assert_array_equal(left.scores[:, :8], expected.scores)
    np.testing.assert_array_equal(left.probe_subjects, expected.probe_subjects)
    for size, threshold in itertools.product((1, 5, 8), (0.2, 0.4)):
        assert left.fpir(threshold, size).value == pytest.approx(
            expected.fpir(threshold, size).value, rel=1e-12
        )


def test_nothing_is_left_without_the_last_others() -> None:
    pair = Calibration.from_scores(np.zeros((2, 2)), [0, 1], [0, 1])
    assert pair.without(0) is None


def sphere(probes: int, entries: int, dimensions: int, seed: int = 0) -> Calibration:
    """Return the scores of directions that are spread evenly over a sphere."""
    generator = np.random.default_rng(seed)
    sides = [generator.standard_normal((n, dimensions)) for n in (probes, entries)]
    left, right = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    return Calibration.from_scores(
        left @ right.T, -1 - np.arange(probes), np.arange(entries), depth=64
    )


def sphere_fpir(threshold: float, size: int, dimensions: int) -> float:
    """Return 1 − (1 − P(cosine ≥ t))^N."""
    above = 0.5 * betainc((dimensions - 1) / 2, 0.5, 1 - threshold**2)
    return -math.expm1(size * math.log1p(-above))


@pytest.mark.parametrize("target", ["1e-1", "1e-2"])
def test_the_tail_carries_a_gallery_ten_times_as_large(target: str) -> None:
    calibration = sphere(3000, 600, 64)
    found = calibration.threshold(target, 6000)
    truth = sphere_fpir(found.threshold, 6000, 64)
    assert found.method.startswith("tail")
    assert found.value == pytest.approx(float(target), rel=1e-4)
    assert found.low < truth < found.high
    assert truth == pytest.approx(float(target), rel=0.35)
    # The other way round it is the same figure, but for where the tail begins.
    again = calibration.fpir(found.threshold, 6000)
    assert again.value == pytest.approx(found.value, rel=0.03)


def test_tail_and_resampling_agree_where_both_can_tell() -> None:
    calibration = sphere(3000, 600, 64)
    exact = calibration.threshold("0.1", 600)
    assert exact.method == "exact resampling"
    known = sphere_fpir(exact.threshold, 600, 64)
    assert exact.low < known < exact.high


def test_what_the_data_does_not_carry_has_no_value() -> None:
    calibration, _ = random_calibration(probes=200)
    found = calibration.fpir(0.05, 10**9)
    assert found.value is None and "at least" in found.remark
    few, _ = random_calibration(probes=5, entries=3)
    with pytest.raises(MetricError, match="impostors"):
        few.threshold("1e-3", 1000)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.fpir(0.5, 0), "at least one entry"),
        (lambda c: c.fpir(math.nan, 5), "number"),
        (lambda c: c.threshold("0", 5), "above 0"),
        (lambda c: c.threshold("2", 5), "rate"),
        (lambda c: c.threshold("0.1", 5, confidence=1.0), "confidence"),
    ],
)
def test_impossible_questions_are_refused(call: object, words: str) -> None:
    calibration, _ = random_calibration()
    with pytest.raises(MetricError, match=words):
        call(calibration)  # type: ignore[operator]


def test_calibrations_that_contradict_themselves_are_refused() -> None:
    scores = np.zeros((2, 3), np.float32)
    with pytest.raises(MetricError, match="do not fit"):
        Calibration.from_scores(scores, [0], [1, 2, 3])
    with pytest.raises(MetricError, match="calibrate again"):
        Calibration(scores, np.full((2, 3), 7), np.array([-1, -2]), np.arange(3))
    with pytest.raises(MetricError, match="other people"):
        Calibration.from_scores(scores[:, :1], [0, 0], [0])


# --- the tail --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [-0.3, -1e-5, 0.0, 1e-5, 0.25])
def test_slopes_are_derivatives(shape: float) -> None:
    ratio, step = np.array([0.1, 0.7, 2.0]), 1e-5
    by_scale, by_shape = _slopes(ratio, shape)
    numeric = [
        (_cumulative(ratio * math.exp(-step), shape) - _cumulative(ratio * math.exp(step), shape)),
        (_cumulative(ratio, shape + step) - _cumulative(ratio, shape - step)),
    ]
    np.testing.assert_allclose(by_scale, numeric[0] / (2 * step), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_shape, numeric[1] / (2 * step), rtol=1e-3, atol=1e-5)


def test_the_tail_is_the_likeliest_and_its_quantile_its_inverse() -> None:
    scores = np.sort(np.random.default_rng(0).beta(2, 60, 400) + 0.3)
    tail = _Tail(0.3, np.float32(0.3), scores)
    for share in (0.5, 1e-2, 1e-5):
        assert tail.survival(tail.quantile(share)) == pytest.approx(share, rel=1e-9)
    # Moving one score by a little moves log R by its influence's slope; at the mode they sum to
    # what the prior adds.
    influence, prior = tail.influence(0.45)
    assert influence.shape == (400,)
    assert abs(influence.sum()) <= abs(prior) * abs(tail.shape) / 0.05 + 1e-3
