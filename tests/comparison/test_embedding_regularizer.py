"""The norm penalty inside the losses of pytorch-metric-learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from facerec.comparison.embedding_regularizer import EmbeddingRegularizer
from facerec.heads import SEC, NormPenalty, RingLoss

losses = pytest.importorskip("pytorch_metric_learning.losses")

LOSSES: dict[str, Any] = {
    "ArcFace": lambda **more: losses.ArcFaceLoss(4, 16, **more),
    "Triplet": losses.TripletMarginLoss,
    "MultiSimilarity": losses.MultiSimilarityLoss,
    "NTXent": losses.NTXentLoss,
    "Contrastive": losses.ContrastiveLoss,
}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 16, generator=generator) * 3, torch.arange(12) % 4


def with_and_without(name: str, penalty: NormPenalty) -> tuple[Any, Any]:
    regularized = LOSSES[name](embedding_regularizer=EmbeddingRegularizer(penalty))
    plain = LOSSES[name]()
    plain.load_state_dict(regularized.state_dict(), strict=False)
    return regularized, plain


@pytest.mark.parametrize("name", LOSSES)
def test_adds_exactly_the_weighted_variance_of_norms(name: str) -> None:
    embeddings, labels = batch()
    regularized, plain = with_and_without(name, SEC(weight=0.7))
    first, second = (embeddings.clone().requires_grad_() for _ in range(2))
    difference = regularized(first, labels) - plain(second, labels)
    difference.backward()
    norms = embeddings.norm(dim=1)
    variance = norms.var(correction=0)
    assert difference.item() == pytest.approx(0.7 * variance.item(), abs=4e-6)
    # Its gradient is radial: 2η/N·(n − mean n) along each embedding.
    expected = 1.4 / 12 * ((norms - norms.mean()) / norms)[:, None] * embeddings
    torch.testing.assert_close(first.grad + second.grad, expected, rtol=1e-4, atol=1e-5)


def test_state_is_saved_with_the_loss() -> None:
    embeddings, labels = batch()
    kinds: list[NormPenalty] = [SEC(weight=1.0, rho=0.1), RingLoss(weight=1.0)]
    for penalty in kinds:
        first = losses.TripletMarginLoss(embedding_regularizer=EmbeddingRegularizer(penalty))
        first(embeddings, labels)
        second = losses.TripletMarginLoss(embedding_regularizer=EmbeddingRegularizer(penalty))
        second.load_state_dict(first.state_dict())
        assert first(2 * embeddings, labels) == second(2 * embeddings, labels)
    assert len(list(first.parameters())) == 1  # Ring loss's radius
