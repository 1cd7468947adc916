"""How many examples hypothesis draws: a quarter in the quick run, all in ``make test-all``."""

from __future__ import annotations

from hypothesis import settings

FULL = 100
"""Examples of the profile in which nothing is left out."""

settings.register_profile("quick", max_examples=FULL // 4)
settings.register_profile("full", max_examples=FULL)
settings.register_profile("fuzz", max_examples=40 * FULL)  # for `make fuzz`


def examples(count: int) -> int:
    """Return how many of ``count`` examples the profile at hand draws."""
    return max(5, count * settings().max_examples // FULL)
