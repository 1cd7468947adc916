"""The few collectives that heads need; each is the identity in a single process.

``group`` is a process group, or None for the default group. Nothing here starts a process group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from facerec.base.errors import TrainingError

# torch 2.13 renamed these two and warns of the old names, which releases before it need.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Return the number of ranks, 1 where torch.distributed is not in use."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def rank(group: dist.ProcessGroup | None = None) -> int:
    """Return the number of this rank, 0 where torch.distributed is not in use."""
    return dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0


def shard_bounds(num_rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """Split rows over ranks as ``torch.chunk`` does: ceil(rows / ranks) each while they last.

    Returns:
        the first row and the number of rows of ``rank``; 9 rows on 4 ranks are 3, 3, 3, 0.
    """
    size = -(-num_rows // ranks)
    start = min(rank * size, num_rows)
    return start, min(size, num_rows - start)


def all_reduce_(tensor: Tensor, group: dist.ProcessGroup | None, maximum: bool = False) -> Tensor:
    """Sum, or take the maximum of, a tensor over ranks in place; without gradient."""
    if world_size(group) > 1:
        operation = dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM
        dist.all_reduce(tensor, operation, group=group)
    return tensor


def all_gather(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Concatenate the ``(B, …)`` tensors of all ranks, in rank order, to ``(W·B, …)``; no gradient.

    Every rank gets the same bits, so whatever is computed from the result is the same everywhere.
    """
    ranks = world_size(group)
    if ranks == 1:
        return tensor
    gathered = tensor.new_empty(ranks * tensor.shape[0], *tensor.shape[1:])
    _gather(gathered, tensor.contiguous(), group=group)
    return gathered


def gather_equal(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Do as `all_gather`, after a small collective that sees to it that it can be done.

    Raises:
        TrainingError: the ranks gave different numbers of rows, of which libraries make wrong
            results or none. On CUDA this is a device-side assertion; the host does not wait.
    """
    if world_size(group) == 1:
        return tensor
    sizes = torch.full((2,), len(tensor), dtype=torch.int64, device=tensor.device)
    sizes[1].neg_()
    all_reduce_(sizes, group, maximum=True)
    different = sizes[0] != -sizes[1]
    if tensor.is_cuda:
        torch._assert_async(~different, "ranks gave batches of different sizes")
    elif different:
        raise TrainingError(
            f"ranks gave batches of {-int(sizes[1])} to {int(sizes[0])} images in one step; the "
            "loss needs equal ones, so drop the last partial batch"
        )
    return all_gather(tensor, group)


def gather_together(vectors: Sequence[Tensor], group: dist.ProcessGroup | None) -> list[Tensor]:
    """Do as `all_gather` with several ``(B,)``, in one collective.

    They travel as float64, which holds float32 and integers below 2^53 as they are.
    """
    if world_size(group) == 1:
        return list(vectors)
    whole = all_gather(torch.stack([vector.double() for vector in vectors], 1), group)
    return [whole[:, place].to(vector.dtype) for place, vector in enumerate(vectors)]


class _GatherBatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return all_gather(tensor, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ranks = world_size(ctx.group)
        own = gradient.new_empty(gradient.shape[0] // ranks, *gradient.shape[1:])
        _reduce_scatter(own, gradient.contiguous(), group=ctx.group)
        # DistributedDataParallel divides the backbone's gradients by the number of ranks, but the
        # loss is already a mean over the global batch.
        return own * ranks, None


def gather_batch(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Concatenate the ``(B, …)`` tensors of all ranks, with a gradient made for data parallelism.

    Backward sums the ranks' gradients and multiplies by the number of ranks W, so that backbone
    gradients *averaged* over ranks are those of one process with the whole batch.
    """
    if world_size(group) == 1:
        return tensor
    gathered: Tensor = _GatherBatch.apply(tensor, group)
    return gathered
