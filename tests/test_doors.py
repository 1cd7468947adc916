"""The files that people type are doors: alike in form, each to what its name says."""

from __future__ import annotations

import ast
from pathlib import Path

from facerec.base.recipe import OWN
from facerec.commands.main import COMMANDS

ROOT = Path(__file__).parents[1]
TOOL = 'from facerec.commands.main import run\nif __name__ == "__main__":\n    run("{}")'
RECIPE = "from facerec.recipes.{} import recipe as recipe"


def test_doors_are_alike_and_lead_to_what_their_names_say() -> None:
    tools = {Path(f"tools/{name.replace('-', '_')}.py"): TOOL.format(name) for name in COMMANDS}
    del tools[Path("tools/demo.py")]
    inside = [path.relative_to(OWN) for path in OWN.rglob("[!_]*.py")]
    modules = {path: ".".join(path.with_suffix("").parts) for path in inside}
    doors = tools | {"recipes" / path: RECIPE.format(name) for path, name in modules.items()}
    found = [path for folder in ("tools", "recipes") for path in (ROOT / folder).rglob("*.py")]
    assert {path.relative_to(ROOT) for path in found} == doors.keys()
    for path, code in doors.items():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert (ast.get_docstring(tree) or "").startswith("Door to "), path
        assert ast.dump(ast.Module(tree.body[1:], [])) == ast.dump(ast.parse(code)), path
