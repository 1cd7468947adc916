"""The kernels of ``triton_softmax``, which says what they do together.

Operands are padded with zeros to whole blocks: N to BLOCK_N, classes to BLOCK_C, dimensions to D.
So no product needs a mask; what they are made from, and figures of samples, do.
"""

import math

import triton
import triton.language as tl

from facerec.heads import tiles
from facerec.heads.triton_launch import Launcher

ABSENT = tl.constexpr(tiles.ABSENT)
FLOOR = tl.constexpr(tiles.FLOOR)
SMALLEST = tl.constexpr(tiles.SMALLEST_NORM)
LOG2_E = tl.constexpr(math.log2(math.e))


@Launcher
@triton.jit(do_not_specialize=["count", "covered"])
def normalize_centers(
    centers,
    lengths,
    unit,
    count,
    covered,
    dimensions,
    D: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write lengths and unit centres, beyond ``count`` and ``dimensions`` zeros."""
    class_index = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    column = tl.arange(0, BLOCK_D)
    inside = class_index < count
    center = tl.load(
        centers + class_index[:, None].to(tl.int64) * dimensions + column[None, :],
        mask=inside[:, None] & (column < dimensions)[None, :],
        other=0.0,
    )
    length = tl.maximum(tl.sqrt(tl.sum(center * center, 1)), SMALLEST)
    tl.store(lengths + class_index, length, mask=inside)
    tl.store(
        unit + class_index[:, None].to(tl.int64) * D + column[None, :],
        (center / length[:, None]).to(unit.dtype.element_ty),
        mask=(class_index < covered)[:, None] & (column < D)[None, :],
    )


@triton.jit
def _exp(x):
    """Return e^x by the instruction for 2^x, without the care that tl.exp takes of denormals."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def _multiply(left, right, total, PRECISION: tl.constexpr):
    if PRECISION == "ieee":  # in the interpreter alone, whose products of bfloat16 are wrong
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, total, input_precision=PRECISION)


@triton.jit
def _products(
    query,
    unit,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Return the inner products of a program's samples and unit centres."""
    depth = tl.arange(0, BLOCK_D)
    query += tl.program_id(0).to(tl.int64) * BLOCK_N * D
    unit += tl.program_id(1).to(tl.int64) * BLOCK_C * D
    left = tl.arange(0, BLOCK_N)[:, None] * D + depth[None, :]
    right = depth[:, None] + tl.arange(0, BLOCK_C)[None, :] * D
    total = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    for _ in range(0, D, BLOCK_D):
        total = _multiply(tl.load(query + left), tl.load(unit + right), total, PRECISION)
        query += BLOCK_D
        unit += BLOCK_D
    return total


@triton.jit
def _is_plain(own, count, BLOCK_C: tl.constexpr):
    """Tell whether a block has neither the own class of a sample nor classes of the padding."""
    first = tl.program_id(1) * BLOCK_C
    here = (own >= first) & (own < first + BLOCK_C)
    return (tl.max(here.to(tl.int32), 0) == 0) & (first + BLOCK_C <= count)


@Launcher
@triton.jit(do_not_specialize=["start", "count", "size"])
def forward(
    query,
    unit,
    column,
    block_figures,
    start,
    count,
    size,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write each block's highest logits, totals, and sums of products, (3, blocks, N)."""
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    class_index = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < size
    product = _products(query, unit, D, PRECISION, BLOCK_N, BLOCK_C, BLOCK_D)

    padded = tl.num_programs(0) * BLOCK_N
    kind = tl.num_programs(1) * padded
    block_figures += tl.program_id(1) * padded + row
    tl.store(block_figures + 2 * kind, tl.sum(product, 1))  # classes of the padding add 0
    own = tl.load(column + row, mask=inside, other=-1) - start
    logit = product
    if not _is_plain(own, count, BLOCK_C):
        others = (own[:, None] != class_index[None, :]) & (class_index < count)[None, :]
        logit = tl.where(others, product, ABSENT)
    highest = tl.maximum(tl.max(logit, 1), FLOOR)
    tl.store(block_figures, highest)
    tl.store(block_figures + kind, tl.sum(_exp(logit - highest[:, None]), 1))


@Launcher
@triton.jit(do_not_specialize=["class_blocks", "size"])
def merge(
    block_figures,
    highest,
    total,
    products,
    class_blocks,
    size,
    padded,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add the figures of ``class_blocks`` blocks of classes to the running ones, in their order."""
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = row < size
    top = tl.load(highest + row, mask=inside, other=FLOOR)
    mass = tl.load(total + row, mask=inside, other=0.0)
    added = tl.load(products + row, mask=inside, other=0.0)
    for start in range(0, class_blocks, BLOCK_P):
        block = start + tl.arange(0, BLOCK_P)
        here = block_figures + block[:, None] * padded + row[None, :]
        mask = (block < class_blocks)[:, None] & inside[None, :]
        tops = tl.load(here, mask=mask, other=FLOOR)
        masses = tl.load(here + class_blocks * padded, mask=mask, other=0.0)
        added += tl.sum(tl.load(here + 2 * class_blocks * padded, mask=mask, other=0.0), 0)
        higher = tl.maximum(top, tl.max(tops, 0))
        mass = mass * _exp(top - higher) + tl.sum(masses * _exp(tops - higher[None, :]), 0)
        top = higher
    tl.store(highest + row, top, mask=inside)
    tl.store(total + row, mass, mask=inside)
    tl.store(products + row, added, mask=inside)


@Launcher
@triton.jit(do_not_specialize=["start", "count", "size"])
def slopes(
    query,
    unit,
    column,
    shift,
    factor,
    target,
    target_slope,
    slopes,
    radial,
    start,
    count,
    size,
    stride,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write derivatives by products, and each block's Σ_i slope_ij · product_ij, ``radial``.

    ``slopes`` is (N, ``stride``), ``radial`` (blocks of samples, classes); padding gets zeros.
    """
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    class_index = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < size
    product = _products(query, unit, D, PRECISION, BLOCK_N, BLOCK_C, BLOCK_D)

    height = tl.load(shift + row, mask=inside, other=0.0)
    scale = tl.load(factor + row, mask=inside, other=0.0)
    slope = _exp(product - height[:, None]) * scale[:, None]
    own = tl.load(column + row, mask=inside, other=-1) - start
    # Set last, for the exponential of what is replaced may be infinite. Not under a condition as in
    # forward: the registers for both ways cost more than the selections.
    is_own = own[:, None] == class_index[None, :]
    own_product = tl.load(target + row, mask=inside, other=0.0)
    own_slope = tl.load(target_slope + row, mask=inside, other=0.0)
    product = tl.where(is_own, own_product[:, None], product)
    slope = tl.where(is_own, own_slope[:, None], slope)
    slope = tl.where((class_index < count)[None, :], slope, 0.0)
    along = tl.num_programs(1) * BLOCK_C
    tl.store(radial + tl.program_id(0) * along + class_index, tl.sum(slope * product, 0))
    slopes += tl.program_id(0).to(tl.int64) * BLOCK_N * stride + tl.program_id(1) * BLOCK_C
    here = slopes + tl.arange(0, BLOCK_N)[:, None] * stride + tl.arange(0, BLOCK_C)[None, :]
    tl.store(here, slope.to(slopes.dtype.element_ty))


@Launcher
@triton.jit(do_not_specialize=["count", "groups"])
def center_gradient(
    query,
    slopes,
    radial,
    centers,
    lengths,
    out,
    count,
    dimensions,
    size,
    stride,
    groups,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Write (I − ŵŵᵀ)·slopesᵀ·query / ‖w‖ of a block of classes, ``(count, dimensions)``."""
    column = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    class_index = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    depth = tl.arange(0, BLOCK_D)
    left = class_index[:, None] + depth[None, :] * stride
    right = depth[:, None] * D + column[None, :]
    total = tl.zeros((BLOCK_C, BLOCK_W), tl.float32)
    for _ in range(0, size, BLOCK_D):
        total = _multiply(tl.load(slopes + left), tl.load(query + right), total, PRECISION)
        slopes += BLOCK_D * stride
        query += BLOCK_D * D

    inside = class_index < count
    along = tl.zeros((BLOCK_C,), tl.float32)
    for group in range(groups):
        along += tl.load(radial + group * tl.num_programs(1) * BLOCK_C + class_index)
    length = tl.load(lengths + class_index, mask=inside, other=1.0)
    # One that short is not divided by its own length.
    inverse = 1.0 / length
    along = tl.where(length <= SMALLEST, 0.0, along * inverse) * inverse
    mask = inside[:, None] & (column < dimensions)[None, :]
    first = tl.program_id(1).to(tl.int64) * BLOCK_C * dimensions
    here = tl.arange(0, BLOCK_C)[:, None] * dimensions + column[None, :]
    center = tl.load(centers + first + here, mask=mask, other=0.0)
    gradient = total * inverse[:, None] - center * along[:, None]
    tl.store(out + first + here, gradient, mask=mask)


@Launcher
@triton.jit(do_not_specialize=["class_blocks", "share"])
def query_gradient(
    slopes,
    unit,
    shares,
    class_blocks,
    share,
    stride,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Add slopes·unit over a split's ``share`` of the blocks of classes to (splits, N, D)."""
    column = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    row = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_D)
    first = tl.program_id(2) * share * BLOCK_C
    last = tl.minimum((tl.program_id(2) + 1) * share, class_blocks) * BLOCK_C
    slopes += tl.program_id(1).to(tl.int64) * BLOCK_N * stride + first
    unit += first.to(tl.int64) * D
    left = tl.arange(0, BLOCK_N)[:, None] * stride + depth[None, :]
    right = depth[:, None] * D + column[None, :]
    padded = tl.num_programs(1) * BLOCK_N
    shares += tl.program_id(2).to(tl.int64) * padded * D + row[:, None] * D + column[None, :]
    total = tl.load(shares)
    for _ in range(first, last, BLOCK_D):
        total = _multiply(tl.load(slopes + left), tl.load(unit + right), total, PRECISION)
        slopes += BLOCK_D
        unit += BLOCK_D * D
    tl.store(shares, total)
