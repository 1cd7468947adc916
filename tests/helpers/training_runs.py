"""Training in this process or over several ranks, and how the weights compare."""

from __future__ import annotations

from pathlib import Path

import torch

from facerec.training import Recipe
from facerec.training.distributed import launched
from facerec.training.trainer import Trainer
from helpers.lives import Ranks
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


def rank_trains(folder: Path, recipe: Recipe, plan: str) -> None:
    """Train in one of several processes and leave this rank's weights in a file."""
    with launched("cpu") as processes:
        trainer = make_trainer(recipe, folder, processes)
        if plan == "stop":
            stop_after(trainer, 3)
        elif plan == "resume":
            trainer.resume()
        trainer.fit()
        torch.save(weights(trainer), folder / f"rank{processes.rank}.pt")


def over_ranks(
    world: int, folder: Path, recipe: Recipe, plan: str = ""
) -> list[dict[str, torch.Tensor]]:
    folder.mkdir(exist_ok=True)
    ranks = Ranks(world, folder, rank_trains, folder, recipe, plan)
    assert ranks.join() == [0] * world, ranks.log.read_text()
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
