"""`facerec train RECIPE --profile`: print what torch.profiler records of some steps."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from facerec.commands.cli import Console
from facerec.commands.recipes import open_data, open_targets
from facerec.errors import RecipeError
from facerec.training.recipe import Recipe

if TYPE_CHECKING:
    from facerec.training.distributed import Processes

_ROWS = 25


def profile_recipe(recipe: Recipe, device: str, steps: int, console: Console) -> None:
    """Record some steps of ``recipe``, alone or as one of torchrun's processes, and print them.

    Nothing is written. Only the main process prints, and only of itself.

    Raises:
        FacerecError: the recipe cannot be trained, or is too short for so many steps.
    """
    from facerec.training.distributed import launched

    with launched(device) as processes:
        # In a function, so that what holds on to the process group is gone before the group is.
        _profile(recipe, processes, steps, console)


def _profile(recipe: Recipe, processes: Processes, steps: int, console: Console) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from facerec.training.initialization import resolved
    from facerec.training.learner import Learner
    from facerec.training.trainer import Trainer

    recipe = processes.on_main(functools.partial(resolved, recipe))
    if recipe.finetune.freeze_steps is not None:
        # Steps as most of them are: with all layers that learn.
        finetune = replace(recipe.finetune, freeze_steps=0, freeze_layers=())
        recipe = replace(recipe, finetune=finetune)
    speaker = console if processes.is_main else None
    dataset = open_data(recipe, speaker)
    targets = open_targets(recipe, dataset, processes, speaker)
    trainer = Trainer(learner := Learner(recipe, dataset, processes, targets))
    # The batches that lie ready hide how fast the loader is.
    warm_up = 3 + 2 * trainer.workers
    if learner.total_steps < warm_up + steps:
        raise RecipeError(
            f"the recipe has {learner.total_steps} steps, too few to measure {steps} after "
            f"{warm_up} that warm up; set fewer --profile-steps, more --epochs or a smaller "
            "--batch-size"
        )
    on_gpu = learner.device.type == "cuda"
    batches = trainer.batches()
    for _ in range(warm_up):
        learner.train_step(next(batches))
    if on_gpu:
        torch.cuda.synchronize(learner.device)
    processes.barrier()
    begun = time.perf_counter()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, profile_memory=True) as found:
        for _ in range(steps):
            with record_function("waiting for data"):
                batch = next(batches)
            learner.train_step(batch)
        if on_gpu:
            torch.cuda.synchronize(learner.device)
    seconds = (time.perf_counter() - begun) / steps
    if processes.is_main:
        order = f"self_{'device' if on_gpu else 'cpu'}_time_total"
        table = found.key_averages().table(sort_by=order, row_limit=_ROWS)
        console.print(table, soft_wrap=True, highlight=False, markup=False)
        console.print(
            f"{1e3 * seconds:,.1f} ms a step, {recipe.batch_size / seconds:,.1f} images/s over "
            f"{processes.world_size} processes, while it is recorded",
            highlight=False,
        )
