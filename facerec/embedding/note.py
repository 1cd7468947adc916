"""The note in a file of embeddings that says how they were made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from facerec.errors import DatasetError
from facerec.files import parse_json


def parse_note(path: Path, text: str | bytes, newest: int) -> dict[str, Any]:
    """Return what facerec wrote into a file of embeddings about them, with flip checked.

    Args:
        path: the file, for messages.
        text: the note, JSON.
        newest: the format that can be read.

    Raises:
        DatasetError: it is damaged, or of another format.
    """
    try:
        note = parse_json(text)
        stored_format, flip = note.pop("format"), note["flip"]
        if flip not in (True, False, None):
            raise TypeError(f"flip is {flip!r}")
    except (ValueError, KeyError, AttributeError, TypeError) as problem:
        raise DatasetError(
            f"{path}: its note is no JSON with format and flip ({problem!r}); make the file again"
        ) from problem
    if stored_format != newest:
        raise DatasetError(
            f"{path}: written in format {stored_format!r}, this facerec reads format {newest}; use "
            "the facerec that wrote it, or a newer one"
        )
    return note
