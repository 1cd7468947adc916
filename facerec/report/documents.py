"""What every report says of its making, and its figures for other programs."""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import facerec
from facerec.base.files import parse_json, read_file

_PACKAGES = ("numpy", "scipy", "torch", "opencv-python", "matplotlib")


def provenance_of(command: str | None, packages: Sequence[str] = _PACKAGES) -> dict[str, Any]:
    """Return versions and the command line, for the record."""
    return {
        "facerec": facerec.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "command": command,
    }


def files_listed(path: Path, **marks: str) -> set[str]:
    """Return the files that an earlier report, a JSON document with such marks, says it wrote.

    Marks are how values begin, as those of earlier releases' schemas do.
    """
    try:
        document = parse_json(read_file(path))
        same = all(document[name].startswith(mark) for name, mark in marks.items())
        return set(document["files"]) if same else set()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def plain(value: Any, *, infinities: bool = True) -> Any:
    """Return anything as JSON types; what is not a number becomes null.

    Of a dataclass its fields are written by their names; an infinity is written as its name, or
    without ``infinities`` as null too.
    """
    convert = functools.partial(plain, infinities=infinities)
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): convert(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(convert, value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value) if infinities and not math.isnan(value) else None
    return value
