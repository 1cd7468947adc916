"""Measurements of intervals: how often they cover the truth, and how long a bootstrap takes."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from rows import Row
from scipy.stats import norm
from scipy.stats import t as student

from facerec.statistics.clustered import fmr_interval, fnmr_interval
from facerec.statistics.intervals import Interval, wilson
from facerec.statistics.operating_intervals import (
    realised_fpr_interval,
    threshold_interval,
    tpr_interval,
)
from facerec.statistics.rates import SortedScores, sort_scores
from facerec.verification.bench import Pairs
from facerec.verification.uncertainty import Uncertainty

FMR, FNMR = 0.01, 0.05
TARGETS = ("1e-1", "1e-2", "1e-3", "1e-4")
DEFAULT, VERTEX, NAIVE = "default", "vertex bootstrap", "naive Wilson"


def coverage_designs(
    repetitions: int = 250, people: tuple[int, ...] = (60, 200), replicates: int = 0
) -> list[Row]:
    """Count how often intervals hold the truth where people differ, look alike and are uneven.

    Every `Population` meets every way in `COUNTS` to give people images. A set is all mated pairs
    and 20,000 others drawn at random; a figure's truth is that of millions of pairs.

    Args:
        repetitions: sets of each design.
        people: their number.
        replicates: of the bootstrap of TPR@FPR, which takes most of the time; 0 for none.
    """
    rows = []
    for size in people:
        covered: dict[str, dict[str, float]] = defaultdict(dict)
        for name, population in POPULATIONS.items():
            truth = population.truth()
            for label, count in COUNTS.items():
                generator = np.random.default_rng(size)
                held: dict[str, int] = defaultdict(int)
                for _ in range(repetitions):
                    images = count(generator, size)
                    for figure, holds in population.trial(
                        generator, images, truth, replicates
                    ).items():
                        held[figure] += holds
                for figure, times in held.items():
                    covered[figure][f"{name}, {label}"] = 100 * times / repetitions
        for figure, shares in covered.items():
            rows += _extremes(f"{figure}, {size} people", shares, _bars(figure), repetitions)
    return rows


def coverage_independent(repetitions: int = 250) -> list[Row]:
    """Count how often the intervals of independent scores hold the truth.

    Args:
        repetitions: sets of each family and size.
    """
    covered: dict[str, dict[str, float]] = defaultdict(dict)
    for name, family in FAMILIES.items():
        for same, different in ((1000, 1000), (3000, 3000), (20_000, 10_000), (1000, 30_000)):
            generator = np.random.default_rng(same + different)
            held: dict[str, int] = defaultdict(int)
            for _ in range(repetitions):
                scores = sort_scores(*family.draw(generator, same, different))
                for figure, holds in _independent_trial(scores, family).items():
                    held[figure] += holds
            for figure, times in held.items():
                share = 100 * times / repetitions
                covered[figure][f"{name}, {same:,} and {different:,} pairs"] = share
    return [
        row
        for figure, shares in covered.items()
        for row in _extremes(f"{figure}, independent scores", shares, _bars(figure), repetitions)
    ]


@dataclass(frozen=True)
class Population:
    """People of whom sets are drawn.

    A person is one of 40 fixed directions plus a part of its own; images scatter about it, more for
    some people than for others.
    """

    look_alikes: float
    """Share of the fixed direction in a person; 0 for people who have nothing in common."""
    scatter: float
    uneven: float
    """Standard deviation of the logarithm of the scatter over people."""
    tails: float
    """Degrees of freedom of the scatter's t distribution; infinite for a normal one."""

    def people(
        self, generator: np.random.Generator, number: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the centre and the scatter of each person."""
        fixed = np.random.default_rng(5).standard_normal((40, 16), np.float32)
        own = generator.standard_normal((number, 16), np.float32)
        kind = generator.integers(len(fixed), size=number)
        centres = (
            self.look_alikes * fixed[kind] + np.float32((1 - self.look_alikes**2) ** 0.5) * own
        )
        spread = np.exp(self.uneven * generator.standard_normal(number, np.float32))
        return centres, np.float32(self.scatter) * spread

    def images(
        self,
        generator: np.random.Generator,
        people: tuple[NDArray[np.float32], NDArray[np.float32]],
        person: NDArray[np.integer],
    ) -> NDArray[np.float32]:
        """Return unit embeddings of images of persons."""
        centres, scatter = people
        noise = generator.standard_normal((person.size, centres.shape[1]), np.float32)
        if np.isfinite(self.tails):
            squares = generator.chisquare(self.tails, (person.size, 1)) / self.tails
            noise /= np.sqrt(squares).astype(np.float32)
        found = centres[person] + scatter[person, np.newaxis] * noise
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def truth(self, pairs: int = 300_000, draws: int = 6) -> dict[str, float]:
        """Return the true figures, and the thresholds of the rates that are looked at."""
        generator = np.random.default_rng(99)
        same, different = [], []
        for _ in range(draws):
            people = self.people(generator, pairs)
            one, other = (self.images(generator, people, np.arange(pairs)) for _ in range(2))
            same.append(np.einsum("nd,nd->n", one, other))
            different += [np.einsum("nd,nd->n", one, np.roll(other, k, 0)) for k in (1, 7, 100)]
        figures = sort_scores(np.concatenate(same), np.concatenate(different))
        point = figures.tpr_at_fpr(FMR)
        return {
            "AUC": figures.auc(),
            "EER": figures.eer_step().rate,
            "TPR": point.tpr,
            "match": point.threshold,
            "FNMR 5 %": float(np.quantile(figures.mated, 0.05)),
            "FNMR 1 %": float(np.quantile(figures.mated, 0.01)),
        }

    def misses(
        self,
        generator: np.random.Generator,
        images: NDArray[np.integer],
        threshold: float,
        harder: NDArray[np.floating],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return false non-matches and mated comparisons of each person of one set.

        Args:
            generator: draws the set.
            images: of each person, ``(G,)``.
            threshold: scores below it are misses.
            harder: factor on the scatter of each person's images, ``(G,)``.
        """
        person = np.repeat(np.arange(images.size), images)
        centres, scatter = self.people(generator, images.size)
        vectors = self.images(generator, (centres, scatter * harder), person)
        first, second = _mated(images)
        missed = np.einsum("nd,nd->n", vectors[first], vectors[second]) < threshold
        made = np.bincount(person[first], minlength=images.size)
        return np.bincount(person[first[missed]], minlength=images.size), made

    def trial(
        self,
        generator: np.random.Generator,
        images: NDArray[np.integer],
        truth: Mapping[str, float],
        replicates: int,
        others: int = 20_000,
    ) -> dict[str, bool]:
        """Draw one set and say of each figure whether its interval holds the truth."""
        person = np.repeat(np.arange(images.size), images)
        vectors = self.images(generator, self.people(generator, images.size), person)
        drawn = generator.integers(person.size, size=(2, others))
        drawn = drawn[:, person[drawn[0]] != person[drawn[1]]]
        first, second = np.concatenate([_mated(images), drawn], axis=1)
        same = person[first] == person[second]
        scores = np.einsum("nd,nd->n", vectors[first], vectors[second])
        pairs = Pairs(first, second, same, person)
        figures = sort_scores(scores[same], scores[~same])
        points = [figures.tpr_at_fpr(FMR)]
        found: dict[str, tuple[Interval, float]] = {}
        for name, number in (("TPR@FPR=0.01", replicates), ("TPR@FPR=0.01, no bootstrap", 0)):
            if number or "no" in name:
                uncertainty = Uncertainty(pairs, scores, figures, None, number, 0)
                found[name] = uncertainty.operating_points(points)[0][0], truth["TPR"]
        found["AUC"] = uncertainty.auc(), truth["AUC"]
        found["EER"] = uncertainty.eer(figures.eer_rocch()), truth["EER"]
        for rate in (0.05, 0.01):
            missed = scores[same] < truth[f"FNMR {100 * rate:.0f} %"]
            found[f"FNMR {100 * rate:.0f} %"] = fnmr_interval(missed, person[first[same]]), rate
        matched = scores[~same] >= truth["match"]
        sides = person[first[~same]], person[second[~same]]
        found["FMR 1 %"] = fmr_interval(matched, *sides), FMR
        return {
            name: interval.low <= true <= interval.high for name, (interval, true) in found.items()
        }


def _mated(images: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return all pairs of images of one person, ``(2, P)``, of persons with so many images."""
    starts = np.cumsum(images) - images
    pairs = [np.stack(np.triu_indices(n, 1)) + at for n, at in zip(images, starts, strict=True)]
    return np.concatenate(pairs, axis=1)


POPULATIONS = {
    "nothing shared": Population(0.0, 0.7, 0.25, np.inf),
    "look-alikes": Population(0.75, 0.55, 0.35, np.inf),
    "look-alikes, heavy tails": Population(0.75, 0.45, 0.35, 3),
}

EQUAL_COUNTS = "5 images each"

COUNTS: dict[str, Callable[[np.random.Generator, int], NDArray[np.int64]]] = {
    EQUAL_COUNTS: lambda generator, people: np.full(people, 5),
    "geometric": lambda generator, people: 1 + generator.geometric(0.25, people),
    "Zipf": lambda generator, people: np.minimum(1 + generator.zipf(1.7, people), 30),
    "a tenth with 20, the others 3": lambda generator, people: np.where(
        np.arange(people) < people // 10, 20, 3
    ),
}
"""Ways to give people images."""


@dataclass(frozen=True)
class Family:
    """Independent scores: of different pairs from a distribution, of same pairs from another."""

    different: Callable[[np.random.Generator, int], NDArray[np.float64]]
    same: Callable[[np.random.Generator, int], NDArray[np.float64]]
    fpr: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    """Survival function of the scores of different pairs."""
    tpr: Callable[[NDArray[np.float64]], NDArray[np.float64]]

    def draw(
        self, generator: np.random.Generator, same: int, different: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return scores of same and of different pairs."""
        return self.same(generator, same), self.different(generator, different)

    @cached_property
    def thresholds(self) -> dict[str, float]:
        """Threshold of each FPR, from a fine grid."""
        grid = np.linspace(60, -20, 800_001)
        found = np.interp([float(target) for target in TARGETS], self.fpr(grid), grid)
        return dict(zip(TARGETS, found.tolist(), strict=True))


def _normal(mean: float, deviation: float = 1.0) -> Callable[..., NDArray[np.float64]]:
    return lambda generator, size: generator.normal(mean, deviation, size)


FAMILIES = {
    "normal, 2.5 apart": Family(
        _normal(0), _normal(2.5), norm.sf, lambda score: norm.sf(score, 2.5)
    ),
    "normal, 4 apart": Family(_normal(0), _normal(4), norm.sf, lambda score: norm.sf(score, 4)),
    "heavy tails": Family(
        lambda generator, size: generator.standard_t(3, size),
        lambda generator, size: 6 + 1.5 * generator.standard_t(3, size),
        lambda score: student.sf(score, 3),
        lambda score: student.sf((score - 6) / 1.5, 3),
    ),
    "exponential": Family(
        lambda generator, size: generator.exponential(1, size),
        lambda generator, size: generator.exponential(5, size),
        lambda score: np.exp(-np.maximum(score, 0)),
        lambda score: np.exp(-np.maximum(score, 0) / 5),
    ),
    "1 in 500 different pairs labelled wrongly": Family(
        lambda generator, size: generator.normal(size=size) + 4 * (generator.random(size) < 2e-3),
        _normal(4),
        lambda score: 0.998 * norm.sf(score) + 0.002 * norm.sf(score, 4),
        lambda score: norm.sf(score, 4),
    ),
}


def _independent_trial(scores: SortedScores, family: Family) -> dict[str, bool]:
    roc, found = scores.roc(), {}
    for target, threshold in family.thresholds.items():
        point = scores.tpr_at_fpr(target)
        if not point.resolvable:
            continue
        truth = float(family.tpr(np.float64(threshold)))
        few = "" if point.false_accepts >= 3 else ", fewer than 3 false accepts"
        known = wilson(point.true_accepts, point.mated)
        for name, interval, true in (
            (f"TPR@FPR={target}{few}", tpr_interval(roc, point), truth),
            (f"threshold of FPR={target}", threshold_interval(roc, point), threshold),
            (
                f"realised FPR at {target}",
                realised_fpr_interval(point),
                float(family.fpr(np.float64(point.threshold))),
            ),
            (f"TPR@FPR={target}, {NAIVE} at a known threshold", known, truth),
        ):
            found[name] = interval.low <= true <= interval.high
    return found


def _bars(figure: str) -> tuple[float | None, float | None]:
    """Return the least and the greatest coverage that is asked of a figure's interval."""
    if figure in ("AUC", "EER"):
        return 92.0, 98.0
    if any(word in figure for word in (NAIVE, "FMR", "1 %", "threshold", "fewer")):
        return None, None
    return 93.0, 97.0


def _extremes(
    what: str,
    shares: Mapping[str, float],
    bars: tuple[float | None, float | None],
    repetitions: int,
) -> list[Row]:
    """Return the least and the greatest coverage over designs."""
    worst = (0.95 * 0.05 / repetitions) ** 0.5 * 100
    rows = []
    for word, choose, bar, better in (
        ("least", min, bars[0], "higher"),
        ("greatest", max, bars[1], "lower"),
    ):
        design = choose(shares, key=lambda name: shares[name])
        remark = (
            f"{design}; mean of {len(shares)} designs {statistics.mean(shares.values()):.1f} %, "
            f"Monte-Carlo error {worst:.1f} points each"
        )
        rows.append(
            Row(f"coverage of 95 %, {what}: {word}", shares[design], "%", bar, better, remark)
        )
    return rows
