"""What pages are made of: tables and figures, and the page's frame.

A page needs nothing but itself: its policy admits one style sheet and at most one script, each by
its hash, and pictures that are data URIs; nothing that a name smuggles in could run or restyle it.
All texts are escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar

import jinja2
from markupsafe import Markup

_HERE = "facerec.report"


@dataclass(frozen=True)
class FindingLine:
    """A line of the box of findings at the head of a page, made by rule from figures below."""

    figure: str
    """What was estimated, of what."""
    estimate: str
    limits: str = ""
    """The interval."""
    conclusion: str = ""
    """``difference detected``, ``none detected at this precision`` or ``insufficient data``; empty
    where nothing was tested."""
    detail: str = ""
    basis: str = ""
    """What the estimate rests on."""

    @property
    def tone(self) -> str:
        """How the conclusion is set off; a class of the style sheet."""
        return self.conclusion.partition(" ")[0]


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    small: str = ""
    picture: str = ""
    """Data URI of a small picture above the text."""
    withheld: bool = False
    """Whether a figure is missing here, so that the cell is hatched."""
    span: int = 1
    """Columns that it takes."""
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is its heading."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    remarks: Sequence[str] = ()
    words: Sequence[str] = ()
    """Columns that hold words rather than numbers; the first one always does."""
    groups: Sequence[tuple[str, int]] = ()
    """Headings above the columns, and how many of these each has."""
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Drawing:
    """A figure, and what it shows in words."""

    picture: str
    """Data URI."""
    alt: str
    caption: str
    kind: ClassVar[str] = "drawing"


def render_page(
    package: str, template: str, style: str, script: str | None = None, **values: Any
) -> str:
    """Fill in a page's template.

    Args:
        package: whose folder ``pages`` holds the files; `blocks.html.j2` has macros for them.
        template: name of the template.
        style: name of a style sheet, which comes after that of all pages.
        script: name of a script, if there is one.
        values: of the template; ``style``, ``script`` and their hashes come on top.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(p, "pages") for p in (package, _HERE)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    parts = {"style": _read(_HERE, "blocks.css") + _read(package, style)}
    if script is not None:
        parts["script"] = _read(package, script)
    for name, text in parts.items():
        values |= {name: Markup(text), f"{name}_hash": _hash(text)}
    return environment.get_template(template).render(**values)


def _read(package: str, name: str) -> str:
    return files(package).joinpath("pages", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
