"""`facerec compare` from the command line: results, resumption, one sentence for every mistake."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.toy_files import read_table
from pytest import CaptureFixture, TempPathFactory

from tests.commands.conftest import Refused, Told

pytest.importorskip("optuna")
pytest.importorskip("pytorch_metric_learning")
from helpers.tiny_comparison import comparison, write_images

from facerec.base.recipe import load_recipe
from facerec.commands.compare import main, smaller
from facerec.comparison import Comparison
from facerec.comparison.significance import sign_flip_p
from facerec.comparison.summary import too_few_seeds

REPOSITORY = Path(__file__).resolve().parents[2]

RECIPE = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from helpers.tiny_comparison import comparison
recipe = comparison(Path({images!r}), trials=2)
"""


PAGE = (REPOSITORY / "docs" / "comparison.md").read_text(encoding="utf-8")
(SPREAD,) = re.findall(r"```python\n(import torch.*?)```", PAGE, re.DOTALL)
LOSSES = f"""{SPREAD}
def undefined(embeddings, labels):
    return embeddings.sum() * float("nan")

def per_sample(embeddings, labels):
    return embeddings.sum(dim=1)

class Needs:
    def __init__(self, something):
        pass

number = 3
"""


@pytest.fixture
def losses(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(LOSSES)
    return path


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    images = write_images(folder / "images")
    tests = str(REPOSITORY / "tests")
    path = folder / "tiny.py"
    path.write_text(RECIPE.format(tests=tests, images=str(images)))
    return path


@pytest.mark.integration
def test_a_comparison_from_the_command_line(
    recipe: Path, tmp_path: Path, told: Told, refused: Refused
) -> None:
    out = tmp_path / "out"
    command = [str(recipe), "--out", str(out), "--metrics", "nmi", "f1"]
    printed = told(main, *command)
    assert "Does SEC help?" in printed and "CosFace+SEC" in printed
    assert "\nRetrieval on the test classes" in printed  # on a line of its own
    assert str(out / "report.html") in printed.replace("\n", "")
    results = json.loads((out / "results.json").read_text())
    assert results["schema"] == "facerec.comparison.results/6"
    assert {"CosFace", "CosFace+SEC"} <= {row["arm"] for row in read_table(out / "table.csv")}
    page = (out / "report.html").read_bytes()
    main(command)  # nothing is left to do
    assert (out / "report.html").read_bytes() == page
    assert {"nmi", "f1"} <= {row["figure"] for row in results["figures"]}
    # What was scored without them has none.
    assert "metrics" in refused(main, recipe, "--out", out)
    next(out.glob("finals/CosFace/*seed-0.npz")).write_bytes(b"")
    assert "cannot be read" in refused(main, *command)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.py"], "nowhere.py: no such recipe file"),
        ([], "name a recipe, such as compare/sec_on_margins, or give --losses"),
        (["RECIPE", "--losses", "no.py:Spread"], "no.py:Spread: cannot be made (No such file"),
        (["RECIPE", "--losses", "Tripplet"], "found 'Tripplet'"),
        (["RECIPE", "--trials", "0"], "--trials must be at least 1 and at most"),
        (["RECIPE", "--storage", "sqlite:////nowhere/x.db"], "storage of trials: cannot be used"),
    ],
)
def test_mistakes_are_one_sentence(
    recipe: Path, tmp_path: Path, arguments: list[str], words: str, refused: Refused
) -> None:
    filled = [str(recipe) if a == "RECIPE" else a for a in arguments]
    assert words in refused(main, *filled, "--out", tmp_path / "out")


@pytest.mark.integration
def test_a_loss_of_a_file_is_compared_and_stays_the_same(
    recipe: Path, losses: Path, tmp_path: Path, capsys: CaptureFixture, refused: Refused
) -> None:
    own = f"{losses}:Spread"
    command = [str(recipe), "--losses", "Triplet", own, "--out", str(tmp_path / "out"), "--smoke"]
    main([*command, "--processes", "2"])
    # The two seeds of the recipe are too few, whatever the shorter run has.
    assert "without --smoke: 2 seeds cannot decide 1 pair" in capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    settings = {arm["arm"]: list(arm["setting"]) for arm in results["arms"]}
    assert settings == {arm: ["loss.margin"] for arm in ("Triplet", "Spread")}
    written = hashlib.sha256(losses.read_bytes()).hexdigest()
    assert results["manifest"]["own_losses_sha256"] == {own: written}
    main(command)
    losses.write_text(LOSSES + "# changed")
    assert f"another own_losses_sha256.{own}" in refused(main, *command)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "mine.py:nothing: cannot be made (no 'nothing')"),
        ("undefined", "mine.py:undefined of random embeddings: cannot be computed (it is nan)"),
        ("per_sample", "it must return a finite scalar"),
        ("Needs", "cannot be made (Needs.__init__() missing"),
        ("number", "mine.py:number of random embeddings: cannot be computed ('int' object"),
    ],
)
def test_what_is_no_loss(
    recipe: Path, losses: Path, name: str, words: str, refused: Refused
) -> None:
    said = refused(main, recipe, "--losses", f"{losses}:{name}", "--out", losses.parent / "out")
    assert words in said
    assert not (losses.parent / "out" / "manifest.json").exists()


@pytest.mark.parametrize("pairs", [1, 26])
def test_seeds_too_few_for_a_claim_are_told_before_training(pairs: int) -> None:
    plan = comparison(Path("x"))
    base, arm = plan.arms
    arms = (base, *(replace(arm, name=f"{arm.name}{i}") for i in range(pairs)))
    decided = {
        seeds: not too_few_seeds(replace(plan, arms=arms, repetitions=seeds))
        for seeds in range(1, 14)
    }
    # All seeds of a pair alike give the least p that there is; of m pairs Holm takes it m times.
    assert decided == {seeds: sign_flip_p([1.0] * seeds) * pairs <= 0.05 for seeds in decided}
    fewest = min(seeds for seeds, enough in decided.items() if enough)
    said = too_few_seeds(replace(plan, arms=arms, repetitions=fewest - 1))
    assert f"--repetitions {fewest}" in said and f"{pairs} pair" in said


FOLDERS = [REPOSITORY / "recipes" / name for name in ("compare", "papers", "studies")]
PLANS = [path for folder in FOLDERS for path in sorted(folder.glob("*.py"))]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_recipe_is_fair(path: Path) -> None:
    plan = load_recipe(path, Comparison)
    plan.check()
    smaller(plan).check()
    assert plan.name == path.stem and plan.question.endswith("?")
    assert path.parent.name != "papers" or not too_few_seeds(plan)
    for arm in plan.arms:
        if arm.against is not None:
            base = plan.arm(arm.against)
            if arm.loss.kind != base.loss.kind:
                continue
            # A search of the base is part of that of the arm, but for the penalty's settings.
            own = {r for r in arm.ranges if not r.field.startswith("regularizer.")}
            assert own == set(base.ranges)
