"""Parameters of which the quick run takes a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def thinned(values: Iterable[Any], quick: Callable[..., bool]) -> list[Any]:
    """Mark all but the chosen values of a parameter as integration.

    Args:
        values: of one parameter, or tuples of several.
        quick: says of a value, or of the several values of a tuple, whether `make test` takes it.
    """
    tuples = [value if isinstance(value, tuple) else (value,) for value in values]
    return [
        pytest.param(*each, marks=[] if quick(*each) else pytest.mark.integration)
        for each in tuples
    ]
