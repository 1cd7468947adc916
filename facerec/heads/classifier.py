"""Softmax over face classes with a margin, its class centres split over the ranks.

With W ranks, B images each, N = W·B, every rank holds about C/W class centres, gathers the whole
batch of embeddings, and computes the logits of its own classes; the softmax is joined by reducing
the largest logit and the sum of exponentials. A rank's gradient of its centres is complete and must
not be averaged. This costs communication that does not grow with the number of classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from facerec.errors import TrainingError
from facerec.heads.collectives import (
    all_gather,
    all_reduce_,
    gather_batch,
    rank,
    shard_bounds,
    world_size,
)
from facerec.heads.margins import Margin

CenterInit = Literal["unit", "normal", "xavier"]

_SMALLEST_NORM = 1e-6  # below it vectors are not normalised further, which bounds the gradient
_BLOCK = 4096  # rows of centres drawn at a time


@dataclass(frozen=True)
class ClassifierOutput:
    """The loss and figures for logging, all scalars, the same on all ranks."""

    loss: Tensor
    """Cross-entropy averaged over the global batch; the only one that carries a gradient."""
    target_cosine: Tensor
    """Mean cosine to the own class centre, without margin."""
    other_cosine: Tensor
    """Mean cosine to all other class centres (NaN for a single class)."""
    center_norm: Tensor
    """Mean norm of the class centres; the smaller it is, the faster they turn."""


class MarginClassifier(nn.Module):
    """Class-sharded margin softmax over raw embeddings.

    With torch.distributed in use, each rank holds only its own rows of the centres, and both
    ``forward`` and the loss's ``backward`` are collectives. All ranks must give batches of one
    size, which is checked. The gradient of the embeddings is multiplied by the number of ranks, for
    a backbone in DistributedDataParallel; keep this module itself out of it.

    Attributes:
        weight: parameter ``(num_local, D)``, float32: this rank's class centres, of any length.
        class_offset: the class of the first local row.
        num_local: how many classes this rank holds; may be 0.
        step: buffer, int64: optimiser steps so far, see ``advance``.
    """

    step: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: Margin,
        *,
        seed: int,
        center_init: CenterInit = "unit",
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Draw the centres; they are the same on any number of ranks.

        Args:
            num_classes: classes over all ranks, C.
            embedding_size: D.
            margin: configuration from ``facerec.heads.margins``.
            seed: a number >= 0 that fixes the centres.
            center_init: ``unit`` draws directions of length 1, ``normal`` N(0, 0.01²) as
                insightface does, ``xavier`` N(0, 2/(C+D)) as opensphere does.
            group: ranks that share the classes; the default group if None.
        """
        super().__init__()
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.margin = margin
        self.group = group
        self.class_offset, self.num_local = shard_bounds(
            num_classes, world_size(group), rank(group)
        )
        rows = range(self.class_offset, self.class_offset + self.num_local)
        self.weight = nn.Parameter(
            draw_centers(num_classes, embedding_size, rows, seed=seed, center_init=center_init)
        )
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def extra_repr(self) -> str:
        """Show sizes and margin."""
        last = self.class_offset + self.num_local
        return f"classes [{self.class_offset}, {last}) of {self.num_classes}, {self.margin}"

    @torch.no_grad()
    def advance(self) -> None:
        """Count one optimiser step (margins that are annealed depend on it)."""
        self.step += 1

    def forward(self, embeddings: Tensor, labels: Tensor) -> ClassifierOutput:
        """Compute the loss of the global batch, in float32 whatever autocast says.

        Args:
            embeddings: raw embeddings of this rank, ``(B, D)``, any float type.
            labels: classes of this rank's images, ``(B,)``, int64 in [0, C).

        Raises:
            TrainingError: shapes or types are wrong, batches differ in size between ranks, or a
                label lies outside [0, C). On CUDA the last two are device-side assertions, which do
                not make the host wait.
        """
        self._check(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            dtype = torch.promote_types(self.weight.dtype, torch.float32)
            batch = gather_batch(embeddings.to(dtype), self.group)
            column = all_gather(labels, self.group) - self.class_offset
            norms = batch.norm(dim=1, keepdim=True)
            unit = batch / norms.clamp(min=_SMALLEST_NORM)
            lengths = self.weight.to(dtype).norm(dim=1, keepdim=True)
            centers = self.weight.to(dtype) / lengths.clamp(min=_SMALLEST_NORM)

            owned = (column >= 0) & (column < self.num_local)
            column = column.clamp(0, max(self.num_local - 1, 0))
            cosine = unit @ centers.T
            target = _pick(cosine, column)
            logits = self._logits(cosine, target, column, owned, norms)
            del cosine
            loss = _CrossEntropy.apply(logits, column, owned, self.group)
            loss = self.margin.loss_factor * loss
            figures = self._figures(unit, centers, lengths, torch.where(owned, target, 0))
        return ClassifierOutput(loss, *figures)

    def _logits(
        self, cosine: Tensor, target: Tensor, column: Tensor, owned: Tensor, norms: Tensor
    ) -> Tensor:
        """Return ``(N, num_local)`` logits; ``target`` (N,) counts in the ``owned`` rows only."""
        logits = self.margin.scale * self.margin.other_cosine(cosine)
        if self.num_local:
            marked = self.margin.scale * self.margin.target_cosine(target, self.step)
            marked = torch.where(owned, marked, _pick(logits, column))
            logits = logits.index_put_((_rows(logits), column), marked)
        return logits * norms if self.margin.scales_by_norm else logits

    @torch.no_grad()
    def _figures(
        self, unit: Tensor, centers: Tensor, lengths: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean target cosine, mean cosine to other classes and mean centre norm."""
        # Σ_ij x_i·w_j = (Σ_i x_i)·(Σ_j w_j) spares a pass over the cosines.
        everything = unit.sum(0) @ centers.sum(0)
        sums = all_reduce_(torch.stack([target.sum(), everything, lengths.sum()]), self.group)
        rows = unit.shape[0]
        others = (sums[1] - sums[0]) / (rows * (self.num_classes - 1) or math.nan)
        return sums[0] / rows, others, sums[2] / self.num_classes

    def _check(self, embeddings: Tensor, labels: Tensor) -> None:
        size = len(labels)
        if embeddings.shape != (size, self.embedding_size):
            raise TrainingError(
                f"the classifier got embeddings of shape {tuple(embeddings.shape)} with {size} "
                f"labels; it needs ({size}, {self.embedding_size})"
            )
        if labels.dtype != torch.int64 or labels.ndim != 1:
            raise TrainingError(
                f"the classifier got labels of type {labels.dtype} and shape "
                f"{tuple(labels.shape)}; it needs a vector of int64"
            )
        bad = ((labels < 0) | (labels >= self.num_classes)).any()
        # One small collective before any other, so that all ranks stop together, none hanging.
        summary = torch.full((3,), size, dtype=torch.int64, device=labels.device)
        summary[1].neg_()
        summary[2] = bad
        all_reduce_(summary, self.group, maximum=True)
        if size == 0:
            raise TrainingError(
                "the classifier got an empty batch; each rank needs an image a step"
            )
        different = summary[0] != -summary[1]
        if labels.is_cuda:
            torch._assert_async(~different, "ranks gave batches of different sizes")
            torch._assert_async(summary[2] == 0, f"a label lies outside [0, {self.num_classes})")
            return
        if different:
            raise TrainingError(
                f"ranks gave batches of {-int(summary[1])} to {int(summary[0])} images in one "
                "step; the classifier needs equal ones, so drop the last partial batch"
            )
        if summary[2]:
            outside = labels[(labels < 0) | (labels >= self.num_classes)]
            found = f"label {int(outside[0])}" if len(outside) else "a label of another rank"
            raise TrainingError(
                f"{found} lies outside [0, {self.num_classes}), the classes of the head; set "
                "num_classes to the number of identities, or mend the labels"
            )


class _CrossEntropy(torch.autograd.Function):
    """Mean cross-entropy over rows of logits whose columns are spread over ranks."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, column: Tensor, owned: Tensor, group: dist.ProcessGroup | None
    ) -> Tensor:
        lowest = logits.new_full((len(logits),), -math.inf)  # of a rank without classes
        highest = logits.amax(1) if logits.shape[1] else lowest
        all_reduce_(highest, group, maximum=True)
        probability = (logits - highest[:, None]).exp_()
        target = torch.where(owned, _pick(logits, column) - highest, 0)
        sums = all_reduce_(torch.stack([probability.sum(1), target]), group)
        probability /= sums[0][:, None]
        ctx.save_for_backward(probability, column, owned)
        return (sums[0].log() - sums[1]).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        probability, column, owned = ctx.saved_tensors
        share = gradient / len(probability)
        result = probability * share
        if result.shape[1]:
            result[_rows(result), column] -= owned * share
        return result, None, None, None


def _rows(matrix: Tensor) -> Tensor:
    return torch.arange(len(matrix), device=matrix.device)


def _pick(matrix: Tensor, column: Tensor) -> Tensor:
    """Return one element of each row, zeros where the matrix has no columns."""
    if matrix.shape[1] == 0:
        return matrix.new_zeros(len(matrix))
    return matrix[_rows(matrix), column]  # unlike gather, keeps no matrix for backward


def draw_centers(
    num_classes: int, embedding_size: int, rows: range, *, seed: int, center_init: CenterInit
) -> Tensor:
    """Draw the class centres ``rows`` of ``num_classes``, float32 ``(len(rows), D)``.

    Each block of classes has its own generator, so a row does not depend on which rows are asked
    for and no rank needs the memory of all. See ``MarginClassifier`` for ``center_init``.
    """
    result = torch.empty(len(rows), embedding_size)
    for block in range(rows.start // _BLOCK, -(-rows.stop // _BLOCK)) if rows else ():
        first = block * _BLOCK
        size = min(_BLOCK, num_classes - first)
        state = np.random.SeedSequence([seed, block]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0]))
        drawn = torch.randn(size, embedding_size, generator=generator)
        wanted = range(max(rows.start, first), min(rows.stop, first + size))
        result[wanted.start - rows.start : wanted.stop - rows.start] = drawn[
            wanted.start - first : wanted.stop - first
        ]
    if center_init == "unit":
        return torch.nn.functional.normalize(result)
    std = 0.01 if center_init == "normal" else math.sqrt(2 / (num_classes + embedding_size))
    return result * std
