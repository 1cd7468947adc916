"""Measurements of the audit of identification: how often its intervals hold the truth."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rows import Row

from facerec.fairness.attributes import Grouping, Joined
from facerec.fairness.one_to_many import (
    SearchPlan,
    SearchRate,
    audit_searches,
)
from facerec.statistics.intervals import wilson

DIMENSIONS = 32
MOST_IMAGES = 40
Values = NDArray[np.float64]
Generator = np.random.Generator


@dataclass(frozen=True)
class World:
    """Two groups of persons, clusters on the sphere as a von Mises–Fisher mixture makes them.

    Persons of a group lean towards one direction, some more than others, so that some entries are
    the false match of many. Images scatter around their person, unlike far.
    """

    name: str
    persons: tuple[int, int]
    alike: tuple[float, float]
    """Mean cosine of persons with the direction that their group shares."""
    target: str
    """FPIR of the first group, on which the threshold is set."""
    hubs: float = 0.0
    """SD of that cosine over persons."""
    scatter: float = 0.8
    images: float = 0.3
    """Of a geometric distribution, at most 40 a person; so 1/0.3 on average."""

    def people(self, generator: Generator) -> tuple[NDArray[np.int64], Values, Values]:
        """Return group, centre and scatter of persons."""
        group = np.repeat([0, 1], self.persons)
        own = generator.standard_normal((group.size, DIMENSIONS))
        own /= np.linalg.norm(own, axis=1, keepdims=True)
        lean = np.asarray(self.alike)[group] + self.hubs * generator.standard_normal(group.size)
        lean = np.clip(lean, 0, 0.95)[:, None]
        centres = lean * np.eye(DIMENSIONS)[group] + np.sqrt(1 - lean**2) * own
        scatter = self.scatter * np.exp(0.35 * generator.standard_normal(group.size))
        return group, centres, scatter

    def photograph(
        self, generator: Generator, people: tuple[Values, Values], person: NDArray[np.int64]
    ) -> Values:
        """Return unit embeddings of images of persons."""
        noise = generator.standard_normal((person.size, DIMENSIONS))
        return self.develop(people, person, noise)

    def develop(
        self, people: tuple[Values, Values], person: NDArray[np.int64], noise: Values
    ) -> Values:
        """Return unit embeddings of images of persons with standard normal noise."""
        centres, scatter = people
        found = centres[person] + scatter[person, None] * noise / math.sqrt(DIMENSIONS)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def halves(self, generator: Generator) -> NDArray[np.bool_]:
        """Return who is enrolled: half of all persons, whatever their groups."""
        size = sum(self.persons)
        return generator.permutation(size) % 2 == 0

    def truth(self, draws: int) -> Truth:
        """Return the scores of far more searches, one of each person, in new galleries."""
        generator = np.random.default_rng(99)
        alarms: tuple[list[Values], list[Values]] = [], []
        mates: tuple[list[Values], list[Values]] = [], []
        gaps: tuple[list[Values], list[Values]] = [], []
        for _ in range(draws):
            group, *people = self.people(generator)
            everyone = np.arange(group.size)
            entry, probe = (
                self.photograph(generator, (people[0], people[1]), everyone) for _ in range(2)
            )
            inside = self.halves(generator)
            scores = probe @ entry[inside].T
            columns = np.cumsum(inside) - 1
            mate = scores[everyone, columns]
            scores[everyone[inside], columns[inside]] = -2
            best = scores.max(axis=1)
            for g in (0, 1):
                alarms[g].append(best[~inside & (group == g)])
                mates[g].append(mate[inside & (group == g)])
                gaps[g].append((best - mate)[inside & (group == g)])
        return Truth(*(tuple(np.sort(np.concatenate(x)) for x in y) for y in (alarms, mates, gaps)))

    def draw(self, generator: Generator) -> tuple[NDArray[np.float32], Joined]:
        """Return one data set with geometric numbers of images."""
        group, centres, scatter = self.people(generator)
        images = np.minimum(generator.geometric(self.images, group.size), MOST_IMAGES)
        person = np.repeat(np.arange(group.size), images)
        noise = generator.standard_normal((person.size, DIMENSIONS))
        vectors = self.develop((centres, scatter), person, noise)
        grouping = Grouping(("group",), (("first",), ("second",)), group[person])
        rows = np.arange(person.size)
        joined = Joined(
            rows, np.ones(rows.size), person, (grouping,), {}, (), ("made up",), None, order=rows
        )
        return vectors.astype(np.float32), joined


@dataclass(frozen=True)
class Truth:
    """Sorted scores of searches of both groups."""

    alarms: tuple[Values, ...]
    """Best score of non-mated searches."""
    mates: tuple[Values, ...]
    gaps: tuple[Values, ...]
    """Best other score less the mate's."""

    def rate(self, figure: str, group: int, threshold: float | None) -> float:
        """Return a true rate."""
        if figure == "FNIR":
            return float(np.searchsorted(self.mates[group], threshold) / self.mates[group].size)
        scores = self.alarms[group] if figure == "FPIR" else self.gaps[group]
        bar = threshold if figure == "FPIR" else 0.0
        return float(1 - np.searchsorted(scores, bar) / scores.size)


WORLDS = (
    World("200/200 persons", (200, 200), (0.5, 0.6), "5e-2"),
    World("300/100, the 100 alike", (300, 100), (0.5, 0.7), "2e-2"),
    World("120/80 persons", (120, 80), (0.5, 0.6), "1e-1"),
    World("200/200, hubs", (200, 200), (0.45, 0.5), "5e-2", hubs=0.2),
    World("200/200, few images, wide scatter", (200, 200), (0.5, 0.6), "1e-1", 0.1, 1.1, 0.6),
)


def search_coverage(runs: int = 400, draws: int = 2000) -> list[Row]:
    """Count how often intervals of FPIR, FNIR, rank 1 and their ratios hold the truth.

    The whole audit runs on each set: halves, templates, searches, a threshold set on the first
    group. The truth is that of this threshold in far more galleries and searches.

    Args:
        runs: data sets of each design.
        draws: galleries behind the truth.
    """
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for number, world in enumerate(WORLDS):
        truth = world.truth(draws)
        generator = np.random.default_rng(number)
        held: Counter[str] = Counter()
        tried: Counter[str] = Counter()
        for run in range(runs):
            plan = SearchPlan((world.target,), "first", seed=run)
            vectors, joined = world.draw(generator)
            audited = audit_searches(vectors, joined, joined.groupings, plan)
            for row in audited.groupings[0].rates:
                for figure, holds in _held(row, truth):
                    tried[figure] += 1
                    held[figure] += holds
        for figure, times in tried.items():
            shares[figure][f"{world.name} ({times:,} intervals)"] = 100 * held[figure] / times
    return [row for figure, by_design in shares.items() for row in _rows(figure, by_design, runs)]


def _held(row: SearchRate, truth: Truth) -> Iterator[tuple[str, bool]]:
    """Yield which intervals of a row hold the truth."""
    if row.basis == "everybody" or row.group == "everybody" or row.interval is None:
        return
    group = ("first", "second").index(row.group)
    true = truth.rate(row.figure, group, row.threshold)
    yield row.figure, row.interval.low <= true <= row.interval.high
    if row.figure == "FPIR":
        naive = wilson(row.events, row.total)
        yield "FPIR, searches taken as independent", naive.low <= true <= naive.high
    if row.ratio is not None and row.ratio.interval is not None:
        ratio = true / truth.rate(row.figure, 0, row.threshold)
        name = f"ratio of {row.figure}s" if row.figure != "rank-1 miss rate" else "ratio at rank 1"
        yield name, row.ratio.interval.low <= ratio <= row.ratio.interval.high


def _rows(figure: str, shares: dict[str, float], runs: int) -> Iterator[Row]:
    """Yield the least and the greatest coverage over the designs."""
    told = ", ".join(f"{name} {share:.1f}" for name, share in shares.items())
    naive = "independent" in figure
    error = 100 * math.sqrt(0.95 * 0.05 / runs)
    for word, choose, bar, better in (
        ("least", min, 93.0, "higher"),
        ("greatest", max, 97.0, "lower"),
    ):
        yield Row(
            f"coverage of 95 %, {figure}: {word} of {len(shares)} designs",
            choose(shares.values()),
            "%",
            None if naive else bar,
            better,  # type: ignore[arg-type]
            f"{told}; Monte-Carlo error {error:.1f} points each at most",
        )
