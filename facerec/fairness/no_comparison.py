"""What stands in the place of figures where groups cannot be compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NoComparison:
    """Why groups cannot be compared."""

    name: str
    """The attribute, or the intersection."""
    reason: str
    """As words."""
