"""The head of a network that learns without classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from facerec.heads.classifier import ClassifierOutput, MarginClassifier
from facerec.heads.kernel_choice import KernelChoice
from facerec.heads.margin_softmax import CenterUpdate, Kernel


class NoHead(MarginClassifier):
    """What stands in a classifier's place where there is none: no class, no state, a loss of 0.

    Args:
        embedding_size: D.
    """

    def __init__(self, embedding_size: int) -> None:
        nn.Module.__init__(self)
        self.num_classes = self.class_offset = self.num_local = self.num_visited = 0
        self.embedding_size = embedding_size
        self.sample_rate, self.kernel = 1.0, "torch"
        self.centers_per_class = 1
        # Known to nobody as a parameter: neither optimizer nor checkpoint has a use for it.
        self.__dict__["weight"] = nn.Parameter(torch.empty(0, embedding_size))

    def extra_repr(self) -> str:
        """Show nothing."""
        return ""

    def draw(self, labels: Tensor, number: int) -> None:
        """Choose nothing."""

    def choose_kernel(self, choice: KernelChoice, batch_size: int) -> None:
        """Choose nothing."""

    def keep_kernel(self, kernel: Kernel) -> None:
        """Keep nothing."""

    def advance(self) -> None:
        """Keep nothing."""

    def forward(
        self, embeddings: Tensor, labels: Tensor, update: CenterUpdate | None = None
    ) -> ClassifierOutput:
        """Return a loss of 0 and no figures (NaN); labels are not looked at."""
        none = embeddings.new_full((), torch.nan, dtype=torch.float32)
        return ClassifierOutput(torch.zeros_like(none), none, none, none, none)
