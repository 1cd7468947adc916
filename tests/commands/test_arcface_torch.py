"""Configurations of arcface_torch: read without being run, equal to recipes written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from facerec.backbones import Backbone, is_backbone
from facerec.backbones.registry import ALIASES
from facerec.base.recipe import load_recipe
from facerec.commands.arcface_torch import _DEFAULTS
from facerec.commands.recipes import recipe_argument
from facerec.commands.train import main
from facerec.heads import CombinedMargin
from facerec.training import Recipe

FACES = """
config.margin_list = (1.0, 0.5, 0.0)
config.network = "r50"
config.fp16 = True
config.weight_decay = 1e-4 * 5
config.lr = 0.1
config.rec = "data/faces"
config.num_epoch = 20
config.warmup_epoch = 0
config.val_targets = ["lfw", 'cfp_fp', "agedb_30"]
"""
VIT = """
config.margin_list = (1.0, 0.0, 0.4)
config.network = "vit_b_dp005_mask_005"
config.fp16 = True
config.optimizer = "adamw"
decay = 0.1
config.lr = 0.001
config.weight_decay = decay
config.sample_rate = 0.3
config.batch_size = 384
config.rec = "data/faces"
config.num_epoch = 4 * 10
config.warmup_epoch = config.num_epoch // 10
config.val_targets = []
"""


def write(path: Path, lines: str) -> Path:
    path.write_text(f"from easydict import EasyDict\n\nconfig = EasyDict()\n{lines}")
    return path


@pytest.mark.parametrize(
    ("lines", "ranks", "own"),
    [(FACES, 8, "insightface/ms1mv3_r50"), (VIT, 64, "insightface/wf42m_vit_b")],
)
def test_a_configuration_is_the_recipe_that_was_written_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, ranks: int, own: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    path = write(tmp_path / "faces.py", lines)
    name, recipe, rest = recipe_argument("train", ["--from-arcface-torch", str(path), "--epochs=3"])
    wanted = load_recipe(own, Recipe)
    assert (name, rest) == ("faces", ["--epochs=3"]) and str(recipe.data.path) == "data/faces"
    there = {"data": recipe.data, "validation": recipe.validation, "seed": recipe.seed}
    assert recipe == replace(wanted, **there) and recipe.seed == 2048
    assert recipe.validation.benches == wanted.validation.benches


def test_summed_gradients_take_the_same_steps(tmp_path: Path) -> None:
    path = write(tmp_path / "c.py", FACES + "config.gradient_acc = 4\nconfig.output = 'w/o'\n")
    name, ours, _ = recipe_argument("train", ["--from-arcface-torch", str(path)])
    assert (name, ours.accumulation, ours.batch_size, ours.clip_norm) == ("o", 4, 512, 1.25)
    gradients = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0))
    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
    theirs = torch.optim.SGD(weights[:1], lr=0.1, momentum=0.9, weight_decay=5e-4)
    averaged = ours.optimizer.create([{"params": weights[1:]}])
    for batches in gradients:
        weights[0].grad, weights[1].grad = batches.sum(0), batches.mean(0)
        theirs.step()
        averaged.step()
    torch.testing.assert_close(weights[0], weights[1])


def test_every_field_is_named_and_no_key_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "base.py", "config.wandb_key = 'secret'\nconfig.frequent = 7\n")
    path = write(tmp_path / "c.py", FACES + "config.mine = 3\nconfig.margin_list = (1, 0.3, 0.2)\n")
    _, recipe, _ = recipe_argument("train", ["--from-arcface-torch", str(path)])
    said = capsys.readouterr().out
    for name in ("wandb_key = …", "mine = 3", "weight_decay = 0.0005", *_DEFAULTS):
        assert name in said
    assert "secret" not in said and recipe.log_every == 7
    assert recipe.margin == CombinedMargin(64.0, 1.0, 0.3, 0.2)
    monkeypatch.setenv("RANK", "1")
    recipe_argument("train", ["--from-arcface-torch", str(path)])
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("config.lr = open('ran', 'w')", "config.lr"),
        ("config.update(lr=0.1)", "config.update"),
        ("config.rec = 'a' * 10**9", "config.rec"),
        ("config.network = 'r2060'", "r2060"),
        ("config.num_epoch = 'ten'", "epochs"),
        ("config.margin_list = (1.0, 0.5)", "margin_list"),
        ("config.lr = [", "never closed"),
        ("x = 3037000500 * 3037000500 * 2\n" + "x = x * x\n" * 25, "2⁶³"),
        ("config.lr = 1e300 * 1e300", "must be above 0 and at most"),
        ("config.num_image = " + "9" * 4000, "2⁶³"),
    ],
)
def test_a_line_that_cannot_be_translated_is_named_and_not_run(
    tmp_path: Path, refused: Callable[..., str], line: str, word: str
) -> None:
    sentence = refused(main, "--from-arcface-torch", write(tmp_path / "c.py", FACES + line))
    assert "c.py" in sentence and "line 14" in sentence and word in sentence
    assert not Path("ran").exists()


def test_their_names_of_networks_are_those_of_facerec() -> None:
    for alias, name in ALIASES.items():
        assert Backbone(alias) == Backbone(name) and is_backbone(name)
