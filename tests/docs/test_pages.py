"""What the documentation promises: links, command lines and flags that are there."""

import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path

import cv2
import numpy as np
import pytest

from facerec.base.recipe import check
from facerec.commands.main import COMMANDS
from facerec.comparison import Comparison
from facerec.records import write_image_records

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "BROADER_IMPACT.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in TOP)])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMES = {path.stem: path.stem.replace("_", "-") for path in (ROOT / "tools").glob("*.py")}


def slug(heading: str) -> str:
    """What GitHub and MkDocs make of a heading."""
    text = re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", heading)).strip().lower()
    return re.sub(r"[-\s]+", "-", text)


def headings(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text())
    return {slug(line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        file = page.parent / target if target else page
        assert file.exists(), link
        if anchor:
            assert anchor in headings(file), link


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def command_lines() -> dict[str, set[tuple[str, str]]]:
    """Flags on the command lines of all pages, by command, each with the page that has it."""
    lines: dict[str, set[tuple[str, str]]] = {}
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text()):
            if language not in ("", "bash"):
                continue
            for line in re.sub(r"\\\n", " ", block).splitlines():
                if not re.search(r"(^|\s)(facerec|(python )?tools/\w+\.py)\s", line):
                    continue
                words = shlex.split(line.removeprefix("$ "), comments=True)
                for at, word in enumerate(words):
                    if word == "facerec" and at + 1 < len(words) and at < 2:
                        command = words[at + 1]
                    elif word.startswith("tools/"):
                        assert (ROOT / word).is_file(), (name(page), word)
                        command = NAMES[Path(word).stem]
                    else:
                        continue
                    flags = lines.setdefault(command, set())
                    flags |= {(flag, name(page)) for flag in words[at:] if flag.startswith("--")}
                    break
    return lines


LINES = command_lines()


@pytest.mark.parametrize("command", LINES)
def test_flags_are_those_of_the_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command in COMMANDS
    monkeypatch.setenv("COLUMNS", "200")
    module = importlib.import_module(f"facerec.commands.{command.replace('-', '_')}")
    recipes = {
        # Flags follow the recipe: of several sets, and of a teacher.
        "train": ["recipes/arcface_sec_r50.py", "recipes/distil_small.py"],
        "plan": ["recipes/arcface_r50.py"],
        "compare": ["recipes/compare/sec_on_margins.py"],
    }
    monkeypatch.chdir(ROOT)
    help_text = io.StringIO()
    for recipe in recipes.get(command, [None]):
        with contextlib.redirect_stdout(help_text), pytest.raises(SystemExit):
            module.main([*([] if recipe is None else [recipe]), "--help-all"])
    known = {*re.findall(r"--[\w.-]+", help_text.getvalue()), "--debug", "--help", "--help-all"}
    for flag, page in LINES[command]:
        assert flag in known, f"{page}: facerec {command} has no {flag}"


def test_recipes_on_command_lines_are_there() -> None:
    # The changelog tells of what is gone, too.
    pages = (page for page in PAGES if page.name != "CHANGELOG.md")
    text = "\n".join(page.read_text() for page in pages)
    for recipe in set(re.findall(r"(?:facerec/)?recipes/[\w/]+\.py", text)):
        assert (ROOT / recipe).is_file(), recipe


def test_extras_are_those_of_the_package() -> None:
    listed = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    extras = re.findall(r"^([\w-]+) = \[", listed.partition("\n[")[0], re.MULTILINE)
    page = (ROOT / "docs/troubleshooting.md").read_text()
    table = page.partition("| extra | for |\n|---|---|\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == sorted(extras)


def test_code_for_users_of_pytorch_metric_learning_runs() -> None:
    pytest.importorskip("pytorch_metric_learning")
    blocks = FENCE.findall((ROOT / "docs/pytorch-metric-learning.md").read_text())
    assert len(blocks) == 3
    for _, block in blocks:
        namespace: dict[str, object] = {}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(block, namespace)
        if "recipe" in namespace:
            check(Comparison, namespace["recipe"], "the page").check()


RECIPES = [
    pytest.param(block, id=name(page))
    for page in PAGES
    for language, block in FENCE.findall(page.read_text())
    if language == "python" and "\nrecipe = " in block
]


@pytest.mark.parametrize("block", RECIPES)
def test_recipes_of_the_pages_are_recipes(block: str) -> None:
    namespace: dict[str, object] = {}
    exec(block, namespace)
    assert type(namespace["recipe"]).__name__ in ("Recipe", "Comparison")


def test_the_code_on_records_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = cv2.imencode(".jpg", np.full((112, 112, 3), 80, np.uint8))[1].tobytes()
    write_image_records(tmp_path / "data/mine/train", [(0, "somebody/0.jpg", image)])
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/records.md").read_text()
    (block,) = [block for language, block in FENCE.findall(page) if language == "python"]
    namespace: dict[str, object] = {}
    exec(block, namespace)
    assert namespace["image"].shape == (112, 112, 3)
