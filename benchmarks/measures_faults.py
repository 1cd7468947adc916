"""Measurements of what guards a run against faults, see `measures`."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from noise import empty_set
from rich.console import Console
from rows import Row

from facerec.backbones import Backbone
from facerec.records import Data
from facerec.training import Checkpoints, Recipe
from facerec.training.distributed import Processes
from facerec.training.learner import Learner
from facerec.training.trainer import Trainer


def checkpoint(
    *, backbone: str = "iresnet50", classes: int = 93_431, repeats: int = 5
) -> list[Row]:
    """Time a checkpoint of a backbone and its class centres with SGD's momentum.

    Training stalls while the state is copied; the first copy takes its memory from the system too.
    A checkpoint is written when it has its final name, on the disk and not only on the way there.

    Args:
        backbone: a registered name.
        classes: of 512 dimensions each.
        repeats: checkpoints after the first.
    """
    recipe = Recipe(data=Data(Path()), backbone=Backbone(backbone), checkpoints=Checkpoints(keep=1))
    with TemporaryDirectory() as runs:
        learner = Learner(recipe, empty_set(classes), Processes(0, 1, torch.device("cpu")))
        trainer = Trainer(learner, Path(runs), Console(quiet=True))
        writer = trainer._writer
        stalls, totals = [], []
        for step in range(1 + repeats):
            trainer.learner.stepper.step = step
            start = time.perf_counter()
            trainer.save_checkpoint()
            stalls.append(time.perf_counter() - start)
            writer.wait()
            totals.append(time.perf_counter() - start)
        (written,) = (Path(runs) / "checkpoints").iterdir()
        size = sum(file.stat().st_size for file in written.iterdir()) / 1e6
    name = f"checkpoint of {backbone} and {classes:,} classes with momentum, {size:,.0f} MB"
    rows = []
    for what, times, bar in (("until written", totals, 5.0), ("training stalls", stalls, 1.0)):
        remark = f"median of {repeats}; the first took {times[0]:.2f} s"
        rows.append(Row(f"{name}: {what}", statistics.median(times[1:]), "s", bar, remark=remark))
    return rows
