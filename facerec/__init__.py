"""facerec: train, verify, export and audit face embeddings."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from facerec.base.environment import prepare

if TYPE_CHECKING:
    from facerec.embedding.recognizer import load, verify
    from facerec.galleries.finding import find

__version__ = "0.1.0"

__all__ = ["__version__", "find", "load", "verify"]

prepare()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # Loaded at first use, so that importing the package needs no torch.
    homes = {"load": "embedding.recognizer", "verify": "embedding.recognizer"}
    if (home := {**homes, "find": "galleries.finding"}.get(name)) is not None:
        return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
