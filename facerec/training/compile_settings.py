"""How torch compiles the network: settings by name, and which was the fastest on a card."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from facerec.errors import RecipeError
from facerec.files import NOTE, parse_json, read_file, write_json
from facerec.training.recipe import Recipe

SETTINGS: dict[str, dict[str, Any] | None] = {
    "default": {},
    "eager": None,
    "reduce-overhead": {"mode": "reduce-overhead"},
    "combo kernels": {"options": {"combo_kernels": True}},
    "coordinate descent": {"options": {"coordinate_descent_tuning": True}},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}
"""Arguments of torch.compile by name, those that compile fast first; None does not compile."""


@dataclass(frozen=True)
class CompileSetting:
    """One of `SETTINGS`, and why it is used."""

    name: str
    source: str
    """Where it comes from: a measurement on this card, the recipe or the default."""
    warnings: tuple[str, ...] = ()

    @property
    def arguments(self) -> dict[str, Any] | None:
        """Those of torch.compile; None where nothing is compiled."""
        return SETTINGS[self.name]

    def facts(self) -> dict[str, Any]:
        """Return what a manifest tells."""
        return {"name": self.name, "arguments": self.arguments, "source": self.source}

    def __str__(self) -> str:
        """Return what people read after other facts; nothing where nothing is compiled anyway."""
        if self.source.startswith("measured"):
            words = "compiled" if self.arguments is not None else "not compiled"
            return f", {words} ({self.name}, {self.source})"
        return ", compiled" if self.arguments is not None else ""


def settings_file() -> Path:
    """Return where measurements are kept: ``facerec/compile.json`` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "facerec/compile.json"


def compile_setting(recipe: Recipe, device: torch.device) -> CompileSetting:
    """Return how a recipe's network is compiled: as was the fastest on this card, if that is known.

    A deterministic run is compiled by torch's defaults, whatever was measured since it began.

    Raises:
        RecipeError: the file of measurements is damaged.
    """
    automatic = recipe.compile == "auto"
    if recipe.compile is False or (automatic and device.type != "cuda"):
        return CompileSetting("eager", "default" if automatic else "recipe")
    fastest = None if recipe.deterministic else _measured().get(_card(device))
    if fastest is None or (fastest == "eager" and not automatic):
        return CompileSetting("default", "default")
    if fastest == "reduce-overhead" and recipe.accumulation > 1:
        # A replay of its graphs writes over the gradients of the micro-batch before.
        warning = (
            "reduce-overhead, the fastest setting of torch.compile on this card, does not add up "
            "the gradients of micro-batches; its default is used"
        )
        return CompileSetting("default", "default", (warning,))
    return CompileSetting(fastest, f"measured on this card with torch {torch.__version__}")


def remember_fastest(device: torch.device, name: str) -> Path:
    """Keep which setting was the fastest on this card, beside what is known of others.

    Returns:
        The file.
    """
    write_json(settings_file(), {**_measured(), _card(device): name})
    return settings_file()


def _card(device: torch.device) -> str:
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else device.type
    return f"{name}, torch {torch.__version__}"


def _measured() -> dict[str, str]:
    """Return the fastest setting by card."""
    path = settings_file()
    try:
        found = parse_json(read_file(path, NOTE)) if path.exists() else {}
        unknown = [name for name in found.values() if name not in SETTINGS]
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise RecipeError(f"{path}: is not as benchmarks write it ({error}); delete it") from error
    if unknown:
        raise RecipeError(f"{path}: there is no setting {unknown[0]!r} of torch.compile; delete it")
    return dict(found)
