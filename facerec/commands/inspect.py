"""``facerec inspect``: what a model file holds, and what it wants of its pixels."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import tyro

from facerec.commands.cli import Console, run_command
from facerec.files import write_json
from facerec.report.table import fact_lines


def inspect(model: tyro.conf.Positional[Path], json: Path | None = None) -> None:
    """Show what a model file holds, what it wants of its pixels, and on what evidence.

    The model is loaded as every command loads it: one with weights outside its folder, operators of
    its own, control flow or sizes that do not fit is refused.

    Args:
        model: an .onnx file, weights, a bundle, or a run folder.
        json: write everything to this file too.
    """
    from facerec.embedding.inspection import facts
    from facerec.embedding.model import load_model

    console = Console(highlight=False)
    loaded = load_model(model)
    found = facts(loaded)
    groups = itertools.groupby(found, key=lambda fact: fact[0])
    lines = [(name, "\n".join(text for _, text in group)) for name, group in groups]
    console.print(fact_lines(lines))
    if json is not None:
        write_json(json, {**loaded.describe(), "facts": dict(lines), "recipe": loaded.recipe})
        console.print(f"inspection: {json}", soft_wrap=True)


main = partial(run_command, inspect)
