"""Train a recipe under Ray Train, which starts the processes and joins them.

    pip install 'ray[train]'
    python examples/ray_train.py recipes/arcface_sec_r50.py --data data/ms1mv3 --workers 8 --gpu

Ray hands every worker an initialised process group; facerec uses it as it is. All machines must see
the data and the runs folder under the same path.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

# First, since it keeps Ray from reporting to its maker.
from facerec.commands.train import Options, train_recipe  # isort: skip
from facerec.base.recipe import load_recipe  # isort: skip
from facerec.training import Recipe  # isort: skip

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from rich.console import Console


def train(config: dict[str, str]) -> None:
    """Do one worker's share."""
    recipe = load_recipe(Path(config["recipe"]), Recipe)
    recipe = replace(recipe, data=replace(recipe.data, path=Path(config["data"])))
    options = Options(name=config["name"], runs=Path(config["runs"]))
    train_recipe(recipe, config["name"], options, Console())


def main() -> None:
    """Read the command line and start the workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="training images")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")
    parser.add_argument("--name", help="name of the run; by default the recipe's")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="give every worker a GPU")
    given = parser.parse_args()
    paths = {name: str(getattr(given, name).resolve()) for name in ("recipe", "data", "runs")}
    name = given.name or given.recipe.stem
    TorchTrainer(
        train,
        train_loop_config={**paths, "name": name},
        scaling_config=ScalingConfig(num_workers=given.workers, use_gpu=given.gpu),
    ).fit()
    print(given.runs / name)


if __name__ == "__main__":
    main()
