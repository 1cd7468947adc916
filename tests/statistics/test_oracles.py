"""Figures that other projects published for their data: ours must be the same, to their digits."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.plain_rates import tpr_at_fpr
from numpy.typing import NDArray

from facerec.statistics.costs import min_cllr
from facerec.statistics.influences import ScoredComparisons
from facerec.statistics.rates import roc_curve

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
    roc = roc_curve(*overlapping)
    assert roc.auc() == pytest.approx(0.9326, abs=1e-12)
    assert roc.eer_rocch()[0] == pytest.approx(0.116363636363636, abs=1e-14)
    assert roc.eer_step() == (0.10, 0.12)
    same = np.repeat([True, False], [side.size for side in overlapping])
    scored = ScoredComparisons(np.concatenate(overlapping), same)
    assert scored.d_prime()[0] == pytest.approx(2.1255602, abs=5e-8)
    above = roc.fpr > 0
    area = np.trapezoid(roc.tpr[above], np.log10(roc.fpr[above]))
    assert area == pytest.approx(1.4183699583, abs=5e-11)


def test_min_cllr_pools_ties(overlapping: tuple[Scores, Scores]) -> None:
    found = min_cllr(roc_curve(*overlapping))
    assert found == pytest.approx(0.4030620, abs=5e-8)
    # bob's reference sorts tied non_mated before tied mated, which separates them for nothing.
    mated, non_mated = overlapping
    apart = min_cllr(roc_curve(mated + 1e-9, non_mated))
    assert apart == pytest.approx(0.3373641, abs=5e-8)


@pytest.mark.parametrize(
    ("target", "fpr", "fnmr"),
    [("0.01", 0, 0.48), ("0.1", 0.1, 0.12), ("1", 1, 0), (".05", 0.02, 0.42)],
)
def test_error_rates_at_targets(
    overlapping: tuple[Scores, Scores], target: str, fpr: float, fnmr: float
) -> None:
    point = tpr_at_fpr(*overlapping, target)
    assert (point.fpr_realised, 1 - point.tpr) == (fpr, pytest.approx(fnmr, abs=1e-15))


def test_hull_of_overlapping_scores(overlapping: tuple[Scores, Scores]) -> None:
    hull = roc_curve(*overlapping).hull()
    assert hull.fpr[::-1].tolist() == [1, 0.68, 0.28, 0.1, 0.06, 0, 0]
    assert hull.fnmr[::-1].tolist() == [0, 0, 0.08, 0.12, 0.22, 0.48, 1]


# --- bob.measure: separated scores ----------------------------------------------------------


def test_separated_scores(separated: tuple[Scores, Scores]) -> None:
    mated, non_mated = separated
    assert (non_mated.min(), non_mated.max()) == (1.0, 1.9)
    assert (mated.min(), mated.max()) == (4.5, 6.9)
    roc = roc_curve(*separated)
    hull = roc.hull()
    assert [hull.fpr[::-1].tolist(), hull.fnmr[::-1].tolist()] == [[1, 0, 0], [0, 0, 1]]
    assert roc.eer_threshold() == 3.2
    assert (roc.auc(), roc.eer_rocch()[0], roc.eer_step()) == (1, 0, (0, 0))
    assert min_cllr(roc) == 0
    assert [roc.tpr_at_fpr(target).tpr for target in ("0", "1e-3", "1/2")] == [1, 1, 1]


# --- bob.measure: failures to acquire -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "threshold", "fmr", "fnmr"),
    [
        ("dev-1", "-8.025286e-03", (31, 495), (28, 451)),
        ("dev-2", "1.652567e-02", (23, 501), (20, 446)),
    ],
)
def test_eer_thresholds(
    shared_data: Path, name: str, threshold: str, fmr: tuple[int, int], fnmr: tuple[int, int]
) -> None:
    table = np.loadtxt(shared_data / "oracles" / f"bob_{name}.txt")
    table = table[~np.isnan(table[:, 1])]
    roc = roc_curve(*(table[table[:, 0] == sign, 1] for sign in (1, -1)))
    assert f"{roc.eer_threshold():.6e}" == threshold
    at = np.count_nonzero(roc.thresholds >= float(threshold)) - 1
    assert (roc.false_accepts[at], roc.non_mated) == fmr
    assert (roc.mated - roc.true_accepts[at], roc.mated) == fnmr


# --- pyeer ----------------------------------------------------------------------------------


# Of three experiments.
COUNTS = (2793, 4950), (180, 3619), (2786, 66633)
AREAS = 0.9650048642529845, 0.9925900340793958, 0.9087594583434054
EQUAL = 0.0808623290, 0.0441896165, 0.1141693075
FNMR = (
    (0.074829932, 0.096670247, 0.128893663, 0.291442893, 0.319011815),
    (0.016666667, 0.044444444, 0.088888889, 0.188888889, 0.194444444),
    (0.119167265, 0.133524767, 0.163316583, 0.213567839, 0.276740847),
)
REALISED = (
    (0.1, 0.0498990, 0.0098990, 0.00080808, 0),
    (0.0983697, 0.0486322, 0.0099475, 0.00082896, 0),
    (0.0999955, 0.0481893, 0.0097549, 0.00096049, 0),
)


@pytest.mark.parametrize("experiment", [1, 2, 3])
def test_pyeer_experiments(shared_data: Path, experiment: int) -> None:
    counts, area, equal, fnmr, realised = (
        of[experiment - 1] for of in (COUNTS, AREAS, EQUAL, FNMR, REALISED)
    )
    folder = shared_data / "oracles"
    mated = np.loadtxt(folder / f"pyeer_nh_exp{experiment}_true.txt")
    non_mated = np.loadtxt(folder / f"pyeer_nh_exp{experiment}_false.txt")
    roc = roc_curve(mated, non_mated)
    assert (roc.mated, roc.non_mated) == counts
    assert roc.auc() == pytest.approx(area, abs=1e-14)
    assert np.mean(roc.eer_step()) == pytest.approx(equal, abs=1e-10)
    points = [roc.tpr_at_fpr(target) for target in (".1", ".05", ".01", ".001", "0")]
    assert [1 - point.tpr for point in points] == pytest.approx(fnmr, abs=5e-10)
    assert [point.fpr_realised for point in points] == pytest.approx(realised, abs=5e-8)
