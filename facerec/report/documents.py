"""What every report says of its making, and its figures for other programs."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

import facerec

_PACKAGES = ("numpy", "scipy", "torch", "opencv-python", "matplotlib")


def provenance_of(command: str | None, packages: Sequence[str] = _PACKAGES) -> dict[str, Any]:
    """Return versions and the command line, for the record."""
    return {
        "facerec": facerec.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "command": command,
    }


def to_json(document: Any) -> bytes:
    """Return a document as a JSON file; see `plain`."""
    text = json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def plain(value: Any) -> Any:
    """Return anything as JSON types: what JSON lacks, NaN becomes null and an infinity its name."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
