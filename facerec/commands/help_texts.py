"""How help reads: defaults, names of values, capitals and line breaks, for all commands at once.

The texts are the docstrings of commands and of dataclasses' fields. Rules of tyro's registry change
what is said of a value wherever tyro says it, in help and in errors.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import os
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Annotated, Any

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
    UnsupportedTypeAnnotationError,
)

Field = tuple[type, str]
"""A dataclass and the name of a field of it."""

_WIDEST = 100
"""Characters of a line of help on any terminal."""

HELP = frozenset({"-h", "--help", "--help-all"})


def _default(value: str) -> str:
    """Return what is said of a default: nothing where it is that nothing is given."""
    return "" if value in ("", "None", "False") else f"(default: {value})"


def _argument(hint: Any, default: object, helps: bool) -> Any:
    hint = Annotated[hint, tyro.conf.arg(help_behavior_hint=_default)]
    alone = helps and default is False
    return Annotated[hint, tyro.conf.FlagCreatePairsOff] if alone else hint


def sentence(text: str) -> str:
    """Return a text on one line, without the marks of code, from a capital on."""
    text = " ".join(text.replace("`", "").split())
    return text[:1].upper() + text[1:]


def describe(call: Callable[..., None], helps: bool) -> None:
    """Let the parameters of a command's wrapper read as the fields of dataclasses do.

    Args:
        call: its docstring and annotations change, not those of what it wraps.
        helps: help is asked for, where a flag that is off needs no ``--no-`` beside it.
    """
    about, begin, arguments = (inspect.getdoc(call) or "").partition("\n\nArgs:\n")
    paragraphs = (" ".join(paragraph.split()) for paragraph in about.split("\n\n"))
    lines = re.sub(r"\n {8}\s*", " ", arguments)  # each argument on one
    lines = re.sub(r"(?m)^( +\w+: )(.*)", lambda found: found[1] + sentence(found[2]), lines)
    call.__doc__ = "\n\n".join(paragraphs) + begin + lines
    hints, signature = typing.get_type_hints(call, include_extras=True), inspect.signature(call)
    del call.__wrapped__  # type: ignore[attr-defined]
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {
        name: _argument(hints[name], parameter.default, helps)
        for name, parameter in signature.parameters.items()
    }


def help_rules(helps: bool, shown: Collection[Field] = ()) -> ConstructorRegistry:
    """Return how values are named and fields described.

    Args:
        helps: as in `describe`.
        shown: the only fields that help shows of the dataclasses in here; none shows all.
    """
    registry = ConstructorRegistry()
    kinds = {kind for kind, _ in shown}
    asking = False

    def usual(ask: Callable[[Any], Any], about: Any) -> Any:
        """Return what tyro says without these rules, and None while it is asked for that."""
        nonlocal asking
        if asking:
            return None
        asking = True
        try:
            return ask(about)
        finally:
            asking = False

    @registry.primitive_rule
    def name_values(
        info: PrimitiveTypeInfo,
    ) -> PrimitiveConstructorSpec[Any] | UnsupportedTypeAnnotationError | None:
        found = usual(ConstructorRegistry.get_primitive_spec, info)
        if not isinstance(found, PrimitiveConstructorSpec):
            return found
        name = re.sub(r"^\{None\}\|\{(.* .*)\}$", r"\1", found.metavar)
        name = re.sub(r"\{None\}\||(?<=\{)None,", "", name).replace("STR", "TEXT")
        return replace(found, metavar=re.sub(r"\[(.+) \[\1 \.\.\.\]\]", r"[\1 ...]", name))

    @registry.struct_rule
    def describe_fields(info: StructTypeInfo) -> StructConstructorSpec | None:
        found = usual(ConstructorRegistry.get_struct_spec, info)
        if not isinstance(found, StructConstructorSpec):
            return found
        return replace(found, fields=tuple(described(info.type, each) for each in found.fields))

    def described(kind: type, field: StructFieldSpec) -> StructFieldSpec:
        hint: Any = _argument(field.type, field.default, helps)
        if kind in kinds and (kind, field.name) not in shown:
            hint = Annotated[hint, tyro.conf.Suppress]
        return replace(field, type=hint, helptext=functools.partial(said, field.helptext))

    def said(text: str | Callable[[], str | None] | None) -> str | None:
        text = text() if callable(text) else text
        return text and sentence(text)

    return registry


@contextlib.contextmanager
def fitted() -> Iterator[None]:
    """Print the help that is printed in the block without boxes, of lines that fit the terminal."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    page = io.StringIO()  # has no encoding, so that tyro draws lines of ASCII
    given = {name: value for name, value in os.environ.items() if name == "COLUMNS"}
    os.environ["COLUMNS"] = str(width)
    try:
        with contextlib.redirect_stdout(page):
            yield
    finally:
        del os.environ["COLUMNS"]
        os.environ.update(given)
        text = re.sub(r"(?m) +$", "", page.getvalue())
        text = re.sub(r"\n .*\n -+\n  (.*)\.\n  -+\n", r"\n\1:\n", text)  # a title's sentence
        text = re.sub(r"\n (\S.*)\n -+\n", r"\n\1:\n", text)
        text = re.sub(r"\n  -+(?=\n)|\n(?=\n  )", "", text)
        text = text.replace("show this help message and exit", "Show this help and end.")
        for line in text.splitlines():
            print(textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False))
        sys.stdout.flush()
