"""How help reads: tyro's pages, with the docstrings of commands and of dataclasses' fields.

A field says nothing of a default that means "not given", a flag that is off has no ``--no-``
beside it, and of a recipe's fields only those are shown that most people change.
"""

from __future__ import annotations

import inspect
import shutil
import textwrap
import typing
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Annotated, Any

import docstring_parser
import tyro
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from facerec.base.limits import Flags

HELP = frozenset({"-h", "--help", "--help-all"})


def _default(value: str) -> str:
    """Return what is said of a default: nothing where it is that nothing is given."""
    return "" if value in ("", "None", "False") else f"(default: {value})"


def _argument(hint: Any, default: object, helps: bool, said: str | None = None) -> Any:
    hint = Annotated[hint, tyro.conf.arg(help=said, help_behavior_hint=_default)]
    return Annotated[hint, tyro.conf.FlagCreatePairsOff] if helps and default is False else hint


def sentence(said: str | Callable[[], str | None] | None) -> str | None:
    """Return a text on one line, without the marks of code, from a capital on."""
    text = said() if callable(said) else said
    line = " ".join((text or "").replace("`", "").split())
    return line[:1].upper() + line[1:] or None


def about(call: Callable[..., Any]) -> str:
    """Return what a command does, in lines that fit the terminal."""
    paragraphs = docstring_parser.parse(inspect.getdoc(call) or "").description or ""
    width = min(shutil.get_terminal_size().columns, 100)
    filled = (
        textwrap.fill(each, width, break_on_hyphens=False) for each in paragraphs.split("\n\n")
    )
    return "\n\n".join(filled)


def describe(call: Callable[..., Any], helps: bool) -> None:
    """Let the parameters of a command's wrapper read as the fields of dataclasses do.

    Args:
        call: its annotations change, not those of what it wraps.
        helps: help is asked for, where a flag that is off needs no ``--no-`` beside it.
    """
    said = {
        each.arg_name: sentence(each.description)
        for each in docstring_parser.parse(inspect.getdoc(call) or "").params
    }
    hints, signature = typing.get_type_hints(call, include_extras=True), inspect.signature(call)
    del call.__wrapped__  # type: ignore[attr-defined]
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {
        name: _argument(hints[name], parameter.default, helps, said.get(name))
        for name, parameter in signature.parameters.items()
    }


def help_rules(helps: bool, shown: Collection[str] = ()) -> ConstructorRegistry:
    """Return how fields of dataclasses are described.

    Args:
        helps: as in `describe`.
        shown: names of fields, and of the fields that hold them: those of a recipe that help shows;
            none shows all.
    """
    registry = ConstructorRegistry()
    asking = False

    @registry.struct_rule
    def describe_fields(info: StructTypeInfo) -> Any:
        nonlocal asking
        if asking:  # for what tyro says without this rule
            return None
        asking = True
        found = ConstructorRegistry.get_struct_spec(info)
        asking = False
        if not isinstance(found, StructConstructorSpec):
            return found
        return replace(found, fields=tuple(described(info.type, each) for each in found.fields))

    def described(kind: type, field: StructFieldSpec) -> StructFieldSpec:
        hint: Any = _argument(field.type, field.default, helps)
        if helps and shown and field.name not in shown and not issubclass(kind, Flags):
            hint = Annotated[hint, tyro.conf.Suppress]
        return replace(field, type=hint, helptext=lambda: sentence(field.helptext))

    return registry
