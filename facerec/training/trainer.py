"""The training loop: backbone, class-sharded margin head and norm penalty over any number of ranks.

Data flows from the sampler's positions through the loader (uint8 NHWC batches) to the device, is
normalized there, becomes raw embeddings, and ends in two losses: the margin softmax over the global
batch and the penalty on the embeddings' norms. The state after a step is a function of the recipe,
the data and the step alone, so that a resumed run continues bit for bit on the same ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from facerec.backbones import create_backbone, recompute_activations
from facerec.devices import has_fast_bf16, set_numerics
from facerec.embedding.model import save_model
from facerec.environment import available_cores
from facerec.errors import CheckpointError, RecipeError, TrainingError
from facerec.files import write_json
from facerec.heads.classifier import ClassifierOutput
from facerec.heads.distillation_loss import DistillationLoss, DistillationOutput, WholeBatch
from facerec.heads.norm_regularizer import (
    RegularizerOutput,
    combination_warnings,
    create_regularizer,
    global_moments,
)
from facerec.progress import Progress
from facerec.recipe import from_dict, to_dict
from facerec.records.dataset import Batch, BatchLoader, BatchSource, FaceDataset, Skipped
from facerec.training import checkpoint
from facerec.training.data_parallel import data_parallel
from facerec.training.distillation import (
    TaughtDataset,
    TeacherTargets,
    create_distiller,
    distillation_warnings,
    teacher_targets,
)
from facerec.training.distributed import Processes
from facerec.training.ema import WeightAverage
from facerec.training.finetuning import Freezing, rate_factors
from facerec.training.head import create_head, explain_full_memory, rate_warnings
from facerec.training.initialization import Start, initialize
from facerec.training.monitor import Figures, Monitor
from facerec.training.network import (
    CUDA_GRAPHS,
    FromPixels,
    compile_mode,
    compiled,
    explain_compile_errors,
)
from facerec.training.nonfinite import LIMIT, LateFigures, NonfiniteGuard
from facerec.training.optimization import parameter_groups, set_learning_rate
from facerec.training.prefetch import prefetched
from facerec.training.recipe import Recipe
from facerec.training.row_update import RowUpdate
from facerec.training.run import image_identity
from facerec.training.sampler import GlobalBatchSampler
from facerec.training.state import SavedFacts, TrainingState
from facerec.training.validation import PackValidator
from facerec.verification import VerificationResult

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """Trains one recipe on one data set, as one of the processes of `Processes`.

    Attributes:
        phase: entered around each part of a step with its name: ``forward``, ``head``, ``backward``
            and ``optimizer``; by default these are ranges for torch's profiler.
        start: what the weights were read from, if `initialize` did so.
        lr: learning rate of the last step, before the factors of parameter groups.
        average: moving average of the backbone's weights, if the recipe asks for one.

    Args:
        recipe: the whole configuration.
        dataset: the training images.
        processes: this rank among its peers.
        folder: the run's folder, or None to train without writing anything.
        validator: scores the packs of the recipe, or None.
        monitor: receives metrics and draws progress.
        targets: of the recipe's teacher; by default they are made or opened here.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: FaceDataset,
        processes: Processes,
        folder: Path | None = None,
        validator: PackValidator | None = None,
        monitor: Monitor | None = None,
        targets: TeacherTargets | None = None,
    ) -> None:
        self.recipe, self.dataset, self.processes = recipe, dataset, processes
        self.folder, self.validator = folder, validator
        self.monitor = monitor or Monitor(None, recipe, processes, total_steps=0, steps_per_epoch=1)
        self.device = processes.device
        self.precision = recipe.precision
        if self.precision == "auto":
            fast = processes.broadcast_object(has_fast_bf16(self.device))
            self.precision = "bf16" if fast else "fp32"
        self.step = 0
        self.skipped: list[Skipped] = []
        self.warnings = combination_warnings(
            recipe.regularizer, recipe.margin, recipe.backbone.embedding_bn
        )
        if self.precision == "bf16" and not has_fast_bf16(self.device):
            self.warnings.append(
                f"the recipe asks for bf16, which this {self.device.type} only emulates, many "
                "times slower; use precision auto or fp32"
            )
        self.workers = min(recipe.workers, max(available_cores() // processes.on_this_machine, 1))
        if self.workers < recipe.workers:
            self.warnings.append(
                f"{self.workers} of {recipe.workers} workers are started, one for each core that a "
                "process has here"
            )
        self.best_accuracy = -1.0
        self.start: Start | None = None
        self.lr = 0.0
        self.phase: Callable[[str], contextlib.AbstractContextManager[Any]] = record_function
        self._stop_signal: int | None = None
        self._asked: LateFigures | None = None  # whether a rank is to stop

        set_numerics(self.device, recipe.deterministic, recipe.tf32)
        # Dropout is the only user of torch's global generator; ranks must differ in it.
        torch.manual_seed(recipe.seed * 1_000_003 + processes.rank)
        self.targets: TeacherTargets | None = None
        self.distiller: DistillationLoss | None = None
        self._images: BatchSource = dataset
        if (taught := recipe.distillation) is not None:
            self.targets = targets or teacher_targets(
                taught, dataset, image_identity(recipe, dataset), processes
            )
            self._images = TaughtDataset(dataset, taught, self.targets)
            size = recipe.backbone.embedding_size
            self.distiller = create_distiller(taught, size, self.targets, recipe.seed)
            self.distiller.to(self.device)
            self.warnings += distillation_warnings(taught, recipe.backbone, self.targets)
        with explain_full_memory(recipe, dataset):
            backbone = create_backbone(recipe.backbone, seed=recipe.seed)
            if recipe.recompute:
                recompute_activations(backbone)
            self.backbone = backbone.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.head = create_head(recipe, dataset).to(self.device)
        automatic = recipe.head.kernel == "auto"
        self.head.choose_kernel(
            "torch" if automatic and recipe.deterministic else recipe.head.kernel,
            recipe.batch_size // recipe.accumulation,
        )
        scale = 1.0 if recipe.margin is None else recipe.margin.scale
        self.regularizer = (
            create_regularizer(recipe.regularizer, scale=scale).to(self.device)
            if recipe.regularizer
            else None
        )
        self.average = WeightAverage(self.backbone, recipe.ema) if recipe.ema is not None else None
        self.freezing = Freezing(self.backbone, recipe.finetune)
        self.compile_mode = compile_mode(recipe.compile, self.device.type, recipe.recompute)
        self._plain_model = FromPixels(self.backbone, recipe.preprocessing)
        self.model = compiled(self._plain_model, self.compile_mode)
        if processes.world_size > 1:
            self.model = data_parallel(self.model, recipe.data_parallel)
        self.optimizer = recipe.optimizer.create(
            parameter_groups(
                [m for m in (self.backbone, self.head, self.distiller) if m is not None],
                recipe.optimizer,
                plain=self.regularizer.parameters() if self.regularizer else (),
                factors=rate_factors(self.backbone, recipe.finetune),
            )
        )
        self.scaler = self._create_scaler()
        # A step that may be called off needs all gradients, or half of it would be taken.
        certain = recipe.on_nonfinite == "stop" and not self.scaler.is_enabled()
        self.centers: RowUpdate | None = None
        if recipe.margin is not None:
            self.centers = RowUpdate(self.optimizer, self.head.weight, at_once=certain)
        self.state = TrainingState(
            {
                "backbone": self.backbone,
                "head": self.head,
                "regularizer": self.regularizer,
                "distiller": self.distiller,
                "ema": None if self.average is None else self.average.module,
            },
            self.head,
            self.optimizer,
            self.centers,
            processes,
        )
        self.sampler = self._sampler(start=0)
        self.total_steps = self.sampler.total_steps
        self.steps_per_epoch = self.sampler.steps_per_epoch
        self.warnings += rate_warnings(recipe, self.head.num_local)
        if recipe.finetune.freeze_steps:
            # A checkpoint has the state of parameters that have not moved yet, too.
            self.state.create_optimizer_state()
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def initialize(self, progress: Progress | None = None) -> None:
        """Start from the weights that the recipe names, once and before the first step.

        All ranks call this together; `fit` does so where nobody did. A run that is resumed has its
        weights from its checkpoint.

        Args:
            progress: of the class means.

        Raises:
            FacerecError: the weights are missing, damaged or of another architecture.
        """
        recipe = self.recipe
        if recipe.init.path is None or self.start is not None or self.step:
            return
        self.start = initialize(
            recipe,
            self.backbone,
            self.head,
            self.dataset,
            self.processes,
            bf16=self.precision == "bf16",
            progress=progress,
        )
        if self.average is not None:
            self.average.restart()

    # ---------------------------------------------------------------- one step

    def train_step(self, batch: Batch) -> Figures:
        """Do one optimizer step on this rank's share of a global batch.

        With ``accumulation`` k the share is cut into k micro-batches whose gradients add up to
        those of the whole: losses are averaged, and a penalty whose centre depends on the batch
        gets that centre from a pass without gradients over the whole batch first.
        """
        recipe, progress = self.recipe, self.step / max(self.total_steps, 1)
        factor = recipe.schedule.factor(self.step, self.total_steps, self.steps_per_epoch)
        self.lr = recipe.optimizer.lr * factor
        set_learning_rate(self.optimizer, self.lr)
        self.freezing.begin(self.step)
        if self.compile_mode in CUDA_GRAPHS:
            torch.compiler.cudagraph_mark_step_begin()
        images = batch.images.to(self.device, non_blocking=True)
        labels = batch.labels.to(self.device, non_blocking=True)
        targets = None
        if batch.targets is not None:
            targets = batch.targets.to(self.device, non_blocking=True)
        count = recipe.accumulation
        taught = [None] * count if targets is None else targets.chunk(count)
        micro = list(zip(images.chunk(count), labels.chunk(count), taught, strict=True))
        mean_norm, whole = None, None
        if count > 1:
            mean_norm, whole = self._whole_batch([x for x, _, _ in micro], targets)

        self.head.sample_rate = recipe.head.sample_rate_at(self.step / self.steps_per_epoch)
        self.head.draw(labels, self.step)
        if self._guard is not None:
            self._guard.remember()
        self.optimizer.zero_grad(set_to_none=True)
        micro_figures: list[Figures] = []
        for position, (x, y, target) in enumerate(micro):
            last = position == count - 1
            with self._no_sync() if not last else contextlib.nullcontext():
                learning = torch.set_grad_enabled(not self.freezing.whole)
                with self.phase("forward"), self._autocast(), learning:
                    embeddings = self.model(x)
                with self.phase("head"):
                    update = self.centers and self.centers.gradients(last)
                    output, regularized, distilled = self.head(embeddings, y, update), None, None
                    loss = output.loss
                    if self.regularizer is not None:
                        # Outside the head: its embedding gradient is scaled for DDP already.
                        regularized = self.regularizer(
                            embeddings, mean_norm=mean_norm, progress=progress, update=position == 0
                        )
                        loss = loss + regularized.loss
                    if self.distiller is not None:
                        distilled = self.distiller(embeddings, target, whole)
                        loss = loss + distilled.loss
                with self.phase("backward"):
                    self.scaler.scale(loss / count).backward()
            micro_figures.append(self._figures(embeddings, output, regularized, distilled))

        figures = _average(micro_figures)
        self.freezing.drop_gradients()
        with self.phase("optimizer"):
            self.scaler.unscale_(self.optimizer)
            if self._guard is not None and self._guard.undoes(figures):
                self.scaler.update(self.scaler.get_scale())  # ends its step, keeps its scale
            else:
                if recipe.clip_norm is not None:
                    nn.utils.clip_grad_norm_(self.backbone.parameters(), recipe.clip_norm)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.head.advance()
        self.step += 1
        if self.average is not None:
            self.average.update(self.step)
        return figures

    @torch.no_grad()
    def _figures(
        self,
        embeddings: torch.Tensor,
        output: ClassifierOutput,
        regularized: RegularizerOutput | None,
        distilled: DistillationOutput | None,
    ) -> Figures:
        moments = global_moments(embeddings)
        figures = {
            "loss": output.loss.detach(),
            "norm_mean": moments.mean,
            "norm_variance": moments.variance,
            "norm_min": moments.smallest,
        }
        if self.recipe.margin is not None:
            figures["target_cosine"] = output.target_cosine
            figures["other_cosine"] = output.other_cosine
            figures["center_norm"] = output.center_norm
            if self.recipe.head.interclass_filter is not None:
                figures["filtered"] = output.filtered
        elif distilled is not None:
            figures["loss"] = distilled.distance
        if regularized is not None:
            figures |= {"penalty": regularized.penalty, "center": regularized.center}
        if distilled is not None:
            figures["distillation"] = distilled.distance
            if distilled.cosine is not None:
                figures["teacher_cosine"] = distilled.cosine
        return figures

    @torch.no_grad()
    def _whole_batch(
        self, micro: list[torch.Tensor], targets: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, WholeBatch | None]:
        """Return what losses that couple the samples need of all micro-batches before the first.

        That is the mean norm over the global batch and all embeddings, by a pass that leaves no
        trace in the backbone: dropout draws the same masks again in the pass with gradients, and
        the running statistics of the batch-norms are put back.
        """
        penalty = self.regularizer
        if penalty is not None and not penalty.couples_samples:
            penalty = None
        pairs = targets if self.distiller is not None and self.distiller.couples_samples else None
        if penalty is None and pairs is None:
            return None, None
        buffers = {name: value.clone() for name, value in self.backbone.named_buffers()}
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), self._autocast():
            embeddings = torch.cat([self._plain_model(x) for x in micro])
        for name, value in self.backbone.named_buffers():
            value.copy_(buffers[name])
        mean_norm = None if penalty is None else penalty.global_mean_norm(embeddings)
        return mean_norm, None if pairs is None else WholeBatch(embeddings, pairs)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self.precision)
        return torch.autocast(self.device.type, dtype) if dtype else contextlib.nullcontext()

    def _no_sync(self) -> contextlib.AbstractContextManager[Any]:
        if isinstance(self.model, DistributedDataParallel):
            return self.model.no_sync()
        return contextlib.nullcontext()

    def _create_scaler(self) -> torch.amp.GradScaler:
        options: dict[str, Any] = {
            "enabled": self.precision == "fp16",
            "growth_interval": 100,  # as arcface_torch
        }
        if self.processes.world_size > 1 and options["enabled"]:
            # Imported here because FSDP is heavy. It makes all ranks skip a step that overflows
            # on one of them; without that the class shards would drift apart.
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            return ShardedGradScaler(self.device.type, **options)
        return torch.amp.GradScaler(self.device.type, **options)

    # ---------------------------------------------------------------- the run

    def fit(self, max_steps: int | None = None) -> None:
        """Train to the end of the recipe, or to the first SIGTERM; save, validate and report.

        Args:
            max_steps: stop as after SIGTERM when the run has so many steps.

        Raises:
            TrainingError: the loss is not finite, or for too many steps in a row if they may be
                skipped; the last checkpoint is from before that. Or a loader process died.
            CheckpointError: a checkpoint cannot be written.
        """
        self.initialize()
        if self._is_done() or (max_steps is not None and self.step >= max_steps):
            return
        pending: tuple[int, LateFigures] | None = None
        with (
            self._signals(),
            self.monitor,
            self._writer or contextlib.nullcontext(),
            self._explain_dead_workers(),
            explain_compile_errors(),
        ):
            for batch in self._batches():
                self.skipped += batch.skipped
                figures = self.train_step(batch)
                present = (self.step, LateFigures(figures["loss"], figures["norm_mean"]))
                if self._guard is not None:
                    count = float(self._guard.count)
                    figures["nonfinite"] = torch.full((), count, device=self.device)
                    self._check_finite(*present)
                if pending:  # a step late, so that the device always has a step to work on
                    self._check_finite(*pending)
                pending = present
                self.monitor.record(self.step, figures, self.lr, len(self.skipped))
                stopping = self._stopping() or self.step == max_steps
                finished = self.step == self.total_steps
                epoch, within = divmod(self.step, self.steps_per_epoch)
                if not within:
                    self.monitor.end_epoch(epoch)
                    due = epoch % self.recipe.validation.every_epochs == 0
                    if due and not (stopping or finished):
                        self._check_finite(*pending)
                        self.validate(epoch)  # before the checkpoint, which holds the best figure
                if stopping or finished or self.step % self.recipe.checkpoints.every_steps == 0:
                    self._check_finite(*pending)
                    self.save_checkpoint()
                if stopping:
                    break
            if self.step == self.total_steps:
                self.validate(self.recipe.epochs)
                if self._writer is not None:
                    self._writer.wait()
                if self.average is not None:
                    self.save_model("raw.safetensors", self.backbone, weights="raw")
                self.save_model("model.safetensors")
        self._write_skipped()

    def _is_done(self) -> bool:
        """Tell whether nothing is left to do; the model is what a run writes last."""
        done = self.folder is None or (self.folder / "model.safetensors").is_file()
        return self.step >= self.total_steps and not self.processes.any(not done)

    @property
    def interrupted(self) -> bool:
        """True if `fit` ended before the last step, because of SIGTERM or ``max_steps``."""
        return self.step < self.total_steps

    def validate(self, epoch: int) -> dict[str, VerificationResult]:
        """Score the packs; keep the weights with the best mean accuracy as ``best.safetensors``."""
        if self.validator is None:
            return {}
        self.state.share_buffers()
        results = self.validator(self.final_backbone)
        self.monitor.validation(self.step, epoch, results)
        accuracies = {
            name: result.accuracy.kfold.mean
            for name, result in results.items()
            if result.accuracy is not None  # fewer pairs than folds
        }
        mean = sum(accuracies.values()) / max(len(accuracies), 1)
        if mean > self.best_accuracy:
            self.best_accuracy = mean
            self.save_model("best.safetensors", selected_on=accuracies)
        return results

    @property
    def final_backbone(self) -> nn.Module:
        """What is validated and saved as the model: the average of weights where there is one."""
        return self.backbone if self.average is None else self.average.module

    def save_model(self, name: str, backbone: nn.Module | None = None, **extra: Any) -> None:
        """Write a backbone's weights with the recipe inside, on the main process.

        Args:
            name: of the file in the run's folder.
            backbone: by default `final_backbone`.
            extra: facts to keep in the file, as JSON types.
        """
        weights = {} if self.average is None else {"weights": "ema"}
        if self.folder is not None and self.processes.is_main:
            save_model(
                self.folder / name,
                self.final_backbone if backbone is None else backbone,
                self.recipe.backbone,
                self.recipe.preprocessing,
                to_dict(self.recipe),
                extra={"step": self.step, **weights, **extra},
            )
        self.processes.barrier()

    def _batches(self) -> Iterator[Batch]:
        """Load this rank's batches from the present step on."""
        loader = BatchLoader(
            self._images,
            self._sampler(start=self.step),
            workers=self.workers,
            pin_memory=self.device.type == "cuda",
        )
        with self._explain_dead_workers():
            yield from prefetched(loader, self.device)

    @contextlib.contextmanager
    def _explain_dead_workers(self) -> Iterator[None]:
        """Word what torch raises, from wherever training is, when a loader process died."""
        try:
            yield
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            how = re.search(r"killed by signal: (\w+( \w+)*)", str(error))
            likely = (
                "shared memory (/dev/shm) is full, or a file was cut short while it was read"
                if how and how[1].startswith("Bus error")
                else "the memory may be too small for so many workers"
            )
            raise TrainingError(
                f"step {self.step}: a loader process died ({how[1] if how else 'no signal'}); "
                f"{likely}; go on with --resume, and if it dies again with fewer --workers"
            ) from error

    def _write_skipped(self) -> None:
        """List the images that could not be used in ``skipped.json`` (those of all ranks)."""
        every = self._all_skipped()
        if every and self.folder is not None and self.processes.is_main:
            write_json(self.folder / "skipped.json", every)

    def _all_skipped(self) -> list[dict[str, Any]]:
        """Return what all ranks skipped, as JSON types."""
        shares = self.processes.gather_objects(self.skipped)
        return [dataclasses.asdict(item) for share in shares for item in share]

    def _sampler(self, start: int) -> GlobalBatchSampler:
        return GlobalBatchSampler(
            len(self.dataset),
            self.recipe.batch_size,
            accumulation=self.recipe.accumulation,
            epochs=self.recipe.epochs,
            seed=self.recipe.seed,
            rank=self.processes.rank,
            world_size=self.processes.world_size,
            start=start,
            order=self.recipe.sampling,
            labels=self.dataset.labels if self.recipe.sampling.by_identity else None,
            weights=self.dataset.weights,
        )

    @functools.cached_property
    def _guard(self) -> NonfiniteGuard | None:
        """Skips steps that are not finite, if the recipe says so."""
        if self.recipe.on_nonfinite == "stop":
            return None
        modules: list[nn.Module] = [self.backbone, self.head]
        modules += [] if self.regularizer is None else [self.regularizer]
        changing = [buffer for module in modules for buffer in module.buffers()]
        if self.regularizer is not None:
            changing += self.regularizer.parameters()  # a first batch sets a learned radius
        return NonfiniteGuard(self.optimizer, changing, self.processes, self.scaler.is_enabled())

    def _check_finite(self, step: int, figures: LateFigures) -> None:
        if self._guard is not None:
            if self._guard.in_a_row < LIMIT:
                return
            what = f"the last {LIMIT} steps were skipped because loss or gradient was not finite"
        else:
            loss, norm = figures.read()
            if math.isfinite(loss) and math.isfinite(norm):
                return
            what = f"the loss is {loss} with a mean embedding norm of {norm}"
        if self._writer is not None:
            with contextlib.suppress(CheckpointError):  # this error tells more
                self._writer.wait()
        last = checkpoint.latest(self.folder / "checkpoints") if self.folder else None
        kept = f"the last good checkpoint is {last}" if last else "no checkpoint was written yet"
        raise TrainingError(
            f"step {step}: {what}; {kept}; lower the learning rate, lengthen the warm-up or use "
            "precision fp32"
        )

    # ---------------------------------------------------------------- signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Remember SIGTERM instead of dying from it (only the main thread may do so)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def remember(number: int, frame: FrameType | None) -> None:
            self._stop_signal = number

        previous = signal.signal(signal.SIGTERM, remember)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)

    def _stopping(self) -> bool:
        """Agree with all ranks whether to stop.

        Several ranks ask each other only now and then, and hear a step later, so that the device
        always has one to work on.
        """
        stop = self._stop_signal is not None
        if self.processes.world_size == 1:
            return stop
        asked, self._asked = self._asked, None
        if self.step % self.recipe.log_every == 0:
            self._asked = LateFigures(self.processes.largest(float(stop)))
        return asked is not None and asked.read()[0] > 0

    # ---------------------------------------------------------------- checkpoints

    @functools.cached_property
    def _writer(self) -> checkpoint.CheckpointWriter | None:
        """Writes the checkpoints, if there is a folder for them."""
        if self.folder is None:
            return None
        config = self.recipe.checkpoints
        return checkpoint.CheckpointWriter(
            self.folder / "checkpoints", self.processes, config.keep, config.asynchronous
        )

    def save_checkpoint(self) -> None:
        """Begin to write ``checkpoints/step-N`` (all ranks together)."""
        if self._writer is None:
            return
        self.state.share_buffers()
        tensors, own = self.state.tensors(), self.state.random()
        self._writer.save(
            self.step,
            tensors | own,
            {
                "world_size": self.processes.world_size,
                "best_accuracy": self.best_accuracy,
                "benches": list(self.recipe.validation.benches),
                "scaler": self.scaler.state_dict(),
                "skipped_images": self._all_skipped(),
                "nonfinite": self._guard.count if self._guard is not None else 0,
                "kernel": self.head.kernel,
            },
        )

    def resume(self) -> None:
        """Continue from the newest whole checkpoint of the run's folder.

        Bit for bit if the number of ranks is that of the checkpoint. Otherwise the weights, the
        optimizer's state and the data order are the same and only dropout draws other masks.

        Raises:
            CheckpointError: none there, damaged, or of another architecture.
        """
        if self.folder is None or self._writer is None:
            return
        self._writer.wait()
        if self.processes.is_main:
            checkpoint.remove_leftovers(self.folder / "checkpoints")
        newest = self.processes.broadcast_object(checkpoint.latest(self.folder / "checkpoints"))
        self.state.create_optimizer_state()
        tensors, own = self.state.tensors(), self.state.random()
        state = checkpoint.load(newest, tensors, own, self.processes)
        if state.pop("found"):
            self.state.set_random(own)
        where = f"{newest / checkpoint.STATE_FILE}"
        try:
            saved = from_dict(SavedFacts, state, where)
            self.scaler.load_state_dict(dict(saved.scaler))
        except (RecipeError, RuntimeError, LookupError, TypeError) as error:
            what = str(error) if isinstance(error, RecipeError) else f"{where}: scaler: {error!r}"
            raise CheckpointError(f"{what}; delete it to go on from an earlier one") from error
        self.step = saved.step
        if self.recipe.head.kernel == "auto":
            self.head.keep_kernel(saved.kernel)
        if self._guard is not None:
            self._guard.count = saved.nonfinite
        if saved.benches == self.recipe.validation.benches:
            self.best_accuracy = saved.best_accuracy
        if self.processes.is_main:
            self.skipped = list(saved.skipped_images)


def _average(micro_figures: list[Figures]) -> Figures:
    """Combine the figures of micro-batches of equal size."""
    if len(micro_figures) == 1:
        return micro_figures[0]
    stacked = {
        name: torch.stack([figures[name] for figures in micro_figures]) for name in micro_figures[0]
    }
    result = {name: values.mean() for name, values in stacked.items()}
    result["norm_min"] = stacked["norm_min"].min()
    # The spread inside the micro-batches and that between them.
    result["norm_variance"] += stacked["norm_mean"].var(correction=0)
    return result
