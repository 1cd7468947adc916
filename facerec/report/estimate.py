"""A figure, its interval, its counts and what a reader must know of it: the one form of a figure.

Every figure that facerec states is an `Estimate` or derives from it, so that tables, pages and
files treat all of them alike.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

from facerec.statistics.intervals import Bound, Interval
from facerec.statistics.operating_points import RULE_OF_30

if TYPE_CHECKING:
    from facerec.statistics.clustered import ClusteredShare

Unit = Literal[
    "share", "count", "norm", "score", "times", "area", "cost", "bits", "deviations", "number"
]
"""What a figure is measured in; ``times`` of a ratio, ``deviations`` standard ones, ``number`` of
a coefficient without a unit."""
Status = Literal["ok", "unresolved", "withheld", "bound"]
"""``unresolved`` is what the data are too few for, ``withheld`` what has no value for another
reason, and of a ``bound`` the interval alone tells something."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval, its counts and a remark.

    Examples:
        >>> from facerec.statistics.intervals import wilson
        >>> fnmr = Estimate(0.05, wilson(5, 100), events=5, total=100)
        >>> fnmr.mark, round(fnmr.low, 3), round(fnmr.high, 3)
        ('◐', 0.022, 0.112)
    """

    value: float | None
    """None where the data cannot carry it; `remark` says why."""
    interval: Interval | None = None
    """None where there is none; `remark` says why."""
    events: int | None = None
    """What was counted, such as errors, of `total`; None for what is no share."""
    total: int | None = None
    """Comparisons, subjects or images that the figure rests on."""
    remark: str = ""
    """Why there is no value or no interval, or what to beware of; may be empty."""
    _: KW_ONLY
    unit: Unit = "share"
    unresolved: bool = False
    """Whether the data are too few for it, so that no value is shown."""

    @property
    def status(self) -> Status:
        """Whether there is a value to show, and what it is worth."""
        if self.unresolved:
            return "unresolved"
        if self.value is None:
            return "withheld"
        return "bound" if isinstance(self.interval, Bound) else "ok"

    @classmethod
    def of_share(cls, share: ClusteredShare) -> Estimate:
        """Return a share with its interval and counts."""
        return Estimate(share.value, share.interval(), share.events, share.comparisons)

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.interval is None else self.interval.low

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.interval is None else self.interval.high

    @property
    def mark(self) -> str:
        """● for at least 30 events, ◐ for 3 to 29, ○ for fewer; empty where none are counted."""
        if self.events is None:
            return ""
        return "●" if self.events >= RULE_OF_30 else "◐" if self.events >= 3 else "○"
