"""Training processes that are made to be killed.

They are forked from a process that has imported everything (see conftest.py); real commands are
there too, for the slow tests.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import facerec
from facerec.backbones import Backbone, register_backbone
from facerec.commands.train import main
from facerec.training import Recipe
from facerec.training.learner import Learner
from helpers.tiny_training import tiny_recipe

CONTEXT = multiprocessing.get_context("forkserver")

DOOR = Path(facerec.__file__).parent.parent / "tools" / "train.py"


class Noisy(nn.Module):
    """A backbone with batch-norm and dropout, so that every kind of state counts, for little work.

    Mean colours of 8×8 tiles → embedding.
    """

    def __init__(self, embedding_size: int) -> None:
        super().__init__()
        self.embedding_size = embedding_size
        self.embedding_norm = None
        inner = nn.BatchNorm1d(32), nn.PReLU(), nn.Dropout(0.3)
        self.layers = nn.Sequential(nn.Linear(192, 32), *inner, nn.Linear(32, embedding_size))

    @property
    def blocks(self) -> list[nn.Module]:
        return [self.layers[0], self.layers[2]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tiles = nn.functional.avg_pool2d(x, 14).flatten(1)
        return self.layers(tiles.float())


@register_backbone
def tiny_noisy(config: Backbone) -> nn.Module:
    return Noisy(config.embedding_size)


def noisy_recipe(data: Path, **changes: object) -> Recipe:
    return tiny_recipe(data, backbone=Backbone(name="tiny_noisy", embedding_size=16), **changes)


class Ranks:
    """Processes that run a function of some module, with the variables that torchrun would set.

    Args:
        world: how many.
        folder: where they work and leave what they print, in ``log.txt``.
        function: what each of them runs.
        arguments: of the function.
    """

    def __init__(
        self, world: int, folder: Path, function: Callable[..., None], *arguments: Any
    ) -> None:
        self.log = folder / "log.txt"
        shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        self.processes = []
        for rank in range(world):
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = CONTEXT.Process(target=_begin, args=(folder, own, function, arguments))
            process.start()
            self.processes.append(process)

    def alive(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def join(self, seconds: float = 240) -> list[int | None]:
        """Wait for the end and return the exit codes."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0))
        codes = [process.exitcode for process in self.processes]
        self.kill()
        return codes


class Command:
    """``tools/train.py`` as a user starts it, under torchrun if there are several ranks."""

    def __init__(self, world: int, folder: Path, arguments: Sequence[str]) -> None:
        self.log = folder / "log.txt"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *(launcher if world > 1 else []), str(DOOR), *arguments],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
                stdout=log,
                stderr=log,
            )

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            launcher = psutil.Process(self.process.pid)
            launcher.suspend()  # or it would start those again that are killed
            for process in [*launcher.children(recursive=True), launcher]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()

    def join(self, seconds: float = 240) -> list[int | None]:
        """Wait for the end and return the exit code."""
        try:
            return [self.process.wait(seconds)]
        except subprocess.TimeoutExpired:
            self.kill()
            return [None]


def command(arguments: Sequence[str]) -> None:
    """Run ``facerec train`` in this process."""
    main(list(arguments))


def elastic(world: int, deaths: Sequence[int], arguments: Sequence[str]) -> None:
    """Be torchrun; life n of the last rank kills itself before it does step ``deaths[n]``."""
    meeting = {"run_id": "test", "rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0"}
    how = {"max_restarts": len(deaths), "monitor_interval": 0.02, "start_method": "fork"}
    config = LaunchConfig(1, 1, world, **meeting, **how)
    elastic_launch(config, mortal)(list(deaths), list(arguments))


def mortal(deaths: Sequence[int], arguments: Sequence[str]) -> None:
    life, step = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), Learner.train_step
    last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1

    def train_step(self: Learner, batch: Any) -> Any:
        if last and life < len(deaths) and self.step == deaths[life]:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, batch)

    Learner.train_step = train_step  # type: ignore[method-assign]
    main(list(arguments))


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _begin(
    folder: Path, environment: dict[str, str], function: Callable[..., None], arguments: Any
) -> None:
    os.environ.update(environment)
    os.chdir(folder)
    with (folder / "log.txt").open("a") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    torch.set_num_threads(1)
    function(*arguments)
