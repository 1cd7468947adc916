"""What a cosine of a model says about two photos, as evidence and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    """Upper limit of the interval; None: it may be as large as it likes."""
    strangers: float
    """Share of pairs of different people that score as high."""
    strangers_interval: tuple[float, float]
    """95 % interval of the share of such strangers; from 0 where no such pair was seen."""
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
