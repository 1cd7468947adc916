"""What a cosine of a model is worth as evidence: its calibration, as a file beside the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from facerec.base.errors import FacerecError, ModelError, fault, printable
from facerec.base.recipe import check
from facerec.statistics.calibration import LikelihoodRatio

SCHEMA = "facerec.score_calibration/1"

_OFTEN = 0.1
"""Share of strangers from which on they are counted in 100."""


@dataclass(frozen=True)
class Evidence:
    """How much better one person explains the score of two faces than two people do."""

    likelihood_ratio: float | None
    """How many times better; below 1 two people do. None beyond the calibration's data."""
    low: float | None
    """Lower limit of its 95 % interval over subjects; None: it may be as small as it likes."""
    high: float | None
    """Upper limit; None: it may be as large as it likes."""
    strangers: float
    """Share of pairs of different people that score as high."""
    strangers_interval: tuple[float, float]
    """Its 95 % interval; from 0 where no such pair was seen."""
    basis: str
    """On what that rests, and where it ends."""

    def __str__(self) -> str:
        if self.likelihood_ratio is None and (self.low or 0.0) < 1 < (self.high or math.inf):
            return (
                f"Whether one person or two explain the photos better cannot be told; {self.basis}."
            )
        whom = "one person than with two" if self.for_one else "two people than with one"
        rare = f"{self.rarity} {'score' if self.strangers > _OFTEN else 'scores'} as high"
        return f"The photos agree {self.times} times better with {whom}; {rare}; {self.basis}."

    @property
    def for_one(self) -> bool:
        """Whether the score speaks for one person."""
        ratio = self.likelihood_ratio
        return self.low is not None if ratio is None else ratio >= 1

    @property
    def times(self) -> str:
        """How many times better one person explains it than two, or two than one, in words."""
        ends = [self.low or 0.0, self.high or math.inf]
        if not self.for_one:
            ends = [1 / max(end, 1e-300) for end in ends[::-1]]
        if self.likelihood_ratio is None:
            return f"at least {power(ends[0], down=True)}"
        value = self.likelihood_ratio if self.for_one else 1 / self.likelihood_ratio
        return f"{power(value)} [{power(ends[0])}, {power(ends[1])}]"

    @property
    def rarity(self) -> str:
        """How rare strangers who score as high are, in words."""
        few, many = self.strangers_interval
        if not few:
            return f"fewer than 1 stranger in {whole(1 / many)}"
        if self.strangers > _OFTEN:
            return f"{100 * self.strangers:.0f} of 100 strangers"
        ends = f"[{whole(1 / many)}, {whole(1 / few)}]"
        return f"1 stranger in {whole(1 / self.strangers)} {ends}"

    def probability(self, among: int) -> tuple[float, float, float]:
        """Return the probability that it is one person, with the limits of its interval.

        Args:
            among: N, of how many equally likely people one must be on the photo: prior 1/N.
        """
        low, high = self.low or 0.0, self.high or math.inf
        ratio = self.likelihood_ratio
        centre = ratio if ratio is not None else low or high

        def share(odds: float) -> float:
            return 1.0 if math.isinf(odds) else odds / (odds + among - 1)

        return share(centre), share(low), share(high)


@dataclass(frozen=True, eq=False)
class ScoreCalibration:
    """The likelihood ratio of a model's cosines, and the people on whom it rests.

    Attributes:
        model: name, SHA-256 and preprocessing of the model, as JSON types.
        flip: whether its embeddings are sums over image and mirror image.
        source: file or bench whose people were compared.
        ratio: of scores.
        cllr: cost of its log-likelihood ratios on people whom it does not know, by ten folds, bits.
        least_cllr: the least cost there of any monotone calibration with the same ends.
        groups: figures by group where groups are recorded, as JSON types.
    """

    model: Mapping[str, Any]
    flip: bool
    source: str
    ratio: LikelihoodRatio
    cllr: float
    least_cllr: float
    groups: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return {"schema": SCHEMA, **vars(self), "ratio": self.ratio.to_json()}

    @classmethod
    def from_json(cls, found: Any, where: str) -> ScoreCalibration:
        """Return what `to_json` wrote.

        Args:
            found: parsed JSON.
            where: it comes from.

        Raises:
            ModelError: it is damaged, or something else.
        """
        try:
            if found["schema"] != SCHEMA or not isinstance(found["flip"], bool):
                raise ValueError(f"schema {found['schema']!r}, flip {found['flip']!r}")
            read = cls(
                model={name: found["model"][name] for name in ("name", "sha256", "preprocessing")},
                flip=found["flip"],
                source=printable(check(str, found["source"], where, "source")),
                ratio=LikelihoodRatio.from_json(found["ratio"]),
                cllr=check(float, found["cllr"], where, "cllr"),
                least_cllr=check(float, found["least_cllr"], where, "least_cllr"),
                groups=tuple(dict(group) for group in found["groups"]),
            )
            if not 0 <= read.least_cllr <= 1.001 or not 0 <= read.cllr <= 1000:
                raise ValueError(f"Cllr {read.cllr} of at least {read.least_cllr}")
        except (KeyError, TypeError, ValueError, FacerecError) as error:
            raise ModelError(
                f"{where}: not a calibration, or a damaged one ({fault(error)}); run facerec "
                "calibrate"
            ) from error
        return read

    def evidence(self, score: float) -> Evidence:
        """Return what a cosine of this model says."""
        ratio = self.ratio
        ends, (share, near) = ratio.interval(score), ratio.stranger(score)
        beyond = not ratio.low <= score <= ratio.high
        seen = score <= ratio.strangers[-1, 0]
        few = f"; too few pairs score so {'high' if score > ratio.high else 'low'} to tell more"
        return Evidence(
            likelihood_ratio=None if beyond else math.exp(float(ratio.log_ratio(score))),
            low=None if math.isinf(ends.low) else math.exp(ends.low),
            high=None if math.isinf(ends.high) else math.exp(ends.high),
            strangers=share if seen else 0.0,
            strangers_interval=(near.low if seen else 0.0, near.high),
            basis=self.basis + few * beyond,
        )

    @property
    def basis(self) -> str:
        """On whom it was calibrated, in words."""
        pairs = self.ratio.mated + self.ratio.non_mated
        return f"calibrated on {pairs:,} pairs of {self.ratio.subjects:,} people ({self.source})"


def power(value: float, down: bool = False) -> str:
    """Return a factor with two digits, or with one, as a power of ten, from ten thousand on.

    Examples:
        >>> power(34_000), power(250), power(39_000, down=True), power(1.44), power(1234)
        ('3·10⁴', '250', '3·10⁴', '1.4', '1,200')
    """
    cut = math.floor if down else round
    if value < 10:
        return f"{cut(value * 10) / 10:g}"
    if value < 10_000:
        return whole(value, down)
    exponent = math.floor(math.log10(value))
    first = cut(value / 10.0**exponent)
    if first == 10:
        first, exponent = 1, exponent + 1
    raised = str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{first}·10{raised}"


def whole(value: float, down: bool = False) -> str:
    """Return a count with two digits.

    Examples:
        >>> whole(52_345), whole(3.4)
        ('52,000', '3')
    """
    step = 10 ** max(math.floor(math.log10(max(value, 1))) - 1, 0)
    return f"{(math.floor if down else round)(value / step) * step:,}"
