"""Which form of iResNet's batch norms a training uses: torch's operations, or kernels of Triton.

Which is faster is measured on the device that is there, once, before the first step, on two
residual blocks in the middle of the network.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from facerec.backbones.iresnet import IResNet, IResNetBlock
from facerec.backbones.registry import Kernels
from facerec.errors import RecipeError

_REPETITIONS = 7


def kernels_obstacle(backbone: nn.Module, device: torch.device) -> str | None:
    """Return why the kernels of Triton cannot train a backbone on a device, or None if they can."""
    if not isinstance(backbone, IResNet):
        return f"they are for iResNet, and this is {type(backbone).__name__}"
    if device.type != "cuda":
        return f"they are for cuda, and this is {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is missing (pip install 'facerec[gpu]')"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "they need a GPU of compute capability 8.0 or later"
    return None


def choose_kernels(
    choice: Literal["auto", "torch", "triton"],
    backbone: nn.Module,
    device: torch.device,
    batch_size: int,
    precision: torch.dtype | None,
    compiled: bool,
) -> Kernels:
    """Return the form to use.

    Args:
        choice: of the recipe.
        backbone: on the device.
        device: where it is trained.
        batch_size: images that pass together.
        precision: of autocast; None is float32.
        compiled: whether torch's operations would be compiled.

    Raises:
        RecipeError: ``triton`` is asked for and cannot be used.
    """
    reason = kernels_obstacle(backbone, device)
    if choice == "triton" and reason is not None:
        raise RecipeError(f"backbone.kernels triton: {reason}; use torch, or auto")
    if choice != "auto":
        return choice
    if reason is not None:
        return "torch"
    assert isinstance(backbone, IResNet)
    channels = backbone.blocks[len(backbone.blocks) // 2].conv2.out_channels
    own = block_milliseconds("triton", channels, batch_size, device, precision)
    torch_ms = block_milliseconds("torch", channels, batch_size, device, precision, compiled)
    return "triton" if own < torch_ms else "torch"


@functools.cache
def block_milliseconds(
    kernels: Kernels,
    channels: int,
    batch_size: int,
    device: torch.device,
    precision: torch.dtype | None,
    compiled: bool = False,
) -> float:
    """Time two residual blocks on 14×14 random numbers, forward and backward, in ms; CUDA alone.

    Args:
        kernels: which form.
        channels: of the blocks.
        batch_size: images.
        device: the GPU.
        precision: of autocast; None is float32.
        compiled: whether torch.compile makes one program of the blocks.
    """
    blocks = [IResNetBlock(channels, channels, 1) for _ in range(2)]
    network: Any = nn.Sequential(*blocks).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(batch_size, channels, 14, 14, device=device)
    x = x.to(precision or x.dtype, memory_format=torch.channels_last).requires_grad_()
    forward: Callable[[Tensor], Tensor] = torch.compile(network) if compiled else network
    if kernels == "triton":
        from facerec.backbones.triton_batch_norm import blocks_forward  # triton is an extra

        forward = functools.partial(blocks_forward, blocks=blocks)
    autocast = torch.autocast(device.type, precision) if precision else contextlib.nullcontext()
    times = []
    for _ in range(3 + _REPETITIONS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        with autocast:
            y = forward(x)
        y.backward(x.detach())
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return median(times[3:])
