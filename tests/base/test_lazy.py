"""Packages offer all their names, and commands know their flags before anything heavy is there."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from facerec.commands.main import COMMANDS

LAZY = [
    *("backbones", "comparison", "embedding", "export", "galleries", "heads"),
    *("records", "training", "verification"),
]


@pytest.mark.parametrize("name", ["", *LAZY, "verification.scoring"])
def test_every_name_of_a_package_is_there(name: str) -> None:
    package = importlib.import_module(f"facerec.{name}".rstrip("."))
    for offered in package.__all__:
        found = getattr(package, offered)
        # As eager imports have it: a name is no module that happens to be called so.
        assert type(found).__name__ != "module"
        assert vars(package)[offered] is found
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing


def test_flags_are_known_before_anything_heavy_is_imported() -> None:
    # These take the fields of a recipe for flags, which is Python that imports torch.
    names = [name.replace("-", "_") for name in COMMANDS if name not in ("train", "plan")]
    code = (
        "import facerec, importlib, sys\n"
        "assert not {'torch', 'numpy', 'cv2'} & sys.modules.keys()\n"
        f"for name in {names}:\n"
        "    importlib.import_module(f'facerec.commands.{name}')\n"
        "    heavy = {'torch', 'scipy', 'pandas', 'matplotlib'} & sys.modules.keys()\n"
        "    assert not heavy, (name, heavy)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
