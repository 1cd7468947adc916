"""What every loss of this room returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class LossOutput:
    """A loss, and what it has to tell; all are scalars on the embeddings' device."""

    loss: Tensor
    """The only one that carries a gradient."""
    figures: dict[str, Tensor] = field(default_factory=dict)
    """Unweighted, over the global batch, the same on all ranks; for logging."""
