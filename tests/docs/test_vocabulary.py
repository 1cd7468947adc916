"""Every place in ``audit.json`` that the vocabulary of docs/audit.md names is one of its schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import facerec.fairness

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads(
    (Path(facerec.fairness.__file__).parent / "schema/audit.schema.json").read_text("utf-8")
)


def rows() -> list[tuple[str, list[str]]]:
    text = (ROOT / "docs/audit.md").read_text(encoding="utf-8")
    table = text.partition("## Vocabulary\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return [(cell[0].strip(), re.findall(r"`([^`]+)`", cell[2])) for cell in cells[1:]]


def options(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Resolve references and alternatives."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return options(SCHEMA["$defs"][name])
    found = [schema]
    for key in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(key, []):
            found += options(inner)
    return found


def has(path: str) -> bool:
    places = options(SCHEMA)
    for step in path.split("."):
        name, lists = step.removesuffix("[]"), step.endswith("[]")
        inner = [
            place["properties"][name] for place in places if name in place.get("properties", {})
        ]
        places = [option for schema in inner for option in options(schema)]
        if lists:
            items = [place["items"] for place in places if isinstance(place.get("items"), dict)]
            items += [one for place in places for one in place.get("prefixItems", [])]
            places = [option for schema in items for option in options(schema)]
        if not places:
            return False
    return True


@pytest.mark.parametrize(("term", "paths"), rows(), ids=lambda value: str(value)[:30])
def test_paths_of_a_term_are_in_the_schema(term: str, paths: list[str]) -> None:
    assert paths or term == "response and processing time"
    assert [path for path in paths if not has(path)] == []


def test_the_table_is_read_and_strange_paths_are_told() -> None:
    assert len(rows()) >= 15
    assert not has("rates[].fmr.strange") and not has("strange[].value") and not has("target.value")
