"""What learns: the network, its losses and the optimizer of a recipe, one step at a time.

A batch of uint8 images is normalized on the device, becomes raw embeddings, and ends in two losses:
the margin softmax over the global batch and the penalty on the embeddings' norms. Nothing here
knows of files; `facerec.training.trainer` makes a run of the steps.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from facerec.backbones import create_backbone, recompute_activations
from facerec.devices import has_fast_bf16, set_numerics
from facerec.errors import RecipeError
from facerec.heads.classifier import ClassifierOutput
from facerec.heads.distillation_loss import DistillationLoss, DistillationOutput, WholeBatch
from facerec.heads.norm_regularizer import (
    RegularizerOutput,
    combination_warnings,
    create_regularizer,
    global_moments,
)
from facerec.progress import Progress
from facerec.records.dataset import Batch, BatchSource, FaceDataset
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
from facerec.training.finetuning import Freezing, rate_factors, refuse_single_images
from facerec.training.head import create_head, explain_full_memory, rate_warnings
from facerec.training.initialization import Start, initialize
from facerec.training.monitor import Figures
from facerec.training.network import CUDA_GRAPHS, FromPixels, compile_mode, compiled
from facerec.training.nonfinite import NonfiniteGuard
from facerec.training.optimization import MultiStep, parameter_groups, set_learning_rate
from facerec.training.recipe import Recipe
from facerec.training.row_update import RowUpdate
from facerec.training.sampler import GlobalBatchSampler
from facerec.training.state import TrainingState

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Learner:
    """The network, losses and optimizer of a recipe, as one of the processes of `Processes`.

    Attributes:
        step: how many it has done.
        phase: entered around each part of a step with its name: ``forward``, ``head``, ``backward``
            and ``optimizer``; by default these are ranges for torch's profiler.
        start: what the weights were read from, if `initialize` did so.
        lr: learning rate of the last step, before the factors of parameter groups.
        average: moving average of the backbone's weights, if the recipe asks for one.

    Args:
        recipe: the whole configuration.
        dataset: the training images.
        processes: this rank among its peers.
        targets: of the recipe's teacher; by default they are made or opened here.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: FaceDataset,
        processes: Processes,
        targets: TeacherTargets | None = None,
    ) -> None:
        self.recipe, self.dataset, self.processes = recipe, dataset, processes
        self.device = processes.device
        self.precision = recipe.precision
        if self.precision == "auto":
            fast = processes.broadcast_object(has_fast_bf16(self.device))
            self.precision = "bf16" if fast else "fp32"
        self.step = 0
        self.warnings = combination_warnings(
            recipe.regularizer, recipe.margin, recipe.backbone.embedding_bn
        )
        if self.precision == "bf16" and not has_fast_bf16(self.device):
            self.warnings.append(
                f"the recipe asks for bf16, which this {self.device.type} only emulates, many "
                "times slower; use precision auto or fp32"
            )
        self.start: Start | None = None
        self.lr = 0.0
        self.phase: Callable[[str], contextlib.AbstractContextManager[Any]] = record_function

        set_numerics(self.device, recipe.deterministic, recipe.tf32)
        # Dropout is the only user of torch's global generator; ranks must differ in it.
        torch.manual_seed(recipe.seed * 1_000_003 + processes.rank)
        self.targets: TeacherTargets | None = None
        self.distiller: DistillationLoss | None = None
        self._images: BatchSource = dataset
        if (taught := recipe.distillation) is not None:
            self.targets = targets or teacher_targets(taught, dataset, processes)
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
        micro_batch = recipe.batch_size // (processes.world_size * recipe.accumulation)
        refuse_single_images(micro_batch, self.backbone, recipe.finetune)
        self.compile_mode = compile_mode(recipe.compile, self.device.type, recipe.recompute)
        self._plain_model = FromPixels(self.backbone, recipe.preprocessing)
        self.model = compiled(self._plain_model, self.compile_mode)
        # torch refuses to average the gradients of what is frozen for good.
        if processes.world_size > 1 and any(p.requires_grad for p in self.backbone.parameters()):
            self.model = data_parallel(self.model, recipe.data_parallel)
        groups = parameter_groups(
            [m for m in (self.backbone, self.head, self.distiller) if m is not None],
            recipe.optimizer,
            plain=self.regularizer.parameters() if self.regularizer else (),
            factors=rate_factors(self.backbone, recipe.finetune),
        )
        if not groups:
            raise RecipeError(
                "finetune.freeze_layers names all layers and freezes them for good, so nothing "
                "learns; name fewer, or give freeze_steps a number"
            )
        self.optimizer = recipe.optimizer.create(groups)
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
        self.warnings += _length_warnings(recipe, self.total_steps)
        if recipe.finetune.freeze_steps:
            # A checkpoint has the state of parameters that have not moved yet, too.
            self.state.create_optimizer_state()
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def initialize(self, progress: Progress | None = None) -> None:
        """Start from the weights that the recipe names, once and before the first step.

        All ranks call this together; `Trainer.fit` does so where nobody did. A run that is resumed
        has its weights from its checkpoint.

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


def _length_warnings(recipe: Recipe, total_steps: int) -> Iterator[str]:
    """Say what of the schedules lies behind the end of the run."""
    epochs = f"since the run has {recipe.epochs} epoch{'s' * (recipe.epochs > 1)}"
    if recipe.schedule.warmup_epochs >= recipe.epochs:
        yield (
            f"schedule.warmup_epochs {recipe.schedule.warmup_epochs:g} is never over, {epochs}; "
            "the learning rate only rises"
        )
    milestones = recipe.schedule.milestones if isinstance(recipe.schedule, MultiStep) else ()
    for milestone in milestones:
        if milestone >= recipe.epochs:
            yield f"the milestone {milestone:g} of the schedule is never reached, {epochs}"
    if (recipe.finetune.freeze_steps or 0) >= total_steps:
        yield (
            f"what finetune.freeze_steps {recipe.finetune.freeze_steps} freezes never learns, "
            f"since the run has {total_steps:,} steps"
        )


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
