"""Packages whose names are imported when they are first used.

Commands parse their flags before anything heavy is imported, and what needs no torch imports none:
importing a module of a package would otherwise import all that its ``__init__`` offers.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return a package's ``__getattr__`` and ``__all__``: all names that its ``__init__`` imports.

    The imports stand under ``if TYPE_CHECKING``, where type checkers and readers look for them.

    Args:
        package: its name.
    """
    source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    names = [name for name, home in homes.items() if home not in ("typing", __name__)]

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, names
