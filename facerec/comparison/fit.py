"""Train one arm on one fold: early stopping on the validation classes, the best weights kept."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from facerec.comparison.batches import class_batches, derived_seed, hard_batches, two_views
from facerec.comparison.features import FeatureReader, FeatureSet
from facerec.comparison.image_sets import ImageSet
from facerec.comparison.losses import LossModule, create_loss
from facerec.comparison.probe import Probe, probe_step
from facerec.comparison.protocol import METRICS, Arm, Metric, Protocol
from facerec.comparison.retrieval import retrieve
from facerec.comparison.splits import Fold, select_classes
from facerec.comparison.transforms import BatchReader, Transform
from facerec.comparison.trunks import Trunk, create_trunk
from facerec.devices import has_fast_bf16
from facerec.errors import MetricError
from facerec.heads import create_regularizer
from facerec.training.optimization import parameter_groups

SELECTED_BY: Metric = "map_at_r"
"""What early stopping and the search go by."""

_EVALUATION_BATCH = 128
_CACHE_BYTES = 2 << 30  # of decoded images, for each transform

_Figures = dict[str, float | None]
"""Of an epoch's training: loss, penalty, center."""


@dataclass(frozen=True)
class Point:
    """The state after an epoch; epoch 0 is the untrained model."""

    epoch: int
    map_at_r: float
    r_precision: float
    precision_at_1: float
    norm_mean: float
    """Mean norm of the raw validation embeddings, in evaluation mode."""
    norm_cv2: float
    """Variance of these norms over their squared mean."""
    loss: float | None = None
    """Mean training loss of the epoch, without penalty."""
    penalty: float | None = None
    """Mean weighted penalty of the epoch."""
    center: float | None = None
    """The penalty's μ at the end of the epoch."""

    @property
    def score(self) -> float:
        """The figure that early stopping and the search go by."""
        return float(getattr(self, SELECTED_BY))


@dataclass(frozen=True)
class Fit:
    """How training went."""

    score: float | None
    """Best validation MAP@R; None if training failed."""
    epoch: int
    """When that was."""
    curve: tuple[Point, ...]
    seconds: float
    failure: str | None = None
    """Why there is no score."""
    probes: tuple[Probe, ...] = ()


@dataclass
class _Model:
    """One model in training: its modules, its data, and what is remembered of its epochs."""

    trunk: nn.Module
    loss: LossModule
    regularizer: nn.Module | None
    positions: NDArray[np.int64]
    """Training images."""
    targets: NDArray[np.int64]
    """Their classes, numbered from 0."""
    held_out: NDArray[np.int64]
    """Validation images."""
    curve: list[Point] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Of the best epoch."""
    best: Point | None = None
    batches: NDArray[np.int64] | None = None
    """Of the present epoch, as indices of ``positions``."""
    probes: list[Probe] = field(default_factory=list)
    seconds: float = 0.0
    failure: str | None = None
    done: bool = False

    def add(self, point: Point) -> None:
        """Take in the figures of an epoch; keep the weights if it is the best."""
        self.curve.append(point)
        if self.best is None or point.score > self.best.score:
            self.best = point
            self.weights = copy.deepcopy(self.trunk.state_dict())

    def fail(self, why: str) -> None:
        """End training without a score."""
        self.failure, self.done = why, True

    def result(self) -> tuple[Fit, nn.Module]:
        """Return how training went, and the trunk of the best epoch in evaluation mode."""
        assert self.best is not None
        self.trunk.load_state_dict(self.weights)
        fit = Fit(
            score=None if self.failure else self.best.score,
            epoch=self.best.epoch,
            curve=tuple(self.curve),
            seconds=round(self.seconds, 3),
            failure=self.failure,
            probes=tuple(self.probes),
        )
        return fit, self.trunk.eval()


class Trainer:
    """Trains arms on the folds of an image set.

    Args:
        images: all classes, test classes among them.
        device: where to compute.

    Attributes:
        in_step: whether the folds of an arm are best trained together (`fit_folds`): on features,
            where most of a step is not arithmetic.
    """

    def __init__(self, images: ImageSet, device: torch.device) -> None:
        self.images, self.labels, self.device = images, images.labels, device
        self.in_step = isinstance(images, FeatureSet)
        self._readers: dict[Transform | None, BatchReader | FeatureReader] = {}

    def create_trunk(self, config: Trunk, seed: int) -> nn.Module:
        """Build the network for these images or features; see `trunks.create_trunk`."""
        features = self.images.size if isinstance(self.images, FeatureSet) else None
        trunk = create_trunk(config, seed, features)
        # Convolutions on a CPU take half the time so.
        return trunk.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def fit_folds(
        self, arm: Arm, protocol: Protocol, folds: Sequence[Fold], seed: int
    ) -> list[tuple[Fit, nn.Module]]:
        """Train a model on each of some folds, all in step.

        A loss that is not finite ends training; the fit then says so and has no score. The models
        share the optimizer, whose arithmetic is element by element, and nothing else: each is
        the model that its fold alone would give but for the rounding of sums. One that stops early
        costs no more time.

        Args:
            arm: its setting written into it.
            protocol: of the arm.
            folds: classes to train and to validate on.
            seed: of weights, batches and augmentation; equal for all arms.

        Returns:
            How each training went, and the trunk of its best epoch in evaluation mode.
        """
        if protocol.probe_every and len(folds) > 1:  # a probe makes the step of its model itself
            return [self.fit_folds(arm, protocol, [fold], seed)[0] for fold in folds]
        models = [self._begin(arm, protocol, fold, seed) for fold in folds]
        optimizer = self._optimizer(arm, protocol, models)
        base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        for model in models:
            model.add(self._validate(model, protocol, 0))
        for epoch in range(1, protocol.epochs + 1):
            training = [model for model in models if not model.done]
            if not training:
                break
            started = time.perf_counter()
            for model in training:
                model.batches = self._batches(protocol, model, seed, epoch)
            with torch.random.fork_rng(self._cuda()):
                torch.manual_seed(derived_seed(seed, epoch))  # dropout
                figures = self._train_epoch(
                    arm, protocol, training, optimizer, base_lrs, seed, epoch
                )
            for model, figure in zip(training, figures, strict=True):
                self._end_epoch(protocol, model, epoch, figure)
            share = (time.perf_counter() - started) / len(training)
            for model in training:
                model.seconds += share
        return [model.result() for model in models]

    @torch.no_grad()
    def embed(
        self, trunk: nn.Module, positions: NDArray[np.int64], protocol: Protocol
    ) -> NDArray[np.float32]:
        """Return raw embeddings ``(m, D)`` of images, in evaluation mode."""
        trunk.eval()
        chunks = []
        reader = self._reader(protocol)
        for images in reader.evaluate(positions, _EVALUATION_BATCH):
            with self._autocast(protocol):
                x = reader.normalize(images.to(self.device, non_blocking=True))
                chunks.append(trunk(x).float().cpu())
        return torch.cat(chunks).numpy()

    # ---------------------------------------------------------------- steps of a training

    def _begin(self, arm: Arm, protocol: Protocol, fold: Fold, seed: int) -> _Model:
        size = protocol.trunk.embedding_size
        penalty = arm.regularizer
        return _Model(
            self.create_trunk(protocol.trunk, seed),
            create_loss(arm.loss, len(fold.train), size, seed).to(self.device),
            create_regularizer(penalty, scale=arm.loss.cosine_factor).to(self.device)
            if penalty
            else None,
            *select_classes(self.labels, fold.train),
            select_classes(self.labels, fold.validation)[0],
        )

    def _optimizer(
        self, arm: Arm, protocol: Protocol, models: Sequence[_Model]
    ) -> torch.optim.Optimizer:
        config = protocol.optimizer
        plain = [p for model in models if model.regularizer for p in model.regularizer.parameters()]
        own = parameter_groups([nn.ModuleList(model.loss for model in models)], config)
        trunks = nn.ModuleList(model.trunk for model in models)
        groups = [
            *parameter_groups([trunks], config, plain=plain),
            *({**group, "lr": arm.loss_lr} for group in own),
        ]
        return config.create(groups)

    def _batches(
        self, protocol: Protocol, model: _Model, seed: int, epoch: int
    ) -> NDArray[np.int64]:
        """Return the batches of an epoch, as indices of the model's positions."""
        shape, every = protocol.batch, protocol.remine_every
        if not every or epoch == 1:
            return class_batches(
                model.targets, shape.classes, shape.per_class, seed, epoch, protocol.steps_per_epoch
            )
        if (epoch - 1) % every and model.batches is not None:
            return model.batches
        return hard_batches(
            self.embed(model.trunk, model.positions, protocol),
            model.targets,
            shape.classes,
            shape.per_class,
            seed,
            epoch,
            protocol.steps_per_epoch,
        )

    def _train_epoch(
        self,
        arm: Arm,
        protocol: Protocol,
        models: Sequence[_Model],
        optimizer: torch.optim.Optimizer,
        base_lrs: Sequence[float],
        seed: int,
        epoch: int,
    ) -> list[_Figures]:
        """Train every model for an epoch and return the figures of each."""
        for model in models:
            model.trunk.train()
            model.loss.train()
        total = protocol.epochs * protocol.steps_per_epoch
        reader = self._reader(protocol)
        losses, penalties = [], []
        centers: list[Tensor | None] = [None] * len(models)
        for k in range(protocol.steps_per_epoch):
            step = (epoch - 1) * protocol.steps_per_epoch + k
            factor = (
                protocol.schedule.factor(step, total, protocol.steps_per_epoch)
                if protocol.schedule
                else 1.0
            )
            for group, lr in zip(optimizer.param_groups, base_lrs, strict=True):
                group["lr"] = lr * factor
            images, embeddings, labels = [], [], []
            for model in models:
                assert model.batches is not None
                indices = model.batches[k]
                if arm.loss.views == 2:
                    indices = two_views(indices)
                x = reader.train(model.positions[indices], seed, step)
                images.append(reader.normalize(x.to(self.device, non_blocking=True)))
                labels.append(torch.from_numpy(model.targets[indices]).to(self.device))
                with self._autocast(protocol):
                    embeddings.append(model.trunk(images[-1]).float())
            metrics = torch.stack(
                [m.loss(x, y) for m, x, y in zip(models, embeddings, labels, strict=True)]
            )
            loss = metrics.sum()
            losses.append(metrics.detach())
            if arm.regularizer is not None:
                terms = [
                    model.regularizer(x, progress=step / total)
                    for model, x in zip(models, embeddings, strict=True)
                    if model.regularizer is not None
                ]
                weighted = torch.stack([term.loss for term in terms])
                loss = loss + weighted.sum()
                penalties.append(weighted.detach())
                centers = [term.figures["center"] for term in terms]

            def update(loss: Tensor = loss) -> None:
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                if protocol.clip_norm is not None:
                    for model in models:
                        nn.utils.clip_grad_norm_(_owned(model), protocol.clip_norm)
                optimizer.step()

            if protocol.probe_every and k == 0 and (epoch - 1) % protocol.probe_every == 0:
                (model,) = models
                model.probes.append(
                    probe_step(epoch, model.trunk, images[0], embeddings[0], metrics[0], update)
                )
            else:
                update()
        means = torch.stack(losses).mean(0).tolist()
        costs: list[float | None] = [None] * len(models)
        if penalties:
            costs = torch.stack(penalties).mean(0).tolist()
        return [
            {"loss": mean, "penalty": cost, "center": None if center is None else float(center)}
            for mean, cost, center in zip(means, costs, centers, strict=True)
        ]

    def _end_epoch(self, protocol: Protocol, model: _Model, epoch: int, figures: _Figures) -> None:
        """Validate a model, keep it if it is the best, and end its training if it should."""
        if not math.isfinite(figures["loss"] or 0.0) or not _all_finite(model.trunk):
            model.fail(f"the loss is {figures['loss']} in epoch {epoch}")
            return
        try:
            model.add(self._validate(model, protocol, epoch, figures))
        except MetricError as error:  # embeddings that are zero or not finite
            model.fail(f"epoch {epoch}: {error}")
            return
        assert model.best is not None
        model.done = epoch - model.best.epoch >= protocol.patience

    def _validate(
        self, model: _Model, protocol: Protocol, epoch: int, figures: _Figures | None = None
    ) -> Point:
        embeddings = self.embed(model.trunk, model.held_out, protocol)
        means = retrieve(embeddings, self.labels[model.held_out], ks=(1,)).means()
        retrieval = {str(name): means[name] for name in METRICS}
        measured: dict[str, Any] = {**retrieval, **norm_figures(embeddings)}
        return Point(epoch, **measured | (figures or {}))

    def _reader(self, protocol: Protocol) -> BatchReader | FeatureReader:
        transform = protocol.transform
        if transform not in self._readers:
            if isinstance(self.images, FeatureSet):
                self._readers[transform] = FeatureReader(self.images)
            else:
                assert transform is not None  # `Comparison.check`
                self._readers[transform] = BatchReader(
                    self.images, transform, cache_bytes=_CACHE_BYTES
                )
        return self._readers[transform]

    def _autocast(self, protocol: Protocol) -> contextlib.AbstractContextManager[Any]:
        wanted = protocol.precision == "bf16" or (
            protocol.precision == "auto" and has_fast_bf16(self.device)
        )
        return torch.autocast(self.device.type, torch.bfloat16, enabled=wanted)

    def _cuda(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []


def norm_figures(embeddings: NDArray[np.float32]) -> dict[str, float]:
    """Return mean and squared coefficient of variation of the norms of raw embeddings."""
    norms = np.linalg.norm(embeddings.astype(np.float64), axis=1)
    mean = float(norms.mean())
    return {"norm_mean": mean, "norm_cv2": float(norms.var() / mean**2)}


def _owned(model: _Model) -> list[nn.Parameter]:
    """Return all parameters of a model, its loss and its penalty that have a gradient."""
    modules = [model.trunk, model.loss, *([model.regularizer] if model.regularizer else [])]
    return [p for module in modules for p in module.parameters() if p.grad is not None]


def _all_finite(module: nn.Module) -> bool:
    values = chain(module.parameters(), module.buffers())
    return all(bool(torch.isfinite(value).all()) for value in values)
