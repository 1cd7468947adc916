"""How often 95 % intervals cover the truth: people alike, uneven, and with uneven images."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rows import Row
from scipy.stats import norm
from scipy.stats import t as student

from facerec.fairness.differentials import RATIO, differentials
from facerec.fairness.groupings import Grouping
from facerec.fairness.rates import Thresholds, all_pairs_rates
from facerec.statistics.influences import ScoredComparisons
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_points import OperatingPoint
from facerec.statistics.rates import roc_curve
from facerec.verification.bench import Pairs

TARGETS = ("1e-2", "1e-3")
MATED, OTHERS = 3000, 6000
"""Pairs of a list, at most."""

Rate: TypeAlias = tuple[str, str]
"""FMR or FNMR, and its target."""


def coverage_designs(repetitions: int = 250, people: int = 60) -> list[Row]:
    """Count how often intervals hold the truth where people differ, look alike and are uneven.

    Every `Population` meets every way in `COUNTS` to give people images, by all pairs of a set and
    by a list of some. A figure's truth is that of millions of pairs of other people. Sets whose
    effective number of subjects is too small for an interval are not counted, but named.

    Args:
        repetitions: sets of each design.
        people: their number.
    """
    covered: dict[str, dict[str, float]] = defaultdict(dict)
    for name, population in POPULATIONS.items():
        truth = population.truth()
        for label, count in COUNTS.items():
            for listed in (False, True):
                generator = np.random.default_rng(people)
                held: dict[str, list[bool]] = defaultdict(list)
                for _ in range(repetitions):
                    images = count(generator, people)
                    found = population.trial(generator, images, truth, listed)
                    for figure, holds in found.items():
                        held[figure].append(holds)
                design = f"{name}, {label}, {'list' if listed else 'all pairs'}"
                for figure, each in held.items():
                    if len(each) >= repetitions / 5:
                        covered[figure][design] = 100 * statistics.mean(each)
    return [
        row
        for figure, shares in covered.items()
        for row in extremes(f"{figure}, {people} people", shares, (92.0, None), repetitions)
    ]


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
                mated, others = family.draw(generator, same, different)
                for figure, holds in _independent_trial(mated, others, family).items():
                    held[figure] += holds
            for figure, times in held.items():
                share = 100 * times / repetitions
                covered[figure][f"{name}, {same:,} and {different:,} pairs"] = share
    return [
        row
        for figure, shares in covered.items()
        for row in extremes(f"{figure}, independent scores", shares, (92.0, None), repetitions)
    ]


def rare_rates(repetitions: int = 200) -> list[Row]:
    """Count how often intervals hold the rates of two equal groups, and tests call them unequal.

    Every set has two groups of people of one population, audited at given thresholds. The designs
    of `HELD_OUT` were drawn once, after the method was settled.

    Args:
        repetitions: sets of each design.
    """
    rows = []
    for name, (population, label) in (RARE | HELD_OUT).items():
        truth = population.truth()
        points = [
            OperatingPoint(target, threshold, 1, 1, 0, 10**9)
            for (_, target), threshold in truth.thresholds.items()
        ]
        for people in (60, 200):
            # Of the designs that were looked at once these are the seeds.
            generator = np.random.default_rng(5700 + people)
            # By what is counted, which is an interval or a test, and rate.
            held: dict[tuple[str, Rate], list[bool]] = defaultdict(list)
            for seed in range(repetitions):
                images = COUNTS[label](generator, 2 * people)
                person = np.repeat(np.arange(2 * people), images)
                drawn = population.people(generator, 2 * people)
                vectors = population.images(generator, drawn, person)
                codes = (person >= people).astype(np.int64)
                groups = [Grouping(("group",), ("A", "B"), codes)]
                given = Thresholds("the truth", tuple(points))
                (errors,) = all_pairs_rates(vectors, person, groups, thresholds=given)
                for at in errors.points:
                    for of, shares in (("FMR", at.fmr[:2]), ("FNMR", at.fnmr[:2])):
                        if (rate := (of, at.point.target)) in truth.thresholds:
                            limits = [share.interval() for share in shares if share]
                            true = float(at.point.target)
                            held["", rate] += [end.low <= true <= end.high for end in limits]
                for row in differentials(errors, replicates=299, seed=seed):
                    rate = row.of, row.at.target
                    if row.measure == RATIO and row.p_value and rate in truth.thresholds:
                        held["test of ", rate].append(row.p_value < 0.05)
            for (what, (of, target)), each in sorted(held.items()):
                share, count = 100 * statistics.mean(each), len(each)
                bar = (7, "lower") if what else (92, "higher")
                figure = f"{what}{of} {target}, {name}, {label}, two groups of {people}"
                rows.append(Row(figure, share, "%", *bar, remark=f"of {count:,}"))
    return rows


class Truth(NamedTuple):
    """True figures by name, and the thresholds at which rates are those of their targets."""

    figures: dict[str, float]
    thresholds: dict[Rate, float]


@dataclass(frozen=True)
class Population:
    """People of whom sets are drawn.

    A person is one of some fixed directions plus a part of its own, and leans along one axis as far
    as an exponential variable says; images scatter about it, more for some people than for others.
    """

    look_alikes: float
    """Share of the fixed direction in a person; 0 for people who have nothing in common."""
    scatter: float
    uneven: float
    """Standard deviation of the logarithm of the scatter over people."""
    tails: float
    """Degrees of freedom of the scatter's t distribution; infinite for a normal one."""
    lean: float = 0.0
    """Mean of how far people lean."""
    kinds: int = 60
    """Fixed directions."""
    favoured: float = 0.0
    """The k-th direction has people in proportion to k to minus this power."""

    def people(
        self, generator: np.random.Generator, number: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the centre and the scatter of each person."""
        fixed = np.random.default_rng(5).standard_normal((self.kinds, 16), np.float32)
        own = generator.standard_normal((number, 16), np.float32)
        chance = np.arange(1, self.kinds + 1) ** -self.favoured
        kind = generator.choice(self.kinds, number, p=chance / chance.sum())
        centres = (
            self.look_alikes * fixed[kind] + np.float32((1 - self.look_alikes**2) ** 0.5) * own
        )
        if self.lean:
            centres[:, 0] += self.lean * generator.standard_exponential(number, np.float32)
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

    def truth(self, pairs: int = 300_000, draws: int = 6) -> Truth:
        """Return the true figures, and the thresholds of the rates that are looked at."""
        generator = np.random.default_rng(99)
        same, different = [], []
        for _ in range(draws):
            people = self.people(generator, pairs)
            one, other = (self.images(generator, people, np.arange(pairs)) for _ in range(2))
            same.append(np.einsum("nd,nd->n", one, other))
            different += [np.einsum("nd,nd->n", one, np.roll(other, k, 0)) for k in (1, 7, 100)]
        roc = roc_curve(np.concatenate(same), np.concatenate(different))
        true = {"AUC": roc.auc(), "EER": float(np.mean(roc.eer_step()))}
        thresholds = {}
        for target in TARGETS:
            point = roc.tpr_at_fpr(target)
            true[f"TPR@FPR={target}"], thresholds["FMR", target] = point.tpr, point.threshold
        for target in ("0.05", "0.01"):
            thresholds["FNMR", target] = float(np.quantile(np.concatenate(same), float(target)))
        return Truth(true, thresholds)

    def trial(
        self,
        generator: np.random.Generator,
        images: NDArray[np.integer],
        truth: Truth,
        listed: bool,
    ) -> dict[str, bool]:
        """Draw one set and say of each figure whether its interval holds the truth."""
        person = np.repeat(np.arange(images.size), images)
        vectors = self.images(generator, self.people(generator, images.size), person)
        first, second = np.triu_indices(person.size, 1)
        same = person[first] == person[second]
        if listed:
            kinds = (np.flatnonzero(same), MATED), (np.flatnonzero(~same), OTHERS)
            kept = np.concatenate(
                [generator.choice(kind, min(most, kind.size), False) for kind, most in kinds]
            )
            first, second, same = first[kept], second[kept], same[kept]
        scores = np.einsum("nd,nd->n", vectors[first], vectors[second])
        pairs = Pairs(first, second, same, person)
        scored, _ = pairs.comparisons(scores)
        limits = {"AUC": scored.interval(scored.auc()), "EER": scored.interval(scored.eer())}
        for target in TARGETS:
            point = scored.roc.tpr_at_fpr(target)
            if point.resolvable:
                limits[f"TPR@FPR={target}"] = scored.tpr_interval(point)
        found = {name: (interval, truth.figures[name]) for name, interval in limits.items()}
        if listed:
            right = scored.mean((scores >= truth.thresholds["FMR", "1e-2"]) == same)
            mated = float(same.mean())
            true = mated * truth.figures["TPR@FPR=1e-2"] + (1 - mated) * 0.99
            found["accuracy"] = scored.interval(right), true
        for (of, target), threshold in truth.thresholds.items():
            accepted = scores >= threshold
            share = scored.share(accepted, ~same) if of == "FMR" else scored.share(~accepted, same)
            found[f"{of} {target}"] = share.interval(), float(target)
        return {
            name: interval.low <= true <= interval.high
            for name, (interval, true) in found.items()
            if not interval.lacking
        }


POPULATIONS = {
    "nothing shared": Population(0.0, 0.7, 0.25, np.inf),
    "look-alikes": Population(0.75, 0.55, 0.35, np.inf),
    "look-alikes, heavy tails": Population(0.75, 0.45, 0.35, 3),
}

RARE = {
    "skewed scatter": (Population(0.6, 0.42, 0.6, np.inf), "geometric"),
    "uneven kinds": (Population(0.7, 0.48, 0.3, np.inf, kinds=20, favoured=0.7), "geometric"),
    "a crowd on one axis": (Population(0.0, 0.58, 0.25, np.inf, lean=1.2), "geometric"),
}
HELD_OUT = {
    "eight kinds": (Population(0.5, 0.45, 0.4, np.inf, kinds=8, favoured=1.0), "geometric"),
    "a crowd, heavy tails": (Population(0.0, 0.42, 0.3, 4, lean=0.8), "5 images each"),
    "kinds and a crowd": (Population(0.6, 0.45, 0.5, np.inf, 0.7, 30, 0.5), "geometric"),
}
"""Looked at once."""

COUNTS: dict[str, Callable[[np.random.Generator, int], NDArray[np.int64]]] = {
    "5 images each": lambda generator, people: np.full(people, 5),
    "geometric": lambda generator, people: 2 + generator.geometric(0.25, people),
    "Pareto": lambda generator, people: np.minimum(
        2 + (2 * generator.pareto(1.2, people)).astype(np.int64), 45
    ),
    "two with 40 % of the images": lambda generator, people: np.where(
        np.arange(people) < 2, round((people - 2) * 4 / 3), 4
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


def _independent_trial(
    mated: NDArray[np.float64], others: NDArray[np.float64], family: Family
) -> dict[str, bool]:
    scores = np.concatenate([mated, others])
    scored = ScoredComparisons(scores, np.arange(scores.size) < mated.size)
    found = {}
    for target, threshold in family.thresholds.items():
        point = scored.roc.tpr_at_fpr(target)
        if not point.resolvable:
            continue
        few = "" if point.false_accepts >= 10 else ", fewer than 10 false accepts"
        limits = scored.threshold_interval(point)
        intervals: dict[str, tuple[Interval | None, float]] = {
            f"TPR@FPR={target}{few}": (
                scored.tpr_interval(point),
                float(family.tpr(np.float64(threshold))),
            ),
            f"threshold of FPR={target}{few}": (limits, threshold),
        }
        for name, (interval, true) in intervals.items():
            if interval is not None:
                found[name] = interval.low <= true <= interval.high
    return found


def extremes(
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
