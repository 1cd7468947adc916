"""The backbone as a step runs it: pixels in, raw embeddings out, compiled and on several ranks."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

from facerec.backbones import Preprocessing, normalize
from facerec.base.errors import TrainingError, message_line
from facerec.base.limits import Checked, Limits


class FromPixels(nn.Module):
    """Normalisation and backbone in one, so that a compiler joins the first with the first layer.

    Args:
        backbone: maps normalised images to raw embeddings.
        preprocessing: what the backbone expects of its input.
    """

    def __init__(self, backbone: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.backbone, self.preprocessing = backbone, preprocessing

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 RGB images ``(B, 112, 112, 3)`` to raw embeddings ``(B, D)``, float32."""
        return cast(Tensor, self.backbone(normalize(images, self.preprocessing)))


@contextlib.contextmanager
def explained(data: Path) -> Iterator[None]:
    """Word what torch raises where memory ends, a loader process dies or nothing can be compiled.

    Args:
        data: what is trained on, which begins the sentence.

    Raises:
        TrainingError: it says what to do.
    """
    try:
        yield
    except Exception as error:
        reason = message_line(getattr(error, "inner_exception", error))
        # Importing the classes takes seconds, and whoever raised one has done so.
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            what = "torch.compile cannot compile the backbone here"
            then = "on a GPU it needs Triton and a C compiler; train with --compile False"
        elif "DataLoader worker" in reason:
            what = "a loader process died"
            then = (
                "the memory, or the shared memory (/dev/shm), may be too small for so many "
                "workers; go on with --resume, and if it dies again with fewer --workers"
            )
        # A CPU's allocator has no error of its own.
        elif isinstance(error, torch.OutOfMemoryError) or "can't allocate" in reason:
            what = "backbone, class centres and batch do not fit into memory"
            then = "facerec plan computes what a step needs"
        else:
            raise
        raise TrainingError(f"{data}: {what} ({reason}); {then}") from error


@dataclass(frozen=True)
class DataParallel(Checked):
    """How several processes average the gradients of the backbone (DistributedDataParallel)."""

    bucket_mb: Annotated[int, Limits(1, 2**20)] = 25
    """Megabytes of gradients that travel together while backward goes on."""
    compression: Literal["none", "bf16", "fp16"] = "none"
    """Numbers in which gradients travel; half the bytes, and rounded sums."""


def data_parallel(model: nn.Module, config: DataParallel) -> DistributedDataParallel:
    """Return the model with gradients that are averaged over the processes."""
    # Running statistics go into no training step; rank 0's are shared before they are used. torch
    # 2.13 has another name for the switch.
    names = inspect.signature(DistributedDataParallel).parameters
    switch = next(n for n in ("forward_sync_buffers", "broadcast_buffers") if n in names)
    unshared: dict[str, Any] = {switch: False}
    wrapped = DistributedDataParallel(
        model,
        bucket_cap_mb=config.bucket_mb,
        gradient_as_bucket_view=True,  # or every gradient would be there twice
        **unshared,
    )
    if config.compression != "none":
        hooks = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}
        wrapped.register_comm_hook(None, hooks[config.compression])
    return wrapped
