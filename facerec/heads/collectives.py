"""The few collectives that heads need; each is the identity in a single process.

Nothing here starts a process group.
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


def world_size() -> int:
    """Return the number of ranks, 1 where torch.distributed is not in use."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this rank, 0 where torch.distributed is not in use."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def shard_bounds(num_rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """Split rows over ranks as ``torch.chunk`` does: ceil(rows / ranks) each while they last.

    Returns:
        the first row and the number of rows of ``rank``; 9 rows on 4 ranks are 3, 3, 3, 0.
    """
    size = -(-num_rows // ranks)
    start = min(rank * size, num_rows)
    return start, min(size, num_rows - start)


def insist(condition: Tensor, sentence: str) -> None:
    """Stop where a condition does not hold.

    Args:
        condition: one truth value, alike on all ranks, or those where it holds wait for the others.
        sentence: what is wrong.

    Raises:
        TrainingError: it is. On CUDA this is a device-side assertion; the host does not wait.
    """
    if condition.is_cuda:
        torch._assert_async(condition, sentence)
    elif not condition:
        raise TrainingError(sentence)


def all_reduce_(tensor: Tensor, maximum: bool = False) -> Tensor:
    """Sum, or take the maximum of, a tensor over ranks in place; without gradient."""
    if world_size() > 1:
        dist.all_reduce(tensor, dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM)
    return tensor


def all_gather(tensor: Tensor) -> Tensor:
    """Concatenate the ``(B, …)`` tensors of all ranks, in rank order, to ``(W·B, …)``; no gradient.

    Every rank gets the same bits, so whatever is computed from the result is the same everywhere.
    """
    ranks = world_size()
    if ranks == 1:
        return tensor
    gathered = tensor.new_empty(ranks * tensor.shape[0], *tensor.shape[1:])
    _gather(gathered, tensor.contiguous())
    return gathered


def gather_equal(tensor: Tensor) -> Tensor:
    """Do as `all_gather`, after a small collective that sees to it that it can be done.

    Raises:
        TrainingError: the ranks gave different numbers of rows, of which libraries make wrong
            results or none; see `insist`.
    """
    if world_size() > 1:
        sizes = torch.full((2,), len(tensor), dtype=torch.int64, device=tensor.device)
        sizes[1].neg_()
        all_reduce_(sizes, maximum=True)
        what = "ranks gave batches of different sizes; drop the last partial batch"
        insist(sizes[0] == -sizes[1], what)
    return all_gather(tensor)


def gather_together(vectors: Sequence[Tensor]) -> list[Tensor]:
    """Do as `all_gather` with several ``(B,)``, in one collective.

    They travel as float64, which holds float32 and integers below 2^53 as they are.
    """
    if world_size() == 1:
        return list(vectors)
    whole = all_gather(torch.stack([vector.double() for vector in vectors], 1))
    return [whole[:, place].to(vector.dtype) for place, vector in enumerate(vectors)]


class _GatherBatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return all_gather(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        ranks = world_size()
        own = gradient.new_empty(gradient.shape[0] // ranks, *gradient.shape[1:])
        _reduce_scatter(own, gradient.contiguous())
        # DistributedDataParallel divides the backbone's gradients by the number of ranks, but the
        # loss is already a mean over the global batch.
        return own * ranks


def gather_batch(tensor: Tensor) -> Tensor:
    """Concatenate the ``(B, …)`` tensors of all ranks, with a gradient made for data parallelism.

    Backward sums the ranks' gradients and multiplies by the number of ranks W, so that backbone
    gradients *averaged* over ranks are those of one process with the whole batch.
    """
    if world_size() == 1:
        return tensor
    gathered: Tensor = _GatherBatch.apply(tensor)
    return gathered
