"""Every number of a recipe and of commands, tried with what none should hold: taken or named."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pytest

from facerec.base.errors import RecipeError
from facerec.base.limits import Checked, Limits
from facerec.commands import plan as plan_command
from facerec.commands import train as train_command
from facerec.training import Recipe

REQUIRED: dict[str, Any] = {
    "weight": 0.5,
    "classes": 4,
    "per_class": 3,
    "path": "d",
    "teacher": "t",
}
"""Fields without a default."""
ODD = [math.nan, math.inf, -math.inf, -1, 0, -0.0, 5e-324, 1e30, 1e300, 2**70, 10**400]


def parts(hint: Any) -> Iterator[type]:
    """Yield the dataclasses that a type is made of."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not getattr(hint, "admits_subclasses", False):  # a base of users' own
            yield hint
            for field in typing.get_type_hints(hint, include_extras=True).values():
                yield from parts(field)
    else:
        for option in typing.get_args(hint):
            yield from parts(option)


def limits_of(hint: Any) -> Limits | None:
    """Return the limits of a field that holds one number, or None or a word instead."""
    if typing.get_origin(hint) is Annotated:
        return next((note for note in hint.__metadata__ if isinstance(note, Limits)), None)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(filter(None, map(limits_of, typing.get_args(hint))), None)
    return None


def fields(kind: type) -> Iterator[tuple[type, str, Limits]]:
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if limits := limits_of(hint):
            yield kind, name, limits


KINDS = list(dict.fromkeys(parts(Recipe)))
FIELDS = [field for kind in KINDS for field in fields(kind)]


def test_the_walk_reaches_every_kind_of_part() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert {"Recipe", "Part", "Augmentation", "AdaFace", "RingLoss"} < names
    assert {"RMSprop", "MultiStep", "Checkpoints", "Preprocessing"} < names
    for kind in KINDS:  # or its numbers would not be looked at
        assert issubclass(kind, Checked) or not list(fields(kind)), kind
    assert len(FIELDS) > 60


@pytest.mark.parametrize(
    ("kind", "name", "limits"), FIELDS, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_a_number_lies_in_its_limits_or_is_named(kind: type, name: str, limits: Limits) -> None:
    given = {
        field.name: REQUIRED[field.name]
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    ends = [limits.low, limits.high]
    around = [float(np.nextafter(end, way)) for end in ends for way in (-math.inf, math.inf)]
    for value in dict.fromkeys([*ends, *ODD, *around, *(int(end) + 1 for end in ends)]):
        try:
            kind(**given | {name: value})
        except RecipeError as error:
            assert "\n" not in str(error) and len(str(error)) < 400
            assert name in str(error) or value in limits  # there are more rules than limits
        else:
            assert math.isfinite(value) and value in limits


@pytest.mark.parametrize("options", [plan_command.Step, train_command.Options])
def test_the_numbers_of_commands(options: type) -> None:
    for _, name, limits in fields(options):
        for value in ODD:
            if value in limits:
                options(**{name: value})
            else:
                flag = "--" + name.replace("_", "-")
                with pytest.raises(RecipeError, match=f"^{flag} must be "):
                    options(**{name: value})
