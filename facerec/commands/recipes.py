"""What commands share that take a recipe: its place on the command line, and its images."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from facerec.base.errors import RecipeError
from facerec.base.recipe import load_recipe
from facerec.commands.cli import Console, exit_on_error, words_of
from facerec.commands.help_texts import HELP
from facerec.report.progress import progress_bar
from facerec.training.recipe import Recipe

if TYPE_CHECKING:
    from facerec.records.dataset import FaceDataset


def recipe_argument(command: str, argv: Sequence[str] | None) -> tuple[str, Recipe, list[str]]:
    """Take the recipe off a command line; a wrong one ends the process with status 2.

    Args:
        command: its name, for the error sentence.
        argv: arguments without the program's name; None takes ``sys.argv``.

    Returns:
        The file's name without its suffix, or of a run's ``recipe.json`` the run's; the recipe, and
        everything behind it.
    """
    arguments = words_of(argv)
    theirs = command == "train" and arguments[:1] == ["--from-arcface-torch"]
    if theirs:
        del arguments[0]
    path = Path(arguments.pop(0)) if arguments and not arguments[0].startswith("-") else None
    with exit_on_error():
        if path is None and HELP.isdisjoint(arguments):
            raise RecipeError(
                f"facerec {command} needs a recipe as its first argument, a name or a file, "
                "for example arcface_sec_r50"
            )
        name = "run" if path is None else path.stem
        if path is not None and theirs:
            from facerec.commands.arcface_torch import read_config

            # Of torchrun's processes one prints.
            name, loaded = read_config(path, Console(quiet=os.environ.get("RANK", "0") != "0"))
        else:
            loaded = load_recipe(path, Recipe) if path else Recipe()
        # --data stands for --data.path.
        arguments = [re.sub(r"^--data(?==|$)", "--data.path", word) for word in arguments]
        at = arguments.index("--data.also") if "--data.also" in arguments else len(arguments)
        if arguments[at + 1 : at + 2] == ["None"]:  # tyro has no word for an empty tuple
            del arguments[at : at + 2]
            loaded = replace(loaded, data=replace(loaded.data, also=()))
    if path is not None and path.name == "recipe.json":
        name = path.resolve().parent.name
    return name, loaded, arguments


def open_data(recipe: Recipe, console: Console) -> FaceDataset:
    """Open the training images, and say what classes without any cost.

    A bar shows where all labels must be read for that.
    """
    from facerec.backbones import create_backbone
    from facerec.records.training_set import open_dataset

    if ":" in recipe.backbone.name:  # of a library that may be missing, as timm
        create_backbone(recipe.backbone)
    with progress_bar(console, "images") as progress:
        dataset = open_dataset(recipe.data, recipe.seed, progress)
    known = dataset.num_subjects
    if known is not None and known < dataset.num_classes:
        console.print(
            f"note: {dataset.num_classes - known:,} of {dataset.num_classes:,} classes have no "
            "image and cost a centre each; --data.min-images 2 does without them and without "
            "people of one image",
            style="yellow",
        )
    return dataset
