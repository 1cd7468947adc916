"""Training as it is plainly written, which the suite ``gpu`` sets facerec's against.

Contiguous images, autocast in float16 with a gradient scaler, no compiler, and a dense head, whose
logits exist several times over: what insightface's ``recognition/arcface_torch`` does on one GPU.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from facerec.backbones import Backbone, create_backbone


def dense_arcface(embeddings: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of ArcFace: normalise, multiply, change one cosine a row, cross-entropy.

    Args:
        embeddings: ``(N, D)``.
        weight: class centres ``(C, D)``.
        labels: ``(N,)``.
    """
    cosine = F.linear(F.normalize(embeddings), F.normalize(weight)).clamp(-1, 1)
    rows = torch.arange(len(labels), device=labels.device)
    # Away from ±1, where the slope of the angle is infinite.
    target = cosine[rows, labels].clamp(-1 + 1e-6, 1 - 1e-6)
    cosine[rows, labels] = ((target.acos() + 0.5).cos()).to(cosine.dtype)
    return F.cross_entropy(64 * cosine, labels)


def dense_centers(classes: int, size: int, device: torch.device) -> nn.Parameter:
    """Return class centres ``(classes, size)`` from N(0, 0.01²)."""
    return nn.Parameter(torch.empty(classes, size, device=device).normal_(0, 0.01))


def plain_sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.SGD:
    """Return the optimizer of the reference; a low rate keeps random labels from diverging."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4)


class PlainLoop:
    """A backbone with a dense ArcFace head.

    Args:
        config: the backbone.
        classes: of the head.
        device: where.
    """

    def __init__(self, config: Backbone, classes: int, device: torch.device) -> None:
        self.device = device
        self.backbone = create_backbone(config, seed=0).to(device)
        self.weight = dense_centers(classes, config.embedding_size, device)
        self.optimizer = plain_sgd([*self.backbone.parameters(), self.weight])
        # A CPU only emulates float16.
        self.half = device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type, growth_interval=100, enabled=self.half)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Do a whole step on normalised images ``(B, 3, 112, 112)``, and return its loss."""
        with torch.autocast(self.device.type, torch.float16, enabled=self.half):
            embeddings = self.backbone(images)
        loss = dense_arcface(embeddings.float(), self.weight, labels)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.backbone.parameters(), 5.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()
