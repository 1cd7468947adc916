"""Recipes as trees of frozen dataclasses: load a file, check every field, to JSON and back.

This module knows nothing of training. The tree's root is `facerec.training.recipe.Recipe`; the
parts of the tree live beside the code that they configure.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import runpy
import sys
import traceback
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from facerec.base.errors import FacerecError, RecipeError
from facerec.base.files import NOTE, parse_json, read_file
from facerec.base.limits import shown

T = TypeVar("T")
OWN = Path(__file__).parents[1] / "recipes"
"""Folder of the recipes that come with facerec."""

_RUN_NAME = "<run_path>"
_own_modules: list[str] = []
"""Modules that the file which ran last imported from beside it."""


def load_recipe(path: str | Path, kind: type[T]) -> T:
    """Run a recipe file and return its variable ``recipe``, with every field checked.

    A recipe file is Python: it can build on a file beside it by importing it. The ``recipe.json``
    of a run is one, too.

    Args:
        path: the Python or JSON file, or the name of one of facerec's, see `recipe_file`.
        kind: the dataclass that ``recipe`` must be.

    Raises:
        RecipeError: the file is missing, fails, has no ``recipe``, or a field is wrong.
    """
    path = recipe_file(path)
    if not path.is_file():
        folder = path if path.is_dir() else path.parent
        there = [str(file) for file in folder.glob("[!_]*.py")] if path.suffix else []
        known = there or sorted(file.stem for file in OWN.glob("[!_]*.py"))
        raise RecipeError(f"{path}: no such recipe file; {_nearest(str(path), known)}")
    if path.suffix == ".json":
        try:
            return from_dict(kind, parse_json(read_file(path, NOTE)), str(path))
        except (OSError, ValueError) as error:
            raise RecipeError(f"{path}: cannot be read ({error}); take another recipe") from error
    names = run_python(path)
    recipe = names.get("recipe")
    if not isinstance(recipe, kind):
        raise RecipeError(
            f"{path}: a recipe file must set `recipe = {kind.__name__}(...)`, "
            f"found {'nothing of that name' if recipe is None else type(recipe).__name__}"
        )
    return typing.cast(T, check(kind, recipe, str(path)))


def recipe_file(path: str | Path) -> Path:
    """Return the file of a recipe: that of a path, or of facerec's own one of this name.

    ``arcface_sec_r50`` and ``papers/sec`` are names.
    """
    own = OWN / f"{path}.py"
    return own if own.is_file() and not Path(path).is_file() else Path(path)


def run_python(path: Path) -> dict[str, Any]:
    """Run a user's Python file, which may import files beside it, and return its variables.

    Raises:
        RecipeError: it fails.
    """
    folder = path.resolve().parent
    # A file elsewhere may import a file of the same name.
    while _own_modules:
        sys.modules.pop(_own_modules.pop(), None)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        names = runpy.run_path(str(path), run_name=_RUN_NAME)
    except Exception as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        for frame in traceback.extract_tb(error.__traceback__):
            line = frame.lineno if Path(frame.filename) == path else line
        told = isinstance(error, (TypeError, ValueError, FacerecError))
        text = f"{'' if told else f'{type(error).__name__}: '}{error}".replace(".__init__()", "")
        raise RecipeError(f"{path}: line {line}: {text}") from error
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            # What is installed, facerec itself too, may lie below the folder.
            top = name.partition(".")[0]
            file = str(getattr(sys.modules[name], "__file__", None) or "")
            if top not in before and file.startswith(str(folder / top)):
                _own_modules.append(name)
    # Hints and help of its classes are looked up in their module, which runpy takes away.
    module = types.ModuleType(_RUN_NAME)
    vars(module).update(names)
    sys.modules[_RUN_NAME] = module
    return names


def to_dict(value: Any) -> Any:
    """Turn a dataclass tree into JSON types; each dataclass carries its name as ``type``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, (tuple, list)):
        return [to_dict(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_dict(kind: type[T], value: Any, where: str) -> T:
    """Rebuild a dataclass tree from ``to_dict``'s output.

    Args:
        kind: the dataclass at the root.
        value: parsed JSON.
        where: the file that the JSON came from, for error sentences.

    Raises:
        RecipeError: an unknown field or type name, or a value of the wrong type.
    """
    return typing.cast(T, check(kind, value, where))


def differences(first: Any, second: Any, prefix: str = "") -> list[str]:
    """List the dotted names of fields in which two ``to_dict`` trees differ."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return [] if first == second else [prefix]
    found = (
        differences(first.get(name), second.get(name), f"{prefix}.{name}".strip("."))
        for name in {**first, **second}
    )
    return [field for fields in found for field in fields]


def is_within(name: str, fields: Iterable[str]) -> bool:
    """Tell whether a dotted name is one of some fields, or a part of one."""
    return any(name == each or name.startswith(f"{each}.") for each in fields)


def digest(stored: Any) -> str:
    """Return the SHA-256 of a tree of JSON types, as hex."""
    text = json.dumps(stored, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def check(hint: Any, value: Any, where: str, field: str = "recipe") -> Any:
    """Return ``value`` as the type that ``hint`` asks for, or say which field is wrong.

    Dataclasses may come as instances or as dictionaries of ``to_dict``; integers are taken for
    floats, text for paths and lists for arrays, nothing else is converted. Of a union's dataclass
    that ``admits_subclasses`` a value may be of a class of the user's own; a dictionary, if the
    file that has the class was run. Of a union with one dataclass it need not name that.
    """
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _check_union(options, value, where, field)
    if origin is tuple and isinstance(value, (tuple, list)):
        kinds = [options[0]] * len(value) if options[-1:] == (Ellipsis,) else list(options)
        if len(kinds) == len(value):
            items = enumerate(zip(kinds, value, strict=True))
            return tuple(check(kind, item, where, f"{field}[{i}]") for i, (kind, item) in items)
    elif origin is dict and isinstance(value, dict):
        return {
            check(options[0], k, where, field): check(options[1], v, where, f"{field}.{k}")
            for k, v in value.items()
        }
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _check_dataclass(hint, value, where, field)
    elif hint is float and type(value) is int and abs(value) < sys.float_info.max:
        return float(value)
    elif hint is Path and isinstance(value, (str, Path)) and "\0" not in str(value):
        return Path(value)
    elif origin is np.ndarray and isinstance(value, (list, np.ndarray)):
        with np.errstate(over="ignore"):
            return np.array(value, typing.get_args(options[1])[0])
    elif hint is Any or (value in options if origin is Literal else _is_of(value, hint, origin)):
        return value
    name = f"one of {', '.join(map(repr, options))}" if origin is Literal else _name(hint)
    raise _wrong(where, field, name, value)


def _is_of(value: Any, hint: Any, origin: Any) -> bool:
    """Tell whether a value is of a plain type; truth values are no numbers."""
    # Python 3.10 takes tuple[int, ...] for a type.
    plain = origin is None and isinstance(hint, type) and isinstance(value, hint)
    return plain and (hint is bool or not isinstance(value, bool))


def _name(hint: Any) -> str:
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))


def _check_union(options: tuple[Any, ...], value: Any, where: str, field: str) -> Any:
    kinds = [
        kind
        for option in options
        if dataclasses.is_dataclass(option) and isinstance(option, type)
        for kind in (option, *_own_kinds(option))
    ]
    if isinstance(value, dict) and kinds:
        by_name = {kind.__name__: kind for kind in kinds}
        named = value.get("type", next(iter(by_name)) if len(by_name) == 1 else None)
        if named not in list(by_name):
            name = shown(named)
            raise RecipeError(f"{where}: {field} is {name}, {_nearest(name, list(by_name))}")
        return _check_dataclass(by_name[named], value, where, field)
    if type(value) in kinds:
        return _check_dataclass(type(value), value, where, field)
    for option in options:
        try:
            return check(option, value, where, field)
        except RecipeError:
            continue
    raise _wrong(where, field, " or ".join(map(_name, options)), value)


def _own_kinds(option: type[Any]) -> list[type[Any]]:
    """Return the user's classes that stand for a union's one, the newest of a name last."""
    if not getattr(option, "admits_subclasses", False):
        return []
    return [own for kind in option.__subclasses__() for own in (kind, *_own_kinds(kind))]


def _check_dataclass(kind: type[Any], value: Any, where: str, field: str) -> Any:
    if isinstance(value, kind):
        kind = type(value)
        given = {f.name: getattr(value, f.name) for f in dataclasses.fields(kind) if f.init}
    elif isinstance(value, dict) and value.get("type", kind.__name__) == kind.__name__:
        given = {name: item for name, item in value.items() if name != "type"}
    else:
        raise _wrong(where, field, kind.__name__, value)
    fields = [f.name for f in dataclasses.fields(kind) if f.init]
    for name in given:
        if name not in fields:
            raise RecipeError(
                f"{where}: {field} has no field {shown(name)}, {_nearest(name, fields)}"
            )
    hints = typing.get_type_hints(kind)  # without limits, which a class holds by itself
    checked = {n: check(hints[n], v, where, f"{field}.{n}") for n, v in given.items()}
    try:
        return kind(**checked)
    except (TypeError, ValueError, RecipeError) as error:
        raise RecipeError(f"{where}: {field}: {str(error).replace('.__init__()', '')}") from error


def _wrong(where: str, field: str, wanted: str, value: Any) -> RecipeError:
    return RecipeError(
        f"{where}: {field} must be {wanted}, found {shown(value)} of type {type(value).__name__}"
    )


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
