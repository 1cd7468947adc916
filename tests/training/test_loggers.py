"""Loggers: a user's own hears what metrics.jsonl has; the named ones get it in their own calls."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import numpy as np
import pytest
import torch
from helpers.tiny_training import tiny_recipe, write_training_set
from helpers.toy_packs import make_pack
from pytest import MonkeyPatch
from rich.console import Console
from safetensors.torch import load_file

from facerec.base.errors import FacerecError, TrainingError
from facerec.base.recipe import to_dict
from facerec.records import open_dataset
from facerec.training import Validation
from facerec.training.distributed import Processes
from facerec.training.learner import Learner
from facerec.training.loggers import create_logger
from facerec.training.trainer import Trainer
from facerec.training.validation import PackValidator

OWN = """
from unittest.mock import MagicMock
heard = MagicMock()
class Heard:
    def __new__(cls): return heard
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    (tmp_path / "own_loggers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_loggers", raising=False)


def train(tmp_path: Path, fails: str = "", packs: str = "toy", **options: int) -> Trainer:
    """Train two epochs of four steps, or go on with them, with a logger of the user's."""
    if not (tmp_path / "toy.bin").exists():
        write_training_set(tmp_path / "data")
        make_pack(tmp_path / "toy.bin", per_fold=2)
    validation = Validation(benches=(packs,) if packs else (), data=tmp_path, every_steps=3)
    name, alone = "own_loggers:Heard", Processes(0, 1, torch.device("cpu"))
    changes = {"validation": validation, "logger": name, "precision": "bf16"}
    recipe = tiny_recipe(tmp_path / "data", **changes)
    learner = Learner(recipe, open_dataset(recipe.data, recipe.seed), alone)
    logger, validator = create_logger(name), PackValidator(recipe, alone)
    if fails:
        getattr(logger, fails).side_effect = OSError("no network")
    folder, console = tmp_path / f"run{packs}", Console(file=io.StringIO())
    folder.mkdir(exist_ok=True)
    trainer = Trainer(learner, folder, console, validator if packs else None, logger)
    if (folder / "checkpoints").exists():
        trainer.resume()
    trainer.fit(**options)
    return trainer


@pytest.mark.integration
def test_a_logger_of_ones_own_hears_what_metrics_jsonl_has(tmp_path: Path) -> None:
    """Through a stop and a resume, with validations between epochs that change nothing."""
    train(tmp_path, max_steps=5)
    trainer, folder = train(tmp_path), tmp_path / "runtoy"
    calls = list(sys.modules["own_loggers"].heard.mock_calls)
    recipe = to_dict(trainer.recipe)
    around = [call.start(folder, recipe, "runtoy", 0), call.end("stopped")]
    around += [call.start(folder, recipe, "runtoy", 5), call.end("finished")]
    assert [c for c in calls if c[0] != "log"] == around
    written = []
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        step, kind = line.pop("step"), line.pop("kind")
        if kind == "validation":
            last, line = line, {"accuracy/toy": line["folds"]["accuracy"]["mean"]}
        written.append(call.log(line, step))
    assert [c for c in calls if c[0] == "log"] == written
    assert [c.args[1] for c in written] == [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 8]
    ends = [load_file(path) for path in tmp_path.rglob("model.safetensors")]
    ends.append(train(tmp_path, packs="").learner.backbone.state_dict())
    assert len(ends) == 2 and all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    low, high = (trainer.validator(trainer.final_backbone, p)["toy"] for p in ("bf16", "fp32"))
    assert low.to_json().items() <= last.items() and not np.array_equal(low.scores, high.scores)


def test_a_logger_that_fails_is_told_once_and_the_run_goes_on(tmp_path: Path) -> None:
    printed = train(tmp_path, "log", packs="").console.file.getvalue()  # type: ignore[union-attr]
    calls = sys.modules["own_loggers"].heard.mock_calls
    assert "".join(printed.split()).count("nonetwork") == 1
    assert [c[0] for c in calls] == ["start", "log"]
    assert (tmp_path / "run" / "model.safetensors").is_file()
    with pytest.raises(TrainingError, match="no network"):
        train(tmp_path, "start")


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_service_goes_on_with_the_run_of_a_folder(
    tmp_path: Path, monkeypatch: MonkeyPatch, name: str
) -> None:
    library = MagicMock()
    run = SimpleNamespace(id="r7", name="r7", info=SimpleNamespace(run_id="r7"))
    run.log, run.finish = library.log_metrics, library.end_run
    library.init.return_value = library.start_run.return_value = run
    monkeypatch.setitem(sys.modules, name, library)
    begin = library.start_run if name == "mlflow" else library.init
    recipe = to_dict(tiny_recipe(tmp_path))
    for step, status in ((0, "stopped"), (4, "finished")):
        logger = create_logger(name)
        logger.start(tmp_path, recipe, "run", step)
        logger.log({"loss": 2.0}, step + 1)
        logger.end(status)
    first, second = (str(call) for call in begin.call_args_list)
    assert "'run'" in first and "r7" not in first and "r7" in second
    told = [call.args for call in library.log_metrics.call_args_list]
    assert told == [({"loss": 2.0}, 1), ({"loss": 2.0}, 5)] and library.end_run.call_count == 2
    if name == "mlflow":
        assert library.log_params.call_args.args[0]["optimizer.lr"] == 0.05


def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for step, losses in ((0, [2.0, 9.0]), (1, [3.0])):
        logger = create_logger("tensorboard")
        logger.start(tmp_path, {}, "run", step)
        for more, loss in enumerate(losses, 1):
            logger.log({"loss": loss}, step + more)
        logger.end("stopped")
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 2.0), (2, 3.0)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wnadb", "wnadb: .* name one of tensorboard, wandb"),
        ("", "tensorboard"),
        ("mlflow", r"pip install 'facerec\[mlflow\]'"),
        ("gone_module:Logger", "gone_module"),
        ("own_loggers:Gone", "Gone"),
        ("json:loads", "argument"),
    ],
)
def test_what_is_no_logger_is_refused(name: str, words: str, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)  # type: ignore[arg-type]
    with pytest.raises(FacerecError, match=words):
        create_logger(name)
