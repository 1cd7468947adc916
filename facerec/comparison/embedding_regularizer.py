"""Norm penalties for losses of pytorch-metric-learning, whoever calls them."""

from __future__ import annotations

from torch import Tensor, nn

from facerec.heads import NormPenalty, NormRegularizer


class EmbeddingRegularizer(nn.Module):
    """A norm penalty in the place of pytorch-metric-learning's ``embedding_regularizer``.

    Any of its losses takes one::

        ArcFaceLoss(num_classes, 512, embedding_regularizer=EmbeddingRegularizer(SEC(weight=1.0)))

    The loss hands over the raw embeddings of the batch and adds what comes back: the penalty, its
    weight included, on that batch alone. ``ref_emb`` is never seen. The state of the penalty (a
    moving centre, Ring loss's radius) becomes part of the loss's own state and parameters.

    Attributes:
        regularizer: the penalty with its state.
        progress: share of the run that is done, in [0, 1]; set it before each step if the penalty's
            schedule is linear.
    """

    def __init__(self, penalty: NormPenalty) -> None:
        super().__init__()
        self.regularizer = NormRegularizer(penalty)
        self.progress = 1.0

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the weighted penalty of raw embeddings ``(N, D)``, a float32 scalar."""
        return self.regularizer(embeddings, progress=self.progress).loss
