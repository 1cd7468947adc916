"""A margin in a user's own file: set on the command line, trained, resumed as on the page."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from helpers.tiny_training import write_training_set

from facerec.commands.train import main as train
from facerec.embedding import load_model
from facerec.errors import RecipeError
from facerec.heads import OwnMargin
from facerec.recipe import from_dict, load_recipe, to_dict
from facerec.training import Recipe

PAGE = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
BLOCKS = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL))
SMALL = ["--batch-size", "12", "--epochs", "1", "--precision", "fp32", "--workers", "0"]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "linear.py").write_text(BLOCKS["linear.py"])
    write_training_set(tmp_path / "data" / "train")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def test_its_formula_and_its_way_through_json(workplace: Path) -> None:
    recipe = load_recipe(workplace / "linear.py", Recipe)
    margin = recipe.margin
    assert isinstance(margin, OwnMargin) and margin.scale == 16
    right_angle = margin.target_cosine(torch.tensor([0.0]))
    torch.testing.assert_close(right_angle, torch.tensor([-2 * 0.4 / math.pi]))
    assert to_dict(margin) == {"type": "LinearMargin", "scale": 16.0, "margin": 0.4}
    assert from_dict(Recipe, to_dict(recipe), "recipe") == recipe
    load_recipe(workplace / "linear.py", Recipe)  # a second class of that name
    again = from_dict(Recipe, to_dict(recipe), "recipe")
    assert to_dict(again) == to_dict(recipe)
    with pytest.raises(RecipeError, match=r"recipe\.margin: .*margin"):
        from_dict(Recipe, {"margin": {**to_dict(margin), "margin": 1e15}}, "recipe")


@pytest.mark.integration
def test_it_trains_and_is_resumed(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # In a file beside the recipe, and with annotations that are text.
    own, recipe = BLOCKS["linear.py"].split("recipe = ")
    (workplace / "own.py").write_text(f"from __future__ import annotations\n{own}")
    head = own.split("@dataclass")[0]
    (workplace / "mine.py").write_text(f"{head}from own import LinearMargin\nrecipe = {recipe}")
    flags = ["mine.py", "--device", "cpu", *SMALL, "--margin.margin", "0.3"]
    train([*flags, "--max-steps", "2"])
    stored = json.loads((workplace / "runs/mine/recipe.json").read_text())
    assert stored["margin"] == {"type": "LinearMargin", "scale": 16.0, "margin": 0.3}
    with pytest.raises(SystemExit):
        train([*flags[:-1], "0.2", "--resume"])
    assert "margin.margin" in capsys.readouterr().err
    train([*flags, "--resume"])
    train([*flags, "--name", "whole"])
    one, other = (load_model(f"runs/{name}").backbone.state_dict() for name in ("mine", "whole"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
