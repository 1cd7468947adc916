"""One page that shows proposals: faces side by side, the surest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cv2

from facerec.base.errors import FacerecError
from facerec.base.files import atomic_path
from facerec.records.decode import decode_image
from facerec.report.page import Page, Section
from facerec.report.plotting import data_uri
from facerec.report.table import Table

SHOWN = 60
"""Proposals of a kind on a page."""

_FACE = 112
"""Longer side of the pictures, pixels."""

Face = Callable[[str], str]
"""Image id → data URI of a small picture; empty if there is none."""


def faces_of(images: Any, cuts: Mapping[str, tuple[str, str]] = MappingProxyType({})) -> Face:
    """Return small JPEGs of an image source by their names, without whatever else a file carried.

    There is none of a name that is not there, of an image that does not decode, and of None.

    Args:
        images: the source.
        cuts: name → the photo that it is cut from, and its box there, as left, top, right and
            bottom with blanks between; of others all is shown.
    """
    names = [] if images is None else getattr(images, "titles", images.ids).tolist()
    row_of = {name: row for row, name in enumerate(names)}

    def face(name: str) -> str:
        photo, box = cuts.get(name, (name, ""))
        if photo not in row_of:
            return ""
        try:
            image = decode_image(images.encoded(row_of[photo]), photo, size=None, upright=True)
        except FacerecError:
            return ""
        if box:
            left, top, right, bottom = (max(int(edge), 0) for edge in box.split())
            image = image[top:bottom, left:right]
        scale = _FACE / max(image.shape[:2])
        if scale < 1:
            image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        _, content = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
        return data_uri("image/jpeg", content.tobytes())

    return face


def write_contact_sheet(
    path: Path, title: str, verdict: str, proposals: Mapping[str, Table]
) -> None:
    """Write a page that its owner alone may read, since it shows people.

    Args:
        path: the file.
        title: of the page.
        verdict: what was found, in a sentence.
        proposals: kind → table, the surest first.

    Raises:
        FacerecError: the file cannot be written.
    """
    sections = [Section(kind, [replace(table, caption=kind)]) for kind, table in proposals.items()]
    banner = "Proposals, not findings: look before you change anything. This page shows people."
    lead = f"At most {SHOWN} of a kind; the list has all. Nothing was changed."
    page = Page(title, verdict, lead, [], [], sections, banner=banner)
    with atomic_path(path, private=True) as temporary:
        temporary.write_text(page.render(), encoding="utf-8")
