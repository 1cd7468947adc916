"""The training loop, over any number of ranks: batches → steps of the learner → a run's files.

Data flows from the sampler's positions through the loader (uint8 NHWC batches) to the device and
into `Learner.train_step`. The state after a step is a function of the recipe, the data and the step
alone, so that a resumed run continues bit for bit on the same ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from facerec.base.devices import HostCopy
from facerec.base.environment import available_cores
from facerec.base.errors import CheckpointError, TrainingError
from facerec.base.files import write_json
from facerec.base.recipe import to_dict
from facerec.embedding.torch_model import save_model
from facerec.heads.output import Figures
from facerec.records.dataset import Batch, BatchLoader, Skipped
from facerec.training import checkpoint
from facerec.training.learner import Learner
from facerec.training.monitor import Monitor
from facerec.training.network import explained

if TYPE_CHECKING:
    from rich.console import Console

    from facerec.embedding.engines import Precision
    from facerec.training.loggers import Logger
    from facerec.training.validation import PackValidator
    from facerec.verification import VerificationResult


class Trainer:
    """Makes a run of a learner's steps: metrics, validation, checkpoints, and the model at the end.

    Attributes:
        warnings: a sentence for everything that looks odd, the learner's among them.
        skipped: images of this rank that could not be used.
        best_accuracy: mean accuracy of the best validation so far, −1 before the first.
        stop_signal: the last SIGTERM or SIGINT that asked this process to stop.

    Args:
        learner: takes the steps.
        folder: the run's folder.
        console: where progress is shown.
        validator: scores the packs of the recipe, or None.
        logger: gets the figures, or None.
    """

    def __init__(
        self,
        learner: Learner,
        folder: Path,
        console: Console,
        validator: PackValidator | None = None,
        logger: Logger | None = None,
    ) -> None:
        self.learner, self.folder = learner, folder
        self.validator, self.console, self.logger = validator, console, logger
        self.recipe, self.processes = learner.recipe, learner.processes
        self.skipped: list[Skipped] = []
        self.best_accuracy = -1.0
        self.stop_signal: int | None = None
        keep = self.recipe.checkpoints.keep
        self._writer = checkpoint.CheckpointWriter(folder / "checkpoints", self.processes, keep)
        self._at_once = False  # whether a signal may end training where it is
        self._asked: HostCopy | None = None  # whether a rank is to stop
        self._waiting: tuple[int, list[str], HostCopy, float] | None = None  # figures of a step
        self.warnings = list(learner.warnings)

    @functools.cached_property
    def monitor(self) -> Monitor:
        """Receives metrics and draws progress, from the step that the run is at when it is made."""
        return Monitor(self.folder, self.learner, self.console, self.logger)

    # ---------------------------------------------------------------- the run

    def fit(self, max_steps: int | None = None) -> None:
        """Train to the end of the recipe, or to the first SIGTERM or Ctrl-C; save and validate.

        Args:
            max_steps: stop as after SIGTERM when the run has so many steps.

        Raises:
            KeyboardInterrupt: Ctrl-C where no step is lost, before the first one has ended or in a
                validation, or a second one anywhere.
            SystemExit: with status 0, SIGTERM where no step is lost.
            TrainingError: the loss is not finite; the last checkpoint is from before that. Or a
                loader process died.
            CheckpointError: a checkpoint cannot be written.
        """
        self.learner.initialize()
        if self._is_done() or (max_steps is not None and self.learner.step >= max_steps):
            return
        with (
            self._signals(),
            self.monitor,
            self._writer,
            explained(self.recipe.data.path),
        ):
            if self._validation_is_due():  # a run that was stopped did not wait for it
                self.validate()
            start = self.learner.step
            for batch in self.batches():
                if self.learner.step == start:
                    self._stop_at_once()  # compiling may take minutes
                self.skipped += batch.skipped
                figures = self.learner.train_step(batch)
                self._at_once = False
                if self.monitor.is_due(self.learner.step):
                    figures["skipped"] = self.processes.total(float(len(self.skipped)))
                self._record_late(figures)
                stopping = self._stopping() or self.learner.step == max_steps
                if stopping or self._checkpoint_is_due():
                    self._record_waiting()
                    self.save_checkpoint()
                if stopping:
                    break
                if self._validation_is_due():
                    # Behind the checkpoint, so that whatever was validated can be resumed. It does
                    # not know of it: who goes on from there validates once more, to the same end.
                    self.validate()
            if self.learner.step == self.learner.total_steps:
                self.validate()
                self._writer.wait()
                if self.learner.average is not None:
                    self.save_model("raw.safetensors", self.learner.backbone, weights="raw")
                self.save_model("model.safetensors")
        self._write_skipped()

    def _is_done(self) -> bool:
        """Tell whether nothing is left to do; the model is what a run writes last."""
        done = (self.folder / "model.safetensors").is_file()
        ended = self.learner.step >= self.learner.total_steps
        return ended and all(self.processes.gather_objects(done))

    @property
    def interrupted(self) -> bool:
        """True if `fit` ended before the last step, because of a signal or ``max_steps``."""
        return self.learner.step < self.learner.total_steps

    def _validation_is_due(self) -> bool:
        """Tell whether a step other than the last has ended that is to be validated."""
        step, config = self.learner.step, self.recipe.validation
        every = config.every_steps or config.every_epochs * self.learner.steps_per_epoch
        due = step % every == 0 and 0 < step < self.learner.total_steps
        return due and self.validator is not None

    def _checkpoint_is_due(self) -> bool:
        """Tell whether ``every_steps`` or an epoch has ended, or a validation follows."""
        step = self.learner.step
        every = self.recipe.checkpoints.every_steps
        ended = step % every == 0 or step % self.learner.steps_per_epoch == 0
        return ended or self._validation_is_due()

    def validate(self) -> dict[str, VerificationResult]:
        """Score the packs in the numbers of training, or in float32 where these are fp16.

        The weights with the best mean accuracy are kept as ``best.safetensors``.
        """
        if self.validator is None:
            return {}
        self.learner.state.share_buffers()
        self._stop_at_once()
        precision: Precision = "bf16" if self.learner.precision == "bf16" else "fp32"
        results = self.validator(self.final_backbone, precision)
        self._at_once = False
        epoch = self.learner.step // self.learner.steps_per_epoch
        self.monitor.validation(self.learner.step, epoch, results)
        accuracies = {
            name: result.folds["accuracy"].mean
            for name, result in results.items()
            if result.folds  # fewer pairs than folds
        }
        mean = sum(accuracies.values()) / max(len(accuracies), 1)
        if mean > self.best_accuracy:
            self.best_accuracy = mean
            self.save_model("best.safetensors", selected_on=accuracies)
        return results

    @property
    def final_backbone(self) -> nn.Module:
        """What is validated and saved as the model: the average of weights where there is one."""
        average = self.learner.average
        return self.learner.backbone if average is None else average.module

    def save_model(self, name: str, backbone: nn.Module | None = None, **extra: Any) -> None:
        """Write a backbone's weights with the recipe inside, on the main process.

        Args:
            name: of the file in the run's folder.
            backbone: by default `final_backbone`.
            extra: facts to keep in the file, as JSON types.
        """
        weights = {} if self.learner.average is None else {"weights": "ema"}
        self.processes.on_main(
            save_model,
            self.folder / name,
            self.final_backbone if backbone is None else backbone,
            self.recipe.backbone,
            self.recipe.preprocessing,
            to_dict(self.recipe),
            {"step": self.learner.step, **weights, **extra},
        )

    def batches(self) -> Iterator[Batch]:
        """Load this rank's batches from the present step on."""
        loader = BatchLoader(
            self.learner.images,
            self.learner.sampler_from(self.learner.step),
            workers=min(self.recipe.workers, available_cores()),
            pin_memory=self.learner.device.type == "cuda",
        )
        return iter(loader)

    def _write_skipped(self) -> None:
        """List the images that could not be used in ``skipped.json`` (those of all ranks)."""
        every = self.all_skipped()
        if every and self.processes.is_main:
            write_json(self.folder / "skipped.json", every)

    def all_skipped(self) -> list[dict[str, Any]]:
        """Return what all ranks skipped, as JSON types."""
        shares = self.processes.gather_objects(self.skipped)
        return [dataclasses.asdict(item) for share in shares for item in share]

    def _record_late(self, figures: Figures) -> None:
        """Record the last step's figures, and leave this one's on their way from a GPU.

        So the device always has a step to work on.
        """
        copy = _late(*figures.values())
        self._record_waiting()
        self._waiting = self.learner.step, list(figures), copy, self.learner.lr
        if copy.here:
            self._record_waiting()

    def _record_waiting(self) -> None:
        """Check and record the figures that wait for it, if any do."""
        if self._waiting is not None:
            (step, names, copy, lr), self._waiting = self._waiting, None
            figures = dict(zip(names, copy.read().tolist(), strict=True))
            self._check_finite(step, figures["loss"], figures["norm_mean"])
            self.monitor.record(step, figures, lr)

    def _check_finite(self, step: int, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        with contextlib.suppress(CheckpointError):  # this error tells more
            self._writer.wait()
        last = checkpoint.latest(self.folder / "checkpoints")
        kept = f"the last good checkpoint is {last}" if last else "no checkpoint was written yet"
        raise TrainingError(
            f"step {step}: the loss is {loss} with a mean embedding norm of {norm}; {kept}; lower "
            "the learning rate, lengthen the warm-up or use precision fp32"
        )

    # ---------------------------------------------------------------- signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at SIGTERM and Ctrl-C (only the main thread may do so).

        Training stops after the step, with a checkpoint; at once where no step is lost, and at a
        second Ctrl-C.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        asked, process = -math.inf, os.getpid()

        def stop(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            if os.getpid() != process:  # a loader process that is just being forked
                return
            # torchrun repeats a Ctrl-C that the terminal has sent to all ranks.
            pause = 0.0 if self.processes.world_size == 1 else 2.0
            again = number == self.stop_signal == signal.SIGINT
            if again and time.monotonic() < asked + pause:
                return
            asked, self.stop_signal = time.monotonic(), number
            if again:
                self._writer.abandon()
            if again or self._at_once:
                self._leave_if_asked()
            elif self.processes.is_main:
                again_ends = "; a second Ctrl-C ends at once" * (number == signal.SIGINT)
                # print() may not be called where it may just have been interrupted.
                with contextlib.suppress(OSError):
                    name = signal.Signals(number).name
                    os.write(2, f"{name}: stopping after this step{again_ends}\n".encode())

        previous = {
            number: signal.signal(number, stop)
            for number in (signal.SIGTERM, signal.SIGINT)
            if signal.getsignal(number) != signal.SIG_IGN  # as a shell sets it in the background
        }
        try:
            yield
        except RuntimeError:
            if self.processes.world_size > 1:
                self._leave_if_asked()  # another rank has left before this one
            raise
        finally:
            for number, handler in previous.items():
                repeated = number == self.stop_signal and self.processes.world_size > 1
                signal.signal(number, signal.SIG_IGN if repeated else handler)

    def _stop_at_once(self) -> None:
        """Let signals end training where it is, from here on and those that came before."""
        self._at_once = True
        self._leave_if_asked()

    def _leave_if_asked(self) -> None:
        if self.stop_signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.stop_signal is not None:
            raise SystemExit(0)

    def _stopping(self) -> bool:
        """Agree with all ranks whether to stop.

        Several ranks ask each other only now and then, and hear a step later, so that the device
        always has one to work on.
        """
        stop = self.stop_signal is not None
        if self.processes.world_size == 1:
            return stop
        asked, self._asked = self._asked, None
        if self.learner.step % self.recipe.log_every == 0:
            self._asked = _late(self.processes.total(float(stop)))
        return asked is not None and bool(asked.read() > 0)

    # ---------------------------------------------------------------- checkpoints

    def save_checkpoint(self) -> None:
        """Begin to write ``checkpoints/step-N`` (all ranks together)."""
        state, head = self.learner.state, self.learner.head
        state.share_buffers()
        tensors, own = state.tensors(), state.random()
        self._writer.save(
            self.learner.step,
            tensors | own,
            {
                "world_size": self.processes.world_size,
                "best_accuracy": self.best_accuracy,
                "losses": list(self.monitor.losses),
                "benches": list(self.recipe.validation.benches),
                "scaler": self.learner.stepper.scaler.state_dict(),
                "skipped_images": self.all_skipped(),
                "kernel": "torch" if head is None else head.kernel,
                "kernel_shape": 0 if head is None else head.shape,
                "precision": self.learner.precision,
            },
        )

    def resume(self) -> None:
        """Continue from the newest whole checkpoint of the run's folder.

        Bit for bit if the number of ranks is that of the checkpoint. Otherwise the weights, the
        optimizer's state and the data order are the same and only dropout draws other masks.

        Raises:
            CheckpointError: none there, damaged, or of another architecture.
        """
        self._writer.wait()
        newest = self.processes.broadcast_object(checkpoint.latest(self.folder / "checkpoints"))
        tensors, own = self.learner.state.tensors(), self.learner.state.random()
        state = checkpoint.load_checkpoint(newest, tensors, own, self.processes)
        self.learner.state.set_random(own)  # on another number of ranks as they are
        self.learner.stepper.scaler.load_state_dict(state["scaler"])
        self.learner.stepper.step = state["step"]
        self.monitor.losses += state["losses"]
        head = self.learner.head
        if head is not None and self.recipe.head.kernel == "auto":
            head.keep_kernel(state["kernel"], state["kernel_shape"])
        if state["precision"] != self.learner.precision:
            self.warnings.append(
                f"the run was trained in {state['precision']} up to here and goes on in "
                f"{self.learner.precision}, which precision auto means on this machine"
            )
        if tuple(state["benches"]) == self.recipe.validation.benches:
            self.best_accuracy = state["best_accuracy"]
        if self.processes.is_main:
            self.skipped = [Skipped(**each) for each in state["skipped_images"]]


def _late(*values: torch.Tensor) -> HostCopy:
    """Return scalars of one device on their way to the host, float32 ``(k,)``."""
    return HostCopy(torch.stack([value.detach().float() for value in values]))
