"""Activation checkpointing: blocks keep their input and compute the rest again in backward."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from facerec.base.errors import RecipeError


def blocks_of(backbone: nn.Module, option: str) -> list[nn.Module]:
    """Return the blocks that a backbone is made of, for an option of a recipe that is about them.

    Raises:
        RecipeError: the backbone does not say what they are.
    """
    blocks: list[nn.Module] = list(getattr(backbone, "blocks", ()))
    if not blocks:
        raise RecipeError(
            f"{option}: {type(backbone).__name__} does not say which of its modules are blocks; "
            "leave the option out, or give the network a property `blocks`"
        )
    return blocks


def recompute_activations(backbone: nn.Module) -> None:
    """Make each of the backbone's ``blocks`` keep only its input for backward.

    Gradients and running statistics stay what they are; backward computes every block's forward
    once more, about a third more work in a step.

    Args:
        backbone: from `create_backbone`; changed in place, its state's names stay.

    Raises:
        RecipeError: it has no blocks.
    """
    for block in blocks_of(backbone, "recompute"):
        block.forward = functools.partial(_checkpointed, block, block.forward)


def _checkpointed(block: nn.Module, forward: Callable[..., Any], *inputs: Any) -> Any:
    """Return what ``forward`` does, so that backward computes its inside again."""
    if torch.compiler.is_compiling():
        # The compiler writes running statistics once, after what it computes in forward.
        return checkpoint(forward, *inputs, use_reentrant=False)
    return checkpoint(
        forward,
        *inputs,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), _uncounted(block)),
    )


@contextlib.contextmanager
def _uncounted(block: nn.Module) -> Iterator[None]:
    """Keep the second forward out of the batch norms' running statistics."""
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm)]
    rates = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, rate in zip(norms, rates, strict=True):
            norm.momentum = rate
            if norm.training and norm.num_batches_tracked is not None:
                norm.num_batches_tracked.sub_(1)
