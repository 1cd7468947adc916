"""Training in this process or over several ranks, and how the weights compare."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from facerec.training import Recipe
from facerec.training.distributed import Processes
from facerec.training.trainer import Trainer
from helpers.tiny_training import make_trainer, weights


def trained(recipe: Recipe, steps: int | None = None, folder: Path | None = None) -> Trainer:
    """Train and, if ``steps`` is given, stop there with a checkpoint as SIGTERM would."""
    trainer = make_trainer(recipe, folder)
    stop_after(trainer, steps)
    trainer.fit()
    return trainer


def gone_on(recipe: Recipe, folder: Path) -> Trainer:
    """Resume what was stopped in a folder and train to the end."""
    trainer = make_trainer(recipe, folder)
    trainer.resume()
    trainer.fit()
    return trainer


def assert_resumes(recipe: Recipe, folder: Path, steps: int = 3) -> tuple[Trainer, Trainer]:
    """Check that a run that was stopped ends as one that was not; return the whole one first."""
    whole = trained(recipe)
    trained(recipe, steps=steps, folder=folder)
    resumed = gone_on(recipe, folder)
    assert_same(weights(whole), weights(resumed))
    return whole, resumed


def stop_after(trainer: Trainer, steps: int | None) -> None:
    if steps is not None:
        trainer._stopping = lambda: trainer.learner.step == steps  # type: ignore[method-assign]


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert different == []


def assert_close(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def join(rank: int, world: int, folder: Path) -> Processes:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world
    )
    return Processes(rank, world, torch.device("cpu"))


def rank_trains(rank: int, world: int, folder: Path, recipe: Recipe, plan: str) -> None:
    """Train in one of several processes and leave this rank's weights in a file."""
    processes = join(rank, world, folder)
    trainer = make_trainer(recipe, folder, processes)
    if plan == "stop":
        stop_after(trainer, 3)
    elif plan == "resume":
        trainer.resume()
    trainer.fit()
    torch.save(weights(trainer), folder / f"rank{rank}.pt")
    del trainer  # before the group that it holds on to
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def over_ranks(
    world: int, folder: Path, recipe: Recipe, plan: str = ""
) -> list[dict[str, torch.Tensor]]:
    folder.mkdir(exist_ok=True)
    (folder / "rendezvous").unlink(missing_ok=True)
    arguments = (world, folder, recipe, plan)
    children = mp.start_processes(
        rank_trains, arguments, nprocs=world, join=False, start_method="forkserver"
    )
    deadline = time.monotonic() + 240
    while not children.join(timeout=5):
        if time.monotonic() > deadline:
            for process in children.processes:
                process.kill()
            pytest.fail(f"{world} ranks did not finish within 240 seconds")
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(world)]


def joined(ranks: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Put the class shards together; everything else must be the same on all ranks."""
    whole = {}
    for name, first in ranks[0].items():
        parts = [rank[name] for rank in ranks]
        if "head.weight" in name and first.ndim > 1:
            whole[name] = torch.cat(parts)
        else:
            assert all(torch.equal(first, part) for part in parts), name
            whole[name] = first
    return whole
