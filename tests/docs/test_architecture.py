"""The examples of the architecture page, followed to the letter in a copy of the package."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import facerec

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
BLOCKS = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL))


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, (path, before)
    path.write_text(text.replace(before, after))


def join_union(path: Path, union: str, member: str, code: str) -> None:
    """Put ``code`` above a union of classes and its class into it."""
    start = path.read_text().index(f"\n{union} = (\n")
    text = path.read_text()
    end = text.index("\n)\n", start)
    path.write_text(f"{text[:start]}\n{code}\n{text[start:end]}\n    | {member}{text[end:]}")


def margin(package: Path) -> None:
    path = "heads/margins.py"
    join_union(package / path, "Margin", "LinearMargin", BLOCKS[f"facerec/{path}"])


def term(package: Path) -> None:
    (package.parent / "spread_term.py").write_text(BLOCKS["spread_term.py"])


def backbone(package: Path) -> None:
    path = "backbones/plainnet.py"
    (package / path).write_text(BLOCKS[f"facerec/{path}"])


def bench(package: Path) -> None:
    path = "verification/protocols/signs.py"
    (package / path).write_text(BLOCKS[f"facerec/{path}"])
    line = re.sub(r"\s+", " ", re.search(r'`("signs": .*?,)`', PAGE, re.DOTALL)[1])
    formats = package / "verification/protocols/__init__.py"
    edit(formats, '    "bin": _read_pack', f'    {line}\n    "bin": _read_pack')
    statement = "from facerec.verification.protocols.signs import read_signs\n"
    edit(formats, "\n__all__ = [", f"{statement}\n__all__ = [")


def loss(package: Path) -> None:
    path = "comparison/loss_table.py"
    with (package / path).open("a") as file:
        file.write(BLOCKS[f"facerec/{path}"])


def command(package: Path) -> None:
    path, line = "commands/norms.py", re.search(r'`("norms": .*?,)`', PAGE)[1]
    (package / path).write_text(BLOCKS[f"facerec/{path}"])
    edit(package / "commands/main.py", '    "demo": ', f'    {line}\n    "demo": ')


ADDITIONS = (margin, term, backbone, bench, command, loss)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package."""
    ignore = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(Path(facerec.__file__).parent, tmp_path / "facerec", ignore=ignore)


def run_beside(package: Path, *arguments: str | Path) -> str:
    """Run Python with a copy of the package, and return what it prints."""
    folder = package.parent
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    how = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.integration
@pytest.mark.parametrize("add", ADDITIONS, ids=lambda add: add.__name__)
def test_an_addition_works(add, package: Path) -> None:
    add(package)
    trial = package.parent / "trial.py"
    trial.write_text(BLOCKS[f"try a {add.__name__}"])
    run_beside(package, "-W", "error::SyntaxWarning", trial)


@pytest.mark.integration
def test_a_comparison_takes_the_added_loss(package: Path) -> None:
    loss(package)
    recipe = package.parent / "spread.py"
    recipe.write_text(BLOCKS["spread.py"])
    program = (
        "import sys\nfrom facerec.comparison import Comparison\n"
        "from facerec.base.recipe import load_recipe\n"
        "print([arm.name for arm in load_recipe(sys.argv[1], Comparison).arms])"
    )
    assert run_beside(package, "-c", program, recipe).strip() == "['Spread', 'Spread+SEC']"


def test_every_block_is_tried() -> None:
    tried = {title for title in BLOCKS if title.startswith("try ")}
    assert tried == {f"try a {add.__name__}" for add in ADDITIONS}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(facerec(?:\.\w+)+)`", PAGE))))
def test_what_the_page_names_is_there(name: str) -> None:
    words = name.split(".")
    for length in range(len(words), 0, -1):
        try:
            value = importlib.import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in words[length:]:
            value = getattr(value, attribute)
        return
