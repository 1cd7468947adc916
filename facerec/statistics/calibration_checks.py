"""Whether a calibration holds for other people: how often strangers score high, and by group."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import digamma, expit, stdtr, stdtrit

from facerec.statistics.calibration import LikelihoodRatio, ScoreCounts
from facerec.statistics.clustered import ClusteredFigure

Array = NDArray[np.float64]

ALIKE = 2.0
"""Up to this factor, either way, people count as like those of the calibration."""

FEWEST = 20
"""Probes, and subjects of a gallery, from which on runners-up are looked at."""


@dataclass(frozen=True)
class Likeness:
    """How many times as often strangers score high as they do among a calibration's people."""

    factor: float
    low: float
    """Lower limit of its 95 % interval."""
    high: float

    @property
    def alike(self) -> bool | None:
        """Whether strangers are like those of the calibration; None if that cannot be told."""
        if self.low > ALIKE or self.high < 1 / ALIKE:
            return False
        return True if self.low >= 1 / ALIKE and self.high <= ALIKE else None

    def __str__(self) -> str:
        verdict = {
            True: "strangers are as there; whether photos of one person are, this does not tell",
            False: "its ratios do not hold here: calibrate on people like these",
            None: "that is too uncertain to tell whether strangers are as there",
        }[self.alike]
        ends = f"[{self.low:.2g}, {self.high:.2g}]"
        return (
            f"strangers score high {self.factor:.2g} {ends} times as often as among the people "
            f"of the calibration; {verdict}"
        )


def likeness(ratio: LikelihoodRatio, best: ArrayLike, others: int) -> Likeness | None:
    """Return how often strangers of a gallery score high, by the runner-up of each probe.

    Nobody need know who is on a probe. Its best score may be its own subject's, the next one is a
    stranger's: the highest of all strangers, or the next to highest where the best is a stranger's
    too, as it is taken to be where its ratio is below the number of subjects. Of N strangers
    τ = N · share(score) are expected at or above it, and ln τ has mean digamma(1) or digamma(2)
    (Rényi 1953). Probes count as of different people.

    Args:
        ratio: the calibration.
        best: the two highest cosines of each probe with different subjects, ``(n, 2)``.
        others: subjects of the gallery.

    Returns:
        None with fewer than `FEWEST` probes or subjects.
    """
    scores = np.asarray(best, np.float64)
    scores = scores[np.isfinite(scores).all(axis=1)]
    if len(scores) < FEWEST or others < FEWEST:
        return None
    at, shares = ratio.strangers.T[:2]
    mated = ratio.log_ratio(scores[:, 0]) > math.log(others)
    expected = np.log(others - mated) + np.log(np.interp(scores[:, 1], at, shares))
    surprise = digamma(np.where(mated, 1, 2)) - expected
    error = float(surprise.std(ddof=1)) / math.sqrt(len(scores))
    middle, margin = float(surprise.mean()), float(stdtrit(len(scores) - 1, 0.975)) * error
    return Likeness(math.exp(middle), math.exp(middle - margin), math.exp(middle + margin))


def observed_ratios(log_ratios: Array, counts: ScoreCounts) -> Array:
    """Return the likelihood ratios that comparisons show, beside those that are claimed.

    Args:
        log_ratios: claimed, of each cell, natural logarithms, NaN for none, ``(CELLS,)``.
        counts: of comparisons.

    Returns:
        A row for each power of ten with comparisons of both kinds: claimed, observed, and the
        limits of the 95 % interval of the observed one, as powers of ten, ``(B, 4)``.
    """
    same, different = (total / total.sum() for total in counts.totals)
    power, rows = np.floor(log_ratios / math.log(10)), []
    for number in np.unique(power[np.isfinite(power)]):
        inside = np.where(power == number, 1.0, 0.0)
        mated, others = float(same @ inside), float(different @ inside)
        if min(mated, others) > 0:
            # Of true ratios the mean over non-mated comparisons is mated / others.
            claimed = float((different * inside) @ np.exp(np.nan_to_num(log_ratios))) / others
            kinds = (
                counts.sums("mated", inside / mated),
                counts.sums("non_mated", -inside / others),
            )
            value = math.log(mated / others)
            margin = 1.96 * math.sqrt(ClusteredFigure.of_kinds(value, kinds).variance)
            rows.append((math.log(claimed), value, value - margin, value + margin))
    return np.array(rows).reshape(-1, 4) / math.log(10)


def shift(log_ratios: Array, counts: ScoreCounts) -> ClusteredFigure | None:
    """Return what must be added to log-likelihood ratios so that they hold for some subjects.

    It is the intercept of a logistic regression with the ratios as offset and both kinds of
    comparisons of equal weight (van Calster et al., J. Clinical Epidemiology 74, 2016).

    Args:
        log_ratios: of each cell, NaN where none is claimed, ``(CELLS,)``.
        counts: of these subjects.

    Returns:
        None if one kind of comparisons has no score where ratios are claimed.
    """
    told = np.isfinite(log_ratios) * 1.0
    same, different = (told * total / total.sum() for total in counts.totals)
    if not (same.any() and different.any()):
        return None

    def gradient(value: float) -> float:
        chance = expit(np.nan_to_num(log_ratios) + value)
        return float(same @ (1 - chance) - different @ chance)

    value = float(brentq(gradient, -700, 700))
    chance = expit(np.nan_to_num(log_ratios) + value)
    information = float((same + different) @ (chance * (1 - chance)))
    return ClusteredFigure.of_kinds(
        value,
        [
            counts.sums("mated", told * (1 - chance) / information),
            counts.sums("non_mated", -told * chance / information),
        ],
    )


def shift_p_value(first: ClusteredFigure, second: ClusteredFigure) -> float:
    """Return the two-sided p-value of equal shifts of two groups of different subjects."""
    statistic = (first.value - second.value) / math.sqrt(first.variance + second.variance)
    freedom = max(1.0, min(first.effective_subjects, second.effective_subjects) - 1)
    return 2 * float(stdtr(freedom, -abs(statistic)))
