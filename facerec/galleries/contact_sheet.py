"""One page that shows proposals: faces side by side, the surest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from facerec.errors import DatasetError
from facerec.files import atomic_path
from facerec.report.page import Page, Section
from facerec.report.table import Cell, text_table
from facerec.verification.page import face_picture

SHOWN = 60
"""Proposals of a kind on a page."""

Face = Callable[[str], str]
"""Image id → data URI of a small picture; empty if there is none."""


def faces_of(images: Any) -> Face:
    """Return the pictures of an image source, by their names; of None there are none."""
    if images is None:
        return lambda name: ""
    names = getattr(images, "titles", images.ids).tolist()
    row_of = {name: row for row, name in enumerate(names)}
    return lambda name: face_picture(images.encoded, row_of[name]) if name in row_of else ""


def write_contact_sheet(
    path: Path,
    title: str,
    verdict: str,
    proposals: Mapping[str, tuple[Sequence[str], Iterable[Sequence[Cell | str]]]],
) -> None:
    """Write a page that its owner alone may read, since it shows people.

    Args:
        path: the file.
        title: of the page.
        verdict: what was found, in a sentence.
        proposals: kind → headings and rows, the surest first.

    Raises:
        DatasetError: the file cannot be written.
    """
    sections = [
        Section(kind, [text_table(kind, headings, rows, words=headings[:-1])])
        for kind, (headings, rows) in proposals.items()
    ]
    banner = "Proposals, not findings: look before you change anything. This page shows people."
    lead = f"At most {SHOWN} of a kind; the list has all. Nothing was changed."
    page = Page(title, verdict, lead, [], [], sections, banner=banner)
    with atomic_path(path, DatasetError, private=True) as temporary:
        temporary.write_text(page.render(), encoding="utf-8")
