"""Margin softmax without its logits: loss and gradients from tiles of a few thousand classes.

The dense form holds a normalised copy of the centres, its gradient, and several matrices of batch ×
classes. Here both passes visit the classes chunk by chunk and hold no more than one chunk's logits:

* forward takes the inner products of a chunk, divides them by the centres' lengths, and adds their
  exponentials to a log-sum-exp whose shift is the running maximum (Milakov and Gimelshein, 2018);
* backward computes the inner products again, turns them into probabilities, adds to the gradient of
  the embeddings, and writes the chunk's rows of the gradient of the centres, already projected on
  the tangents of their normalisation: ∂L/∂w = (I − ŵŵᵀ)·g/‖w‖. These rows are complete, so that an
  optimizer's step can be taken on them at once (`CenterUpdate`): then no gradient of all centres
  exists either.

With K centres a class (Sub-center ArcFace; Deng et al., ECCV 2020) the logit of a class is that of
the nearest of its centres; the others are absent from the softmax.

The margin changes one logit of each row, the target's. That one is left out of the tiles: its
cosine is always computed in float32 or better, and margin and loss are plain functions of it and
of the log-sum-exp of all other classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from facerec.heads.collectives import all_reduce_
from facerec.heads.margins import Margin, NormMargin
from facerec.heads.tiles import (
    FLOOR,
    SMALLEST_NORM,
    Kernel,
    Slopes,
    TileSettings,
    TileSums,
    TorchTiles,
)

if TYPE_CHECKING:
    from facerec.heads.triton_softmax import TritonTiles

CenterUpdate = Callable[[Tensor | None, Iterator[tuple[slice, Tensor]]], None]
"""Takes the gradient of the class centres in place of autograd, tile after tile in backward.

It is called with the rows of the centres that take part, ascending, ``(n,)`` (None: all of them),
and has to exhaust an iterator of pairs: the places of a tile among these rows, and its share of the
gradient, ``(tile, D)``, float32 or better. That is complete; its memory, which may be changed, is
the next tile's too.
The centres of a tile have been read for the last time in this backward pass, so they may change.
"""

_ALIGNMENT = 64  # bytes, as PyTorch's own memory


PLAIN = TileSettings()


class MarginSoftmax(NamedTuple):
    """Loss and figures of a global batch of N; the same bits on all ranks."""

    loss: Tensor
    """Mean cross-entropy, and the margin's own penalty on norms if it has one, a scalar; the only
    one that carries a gradient."""
    target_cosine: Tensor
    """Cosine of each sample to its own class centre, without margin, ``(N,)``."""
    cosine_sum: Tensor
    """Sum of the cosines of all samples to all centres, a scalar."""
    norm_sum: Tensor
    """Sum of the norms of all centres, each at least `SMALLEST_NORM`, a scalar."""


def margin_softmax(
    embeddings: Tensor,
    weight: Tensor,
    column: Tensor,
    margin: Margin,
    *,
    step: Tensor | int = 0,
    settings: TileSettings = PLAIN,
    norm_average: Tensor | None = None,
    rows: Tensor | None = None,
    update: CenterUpdate | None = None,
    weights: Tensor | None = None,
) -> MarginSoftmax:
    """Compute the margin softmax over the rows of ``weight`` on all ranks; a collective.

    Args:
        embeddings: raw embeddings of the global batch, ``(N, D)``, alike on all ranks. Each rank's
            gradient is that of its own rows of ``weight``; they are still to be summed.
        weight: this rank's class centres, ``(rows, D)``, of any length; there may be none. Those of
            one class follow each other.
        column: the row of ``weight`` that is each sample's class, ``(N,)`` int64, or −1 where
            another rank holds it; with K centres a class the first such row, divided by K. Every
            sample needs exactly one rank that does.
        margin: configuration from ``facerec.heads.margins``.
        step: optimiser steps so far, for annealed margins.
        settings: how it is computed, with K, but for its ``transform``, which is the margin's.
        norm_average: mean and standard deviation that AdaFace compares norms with, ``(2,)``; by
            default those that it starts from.
        rows: the only rows of ``weight`` that take part, ascending, ``(n,)`` int64; ``column`` then
            is a place among them, and the gradient of ``weight`` is sparse with these rows.
        update: takes the gradient of ``weight``, which autograd then does not see; by default it is
            one tensor, as always.
        weights: the share of each sample in the loss, ``(N,)``, of a sum of 1; by default all have
            the same. A sample of the share 0 may have a ``column`` of −1 on all ranks.
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    batch = embeddings.to(dtype)
    norms = batch.norm(dim=1).clamp(min=SMALLEST_NORM)
    temperature = margin.scale * (norms if margin.scales_by_norm else torch.ones_like(norms))
    query = batch / norms[:, None] * temperature[:, None]
    chunk = settings.chunk or default_chunk(len(batch), weight.device, settings.kernel)
    chunk = min(chunk, max(1, len(weight if rows is None else rows)))
    number = settings.centers_per_class
    chunk = max(1, chunk // number) * number  # no class lies in two tiles
    transform = _transform(margin) if margin.changes_others else None
    settings = replace(settings, chunk=chunk, transform=transform)
    others, product, shift, product_sums, norm_sum = _Others.apply(
        query, weight, column, rows, settings, update
    )
    # The ranks' gradients are summed, so what follows the collectives counts on one of them.
    own = torch.where(column >= 0, temperature, temperature.detach())
    cosine = product / own
    penalty = None
    if isinstance(margin, NormMargin):
        own_norms = torch.where(column >= 0, norms, norms.detach())
        target = margin.target_cosine(cosine, step, own_norms, norm_average)
        penalty = margin.norm_penalty(own_norms)
    else:
        target = margin.target_cosine(cosine, step)
    # log(1 + e^−x) resolves losses far below the spacing of the logits.
    losses = -torch.nn.functional.logsigmoid(own * target - shift - others)
    loss = _mean(losses, weights) * margin.loss_factor
    if penalty is not None:
        loss = loss + _mean(penalty, weights)
    cosine_sum = (product_sums / temperature.detach()).sum()
    return MarginSoftmax(loss, cosine.detach(), cosine_sum, norm_sum)


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.mean() if weights is None else (values * weights).sum()


def default_chunk(batch_size: int, device: torch.device, kernel: Kernel = "torch") -> int:
    """Return how many classes a tile takes: 1 MB of float32 on a CPU, 64 MB elsewhere.

    For Triton 32 MB of bfloat16 slopes, and no more of unit centres with 512 dimensions: so both
    stay in the second-level cache of a large GPU.
    """
    if kernel == "triton":
        return max(1024, 2**24 // max(batch_size, 512) // 128 * 128)
    elements = 2**18 if device.type == "cpu" else 2**24
    return max(256, elements // batch_size)


def _transform(margin: Margin) -> Callable[[Tensor], Tensor]:
    return lambda product: margin.scale * margin.other_cosine(product / margin.scale)


def create_tiles(query: Tensor, column: Tensor, settings: TileSettings) -> TorchTiles | TritonTiles:
    """Return whoever computes the tiles of one pass; see `TorchTiles` for the arguments."""
    if settings.kernel == "triton":
        from facerec.heads.triton_softmax import TritonTiles  # triton is an extra

        return TritonTiles(query, column, settings)
    return TorchTiles(query, column, settings)


class _Others(torch.autograd.Function):
    """Log-sum-exp over all classes but the target, and the inner product with the target's centre.

    From ``query`` (N, D), whose inner products with unit centres are the logits, come: the
    log-sum-exp of logits less ``shift`` (N,); the target's inner product (N,); and without gradient
    the shift, which is the largest logit (N,), each sample's sum of inner products (N,), and the
    sum of the centres' norms. All are over all ranks.

    The shift stays apart because the sum of both would be rounded to the spacing of the logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        weight: Tensor,
        column: Tensor,
        rows: Tensor | None,
        settings: TileSettings,
        update: CenterUpdate | None,
    ) -> tuple[Tensor, ...]:
        query = query.detach().contiguous()
        visited = _Visited(weight.detach(), rows, settings.chunk, query.dtype)
        size = len(query)
        packed = query.new_zeros(3 * size + 1)
        total, target, products = packed[: 3 * size].view(3, size)
        highest = query.new_full((size,), FLOOR)
        sums = TileSums(highest, total, products)
        lengths = query.new_empty(visited.count)

        column = visited.nearest(query, column, settings.centers_per_class)
        tiles = create_tiles(query, column, settings)
        target.copy_(visited.products(query, column))
        for block, centers, norms in visited.tiles(lengths):
            tiles.add(block.start, centers, norms, sums)

        packed[-1] = lengths.sum()
        shift = all_reduce_(sums.highest.clone(), maximum=True)
        total *= (sums.highest - shift).exp_()
        all_reduce_(packed)
        total.clamp_(min=torch.finfo(total.dtype).tiny)  # there may be no other class at all

        ctx.save_for_backward(query, weight, column, rows, shift, total, target, lengths)
        ctx.settings, ctx.update = settings, update
        figures = (target, shift, products, packed[-1])
        results = total.log(), *(tensor.clone() for tensor in figures)
        ctx.mark_non_differentiable(*results[2:])
        return results

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, others_slope: Tensor, target_slope: Tensor, *unused: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, weight, column, rows, shift, total, target, lengths = ctx.saved_tensors
        visited = _Visited(weight.detach(), rows, ctx.settings.chunk, query.dtype)
        tiles = create_tiles(query, column, ctx.settings)
        shares = tiles.new_shares() if ctx.needs_input_grad[0] else None
        update: CenterUpdate | None = ctx.update if ctx.needs_input_grad[1] else None
        memory = None  # for the gradient of all centres, or of those of a tile
        if update is not None:
            memory = query.new_empty(min(visited.chunk, visited.count), query.shape[1])
        elif ctx.needs_input_grad[1]:
            memory = empty_rows(visited.count, query)

        def gradients() -> Iterator[tuple[slice, Tensor]]:
            slopes = Slopes(shift, others_slope / total, target, target_slope)
            for block, centers, norms in visited.tiles(lengths):
                first = block.start if update is None else 0
                out = None if memory is None else memory[first : first + block.stop - block.start]
                tiles.spread(block.start, centers, norms, slopes, shares, out)
                if out is not None:
                    yield block, out

        to_query = to_weight = None
        with torch.autocast(query.device.type, enabled=False):
            if update is not None:
                update(rows, gradients())
            else:
                for _ in gradients():
                    pass
                to_weight = memory
        if shares is not None:
            to_query = shares.sum(0)[: query.shape[0], : query.shape[1]]
        if to_weight is not None:
            to_weight = to_weight.to(weight.dtype)
            if rows is not None:
                to_weight = sparse_rows(rows, to_weight, weight)
        return to_query, to_weight, None, None, None, None


class _Visited:
    """The centres that a rank visits, tile after tile."""

    def __init__(self, weight: Tensor, rows: Tensor | None, chunk: int, dtype: torch.dtype) -> None:
        self.weight, self.rows, self.chunk, self.dtype = weight, rows, chunk, dtype
        self.count = len(weight if rows is None else rows)

    def tiles(self, lengths: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield the places of each tile, its centres, and its part of ``lengths``."""
        starts = range(0, self.count, self.chunk)
        centers: Iterable[Tensor] = self.weight.split(self.chunk)
        if self.rows is not None:
            memory = self.weight.new_empty(self.chunk, self.weight.shape[1])
            centers = (
                torch.index_select(self.weight, 0, rows, out=memory[: len(rows)])
                for rows in self.rows.split(self.chunk)
            )
        for start, tile, norms in zip(starts, centers, lengths.split(self.chunk), strict=False):
            yield slice(start, min(start + self.chunk, self.count)), tile.to(self.dtype), norms

    def nearest(self, query: Tensor, column: Tensor, centers_per_class: int) -> Tensor:
        """Return which of the centres of its class is nearest to each sample, −1 for none (N,)."""
        if centers_per_class == 1 or not self.count:
            return column
        first = column * centers_per_class
        rows = [torch.where(column >= 0, first + number, -1) for number in range(centers_per_class)]
        best = torch.stack([self.products(query, row) for row in rows]).argmax(0)
        return torch.where(column >= 0, first + best, -1)

    def products(self, query: Tensor, column: Tensor) -> Tensor:
        """Return q·ŵ of each sample and its own class, 0 where another rank holds that (N,)."""
        if not self.count:
            return query.new_zeros(len(query))
        position = column.clamp(min=0)
        centers = self.weight[position if self.rows is None else self.rows[position]].to(self.dtype)
        norms = centers.norm(dim=1).clamp(min=SMALLEST_NORM)
        return torch.where(column >= 0, (query * centers).sum(1) / norms, 0)


def empty_rows(count: int, like: Tensor) -> Tensor:
    """Return memory for the gradient of ``count`` centres, which are like ``like`` (…, D)."""
    if like.device.type != "cpu":
        return like.new_empty(count, like.shape[1])
    # NumPy asks the kernel for huge pages. With small ones the first use of hundreds of megabytes
    # takes as long as a matrix product. It aligns to 16 bytes only, on which the last bit of a
    # product may depend, and a resumed run must not differ from an uninterrupted one.
    size = count * like.shape[1] * like.dtype.itemsize
    memory = torch.from_numpy(np.empty(size + _ALIGNMENT, np.uint8))
    start = -memory.data_ptr() % _ALIGNMENT
    return memory[start : start + size].view(like.dtype).view(count, like.shape[1])


def sparse_rows(rows: Tensor, values: Tensor, like: Tensor) -> Tensor:
    """Return a matrix in the shape of ``like`` that has but some rows, as a sparse tensor.

    Args:
        rows: which, ascending, ``(n,)`` int64.
        values: theirs, ``(n, D)``, whose memory the result shares.
        like: ``(rows, D)``.
    """
    return torch.sparse_coo_tensor(
        rows[None], values, like.shape, check_invariants=False, is_coalesced=True
    )
