"""Recipe files: loading, checking, JSON and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from facerec.base.errors import RecipeError
from facerec.base.recipe import OWN, from_dict, load_recipe, to_dict
from facerec.training.recipe import Recipe

DOORS = Path(__file__).parents[2] / "recipes"
RECIPES = sorted([*OWN.glob("[!_]*.py"), *OWN.glob("insightface/[!_]*.py")])


@dataclass(frozen=True)
class Small:
    rate: float = 0.1
    steps: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Other:
    name: str = "x"


@dataclass(frozen=True)
class Tree:
    part: Small | Other = field(default_factory=Small)
    path: Path | None = None
    flag: bool = False


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_is_the_same_by_name_by_door_by_file_and_from_a_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = path.relative_to(OWN)
    name = inside.with_suffix("").as_posix()
    recipe = load_recipe(path, Recipe)
    stored = tmp_path / "recipe.json"
    stored.write_text(json.dumps(to_dict(recipe)))
    for same in (name, DOORS / inside, stored):
        assert load_recipe(same, Recipe) == recipe
    # A user's own file goes before one of facerec's.
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.write_text("from facerec.training import Recipe\nrecipe = Recipe(epochs=77)\n")
    assert load_recipe(name, Recipe).epochs == 77


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("[" * 10**5, "nested too deeply"),
        ("\x00", "cannot be read"),
        ("3", "must be Recipe, found 3"),
        ('{"epoch": 3}', "no field 'epoch', did you mean 'epochs'"),
        ('{"batch_size": NaN}', "not finite"),
    ],
)
def test_a_recipe_of_a_run_that_is_none_is_a_sentence(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match=words) as caught:
        load_recipe(path, Recipe)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ({"part": {"type": "Smal"}}, ["recipe.part", "'Smal'", "did you mean 'Small'"]),
        ({"prt": None}, ["no field 'prt'", "did you mean 'part'"]),
        ({"part": {"type": "Small", "rate": "fast"}}, ["recipe.part.rate", "float", "'fast'"]),
        ({"part": {"type": "Small", "steps": [1, 2.5]}}, ["recipe.part.steps[1]", "int", "2.5"]),
        ({"flag": 1}, ["recipe.flag", "bool", "found 1"]),
        ({"part": {"type": "Small", "rate": True}}, ["recipe.part.rate", "float", "True"]),
    ],
)
def test_wrong_fields_are_named(value: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        from_dict(Tree, value, "x.json")
    assert str(caught.value).startswith("x.json: ")
    for part in parts:
        assert part in str(caught.value)


IMPORT = "from facerec.training import SGD, Recipe\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("x = 1", ["must set `recipe = Recipe(...)`", "found nothing of that name"]),
        ("recipe = 3", ["found int"]),
        ("recipe = (", ["line 1"]),
        (f"{IMPORT}\nrecipe = Recipe(epoch=3)", ["line 3", "Recipe", "'epoch'"]),
        (f"{IMPORT}recipe = Recipe(optimizer=SGD(lr='x'))", ["recipe.optimizer.lr", "'x'"]),
        (f"{IMPORT}recipe = Recipe(batch_size=9, accumulation=2)", ["size 9", "accumulation 2"]),
        ("import nothing_of_this_name", ["line 1", "nothing_of_this_name"]),
    ],
)
def test_bad_recipe_files_give_one_sentence(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, Recipe)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_recipes_of_two_folders_may_import_files_of_the_same_name(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "_base.py").write_text(f"epochs = {number}")
        text = f"from _base import epochs\n{IMPORT}recipe = Recipe(epochs=epochs)"
        (folder / "r.py").write_text(text)
        assert load_recipe(folder / "r.py", Recipe).epochs == number
