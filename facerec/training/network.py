"""The backbone as a step runs it: pixels in, raw embeddings out, compiled where that pays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal, cast

import torch
from torch import Tensor, nn

from facerec.backbones import Preprocessing, normalize
from facerec.errors import TrainingError, message_line

Compile = bool | Literal["auto", "reduce-overhead", "max-autotune"]
"""What a recipe says of `torch.compile`; see `Recipe.compile`."""

CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""The settings that launch a whole pass at once, from memory of its own, which does not change."""


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


def compile_mode(setting: Compile, device_type: str, recompute: bool) -> str | None:
    """Return torch.compile's mode for a recipe's setting; None does not compile.

    Args:
        setting: of the recipe; ``auto`` compiles on CUDA, unless activations are recomputed.
        device_type: where the steps are computed.
        recompute: whether they are.
    """
    if setting == "auto":
        setting = device_type == "cuda" and not recompute
    if isinstance(setting, bool):
        return "default" if setting else None
    return setting


def compiled(module: nn.Module, mode: str | None) -> nn.Module:
    """Return the module, compiled at its first batch unless ``mode`` is None."""
    return module if mode is None else cast(nn.Module, torch.compile(module, mode=mode))


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
