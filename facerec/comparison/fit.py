"""Train one arm on one fold: early stopping on the validation classes, the best weights kept."""

from __future__ import annotations

import copy
import functools
import math
import time
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from facerec.comparison.batches import class_batches, derived_seed, two_views
from facerec.comparison.features import FeatureReader, FeatureSet
from facerec.comparison.image_sets import ImageSet
from facerec.comparison.losses import LossModule, create_loss
from facerec.comparison.protocol import Arm, Metric, Protocol
from facerec.comparison.retrieval import retrieve
from facerec.comparison.splits import Fold, select_classes
from facerec.comparison.transforms import BatchReader, Transform
from facerec.comparison.trunks import Trunk, create_trunk
from facerec.errors import MetricError
from facerec.heads.output import LossOutput
from facerec.training.optimization import parameter_groups
from facerec.training.terms import MicroBatch, NormTerm, Step, Term

SELECTED_BY: Metric = "map_at_r"
"""What early stopping and the search go by."""

_EVALUATION_BATCH = 128
_CACHE_BYTES = 2 << 30  # of decoded images, for each transform


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


class MetricTerm(Term):
    """The loss that an arm is about, as a term beside those of `facerec.training.terms`."""

    name = "loss"
    module: LossModule

    def __init__(self, module: LossModule) -> None:
        self.module = module

    def forward(self, batch: MicroBatch) -> LossOutput:
        """Return the loss of a batch."""
        loss = self.module(batch.embeddings, batch.labels)
        return LossOutput(loss, {"loss": loss.detach()})


class Learner:
    """What learns in a training: the trunk, the terms of its loss, and the optimizer of all.

    Args:
        trunk: on the device.
        arm: its setting written into it.
        protocol: of the arm.
        num_classes: of the training fold.
        seed: of the loss's own parameters.
        device: where to compute.
    """

    def __init__(
        self,
        trunk: nn.Module,
        arm: Arm,
        protocol: Protocol,
        num_classes: int,
        seed: int,
        device: torch.device,
    ) -> None:
        config = protocol.optimizer
        loss = create_loss(arm.loss, num_classes, protocol.trunk.embedding_size, seed)
        self.trunk = trunk
        self.terms: list[Term] = [MetricTerm(loss)]
        if arm.regularizer is not None:
            self.terms.append(NormTerm(arm.regularizer, arm.loss.cosine_factor))
        for term in self.terms:
            term.module.to(device)
        plain = [parameter for term in self.terms for parameter in term.plain]
        self.optimizer = config.create(
            [
                *parameter_groups([trunk], config, plain=plain),
                *({**group, "lr": arm.loss_lr} for group in parameter_groups([loss], config)),
            ]
        )

    def train_step(self, images: Tensor, labels: Tensor, number: int, total: int) -> Tensor:
        """Take a step, and return the loss without penalty.

        Args:
            images: what the trunk takes.
            labels: their classes, numbered from 0.
            number: of the step, from 0.
            total: of steps.
        """
        for term in self.terms:
            term.begin(Step(number, number / total, labels, None, None))
        part = MicroBatch(self.trunk(images).float(), labels, None, first=True, last=True)
        outputs = [term.forward(part) for term in self.terms]
        self.optimizer.zero_grad(set_to_none=True)
        functools.reduce(torch.add, [output.loss for output in outputs]).backward()
        self.optimizer.step()
        for term in self.terms:
            term.end()
        return outputs[0].figures["loss"]


class Trainer:
    """Trains arms on the folds of an image set.

    Args:
        images: all classes, test classes among them.
        device: where to compute.
    """

    def __init__(self, images: ImageSet, device: torch.device) -> None:
        self.images, self.labels, self.device = images, images.labels, device
        self._readers: dict[Transform | None, BatchReader | FeatureReader] = {}

    def create_trunk(self, config: Trunk, seed: int) -> nn.Module:
        """Build the network for these images or features; see `trunks.create_trunk`."""
        features = self.images.size if isinstance(self.images, FeatureSet) else None
        trunk = create_trunk(config, seed, features)
        # Convolutions on a CPU take half the time so.
        return trunk.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def fit(self, arm: Arm, protocol: Protocol, fold: Fold, seed: int) -> tuple[Fit, nn.Module]:
        """Train a model on a fold.

        A loss that is not finite ends training; the fit then says so and has no score.

        Args:
            arm: its setting written into it.
            protocol: of the arm.
            fold: classes to train and to validate on.
            seed: of weights, batches and augmentation; equal for all arms.

        Returns:
            How training went, and the trunk of its best epoch in evaluation mode.
        """
        started = time.perf_counter()
        trunk = self.create_trunk(protocol.trunk, seed)
        learner = Learner(trunk, arm, protocol, len(fold.train), seed, self.device)
        held_out, _ = select_classes(self.labels, fold.validation)
        best = self._validate(trunk, protocol, held_out, 0)
        curve, weights, failure = [best], copy.deepcopy(trunk.state_dict()), None
        for epoch in range(1, protocol.epochs + 1):
            loss = self._train_epoch(learner, arm, protocol, fold, seed, epoch)
            if not math.isfinite(loss) or not _all_finite(trunk):
                failure = f"the loss is {loss} in epoch {epoch}"
                break
            try:
                curve.append(self._validate(trunk, protocol, held_out, epoch, loss))
            except MetricError as error:  # embeddings that are zero or not finite
                failure = f"epoch {epoch}: {error}"
                break
            if curve[-1].score > best.score:
                best, weights = curve[-1], copy.deepcopy(trunk.state_dict())
            if epoch - best.epoch >= protocol.patience:
                break
        trunk.load_state_dict(weights)
        seconds = round(time.perf_counter() - started, 3)
        score = None if failure else best.score
        return Fit(score, best.epoch, tuple(curve), seconds, failure), trunk.eval()

    @torch.no_grad()
    def embed(
        self, trunk: nn.Module, positions: NDArray[np.int64], protocol: Protocol
    ) -> NDArray[np.float32]:
        """Return raw embeddings ``(m, D)`` of images, in evaluation mode."""
        trunk.eval()
        reader = self._reader(protocol)
        chunks = [
            trunk(reader.normalize(images.to(self.device, non_blocking=True))).float().cpu()
            for images in reader.evaluate(positions, _EVALUATION_BATCH)
        ]
        return torch.cat(chunks).numpy()

    def _train_epoch(
        self, learner: Learner, arm: Arm, protocol: Protocol, fold: Fold, seed: int, epoch: int
    ) -> float:
        positions, targets = select_classes(self.labels, fold.train)
        steps, shape, reader = protocol.steps_per_epoch, protocol.batch, self._reader(protocol)
        batches = class_batches(targets, shape.classes, shape.per_class, seed, epoch, steps)
        learner.trunk.train()
        learner.terms[0].module.train()
        losses = []
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(derived_seed(seed, epoch))  # dropout
            for step, batch in enumerate(batches, (epoch - 1) * steps):
                indices = two_views(batch) if arm.loss.views == 2 else batch
                pixels = reader.train(positions[indices], seed, step)
                images = reader.normalize(pixels.to(self.device, non_blocking=True))
                labels = torch.from_numpy(targets[indices]).to(self.device)
                losses.append(learner.train_step(images, labels, step, protocol.epochs * steps))
        return float(torch.stack(losses).mean())

    def _validate(
        self,
        trunk: nn.Module,
        protocol: Protocol,
        held_out: NDArray[np.int64],
        epoch: int,
        loss: float | None = None,
    ) -> Point:
        embeddings = self.embed(trunk, held_out, protocol)
        means = retrieve(embeddings, self.labels[held_out], ks=(1,)).means()
        norms = norm_figures(embeddings)
        return Point(
            epoch,
            means["map_at_r"],
            means["r_precision"],
            means["precision_at_1"],
            norms["norm_mean"],
            norms["norm_cv2"],
            loss,
        )

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


def norm_figures(embeddings: NDArray[np.float32]) -> dict[str, float]:
    """Return mean and squared coefficient of variation of the norms of raw embeddings."""
    norms = np.linalg.norm(embeddings.astype(np.float64), axis=1)
    mean = float(norms.mean())
    return {"norm_mean": mean, "norm_cv2": float(norms.var() / mean**2)}


def _all_finite(module: nn.Module) -> bool:
    values = chain(module.parameters(), module.buffers())
    return all(bool(torch.isfinite(value).all()) for value in values)
