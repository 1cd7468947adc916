"""What every measurement returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        measure: what was measured.
        value: the figure; ``None`` where it cannot be measured, and the remark says why.
        unit: of value and bar; ``×`` for ratios.
        bar: what the figure must reach, ``None`` for a figure that is only told.
        better: on which side of the bar the figure must lie.
        remark: what the figure is made of.
    """

    measure: str
    value: float | None
    unit: str
    bar: float | None = None
    better: Literal["higher", "lower"] = "lower"
    remark: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the bar is reached; ``None`` without one, or without a figure."""
        if self.bar is None or self.value is None:
            return None
        return self.value >= self.bar if self.better == "higher" else self.value < self.bar
