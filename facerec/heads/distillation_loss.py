"""How far a network's embeddings are from a teacher's, over the global batch.

f_i is the raw embedding of image i, t_i the teacher's, and ⟨a, b⟩ the cosine of two vectors.

* ``cosine``: the mean of 1 − ⟨M·f_i, t_i⟩.
* ``mse``: the mean of (M·f − c·t)² over images and dimensions, as FitNets' hints (Romero et al.,
  ICLR 2015, eq. 3); c gives the teacher's embeddings a root mean square of 1 a dimension, so that
  a weight means the same for every teacher.
* ``relation``: the mean of (⟨f_i, f_j⟩ − ⟨t_i, t_j⟩)² over all pairs of the batch: the relational
  distillation by distances of Park et al. (CVPR 2019) with the squared distance of unit vectors,
  which is 2 − 2⟨a, b⟩, in place of the distance.

M is a linear map without bias on the student's side where the sizes differ, as FitNets' regressor,
else the identity; it is trained along and is no part of the model. ``relation`` needs none.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from facerec.heads.collectives import all_gather, world_size
from facerec.heads.output import LossOutput

DistillationKind = Literal["cosine", "mse", "relation"]


class DistillationLoss(nn.Module):
    """The loss with its linear map, if it needs one.

    Attributes:
        map: parameters ``(T, D)`` as a linear layer, or None. Their gradient is complete on every
            rank; leave them out of DistributedDataParallel.

    Examples:
        >>> loss = DistillationLoss("cosine", 0.5, 2, 2)
        >>> loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])).loss
        tensor(0.5000)
    """

    def __init__(
        self,
        kind: DistillationKind,
        weight: float,
        embedding_size: int,
        target_size: int,
        *,
        target_scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Draw the map; it is the same on every rank.

        Args:
            kind: which loss.
            weight: factor on it.
            embedding_size: dimensions D of the student's embeddings.
            target_size: dimensions T of the teacher's.
            target_scale: the factor c on the teacher's embeddings (``mse``).
            seed: of the map, ≥ 0.
        """
        super().__init__()
        self.kind: DistillationKind = kind
        self.weight, self.target_scale = weight, target_scale
        self.map: nn.Linear | None = None
        if embedding_size != target_size and kind != "relation":
            self.map = nn.Linear(embedding_size, target_size, bias=False)
            generator = torch.Generator().manual_seed(seed)
            # Keeps lengths where it leads to more dimensions, and angles about where to fewer.
            nn.init.orthogonal_(self.map.weight, generator=generator)
            if world_size() > 1:
                self.map.weight.register_hook(self._mean_over_ranks)

    @property
    def couples_samples(self) -> bool:
        """Whether a sample's loss depends on the others, so that micro-batches need the whole."""
        return self.kind == "relation"

    def forward(
        self, embeddings: Tensor, targets: Tensor, whole: tuple[Tensor, Tensor] | None = None
    ) -> LossOutput:
        """Return the loss; a collective, and all ranks have to give batches of one size.

        It is weighted, and this rank's share, whose average over ranks (and micro-batches) is the
        loss of the global batch. Figures are ``distillation``, the distance without the weight, and
        but for ``relation``, which compares no embedding with its target, ``teacher_cosine``, the
        mean cosine of the (mapped) embeddings to the teacher's.

        Args:
            embeddings: raw embeddings of this rank, ``(B, D)``, any float type.
            targets: the teacher's raw embeddings of the same pictures, ``(B, T)``.
            whole: all embeddings and targets of this rank in the optimizer step, ``(k·B, D)`` and
                ``(k·B, T)``, where this is one of several micro-batches and `couples_samples`.
        """
        with torch.autocast(embeddings.device.type, enabled=False):
            dtype = torch.promote_types(embeddings.dtype, torch.float32)
            student, targets = embeddings.to(dtype), targets.to(dtype)
            cosines = None
            if self.kind == "relation":
                distance = self._relation(student, targets, whole)
            else:
                student = student if self.map is None else self.map(student)
                cosines = F.cosine_similarity(student, targets)
                distance = (1 - cosines).mean()
            if self.kind == "mse":
                distance = F.mse_loss(student, targets * self.target_scale)
            told = {"distillation": distance.detach()}
            if cosines is not None:
                told["teacher_cosine"] = cosines.detach().mean()
            means = self._mean_over_ranks(torch.stack(list(told.values())))
            return LossOutput(self.weight * distance, dict(zip(told, means, strict=True)))

    def _relation(
        self, student: Tensor, targets: Tensor, whole: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Compare the cosines of this rank's images to those of the global batch."""
        every, every_target = whole or (student, targets)
        own, taught = F.normalize(student), F.normalize(targets)
        others = all_gather(F.normalize(every.detach().to(student)))
        references = all_gather(F.normalize(every_target.to(student)))
        # An image and itself have no part in it: there both cosines are 1.
        squares = (own @ others.T - taught @ references.T).square()
        share = squares.sum() / (len(own) * max(len(others) - 1, 1))
        # Each pair is there twice, and an image moves both; here it moves the row, not the column.
        return 2 * share - share.detach()

    @torch.no_grad()
    def _mean_over_ranks(self, values: Tensor) -> Tensor:
        return all_gather(values[None]).mean(0)
