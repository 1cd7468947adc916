"""What every loss of this room returns, and a step of several."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

Figures = dict[str, Tensor]
"""What one optimizer step leaves to look at: float32 scalars, not yet waited for.

``loss`` (margin softmax; of distillation alone, its loss), ``penalty`` and ``distillation``
(unweighted) are means over the global batch; so are ``target_cosine`` and ``other_cosine``, without
margin, and ``teacher_cosine``, of the embeddings to the teacher's. ``norm_mean``, ``norm_variance``
and ``norm_min`` describe the raw embeddings, ``center`` is the penalty's μ and ``center_norm`` the
mean length of the class centres; ``skipped`` counts the images of all ranks that could not be used.
"""


@dataclass(frozen=True)
class LossOutput:
    """A loss, and what it has to tell; all are scalars on the embeddings' device."""

    loss: Tensor
    """The only one that carries a gradient."""
    figures: Figures = field(default_factory=dict)
    """Numbers to look at, without weights, over the global batch, the same on all ranks."""
