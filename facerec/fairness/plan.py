"""How many subjects an audit needs, or what it can find with those at hand, by drawing audits.

A question is put as the audit will put it, with the audit's own test at its 5 % level, to many
audits of subjects who are drawn as `facerec.fairness.population` says. Its power at a size is the
share of them that find what was planted; a smooth rising curve through several sizes tells where
the power that is wanted is reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from facerec.errors import MetricError
from facerec.fairness.plain import Json, plain
from facerec.fairness.questions import MOST_SUBJECTS, Design, Groups, Question
from facerec.progress import Progress
from facerec.report import words
from facerec.report.conclusions import ALPHA
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval, wilson

SCHEMA = "facerec.audit-plan/1"

_ROUNDS = 5
_CLOSE = 0.01
"""Change of a size, as a share of it, below which it is called found."""
_PROBIT = "probit of the power, linear in the logarithm of the size"


@dataclass(frozen=True)
class Trial:
    """Audits of one size, or of one effect."""

    at: float
    """Subjects in all groups, or the effect."""
    successes: int
    audits: int

    @property
    def power(self) -> Estimate:
        """Share that found what is there."""
        return Estimate(
            self.successes / self.audits,
            wilson(self.successes, self.audits),
            events=self.successes,
            total=self.audits,
        )


@dataclass(frozen=True)
class Answer:
    """What is needed with some number of images a subject, or what can be found."""

    images: int
    """Of each subject."""
    trials: tuple[Trial, ...]
    """All that were simulated, by what was searched."""
    power: Estimate
    """Simulated at the answer; without a value where there is none."""
    sizes: tuple[int, ...] = ()
    """Subjects in each group; empty where what is asked is out of reach."""
    effect: float | None = None
    """That is found; None where it is out of reach."""
    limits: Interval | None = None
    """Of what was searched, subjects or effect, from the fit of the curve."""
    mated: int | None = None
    """Mated comparisons within groups."""
    non_mated: int | None = None
    """Non-mated comparisons within groups."""
    reason: str = ""
    """Why there is no answer."""

    @property
    def subjects(self) -> int:
        """In all groups."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Plan:
    """The answer to a question, for each number of images a subject."""

    question: Question = field(repr=False)
    searched: Literal["people", "effect"]
    effect: float | None
    """Asked for; None where effects were searched."""
    subjects: int | None
    """At hand; None where subjects were searched."""
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
            "people": self.subjects,
            "power": self.power,
            "level": ALPHA,
            "audits": self.audits,
            "seed": self.seed,
            "components": plain(question.components),
            "answers": [
                {
                    "images_per_person": answer.images,
                    "people": answer.subjects or None,
                    "people_by_group": list(answer.sizes),
                    "images": answer.subjects * answer.images or None,
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
    subjects: int | None = None,
    power: float = 0.8,
    audits: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Plan:
    """Search how many subjects it takes to find an effect, or what so many subjects find.

    Args:
        question: what is asked.
        groups: how subjects divide.
        images: numbers of images a subject, each searched on its own.
        effect: to be found; leave it out to search for the least that is.
        subjects: in all groups; leave it out to search for them.
        power: chance to find the effect, or to reach the width.
        audits: drawn at the answer.
        seed: equal seeds give equal plans.
        progress: called with the audits that were drawn; nobody knows how many it takes.

    Raises:
        MetricError: both or neither of effect and subjects, too few images, or an impossible
            effect.
    """
    if (effect is None) == (subjects is None):
        raise MetricError(
            "give the effect to be found, to learn how many subjects that takes, or the subjects "
            "at hand, to learn what they find; one of the two"
        )
    if effect is not None:
        question.check(effect)
    if min(images) < question.least_images:
        raise MetricError(
            f"{words.counted(min(images), 'image')} a subject make no mated comparison, and "
            f"without one the audit leaves a group out; give at least {question.least_images}"
        )
    answers = []
    for index, number in enumerate(images):
        search = _Search(question, groups, number, power, audits, (seed, index), progress)
        if effect is not None:
            answers.append(search.subjects(effect))
        else:
            assert subjects is not None
            answers.append(search.effect(subjects))
    searched: Literal["people", "effect"] = "effect" if effect is None else "people"
    return Plan(question, searched, effect, subjects, power, audits, seed, tuple(answers))


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

    def subjects(self, effect: float) -> Answer:
        """Search the fewest subjects."""
        question, groups, images = self._question, self._groups, self._images

        def round_up(subjects: float) -> float:
            return float(groups.design(math.ceil(subjects - 1e-9), images).subjects)

        least = round_up(1)
        start = min(
            max(question.subjects(groups, images, effect, self._power), least), MOST_SUBJECTS
        )
        at = self._least(
            lambda subjects: (groups.design(subjects, images), effect),
            round_up(start),
            (least, MOST_SUBJECTS),
            round_up,
        )
        if at is None:
            return self._none(
                f"more than {MOST_SUBJECTS:,} subjects with {words.counted(images, 'image')} each"
            )
        return self._answer(groups.design(at, images), effect)

    def effect(self, subjects: int) -> Answer:
        """Search the smallest effect."""
        question = self._question
        design = self._groups.design(subjects, self._images)
        limits = question.weakest, question.strongest
        at = self._least(
            lambda strength: (design, question.effect_of(strength)),
            math.sqrt(limits[0] * limits[1]),
            limits,
            float,
        )
        if at is None:
            return self._none(
                f"{words.counted(design.subjects, 'subject')} do not find a "
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
                f"{words.counted(self._images, 'image')} a subject: drawing audits", self._done, 0
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
            return trial.successes >= self._power * trial.audits

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
        best = above
        for _ in range(_ROUNDS):
            best = self._guess((below, above), limits, settle)
            self._run(setup(best), best, self._audits)
            again = self._guess((below, above), limits, settle)
            if abs(again / best - 1) < _CLOSE:
                break
        return best

    def _guess(
        self,
        bracket: tuple[float, float],
        limits: tuple[float, float],
        settle: Callable[[float], float],
    ) -> float:
        """Return where the curve through all trials reaches the power."""
        curve = Curve.through(self._trials, self._power)
        at = math.sqrt(bracket[0] * bracket[1]) if curve is None else curve.reaches(self._power)
        return settle(min(max(at, limits[0]), limits[1]))

    def _answer(
        self, design: Design, effect: float, scale: Callable[[float], float] = float
    ) -> Answer:
        """Describe what was found, by the last trial with all audits."""
        trial = [trial for trial in self._trials if trial.audits == self._audits][-1]
        curve = Curve.through(self._trials, self._power)
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
        power = Estimate(None, remark=reason)
        return Answer(self._images, self._sorted(float), power, reason=reason)

    def _sorted(self, scale: Callable[[float], float]) -> tuple[Trial, ...]:
        trials = (replace(trial, at=scale(trial.at)) for trial in self._trials)
        return tuple(sorted(trials, key=lambda trial: trial.at))


@dataclass(frozen=True)
class Curve:
    """Φ(a + b log x), fitted to trials around a power by weighted least squares."""

    intercept: float
    slope: float
    covariance: tuple[tuple[float, float], tuple[float, float]]

    @classmethod
    def through(cls, trials: Sequence[Trial], power: float) -> Curve | None:
        """Fit the trials nearest to a power; None where they do not rise."""
        wanted = float(ndtri(power))
        shares = {trial: (trial.successes + 0.5) / (trial.audits + 1) for trial in trials}
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
