"""The margin softmax's tiles by kernels of Triton, for CUDA; they need the extra ``gpu``.

The torch form makes fifty launches and twenty-five passes over every tile of N × classes. Here

* forward normalises the centres and rounds them to the operands' type; multiplies one block of
  samples with one of classes a program, whose products become a log-sum-exp in registers; and
  merges the blocks' figures online (Milakov and Gimelshein, 2018);
* backward normalises them again; multiplies again, turns the products into slopes in registers, and
  writes these; then a product of the slopes gives the centres' gradient, which is projected,
  (I − ŵŵᵀ)·g/‖w‖, before it is written, and another one the embeddings'.

Logits never leave the registers. The slopes of a tile do, in the operands' type: at D = 512 a block
of either gradient fills the registers by itself, so a kernel that made both from one product would
add each block of logits to memory as 2·D floats a row, with locks (Cut Cross-Entropy, Wijmans et
al., 2024, which skips blocks of small slopes to pay less), and one kernel for each gradient would
compute the product twice. A tile is as long as its slopes and unit centres stay in a GPU's L2.

Every sum has one order and one owner, without atomics: the same sizes and blocks give the same bits
on the same card. `kernel_choice` may have timed some shapes of blocks, once, before the first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import triton
from torch import Tensor

from facerec.heads import triton_kernels as kernels
from facerec.heads.tiles import Slopes, TileSettings, TileSums

_OPTIONS = {"enable_fp_fusion": True}  # of the compiler, whose default is about to change


@dataclass(frozen=True)
class Blocks:
    """How kernels cut up their work; powers of two of at least 16, ``depth`` the smallest."""

    rows: int = 128
    """Samples in a block."""
    classes: int = 128
    """Classes in a block."""
    width: int = 128
    """Dimensions in a block of a gradient."""
    depth: int = 64
    """What one step of a product sums over."""
    warps: int = 8
    stages: int = 3
    """Steps of a product whose operands are in flight."""
    programs: int = 264
    """How many the embeddings' gradient is split over: two a multiprocessor of an H100."""


SHAPES = {
    True: ((128, 128, 128, 8), (128, 128, 64, 8), (128, 64, 128, 8), (128, 64, 64, 4)),
    False: ((128, 64, 128, 8), (128, 64, 64, 8), (64, 64, 128, 8), (64, 64, 64, 4)),
}
"""Rows, classes, width and warps of blocks, by whether operands are bfloat16; float32 takes more
registers and memory. None spills registers or takes more than 96 KB. Larger ones read less, and of
smaller ones more programs share a multiprocessor: of the last two for bfloat16 two or more on an
H100, where of the first one `slopes` and `center_gradient` have room for one."""


def blocks_for(batch_size: int, reduced: bool, shape: int) -> Blocks:
    """Return the blocks for a batch of N, by whether operands are bfloat16, in one of `SHAPES`."""
    rows, classes, width, warps = SHAPES[reduced][shape]
    depth = 64 if reduced else 32
    rows = min(rows, max(depth, triton.next_power_of_2(batch_size)))
    return Blocks(rows, classes, width, depth, warps)


class TritonTiles:
    """Does by kernels what `TorchTiles` does, for queries and centres of float32.

    Products take bfloat16 operands where the settings say so. Float32 ones go by torch's switch for
    CUDA: one product of TF32 where it is allowed, else three, whose error is that of float32 but
    for a few units in the last place.
    """

    def __init__(self, query: Tensor, column: Tensor, settings: TileSettings) -> None:
        self.column = column
        self.size, self.dimensions = query.shape
        self.blocks = blocks_for(self.size, settings.reduced, settings.shape)
        # Operands are padded with zeros to whole blocks, so that no product needs a mask.
        padded = _round_up(self.dimensions, max(self.blocks.width, self.blocks.depth))
        kind = torch.bfloat16 if settings.reduced else torch.float32
        self.rows = _round_up(self.size, self.blocks.rows)
        self.classes = _round_up(settings.chunk, self.blocks.classes)
        self.query = query.new_zeros(self.rows, padded, dtype=kind)
        self.query[: self.size, : self.dimensions] = query
        self.unit = self.query.new_empty(self.classes, padded)
        self.product: dict[str, Any] = {
            "D": padded,
            "PRECISION": _precision(),
            "BLOCK_N": self.blocks.rows,
            "BLOCK_C": self.blocks.classes,
            "BLOCK_D": self.blocks.depth,
            "num_warps": self.blocks.warps,
            "num_stages": self.blocks.stages,
            **_OPTIONS,
        }

    @cached_property
    def figures(self) -> Tensor:
        """What blocks of a tile add up to in the forward pass."""
        blocks = self.classes // self.blocks.classes
        return self.query.new_empty(3, blocks, self.rows, dtype=torch.float32)

    @cached_property
    def slopes(self) -> tuple[Tensor, Tensor]:
        """Derivatives by a tile's products, and their sums along its centres by blocks of rows."""
        groups = self.rows // self.blocks.rows
        radial = self.query.new_empty(groups, self.classes, dtype=torch.float32)
        return self.query.new_empty(self.rows, self.classes), radial

    def add(self, start: int, centers: Tensor, lengths: Tensor, sums: TileSums) -> None:
        """Add these classes to ``sums``."""
        count, groups, class_blocks = self._normalize(centers, lengths)
        kernels.forward(
            (groups, class_blocks),
            *(self.query, self.unit, self.column, self.figures),
            *(start, count, self.size),
            **self.product,
        )
        block = min(32, self.blocks.rows)
        kernels.merge(
            (self.rows // block,),
            *(self.figures, sums.highest, sums.total, sums.products),
            *(class_blocks, self.size, self.rows),
            BLOCK_P=32,
            BLOCK_N=block,
            **_OPTIONS,
        )

    def new_shares(self) -> Tensor:
        """Return zeros (shares, ≥ N, ≥ D), whose sum becomes the gradient of the queries."""
        blocks = self.query.shape[1] // self.blocks.width * (self.rows // self.blocks.rows)
        splits = min(self.blocks.programs // blocks, self.classes // self.blocks.classes)
        return self.query.new_zeros(max(1, splits), *self.query.shape, dtype=torch.float32)

    def spread(
        self,
        start: int,
        centers: Tensor,
        lengths: Tensor,
        slopes: Slopes,
        shares: Tensor | None,
        to_centers: Tensor | None,
    ) -> None:
        """Hand the slopes of these classes on to queries and centres."""
        count, groups, class_blocks = self._normalize(centers, lengths)
        by_product, radial = self.slopes
        kernels.slopes(
            (groups, class_blocks),
            *(self.query, self.unit, self.column, *slopes, by_product, radial),
            *(start, count, self.size, self.classes),
            **self.product,
        )
        slices = self.query.shape[1] // self.blocks.width
        if to_centers is not None:
            kernels.center_gradient(
                (slices, class_blocks),
                *(self.query, by_product, radial, centers, lengths, to_centers),
                *(count, self.dimensions, self.rows, self.classes, groups),
                BLOCK_W=self.blocks.width,
                **self.product,
            )
        if shares is not None:
            splits = shares.shape[0]
            kernels.query_gradient(
                (slices, groups, splits),
                *(by_product, self.unit, shares),
                *(class_blocks, -(-class_blocks // splits), self.classes),
                BLOCK_W=self.blocks.width,
                **self.product,
            )

    def _normalize(self, centers: Tensor, lengths: Tensor) -> tuple[int, int, int]:
        """Fill ``unit`` with normalised centres, and ``lengths``, in both passes alike.

        Returns:
            The number of classes, and of blocks of samples and of classes. Samples come first in a
            grid: what runs at the same time then shares its classes.
        """
        count, dimensions = centers.shape
        class_blocks = -(-count // self.blocks.classes)
        covered = class_blocks * self.blocks.classes
        width = triton.next_power_of_2(self.unit.shape[1])
        height = max(1, 2048 // width)
        kernels.normalize_centers(
            (-(-covered // height),),
            *(centers, lengths, self.unit, count, covered, dimensions),
            D=self.unit.shape[1],
            BLOCK_C=height,
            BLOCK_D=width,
            **_OPTIONS,
        )
        return count, self.rows // self.blocks.rows, class_blocks


def _precision() -> str:
    """Tell how float32 operands are multiplied."""
    if triton.knobs.runtime.interpret:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def _round_up(number: int, block: int) -> int:
    return max(1, -(-number // block)) * block
