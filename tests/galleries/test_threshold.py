"""FPIRs by gallery size: against every sub-gallery there is, and against known tails."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import betainc, ndtr

from facerec.base.errors import MetricError
from facerec.galleries import Calibration
from facerec.galleries import threshold as module
from facerec.galleries.threshold import Tail, fit_hazard
from facerec.report import words


def calibration_of(scores: np.ndarray, probes: np.ndarray, entries: np.ndarray) -> Calibration:
    """Return a calibration of scores ``(P, M)``, without those of a subject with itself."""
    matrix = np.where(probes[:, None] == entries, -np.inf, scores)
    kept = np.argsort(-matrix, axis=1, kind="stable")[:, : module.DEPTH]
    best = np.take_along_axis(matrix, kept, axis=1).astype(np.float32)
    return Calibration(best, np.where(best > -np.inf, kept, -1), probes, entries)


def random_calibration(
    probes: int = 40, entries: int = 9, seed: int = 0
) -> tuple[Calibration, np.ndarray]:
    """Return a calibration with ties, and its matrix; −inf where a person meets itself."""
    generator = np.random.default_rng(seed)
    scores = (generator.integers(0, 40, (probes, entries)) / 64).astype(np.float32)
    people = np.arange(entries)
    who = generator.integers(-5, entries, probes)
    matrix = np.where(who[:, None] == people, -np.inf, scores)
    return calibration_of(scores, who, people), matrix


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
    assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("target", ["0.9", "1/2", "0.3"])
def test_the_threshold_is_the_lowest_that_keeps_to_the_target(size: int, target: str) -> None:
    calibration, matrix = random_calibration(probes=200)
    found = calibration.threshold(target, size)
    assert found.method == "exact resampling"
    goal = 0.9 if target == "0.9" else 0.5 if target == "1/2" else 0.3
    assert found.value == pytest.approx(every_sub_gallery(matrix, size, found.threshold))
    assert found.value <= goal * (1 + 1e-12)
    below = matrix[matrix < found.threshold].max()
    assert every_sub_gallery(matrix, size, float(below)) > goal
    printed = float(words.threshold(found.threshold))
    assert every_sub_gallery(matrix, size, printed) == pytest.approx(found.value)


def test_scores_that_were_not_kept_count_as_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, matrix = random_calibration(probes=100)
    monkeypatch.setattr(module, "DEPTH", 3)
    short, _ = random_calibration(probes=100)
    high, low = 0.6, 0.3
    # Nobody has three scores as high as that.
    assert np.count_nonzero(whole.scores >= high, axis=1).max() < 3
    assert short.fpir(high, 4).value == whole.fpir(high, 4).value
    known = np.count_nonzero(short.scores >= low, axis=1) < 3
    expected = every_sub_gallery(matrix[known], 2, low) * known.mean() + 1 - known.mean()
    assert whole.fpir(low, 2).value < short.fpir(low, 2).value == pytest.approx(expected)


def test_a_person_goes_as_if_never_met() -> None:
    calibration, matrix = random_calibration()
    people = calibration.probe_subjects
    left = calibration.without(4)
    stay = people != 4
    expected = calibration_of(
        np.delete(matrix, 4, axis=1)[stay], people[stay], np.delete(np.arange(9), 4)
    )
    # Where a person met itself there is one place more in the row.
    np.testing.assert_array_equal(left.scores[:, :8], expected.scores)
    # Who comes after has one number less.
    np.testing.assert_array_equal(left.probe_subjects, people[stay] - (people[stay] > 4))
    for size, threshold in itertools.product((1, 5, 8), (0.2, 0.4)):
        assert left.fpir(threshold, size).value == pytest.approx(
            expected.fpir(threshold, size).value, rel=1e-12
        )


def sphere(probes: int, entries: int, dimensions: int, seed: int = 0) -> Calibration:
    """Return the scores of directions that are spread evenly over a sphere."""
    generator = np.random.default_rng(seed)
    sides = [generator.standard_normal((n, dimensions)) for n in (probes, entries)]
    left, right = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    return calibration_of(left @ right.T, -1 - np.arange(probes), np.arange(entries))


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


def look_alikes(cosine: float, pairs: int = 20) -> Calibration:
    """Return a calibration of 200 people of whom some pairs score one cosine with each other."""
    generator = np.random.default_rng(0)
    matrix = np.tanh(generator.normal(0, 0.25, (200, 200))).astype(np.float32)
    for first in range(0, 2 * pairs, 2):
        matrix[first, first + 1] = matrix[first + 1, first] = cosine
    return calibration_of(matrix, np.arange(200), np.arange(200))


@pytest.mark.parametrize("target", ["0.15", "1e-2", "1e-3"])
@pytest.mark.parametrize("size", [50, 200, 1000])
def test_a_threshold_is_above_scores_at_which_the_data_breaks_the_target(
    target: str, size: int
) -> None:
    calibration = look_alikes(0.9)
    found = calibration.threshold(target, size)
    assert found.value is not None and found.value <= float(target)
    assert found.threshold > 0.9 or calibration.fpir(0.9, min(size, 200)).value <= float(target)
    again = calibration.fpir(found.threshold, size)
    assert again.value == pytest.approx(found.value)


FEW = random_calibration(probes=5, entries=3)[0]


@pytest.mark.parametrize(
    ("calibration", "target", "size", "words"),
    [
        (look_alikes(1.0), "1e-2", 200, "two names"),
        (look_alikes(1.0), "1e-2", 1000, "two names"),
        (FEW, "1e-3", 1000, "impostors"),
        (FEW, "0", 5, "FPIR of 0 is no target"),
        (FEW, "1", 5, "FPIR of 1 is no target"),
    ],
)
def test_thresholds_that_cannot_be_told_are_refused(
    calibration: Calibration, target: str, size: int, words: str
) -> None:
    with pytest.raises(MetricError, match=words):
        calibration.threshold(target, size)


def test_what_the_data_does_not_carry_has_no_value() -> None:
    found = FEW.fpir(0.5, 10**9)
    assert found.value is None and "at least" in found.remark


# --- the tail --------------------------------------------------------------------------------


def clusters(seed: int, probes: int, entries: int, size: int = 64) -> tuple[np.ndarray, ...]:
    """Return strangers, templates and means of clusters; people are normal about a mean."""
    generator = np.random.default_rng(seed)
    means = generator.standard_normal((8, size))
    means *= 0.5 / np.linalg.norm(means, axis=1, keepdims=True)

    def draw(number: int) -> np.ndarray:
        noise = generator.standard_normal((number, size)) / math.sqrt(size)
        vectors = means[generator.integers(8, size=number)] + noise
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return draw(probes), draw(entries), means


def cluster_fpir(probes: np.ndarray, means: np.ndarray, threshold: float, size: int) -> float:
    """Return the FPIR of these probes in galleries of random people, by random integration.

    The cosine of a template m + n reaches t where its part along the probe, which is normal, is at
    least t/√(1 − t²) times the length across, whose square is a noncentral χ².
    """
    dimensions = probes.shape[1]
    along = (probes @ means.T)[..., None]
    across = dimensions * np.maximum(0.25 - along**2, 0)
    drawn = np.random.default_rng(9).noncentral_chisquare(
        dimensions - 1, across, (*along.shape[:2], 30)
    )
    reach = threshold / math.sqrt(1 - threshold**2) * np.sqrt(drawn)
    chances = ndtr(math.sqrt(dimensions) * along - reach).mean(axis=(1, 2))
    return float(-np.expm1(size * np.log1p(-chances)).mean())


@pytest.mark.parametrize("target", ["1e-1", "1e-2"])
def test_probes_near_a_cluster_have_tails_of_their_own(target: str) -> None:
    probes, templates, means = clusters(0, 3000, 1000)
    who = -1 - np.arange(3000)
    calibration = calibration_of(probes @ templates.T, who, np.arange(1000))
    found = calibration.threshold(target, 10_000)
    truth = cluster_fpir(probes, means, found.threshold, 10_000)
    assert truth == pytest.approx(float(target), rel=0.4)
    assert found.low < truth < found.high


def test_the_hazard_is_that_which_was_drawn() -> None:
    # Excesses of the hazard 0.8 + 0.3 y: the cumulative hazard is exponential.
    drawn = np.random.default_rng(1).exponential(size=40_000)
    excess = (np.sqrt(0.8**2 + 2 * 0.3 * drawn) - 0.8) / 0.3
    unit = excess.mean()
    rise, first = fit_hazard(excess / unit)
    assert first / unit == pytest.approx(0.8, rel=0.03)
    assert rise / unit**2 == pytest.approx(0.3, rel=0.08)
    # No pair nearby is likelier.
    y = excess / unit

    def likelihood(a: float, b: float) -> float:
        return float((np.log(a + b * y) - a * y - b * y**2 / 2).sum())

    best = likelihood(first, rise)
    assert all(
        best >= likelihood(first + i * 0.01, rise + j * 0.01)
        for i, j in itertools.product((-1, 0, 1), repeat=2)
    )


def test_a_tail_is_steady_where_it_begins_and_falls() -> None:
    calibration = sphere(100, 400, 32)
    tail = Tail(calibration.scores[:, :17], calibration.eligible)
    steps = np.linspace(-0.2, 0.999, 400)
    chances = np.array([tail.chances(step) for step in steps])
    assert (np.diff(chances, axis=0) <= 0).all() and chances.min() >= 0 and chances.max() <= 1
    # At its own best score but 16 a probe has 17 of 400 entries.
    begin = float(calibration.scores[0, 16])
    assert tail.chances(begin)[0] == 17 / 400
    assert tail.chances(begin + 1e-6)[0] == pytest.approx(17 / 401, rel=1e-3)
