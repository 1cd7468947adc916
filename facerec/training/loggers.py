"""Where the numbers of a run go beside metrics.jsonl: three calls that any tracker can answer."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Protocol, cast

from facerec.base.errors import RecipeError, message_line
from facerec.base.files import NOTE, parse_json, read_file, write_json


class Logger(Protocol):
    """What ``--logger module:Class`` names: a class without arguments that answers these calls.

    Only the main process has one.
    """

    def start(self, folder: Path, recipe: dict[str, Any], name: str, step: int) -> None:
        """Begin, before the first step; an error ends the run here.

        Args:
            folder: of the run, to which the same run comes back when it is resumed.
            recipe: resolved, as ``recipe.json`` has it.
            name: of the run.
            step: that the run is at; above 0 it is resumed, and tells the later ones again.
        """

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Take finite numbers by name; after an error nothing more is logged."""

    def end(self, status: str) -> None:
        """End with ``finished``, ``stopped`` (by a signal or ``--max-steps``) or ``failed``."""


class TensorBoard:
    """Event files in the run's folder."""

    def start(self, folder: Path, recipe: dict[str, Any], name: str, step: int) -> None:
        """Open an event file; what earlier ones have behind ``step`` is shown no more."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Write scalars."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def end(self, status: str) -> None:
        """Close the file."""
        self.writer.close()


class Wandb:
    """Weights & Biases; account, project and mode are its own settings, as WANDB_MODE=offline."""

    def start(self, folder: Path, recipe: dict[str, Any], name: str, step: int) -> None:
        """Begin a run, or continue that of this folder."""
        import wandb

        known = _known(folder / "wandb.json")
        self.run = wandb.init(dir=folder, name=name, config=recipe, id=known, resume="allow")
        write_json(folder / "wandb.json", {"run": self.run.id})

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Send the numbers in the background."""
        self.run.log(metrics, step)

    def end(self, status: str) -> None:
        """Wait until all is sent."""
        self.run.finish(exit_code=int(status != "finished"))


class MLflow:
    """MLflow; server and experiment are its own settings, as MLFLOW_TRACKING_URI."""

    def start(self, folder: Path, recipe: dict[str, Any], name: str, step: int) -> None:
        """Begin a run with the recipe's fields as parameters, or continue that of this folder."""
        import mlflow
        import pandas as pd

        known, self.library = _known(folder / "mlflow.json"), mlflow
        run = mlflow.start_run(run_id=known, run_name=name)
        write_json(folder / "mlflow.json", {"run": run.info.run_id})
        if known is None:  # MLflow lets nobody change parameters, as --workers may be
            mlflow.log_params(pd.json_normalize(recipe).iloc[0].to_dict())

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Write or send the numbers."""
        self.library.log_metrics(metrics, step)

    def end(self, status: str) -> None:
        """End the run."""
        self.library.end_run({"finished": "FINISHED", "stopped": "KILLED"}.get(status, "FAILED"))


class Trackio(Wandb):
    """Trackio's project ``facerec``; where it lies is its own settings, as TRACKIO_DIR."""

    def start(self, folder: Path, recipe: dict[str, Any], name: str, step: int) -> None:
        """Begin a run, or continue that of this folder."""
        import trackio

        known = _known(folder / "trackio.json")
        resume = "allow" if known else "never"
        self.run = trackio.init("facerec", name=known or name, config=recipe, resume=resume)
        write_json(folder / "trackio.json", {"run": self.run.name})

    def end(self, status: str) -> None:
        """Wait until all is written."""
        self.run.finish()


LOGGERS = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow, "trackio": Trackio}


def create_logger(name: str) -> Logger:
    """Return the logger of one of the `LOGGERS`, or of a user's ``module:Class``; it begins later.

    The module is looked for where Python does, and in the current folder.

    Raises:
        RecipeError: no such logger, its package is not installed, or the user's cannot be made.
    """
    module, _, attribute = name.partition(":")
    if name not in LOGGERS:
        sys.path.append(str(Path.cwd()))
    try:
        found = importlib.import_module(module)
        return cast(Logger, LOGGERS[name]() if name in LOGGERS else getattr(found, attribute)())
    except Exception as error:
        advice = f"run pip install 'facerec[{name}]'"
        if name not in LOGGERS:
            advice = f"name one of {', '.join(LOGGERS)}, or module:Class for one of your own"
        what = f"{type(error).__name__}: {message_line(error)}"
        raise RecipeError(f"logger {name}: {what}; {advice}") from error


def _known(path: Path) -> str | None:
    """Return the name that a service gave the run when it began, if it did."""
    return parse_json(read_file(path, NOTE))["run"] if path.is_file() else None
