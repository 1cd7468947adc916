"""What stands before a recipe's fields on a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from facerec.commands.recipes import recipe_argument


@pytest.mark.parametrize(
    "words", [["--data", "people"], ["--data=people"], ["--data.path", "people"]]
)
def test_data_is_the_path_of_the_data(words: list[str]) -> None:
    name, recipe, rest = recipe_argument("train", ["arcface_sec_r50", *words, "--epochs", "3"])
    assert name == "arcface_sec_r50" and recipe.backbone.name == "iresnet50"
    joined = " ".join(rest).replace("=", " ")
    assert joined == "--data.path people --epochs 3"


def test_a_run_is_trained_again_under_its_name(tmp_path: Path) -> None:
    from facerec.base.files import write_json
    from facerec.base.recipe import to_dict
    from facerec.training import Recipe

    write_json(tmp_path / "mine" / "recipe.json", to_dict(Recipe(epochs=7)))
    name, recipe, rest = recipe_argument("train", [str(tmp_path / "mine" / "recipe.json")])
    assert (name, recipe.epochs, rest) == ("mine", 7, [])
