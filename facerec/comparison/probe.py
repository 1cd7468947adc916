"""What a training step does to embeddings: gradients, and the angle by which they really turn.

Theory of one plain step in embedding space: a loss of directions has no radial gradient, and an
embedding of norm n turns by an angle that goes with 1/n² under SGD and with 1/n under Adam's first
step. Shared weights, momentum and decay change the step that is realised; this measures it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Probe:
    """Figures of one training step over the images of its batch."""

    epoch: int
    norm_mean: float
    """Mean norm n of the raw embeddings before the step."""
    norm_cv: float
    """Standard deviation of the norms over their mean."""
    gradient_times_norm: float
    """Mean of ‖g‖·n, g the gradient of the loss without penalty by an embedding; a loss of
    directions leaves it unchanged when norms are scaled."""
    gradient_cv: float
    """Standard deviation of ‖g‖ over its mean: how unevenly samples push."""
    radial: float
    """Mean of |cos(g, f)|; 0 for every loss of directions alone."""
    angular_step: float
    """Mean angle between an embedding before and after the step, in radians."""
    angular_step_cv: float
    """Its standard deviation over its mean."""
    norm_growth: float
    """Relative change of the mean norm by the step."""
    slope: float | None
    """Least-squares slope of log angle over log n; None where all norms are equal."""


def probe_step(
    epoch: int,
    trunk: nn.Module,
    images: Tensor,
    embeddings: Tensor,
    metric_loss: Tensor,
    step: Callable[[], None],
) -> Probe:
    """Measure the step that ``step`` makes; the graph of ``metric_loss`` is kept for it.

    Args:
        epoch: when it is.
        trunk: in training mode; its batch-norm statistics are not changed by the measurement.
        images: what the embeddings come from, ``(B, 3, H, W)``.
        embeddings: raw embeddings ``(B, D)`` with their graph.
        metric_loss: scalar, without penalty.
        step: does backward and the optimizer's step.
    """
    (gradient,) = torch.autograd.grad(metric_loss, embeddings, retain_graph=True)
    before = embeddings.detach().double()
    step()
    with torch.no_grad():
        buffers = {name: value.clone() for name, value in trunk.named_buffers()}
        after = trunk(images).double()
        for name, value in trunk.named_buffers():
            value.copy_(buffers[name])
    return measure(epoch, before, gradient.double(), after)


def measure(epoch: int, before: Tensor, gradient: Tensor, after: Tensor) -> Probe:
    """Compute the figures from embeddings before and after a step and gradients, all ``(B, D)``."""
    norms = before.norm(dim=1)
    sizes = gradient.norm(dim=1)
    radial = (before * gradient).sum(1).abs() / (norms * sizes).clamp(min=1e-300)
    unit, moved = nn.functional.normalize(before), nn.functional.normalize(after)
    # Exact also for tiny angles, where the arc cosine of the product has no digits left.
    angles = 2 * torch.atan2((unit - moved).norm(dim=1), (unit + moved).norm(dim=1))
    turned = (angles > 0) & (norms > 0)
    x, y = norms[turned].log(), angles[turned].log()
    spread = (x - x.mean()).square().sum() if len(x) else x.sum()
    slope = None
    if spread > 1e-12:
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    return Probe(
        epoch=epoch,
        norm_mean=float(norms.mean()),
        norm_cv=_cv(norms),
        gradient_times_norm=float((sizes * norms).mean()),
        gradient_cv=_cv(sizes),
        radial=float(radial.mean()),
        angular_step=float(angles.mean()),
        angular_step_cv=_cv(angles),
        norm_growth=float(after.norm(dim=1).mean() / norms.mean() - 1),
        slope=slope,
    )


def _cv(values: Tensor) -> float:
    mean = values.mean()
    return float(values.std(correction=0) / mean) if mean > 0 else 0.0
