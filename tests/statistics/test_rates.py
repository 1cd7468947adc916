from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import ndtr, ndtri
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from facerec.errors import MetricError
from facerec.statistics.rates import (
    auc,
    d_prime,
    eer_rocch,
    eer_step,
    error_rates,
    parse_rate,
    roc_curve,
    sort_scores,
    tpr_at_fpr,
)

# Few distinct values, so that ties are the rule.
tied = hnp.arrays(
    np.float64, st.integers(1, 25), elements=st.integers(-4, 4).map(lambda value: value / 8)
)
wild = hnp.arrays(
    np.float32,
    st.integers(1, 25),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=True),
)
scores = st.one_of(st.tuples(tied, tied), st.tuples(wild, wild))
rates = st.one_of(
    st.sampled_from(["0", "1e-3", "0.05", "1/3", "0.29", "1/2", "0.9", "1"]),
    st.fractions(0, 1, max_denominator=60),
)


def best_by_trying_everything(
    positives: np.ndarray, negatives: np.ndarray, fpr: Fraction
) -> Fraction:
    """The definition, in exact arithmetic: the best TPR over all cuts that respect the target."""
    best = Fraction(0)  # reject all
    for threshold in [*positives, *negatives, -np.inf]:
        accepted = sum(bool(score >= threshold) for score in negatives)
        if Fraction(accepted, len(negatives)) <= fpr:
            hits = sum(bool(score >= threshold) for score in positives)
            best = max(best, Fraction(hits, len(positives)))
    return best


def load(folder: Path, name: str) -> np.ndarray:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "oracles" / name) as file:
        return np.asarray(file["array"][:])


# --- properties -----------------------------------------------------------------------------


@given(scores, rates)
def test_tpr_at_fpr_is_the_supremum(both: tuple[np.ndarray, np.ndarray], fpr: object) -> None:
    positives, negatives = both
    point = tpr_at_fpr(positives, negatives, fpr)
    target = parse_rate(fpr)
    assert point.tpr == float(best_by_trying_everything(positives, negatives, target))
    assert Fraction(point.false_accepts, point.negatives) <= target
    # What it says of its threshold is true of the scores.
    assert np.count_nonzero(positives >= point.threshold) == point.true_accepts
    assert np.count_nonzero(negatives >= point.threshold) == point.false_accepts


@given(scores, rates)
def test_next_lower_threshold_violates_the_target(
    both: tuple[np.ndarray, np.ndarray], fpr: object
) -> None:
    positives, negatives = both
    point = tpr_at_fpr(positives, negatives, fpr)
    if point.threshold == -np.inf:
        return
    rejected = negatives[~(negatives >= point.threshold)]
    accepted = np.count_nonzero(negatives >= rejected.max())
    assert Fraction(int(accepted), negatives.size) > parse_rate(fpr)


@given(scores, rates)
def test_sorted_form_equals_selection(both: tuple[np.ndarray, np.ndarray], fpr: object) -> None:
    positives, negatives = both
    ours, other = sort_scores(*both).tpr_at_fpr(fpr), tpr_at_fpr(positives, negatives, fpr)
    # NaN thresholds are equal too.
    assert repr(ours) == repr(other)


@given(scores)
def test_realised_fpr_grows_with_the_target(both: tuple[np.ndarray, np.ndarray]) -> None:
    targets = [Fraction(step, 20) for step in range(21)]
    points = [tpr_at_fpr(*both, target) for target in targets]
    for figures in ([p.fpr_realised for p in points], [p.tpr for p in points]):
        assert figures == sorted(figures)


@given(st.tuples(tied, tied), st.randoms(use_true_random=False))
def test_invariances(both: tuple[np.ndarray, np.ndarray], random: object) -> None:
    positives, negatives = both
    transformed = [np.exp(3 * side) - 7 for side in both]
    shuffled = [np.array(random.sample(list(side), len(side))) for side in both]  # type: ignore[attr-defined]
    for others in (transformed, shuffled):
        assert auc(*others) == auc(*both)
        assert eer_rocch(*others) == eer_rocch(*both)
        assert eer_step(*others) == eer_step(*both)
        assert tpr_at_fpr(*others, "0.2").tpr == tpr_at_fpr(*both, "0.2").tpr
    # Swapping the labels and the sign mirrors the ROC.
    assert auc(-negatives, -positives) == auc(positives, negatives)
    assert eer_rocch(-negatives, -positives) == pytest.approx(eer_rocch(*both), abs=1e-12)


@given(st.tuples(tied, tied))
def test_roc_equals_scikit_learn(both: tuple[np.ndarray, np.ndarray]) -> None:
    positives, negatives = both
    labels = np.repeat([1, 0], [positives.size, negatives.size])
    values = np.concatenate(both)
    fpr, tpr, thresholds = sklearn_roc_curve(labels, values, drop_intermediate=False)
    ours = roc_curve(*both)
    np.testing.assert_allclose(ours.fpr, fpr, atol=1e-15)
    np.testing.assert_allclose(ours.tpr, tpr, atol=1e-15)
    np.testing.assert_array_equal(ours.thresholds[1:], thresholds[1:])
    assert auc(*both) == pytest.approx(roc_auc_score(labels, values), abs=1e-12)


@given(scores)
def test_roc_points_hold_at_their_thresholds(both: tuple[np.ndarray, np.ndarray]) -> None:
    positives, negatives = both
    roc = roc_curve(*both)
    for index, threshold in enumerate(roc.thresholds):
        assert np.count_nonzero(positives >= threshold) == roc.true_accepts[index]
        assert np.count_nonzero(negatives >= threshold) == roc.false_accepts[index]
    assert roc.false_accepts[0] == roc.true_accepts[0] == 0
    assert roc.fpr[-1] == roc.tpr[-1] == 1


@given(st.tuples(tied, tied))
def test_auc_is_the_mean_over_all_pairs(both: tuple[np.ndarray, np.ndarray]) -> None:
    positives, negatives = both
    wins = sum(
        Fraction(int(p > n) * 2 + int(p == n), 2) for p in positives for n in negatives
    ) / Fraction(positives.size * negatives.size)
    assert auc(*both) == pytest.approx(float(wins), abs=1e-15)
    interval = sort_scores(*both).auc_interval()
    assert 0 <= interval.low <= auc(*both) <= interval.high <= 1


@given(st.tuples(tied, tied))
def test_eer_rocch_equals_the_minimax_over_priors(both: tuple[np.ndarray, np.ndarray]) -> None:
    # The EER of the hull is the largest minimum Bayes error over all priors (Brümmer 2010): any
    # prior bounds it from below, and the prior of the hull's own slope reaches it.
    roc = roc_curve(*both)
    crossing = sort_scores(*both).eer_rocch()

    def bayes_error(prior: float) -> float:
        return float(np.min(prior * (1 - roc.tpr) + (1 - prior) * roc.fpr))

    slope = crossing.slope
    own = 0.0 if math.isinf(slope) else 1 / (1 + slope)
    bounds = [bayes_error(prior) for prior in np.linspace(0, 1, 21)]
    assert max(bounds) <= crossing.rate + 1e-12
    assert crossing.rate == pytest.approx(bayes_error(own), abs=1e-12)


@given(st.tuples(tied, tied))
def test_eer_step_against_a_loop_over_thresholds(both: tuple[np.ndarray, np.ndarray]) -> None:
    positives, negatives = both
    previous = None
    for threshold in [*sorted({*positives, *negatives}), np.inf]:
        fmr = Fraction(int(np.sum(negatives >= threshold)), negatives.size)
        fnmr = Fraction(int(np.sum(positives < threshold)), positives.size)
        if fmr <= fnmr:
            break
        previous = fmr, fnmr
    chosen = (fmr, fnmr)
    if fmr < fnmr and previous is not None and sum(previous) <= sum(chosen):
        chosen = previous
    found = eer_step(*both)
    assert [found.low, found.high] == sorted(map(float, chosen))
    assert found.rate == (found.low + found.high) / 2


def test_float32_scores_decide_as_float64() -> None:
    generator = np.random.default_rng(5)
    positives = generator.normal(1, 1, 300).astype(np.float32)
    negatives = generator.normal(0, 1, 400).astype(np.float32)
    for target in ("0", "0.01", "0.1", "0.3"):
        narrow = tpr_at_fpr(positives, negatives, target)
        wide = tpr_at_fpr(positives.astype(float), negatives.astype(float), target)
        assert (narrow.tpr, narrow.fpr_realised) == (wide.tpr, wide.fpr_realised)
        assert np.float32(narrow.threshold) == narrow.threshold  # exact in the scores' own dtype


# --- cases that public code gets wrong ------------------------------------------------------


def test_positives_between_two_negatives_count() -> None:
    # Taking the k-th negative itself as the threshold would give TPR 0 here.
    assert tpr_at_fpr([0.8, 0.7, 0.6], [0.9, 0.5], 0.5).tpr == 1.0


def test_float_target_is_its_decimal_text() -> None:
    assert int(0.29 * 100) == 28  # the trap
    point = tpr_at_fpr([0.0], np.arange(100.0), 0.29)
    assert point.false_accepts == 29
    assert parse_rate(np.float32(0.001)) == Fraction(1, 1000)


def test_no_interpolation_beyond_the_target() -> None:
    # A linear interpolation of the thresholds realised .0010234 > 1e-3 in public code.
    generator = np.random.default_rng(0)
    for _ in range(50):
        positives, negatives = generator.normal(2, 1, 200), generator.normal(0, 1, 977)
        point = tpr_at_fpr(positives, negatives, "1e-3")
        assert point.fpr_realised == 0 and not point.resolvable


def test_good_model_is_not_given_zero() -> None:
    # Where no grid threshold reaches the target, public code sets the threshold 0 and TAR ≈ 0.
    positives, negatives = np.linspace(0.8, 0.99, 3000), np.linspace(-0.1, 0.3, 3000)
    point = tpr_at_fpr(positives, negatives, "1e-3")
    assert (point.tpr, point.false_accepts, point.resolvable) == (1.0, 3, True)
    assert not point.reliable


def test_dropped_points_do_not_hide_better_ones() -> None:
    # Ten tied steps on one line: a ROC with dropped points finds the first one only.
    steps = np.repeat(np.arange(10), 1)
    assert tpr_at_fpr(steps, steps, "0.35").tpr == pytest.approx(0.3)
    assert roc_curve(steps, steps).fpr.size == 11


def test_infinite_scores() -> None:
    rejected = tpr_at_fpr([np.inf, 1.0], [np.inf, 0.0], "0.4")
    assert math.isnan(rejected.threshold)
    assert (rejected.tpr, rejected.fpr_realised) == (0.0, 0.0)
    half = tpr_at_fpr([np.inf, 1.0], [np.inf, 0.0], "0.5")
    assert (half.tpr, half.fpr_realised) == (1.0, 0.5)
    everything = tpr_at_fpr([-np.inf, 1.0], [0.0], "1")
    assert (everything.tpr, everything.threshold) == (1.0, -np.inf)


def test_constant_scores() -> None:
    zeros = np.zeros(40)
    assert auc(zeros, zeros) == 0.5
    assert eer_rocch(zeros, zeros) == 0.5
    assert eer_step(zeros, zeros).rate == 0.5
    assert tpr_at_fpr(zeros, zeros, "0.99").tpr == 0.0
    assert tpr_at_fpr(zeros, zeros, "1").tpr == 1.0
    assert math.isnan(d_prime(zeros, zeros))


def test_separated_scores() -> None:
    positives, negatives = np.linspace(1, 2, 50), np.linspace(-1, 0, 70)
    assert auc(positives, negatives) == 1.0
    assert eer_rocch(positives, negatives) == 0.0
    assert eer_step(positives, negatives).rate == 0.0
    assert tpr_at_fpr(positives, negatives, "0").tpr == 1.0
    sorted_scores = sort_scores(positives, negatives)
    # Even a perfect result on few comparisons leaves room for errors.
    assert sorted_scores.auc_interval().low < 0.95
    assert sorted_scores.eer_rocch().interval().high > 0.02


@pytest.mark.parametrize(
    ("target", "resolvable", "reliable"),
    [("1e-4", False, False), ("1/3000", True, False), ("1e-3", True, False), ("1e-2", True, True)],
)
def test_resolution_on_three_thousand_negatives(
    target: str, resolvable: bool, reliable: bool
) -> None:
    point = tpr_at_fpr(np.ones(3000), np.linspace(0, 0.5, 3000), target)
    assert (point.resolvable, point.reliable) == (resolvable, reliable)


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("positives", "negatives", "sentence"),
    [
        ([], [1.0], "there are no scores of same pairs; a rate needs at least one"),
        ([1.0], [], "there are no scores of different pairs; a rate needs at least one"),
        (
            [1.0],
            [0.0, np.nan, np.nan],
            "2 of 3 scores of different pairs are NaN, the first at index 1; count them as "
            "failures to acquire and leave them out",
        ),
        (
            [[1.0]],
            [0.0],
            "scores of same pairs have shape (1, 1); give one score a pair, shape (N,)",
        ),
        (["a"], [0.0], "scores of same pairs have type <U1; scores are real numbers"),
    ],
)
def test_bad_scores(positives: list, negatives: list, sentence: str) -> None:
    for function in (auc, eer_rocch, lambda p, n: tpr_at_fpr(p, n, "0.1")):
        with pytest.raises(MetricError) as error:
            function(positives, negatives)
        assert str(error.value) == sentence


@pytest.mark.parametrize(
    "target",
    ["-0.1", "1.01", "2", "nan", "inf", "ten", "", "1/0", "3/2", "1e-999999999", "1e9999999"],
)
def test_bad_targets(target: str) -> None:
    with pytest.raises(MetricError, match="is not a rate between 0 and 1; write it as 1e-3"):
        tpr_at_fpr([1.0], [0.0], target)


# --- analytic -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distance", "area", "equal", "fnmr"),
    [
        (3, 0.983052573, 0.066807201, {"1e-2": 0.250266253, "1e-3": 0.535948694}),
        (4, 0.997661133, 0.022750132, {"1e-2": 0.047099494, "1e-3": 0.181472518}),
    ],
)
def test_two_normal_distributions(
    distance: float, area: float, equal: float, fnmr: dict[str, float]
) -> None:
    # Quantiles in place of random draws: the error is then of the order 1/n.
    quantiles = ndtri((np.arange(100_000) + 0.5) / 100_000)
    figures = sort_scores(quantiles + distance, quantiles)
    assert figures.auc() == pytest.approx(area, abs=2e-6)
    assert figures.auc() == pytest.approx(ndtr(distance / math.sqrt(2)), abs=2e-6)
    assert figures.eer_rocch().rate == pytest.approx(equal, abs=2e-5)
    assert figures.eer_step().rate == pytest.approx(equal, abs=2e-5)
    assert figures.eer_rocch().slope == pytest.approx(1, abs=0.05)
    assert figures.d_prime() == pytest.approx(distance, abs=1e-3)
    for target, expected in fnmr.items():
        assert 1 - figures.tpr_at_fpr(target).tpr == pytest.approx(expected, abs=1e-3)


def test_auc_and_eer_intervals_cover() -> None:
    generator = np.random.default_rng(0)
    covered = {"auc": 0, "eer": 0}
    for _ in range(300):
        figures = sort_scores(generator.normal(2, 1, 200), generator.normal(0, 1, 400))
        area, equal = figures.auc_interval(), figures.eer_rocch().interval()
        covered["auc"] += area.low <= ndtr(math.sqrt(2)) <= area.high
        covered["eer"] += equal.low <= ndtr(-1) <= equal.high
    # 95 % nominal; three standard errors of 300 runs are 3.8 points.
    assert 0.91 <= covered["auc"] / 300 <= 0.99
    assert 0.91 <= covered["eer"] / 300 <= 0.99


# --- published figures ----------------------------------------------------------------------


def test_bob_overlapping_scores(shared_data: Path) -> None:
    negatives = load(shared_data, "bob_nonsep-negatives.hdf5")
    positives = load(shared_data, "bob_nonsep-positives.hdf5")
    assert auc(positives, negatives) == pytest.approx(0.9326, abs=1e-12)
    assert eer_rocch(positives, negatives) == pytest.approx(0.116363636363636, abs=1e-12)
    step = eer_step(positives, negatives)
    assert (step.low, step.high) == (0.10, 0.12)
    assert d_prime(positives, negatives) == pytest.approx(2.1255602, abs=1e-7)
    for target, fpr, fnmr in [
        (".01", 0, 0.48),
        (".1", 0.1, 0.12),
        ("1", 1, 0),
        (".05", 0.02, 0.42),
    ]:
        point = tpr_at_fpr(positives, negatives, target)
        assert point.fpr_realised == pytest.approx(fpr)
        assert point.tpr == pytest.approx(1 - fnmr)
    roc = roc_curve(positives, negatives)
    above = roc.fpr > 0
    area = np.trapezoid(roc.tpr[above], np.log10(roc.fpr[above]))
    assert area == pytest.approx(1.4183699583, abs=1e-10)


def test_bob_separated_scores(shared_data: Path) -> None:
    negatives = load(shared_data, "bob_linsep-negatives.hdf5")
    positives = load(shared_data, "bob_linsep-positives.hdf5")
    assert auc(positives, negatives) == 1.0
    assert eer_rocch(positives, negatives) == 0.0
    assert tpr_at_fpr(positives, negatives, "0").tpr == 1.0
    errors = error_rates(positives, negatives, 3.2)
    assert (errors.false_matches, errors.false_non_matches) == (0, 0)


@pytest.mark.parametrize(
    ("name", "threshold", "failures", "fmr", "fnmr", "percent"),
    [
        ("dev-1", -8.025286e-03, 54, (31, 495), (28, 451), (5.924, 11.273, 8.599)),
        ("test-1", -8.025286e-03, 48, (27, 479), (29, 473), (5.366, 10.637, 8.001)),
        ("dev-2", 1.652567e-02, 53, (23, 501), (20, 446), (4.348, 9.547, 6.947)),
        ("test-2", 1.652567e-02, 49, (16, 480), (33, 471), (3.170, 11.563, 7.367)),
    ],
)
def test_bob_failures_to_acquire(
    shared_data: Path,
    name: str,
    threshold: float,
    failures: int,
    fmr: tuple[int, int],
    fnmr: tuple[int, int],
    percent: tuple[float, float, float],
) -> None:
    table = np.loadtxt(shared_data / "oracles" / f"bob_{name}.txt")
    positives, negatives = (table[table[:, 0] == sign, 1] for sign in (1, -1))
    errors = error_rates(positives, negatives, threshold)
    assert errors.failures == failures
    assert errors.fta == failures / 1000
    assert (errors.false_matches, errors.non_mated) == fmr
    assert (errors.false_non_matches, errors.mated) == fnmr
    found = [100 * rate for rate in (errors.far, errors.frr, errors.hter)]
    assert found == pytest.approx(percent, abs=5e-4)


@pytest.mark.parametrize(
    ("experiment", "counts", "area", "equal", "fnmr", "realised"),
    [
        (
            1,
            (2793, 4950),
            0.9650048642529845,
            0.0808623290,
            (0.074829932, 0.096670247, 0.128893663, 0.291442893, 0.319011815),
            (0.1, 0.0498990, 0.0098990, 0.00080808, 0),
        ),
        (
            2,
            (180, 3619),
            0.9925900340793958,
            0.0441896165,
            (0.016666667, 0.044444444, 0.088888889, 0.188888889, 0.194444444),
            (0.0983697, 0.0486322, 0.0099475, 0.00082896, 0),
        ),
        (
            3,
            (2786, 66633),
            0.9087594583434054,
            0.1141693075,
            (0.119167265, 0.133524767, 0.163316583, 0.213567839, 0.276740847),
            (0.0999955, 0.0481893, 0.0097549, 0.00096049, 0),
        ),
    ],
)
def test_pyeer_experiments(
    shared_data: Path,
    experiment: int,
    counts: tuple[int, int],
    area: float,
    equal: float,
    fnmr: tuple[float, ...],
    realised: tuple[float, ...],
) -> None:
    folder = shared_data / "oracles"
    positives = np.loadtxt(folder / f"pyeer_nh_exp{experiment}_true.txt")
    negatives = np.loadtxt(folder / f"pyeer_nh_exp{experiment}_false.txt")
    figures = sort_scores(positives, negatives)
    assert (figures.positives.size, figures.negatives.size) == counts
    assert figures.auc() == pytest.approx(area, abs=1e-14)
    assert figures.eer_step().rate == pytest.approx(equal, abs=1e-10)
    points = [figures.tpr_at_fpr(target) for target in (".1", ".05", ".01", ".001", "0")]
    assert [1 - point.tpr for point in points] == pytest.approx(fnmr, abs=1e-9)
    assert [point.fpr_realised for point in points] == pytest.approx(realised, abs=1e-7)
