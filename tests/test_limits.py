"""Every number of a recipe, tried with what no recipe should hold: it is taken or named."""

from __future__ import annotations

import dataclasses
import itertools
import math
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pytest
from helpers.tiny_training import make_trainer, tiny_recipe, write_training_set

from facerec.backbones import Preprocessing, create_backbone
from facerec.commands import plan as plan_command
from facerec.commands import train as train_command
from facerec.embedding import save_model
from facerec.errors import FacerecError, RecipeError
from facerec.limits import MOST, Checked, Limits
from facerec.recipe import from_dict, to_dict
from facerec.training import Distillation, Recipe
from facerec.training.plan import plan_step

SMALLEST: dict[str, Any] = {  # fields without a default
    "weight": 0.5,
    "classes": 4,
    "per_class": 3,
    "path": "data",
}
ODD = [math.nan, math.inf, -math.inf, -1, 0, -0.0, 5e-324, 1e30, 1e300, 2**70, 10**400]

Place = tuple[str | int, ...]


def parts(hint: Any, place: Place = ()) -> Iterator[tuple[Place, type]]:
    """Yield the dataclasses of a type with the place where each stands in a recipe."""
    if getattr(hint, "admits_subclasses", False):  # a base of users' own, never itself in a recipe
        return
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield place, hint
        for name, field in typing.get_type_hints(hint, include_extras=True).items():
            yield from parts(field, (*place, name))
    elif typing.get_origin(hint) is tuple:
        yield from parts(typing.get_args(hint)[0], (*place, 0))
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        for option in typing.get_args(hint):
            yield from parts(option, place)


def numbers(
    hint: Any, place: Place, limits: tuple[Limits, ...] = ()
) -> Iterator[tuple[Place, Any]]:
    """Yield the places of numbers in a field, with their limits, without those of its parts."""
    if typing.get_origin(hint) is Annotated:
        own, *notes = typing.get_args(hint)
        yield from numbers(own, place, (*(n for n in notes if isinstance(n, Limits)), *limits))
    elif typing.get_origin(hint) is tuple:
        yield from numbers(typing.get_args(hint)[0], (*place, 0), limits)
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        for option in typing.get_args(hint):
            yield from numbers(option, place, limits)
    elif hint in (int, float):
        yield place, limits


def fields(kind: type) -> Iterator[tuple[Place, Any]]:
    for field in dataclasses.fields(kind):
        hint = typing.get_type_hints(kind, include_extras=True)[field.name]
        yield from numbers(hint, (field.name,))


PARTS = list(parts(Recipe))
FIELDS = [(place, kind, *field) for place, kind in PARTS for field in fields(kind)]


def name_of(value: Any) -> str | None:
    if isinstance(value, tuple):
        return ".".join(map(str, value)) or "recipe"
    return value.__name__ if isinstance(value, type) else ""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    recipe = tiny_recipe(write_training_set(folder))
    backbone = create_backbone(recipe.backbone, seed=1)
    teacher = folder / "teacher.safetensors"
    save_model(teacher, backbone, recipe.backbone, Preprocessing(), to_dict(recipe))
    SMALLEST["teacher"] = str(teacher)
    SMALLEST["cache"] = str(folder / "teachers")
    return to_dict(recipe)


def with_part(base: dict[str, Any], place: Place, kind: type) -> dict[str, Any]:
    """Return a recipe as JSON in which a part of this kind stands at this place."""
    if place and Tree(base).get(place[:-1]) is None:  # an optional part of an optional part
        base = with_part(base, place[:-1], dict(PARTS)[place[:-1]])
    tree = Tree(base)
    found = tree.get(place)
    if not isinstance(found, dict) or found["type"] != kind.__name__:
        required = [
            f.name
            for f in dataclasses.fields(kind)
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        values = {name: SMALLEST[name] for name in required}
        if "path" in values:
            values["path"] = base["data"]["path"]
        if kind is Distillation:  # not where users keep theirs
            values["cache"] = SMALLEST["cache"]
        tree.set(place, to_dict(kind(**values)))
    return tree.value


class Tree:
    """A copy of JSON, read and written by the names that lead to a value."""

    def __init__(self, value: Any) -> None:
        self.value = _copy(value)

    def get(self, place: Place) -> Any:
        node = self.value
        for name in place:
            if node is None or (isinstance(name, int) and not node):
                return None
            node = node[name]
        return node

    def set(self, place: Place, value: Any) -> None:
        if not place:
            self.value = value
            return
        node = self.get(place[:-1])
        if node is None:  # there is no pair yet in a tuple of pairs
            self.set(place[:-1], [value, 0.5])
        elif isinstance(place[-1], int) and not node:
            node.append(value)
        else:
            node[place[-1]] = value


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def test_the_walk_reaches_every_kind_of_part() -> None:
    names = {kind.__name__ for _, kind in PARTS}
    assert {"Recipe", "Part", "Augmentation", "AdaFace", "RingLoss"} < names
    assert {"RMSprop", "MultiStep", "Checkpoints", "Preprocessing"} < names
    for _, kind in PARTS:  # or its numbers would not be looked at
        assert issubclass(kind, Checked) or not list(fields(kind)), kind
    assert len(FIELDS) > 80


@pytest.mark.parametrize(("place", "kind", "field", "limits"), FIELDS, ids=name_of)
def test_no_number_does_harm(
    base: dict[str, Any], place: Place, kind: type, field: Place, limits: tuple[Limits, ...]
) -> None:
    ends = [end for one in limits for end in (one.low, one.high)]
    around = [np.nextafter(end, way) for end in ends for way in (-math.inf, math.inf)]
    whole = [int(end) + step for end in ends for step in (-1, 1)]
    taken = []
    for value in dict.fromkeys([*ends, *ODD, *map(float, around), *whole]):
        tree = Tree(with_part(base, place, kind))
        tree.set((*place, *field), value)
        try:
            recipe = from_dict(Recipe, tree.value, "recipe.json")
        except RecipeError as error:
            assert "\n" not in str(error) and len(str(error)) < 400
            assert str(field[0]) in str(error)
            continue
        taken.append(value)
        assert math.isfinite(value)
        for one in limits:
            assert value in one
        # The largest backbones, and ten thousand views, would take all day.
        large = kind.__name__ == "Backbone" or field == ("views",)
        if not large and (value in ends or value in ODD):
            check_that_it_trains(recipe)
    assert all(end in taken for one in limits for end in (one.low, one.high) if end in one) or (
        # More rules than limits.
        kind is Recipe or field[-1] in ("l_a", "u_a", "l_margin", "u_margin", "mixup")
    )


def check_that_it_trains(recipe: Recipe) -> None:
    """Do two steps, or end in a sentence."""
    try:
        trainer = make_trainer(recipe)
        for batch in itertools.islice(trainer.batches(), 2):
            trainer.learner.train_step(batch)
    except FacerecError as error:
        assert str(error)


@pytest.mark.integration
@pytest.mark.parametrize("field", ["embedding_size", "width", "dropout"])
def test_the_largest_backbones_are_planned(base: dict[str, Any], field: str) -> None:
    _, _, _, (limits,) = next(f for f in FIELDS if f[0] == ("backbone",) and f[2] == (field,))
    for end in (limits.low, limits.high):
        if end in limits:
            tree = Tree(base)
            tree.set(("backbone", "name"), "mbf")
            tree.set(("backbone", field), end)
            plan = plan_step(from_dict(Recipe, tree.value, "recipe.json"), MOST)
            assert plan.memory > 0


@pytest.mark.parametrize("options", [plan_command.Options, train_command.Options])
def test_the_numbers_of_commands(options: type) -> None:
    for (name,), limits in fields(options):
        assert limits
        for value in ODD:
            if any(value in one for one in limits):
                options(**{name: value})
            else:
                flag = "--" + name.replace("_", "-")
                with pytest.raises(RecipeError, match=f"^{flag} must be "):
                    options(**{name: value})
