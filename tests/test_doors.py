"""The files that people type are doors: alike in form, each to what its name says."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

from facerec.base.recipe import OWN
from facerec.commands.main import COMMANDS

ROOT = Path(__file__).parents[1]
TOOL = """
from facerec.commands.main import run
if __name__ == "__main__":
    run("{}")
"""


def form(path: Path) -> str:
    """Return a file's syntax below its first line, which says that it is a door."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert (ast.get_docstring(tree) or "").startswith("Door to "), path
    return ast.dump(ast.Module(tree.body[1:], []))


def test_every_command_has_a_door_in_tools() -> None:
    doors = {path.stem.replace("_", "-"): path for path in (ROOT / "tools").glob("*.py")}
    assert doors.keys() == COMMANDS.keys() - {"demo"}
    for name, path in doors.items():
        assert form(path) == ast.dump(ast.parse(TOOL.format(name))), path
        assert callable(importlib.import_module(f"facerec.commands.{path.stem}").main)


def test_every_recipe_has_a_door_in_recipes() -> None:
    inside, outside = (
        {path.relative_to(folder) for path in folder.rglob("[!_]*.py")}
        for folder in (OWN, ROOT / "recipes")
    )
    assert inside == outside
    for path in inside:
        module = ".".join(["facerec", "recipes", *path.with_suffix("").parts])
        same = ast.parse(f"from {module} import recipe as recipe")
        assert form(ROOT / "recipes" / path) == ast.dump(same), path
