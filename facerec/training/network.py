"""The backbone as a step runs it: pixels in, raw embeddings out, compiled and on several ranks."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

from facerec.backbones import Preprocessing, normalize
from facerec.base.errors import RecipeError, TrainingError, message_line
from facerec.base.limits import Checked, Limits

COMPILE_SETTINGS: dict[str, dict[str, Any] | None] = {
    "default": {},
    "eager": None,
    "reduce-overhead": {"mode": "reduce-overhead"},
    "combo kernels": {"options": {"combo_kernels": True}},
    "coordinate descent": {"options": {"coordinate_descent_tuning": True}},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}
"""Arguments of torch.compile by name, those that compile fast first; None does not compile. Recipes
choose between the first two; the others are there to be measured."""


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
def explain_compile_errors() -> Iterator[None]:
    """Word what torch raises when it cannot compile, in the first steps.

    Raises:
        TrainingError: it says what to do.
    """
    try:
        yield
    except Exception as error:
        # Importing the classes takes seconds, and whoever raised one has done so.
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        inner = getattr(error, "inner_exception", error)
        reason = message_line(inner)
        raise TrainingError(
            f"torch.compile cannot compile the backbone here ({reason}); "
            "on a GPU it needs Triton and a C compiler; train with --compile False"
        ) from error


@dataclass(frozen=True)
class DataParallel(Checked):
    """How several processes average the gradients of the backbone (DistributedDataParallel)."""

    bucket_mb: Annotated[int, Limits(1, 2**20)] = 25
    """Megabytes of gradients that travel together while backward goes on."""
    compression: Literal["none", "bf16", "fp16"] = "none"
    """Numbers in which gradients travel; half the bytes, and rounded sums."""


def data_parallel(model: nn.Module, config: DataParallel) -> DistributedDataParallel:
    """Return the model with gradients that are averaged over the processes.

    Raises:
        RecipeError: a compression that this backend does not have.
    """
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
        # As torch checks too late, and not in a sentence.
        if config.compression == "bf16" and dist.get_backend() != "nccl":
            raise RecipeError(
                "data_parallel.compression bf16 needs GPUs that talk through NCCL; use fp16 or none"
            )
        hooks = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}
        wrapped.register_comm_hook(None, hooks[config.compression])
    return wrapped
