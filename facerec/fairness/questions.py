"""What an audit that is planned is to find: questions that are put to audits of drawn subjects."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from scipy.special import ndtri

from facerec.defaults import QuestionKind
from facerec.errors import MetricError
from facerec.fairness.attributes import SMALLEST_CELL
from facerec.fairness.differentials import parity_p_value
from facerec.fairness.pair_counts import SubjectCounts
from facerec.fairness.population import (
    Components,
    draw_false_matches,
    draw_means,
    draw_misses,
    false_match_variance,
    miss_variance,
    subject_counts,
)
from facerec.fairness.welch import permute
from facerec.limits import Checked, Limits
from facerec.report.conclusions import ALPHA

MOST_SUBJECTS = 100_000
"""In all groups together; what needs more is said to be out of reach."""

PERMUTATIONS = 1999
"""Of a drawn audit, which has 9,999: at the 5 % level that makes no difference worth the time."""

_BATCH = 200
"""Drawn audits that share permutations."""

LARGEST = {"FMR": 0.01, "FNMR": 0.5}
"""Rates for which the drawing of errors holds; see `facerec.fairness.population`."""


Rate = Literal["FMR", "FNMR"]


@dataclass(frozen=True)
class Design:
    """Who is audited."""

    sizes: tuple[int, ...]
    """Subjects in each group; the last one differs."""
    images: int
    """Of each subject."""

    @property
    def subjects(self) -> int:
        """In all groups."""
        return sum(self.sizes)

    @property
    def mated(self) -> int:
        """Mated comparisons within groups."""
        return self.subjects * (self.images * (self.images - 1) // 2)

    @property
    def non_mated(self) -> int:
        """Non-mated comparisons within groups."""
        return sum(size * (size - 1) // 2 for size in self.sizes) * self.images**2


@dataclass(frozen=True)
class Groups(Checked):
    """How subjects divide among groups."""

    shares: tuple[Annotated[float, Limits(0.0, 1e6, above=True)], ...] = (1.0, 1.0)
    """Of the groups, the last of which differs; they need not add up to 1."""

    def design(self, subjects: float, images: int) -> Design:
        """Return the design with so many subjects, none of the groups under what is shown."""
        total = sum(self.shares)
        sizes = (max(SMALLEST_CELL, round(subjects * share / total)) for share in self.shares)
        return Design(tuple(sizes), images)


class Question(ABC):
    """What an audit is asked of an effect that is there.

    A search goes by the strength of an effect, a positive number that is 0 where there is none.
    """

    components: Components
    kind: QuestionKind
    text: str
    """The question in a sentence, without its effect."""
    effect: str
    """What the effect is, as words."""
    strongest: float
    """Strength up to which is searched."""
    weakest: ClassVar[float] = 1e-3
    """Strength from which on is searched."""
    least_images: ClassVar[int] = 2
    """Of a subject: without mated comparisons an audit leaves a group out of its error rates."""

    @abstractmethod
    def count(self, design: Design, effect: float, audits: int, seed: Sequence[int]) -> int:
        """Draw audits and count those that find the effect.

        Args:
            design: who is audited.
            effect: that is there.
            audits: how many are drawn.
            seed: equal seeds draw the same.
        """

    @abstractmethod
    def subjects(self, groups: Groups, images: int, effect: float, power: float) -> float:
        """Guess how many subjects are needed, to begin a search."""

    def strength(self, effect: float) -> float:
        """Return the strength of an effect."""
        return effect

    def effect_of(self, strength: float) -> float:
        """Return the effect of a strength."""
        return strength

    def said(self, effect: float) -> str:
        """Return an effect as words."""
        return f"{effect:.3g}"

    def check(self, effect: float) -> None:
        """Refuse an effect that cannot be.

        Raises:
            MetricError: it is out of range.
        """
        none, most = self.effect_of(0.0), self.effect_of(self.strongest)
        if not none < effect <= most * (1 + 1e-9):
            raise MetricError(
                f"{self.effect} {effect:g}: it must be above {none:g} and at most {most:.4g}"
            )


class NormQuestion(Question):
    """Do the mean norms of subjects differ between groups?

    Args:
        components: of the variation.
        measure: η² of subjects' means as the audit reports it, or the difference of the last
            group's mean in SDs of images within a group.
    """

    kind = "norms"
    text = "Do the mean norms of subjects differ between groups? (Welch's F, permuted)"
    strongest = 10.0  # a group wholly apart
    least_images = 1

    def __init__(
        self, components: Components, measure: Literal["eta2", "difference"] = "eta2"
    ) -> None:
        self.components, self.measure = components, measure
        self.effect = "η²" if measure == "eta2" else "difference of means in SDs of images"

    def strength(self, effect: float) -> float:
        """Return Cohen's f of η², or the difference."""
        return math.sqrt(effect / (1 - effect)) if self.measure == "eta2" else effect

    def effect_of(self, strength: float) -> float:
        """Return the effect of a strength."""
        return strength**2 / (1 + strength**2) if self.measure == "eta2" else strength

    def shift(self, design: Design, effect: float) -> float:
        """Return by how much the mean of the last group differs, in units of the norm."""
        norms = self.components.norms
        if self.measure == "difference":
            return effect * norms.total
        share = design.sizes[-1] / design.subjects
        spread = norms.of_means(design.images)
        return self.strength(effect) * spread / math.sqrt(share * (1 - share))

    def count(self, design: Design, effect: float, audits: int, seed: Sequence[int]) -> int:
        """Draw audits and count those whose permutation test rejects."""
        generator = np.random.default_rng(seed)
        codes = np.repeat(np.arange(len(design.sizes)), design.sizes)
        shift, detected = self.shift(design, effect), 0
        for start in range(0, audits, _BATCH):
            drawn = min(_BATCH, audits - start)
            means = draw_means(
                generator, design.sizes, design.images, self.components.norms, shift, drawn
            )
            tests = permute(means, codes, PERMUTATIONS, int(generator.integers(2**31)))
            detected += sum(test.p < ALPHA for test in tests)
        return detected

    def subjects(self, groups: Groups, images: int, effect: float, power: float) -> float:
        """Guess by the normal approximation of two groups."""
        design = groups.design(1e5, images)
        share = design.sizes[-1] / design.subjects
        ratio = self.shift(design, effect) / self.components.norms.of_means(images)
        return _needed(power) ** 2 / (ratio**2 * share * (1 - share))


class RateQuestion(Question):
    """Is the FMR, or the FNMR, of a group higher than that of the others?

    Args:
        components: of the variation.
        of: the error.
        rate: of all groups but the last.

    Raises:
        MetricError: no higher rate can be drawn.
    """

    def __init__(self, components: Components, of: Rate, rate: float) -> None:
        if rate * math.exp(self.weakest) > LARGEST[of]:
            raise MetricError(
                f"an {of} of {rate:g} leaves no room for a higher one, as what is drawn holds up "
                f"to {LARGEST[of]:g}; give a lower --{of.lower()}"
            )
        self.components, self.of, self.rate = components, of, rate
        self.kind = "fmr" if of == "FMR" else "fnmr"
        self.text = (
            f"Is the {of} of a group higher than that of the others, {rate:g}, at one threshold? "
            "(max/geomean against equal rates)"
        )
        self.effect = f"ratio of {of}"
        self.strongest = math.log(LARGEST[of] / rate)

    def strength(self, effect: float) -> float:
        """Return the logarithm of the ratio."""
        return math.log(effect)

    def effect_of(self, strength: float) -> float:
        """Return the ratio."""
        return math.exp(strength)

    def count(self, design: Design, effect: float, audits: int, seed: Sequence[int]) -> int:
        """Draw audits and count those whose differential is detected."""
        generator = np.random.default_rng(seed)
        rates = [self.rate] * (len(design.sizes) - 1) + [self.rate * effect]
        # Errors of the other kind play no part, so their threshold may be any.
        target = f"{self.rate:g}" if self.of == "FMR" else "1e-3"
        detected = 0
        for _ in range(audits):
            first, groups = 0, []
            for size, rate in zip(design.sizes, rates, strict=True):
                drawn = _draw(generator, self.components, self.of, size, design.images, rate, first)
                groups.append(drawn)
                first += size
            p = parity_p_value(groups, target, self.of, generator)
            detected += p is not None and p < ALPHA
        return detected

    def subjects(self, groups: Groups, images: int, effect: float, power: float) -> float:
        """Guess by the variance of the logarithms of both rates."""
        most = (math.log(effect) / _needed(power)) ** 2

        def enough(subjects: float) -> bool:
            sizes = groups.design(subjects, images).sizes
            rates = self.rate * effect, self.rate
            return most >= sum(
                _variance(self.components, self.of, size, images, rate)
                for size, rate in zip((sizes[-1], sizes[0]), rates, strict=True)
            )

        return _first(enough)


class IntervalQuestion(Question):
    """Is the 95 % interval of the FMR, or the FNMR, of one group narrow?

    Args:
        components: of the variation.
        of: the error.
        rate: of the group.
    """

    effect = "half width of the interval over the rate"
    strongest = 10.0  # an interval that says nothing

    def __init__(self, components: Components, of: Rate, rate: float) -> None:
        self.components, self.of, self.rate = components, of, rate
        self.kind = "fmr-interval" if of == "FMR" else "fnmr-interval"
        self.text = f"How wide is the 95 % interval of one group's {of} of {rate:g}?"

    def said(self, effect: float) -> str:
        """Return the half width as words."""
        return f"± {100 * effect:.3g} %"

    def count(self, design: Design, effect: float, audits: int, seed: Sequence[int]) -> int:
        """Draw groups and count those whose interval is narrow enough."""
        generator = np.random.default_rng(seed)
        narrow = 0
        for _ in range(audits):
            group = _draw(
                generator, self.components, self.of, design.subjects, design.images, self.rate
            )
            share = group.fmr_share() if self.of == "FMR" else group.fnmr_share()
            assert share is not None  # drawn by subject
            interval = share.interval()
            narrow += interval.high - interval.low <= 2 * effect * self.rate
        return narrow

    def subjects(self, groups: Groups, images: int, effect: float, power: float) -> float:
        """Guess by the variance of the rate."""
        most = (effect / float(ndtri(1 - ALPHA / 2))) ** 2
        return _first(
            lambda subjects: (
                _variance(self.components, self.of, subjects, images, self.rate) <= most
            )
        )


def _draw(
    generator: np.random.Generator,
    components: Components,
    of: Rate,
    subjects: int,
    images: int,
    rate: float,
    first: int = 0,
) -> SubjectCounts:
    """Draw one group with errors of one kind, its subjects numbered from ``first`` on."""
    if of == "FMR":
        matches = draw_false_matches(generator, subjects, images, rate, components.at(rate))
        return subject_counts(first, images, subjects, false_matches=matches)
    misses = draw_misses(generator, subjects, images, rate, components.misses)
    return subject_counts(first, images, subjects, missed=misses)


def _needed(power: float) -> float:
    """Return how many standard errors an effect must be to be found so often."""
    return max(0.1, float(ndtri(1 - ALPHA / 2) + ndtri(power)))


def _variance(components: Components, of: Rate, subjects: float, images: int, rate: float) -> float:
    """Return the variance of a group's rate over its square."""
    if of == "FMR":
        return false_match_variance(subjects, images, rate, components.at(rate))
    return miss_variance(subjects, images, rate, components.misses)


def _first(enough: Callable[[float], bool]) -> float:
    """Return the subjects from which on something holds, to the factor of √2."""
    subjects = 2.0 * SMALLEST_CELL
    while subjects < MOST_SUBJECTS and not enough(subjects):
        subjects *= math.sqrt(2)
    return subjects
