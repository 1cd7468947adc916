"""Figures that users quote are what they were; see the package's docstring."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from pytest import FixtureRequest, TempPathFactory

from golden import cases
from golden.adapters import Figures


def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cases.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


MARKS = {"run": [pytest.mark.integration]} | {name: [pytest.mark.slow] for name in cases.HEAVY}
CASES = [
    pytest.param(name, kind, marks=MARKS.get(name, ()))
    for name in (*cases.EXACT, *cases.NETWORK)
    for kind in ("points", "intervals")
    if stored(name)[kind]
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@functools.cache
def figures(name: str, folder: Path, data: Path | None) -> Figures:
    return cases.compute(name, folder / name, data)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_figures_are_those_that_were(
    request: FixtureRequest, folder: Path, name: str, kind: str
) -> None:
    data = request.getfixturevalue("shared_data") if name in cases.WITH_DATA else None
    found = {
        key: value
        for key, value in figures(name, folder, data).items()
        if cases.is_interval(key) == (kind == "intervals")
    }
    before = stored(name)
    loose = name in cases.NETWORK and before["written_on"] != cases.written_on()
    assert cases.differences(found, before[kind], loose) == []
