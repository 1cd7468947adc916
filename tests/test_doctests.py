"""The examples in docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

import facerec

PACKAGE = Path(facerec.__file__).parent
MODULES = [
    ".".join(["facerec", *path.relative_to(PACKAGE).with_suffix("").parts])
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_what_they_say(module: str) -> None:
    outcome = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert outcome.attempted and not outcome.failed
