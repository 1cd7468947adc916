"""Softmax over face classes with a margin, its class centres split over the ranks.

With W ranks, B images each, N = W·B, every rank holds about C/W class centres, gathers the whole
batch of embeddings, and visits its own classes; the softmax is joined by reducing the largest logit
and the sum of exponentials. A rank's gradient of its centres is complete and must not be averaged.
This costs communication that does not grow with the number of classes.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from facerec.base.devices import has_fast_bf16
from facerec.heads.class_sampling import position_among, sample_classes, sample_size
from facerec.heads.collectives import (
    gather_batch,
    gather_equal,
    insist,
    rank,
    shard_bounds,
    world_size,
)
from facerec.heads.kernel_choice import KernelChoice, choose_kernel, obstacle
from facerec.heads.margin_softmax import CenterUpdate, margin_softmax
from facerec.heads.margins import AdaFace, Margin
from facerec.heads.output import LossOutput
from facerec.heads.tiles import Kernel, TileSettings

CenterInit = Literal["unit", "normal", "xavier"]
Precision = Literal["fp32", "bf16"]

_BLOCK = 4096  # rows of centres drawn at a time


class NormAverage(nn.Module):
    """Moving mean and standard deviation of the norms of global batches, for AdaFace.

    A training batch counts in the figures that it is compared with, as in AdaFace's head.py. They
    are kept by ``advance``, once an optimiser step, whose micro-batches then count together; while
    the step lasts, each is compared with the figures up to and including its own.

    Attributes:
        average: buffer ``(2,)``: mean and standard deviation.
        pending: buffer ``(3,)``, not saved: count, sum and sum of squares of the norms of this
            step, less the mean.
    """

    average: Tensor
    pending: Tensor

    def __init__(self, margin: AdaFace) -> None:
        super().__init__()
        self.margin = margin
        self.register_buffer("average", torch.tensor(margin.start))
        self.register_buffer("pending", torch.zeros(3), persistent=False)

    @torch.no_grad()
    def forward(self, embeddings: Tensor, labelled: Tensor | None = None) -> Tensor:
        """Return the figures to compare norms with, ``(2,)``.

        Args:
            embeddings: raw embeddings of the global batch, ``(N, D)``, alike on all ranks; in
                training mode they count.
            labelled: which of them do, ``(N,)`` bool; all if None.
        """
        if not self.training:
            return self.average.clone()
        deviation = self.margin.clip(embeddings.norm(dim=1)) - self.average[0]
        count = deviation.new_full((), len(deviation))
        if labelled is not None:  # weights, as picking them would wait for their number
            deviation = deviation * labelled
            count = labelled.sum().to(count)
        self.pending += torch.stack([count, deviation.sum(), deviation.square().sum()])
        return self._moved()

    @torch.no_grad()
    def advance(self) -> None:
        """Keep the figures of the step that ends."""
        self.average.copy_(self._moved())
        self.pending.zero_()

    def _moved(self) -> Tensor:
        count, first, second = self.pending
        variance = (second - first.square() / count) / (count - 1)  # unbiased, as in head.py
        step = torch.stack([self.average[0] + first / count, variance.clamp(min=0).sqrt()])
        moved = self.average.lerp(step, self.margin.t_alpha)
        # No batch, one image, or a lost step (NaN) must not stay for ever.
        return torch.where(moved.isfinite(), moved, self.average)


class MarginClassifier(nn.Module):
    """Class-sharded margin softmax over raw embeddings.

    With torch.distributed in use, each rank holds only its own rows of the centres, and both
    ``forward`` and the loss's ``backward`` are collectives. All ranks must give batches of one
    size, which is checked. The gradient of the embeddings is multiplied by the number of ranks, for
    a backbone in DistributedDataParallel; keep this module itself out of it.

    Attributes:
        weight: parameter ``(num_local · K, D)``, float32: this rank's class centres, of any length;
            those of a class follow each other.
        centers_per_class: K, 1 unless classes have sub-centres.
        class_offset: the class of the first local row.
        num_local: how many classes this rank holds; may be 0.
        classes: the local classes that take part, ``(n,)``; all if None. See ``draw``.
        num_visited: how many classes take part over all ranks.
        labelled: if `unlabelled`, how many images of the coming passes have a label, and how many
            there are, over all ranks; None counts those of each pass alone. See ``draw``.
        kernel: what computes the tiles of classes; see ``choose_kernel``.
        shape: of the blocks of Triton's kernels.
        step: buffer, int64: optimiser steps so far, see ``advance``.

    Examples:
        >>> from facerec.heads import CosFace
        >>> head = MarginClassifier(10, 4, CosFace(scale=16.0), seed=0)
        >>> head(torch.randn(3, 4), torch.tensor([0, 7, 7])).loss.shape
        torch.Size([])
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
        precision: Precision = "fp32",
        chunk: int = 0,
        sample_rate: float = 1.0,
        unlabelled: bool = False,
        centers_per_class: int = 1,
    ) -> None:
        """Draw the centres; they are the same on any number of ranks.

        Args:
            num_classes: classes over all ranks, C.
            embedding_size: D.
            margin: configuration from ``facerec.heads.margins``.
            seed: a number >= 0 that fixes the centres.
            center_init: ``unit`` draws directions of length 1, ``normal`` N(0, 0.01²) as
                insightface does, ``xavier`` N(0, 2/(C+D)) as opensphere does.
            precision: of the products of embeddings and centres: bf16 rounds their operands where
                the device has instructions for it, and is fp32 elsewhere.
            chunk: classes that are visited at a time; by default as many as suit the cache.
            sample_rate: share of its classes that each rank visits in a step, in (0, 1]; below 1
                the gradient of ``weight`` is sparse (Partial FC).
            unlabelled: allow the label −1, of images that take no part in the loss.
            centers_per_class: K; of these centres the nearest gives a class its logit.
        """
        super().__init__()
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.margin, self.precision = margin, precision
        self.chunk, self.centers_per_class = chunk, centers_per_class
        self.seed, self.sample_rate, self.unlabelled = seed, sample_rate, unlabelled
        self.classes: Tensor | None = None
        self.num_visited = num_classes
        self.labelled: tuple[Tensor, int] | None = None
        self.kernel: Kernel = "torch"
        self.shape = 0
        self.class_offset, self.num_local = shard_bounds(num_classes, world_size(), rank())
        last = self.class_offset + self.num_local
        rows = range(self.class_offset * centers_per_class, last * centers_per_class)
        centers = num_classes * centers_per_class
        self.weight = nn.Parameter(
            draw_centers(centers, embedding_size, rows, seed=seed, center_init=center_init)
        )
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.norm_average = NormAverage(margin) if isinstance(margin, AdaFace) else None

    @property
    def settings(self) -> TileSettings:
        """How the softmax is computed on this device."""
        reduced = self.precision == "bf16" and has_fast_bf16(self.weight.device)
        return TileSettings(
            reduced, self.chunk, None, self.kernel, self.shape, self.centers_per_class
        )

    def choose_kernel(self, choice: KernelChoice, batch_size: int) -> None:
        """Set what computes the tiles of classes; a collective, which may measure on CUDA.

        Args:
            choice: by name, or ``auto`` for the faster one on this device.
            batch_size: rows of the global batches to come, N.

        Raises:
            TrainingError: ``triton`` is asked for and cannot be used here.
        """
        self.kernel, self.shape = choose_kernel(
            choice, self.margin, self.weight, batch_size, self.settings
        )

    def keep_kernel(self, kernel: Kernel, shape: int) -> None:
        """Go on with an earlier choice, to the same bits, where there is one here."""
        if obstacle(self.margin, self.weight, self.centers_per_class) is None:
            self.kernel, self.shape = kernel, shape

    @torch.no_grad()
    def advance(self) -> None:
        """End one optimiser step: annealed margins count it, AdaFace keeps its averages."""
        self.step += 1
        if self.norm_average is not None:
            self.norm_average.advance()

    @torch.no_grad()
    def draw(self, labels: Tensor, number: int) -> None:
        """Choose the classes that take part in the coming passes; a collective.

        Every rank draws on its own; at a ``sample_rate`` of 1 there is nothing to choose. If
        `unlabelled`, the labelled images are counted, so that losses of the passes, averaged, are
        the loss of all of them, however many labels each pass has.

        Args:
            labels: classes of this rank's images in all of these passes, ``(B,)``.
            number: of the draw, such as the optimiser step; the same gives the same classes.

        Raises:
            TrainingError: as ``forward`` for labels.
        """
        self.classes, self.num_visited = None, self.num_classes
        if self.sample_rate == 1 and not self.unlabelled:
            return
        labels = gather_equal(labels)
        if self.unlabelled:
            self.labelled = (labels >= 0).sum(), len(labels)
        if self.sample_rate == 1:  # now; the rate may change from step to step
            return
        column = self._column(labels)
        ranks, batch = world_size(), len(column)
        sizes = [
            sample_size(self.sample_rate, shard_bounds(self.num_classes, ranks, each)[1], batch)
            for each in range(ranks)
        ]
        own = rank()
        seed = (self.seed, own, number)
        self.classes = sample_classes(column, self.num_local, sizes[own], seed)
        self.num_visited = sum(sizes)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        update: CenterUpdate | None = None,
        all_labels: Tensor | None = None,
    ) -> LossOutput:
        """Return the loss of the global batch, in float32 whatever autocast says.

        That is the cross-entropy averaged over the batch, and MagFace's penalty on norms. Its
        figures are ``target_cosine``, the mean cosine to the own class centre, without margin;
        ``other_cosine``, that to the other classes that take part, to the nearest centre of each
        (NaN for a single class); and ``center_norm``, the mean norm of the centres that take part.

        In training mode AdaFace takes in the batch's norms; ``advance`` ends the step.

        Args:
            embeddings: raw embeddings of this rank, ``(B, D)``, any float type.
            labels: classes of this rank's images, ``(B,)``, int64 in [0, C), or −1 if `unlabelled`.
            update: takes the gradient of ``weight`` in backward, tile by tile, so that there is
                never one of all centres; ``weight.grad`` stays as it is.
            all_labels: those of all ranks, ``(W·B,)``, where batches are known to have one size;
                by default the ranks ask each other.

        Raises:
            TrainingError: batches differ in size between ranks, or a label lies outside [0, C). On
                CUDA these are device-side assertions, which do not make the host wait.
        """
        if all_labels is None:
            all_labels = gather_equal(labels)
        column = self._column(all_labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            dtype = torch.promote_types(self.weight.dtype, torch.float32)
            if self.classes is not None:
                column = position_among(self.classes, column)
            batch = gather_batch(embeddings.to(dtype))
            labelled = known = weights = None
            if self.unlabelled:
                labelled = all_labels >= 0
                count, images = self.labelled or (labelled.sum(), len(labelled))
                # Of the passes of a step, each takes the mean over its share of their labels.
                known = count.clamp(min=1) * (len(labelled) / images)
                weights = labelled.to(dtype) / known
            average = None if self.norm_average is None else self.norm_average(batch, labelled)
            sums = margin_softmax(
                batch,
                self.weight,
                column,
                self.margin,
                step=self.step,
                settings=self.settings,
                norm_average=average,
                rows=self._rows(),
                update=update,
                weights=weights,
            )
        # The cosine of an unlabelled image to its class is 0.
        rows, own = len(column), sums.target_cosine.sum()
        targets = rows if known is None else known
        pairs = rows * self.num_visited - targets if rows * (self.num_visited - 1) else math.nan
        figures = {
            "target_cosine": own / targets,
            "other_cosine": (sums.cosine_sum - own) / pairs,
            "center_norm": sums.norm_sum / (self.num_visited * self.centers_per_class),
        }
        return LossOutput(sums.loss, figures)

    def _rows(self) -> Tensor | None:
        """Return the rows of ``weight`` that take part, ascending; all if None."""
        if self.classes is None or self.centers_per_class == 1:
            return self.classes
        number = self.centers_per_class
        within = torch.arange(number, device=self.classes.device)
        return (self.classes[:, None] * number + within).view(-1)

    def _column(self, labels: Tensor) -> Tensor:
        """Return the local row of each label of the global batch, −1 where it is elsewhere."""
        good = (labels >= (-1 if self.unlabelled else 0)) & (labels < self.num_classes)
        insist(good.all(), f"a label lies outside [0, {self.num_classes}), the classes of the head")
        column = labels - self.class_offset
        return torch.where((column >= 0) & (column < self.num_local), column, -1)


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
