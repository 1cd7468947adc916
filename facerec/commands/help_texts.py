"""How help reads: defaults, names of values, capitals and line breaks, for all commands at once.

The texts are the docstrings of commands and of dataclasses' fields. Rules of tyro's registry change
what is said of a value wherever tyro says it, in help and in errors.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import shutil
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
)

from facerec.base.limits import Flags

HELP = frozenset({"-h", "--help", "--help-all"})


def _default(value: str) -> str:
    """Return what is said of a default: nothing where it is that nothing is given."""
    return "" if value in ("", "None", "False") else f"(default:\xa0{value})"


def _argument(hint: Any, default: object, helps: bool) -> Any:
    hint = Annotated[hint, tyro.conf.arg(help_behavior_hint=_default)]
    return Annotated[hint, tyro.conf.FlagCreatePairsOff] if helps and default is False else hint


def sentence(said: str | Callable[[], str | None] | None) -> str | None:
    """Return a text on one line, without the marks of code, from a capital on."""
    text = said() if callable(said) else said
    line = " ".join((text or "").replace("`", "").split())
    return line[:1].upper() + line[1:] or None


def describe(call: Callable[..., Any], helps: bool) -> None:
    """Let the parameters of a command's wrapper read as the fields of dataclasses do.

    Args:
        call: its docstring and annotations change, not those of what it wraps.
        helps: help is asked for, where a flag that is off needs no ``--no-`` beside it.
    """
    about, begin, arguments = (inspect.getdoc(call) or "").partition("\n\nArgs:\n")
    paragraphs = (" ".join(paragraph.split()) for paragraph in about.split("\n\n"))
    lines = re.sub(r"\n {8}\s*", " ", arguments)  # each argument on one
    lines = re.sub(r"(?m)^( +\w+: )(.*)", lambda found: f"{found[1]}{sentence(found[2])}", lines)
    call.__doc__ = "\n\n".join(paragraphs) + begin + lines
    hints, signature = typing.get_type_hints(call, include_extras=True), inspect.signature(call)
    del call.__wrapped__  # type: ignore[attr-defined]
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {
        name: _argument(hints[name], parameter.default, helps)
        for name, parameter in signature.parameters.items()
    }


def help_rules(helps: bool, shown: Collection[str] = ()) -> ConstructorRegistry:
    """Return how values are named and fields described.

    Args:
        helps: as in `describe`.
        shown: names of fields, and of the fields that hold them: those of a recipe that help shows;
            none shows all.
    """
    registry = ConstructorRegistry()
    asking = False

    def usual(ask: Callable[[Any], Any], about: Any) -> Any:
        """Return what tyro says without these rules, and None while it is asked for that."""
        nonlocal asking
        if not asking:
            asking = True
            found = ask(about)
            asking = False
            return found

    @registry.primitive_rule
    def name_values(info: PrimitiveTypeInfo) -> Any:
        found = usual(ConstructorRegistry.get_primitive_spec, info)
        if not isinstance(found, PrimitiveConstructorSpec):
            return found
        name = re.sub(r"^\{None\}\|(?:\{(.* .*)\}$)?|(?<=\{)None,", r"\1", found.metavar)
        name = re.sub(r"\[(.+) \[\1 \.\.\.\]\]", r"[\1 ...]", name).replace("STR", "TEXT")
        return replace(found, metavar=name)

    @registry.struct_rule
    def describe_fields(info: StructTypeInfo) -> Any:
        found = usual(ConstructorRegistry.get_struct_spec, info)
        if not isinstance(found, StructConstructorSpec):
            return found
        return replace(found, fields=tuple(described(info.type, each) for each in found.fields))

    def described(kind: type, field: StructFieldSpec) -> StructFieldSpec:
        hint: Any = _argument(field.type, field.default, helps)
        if helps and shown and field.name not in shown and not issubclass(kind, Flags):
            hint = Annotated[hint, tyro.conf.Suppress]
        return replace(field, type=hint, helptext=lambda: sentence(field.helptext))

    return registry


def _title(found: re.Match[str]) -> str:
    return f"\n{' '.join(found[1].replace('`', '').split()).rstrip('.')}:\n"


@contextlib.contextmanager
def fitted() -> Iterator[None]:
    """Print the help that is printed in the block without boxes, of lines that fit the terminal."""
    width = min(shutil.get_terminal_size().columns, 100)
    os.environ["COLUMNS"] = str(width)  # where tyro looks
    page = io.StringIO()  # has no encoding, so that tyro draws lines of ASCII
    try:
        with contextlib.redirect_stdout(page):
            yield
    finally:
        text = re.sub(r"(?m) +$", "", page.getvalue())
        # Titles: the sentence below the line, if there is one.
        text = re.sub(r"\n .*\n -+\n((?:(?:  .*)?\n)+?)  -+\n", _title, text)
        text = re.sub(r"\n (\S.*)\n -+\n", r"\n\1:\n", text)
        text = re.sub(r"\n(?=\n  )", "", text)
        text = text.replace("show this help message and exit", "Show this help and end.")
        for line in text.splitlines():
            line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
            print(line.replace("\xa0", " "), flush=True)
