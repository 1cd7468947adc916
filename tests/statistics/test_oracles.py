"""Figures that other projects published for their data: ours must be the same, to their digits."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.plain_rates import error_rates, search
from numpy.typing import NDArray

from facerec.statistics.costs import min_cllr
from facerec.statistics.discard import error_versus_discard
from facerec.statistics.identification import Searches, cmc
from facerec.statistics.intervals import wilson
from facerec.statistics.rates import sort_scores, tpr_at_fpr

Scores = NDArray[np.float64]


def load(folder: Path, name: str, key: str = "array") -> Scores:
    with h5py.File(folder / "oracles" / f"bob_{name}.hdf5") as file:
        return np.asarray(file[key][:])


@pytest.fixture
def overlapping(shared_data: Path) -> tuple[Scores, Scores]:
    """Positives and non_mated of bob.measure in steps of a tenth, with heavy ties."""
    return load(shared_data, "nonsep-positives"), load(shared_data, "nonsep-negatives")


@pytest.fixture
def separated(shared_data: Path) -> tuple[Scores, Scores]:
    return load(shared_data, "linsep-positives"), load(shared_data, "linsep-negatives")


# --- bob.measure: overlapping scores --------------------------------------------------------


def test_overlapping_scores(overlapping: tuple[Scores, Scores]) -> None:
    figures = sort_scores(*overlapping)
    assert figures.roc.auc() == pytest.approx(0.9326, abs=1e-12)
    assert figures.roc.eer_rocch().rate == pytest.approx(0.116363636363636, abs=1e-14)
    step = figures.roc.eer_step()
    assert (step.low, step.high) == (0.10, 0.12)
    assert figures.d_prime() == pytest.approx(2.1255602, abs=5e-8)
    roc = figures.roc
    above = roc.fpr > 0
    area = np.trapezoid(roc.tpr[above], np.log10(roc.fpr[above]))
    assert area == pytest.approx(1.4183699583, abs=5e-11)


def test_min_cllr_pools_ties(overlapping: tuple[Scores, Scores]) -> None:
    found = min_cllr(sort_scores(*overlapping).roc)
    assert found == pytest.approx(0.4030620, abs=5e-8)
    # bob's reference sorts tied non_mated before tied mated, which separates them for nothing.
    mated, non_mated = overlapping
    apart = min_cllr(sort_scores(mated + 1e-9, non_mated).roc)
    assert apart == pytest.approx(0.3373641, abs=5e-8)


@pytest.mark.parametrize(
    ("target", "fpr", "fnmr"),
    [("0.01", 0, 0.48), ("0.1", 0.1, 0.12), ("1", 1, 0), (".05", 0.02, 0.42)],
)
def test_error_rates_at_targets(
    overlapping: tuple[Scores, Scores], target: str, fpr: float, fnmr: float
) -> None:
    point = tpr_at_fpr(*overlapping, target)
    assert (point.fpr_realised, point.fnmr) == (fpr, fnmr)


def test_hull_of_overlapping_scores(overlapping: tuple[Scores, Scores]) -> None:
    hull = sort_scores(*overlapping).roc.hull()
    assert hull.fpr[::-1].tolist() == [1, 0.68, 0.28, 0.1, 0.06, 0, 0]
    assert hull.fnmr[::-1].tolist() == [0, 0, 0.08, 0.12, 0.22, 0.48, 1]


# --- bob.measure: separated scores ----------------------------------------------------------


def test_separated_scores(separated: tuple[Scores, Scores]) -> None:
    mated, non_mated = separated
    assert (non_mated.min(), non_mated.max()) == (1.0, 1.9)
    assert (mated.min(), mated.max()) == (4.5, 6.9)
    figures = sort_scores(*separated)
    hull = figures.roc.hull()
    assert [hull.fpr[::-1].tolist(), hull.fnmr[::-1].tolist()] == [[1, 0, 0], [0, 0, 1]]
    assert figures.roc.eer_threshold() == 3.2
    roc = figures.roc
    assert (roc.auc(), roc.eer_rocch().rate, roc.eer_step().rate) == (1, 0, 0)
    assert min_cllr(roc) == 0
    assert [figures.roc.tpr_at_fpr(target).tpr for target in ("0", "1e-3", "1/2")] == [1, 1, 1]


# --- bob.measure: failures to acquire -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "threshold", "failures", "fmr", "fnmr"),
    [
        ("dev-1", -8.025286e-03, 54, (31, 495), (28, 451)),
        ("test-1", -8.025286e-03, 48, (27, 479), (29, 473)),
        ("dev-2", 1.652567e-02, 53, (23, 501), (20, 446)),
        ("test-2", 1.652567e-02, 49, (16, 480), (33, 471)),
    ],
)
def test_bob_failures_to_acquire(
    shared_data: Path,
    name: str,
    threshold: float,
    failures: int,
    fmr: tuple[int, int],
    fnmr: tuple[int, int],
) -> None:
    table = np.loadtxt(shared_data / "oracles" / f"bob_{name}.txt")
    mated, non_mated = (table[table[:, 0] == sign, 1] for sign in (1, -1))
    errors = error_rates(mated, non_mated, threshold)
    assert errors.failures == failures
    assert (errors.false_matches, errors.non_mated) == fmr
    assert (errors.false_non_matches, errors.mated) == fnmr


@pytest.mark.parametrize(
    ("name", "threshold"), [("dev-1", "-8.025286e-03"), ("dev-2", "1.652567e-02")]
)
def test_eer_thresholds(shared_data: Path, name: str, threshold: str) -> None:
    table = np.loadtxt(shared_data / "oracles" / f"bob_{name}.txt")
    table = table[~np.isnan(table[:, 1])]
    roc = sort_scores(*(table[table[:, 0] == sign, 1] for sign in (1, -1))).roc
    assert f"{roc.eer_threshold():.6e}" == threshold


# --- bob.measure: vectors of its tests ------------------------------------------------------


def test_small_cmc() -> None:
    # Non-mates and mates of four searches; shorter lists are filled up with scores of −inf.
    lists = [
        ((0.3, 1.1, 0.5), (0.7,)),
        ((1.4, -1.3, 0.6), (0.2,)),
        ((0.8, 0.0, 1.5), (-0.8, 1.8)),
        ((2.0, 1.3, 1.6, 0.9), (2.4,)),
    ]
    ranks = []
    for others, mates in lists:
        filled = [*others, *[-np.inf] * (5 - len(others) - len(mates))]
        subjects = [*(f"other {i}" for i in range(len(filled))), *["mate"] * len(mates)]
        ranks += search([[*filled, *mates]], ["mate"], subjects).rank.tolist()
    assert ranks == [2, 3, 1, 1]


def test_cmc_file(shared_data: Path) -> None:
    others, mates = (load(shared_data, "test-cmc", f"data-{kind}") for kind in ("neg", "pos"))
    ranks = 1 + np.count_nonzero(others >= mates, axis=1)
    streamed = Searches(others.max(axis=1), mates[:, 0], ranks, gallery=20)
    assert cmc(streamed, 20).tolist() == [76, 89, 96, 98, *[100] * 16]


# --- pyeer ----------------------------------------------------------------------------------


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
    mated = np.loadtxt(folder / f"pyeer_nh_exp{experiment}_true.txt")
    non_mated = np.loadtxt(folder / f"pyeer_nh_exp{experiment}_false.txt")
    figures = sort_scores(mated, non_mated)
    assert (figures.mated.size, figures.non_mated.size) == counts
    assert figures.roc.auc() == pytest.approx(area, abs=1e-14)
    assert figures.roc.eer_step().rate == pytest.approx(equal, abs=1e-10)
    points = [figures.roc.tpr_at_fpr(target) for target in (".1", ".05", ".01", ".001", "0")]
    assert [point.fnmr for point in points] == pytest.approx(fnmr, abs=5e-10)
    assert [point.fpr_realised for point in points] == pytest.approx(realised, abs=5e-8)


# --- aequitas -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "counts", "fpr", "fnr"),
    [
        ("African-American", (805, 532, 990, 1369), 0.448468, 0.279853),
        ("Asian", (2, 3, 21, 6), 0.086957, 0.333333),
        ("Caucasian", (349, 461, 1139, 505), 0.234543, 0.477226),
        ("Hispanic", (87, 129, 318, 103), 0.214815, 0.556034),
        ("Native American", (3, 1, 5, 9), 0.375000, 0.100000),
        ("Other", (36, 90, 208, 43), 0.147541, 0.676692),
    ],
)
def test_confusion_counts_by_group(
    shared_data: Path, group: str, counts: tuple[int, int, int, int], fpr: float, fnr: float
) -> None:
    with (shared_data / "oracles" / "compas_for_aequitas.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7214
    scores = {
        label: [
            float(row["score"])
            for row in rows
            if (row["race"], row["label_value"]) == (group, label)
        ]
        for label in "01"
    }
    errors = error_rates(scores["1"], scores["0"], 1)
    assert counts == (
        errors.false_matches,
        errors.false_non_matches,
        errors.non_mated - errors.false_matches,
        errors.mated - errors.false_non_matches,
    )
    assert (errors.fmr, errors.fnmr) == pytest.approx((fpr, fnr), abs=5e-7)


# --- error versus discard -------------------------------------------------------------------


def test_error_versus_discard(shared_data: Path) -> None:
    data = json.loads((shared_data / "oracles" / "edc_example_data.json").read_text())
    by_pair = data["similarity_scores"]["scores_by_pair_ids"]
    scores = np.array(list(by_pair.values()))
    threshold = np.quantile(scores, 0.05)
    assert threshold == pytest.approx(0.0267441641, abs=5e-11)
    errors = scores < threshold
    assert (errors.sum(), errors.size) == (500, 10_000)
    partial, whole = [], []
    for quality in data["quality_scores_by_sample_id_per_algorithm"].values():
        assert len(quality) == 5834
        worse = [min(quality[sample] for sample in pair.split("-")) for pair in by_pair]
        curve = error_versus_discard(errors, worse)
        assert curve.error_rates[0] == 0.05
        partial.append(curve.area("0.2"))
        whole.append(curve.area())
    expected = [0.0069596816, 0.0093187126, 0.0078432575, 0.0091138562, 0.0070677574]
    assert partial == pytest.approx(expected, abs=5e-11)
    expected = [0.0161381672, 0.0224701453, 0.0239520445, 0.0194763471, 0.0192233480]
    assert whole == pytest.approx(expected, abs=5e-11)


# --- statsmodels, from R's binom.confint ----------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "trials", "published"),
    [
        (18, 20, (0.6989663547715128, 0.972133518786232)),
        (4, 20, (0.0806576625797981, 0.4160174322518935)),
        (4, 200, (0.00780442641634947, 0.05028708690582643)),
        (190, 200, (0.910421851861224, 0.972617354399236)),
    ],
)
def test_wilson(successes: int, trials: int, published: tuple[float, float]) -> None:
    found = wilson(successes, trials)
    assert (found.low, found.high) == pytest.approx(published, abs=1e-14)


# --- scikit-learn ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "grids", "fpr", "fnr"),
    [
        ([0, 0, 1], 4, [0], [0]),
        ([0, 1, 0], 4, [0.5, 0.5, 0], [0, 1, 1]),
        ([0, 1, 1], 4, [0], [0]),
        ([1, 0, 0], 4, [1, 1, 0.5, 0], [0, 1, 1, 1]),
        ([1, 0, 1], 4, [1, 1, 0], [0, 0.5, 0.5]),
        # Ties.
        ([1, 0], [0.5, 0.5], [1, 0], [0, 1]),
        ([0, 1], [0.5, 0.5], [1, 0], [0, 1]),
        ([0, 0, 1], [0.25, 0.5, 0.5], [0.5, 0], [0, 1]),
        ([0, 1, 0], [0.25, 0.5, 0.5], [0.5, 0], [0, 1]),
        ([0, 1, 1], [0.25, 0.5, 0.5], [0], [0]),
        ([1, 0, 0], [0.25, 0.5, 0.5], [1, 1, 0], [0, 1, 1]),
        ([1, 0, 1], [0.25, 0.5, 0.5], [1, 1, 0], [0, 0.5, 1]),
        ([1, 1, 0], [0.25, 0.5, 0.5], [1, 1, 0], [0, 0.5, 1]),
    ],
)
def test_det_vectors(
    labels: list[int], grids: int | list[float], fpr: list[float], fnr: list[float]
) -> None:
    several = [[0, 0.5, 1], [0, 0.25, 0.5], [0.5, 0.75, 1], [0.25, 0.5, 0.75]]
    positive = np.array(labels) == 1
    for values in several[:grids] if isinstance(grids, int) else [grids]:
        scores = np.array(values)
        roc = sort_scores(scores[positive], scores[~positive]).roc
        # det_curve goes up the thresholds and leaves out what repeats an end.
        first = int(np.flatnonzero(roc.fnmr == 0)[0])
        last = int(np.flatnonzero(roc.fpr == 0)[-1])
        assert roc.fpr[last : first + 1][::-1].tolist() == fpr
        assert roc.fnmr[last : first + 1][::-1].tolist() == fnr


# --- closed forms ---------------------------------------------------------------------------


def test_scores_that_say_nothing() -> None:
    zeros = np.zeros(30)
    roc = sort_scores(zeros, zeros).roc
    assert min_cllr(roc) == 1
    assert (roc.auc(), roc.eer_rocch().rate, roc.eer_step().rate) == (0.5, 0.5, 0.5)
