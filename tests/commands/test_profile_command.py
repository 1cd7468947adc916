"""What `facerec train --profile` prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.tiny_training import write_training_set

from facerec.commands.train import main

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


@pytest.mark.parametrize("frozen", [None, "3", "None"])
def test_the_command_prints_the_ranges_of_a_step_and_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    frozen: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("arc.py").write_text(RECIPE)
    write_training_set(Path("data"), people=45, images=2)
    flags = [] if frozen is None else ["--finetune.freeze-steps", frozen]
    main(["arc.py", "--device", "cpu", "--profile", "--profile-steps", "1", *flags])
    text = capsys.readouterr().out
    assert "aten::" in text and "CPU Mem" in text and "images/s" in text
    # Only a backbone that never learns has no convolutions in backward.
    assert ("ConvolutionBackward" in text or "convolution_backward" in text) == (frozen != "None")
    assert {path.name for path in tmp_path.iterdir()} == {"arc.py", "data"}


def test_a_recipe_of_too_few_steps_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("arc.py").write_text(RECIPE)
    write_training_set(Path("data"), people=45, images=2)
    with pytest.raises(SystemExit) as exit_:
        main(["arc.py", "--device", "cpu", "--profile", "--epochs", "1"])
    assert exit_.value.code == 2
    assert "the recipe has 7 steps, too few" in capsys.readouterr().err
