"""What ``facerec plan`` prints, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.tiny_training import write_training_set

from facerec.commands.plan import main

RECIPE = """
from pathlib import Path

from facerec.backbones import Backbone
from facerec.records import Data
from facerec.training import Recipe

recipe = Recipe(
    data=Data(path=Path("data")),
    backbone=Backbone(name="iresnet18", embedding_size=32, width=0.125),
    batch_size=64,
)
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arc.py").write_text(RECIPE)
    return tmp_path


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    text = capsys.readouterr().out.replace("│", " ")
    return [" ".join(line.split()) for line in text.splitlines()]


def test_tables_and_what_fits(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["arc.py", "--ranks", "64", "--classes", "10000000", "--batch-size", "128"]
    main([*flags, "--device-memory", "80"])
    found = lines(capsys)
    assert "backbone iresnet18, bf16 on cuda" in found
    assert "batch 128 images on 64 ranks, 1 × 2 each" in found
    assert "classes 10,000,000, of which rank 0 holds 156,250 and visits 156,250 in a step" in found
    assert "head: class centres 0.020" in found  # 156,250 × 32 × 4 bytes
    assert "head 0.005" in found  # 8 × 128 × 156,250 × 32 FLOP
    assert sum(line.startswith("together ") for line in found) == 3
    text = " ".join(found)
    assert " GB fits in 80 GB" in text and "less memory" not in text
    assert {path.name for path in workplace.iterdir()} == {"arc.py"}
    main([*flags, "--device-memory", "0.05"])
    assert "--recompute" in " ".join(lines(capsys))


def test_classes_come_from_the_data(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_training_set(workplace / "data", people=7, images=1)
    main(["arc.py", "--device", "cpu", "--head.sample-rate", "0.5", "--batch-size", "2"])
    found = lines(capsys)
    assert "classes 7, of which rank 0 holds 7 and visits 3 in a step" in found
    assert sum(line.startswith("together ") for line in found) == 2  # no network


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "facerec plan needs a recipe as its first argument"),
        (["arc.py"], "data: "),
        (["arc.py", "--classes", "9", "--ranks", "5"], "batch_size 64 does not divide among 5"),
        (["arc.py", "--classes", "9", "--ranks", "64"], "a micro-batch of a rank has a single"),
    ],
)
def test_errors_are_sentences(
    workplace: Path, refused: Callable[..., str], arguments: list[str], sentence: str
) -> None:
    assert refused(main, *arguments).startswith(sentence)
