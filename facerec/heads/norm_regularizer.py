"""Penalties on the norms of raw embeddings: the spherical embedding constraint and its family.

With n_i = ‖f_i‖ and a centre μ, the penalty is the mean of |n_i − μ|^p over the global batch. The
members differ in μ: the mean norm (SEC; Zhang et al., NeurIPS 2020), 0 (squared norm), a constant
(SphereFace-R's soft normalisation), or a trained radius (Ring loss; Zheng et al., CVPR 2018).

What a weight η means depends on two scales. For p = 2 the gradient of SEC on an embedding is
2η·(n − m)/N with the mean norm m, that of a loss of s·cosines is s·g/(N·n) with a g near 1, so that
their ratio is 2η·CV·m²/(s·g) for norms that vary by CV: with the same η a network of 512 dimensions
and a batch norm at its end (m² ≈ 512) is pressed eight times harder than one of 64. The scale-free
form η·s·(n/m − 1)² has the ratio 2η·CV/g, whatever m and s are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from facerec.base.limits import Checked, NonNegative, Share
from facerec.heads.collectives import gather_equal
from facerec.heads.margins import Margin, NormMargin
from facerec.heads.output import LossOutput

_SMALLEST_SCALE = 0.5  # the relative form must not blow up where norms are tiny


@dataclass(frozen=True)
class _NormPenalty(Checked):
    """What all norm penalties share."""

    weight: NonNegative
    """Factor η on the penalty. The values used for faces are not public: search it, log-uniform
    between 1e-4 and 10, and compare with 0. With scale_free it means the same for all embedding
    sizes and scales."""

    p: Literal[1, 2] = 2
    """Power of the deviation from the centre: 2 squared, 1 absolute."""

    relative: bool = False
    """Divide by (mean norm)^p, so that the weight does not depend on the scale of the norms."""

    scale_free: bool = False
    """Divide by (mean norm)^p and multiply by the factor s that the head puts on cosines: one
    weight then presses alike whatever the embedding's size and s are. The recipes use it; without
    it the weight is that of the papers."""

    schedule: Literal["constant", "linear"] = "constant"
    """Course of the weight over the run: constant, or linear growth from 0."""

    @property
    def couples_samples(self) -> bool:
        """Whether a sample's penalty depends on the rest of the batch.

        Gradient accumulation then has to hand in the mean norm of the whole batch.
        """
        return isinstance(self, SEC) or self.is_relative

    @property
    def is_relative(self) -> bool:
        """Whether deviations are taken relative to the mean norm."""
        return self.relative or self.scale_free


@dataclass(frozen=True)
class SEC(_NormPenalty):
    """Spherical embedding constraint: pull norms towards their mean."""

    rho: Share = 1.0
    """Weight of the new batch in the mean norm: 1 is the batch mean, less a moving average."""


@dataclass(frozen=True)
class L2Norm(_NormPenalty):
    """Pull norms towards 0: the mean squared norm (Sohn, NeurIPS 2016)."""


@dataclass(frozen=True)
class FixedNorm(_NormPenalty):
    """Pull norms towards a given radius (p = 1, weight 0.01, radius s: SphereFace-R's SFN)."""

    radius: NonNegative = 30.0
    """The norm to reach; set it on the scale of your embeddings."""


@dataclass(frozen=True)
class RingLoss(_NormPenalty):
    """Pull norms towards a trained radius, which starts at the first mean norm.

    The radius needs no weight decay and no momentum; plain SGD of rate α then makes it a moving
    average with rho = 2·α·weight.
    """


NormPenalty = SEC | L2Norm | FixedNorm | RingLoss
"""Any norm penalty of this module."""


class NormRegularizer(nn.Module):
    """A norm penalty with its state: the centre μ and whether it has started.

    Args:
        config: which penalty.
        scale: factor s of the head on its cosines, for the scale-free form; 1 for a loss without.

    Attributes:
        center: buffer, float32: μ after the last update (SEC, constant).
        radius: parameter, float32 (Ring loss only). Its gradient is complete on every rank;
            leave it out of DistributedDataParallel.
        initialized: buffer, bool: whether μ or the radius has seen a batch.

    Examples:
        >>> embeddings = torch.tensor([[3.0, 4.0], [0.0, 1.0]])  # norms 5 and 1, mean 3
        >>> NormRegularizer(SEC(weight=0.5))(embeddings).loss
        tensor(2.)
    """

    center: Tensor
    initialized: Tensor

    def __init__(self, config: NormPenalty, *, scale: float = 1.0) -> None:
        super().__init__()
        self.config, self.scale = config, scale
        self._started = False
        center = config.radius if isinstance(config, FixedNorm) else 0.0
        self.register_buffer("center", torch.tensor(center, dtype=torch.float32))
        self.register_buffer("initialized", torch.tensor(False))
        self.radius = nn.Parameter(torch.zeros(())) if isinstance(config, RingLoss) else None

    @property
    def couples_samples(self) -> bool:
        """Whether gradient accumulation must hand in ``mean_norm`` at the coming step."""
        if self.radius is not None and not self._started:
            # Read from the device until it is true, then never again: reading waits.
            self._started = bool(self.initialized)
            return self.config.couples_samples or not self._started
        return self.config.couples_samples

    def forward(
        self,
        embeddings: Tensor,
        *,
        moments: NormMoments | None = None,
        mean_norm: Tensor | None = None,
        progress: float = 1.0,
        update: bool = True,
    ) -> LossOutput:
        """Return the weighted penalty; a collective, so every rank has to call it.

        The loss is this rank's share, whose average over ranks is the loss of the global batch.
        Figures are ``penalty``, the mean of |n − μ|^p without η and s, over (mean norm)^p if
        relative, and ``center``, the μ that was used.

        With gradient accumulation, every micro-batch gets the ``mean_norm`` of the whole batch,
        only the first one has ``update=True``, and the losses are averaged.

        Args:
            embeddings: raw embeddings of this rank, ``(B, D)``, any float type.
            moments: of the norms of these embeddings on all ranks; by default the ranks ask each
                other.
            mean_norm: mean norm of the whole batch of this optimiser step; by default that of these
                embeddings on all ranks.
            progress: share of the run that is done, t/T in [0, 1], for the linear schedule.
            update: whether the centre takes in this batch (once an optimiser step). It never does
                in eval mode, where the stored centre is used.

        Raises:
            TrainingError: batches differ in size between ranks (on CUDA a device-side assertion).
        """
        config = self.config
        with torch.autocast(embeddings.device.type, enabled=False):
            norms = embedding_norms(embeddings)
            if moments is None:
                moments = describe_norms(gather_equal(norms.detach()))
            mean = moments.mean if mean_norm is None else mean_norm.detach().to(norms)
            center = self._advance(mean, update and self.training)
            # A divisor rather than a factor, so that p = 2 and p = 1 share their form.
            divisor = mean.clamp(min=_SMALLEST_SCALE) ** config.p if config.is_relative else 1.0
            loss = self._distance(norms, center).sum() * (1 / len(norms)) / divisor
            if self.radius is not None:
                center = center + (self.radius - self.radius.detach())
            penalty = self._distance(moments.norms, center).mean() / divisor
            # Adds 0 to the loss and the global gradient to a radius, alike on all ranks.
            loss = loss + (penalty - penalty.detach())
            weight = config.weight * (progress if config.schedule == "linear" else 1.0)
            if config.scale_free:
                weight *= self.scale
            figures = {"penalty": penalty.detach(), "center": center.detach().clone()}
            return LossOutput(weight * loss, figures)

    def _distance(self, norms: Tensor, center: Tensor) -> Tensor:
        deviation = norms - center
        return deviation.abs() if self.config.p == 1 else deviation.square()

    @torch.no_grad()
    def _advance(self, mean: Tensor, update: bool) -> Tensor:
        """Return μ for this batch, and keep it if ``update``."""
        if self.radius is None and not isinstance(self.config, SEC):
            return self.center.to(mean)
        stored = self.center if self.radius is None else self.radius
        center = torch.where(self.initialized, stored.to(mean), mean)
        if not update:
            return center
        if isinstance(self.config, SEC):
            # Not (1 − ρ)·μ + ρ·m where ρ = 1, because a lost step (NaN) would then stay for ever.
            center = mean if self.config.rho == 1 else center.lerp(mean, self.config.rho)
        stored.copy_(center)
        self.initialized.fill_(True)
        return center


@dataclass(frozen=True)
class NormMoments:
    """The norms of a global batch and scalars about them; the same bits on all ranks."""

    norms: Tensor
    """The norm of each image, ``(N,)``."""
    mean: Tensor
    variance: Tensor
    """Population variance of the norms."""
    smallest: Tensor


def describe_norms(norms: Tensor) -> NormMoments:
    """Return what is told of the norms of a global batch, ``(N,)``."""
    mean = norms.mean()
    return NormMoments(norms, mean, (norms - mean).square().mean(), norms.amin())


def embedding_norms(embeddings: Tensor) -> Tensor:
    """Return the lengths of vectors ``(B, D)`` in float32 or better, ``(B,)``."""
    # In float16 the square of a norm above 256 is infinite.
    lifted = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    return torch.linalg.vector_norm(lifted, dim=1)


def combination_warnings(
    penalty: NormPenalty | None, margin: Margin | None, embedding_bn: str
) -> list[str]:
    """Return one sentence for each doubtful combination of penalty, margin and last BatchNorm.

    Args:
        penalty: the norm penalty, if any.
        margin: the head's margin, if known.
        embedding_bn: the backbone's last layer: ``frozen_gamma``, ``affine`` or ``none``.
    """
    if penalty is None or penalty.weight == 0:
        return []
    name = type(penalty).__name__
    sentences = []
    if isinstance(penalty, L2Norm) and embedding_bn != "none":
        sentences.append(
            f"{name} has next to no effect below the final BatchNorm (embedding_bn={embedding_bn!r}"
            "), which pins the mean squared norm; choose embedding_bn='none' to study it"
        )
    elif embedding_bn == "frozen_gamma" and (not isinstance(penalty, SEC) or penalty.rho < 1):
        sentences.append(
            f"{name} acts below the final BatchNorm (embedding_bn={embedding_bn!r}) like SEC with "
            "another weight, whatever its centre; choose embedding_bn='none' to compare centres"
        )
    if isinstance(margin, NormMargin):
        sentences.append(
            f"conflict: {name} works against {type(margin).__name__}, which reads the norms as "
            "image quality; use the two together as a negative control only"
        )
    return sentences
