"""The power that audits are planned with, against the same by another way.

The other way shares the variance components with facerec and nothing else: the noncentral F for
norms; for errors, chances drawn for every pair of people (or scores for every pair of photos) in
plain numpy, and tests and intervals written down again from their formulas.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from rows import Row
from scipy.special import expit, fdtri, ncfdtr, ndtri, stdtrit

from facerec.fairness.population import DEFAULTS
from facerec.fairness.questions import Design, IntervalQuestion, NormQuestion, RateQuestion

Values = NDArray[np.float64]

_NORMS = (((192, 192), 0.02), ((100, 100, 100), 0.03), ((60, 60), 0.06))
_FMR = ((60, 4, 4e-3, 2.2), (120, 2, 2e-3, 1.8))
"""People in each of two groups, images, rate, ratio."""
_FNMR = ((150, 4, 0.1, 1.6), (400, 2, 0.05, 1.8))
_WIDTHS = (("FMR", 100, 4, 4e-3, 0.45), ("FNMR", 200, 4, 0.1, 0.33))
"""Rate, people, images, its value, half width over it."""


def plan_power(runs: int = 2000) -> list[Row]:
    """Hold the power that `facerec audit-plan` simulates against that of other code.

    Args:
        runs: drawn audits, each way.
    """
    rows = []
    for sizes, eta2 in _NORMS:
        planned = NormQuestion(DEFAULTS).count(Design(sizes, 5), eta2, runs, [1]) / runs
        people, groups = sum(sizes), len(sizes)
        freedom = groups - 1, people - groups
        beta = ncfdtr(*freedom, people * eta2 / (1 - eta2), fdtri(*freedom, 0.95))
        name = f"norms, η² {eta2:g}, {' + '.join(map(str, sizes))} people"
        rows.append(_row(name, planned, 1 - float(beta), runs, "noncentral F"))
    for people, images, rate, ratio in _FMR:
        question = RateQuestion(DEFAULTS, "FMR", rate)
        planned = question.count(Design((people,) * 2, images), ratio, runs, [2]) / runs
        other = fmr_power(people, images, rate, ratio, runs)
        name = f"FMR {rate:g} × {ratio:g}, {people} + {people} people, {images} images"
        rows.append(_row(name, planned, other, runs, "all pairs of people drawn"))
    for people, images, rate, ratio in _FNMR:
        question = RateQuestion(DEFAULTS, "FNMR", rate)
        planned = question.count(Design((people,) * 2, images), ratio, runs, [3]) / runs
        other = fnmr_power(people, images, rate, ratio, runs)
        name = f"FNMR {rate:g} × {ratio:g}, {people} + {people} people, {images} images"
        rows.append(_row(name, planned, other, runs, "scores of all pairs of photos drawn"))
    for of, people, images, rate, width in _WIDTHS:
        asked = IntervalQuestion(DEFAULTS, "FMR" if of == "FMR" else "FNMR", rate)
        planned = asked.count(Design((people,), images), width, runs, [4]) / runs
        other = width_reached(of, people, images, rate, width, runs)
        name = f"{of} {rate:g} within ± {100 * width:g} %, {people} people, {images} images"
        rows.append(_row(name, planned, other, runs, "interval written down again"))
    return rows


def fmr_power(people: int, images: int, rate: float, ratio: float, runs: int) -> float:
    """Return how often log FMRs of two groups differ by more than noise around equal ones."""
    generator = np.random.default_rng(11)
    found = 0
    for _ in range(runs):
        groups = [_false_matches(generator, people, images, r) for r in (rate, rate * ratio)]
        found += _differ(generator, [_fmr(group, images) for group in groups])
    return found / runs


def fnmr_power(people: int, images: int, rate: float, ratio: float, runs: int) -> float:
    """Return the same of log FNMRs."""
    generator = np.random.default_rng(12)
    root = _score_root(images)
    found = 0
    for _ in range(runs):
        groups = [_misses(generator, root, people, r) for r in (rate, rate * ratio)]
        found += _differ(generator, [_fnmr(group, len(root)) for group in groups])
    return found / runs


def width_reached(of: str, people: int, images: int, rate: float, width: float, runs: int) -> float:
    """Return how often the logit interval of one group's rate is narrow enough."""
    generator = np.random.default_rng(13)
    root = _score_root(images)
    found = 0
    for _ in range(runs):
        if of == "FMR":
            share, variance, freedom, _ = _fmr(
                _false_matches(generator, people, images, rate), images
            )
        else:
            share, variance, freedom, _ = _fnmr(_misses(generator, root, people, rate), len(root))
            variance *= people / (people - 1)
        if not share:
            continue
        reach = stdtrit(freedom, 0.975) * math.sqrt(variance) / (share * (1 - share))
        centre = math.log(share / (1 - share))
        found += expit(centre + reach) - expit(centre - reach) <= 2 * width * rate
    return found / runs


def _false_matches(generator: np.random.Generator, people: int, images: int, rate: float) -> Values:
    """Draw a chance for every two people, and their matches: symmetric counts ``(G, G)``."""
    spread = DEFAULTS.at(rate)
    factor = generator.lognormal(-spread.subjects / 2, math.sqrt(spread.subjects), people)
    mean = np.minimum(rate * np.outer(factor, factor), 0.9)
    rest = (1 - spread.concordance) / spread.concordance
    chance = generator.beta(mean * rest, (1 - mean) * rest)
    counts = np.triu(generator.binomial(images**2, chance), 1)
    return (counts + counts.T).astype(np.float64)


def _score_root(images: int) -> Values:
    """Return a root of the correlations of the scores of all pairs of a person's photos."""
    pairs = [(a, b) for a in range(images) for b in range(a)]
    spread = DEFAULTS.misses
    correlations = np.array(
        [
            [spread.subject + spread.image * len({*one} & {*other}) for other in pairs]
            for one in pairs
        ]
    )
    np.fill_diagonal(correlations, 1.0)
    values, vectors = np.linalg.eigh(correlations)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)))


def _misses(generator: np.random.Generator, root: Values, people: int, rate: float) -> Values:
    """Draw the false non-matches of every person, ``(G,)``."""
    scores = generator.standard_normal((people, len(root))) @ root.T
    return np.asarray((scores < ndtri(rate)).sum(axis=1), np.float64)


def _fmr(counts: Values, images: int) -> tuple[float, float, float, int]:
    """Return the rate, its variance, degrees of freedom and events."""
    people = len(counts)
    made = images**2 * (1 - np.eye(people))
    rate = float(counts.sum() / made.sum())
    residual = counts - rate * made
    cells = float((residual**2).sum()) / 2
    sharing = float((residual.sum(axis=1) ** 2).sum()) - 2 * cells
    comparisons = made.sum() / 2
    variance = (cells + max(0.0, sharing)) / comparisons**2
    variance = max(variance, rate * (1 - rate) / comparisons) * (people / (people - 2)) ** 2
    return rate, float(variance), people - 1, round(counts.sum() / 2)


def _fnmr(misses: Values, pairs: int) -> tuple[float, float, float, int]:
    people = len(misses)
    rate = float(misses.mean() / pairs)
    variance = float(((misses - rate * pairs) ** 2).sum()) / (people * pairs) ** 2
    variance = max(variance, rate * (1 - rate) / (people * pairs))
    return rate, variance, people - 1, round(misses.sum())


def _differ(generator: np.random.Generator, groups: list[tuple[float, float, float, int]]) -> bool:
    """Test two rates for parity on a log scale; too few errors are no finding."""
    events = [group[3] for group in groups]
    if min(events) < 3 or max(events) < 30:
        return False
    gap = abs(math.log(groups[0][0] / groups[1][0]))
    noise = [
        generator.standard_t(freedom, 2000) * math.sqrt(variance) / rate
        for rate, variance, freedom, _ in groups
    ]
    return bool(np.mean(np.abs(noise[0] - noise[1]) >= gap) < 0.05)


def _row(name: str, planned: float, other: float, runs: int, how: str) -> Row:
    error = 100 * math.sqrt(2 * other * (1 - other) / runs)
    remark = f"planned {100 * planned:.1f} %, {how} {100 * other:.1f} %; Monte-Carlo error of the "
    remark += f"difference up to {error:.1f} points"
    value = 100 * abs(planned - other)
    return Row(f"planned power against another way, {name}", value, "points", 3, "lower", remark)
