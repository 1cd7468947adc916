"""Every file imports from floors below its own, and no two files need each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import facerec

HOUSE = Path(facerec.__file__).parent
MODULES = {
    ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(HOUSE.glob("*/**/*.py"))
}
"""Of all rooms; the package itself has their names, but imports nothing before they are used."""

NEIGHBOURS = {
    ("training", "verification"),
    ("export", "verification"),
    ("service", "galleries"),
    ("cosines", "statistics"),
    ("recipes", "comparison"),
}
"""Rooms that may import another of their floor."""


@cache
def imports(module: str) -> frozenset[str]:
    """Return the modules of facerec that one imports, in functions too, but not for types alone."""

    def walk(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            children: list[ast.AST] = [*node.orelse]
        else:
            children = [*ast.iter_child_nodes(node)]
        for child in children:
            yield from walk(child)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in submodules)

    found = frozenset(walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))))
    return (found & MODULES.keys()) - {module}


def test_no_module_imports_itself_through_others() -> None:
    graph = {module: imports(module) for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" needs ".join(reversed(error.args[1]))) from None


def test_modules_import_from_floors_below_alone() -> None:
    page = (HOUSE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    floors = {
        room: int(floor)
        for floor, rooms in re.findall(r"^\| (\d) \| (.*?) \|", page, re.MULTILINE)
        for room in re.findall(r"`(?:facerec/)?(\w+)/`", rooms)
    }
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        for name in imports(module)
        for above, below in [(module.split(".")[1], name.split(".")[1])]
        if above != below and floors[below] >= floors[above] and (above, below) not in NEIGHBOURS
    ]
    assert not wrong
