"""What `facerec train --profile` prints and advises."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_training import make_trainer, tiny_recipe, write_training_set
from rich.console import Console

from facerec.commands import profile as command
from facerec.commands.profile import hint, show
from facerec.commands.train import main
from facerec.training import profile as profiles
from facerec.training.profile import PHASES, REST, Profile

PARTS = [*PHASES.values(), REST]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_set(tmp_path_factory.mktemp("records"), people=45, images=2)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "product_size", lambda device: 64)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def printed(found: list[Profile], trainer: Any) -> str:
    text = io.StringIO()
    show(found, trainer, Console(file=text, width=100))
    return text.getvalue()


def make_profile(**changes: Any) -> Profile:
    """A step of 100 ms, half of it backward."""
    shares = dict(zip(PARTS, (0.0, 0.03, 0.001, 0.05, 0.01, 0.009), strict=True))
    shares.update({title: changes.pop(title) for title in PARTS if title in changes})
    fields: dict[str, Any] = {
        "steps": 10,
        "seconds": sum(shares.values()),
        "phases": shares,
        "flop": 3 * 10**9,
        "product": "fp32",
        "product_rates": {"fp32": 60e9},
        "memory": {"backbone: weights": 4_000_000, "head: class centres": 1_000_000},
        "peak": 105_000_000,
        "system": 0.05,
    }
    return Profile(**(fields | changes))


def test_what_is_printed(data: Path) -> None:
    text = printed([make_profile()], make_trainer(tiny_recipe(data)))
    lines = [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]
    for line in (
        "waiting for data 0.0 0.0",
        "forward 30.0 30.0",
        "backward 50.0 50.0",
        "rest 9.0 9.0",
        "step 100.0 100.0",
        "120.0 images/s over one process",
        "backbone: weights 4.000",
        "activations, images, work space, Python, libraries 100.000",
        "at most 105.000",
    ):
        assert line in lines
    flat = " ".join(lines)
    assert "30.0 GFLOP/s on each rank, 50 % of the 60.0 GFLOP/s of a matrix product" in flat
    assert "(64 × 64 × 64 in fp32, one thread)" in flat
    assert "hint" not in flat
    unknown = printed([make_profile(peak=None)], make_trainer(tiny_recipe(data)))
    assert "not known here" in unknown and "activations" not in unknown


def test_ranks_are_joined(data: Path) -> None:
    found = [make_profile(), make_profile(forward=0.05, peak=205_000_000)]
    text = " ".join(printed(found, make_trainer(tiny_recipe(data))).replace("│", " ").split())
    assert "images/s over 2 ranks" in text and "of the fullest rank" in text
    assert "least and most of a rank" in text
    assert "forward 40.0 36.4 30.0 – 50.0" in text and "at most 205.000" in text


def test_hints_follow_the_figures(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tiny_recipe(data))
    monkeypatch.setattr(command, "available_cores", lambda: 4)
    assert hint([make_profile()], trainer) is None
    waiting = make_profile(**{"waiting for data": 0.1})
    assert hint([waiting], trainer) == (
        "waiting for data takes 50 %: raise --workers (now 0, cores for 3 more)"
    )
    # Two ranks of three processes fill four cores.
    trainer.workers = 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    found = hint([waiting, waiting], trainer)
    assert found is not None and "2 workers a rank leave no core free" in found
    # The mean over the ranks counts.
    assert hint([make_profile(), make_profile(**{"waiting for data": 0.01})], trainer) is None

    rates = {"fp32": 60e9, "bf16": 180e9}
    found = hint([make_profile(product_rates=rates)], trainer)
    assert found is not None and "3.0 times as fast as in fp32 here: try --precision bf16" in found
    slower = {"fp32": 60e9, "bf16": 6e9}
    assert hint([make_profile(product_rates=slower)], trainer) is None

    # Of the head's work a quarter is its forward pass; 13 of 45 classes are 30 %.
    found = hint([make_profile(head=0.03)], trainer)
    assert found is not None and "the head takes about 93 %" in found
    assert "--head.sample-rate 0.3 would visit 13 of its 45 classes" in found
    # All classes of a batch of 45 take part at any rate.
    trainer.recipe = replace(trainer.recipe, batch_size=45)
    found = hint([make_profile(head=0.03, product="bf16", product_rates=rates)], trainer)
    assert found is not None and "3.0 times as fast as in fp32 here: try --head.precision" in found
    # A rank that waits for others in the head is not slow.
    assert hint([make_profile(head=0.03), make_profile(head=0.0001)], trainer) is None

    # The mean of 5 and 25 % is noteworthy, unless the allocator keeps its memory already.
    monkeypatch.setattr(command, "_keeps_memory", lambda: False)
    assert hint([make_profile()], trainer) is None
    found = hint([make_profile(), make_profile(system=0.25)], trainer)
    assert found is not None and found.startswith("the system takes 15 % of the CPU time")
    monkeypatch.setattr(command, "_keeps_memory", lambda: True)
    assert hint([make_profile(system=0.25)], trainer) is None


RECIPE = """
from pathlib import Path

from facerec.backbones import Backbone
from facerec.records import Data
from facerec.training import Recipe

recipe = Recipe(
    data=Data(path=Path("data")),
    backbone=Backbone(name="iresnet18", embedding_size=16, width=0.125),
    batch_size=12,
    precision="fp32",
    workers=0,
)
"""


def test_the_command_writes_nothing(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("arc.py").write_text(RECIPE)
    Path("data").symlink_to(data)
    main(["arc.py", "--device", "cpu", "--profile", "--profile-steps", "1"])
    text = capsys.readouterr().out
    for words in ("time of a step, mean of 1", *PARTS, "images/s over one process", "at most"):
        assert words in text
    assert {path.name for path in tmp_path.iterdir()} == {"arc.py", "data"}
    with pytest.raises(SystemExit) as exit_:
        main(["arc.py", "--device", "cpu", "--profile", "--epochs", "1"])
    assert exit_.value.code == 2
    assert "the recipe has 7 steps, too few to measure 10" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"arc.py", "data"}


@pytest.mark.parametrize(("steps", "resting"), [("3", False), ("None", True)])
def test_what_rests_for_good_rests_in_the_profile_too(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str, resting: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("arc.py").write_text(RECIPE)
    Path("data").symlink_to(data)
    seen: list[Any] = []
    monkeypatch.setattr(profiles, "profile_steps", lambda trainer, steps: seen.append(trainer))
    monkeypatch.setattr(command, "show", lambda profiles, trainer, console: None)
    main(["arc.py", "--device", "cpu", "--profile", "--finetune.freeze-steps", steps])
    (trainer,) = seen
    trainer.freezing.begin(0)
    assert trainer.freezing.whole == resting
