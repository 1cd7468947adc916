"""Where a search looks for a hyper-parameter: its bounds, and how it is spread between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from facerec.base.errors import RecipeError
from facerec.base.limits import Checked

_FLOOR = 1e-4
"""Smallest weight of a penalty that a search tells from 0 (comparison.md §6.2 of the protocol)."""


@dataclass(frozen=True)
class Range(Checked):
    """A searched parameter and its bounds."""

    field: str
    """Dotted name in the arm, such as ``loss.margin``, ``regularizer.weight``, ``loss_lr`` or
    ``protocol.optimizer.lr``. Empty where a loss declares the range of a setting, which has its
    name from the arm."""
    low: float
    high: float
    scale: Literal["linear", "log", "log_with_zero"] = "linear"
    """``log_with_zero`` is linear near 0 and logarithmic above: 1e-4·((1 + high/1e-4)^u − 1)."""
    integer: bool = False
    """Whole numbers only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        starts = {"log": self.low > 0, "log_with_zero": self.low == 0 and not self.integer}
        if not (self.low < self.high and starts.get(self.scale, True)):
            raise RecipeError(
                f"{self.field or 'a range'}: low must lie below high, above 0 on a log scale, and "
                "be 0 for log_with_zero, which has no whole numbers; found "
                f"{self.low:g} to {self.high:g}, {self.scale}"
            )

    def value(self, position: float) -> float:
        """Return the value at the position that a search sees.

        With ``log_with_zero`` positions lie in [0, 1]; else they are the values themselves.
        """
        if self.scale != "log_with_zero":
            return position
        return _FLOOR * math.expm1(position * math.log1p(self.high / _FLOOR))

    @property
    def middle(self) -> float:
        """The value half-way on the scale."""
        if self.scale == "log_with_zero":
            return self.value(0.5)
        low, high = self.low, self.high
        middle = math.sqrt(low * high) if self.scale == "log" else low / 2 + high / 2
        return float(round(middle)) if self.integer else middle

    def position(self, value: float) -> float:
        """Return what `value` maps to this value."""
        if self.scale != "log_with_zero":
            return value
        return math.log1p(value / _FLOOR) / math.log1p(self.high / _FLOOR)
