"""Train one arm on one fold: early stopping on the validation classes, the best weights kept."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from facerec.base.errors import MetricError
from facerec.comparison.batches import class_batches, derived_seed
from facerec.comparison.features import FeatureSet
from facerec.comparison.image_sets import ImageSet
from facerec.comparison.losses import LossModule
from facerec.comparison.protocol import Arm, Protocol
from facerec.comparison.retrieval import retrieve
from facerec.comparison.splits import Fold, select_classes
from facerec.comparison.transforms import BatchReader, Transform
from facerec.comparison.trunks import create_trunk
from facerec.heads.output import LossOutput
from facerec.training.optimization import parameter_groups
from facerec.training.step import Stepper
from facerec.training.terms import MicroBatch, NormTerm, Term

SELECTED_BY = "map_at_r"
"""What early stopping and the search go by."""

_EVALUATION_BATCH = 128


@dataclass(frozen=True)
class Fit:
    """How training went."""

    score: float | None
    """Best validation MAP@R; None if training failed."""
    epoch: int
    """Epoch of the best score; 0 is the untrained model."""
    curve: tuple[float, ...]
    """Validation MAP@R of the untrained model and after every epoch."""
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


def create_stepper(
    trunk: nn.Module, arm: Arm, protocol: Protocol, num_classes: int, seed: int
) -> Stepper:
    """Return what learns in a training: the trunk, the terms of its loss, and their optimizer.

    Args:
        trunk: on the device.
        arm: its setting written into it.
        protocol: of the arm.
        num_classes: of the training fold.
        seed: of the loss's own parameters.
    """
    config, device = protocol.optimizer, next(trunk.parameters()).device
    loss = LossModule(arm.loss, num_classes, protocol.trunk.embedding_size, seed)
    terms: list[Term] = [MetricTerm(loss)]
    if arm.regularizer is not None:
        terms.append(NormTerm(arm.regularizer, arm.loss.cosine_factor))
    for term in terms:
        term.module.to(device)
    plain = [parameter for term in terms for parameter in term.plain]
    groups = parameter_groups([trunk], config, plain=plain)
    groups += [{**group, "lr": arm.loss_lr} for group in parameter_groups([loss], config)]
    return Stepper(trunk, terms, config.create(groups), protocol.epochs * protocol.steps_per_epoch)


class ArmTrainer:
    """Trains arms on the folds of an image set.

    Args:
        images: all classes, test classes among them.
        device: where to compute.
    """

    def __init__(self, images: ImageSet, device: torch.device) -> None:
        self.images, self.labels, self.device = images, images.labels, device
        self._readers: dict[Transform, BatchReader] = {}

    def create_trunk(self, protocol: Protocol, seed: int) -> nn.Module:
        """Build the network for these images or features; see `trunks.create_trunk`."""
        trunk = create_trunk(protocol.trunk, seed, self._reader(protocol).size)
        # Convolutions on a CPU take half the time so.
        return trunk.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def fit(self, arm: Arm, protocol: Protocol, fold: Fold, seed: int) -> tuple[Fit, nn.Module]:
        """Train a model on a fold.

        A loss or embeddings that are not finite end training; the fit then says so and has no
        score.

        Args:
            arm: its setting written into it.
            protocol: of the arm.
            fold: classes to train and to validate on.
            seed: of weights, batches and augmentation; equal for all arms.

        Returns:
            How training went, and the trunk of its best epoch in evaluation mode.
        """
        started = time.perf_counter()
        trunk = self.create_trunk(protocol, seed)
        stepper = create_stepper(trunk, arm, protocol, len(fold.train), seed)
        held_out, _ = select_classes(self.labels, fold.validation)
        curve, best, failure = [self._validate(trunk, protocol, held_out)], 0, None
        weights = copy.deepcopy(trunk.state_dict())
        for epoch in range(1, protocol.epochs + 1):
            try:
                self._train_epoch(stepper, arm, protocol, fold, seed, epoch)
                curve.append(self._validate(trunk, protocol, held_out))
            except MetricError as error:
                failure = f"epoch {epoch}: {error}"
                break
            if curve[-1] > curve[best]:
                best, weights = epoch, copy.deepcopy(trunk.state_dict())
            if epoch - best >= protocol.patience:
                break
        trunk.load_state_dict(weights)
        seconds = round(time.perf_counter() - started, 3)
        score = None if failure else curve[best]
        return Fit(score, best, tuple(curve), seconds, failure), trunk.eval()

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
        self, stepper: Stepper, arm: Arm, protocol: Protocol, fold: Fold, seed: int, epoch: int
    ) -> None:
        positions, targets = select_classes(self.labels, fold.train)
        steps, shape, reader = protocol.steps_per_epoch, protocol.batch, self._reader(protocol)
        batches = class_batches(targets, shape.classes, shape.per_class, seed, epoch, steps)
        stepper.network.train()
        losses = []
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(derived_seed(seed, epoch))  # dropout
            for batch in batches:
                indices = np.tile(batch, arm.loss.views)  # the first view of all, then the second
                pixels = reader.train(positions[indices], seed, stepper.step)
                images = reader.normalize(pixels.to(self.device, non_blocking=True))
                labels = torch.from_numpy(targets[indices]).to(self.device)
                losses.append(stepper.take(images, labels)["loss"])
        if not math.isfinite(loss := float(torch.stack(losses).mean())):
            raise MetricError(f"the loss is {loss}")

    def _validate(self, trunk: nn.Module, protocol: Protocol, held_out: NDArray[np.int64]) -> float:
        embeddings = self.embed(trunk, held_out, protocol)
        return retrieve(embeddings, self.labels[held_out], ks=(1,)).means()[SELECTED_BY]

    def _reader(self, protocol: Protocol) -> BatchReader | FeatureSet:
        if isinstance(self.images, FeatureSet):
            return self.images
        transform = protocol.transform
        assert transform is not None  # see `Comparison.check`
        return self._readers.setdefault(transform, BatchReader(self.images, transform))
