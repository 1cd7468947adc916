"""Train one arm on one fold: early stopping on the validation classes, the best weights kept."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from facerec.comparison.batches import class_batches, two_views
from facerec.comparison.image_sets import ImageSet
from facerec.comparison.losses import create_loss
from facerec.comparison.mining import hard_batches
from facerec.comparison.probe import Probe, probe_step
from facerec.comparison.protocol import METRICS, Arm, Metric, Protocol
from facerec.comparison.retrieval import retrieve
from facerec.comparison.splits import Fold, select_classes
from facerec.comparison.transforms import BatchReader, Transform
from facerec.comparison.trunks import create_trunk
from facerec.devices import has_fast_bf16
from facerec.errors import MetricError
from facerec.heads import create_regularizer
from facerec.training.optimization import parameter_groups

SELECTED_BY: Metric = "map_at_r"
"""What early stopping and the search go by."""

_EVALUATION_BATCH = 128
_CACHE_BYTES = 2 << 30  # of decoded images, for each transform

Progress = Callable[[int, int, float | None], None]
"""Called after every epoch with its number, their upper limit and the best score so far."""


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

    def score(self, metric: Metric = SELECTED_BY) -> float:
        """Return one of the three figures."""
        return float(getattr(self, metric))


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

    @property
    def best(self) -> Point:
        """The point of the best score."""
        return next(point for point in self.curve if point.epoch == self.epoch)


@dataclass
class _State:
    """Modules of a training and what is remembered of its best epoch."""

    trunk: nn.Module
    loss: nn.Module
    regularizer: nn.Module | None
    optimizer: torch.optim.Optimizer
    base_lrs: list[float]
    weights: dict[str, Tensor] = field(default_factory=dict)


class Trainer:
    """Trains arms on the folds of an image set.

    Args:
        images: all classes, test classes among them.
        device: where to compute.
    """

    def __init__(self, images: ImageSet, device: torch.device) -> None:
        self.images, self.labels, self.device = images, images.labels, device
        self._readers: dict[Transform, BatchReader] = {}

    def fit(
        self,
        arm: Arm,
        protocol: Protocol,
        fold: Fold,
        seed: int,
        progress: Progress | None = None,
    ) -> tuple[Fit, nn.Module]:
        """Train and return how it went, with the trunk of the best epoch in evaluation mode.

        A loss that is not finite ends training; the fit then says so and has no score.

        Args:
            arm: its setting written into it.
            protocol: of the arm.
            fold: classes to train and to validate on.
            seed: of weights, batches and augmentation; equal for all arms.
            progress: see `Progress`.
        """
        started = time.perf_counter()
        positions, targets = select_classes(self.labels, fold.train)
        held_out, _ = select_classes(self.labels, fold.validation)
        state = self._begin(arm, protocol, len(fold.train), seed)
        curve = [self._validate(state, protocol, held_out, 0)]
        best, failure = curve[0], None
        state.weights = copy.deepcopy(state.trunk.state_dict())
        probes: list[Probe] = []
        batches: NDArray[np.int64] | None = None
        for epoch in range(1, protocol.epochs + 1):
            batches = self._batches(protocol, state, positions, targets, seed, epoch, batches)
            with torch.random.fork_rng(self._cuda()):
                torch.manual_seed(_child(seed, epoch))  # dropout
                figures, probe = self._train_epoch(
                    arm, protocol, state, positions, targets, batches, seed, epoch
                )
            if not math.isfinite(figures["loss"] or 0.0) or not _all_finite(state.trunk):
                failure = f"the loss is {figures['loss']} in epoch {epoch}"
                break
            if probe is not None:
                probes.append(probe)
            try:
                point = self._validate(state, protocol, held_out, epoch, figures)
            except MetricError as error:  # embeddings that are zero or not finite
                failure = f"epoch {epoch}: {error}"
                break
            curve.append(point)
            if point.score() > best.score():
                best = point
                state.weights = copy.deepcopy(state.trunk.state_dict())
            if progress is not None:
                progress(epoch, protocol.epochs, best.score())
            if epoch - best.epoch >= protocol.patience:
                break
        state.trunk.load_state_dict(state.weights)
        return (
            Fit(
                score=None if failure else best.score(),
                epoch=best.epoch,
                curve=tuple(curve),
                seconds=round(time.perf_counter() - started, 3),
                failure=failure,
                probes=tuple(probes),
            ),
            state.trunk.eval(),
        )

    @torch.no_grad()
    def embed(
        self, trunk: nn.Module, positions: NDArray[np.int64], protocol: Protocol
    ) -> NDArray[np.float32]:
        """Return raw embeddings ``(m, D)`` of images, in evaluation mode."""
        trunk.eval()
        chunks = []
        for images in self._reader(protocol).evaluate(positions, _EVALUATION_BATCH):
            with self._autocast(protocol):
                chunks.append(trunk(self._prepare(images, protocol)).float().cpu())
        return torch.cat(chunks).numpy()

    # ---------------------------------------------------------------- steps of a training

    def _begin(self, arm: Arm, protocol: Protocol, classes: int, seed: int) -> _State:
        trunk = create_trunk(protocol.trunk, seed=seed).to(self.device)
        loss = create_loss(arm.loss, classes, protocol.trunk.embedding_size, seed).to(self.device)
        regularizer = (
            create_regularizer(arm.regularizer, scale=arm.loss.cosine_factor).to(self.device)
            if arm.regularizer
            else None
        )
        plain = list(regularizer.parameters()) if regularizer else []
        config = protocol.optimizer
        own = parameter_groups([loss], config)
        groups = [
            *parameter_groups([trunk], config, plain=plain),
            *({**group, "lr": arm.loss_lr} for group in own),
        ]
        optimizer = config.create(groups)
        lrs = [float(group["lr"]) for group in optimizer.param_groups]
        return _State(trunk, loss, regularizer, optimizer, lrs)

    def _batches(
        self,
        protocol: Protocol,
        state: _State,
        positions: NDArray[np.int64],
        targets: NDArray[np.int64],
        seed: int,
        epoch: int,
        last: NDArray[np.int64] | None,
    ) -> NDArray[np.int64]:
        """Return the batches of an epoch, as indices of ``positions``."""
        shape, every = protocol.batch, protocol.remine_every
        if not every or epoch == 1:
            batches = class_batches(
                targets, shape.classes, shape.per_class, seed, epoch, protocol.steps_per_epoch
            )
        elif (epoch - 1) % every == 0 or last is None:
            batches = hard_batches(
                self.embed(state.trunk, positions, protocol),
                targets,
                shape.classes,
                shape.per_class,
                seed,
                epoch,
                protocol.steps_per_epoch,
            )
        else:
            return last
        return batches

    def _train_epoch(
        self,
        arm: Arm,
        protocol: Protocol,
        state: _State,
        positions: NDArray[np.int64],
        targets: NDArray[np.int64],
        batches: NDArray[np.int64],
        seed: int,
        epoch: int,
    ) -> tuple[dict[str, float | None], Probe | None]:
        state.trunk.train()
        state.loss.train()
        total = protocol.epochs * protocol.steps_per_epoch
        reader = self._reader(protocol)
        losses, penalties, center, probe = [], [], None, None
        for k, indices in enumerate(batches if arm.loss.views == 1 else two_views(batches)):
            step = (epoch - 1) * protocol.steps_per_epoch + k
            factor = (
                protocol.schedule.factor(step, total, protocol.steps_per_epoch)
                if protocol.schedule
                else 1.0
            )
            for group, lr in zip(state.optimizer.param_groups, state.base_lrs, strict=True):
                group["lr"] = lr * factor
            images = self._prepare(reader.train(positions[indices], seed, step), protocol)
            labels = torch.from_numpy(targets[indices]).to(self.device)
            with self._autocast(protocol):
                embeddings = state.trunk(images)
            embeddings = embeddings.float()
            metric = state.loss(embeddings, labels)
            loss = metric
            if state.regularizer is not None:
                penalty = state.regularizer(embeddings, progress=step / total)
                loss = loss + penalty.loss
                penalties.append(penalty.loss.detach())
                center = penalty.center
            losses.append(metric.detach())

            def update(loss: Tensor = loss) -> None:
                state.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                if protocol.clip_norm is not None:
                    owned = [p for g in state.optimizer.param_groups for p in g["params"]]
                    nn.utils.clip_grad_norm_(owned, protocol.clip_norm)
                state.optimizer.step()

            if protocol.probe_every and k == 0 and (epoch - 1) % protocol.probe_every == 0:
                probe = probe_step(epoch, state.trunk, images, embeddings, metric, update)
            else:
                update()
        mean = float(torch.stack(losses).mean())
        return {
            "loss": mean,
            "penalty": float(torch.stack(penalties).mean()) if penalties else None,
            "center": float(center) if center is not None else None,
        }, probe

    def _validate(
        self,
        state: _State,
        protocol: Protocol,
        positions: NDArray[np.int64],
        epoch: int,
        figures: dict[str, float | None] | None = None,
    ) -> Point:
        embeddings = self.embed(state.trunk, positions, protocol)
        means = retrieve(embeddings, self.labels[positions], ks=(1,)).means()
        retrieval = {str(name): means[name] for name in METRICS}
        measured: dict[str, Any] = {**retrieval, **norm_figures(embeddings)}
        return Point(epoch, **measured | (figures or {}))

    def _reader(self, protocol: Protocol) -> BatchReader:
        transform = protocol.transform
        if transform not in self._readers:
            self._readers[transform] = BatchReader(self.images, transform, cache_bytes=_CACHE_BYTES)
        return self._readers[transform]

    def _prepare(self, images: Tensor, protocol: Protocol) -> Tensor:
        return protocol.transform.normalize(images.to(self.device, non_blocking=True))

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


def _all_finite(module: nn.Module) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in _tensors(module))


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _child(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
