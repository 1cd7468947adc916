"""What learns: the network, the terms of its loss and the optimizer of a recipe, step by step.

A batch of uint8 images is normalized on the device, becomes raw embeddings, and ends in the terms
of `facerec.training.terms`, whose sum goes backward (`facerec.training.step`). Nothing here knows
of files; `facerec.training.trainer` makes a run of the steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from facerec.backbones import create_backbone, recompute_activations
from facerec.base.devices import has_fast_bf16, set_numerics
from facerec.base.progress import Progress
from facerec.embedding.torch_model import Precision, TorchModel
from facerec.heads.output import Figures
from facerec.records.dataset import Batch, BatchSource, FaceDataset
from facerec.training.distillation import TaughtDataset, TeacherTargets, teacher_targets
from facerec.training.distributed import Processes
from facerec.training.ema import WeightAverage
from facerec.training.finetuning import Freezing, rate_factors
from facerec.training.initialization import Start, set_class_means, start_from_weights
from facerec.training.network import FromPixels, data_parallel, explained
from facerec.training.optimization import parameter_groups, set_learning_rate
from facerec.training.recipe import Recipe
from facerec.training.row_update import RowUpdate
from facerec.training.sampler import GlobalBatchSampler
from facerec.training.state import TrainingState
from facerec.training.step import Stepper
from facerec.training.terms import MarginTerm, create_terms, margin_of


class Learner:
    """The network, losses and optimizer of a recipe, as one of the processes of `Processes`.

    Attributes:
        stepper: takes the steps.
        head: the class centres of this rank, where the recipe has a margin.
        start: what the weights were read from, if `initialize` did so.
        lr: learning rate of the last step, before the factors of parameter groups.
        average: moving average of the backbone's weights, if the recipe asks for one.
        compiled: whether torch.compile makes a program of the backbone.

    Args:
        recipe: the whole configuration.
        dataset: the training images.
        processes: this rank among its peers.
        progress: of making the embeddings of the recipe's teacher.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: FaceDataset,
        processes: Processes,
        progress: Progress | None = None,
    ) -> None:
        self.recipe, self.dataset, self.processes = recipe, dataset, processes
        self.device, self.precision = processes.device, recipe.precision
        recipe.micro_batch(processes.world_size)  # or it says why not
        if self.precision == "auto":
            fast = processes.broadcast_object(has_fast_bf16(self.device))
            self.precision = "bf16" if fast else "fp32"
        on_gpu = self.device.type == "cuda"
        self.compiled = on_gpu if recipe.compile == "auto" else recipe.compile
        set_numerics(self.device, recipe.deterministic, recipe.tf32)
        # Dropout is the only user of torch's global generator; ranks must differ in it.
        torch.manual_seed(recipe.seed * 1_000_003 + processes.rank)

        self.targets: TeacherTargets | None = None
        self.images: BatchSource = dataset
        if (taught := recipe.distillation) is not None:
            self.targets = teacher_targets(taught, dataset, processes, recipe.workers, progress)
            self.images = TaughtDataset(dataset, taught, self.targets)
        with explained(recipe.data.path):
            self.terms = create_terms(recipe, dataset, self.targets)
            for term in self.terms:
                term.module.to(self.device)
            backbone = create_backbone(recipe.backbone, seed=recipe.seed)
            if recipe.recompute:
                recompute_activations(backbone)
            self.backbone = backbone.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.warnings = [sentence for term in self.terms for sentence in term.warnings(recipe)]
        margin = margin_of(self.terms)
        self.head = None if margin is None else margin.module
        if self.head is not None:
            kernel = recipe.head.kernel
            kernel = "torch" if kernel == "auto" and recipe.deterministic else kernel
            self.head.choose_kernel(kernel, recipe.batch_size // recipe.accumulation)
        self.average = WeightAverage(self.backbone, recipe.ema) if recipe.ema is not None else None
        self.freezing = Freezing(self.backbone, recipe.finetune)

        sampler = self.sampler_from(0)
        self.steps_per_epoch, self.total_steps = sampler.steps_per_epoch, sampler.total_steps
        self.stepper = self._create_stepper(margin)
        self.state = TrainingState(
            self.backbone, self.terms, self.average, self.stepper.optimizer, processes
        )
        # A checkpoint has that of parameters that have not moved yet, too; and torch 2.13 takes
        # what is in the memory for SGD's where a gradient scaler calls off the first step.
        self.state.create_optimizer_state()
        self.start: Start | None = None
        self.lr = 0.0

    @property
    def teacher(self) -> str | None:
        """SHA-256 of the teacher's file; None without one."""
        return None if self.targets is None else str(self.targets.note["teacher"])

    @property
    def step(self) -> int:
        """How many steps have been taken."""
        return self.stepper.step

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
        self.start = start_from_weights(recipe, self.backbone, self.processes)
        if self.head is not None and recipe.init.head == "class_means":
            precision: Precision = "bf16" if self.precision == "bf16" else "fp32"
            model = TorchModel(self.backbone, recipe.preprocessing, precision=precision)
            own = set_class_means(self.head, model, self.dataset, progress)
            count = sum(self.processes.gather_objects(own))
            self.start = replace(self.start, head=f"along the class means of {count:,} images")
        if self.average is not None:
            self.average.restart()

    def train_step(self, batch: Batch) -> Figures:
        """Do one optimizer step on this rank's share of a global batch, and return its figures.

        All ranks have to get shares of the same size.
        """
        recipe = self.recipe
        factor = recipe.schedule.factor(self.step, self.total_steps, self.steps_per_epoch)
        self.lr = recipe.optimizer.lr * factor
        set_learning_rate(self.stepper.optimizer, self.lr)
        self.freezing.begin(self.step)
        self.stepper.frozen = bool(self.freezing.whole)

        def here(tensor: Tensor) -> Tensor:
            return tensor.to(self.device, non_blocking=True)

        targets = None if batch.targets is None else here(batch.targets)
        figures = self.stepper.take(here(batch.images), here(batch.labels), targets)
        if self.average is not None:
            self.average.update(self.step)
        return figures

    def _create_stepper(self, margin: MarginTerm | None) -> Stepper:
        """Compile and share out the network as the recipe says, and make the optimizer."""
        recipe, ranks = self.recipe, self.processes.world_size
        network = FromPixels(self.backbone, recipe.preprocessing)
        model = cast(nn.Module, torch.compile(network)) if self.compiled else network
        # torch refuses to average the gradients of what is frozen for good.
        if ranks > 1 and any(p.requires_grad for p in self.backbone.parameters()):
            model = data_parallel(model, recipe.data_parallel)
        groups = parameter_groups(
            [self.backbone, *(term.module for term in self.terms)],
            recipe.optimizer,
            plain=[parameter for term in self.terms for parameter in term.plain],
            factors=rate_factors(self.backbone, recipe.finetune),
        )
        kind: type[GradScaler] = GradScaler
        enabled = self.precision == "fp16"
        if enabled and ranks > 1:
            # Imported here because FSDP is heavy. It makes all ranks skip a step that overflows
            # on one of them; without that the class shards would drift apart.
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            kind = ShardedGradScaler
        optimizer = recipe.optimizer.create(groups)
        if margin is not None:
            # A step that may be called off needs all gradients, or half of it would be taken.
            margin.update = RowUpdate(optimizer, margin.module.weight, at_once=not enabled)
        scaler = kind(self.device.type, enabled=enabled, growth_interval=100)  # as arcface_torch
        return Stepper(
            network,
            self.terms,
            optimizer,
            self.total_steps,
            model,
            precision=self.precision,
            scaler=scaler,
            accumulation=recipe.accumulation,
            clip_norm=recipe.clip_norm,
        )

    def sampler_from(self, start: int) -> GlobalBatchSampler:
        """Return the order of this rank's images from a step on."""
        return GlobalBatchSampler(
            len(self.dataset),
            self.recipe.batch_size,
            epochs=self.recipe.epochs,
            seed=self.recipe.seed,
            rank=self.processes.rank,
            world_size=self.processes.world_size,
            start=start,
            labels=self.dataset.labels if self.recipe.sampling == "balanced" else None,
            weights=self.dataset.weights,
        )
