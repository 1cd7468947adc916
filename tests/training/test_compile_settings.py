"""Which setting of torch.compile a run takes, and what is known of a card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from facerec.errors import RecipeError
from facerec.files import parse_json
from facerec.training import Recipe
from facerec.training.compile_settings import (
    SETTINGS,
    compile_setting,
    remember_fastest,
    settings_file,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "facerec/compile.json"


@pytest.mark.parametrize(
    ("fastest", "changes", "taken"),
    [
        (None, {}, "default"),
        ("combo kernels", {}, "combo kernels"),
        ("combo kernels", {"deterministic": True}, "default"),
        ("combo kernels", {"compile": False}, "eager"),
        ("combo kernels", {"compile": "auto"}, "eager"),  # on a CPU
        ("eager", {}, "default"),  # the recipe says True
        ("reduce-overhead", {"accumulation": 2}, "default"),
        ("reduce-overhead", {"recompute": True}, "reduce-overhead"),
    ],
    ids=str,
)
def test_a_run_takes_the_fastest_setting_that_fits_it(
    fastest: str | None, changes: dict[str, Any], taken: str
) -> None:
    if fastest is not None:
        remember_fastest(CPU, fastest)
    found = compile_setting(replace(Recipe(), **{"compile": True, **changes}), CPU)
    assert found.facts()["arguments"] == SETTINGS[taken]
    assert ("measured" in found.source) == (found.name == fastest and taken != "eager")
    assert bool(found.warnings) == ("accumulation" in changes)


def test_what_is_known_of_other_cards_stays(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text('{"NVIDIA T4, torch 2.9.0": "eager"}')
    for name in ("max-autotune", "default"):
        assert remember_fastest(CPU, name) == settings_file() == cache
    stored = {"NVIDIA T4, torch 2.9.0": "eager", f"cpu, torch {torch.__version__}": "default"}
    assert parse_json(cache.read_bytes()) == stored


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"cpu": 3}', b'{"cpu": []}', b"\xff"])
def test_a_damaged_file_is_named(cache: Path, content: bytes) -> None:
    cache.parent.mkdir()
    cache.write_bytes(content)
    with pytest.raises(RecipeError, match=r"compile\.json.*delete it"):
        compile_setting(Recipe(compile=True), CPU)
