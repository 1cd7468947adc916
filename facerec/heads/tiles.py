"""The arithmetic on one tile of classes of the margin softmax, and what goes in and comes out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Kernel = Literal["torch", "triton"]
"""What computes the tiles: operations of torch, or kernels of Triton, which need CUDA, centres of
float32, the extra ``gpu``, and a margin that leaves the cosines to other classes alone."""

SMALLEST_NORM = 1e-6
"""Below it vectors are not normalised further, which bounds the gradient."""

# A logit that takes no part, and the lowest shift. Finite, so that 0 · absent and absent − floor
# are numbers; the exponential of their difference is exactly 0.
ABSENT = -1e30
FLOOR = -1e20


@dataclass(frozen=True)
class TileSettings:
    """How the softmax over classes is computed, tile by tile."""

    reduced: bool = False
    """Whether matrix products take bfloat16 operands; sums are float32 in either case."""
    chunk: int = 0
    """Classes in a tile, but for the last one, which may be smaller; 0 takes as many as make a good
    size for the cache."""
    transform: Callable[[Tensor], Tensor] | None = None
    """Inner products to logits, where that is not the identity."""
    kernel: Kernel = "torch"
    """What computes the tiles."""
    shape: int = 0
    """Number of the shape of Triton's blocks; see `facerec.heads.triton_softmax.SHAPES`."""
    centers_per_class: int = 1
    """Centres of a class, of which the nearest counts."""


@dataclass
class TileSums:
    """What the forward pass adds up over the tiles of a rank."""

    highest: Tensor
    """The largest logit of each sample so far, its own class left out, ``(N,)``."""
    total: Tensor
    """Sum of e^(logit − highest), its own class left out, ``(N,)``."""
    products: Tensor
    """Sum of a sample's inner products with unit centres, its own class included, ``(N,)``."""


class Slopes(NamedTuple):
    """What the backward pass knows of each sample before it visits the tiles, ``(N,)`` each."""

    shift: Tensor
    factor: Tensor
    """The loss grows by factor · e^(logit − shift) with the logit of another class."""
    target: Tensor
    """Inner product with the unit centre of its own class, as forward found it."""
    target_slope: Tensor
    """The loss grows by so much with that product."""


class TorchTiles:
    """The arithmetic on the classes of one tile by operations of torch; a tile is ``(classes, N)``.

    Both passes call it tile after tile. It is made for a pass from ``query`` (N, D), whose inner
    products with unit centres are the logits before ``transform``; ``column`` (N,), the class of
    each sample, counted as the centres are that this rank visits, or −1; and the settings. Tiles
    begin at multiples of ``settings.chunk``, and nothing in them may make the host wait.
    """

    def __init__(self, query: Tensor, column: Tensor, settings: TileSettings) -> None:
        self.query, self.settings = query, settings
        self.factor = query.bfloat16() if settings.reduced else query
        self.memory = query.new_empty(2, settings.chunk, len(query))
        self.first = torch.arange(len(query), device=query.device)
        self.home = column.div(settings.chunk, rounding_mode="floor")
        self.index = column.remainder(settings.chunk) * len(query) + self.first

    def add(self, start: int, centers: Tensor, lengths: Tensor, sums: TileSums) -> None:
        """Add the classes ``start``, ``start + 1``, … to ``sums``; the forward pass.

        Args:
            start: the number of the first class.
            centers: theirs, as they are, ``(n, D)``; to be read alone.
            lengths: takes their lengths, at least `SMALLEST_NORM`, ``(n,)``.
            sums: changed in place, but for ``highest``, which may be another tensor afterwards.
        """
        torch.linalg.vector_norm(centers, dim=1, out=lengths).clamp_(min=SMALLEST_NORM)
        tile = self._multiply(centers, lengths)
        farther = self._farther(tile, start)
        sums.products += (tile if farther is None else tile.masked_fill(farther, 0)).sum(0)
        transform = self.settings.transform
        logits = tile if transform is None else transform(tile)
        if farther is not None:
            logits.masked_fill_(farther, ABSENT)
        self._put(logits, start, ABSENT)
        highest = torch.maximum(sums.highest, logits.amax(0))
        sums.total *= (sums.highest - highest).exp_()
        sums.total += logits.sub_(highest).exp_().sum(0)
        sums.highest = highest

    def new_shares(self) -> Tensor:
        """Return zeros (shares, ≥ N, ≥ D), whose sum becomes the gradient of the queries."""
        return torch.zeros_like(self.query)[None]

    def spread(
        self,
        start: int,
        centers: Tensor,
        lengths: Tensor,
        slopes: Slopes,
        shares: Tensor | None,
        to_centers: Tensor | None,
    ) -> None:
        """Hand the slopes of these classes on to queries and centres; the backward pass.

        Args:
            start: as in `add`.
            centers: as in `add`.
            lengths: as `add` left them.
            slopes: of the loss.
            shares: of the gradient of the queries, see `new_shares`; this tile's are added.
            to_centers: ``(n, D)``; filled with the gradient of the centres, which is complete.
        """
        tile = self._multiply(centers, lengths)
        farther = self._farther(tile, start)
        by_product = self._slopes(tile, slopes.shift, slopes.factor)
        if farther is not None:
            by_product.masked_fill_(farther, 0)
        self._put(by_product, start, slopes.target_slope)
        if to_centers is not None:
            self._put(tile, start, slopes.target)
            # The part of Σ_i slope_ij·q_i along ŵ_j.
            radial = tile.mul_(by_product).sum(1)
        by_product.div_(lengths[:, None])
        if shares is not None:
            self._add_product(shares[0], by_product.T, centers)
        if to_centers is not None:
            radial.div_(lengths).div_(lengths).neg_()
            radial.masked_fill_(lengths <= SMALLEST_NORM, 0)  # not normalised
            torch.mul(centers, radial[:, None], out=to_centers)
            self._add_product(to_centers, by_product, self.factor)

    def _multiply(self, centers: Tensor, lengths: Tensor) -> Tensor:
        """Return the inner products of unit centres and queries, in memory of their own."""
        out = self.memory[0, : len(centers)]
        if self.settings.reduced:
            out.copy_(self._reduced_product(centers, self.factor.T))
        else:
            torch.mm(centers, self.factor.T, out=out)
        return out.div_(lengths[:, None])

    def _add_product(self, out: Tensor, left: Tensor, right: Tensor) -> None:
        if self.settings.reduced:
            out.add_(self._reduced_product(left, right))
        else:
            out.addmm_(left, right)

    def _reduced_product(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = left.bfloat16(), right.bfloat16()
        if left.is_cuda:
            return torch.mm(left, right, out_dtype=torch.float32)
        return torch.mm(left, right)  # sums in float32, but gives bfloat16

    def _farther(self, tile: Tensor, start: int) -> Tensor | None:
        """Tell which centres do not count for a sample, as another of their class is nearer."""
        number = self.settings.centers_per_class
        if number == 1:
            return None
        scores = tile.clone()
        # Of its own class that one counts which forward chose, whatever rounding says here.
        self._put(scores, start, math.inf)
        by_class = scores.view(-1, number, len(self.query))
        farther = torch.ones_like(by_class, dtype=torch.bool)
        farther.scatter_(1, by_class.argmax(1, keepdim=True), False)
        return farther.view(tile.shape)

    def _slopes(self, tile: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
        """Return the derivatives by inner products, if those by logits are factor·e^(z − shift)."""
        if self.settings.transform is None:
            return torch.sub(tile, shift, out=self.memory[1, : len(tile)]).exp_().mul_(factor)
        with torch.enable_grad():
            tile = tile.detach().requires_grad_()
            logits = self.settings.transform(tile)
        by_logits = (logits.detach() - shift).exp_().mul_(factor)
        (slopes,) = torch.autograd.grad(logits, tile, by_logits)
        return slopes

    def _put(self, tile: Tensor, start: int, values: Tensor | float) -> None:
        """Set the elements of the samples whose own class lies in this tile."""
        # Finding out which samples those are would make the host wait, so the others write too:
        # what is there already.
        here, flat = self.home == start // self.settings.chunk, tile.view(-1)
        index = torch.where(here, self.index, self.first)
        flat.scatter_(0, index, torch.where(here, values, flat[index]))
