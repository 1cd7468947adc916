"""Limits of numbers, written beside the fields that they hold for and checked in one place.

A field says what it takes by its type, ``lr: Positive = 0.1``; a class that is `Checked` refuses
other numbers when it is made, however it is made: in Python, from JSON or on the command line. The
parameters of a command say it in the same way.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from facerec.base.errors import RecipeError

LARGEST = 1e12
"""Far beyond what any setting means, and its cube is still a float32."""
MOST = 2**31 - 1
"""The same for whole numbers, of which products are still an int64."""


@dataclass(frozen=True)
class Limits:
    """An interval of numbers.

    Attributes:
        low: its beginning.
        high: its end.
        above: leave the beginning out.
        below: leave the end out.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        """Tell whether ``value`` lies inside; NaN never does."""
        return (self.low < value if self.above else self.low <= value) and (
            value < self.high if self.below else value <= self.high
        )

    def __str__(self) -> str:
        low, high = (f"{x:,}" if isinstance(x, int) else f"{x:g}" for x in (self.low, self.high))
        return f"{'above' if self.above else 'at least'} {low} and " + (
            f"{'below' if self.below else 'at most'} {high}"
        )


Number = Annotated[float, Limits(-LARGEST, LARGEST)]
NonNegative = Annotated[float, Limits(0.0, LARGEST)]
Positive = Annotated[float, Limits(0.0, LARGEST, above=True)]
Probability = Annotated[float, Limits(0.0, 1.0)]
Share = Annotated[float, Limits(0.0, 1.0, above=True)]
"""Of a whole, not nothing of it."""
ProperShare = Annotated[float, Limits(0.0, 1.0, above=True, below=True)]
"""Of a whole, neither nothing nor all of it."""
Rest = Annotated[float, Limits(0.0, 1.0, below=True)]
"""What stays from one step to the next, as a momentum; not all of it."""
Angle = Annotated[float, Limits(0.0, math.pi / 2)]
"""In radians, up to a right one."""
Cosine = Annotated[float, Limits(-1.0, 1.0)]
Count = Annotated[int, Limits(1, MOST)]
CountOrNone = Annotated[int, Limits(0, MOST)]
Seed = Annotated[int, Limits(0, 2**32 - 1)]

_ANY = {float: Limits(-LARGEST, LARGEST), int: Limits(-MOST, MOST)}


class Checked:
    """Base of dataclasses whose numbers are held against the limits beside their fields."""

    def __post_init__(self) -> None:
        """Check every number.

        Raises:
            RecipeError: one lies outside its limits; where none are said, any number is taken up to
                `LARGEST` or `MOST`.
        """
        kind: type = type(self)
        _check(vars(self), _hints(kind), self.called)

    @classmethod
    def called(cls, field: str) -> str:
        """Return what messages call a field."""
        return f"{cls.__name__}.{field}"


class Flags(Checked):
    """Base of dataclasses whose fields are flags of a command, which messages call them by."""

    @classmethod
    def called(cls, field: str) -> str:
        """Return the flag of a field."""
        return f"--{field.replace('_', '-')}"


def check_flags(function: Callable[..., object], values: Mapping[str, Any]) -> None:
    """Hold flags against the limits in the signature of the function that they are parameters of.

    Raises:
        RecipeError: as for the fields of `Checked`.
    """
    _check(values, typing.get_type_hints(function, include_extras=True), Flags.called)


def _check(
    values: Mapping[str, Any], hints: Mapping[str, Any], called: Callable[[str], str]
) -> None:
    for name, hint in hints.items():
        for value, limits in _numbers(values.get(name), hint):
            if value not in limits:
                raise RecipeError(f"{called(name)} must be {limits}, found {shown(value)}")


def shown(value: Any) -> str:
    """Return ``value`` as a message can hold it: on one line, and of no more than 60 characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # whole numbers of more than 4,300 digits; deep trees
        text = f"a very long {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if typing.get_origin(hint) is not ClassVar}


def _numbers(value: Any, hint: Any, limits: Limits | None = None) -> Iterator[tuple[Any, Limits]]:
    """Yield the numbers in a field's value with their limits; what is of another type is skipped.

    That types are right is left to `facerec.base.recipe.check`, which names the field in its tree.
    """
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        own = [item for item in hint.__metadata__ if isinstance(item, Limits)]
        yield from _numbers(value, options[0], own[0] if own else limits)
    elif origin in (typing.Union, types.UnionType):
        for option in options:
            yield from _numbers(value, option, limits)
    elif origin is tuple and isinstance(value, (tuple, list)):
        kinds = [options[0]] * len(value) if options[-1:] == (Ellipsis,) else options
        for item, kind in zip(value, kinds, strict=False):
            yield from _numbers(item, kind, limits)
    elif hint in _ANY and isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value, limits or _ANY[hint]
