"""A page: what was found first, then sections of blocks, provenance last.

A page needs nothing but itself: its policy admits the one style sheet, by its hash, and pictures
that are data URIs; nothing that a name smuggles in could run or restyle it. All texts are escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import ClassVar, Literal, TypeAlias

import jinja2
from markupsafe import Markup

from facerec.base.errors import printable
from facerec.report.plotting import Drawing
from facerec.report.table import Table

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


@dataclass(frozen=True)
class Listed:
    """Sentences, each of its own; notes are set off, as a reader must know them."""

    items: Sequence[str]
    style: Literal["plain", "notes"] = "plain"
    kind: ClassVar[str] = "listed"


Block: TypeAlias = Table | Drawing | str | Listed | Mapping[str, str]
"""What a section is made of; a text is a remark, a mapping has terms and what they mean."""


@dataclass(frozen=True)
class Section:
    """A section of a page, with a place in its contents."""

    title: str
    blocks: Sequence[Block]
    lead: str = ""
    on_paper: bool = True
    """Whether it is printed too."""


@dataclass(frozen=True)
class Page:
    """A page; it begins with what was found and ends with where that comes from."""

    title: str
    verdict: str
    """The sentence at the head, made by rule."""
    lead: str
    findings: Sequence[FindingLine]
    headline: Sequence[Block]
    """What stands right below the findings: their figure."""
    sections: Sequence[Section]
    banner: str = ""
    """What must be read before all else."""
    opening: Sequence[Block] = ()
    """What stands right above the findings, where a figure answers before words do."""

    def render(self) -> str:
        """Return the page as HTML; equal pages give equal texts."""
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader(_HERE, "pages"),
            autoescape=True,
            finalize=printed,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
        )
        style = files(_HERE).joinpath("pages", "page.css").read_text(encoding="utf-8")
        return environment.get_template("page.html.j2").render(
            page=self,
            style=Markup(style),
            style_hash=f"sha256-{base64.b64encode(sha256(style.encode()).digest()).decode()}",
        )


def printed(value: object) -> object:
    """Return what a template shows; no name in it turns round the figures that follow it."""
    return type(value)(printable(value)) if isinstance(value, str) else value  # Markup stays so
