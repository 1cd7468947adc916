"""How many people an audit needs, or what it can find with those at hand, by drawing audits.

A question is put as the audit will put it, with the audit's own test at its 5 % level, to many
audits of people who are drawn as `facerec.fairness.population` says. Its power at a size is the
share of them that find what was planted; a smooth rising curve through several sizes tells where
the power that is wanted is reached.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from scipy.special import ndtr, ndtri

from facerec.errors import MetricError
from facerec.fairness.attributes import SMALLEST_CELL
from facerec.fairness.differentials import parity_p_value
from facerec.fairness.plain import Json, plain
from facerec.fairness.population import (
    Components,
    draw_false_matches,
    draw_means,
    draw_misses,
    false_match_variance,
    group_errors,
    miss_variance,
    subject_counts,
)
from facerec.fairness.rates import SubjectCounts
from facerec.fairness.welch import permute
from facerec.limits import Checked, Limits
from facerec.progress import Progress
from facerec.report import words
from facerec.report.conclusions import ALPHA
from facerec.report.estimate import Estimate
from facerec.report.figures import SMALL, legend, new_figure, note, styles
from facerec.report.table import Cell, Column, Table
from facerec.statistics.intervals import Interval, wilson

SCHEMA = "facerec.audit-plan/1"
MOST_PEOPLE = 100_000
"""In all groups together; what needs more is said to be out of reach."""
PERMUTATIONS = 1999
"""Of a drawn audit, which has 9,999: at the 5 % level that makes no difference worth the time."""

_BATCH = 200
"""Drawn audits that share permutations."""
_ROUNDS = 5
_CLOSE = 0.01
"""Change of a size, as a share of it, below which it is called found."""
_PROBIT = "probit of the power, linear in the logarithm of the size"

LARGEST = {"FMR": 0.01, "FNMR": 0.5}
"""Rates for which the drawing of errors holds; see `facerec.fairness.population`."""

Kind = Literal["norms", "fmr", "fnmr", "fmr-interval", "fnmr-interval"]
Rate = Literal["FMR", "FNMR"]


@dataclass(frozen=True)
class Design:
    """Who is audited."""

    sizes: tuple[int, ...]
    """People in each group; the last one differs."""
    images: int
    """Of each person."""

    @property
    def people(self) -> int:
        """In all groups."""
        return sum(self.sizes)

    @property
    def mated(self) -> int:
        """Mated comparisons within groups."""
        return self.people * (self.images * (self.images - 1) // 2)

    @property
    def non_mated(self) -> int:
        """Non-mated comparisons within groups."""
        return sum(size * (size - 1) // 2 for size in self.sizes) * self.images**2


@dataclass(frozen=True)
class Groups(Checked):
    """How people divide among groups."""

    shares: tuple[Annotated[float, Limits(0.0, 1e6, above=True)], ...] = (1.0, 1.0)
    """Of the groups, the last of which differs; they need not add up to 1."""

    def design(self, people: float, images: int) -> Design:
        """Return the design with so many people, none of the groups under what is shown."""
        total = sum(self.shares)
        sizes = (max(SMALLEST_CELL, round(people * share / total)) for share in self.shares)
        return Design(tuple(sizes), images)


class Question(ABC):
    """What an audit is asked of an effect that is there.

    A search goes by the strength of an effect, a positive number that is 0 where there is none.
    """

    components: Components
    least_images: ClassVar[int] = 2
    """Of a person: without mated comparisons an audit leaves a group out of its error rates."""
    weakest: ClassVar[float] = 1e-3
    """Strength from which on is searched."""

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """Its name."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The question in a sentence, without its effect."""

    @property
    @abstractmethod
    def effect(self) -> str:
        """What the effect is, as words."""

    @property
    @abstractmethod
    def strongest(self) -> float:
        """Strength up to which is searched."""

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
    def people(self, groups: Groups, images: int, effect: float, power: float) -> float:
        """Guess how many people are needed, to begin a search."""

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


@dataclass(frozen=True)
class NormQuestion(Question):
    """Do the mean norms of persons differ between groups?"""

    components: Components
    measure: Literal["eta2", "difference"] = "eta2"
    """η² of persons' means as the audit reports it, or the difference of the last group's mean in
    SDs of images within a group."""
    least_images: ClassVar[int] = 1

    @property
    def kind(self) -> Kind:
        """Its name."""
        return "norms"

    @property
    def text(self) -> str:
        """The question in a sentence."""
        return "Do the mean norms of persons differ between groups? (Welch's F, permuted)"

    @property
    def effect(self) -> str:
        """What the effect is, as words."""
        return "η²" if self.measure == "eta2" else "difference of means in SDs of images"

    @property
    def strongest(self) -> float:
        """A group wholly apart."""
        return 10.0

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
        share = design.sizes[-1] / design.people
        spread = norms.of_means(design.images)
        return self.strength(effect) * spread / math.sqrt(share * (1 - share))

    def count(self, design: Design, effect: float, audits: int, seed: Sequence[int]) -> int:
        """Draw audits and count those whose permutation test rejects."""
        generator = np.random.default_rng(seed)
        codes = np.repeat(np.arange(len(design.sizes)), design.sizes)
        shift, found = self.shift(design, effect), 0
        for start in range(0, audits, _BATCH):
            drawn = min(_BATCH, audits - start)
            means = draw_means(
                generator, design.sizes, design.images, self.components.norms, shift, drawn
            )
            tests = permute(means, codes, PERMUTATIONS, int(generator.integers(2**31)))
            found += sum(test.p < ALPHA for test in tests)
        return found

    def people(self, groups: Groups, images: int, effect: float, power: float) -> float:
        """Guess by the normal approximation of two groups."""
        design = groups.design(1e5, images)
        share = design.sizes[-1] / design.people
        ratio = self.shift(design, effect) / self.components.norms.of_means(images)
        return _needed(power) ** 2 / (ratio**2 * share * (1 - share))


@dataclass(frozen=True)
class RateQuestion(Question):
    """Is the FMR, or the FNMR, of a group higher than that of the others?"""

    components: Components
    of: Rate
    rate: float
    """Of all groups but the last."""

    @property
    def kind(self) -> Kind:
        """Its name."""
        return "fmr" if self.of == "FMR" else "fnmr"

    @property
    def text(self) -> str:
        """The question in a sentence."""
        return (
            f"Is the {self.of} of a group higher than that of the others, {self.rate:g}, at one "
            "threshold? (max/geomean against equal rates)"
        )

    @property
    def effect(self) -> str:
        """What the effect is, as words."""
        return f"ratio of {self.of}"

    @property
    def strongest(self) -> float:
        """The ratio that makes the largest rate for which plans hold."""
        return math.log(LARGEST[self.of] / self.rate)

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
        found = 0
        for _ in range(audits):
            first, groups = 0, []
            for size, rate in zip(design.sizes, rates, strict=True):
                drawn = _draw(generator, self.components, self.of, size, design.images, rate, first)
                groups.append(drawn)
                first += size
            p = parity_p_value(group_errors(groups, target), self.of, generator)
            found += p is not None and p < ALPHA
        return found

    def people(self, groups: Groups, images: int, effect: float, power: float) -> float:
        """Guess by the variance of the logarithms of both rates."""
        most = (math.log(effect) / _needed(power)) ** 2

        def enough(people: float) -> bool:
            sizes = groups.design(people, images).sizes
            rates = self.rate * effect, self.rate
            return most >= sum(
                _variance(self.components, self.of, size, images, rate)
                for size, rate in zip((sizes[-1], sizes[0]), rates, strict=True)
            )

        return _first(enough)


@dataclass(frozen=True)
class IntervalQuestion(Question):
    """Is the 95 % interval of the FMR, or the FNMR, of one group narrow?"""

    components: Components
    of: Rate
    rate: float

    @property
    def kind(self) -> Kind:
        """Its name."""
        return "fmr-interval" if self.of == "FMR" else "fnmr-interval"

    @property
    def text(self) -> str:
        """The question in a sentence."""
        return f"How wide is the 95 % interval of one group's {self.of} of {self.rate:g}?"

    @property
    def effect(self) -> str:
        """What the effect is, as words."""
        return "half width of the interval over the rate"

    @property
    def strongest(self) -> float:
        """An interval that says nothing."""
        return 10.0

    def said(self, effect: float) -> str:
        """Return the half width as words."""
        return f"± {100 * effect:.3g} %"

    def count(self, design: Design, effect: float, audits: int, seed: Sequence[int]) -> int:
        """Draw groups and count those whose interval is narrow enough."""
        generator = np.random.default_rng(seed)
        found = 0
        for _ in range(audits):
            group = _draw(
                generator, self.components, self.of, design.people, design.images, self.rate
            )
            share = group.fmr_share() if self.of == "FMR" else group.fnmr_share()
            assert share is not None  # drawn by person
            interval = share.interval()
            found += interval.high - interval.low <= 2 * effect * self.rate
        return found

    def people(self, groups: Groups, images: int, effect: float, power: float) -> float:
        """Guess by the variance of the rate."""
        most = (effect / float(ndtri(1 - ALPHA / 2))) ** 2
        return _first(
            lambda people: _variance(self.components, self.of, people, images, self.rate) <= most
        )


# --- searching --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """Audits of one size, or of one effect."""

    at: float
    """People in all groups, or the effect."""
    found: int
    audits: int

    @property
    def power(self) -> Estimate:
        """Share that found what is there."""
        return Estimate(
            self.found / self.audits,
            wilson(self.found, self.audits),
            events=self.found,
            total=self.audits,
        )


@dataclass(frozen=True)
class Answer:
    """What is needed with some number of images a person, or what can be found."""

    images: int
    """Of each person."""
    sizes: tuple[int, ...]
    """People in each group; empty where what is asked is out of reach."""
    effect: float | None
    """That is found; None where it is out of reach."""
    power: Estimate
    """Simulated at the answer; without a value where there is none."""
    limits: Interval | None
    """Of what was searched, people or effect, from the fit of the curve."""
    mated: int | None
    """Mated comparisons within groups."""
    non_mated: int | None
    """Non-mated comparisons within groups."""
    trials: tuple[Trial, ...]
    """All that were simulated, by what was searched."""
    reason: str = ""
    """Why there is no answer."""

    @property
    def people(self) -> int:
        """In all groups."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Plan:
    """The answer to a question, for each number of images a person."""

    question: Question = field(repr=False)
    searched: Literal["people", "effect"]
    effect: float | None
    """Asked for; None where effects were searched."""
    people: int | None
    """At hand; None where people were searched."""
    power: float
    audits: int
    """Drawn at the answer."""
    seed: int
    answers: tuple[Answer, ...]

    def to_json(self) -> Json:
        """Return everything as JSON types."""
        question = self.question
        rate = getattr(question, "rate", None)
        return {
            "schema": SCHEMA,
            "question": {
                "kind": question.kind,
                "text": question.text,
                "effect": question.effect,
                "rate": rate,
            },
            "searched": self.searched,
            "effect": self.effect,
            "people": self.people,
            "power": self.power,
            "level": ALPHA,
            "audits": self.audits,
            "seed": self.seed,
            "components": plain(question.components),
            "answers": [
                {
                    "images_per_person": answer.images,
                    "people": answer.people or None,
                    "people_by_group": list(answer.sizes),
                    "images": answer.people * answer.images or None,
                    "mated": answer.mated,
                    "non_mated": answer.non_mated,
                    "effect": answer.effect,
                    "power": plain(answer.power),
                    "searched_limits": None
                    if answer.limits is None
                    else [answer.limits.low, answer.limits.high],
                    "reason": answer.reason or None,
                    "curve": [
                        {self.searched: trial.at, **plain(trial.power)} for trial in answer.trials
                    ],
                }
                for answer in self.answers
            ],
        }


def plan(
    question: Question,
    groups: Groups,
    images: Sequence[int],
    *,
    effect: float | None = None,
    people: int | None = None,
    power: float = 0.8,
    audits: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Plan:
    """Search how many people it takes to find an effect, or what so many people find.

    Args:
        question: what is asked.
        groups: how people divide.
        images: numbers of images a person, each searched on its own.
        effect: to be found; leave it out to search for the least that is.
        people: in all groups; leave it out to search for them.
        power: chance to find the effect, or to reach the width.
        audits: drawn at the answer.
        seed: equal seeds give equal plans.
        progress: called with the audits that were drawn; nobody knows how many it takes.

    Raises:
        MetricError: both or neither of effect and people, too few images, or an impossible effect.
    """
    if (effect is None) == (people is None):
        raise MetricError(
            "give the effect to be found, to learn how many people that takes, or the people at "
            "hand, to learn what they find; one of the two"
        )
    if effect is not None:
        question.check(effect)
    if min(images) < question.least_images:
        raise MetricError(
            f"{words.counted(min(images), 'image')} a person make no mated comparison, and without "
            f"one the audit leaves a group out; give at least {question.least_images}"
        )
    answers = []
    for place, number in enumerate(images):
        search = _Search(question, groups, number, power, audits, (seed, place), progress)
        if effect is not None:
            answers.append(search.people(effect))
        else:
            assert people is not None
            answers.append(search.effect(people))
    searched: Literal["people", "effect"] = "effect" if effect is None else "people"
    return Plan(question, searched, effect, people, power, audits, seed, tuple(answers))


class _Search:
    """Finds where the power of one question at one number of images reaches what is wanted."""

    def __init__(
        self,
        question: Question,
        groups: Groups,
        images: int,
        power: float,
        audits: int,
        seed: tuple[int, int],
        progress: Progress | None,
    ) -> None:
        self._question, self._groups, self._images = question, groups, images
        self._power, self._audits, self._seed = power, audits, seed
        self._progress, self._done = progress, 0
        self._trials: list[Trial] = []

    def people(self, effect: float) -> Answer:
        """Search the fewest people."""
        question, groups, images = self._question, self._groups, self._images

        def round_up(people: float) -> float:
            return float(groups.design(math.ceil(people - 1e-9), images).people)

        least = round_up(1)
        start = min(max(question.people(groups, images, effect, self._power), least), MOST_PEOPLE)
        at = self._least(
            lambda people: (groups.design(people, images), effect),
            round_up(start),
            (least, MOST_PEOPLE),
            round_up,
        )
        if at is None:
            return self._none(
                f"more than {MOST_PEOPLE:,} people with {words.counted(images, 'image')} each"
            )
        return self._answer(groups.design(at, images), effect)

    def effect(self, people: int) -> Answer:
        """Search the smallest effect."""
        question = self._question
        design = self._groups.design(people, self._images)
        limits = question.weakest, question.strongest
        at = self._least(
            lambda strength: (design, question.effect_of(strength)),
            math.sqrt(limits[0] * limits[1]),
            limits,
            float,
        )
        if at is None:
            return self._none(
                f"{words.counted(design.people, 'person', 'people')} do not find a "
                f"{question.effect} of {question.said(question.effect_of(limits[1]))}"
            )
        return self._answer(design, question.effect_of(at), question.effect_of)

    def _run(self, setup: tuple[Design, float], at: float, audits: int) -> Trial:
        design, effect = setup
        seed = (*self._seed, len(self._trials))
        trial = Trial(at, self._question.count(design, effect, audits, seed), audits)
        self._trials.append(trial)
        self._done += audits
        if self._progress is not None:
            self._progress(
                f"{words.counted(self._images, 'image')} a person: drawing audits", self._done, 0
            )
        return trial

    def _least(
        self,
        setup: Callable[[float], tuple[Design, float]],
        start: float,
        limits: tuple[float, float],
        settle: Callable[[float], float],
    ) -> float | None:
        """Return where the power is reached; None if nowhere within the limits.

        First it is put between two trials of few audits, then a curve through all of them says
        where to draw more.
        """
        quick = max(50, self._audits // 5)

        def reached(at: float) -> bool:
            trial = self._run(setup(at), at, quick)
            return trial.found >= self._power * trial.audits

        at, step = start, 2.0
        if reached(at):
            above = at
            while (at := settle(max(above / step, limits[0]))) < above and reached(at):
                above, step = at, min(1.5 * step, 16.0)
            below = at
        else:
            below = at
            while (at := settle(min(below * step, limits[1]))) > below and not reached(at):
                below, step = at, min(1.5 * step, 16.0)
            above = at
            if above <= below:
                return None
        found = above
        for _ in range(_ROUNDS):
            found = self._guess((below, above), limits, settle)
            self._run(setup(found), found, self._audits)
            again = self._guess((below, above), limits, settle)
            if abs(again / found - 1) < _CLOSE:
                break
        return found

    def _guess(
        self,
        bracket: tuple[float, float],
        limits: tuple[float, float],
        settle: Callable[[float], float],
    ) -> float:
        """Return where the curve through all trials reaches the power."""
        curve = _Curve.through(self._trials, self._power)
        at = math.sqrt(bracket[0] * bracket[1]) if curve is None else curve.reaches(self._power)
        return settle(min(max(at, limits[0]), limits[1]))

    def _answer(
        self, design: Design, effect: float, scale: Callable[[float], float] = float
    ) -> Answer:
        """Describe what was found, by the last trial with all audits."""
        trial = [trial for trial in self._trials if trial.audits == self._audits][-1]
        curve = _Curve.through(self._trials, self._power)
        limits = None
        if curve is not None:
            ends = curve.limits(self._power)
            limits = replace(ends, low=scale(ends.low), high=scale(ends.high))
        return Answer(
            images=self._images,
            sizes=design.sizes,
            effect=effect,
            power=trial.power,
            limits=limits,
            mated=design.mated,
            non_mated=design.non_mated,
            trials=self._sorted(scale),
        )

    def _none(self, reason: str) -> Answer:
        return Answer(
            images=self._images,
            sizes=(),
            effect=None,
            power=Estimate(None, remark=reason),
            limits=None,
            mated=None,
            non_mated=None,
            trials=self._sorted(float),
            reason=reason,
        )

    def _sorted(self, scale: Callable[[float], float]) -> tuple[Trial, ...]:
        trials = (replace(trial, at=scale(trial.at)) for trial in self._trials)
        return tuple(sorted(trials, key=lambda trial: trial.at))


@dataclass(frozen=True)
class _Curve:
    """Φ(a + b log x), fitted to trials around a power by weighted least squares."""

    intercept: float
    slope: float
    covariance: tuple[tuple[float, float], tuple[float, float]]

    @classmethod
    def through(cls, trials: Sequence[Trial], power: float) -> _Curve | None:
        """Fit the trials nearest to a power; None where they do not rise."""
        wanted = float(ndtri(power))
        shares = {trial: (trial.found + 0.5) / (trial.audits + 1) for trial in trials}
        near = sorted(trials, key=lambda trial: abs(float(ndtri(shares[trial])) - wanted))
        chosen = [
            trial for trial in near if abs(float(ndtri(shares[trial])) - wanted) < 1.3
        ] or near[:2]
        if len({trial.at for trial in chosen}) < 2:
            chosen = near[: max(2, len(chosen) + 1)]
        if len({trial.at for trial in chosen}) < 2:
            return None
        x = np.log([trial.at for trial in chosen])
        p = np.array([shares[trial] for trial in chosen])
        z = ndtri(p)
        density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        weights = np.array([trial.audits for trial in chosen]) * density**2 / (p * (1 - p))
        columns = np.stack([np.ones_like(x), x], axis=1)
        inverse = np.linalg.pinv(columns.T @ (weights[:, None] * columns))
        intercept, slope = (float(c) for c in inverse @ columns.T @ (weights * z))
        if slope <= 0:
            return None
        rows = inverse.tolist()
        return cls(intercept, slope, ((rows[0][0], rows[0][1]), (rows[1][0], rows[1][1])))

    def reaches(self, power: float) -> float:
        """Return where the power is reached."""
        exponent = (float(ndtri(power)) - self.intercept) / self.slope
        return math.exp(min(max(exponent, -700.0), 700.0))

    def power(self, at: float) -> float:
        """Return the power at a size."""
        return float(ndtr(self.intercept + self.slope * math.log(at)))

    def limits(self, power: float) -> Interval:
        """Return the 95 % interval of where the power is reached, by the delta method."""
        at = self.reaches(power)
        gradient = np.array([-1.0, -math.log(at)]) / self.slope
        error = math.sqrt(max(0.0, float(gradient @ np.array(self.covariance) @ gradient)))
        margin = float(ndtri(0.975)) * error
        return Interval(
            at * math.exp(-margin), at * math.exp(margin), method=_PROBIT, assumption=""
        )


def _draw(
    generator: np.random.Generator,
    components: Components,
    of: Rate,
    persons: int,
    images: int,
    rate: float,
    first: int = 0,
) -> SubjectCounts:
    """Draw one group with errors of one kind, its persons numbered from ``first`` on."""
    if of == "FMR":
        matches = draw_false_matches(generator, persons, images, rate, components.at(rate))
        return subject_counts(first, images, persons, false_matches=matches)
    misses = draw_misses(generator, persons, images, rate, components.misses)
    return subject_counts(first, images, persons, missed=misses)


def _needed(power: float) -> float:
    """Return how many standard errors an effect must be to be found so often."""
    return max(0.1, float(ndtri(1 - ALPHA / 2) + ndtri(power)))


def _variance(components: Components, of: Rate, people: float, images: int, rate: float) -> float:
    """Return the variance of a group's rate over its square."""
    if of == "FMR":
        return false_match_variance(people, images, rate, components.at(rate))
    return miss_variance(people, images, rate, components.misses)


def _first(enough: Callable[[float], bool]) -> float:
    """Return the people from which on something holds, to the factor of √2."""
    people = 2.0 * SMALLEST_CELL
    while people < MOST_PEOPLE and not enough(people):
        people *= math.sqrt(2)
    return people


# --- showing ----------------------------------------------------------------------------------


def answer_table(found: Plan) -> Table[Answer]:
    """Return what is needed, or what is found, for each number of images a person."""
    question = found.question

    def limits(answer: Answer) -> str:
        return words.limits(answer.limits, form=".4g")

    def people(answer: Answer) -> Cell:
        if answer.reason:
            return Cell(words.NOTHING, answer.reason, withheld=True)
        by_group = " + ".join(f"{size:,}" for size in answer.sizes)
        small = by_group if len(answer.sizes) > 1 else ""
        if found.searched == "people":
            small = f"{small} {limits(answer)}".strip()
        return Cell(f"{answer.people:,}", small)

    def effect(answer: Answer) -> Cell:
        if answer.effect is None:
            return Cell(words.NOTHING, withheld=True)
        return Cell(
            question.said(answer.effect), limits(answer) if found.searched == "effect" else ""
        )

    def count(number: int | None) -> str:
        return words.NOTHING if number is None else f"{number:,}"

    columns: list[Column[Answer]] = [
        Column("images a person", lambda row: f"{row.images:,}", lambda row: row.images, "images"),
        Column("people", people, lambda row: row.people or None, "people"),
        Column("images", lambda row: count(row.people * row.images or None)),
        Column("mated", lambda row: count(row.mated), lambda row: row.mated, "mated"),
        Column(
            "non-mated", lambda row: count(row.non_mated), lambda row: row.non_mated, "nonmated"
        ),
        Column(question.effect, effect, lambda row: row.effect, "effect"),
        Column(
            "power [95 %]",
            lambda row: Cell(
                words.percent(row.power.value, 1), words.percent_limits(row.power.interval)
            ),
            lambda row: row.power,
            "power",
        ),
    ]
    return Table("", columns, found.answers)


def power_figure(found: Plan) -> Figure | None:
    """Draw the power by people, or by effect, a curve for each number of images; None without any.

    Whiskers are Wilson's intervals of what was simulated; lines are the fits.
    """
    drawn = [answer for answer in found.answers if answer.trials]
    if not drawn:
        return None
    figure, axes = new_figure(6.4, 4.2)
    named = styles([f"{words.counted(answer.images, 'image')} a person" for answer in drawn])
    offset = found.question.effect_of(0.0) if found.searched == "effect" else 0.0
    axes.axhline(found.power, color="0.2", linewidth=0.9)
    for style, answer in zip(named, drawn, strict=True):
        at = np.array([trial.at - offset for trial in answer.trials])
        values = np.array([trial.found / trial.audits for trial in answer.trials])
        ends = [wilson(trial.found, trial.audits) for trial in answer.trials]
        below = values - [end.low for end in ends]
        above = [end.high for end in ends] - values
        axes.errorbar(
            at,
            values,
            [below, above],
            color=style.colour,
            marker=style.marker,
            linestyle="",
            markersize=4,
            elinewidth=1,
        )
        shifted = [replace(trial, at=trial.at - offset) for trial in answer.trials]
        curve = _Curve.through(shifted, found.power)
        if curve is not None:
            grid = np.geomspace(at.min(), at.max(), 100)  # no further than was simulated
            axes.plot(
                grid, [curve.power(x) for x in grid], color=style.colour, linestyle=style.line
            )
    axes.set_xscale("log")
    # Often less than a decade, and people are read as numbers, not as powers of ten.
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1.02)
    label = "people in all groups"
    if found.searched == "effect":
        label = found.question.effect + (f" − {offset:g}" if offset else "")
    axes.set_xlabel(label, fontsize=SMALL)
    axes.set_ylabel("share of drawn audits that find it", fontsize=SMALL)
    axes.tick_params(labelsize=SMALL)
    note(axes, f"{found.question.text} Line: a power of {found.power:g}.")
    legend(figure, named)
    return figure
