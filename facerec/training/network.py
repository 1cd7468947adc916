"""The backbone as a step runs it: pixels in, raw embeddings out, compiled where that pays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast

from torch import Tensor, nn

from facerec.backbones import Preprocessing, normalize
from facerec.errors import TrainingError, message_line


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
