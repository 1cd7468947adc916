"""Margin softmax without its logits: loss and gradients from tiles of a few thousand classes.

The dense form holds a normalised copy of the centres, its gradient, and several matrices of batch ×
classes. Here both passes visit the classes chunk by chunk and hold no more than one chunk's logits:

* forward takes the inner products of a chunk, divides them by the centres' lengths, and adds their
  exponentials to a log-sum-exp whose shift is the running maximum (Milakov and Gimelshein, 2018);
* backward computes the inner products again, turns them into probabilities, adds to the gradient of
  the embeddings, and writes the chunk's rows of the gradient of the centres, already projected on
  the tangents of their normalisation: ∂L/∂w = (I − ŵŵᵀ)·g/‖w‖.

The margin changes one logit of each row, the target's. That one is left out of the tiles: its
cosine is always computed in float32 or better, and margin and loss are plain functions of it and
of the log-sum-exp of all other classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from facerec.devices import has_fast_bf16
from facerec.heads.collectives import all_reduce_
from facerec.heads.margins import Margin, NormMargin
from facerec.limits import Checked, Limits

Precision = Literal["fp32", "bf16"]
"""Of the matrix products: ``bf16`` rounds their operands where the device has instructions for it,
and is ``fp32`` elsewhere. Sums, and everything between the products, are float32; only a CPU also
rounds the products themselves."""

SMALLEST_NORM = 1e-6
"""Below it vectors are not normalised further, which bounds the gradient."""

# A logit that takes no part, and the lowest shift. Finite, so that 0 · absent and absent − floor
# are numbers; the exponential of their difference is exactly 0.
_ABSENT = -1e30
_FLOOR = -1e20

_ALIGNMENT = 64  # bytes, as PyTorch's own memory


@dataclass(frozen=True)
class InterclassFilter(Checked):
    """Leave near classes out of a sample's softmax, for data in which a person has several classes.

    It looks at cosines before any margin, and the target is never filtered. Source of the rule:
    insightface's arcface_torch, which uses mode zero.
    """

    threshold: Annotated[float, Limits(-1.0, 1.0)] = 0.4
    """Other classes whose cosine is above this are filtered (0.4 in insightface)."""

    mode: Literal["drop", "zero"] = "drop"
    """drop removes the class from the sum (logit −∞); zero treats it as orthogonal to the sample,
    so that it still counts but has no gradient."""


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
    """Sum of the norms of all centres, a scalar."""
    filtered: Tensor
    """How many pairs of a sample and another class the filter took, a scalar."""


def margin_softmax(
    embeddings: Tensor,
    weight: Tensor,
    column: Tensor,
    margin: Margin,
    *,
    step: Tensor | int = 0,
    group: dist.ProcessGroup | None = None,
    precision: Precision = "fp32",
    chunk: int | None = None,
    interclass_filter: InterclassFilter | None = None,
    norm_average: Tensor | None = None,
    rows: Tensor | None = None,
) -> MarginSoftmax:
    """Compute the margin softmax over the rows of ``weight`` on all ranks; a collective.

    Args:
        embeddings: raw embeddings of the global batch, ``(N, D)``, alike on all ranks. Each rank's
            gradient is that of its own rows of ``weight``; they are still to be summed.
        weight: this rank's class centres, ``(rows, D)``, of any length; there may be none.
        column: the row of ``weight`` that is each sample's class, ``(N,)`` int64, or −1 where
            another rank holds it. Every sample needs exactly one rank that does.
        margin: configuration from ``facerec.heads.margins``.
        step: optimiser steps so far, for annealed margins.
        group: ranks that share the classes; the default group if None.
        precision: of the matrix products.
        chunk: classes in a tile; by default as many as make a good size for the cache.
        interclass_filter: which other classes are left out; by default none.
        norm_average: mean and standard deviation that AdaFace compares norms with, ``(2,)``; by
            default those that it starts from.
        rows: the only rows of ``weight`` that take part, ascending, ``(n,)`` int64; ``column`` then
            is a place among them, and the gradient of ``weight`` is sparse with these rows.
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    batch = embeddings.to(dtype)
    norms = batch.norm(dim=1).clamp(min=SMALLEST_NORM)
    temperature = margin.scale * (norms if margin.scales_by_norm else torch.ones_like(norms))
    query = batch / norms[:, None] * temperature[:, None]
    settings = _Settings(
        group=group,
        reduced=precision == "bf16" and has_fast_bf16(weight.device),
        chunk=chunk or default_chunk(len(batch), weight.device),
        transform=_transform(margin) if margin.changes_others else None,
        zero=interclass_filter is not None and interclass_filter.mode == "zero",
    )
    limit = None
    if interclass_filter is not None:
        limit = interclass_filter.threshold * temperature.detach()
    others, product, shift, product_sums, norm_sum, filtered = _Others.apply(
        query, weight, column, limit, rows, settings
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
    loss = -torch.nn.functional.logsigmoid(own * target - shift - others).mean()
    loss = loss * margin.loss_factor
    if penalty is not None:
        loss = loss + penalty.mean()
    cosine_sum = (product_sums / temperature.detach()).sum()
    return MarginSoftmax(loss, cosine.detach(), cosine_sum, norm_sum, filtered)


def default_chunk(batch_size: int, device: torch.device) -> int:
    """Return how many classes a tile takes: 1 MB of float32 on a CPU, 64 MB elsewhere."""
    elements = 2**18 if device.type == "cpu" else 2**24
    return max(256, elements // batch_size)


def _transform(margin: Margin) -> Callable[[Tensor], Tensor]:
    return lambda product: margin.scale * margin.other_cosine(product / margin.scale)


@dataclass(frozen=True)
class _Settings:
    group: dist.ProcessGroup | None
    reduced: bool
    """Whether products take bfloat16 operands."""
    chunk: int
    transform: Callable[[Tensor], Tensor] | None
    """Inner products to logits, where that is not the identity."""
    zero: bool
    """Whether a filtered class counts as orthogonal, not as absent."""


class _Others(torch.autograd.Function):
    """Log-sum-exp over all classes but the target, and the inner product with the target's centre.

    From ``query`` (N, D), whose inner products with unit centres are the logits, come: the
    log-sum-exp of logits less ``shift`` (N,); the target's inner product (N,); and without gradient
    the shift, which is the largest logit (N,), the sum of each sample's inner products (N,), the
    sum of the centres' norms, and the number of filtered logits. All are over all ranks.

    The shift stays apart because the sum of both would be rounded to the spacing of the logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        weight: Tensor,
        column: Tensor,
        limit: Tensor | None,
        rows: Tensor | None,
        settings: _Settings,
    ) -> tuple[Tensor, ...]:
        query = query.detach().contiguous()
        tiles = _Tiles(query, weight.detach(), column, limit, rows, settings)
        size = len(query)
        sums = query.new_zeros(3 * size + 2)
        total, target, products = sums[: 3 * size].view(3, size)
        norm_sum, filtered = sums[-2], sums[-1]
        highest = query.new_full((size,), _FLOOR)
        lengths = query.new_empty(tiles.count)

        target.copy_(tiles.target())
        for number, part in tiles.parts():
            centers = tiles.centers(part)
            torch.linalg.vector_norm(centers, dim=1, out=lengths[part])
            norm_sum += lengths[part].sum()
            lengths[part].clamp_(min=SMALLEST_NORM)
            tile = tiles.multiply(centers, lengths[part], part)
            products += tile.sum(0)
            hidden = tiles.hidden(tile, number)
            if hidden is not None:
                filtered += hidden.sum()
            logits = tiles.fill(tiles.transformed(tile), hidden)
            tiles.put(logits, number, _ABSENT)
            shift = torch.maximum(highest, logits.amax(0))
            total *= (highest - shift).exp_()
            total += logits.sub_(shift).exp_().sum(0)
            highest = shift

        shift = all_reduce_(highest.clone(), settings.group, maximum=True)
        total *= (highest - shift).exp_()
        all_reduce_(sums, settings.group)
        total.clamp_(min=torch.finfo(total.dtype).tiny)  # there may be no other class at all

        ctx.save_for_backward(query, weight, column, limit, rows, shift, total, target, lengths)
        ctx.settings = settings
        results = total.log(), *(t.clone() for t in (target, shift, products, norm_sum, filtered))
        ctx.mark_non_differentiable(*results[2:])
        return results

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, others_slope: Tensor, target_slope: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        query, weight, column, limit, rows, shift, total, target, lengths = ctx.saved_tensors
        with torch.autocast(query.device.type, enabled=False):
            tiles = _Tiles(query, weight.detach(), column, limit, rows, ctx.settings)
            to_query = torch.zeros_like(query) if ctx.needs_input_grad[0] else None
            to_weight = None
            if ctx.needs_input_grad[1]:
                to_weight = _empty(tiles.count, query)
            for number, part in tiles.parts():
                centers, norms = tiles.centers(part), lengths[part]
                tile = tiles.multiply(centers, norms, part)
                slopes = tiles.slopes(tile, number, shift, others_slope / total)
                tiles.put(slopes, number, target_slope)
                if to_weight is not None:
                    tiles.put(tile, number, target)
                    # The part of Σ_i slope_ij·q_i along ŵ_j.
                    radial = tile.mul_(slopes).sum(1)
                slopes.div_(norms[:, None])
                if to_query is not None:
                    tiles.add_product(to_query, slopes.T, centers)
                if to_weight is not None:
                    radial.div_(norms).div_(norms).neg_()
                    radial.masked_fill_(norms <= SMALLEST_NORM, 0)  # not normalised
                    torch.mul(centers, radial[:, None], out=to_weight[part])
                    tiles.add_product(to_weight[part], slopes, tiles.factor)
        if to_weight is not None:
            to_weight = to_weight.to(weight.dtype)
            if rows is not None:
                to_weight = torch.sparse_coo_tensor(
                    rows[None], to_weight, weight.shape, check_invariants=False, is_coalesced=True
                )
        return to_query, to_weight, None, None, None, None


class _Tiles:
    """What both passes do with the classes of one chunk; a tile is ``(classes, N)``."""

    def __init__(
        self,
        query: Tensor,
        weight: Tensor,
        column: Tensor,
        limit: Tensor | None,
        rows: Tensor | None,
        settings: _Settings,
    ) -> None:
        self.query, self.weight, self.column, self.limit = query, weight, column, limit
        self.rows, self.settings = rows, settings
        self.count = len(weight) if rows is None else len(rows)
        self.chunk = max(1, min(settings.chunk, self.count))
        self.factor = query.bfloat16() if settings.reduced else query
        self.memory = query.new_empty(2, self.chunk, len(query))
        self.drawn = None if rows is None else weight.new_empty(self.chunk, weight.shape[1])
        self.first = torch.arange(len(query), device=query.device)
        self.home = column.div(self.chunk, rounding_mode="floor")
        self.index = column.remainder(self.chunk) * len(query) + self.first

    def parts(self) -> Iterator[tuple[int, slice]]:
        """Yield the number and the rows of each chunk."""
        for number, start in enumerate(range(0, self.count, self.chunk)):
            yield number, slice(start, min(start + self.chunk, self.count))

    def centers(self, part: slice) -> Tensor:
        if self.rows is None or self.drawn is None:
            return self.weight[part].to(self.query.dtype)
        rows = self.rows[part]
        drawn = torch.index_select(self.weight, 0, rows, out=self.drawn[: len(rows)])
        return drawn.to(self.query.dtype)

    def target(self) -> Tensor:
        """Return q·ŵ of each sample and its own class, 0 where another rank holds that (N,)."""
        if not self.count:
            return self.query.new_zeros(len(self.query))
        column = self.column.clamp(min=0)
        centers = self.weight[column if self.rows is None else self.rows[column]]
        centers = centers.to(self.query.dtype)
        norms = centers.norm(dim=1).clamp(min=SMALLEST_NORM)
        return torch.where(self.column >= 0, (self.query * centers).sum(1) / norms, 0)

    def multiply(self, centers: Tensor, norms: Tensor, part: slice) -> Tensor:
        """Return the inner products of unit centres and queries, in memory of their own."""
        out = self.memory[0, : part.stop - part.start]
        if self.settings.reduced:
            out.copy_(self._reduced_product(centers, self.factor.T))
        else:
            torch.mm(centers, self.factor.T, out=out)
        return out.div_(norms[:, None])

    def add_product(self, out: Tensor, left: Tensor, right: Tensor) -> None:
        if self.settings.reduced:
            out.add_(self._reduced_product(left, right))
        else:
            out.addmm_(left, right)

    def _reduced_product(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = left.bfloat16(), right.bfloat16()
        if left.is_cuda:
            return torch.mm(left, right, out_dtype=torch.float32)
        return torch.mm(left, right)  # sums in float32, but gives bfloat16

    def hidden(self, tile: Tensor, number: int) -> Tensor | None:
        """Tell which inner products the filter takes; it never takes a target's."""
        if self.limit is None:
            return None
        self.put(tile, number, _ABSENT)
        return tile > self.limit

    def transformed(self, tile: Tensor) -> Tensor:
        """Turn inner products into logits; they may be the same tensor."""
        return tile if self.settings.transform is None else self.settings.transform(tile)

    def fill(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        """Give filtered classes their logit, in place."""
        if hidden is None:
            return logits
        zero = self.transformed(logits.new_zeros(())) if self.settings.zero else _ABSENT
        return logits.masked_fill_(hidden, zero)

    def slopes(self, tile: Tensor, number: int, shift: Tensor, factor: Tensor) -> Tensor:
        """Return the derivatives by inner products, if those by logits are factor·e^(z − shift)."""
        hidden = self.hidden(tile, number)
        if self.settings.transform is None:
            slopes = torch.sub(tile, shift, out=self.memory[1, : len(tile)]).exp_().mul_(factor)
        else:
            with torch.enable_grad():
                tile = tile.detach().requires_grad_()
                logits = self.settings.transform(tile)
            by_logits = (logits.detach() - shift).exp_().mul_(factor)
            (slopes,) = torch.autograd.grad(logits, tile, by_logits)
        return slopes if hidden is None else slopes.masked_fill_(hidden, 0)

    def put(self, tile: Tensor, number: int, values: Tensor | float) -> None:
        """Set the elements of the samples whose own class lies in this chunk."""
        # Finding out which samples those are would make the host wait, so the others write too:
        # what is there already.
        here, flat = self.home == number, tile.view(-1)
        index = torch.where(here, self.index, self.first)
        flat.scatter_(0, index, torch.where(here, values, flat[index]))


def _empty(count: int, like: Tensor) -> Tensor:
    """Return memory for the gradient of ``count`` centres."""
    if like.device.type != "cpu":
        return like.new_empty(count, like.shape[1])
    # NumPy asks the kernel for huge pages. With small ones the first use of hundreds of megabytes
    # takes as long as a matrix product. It aligns to 16 bytes only, on which the last bit of a
    # product may depend, and a resumed run must not differ from an uninterrupted one.
    size = count * like.shape[1] * like.dtype.itemsize
    memory = torch.from_numpy(np.empty(size + _ALIGNMENT, np.uint8))
    start = -memory.data_ptr() % _ALIGNMENT
    return memory[start : start + size].view(like.dtype).view(count, like.shape[1])
