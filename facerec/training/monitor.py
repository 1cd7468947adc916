"""What a run tells: metrics.jsonl always, a display on the terminal, a logger if asked."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from facerec.base.errors import TrainingError, message_line
from facerec.base.files import LIST, atomic_path, full_disk_sentence, open_file, read_file
from facerec.base.recipe import to_dict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from facerec.training.learner import Learner
    from facerec.training.loggers import Logger
    from facerec.verification import VerificationResult

_SECONDS = 10.0
"""Least time between two lines of a log file."""


class Monitor:
    """Collects what the steps return and shows it, on the main process only.

    Figures are written every ``log_every`` steps and at the end of each epoch, which leaves a line
    on the terminal, or in the log file of a batch system. As a context manager it opens and closes
    the display and the files.

    Args:
        folder: the run's folder for ``metrics.jsonl``.
        learner: takes the steps, of which some may be done; its recipe says how often to log.
        console: where the display goes.
        logger: gets the same figures.
    """

    def __init__(
        self, folder: Path, learner: Learner, console: Console, logger: Logger | None = None
    ) -> None:
        self.learner, self.console = learner, console
        self.active, self.recipe = learner.processes.is_main, learner.recipe
        self.path = folder / "metrics.jsonl"
        self.total_steps, self.steps_per_epoch = learner.total_steps, learner.steps_per_epoch
        self.last: dict[str, float] = {}
        self.losses: list[float] = []
        """Of the steps since the last line, for those who go on from here."""
        self._logged_step, self._logged_at = learner.step, time.perf_counter()
        self._printed_at = -math.inf
        self._display: Progress | None = None
        self._logger = logger if self.active else None

    def __enter__(self) -> Monitor:
        if not self.active:
            return self
        _forget_after(self.path, self._logged_step)
        folder, recipe = self.path.parent, to_dict(self.recipe)
        self._log("start", folder, recipe, folder.name, self._logged_step)
        self._logged_at = time.perf_counter()
        if self.console.is_terminal:
            # Imported here because a step needs none of it.
            from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            text = TextColumn("{task.description}"), TextColumn("ETA")
            columns = MofNCompleteColumn(), *text, TimeRemainingColumn()
            self._display = Progress(*columns, console=self.console)
            self._display.add_task("", total=self.total_steps, completed=self._logged_step)
            self._display.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None
        stopped = kind in (None, KeyboardInterrupt, SystemExit)
        done = kind is None and self.learner.step == self.total_steps
        self._log("end", "finished" if done else "stopped" if stopped else "failed")

    def is_due(self, step: int) -> bool:
        """Tell whether the figures of a step are shown and written: every ``log_every``-th.

        So are those of an epoch's last step: the epoch's line tells of it, and no interval over
        which the speed is taken has a validation in it.
        """
        return not (step % self.recipe.log_every and step % self.steps_per_epoch)

    def record(self, step: int, figures: Mapping[str, float], lr: float) -> None:
        """Take the figures of one step, and show and write them if that `is_due`."""
        if not self.active:
            return
        self.losses.append(figures["loss"])
        self._show(completed=step)
        if not self.is_due(step):
            return
        values = {**figures, "loss": sum(self.losses) / len(self.losses)}
        self.losses.clear()
        skipped = int(values.pop("skipped", 0))
        now = time.perf_counter()
        images = (step - self._logged_step) * self.recipe.batch_size
        speed = images / max(now - self._logged_at, 1e-9)
        self._logged_at, self._logged_step = now, step
        deviation = math.sqrt(max(values["norm_variance"], 0.0))
        cv = deviation / max(values["norm_mean"], 1e-12)
        self.last = {**values, "lr": lr, "images_per_second": speed, "norm_cv": cv}
        self._write("train", step, **self.last, skipped=skipped)
        finite = {name: value for name, value in self.last.items() if math.isfinite(value)}
        self._log("log", finite | {"skipped": skipped}, step)
        self._show(description=self._line())
        epoch, within = divmod(step, self.steps_per_epoch)
        if not within:
            self._print(f"epoch {epoch}/{self.recipe.epochs}")
        elif self._display is None and time.perf_counter() - self._printed_at >= _SECONDS:
            self._print(f"step {step:,}/{self.total_steps:,}")

    def _show(self, **fields: Any) -> None:
        if self._display is not None:
            self._display.update(self._display.task_ids[0], **fields)

    def _line(self) -> str:
        last = self.last
        return (
            f"loss {last['loss']:.3f}  {last['images_per_second']:.0f} img/s  lr {last['lr']:.4g}  "
            f"‖f‖ {last['norm_mean']:.2f}  CV {last['norm_cv']:.3f}"
        )

    def _print(self, beginning: str) -> None:
        """Print the figures last read."""
        self.console.print(f"{beginning}  {self._line()}", highlight=False)
        self._printed_at = time.perf_counter()

    def validation(self, step: int, epoch: int, results: dict[str, VerificationResult]) -> None:
        """Write the figures of every pack and print its accuracy."""
        if not self.active:
            return
        for name, result in results.items():
            self._write("validation", step, epoch=epoch, **result.to_json())
            if not result.folds:  # fewer pairs than folds
                continue
            accuracy = result.folds["accuracy"]
            self._log("log", {f"accuracy/{name}": accuracy.mean}, step)
            mean, sem = 100 * accuracy.mean, 100 * accuracy.sem
            text = f"  {name}: accuracy {mean:.2f} % ± {sem:.2f} (SEM)"
            self.console.print(text, highlight=False)
        # Validation is no training time.
        self._logged_at, self._logged_step = time.perf_counter(), step

    def _write(self, kind: str, step: int, **values: Any) -> None:
        # JSON knows neither NaN nor infinities.
        bad = [k for k, v in values.items() if isinstance(v, float) and not math.isfinite(v)]
        known = values | dict.fromkeys(bad)
        line = json.dumps({"kind": kind, "step": step, **known}, allow_nan=False)
        try:
            with open_file(self.path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            sentence = full_disk_sentence(self.path, error, "go on with --resume")
            raise TrainingError(sentence) from error

    def _log(self, call: str, *arguments: Any) -> None:
        """Tell the logger; one that fails on the way, as a network may, is not told any more."""
        if self._logger is None:
            return
        try:
            getattr(self._logger, call)(*arguments)
        except Exception as error:
            self._logger = None
            line = message_line(error).rstrip(".")
            what = f"logger {self.recipe.logger}: {type(error).__name__}: {line}"
            if call == "start":
                raise TrainingError(f"{what}; mend it and --resume, or leave it out") from error
            text = f"warning: {what}; it gets nothing more, metrics.jsonl goes on"
            self.console.print(text, style="yellow", soft_wrap=True)


def _forget_after(path: Path, step: int) -> None:
    """Drop the lines that a run resumed at ``step`` writes again, a validation there among them.

    A checkpoint is written before the validation of its step.
    """
    if not path.is_file():
        return
    kept = []
    for line in read_file(path, LIST).decode(errors="replace").splitlines():
        # There may be the half line of a process that was killed.
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            entry = json.loads(line)
            again = entry["step"] == step and entry.get("kind") == "validation"
            if entry["step"] <= step and not again:
                kept.append(line)
    with atomic_path(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
