"""iResNet's batch norms in training by kernels of Triton, for CUDA; they need the extra ``gpu``.

What limits a step is memory traffic between the convolutions, and each tensor that is read once
less counts. In a block BN → conv → BN → PReLU → conv → BN, added to the identity,

* scale, shift, PReLU and the addition are one pass, which also takes the statistics of what it
  writes where the next thing is a batch norm;
* backward keeps no more than what went into a batch norm: normalised numbers, the sign before PReLU
  and both of its gradients come from that again, in one pass for the sums and one for the gradient;
* the gradient of the identity is added in the pass that goes back through the block's first batch
  norm.

Convolutions stay cuDNN's. Every sum has one order and one owner: no atomics, so that the same
shapes give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from facerec.backbones import triton_kernels as kernels

if TYPE_CHECKING:
    from facerec.backbones.iresnet import IResNetBlock

_PROGRAMS = 1056  # of a pass: eight a multiprocessor of an H100
_ELEMENTS = 4096  # that a program has at once


def measured(x: Tensor) -> Tensor:
    """Return the moments of ``x`` by channels, from a pass of its own; see `batch_norm`."""
    x, grid, rows, blocks = _cut(x)
    partial = _partial(x, grid, 2)
    kernels.moments(grid, x, partial, *rows, **blocks)
    return partial


def batch_norm(
    x: Tensor,
    norm: nn.BatchNorm2d,
    moments: Tensor | None = None,
    *,
    slope: Tensor | None = None,
    residual: Tensor | None = None,
    measure: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return ``PReLU(norm(x)) + residual`` in training mode, ``x`` itself, and result's moments.

    What else takes ``x`` has to take the second result, whose gradient is added in the same pass.

    Args:
        x: ``(N, C, H, W)`` on the GPU, of any float type, which the result has too; fast if
            channels-last.
        norm: its running statistics take in the batch.
        moments: of ``x``, by default from a pass of their own: mean and sum of squared deviations
            of each program's rows, ``(programs, 2, C)``.
        slope: of PReLU, ``(C,)``; None leaves it out.
        residual: like ``x``.
        measure: whether to take the moments of the result.
    """
    moments = measured(x) if moments is None else moments
    programs, _, channels = moments.shape
    _, _, rows, _ = _cut(x)
    statistics = moments.new_empty(2, channels)
    kernels.merge_moments(
        (triton.cdiv(channels, 16),),
        *(moments, statistics, norm.running_mean, norm.running_var),
        *(programs, *rows, norm.momentum, norm.eps),
        **_merging(channels),
    )
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    result: tuple[Tensor, Tensor, Tensor | None] = _BatchNorm.apply(
        x, norm.weight, norm.bias, slope, residual, statistics, measure
    )
    return result


def blocks_forward(
    x: Tensor, blocks: Sequence[IResNetBlock], moments: Tensor | None = None
) -> Tensor:
    """Return what residual blocks make of ``x``, whose ``moments`` may be known."""
    for block in blocks:
        inner, identity, _ = batch_norm(x, block.bn1, moments)
        if block.downsample is not None:
            convolution, norm = block.downsample
            assert isinstance(norm, nn.BatchNorm2d)
            identity, *_ = batch_norm(convolution(identity), norm)
        inner, *_ = batch_norm(block.conv1(inner), block.bn2, slope=block.prelu.weight)
        last = block is blocks[-1]
        x, _, moments = batch_norm(
            block.conv2(inner), block.bn3, residual=identity, measure=not last
        )
    return x


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        slope: Tensor | None,
        residual: Tensor | None,
        statistics: Tensor,
        measure: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        given = x
        x, grid, rows, blocks = _cut(x)
        result, partial = torch.empty_like(x), _partial(x, grid, 2) if measure else None
        if residual is not None:
            residual = _channels_last(residual.to(x.dtype))
        kernels.activate(
            grid,
            *(x, x if residual is None else residual, result, statistics, weight, bias),
            *(bias if slope is None else slope, statistics if partial is None else partial, *rows),
            ACTIVATION=slope is not None,
            RESIDUAL=residual is not None,
            MEASURE=measure,
            **blocks,
        )
        ctx.save_for_backward(x, weight, bias, slope, statistics)
        if partial is not None:
            ctx.mark_non_differentiable(partial)
        return result, given, partial

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor, beside: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, weight, bias, slope, statistics = ctx.saved_tensors
        x, grid, rows, blocks = _cut(x)
        gradient, result, partial = (
            _channels_last(gradient),
            torch.empty_like(x),
            _partial(x, grid, 3),
        )
        active, bend = slope is not None, bias if slope is None else slope
        kernels.parameter_sums(
            grid,
            *(gradient, x, statistics, weight, bias, bend, partial, *rows),
            ACTIVATION=active,
            **blocks,
        )
        sums = partial.new_empty(2 + active, blocks["C"])
        kernels.merge_sums(
            (triton.cdiv(blocks["C"], 16), len(sums)),
            *(partial, sums, len(partial)),
            **_merging(blocks["C"]),
        )
        kernels.propagate(
            grid,
            *(gradient, x, x if beside is None else _channels_last(beside), result),
            *(statistics, sums, weight, bias, bend, *rows),
            ACTIVATION=active,
            BESIDE=beside is not None,
            **blocks,
        )
        to_bias, to_weight, *to_slope = sums
        to_residual = gradient if ctx.needs_input_grad[4] else None
        return result, to_weight, to_bias, *(to_slope or [None]), to_residual, None, None


def _cut(x: Tensor) -> tuple[Tensor, tuple[int, int], tuple[int, int], dict[str, int]]:
    """Return ``x`` in channels-last order and how it is shared out among programs.

    That is the grid, by rows and by channels; the rows N·H·W and those of a program; and constants
    of the kernels: the channels, and how many rows and channels, powers of two, a program takes at
    once.
    """
    channels = x.shape[1]
    rows, width = x.numel() // channels, min(128, triton.next_power_of_2(channels))
    height, columns = _ELEMENTS // width, triton.cdiv(channels, width)
    share = triton.cdiv(triton.cdiv(rows, height), max(1, _PROGRAMS // columns)) * height
    blocks = {"C": channels, "ROWS": height, "COLUMNS": width}
    return _channels_last(x), (triton.cdiv(rows, share), columns), (rows, share), blocks


def _merging(channels: int) -> dict[str, int]:
    return {"C": channels, "PROGRAMS": 128, "COLUMNS": 16}


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _partial(x: Tensor, grid: tuple[int, int], kinds: int) -> Tensor:
    return x.new_empty(grid[0], kinds, x.shape[1], dtype=torch.float32)
