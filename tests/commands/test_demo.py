"""The demo, on a set so small that it takes seconds."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from facerec.commands import demo as module
from facerec.commands.demo import demo
from facerec.embedding import load_model
from facerec.errors import RecipeError
from facerec.records.synthetic import PACKS, SyntheticSet

RECIPE = """
from pathlib import Path

from facerec.backbones import Backbone
from facerec.heads import SEC, ArcFace
from facerec.records import Data
from facerec.training import SGD, Recipe

recipe = Recipe(
    data=Data(path=Path("elsewhere")),
    backbone=Backbone(name="iresnet18", embedding_size=16, width=0.125),
    margin=ArcFace(scale=16.0, margin=0.2),
    regularizer=SEC(weight=0.5),
    optimizer=SGD(lr=0.05),
    batch_size=16,
    epochs=2,
    precision="fp32",
    workers=0,
)
"""


class Page(HTMLParser):
    """What a reader sees and what a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.loads: list[str] = []
        self.images: list[bytes] = []
        self.scripts = 0
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self._cell = tag in ("td", "th", "code")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data"):
                kind, _, content = (value or "").partition(",")
                if tag == "img" and kind == "data:image/png;base64":
                    self.images.append(base64.b64decode(content, validate=True))
                else:
                    self.loads.append(value or "")

    def handle_data(self, data: str) -> None:
        if self._cell and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    faces = SyntheticSet(seed=3, identities=8, images_per_identity=6, pairs_per_fold=4)
    monkeypatch.setattr(module, "FACES", faces)
    (tmp_path / "tiny.py").write_text(RECIPE)
    return tmp_path


def test_the_demo_goes_from_nothing_to_a_page(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = workplace / "out"
    # What an earlier demo left there is replaced, and nothing else.
    for old in ("data/old.bin", "runs/old/model.safetensors", "mine.txt"):
        (out / old).parent.mkdir(parents=True, exist_ok=True)
        (out / old).write_text("old")
    demo(out, workplace / "tiny.py", processes=1)
    printed = capsys.readouterr().out
    assert not (out / "data" / "old.bin").exists() and not (out / "runs" / "old").exists()
    assert (out / "mine.txt").read_text() == "old"

    # Two runs that differ in the penalty alone.
    recipes = {
        p.name: json.loads((p / "recipe.json").read_text()) for p in (out / "runs").iterdir()
    }
    assert recipes.keys() == {"arcface", "arcface_sec"}
    penalties = {name: recipe.pop("regularizer") for name, recipe in recipes.items()}
    assert penalties["arcface"] is None and penalties["arcface_sec"]["type"] == "SEC"
    assert recipes["arcface"] == recipes["arcface_sec"]
    assert recipes["arcface"]["data"]["path"] == str(out / "data")
    for name in recipes:
        model = load_model(out / "runs" / name)
        assert model.embed(np.zeros((1, 112, 112, 3), np.uint8)).shape == (1, 16)

    # One page with everything in it.
    text = (out / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    audits = [f"audit/{name}/report.html" for name in ("arcface", "arcface_sec")]
    bundle = "runs/arcface_sec/export"
    assert page.loads == [f"{bundle}/model_card.md", *audits] and page.scripts == 0
    assert re.search(r"https?:|//cdn|@import|url\(", text) is None
    assert len(page.images) == 5
    for png in page.images:
        picture = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
        assert min(picture.shape[:2]) > 100 and picture.std() > 5
    assert page.rows[0] == list(module.COLUMNS)
    table = page.rows[1:7]
    arms = ("ArcFace", "ArcFace + SEC")
    assert [row[:2] for row in table] == [[arm, pack] for arm in arms for pack in PACKS]
    for row in table:
        assert re.fullmatch(r"\d+\.\d\d % ± \d+\.\d\d", row[2])
        # 20 different pairs resolve one error in ten, not one in a hundred.
        assert "/20" in row[3] and "[" in row[3]
        assert "not resolvable" in row[4]
        assert float(row[5]) > 0 and float(row[6]) > 0
    settings = {row[0]: row[1] for row in page.rows[7:]}
    assert settings["penalty of ArcFace"] == "none"
    assert settings["penalty of ArcFace + SEC"].startswith("SEC(weight=0.5")
    assert settings["batch_size"] == "16" and "width=0.125" in settings["backbone"]
    assert "8 people × 6 images" in " ".join(text.split())

    # What is exported computes what the run does.
    image = np.random.default_rng(0).integers(0, 256, (1, 112, 112, 3), np.uint8)
    exported, trained = (load_model(out / path) for path in (bundle, "runs/arcface_sec"))
    np.testing.assert_allclose(exported.embed(image), trained.embed(image), rtol=1e-4, atol=1e-4)

    # Both runs are audited, the one with the penalty against the one without.
    with_sec = [(out / page).with_name("audit.json") for page in audits]
    plain, treated = (json.loads(path.read_text()) for path in with_sec)
    assert plain["comparison"] is None and treated["comparison"]["rows"]
    assert [row["name"] for row in plain["groups"] if row["grouping"] == "group"] == ["A", "B"]
    assert treated["inputs"]["baseline"]["sha256"] == plain["inputs"]["model"]["sha256"]

    # The terminal says the same.
    for row in table:
        assert row[2] in printed and row[5] in printed
    assert f"report: {out / 'report.html'}" in printed


def test_a_missing_recipe_is_a_sentence_before_anything_is_drawn(workplace: Path) -> None:
    with pytest.raises(RecipeError, match=r"gone\.py: the demo's recipe is not here.*--recipe"):
        demo(workplace / "out", workplace / "gone.py")
    assert not (workplace / "out").exists()
