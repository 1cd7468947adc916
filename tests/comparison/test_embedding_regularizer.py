"""The norm penalty inside the losses of pytorch-metric-learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from facerec.comparison.embedding_regularizer import EmbeddingRegularizer
from facerec.heads import SEC, FixedNorm, L2Norm, NormPenalty, RingLoss

losses = pytest.importorskip("pytorch_metric_learning.losses")

LOSSES: dict[str, Any] = {
    "ArcFace": lambda **more: losses.ArcFaceLoss(4, 16, **more),
    "CosFace": lambda **more: losses.CosFaceLoss(4, 16, **more),
    "SphereFace": lambda **more: losses.SphereFaceLoss(4, 16, **more),
    "Triplet": losses.TripletMarginLoss,
    "MultiSimilarity": losses.MultiSimilarityLoss,
    "NTXent": losses.NTXentLoss,
    "SupCon": losses.SupConLoss,
    "Margin": losses.MarginLoss,
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
    assert first.grad is not None and second.grad is not None
    expected = 1.4 / 12 * ((norms - norms.mean()) / norms)[:, None] * embeddings
    torch.testing.assert_close(first.grad + second.grad, expected, rtol=1e-4, atol=1e-5)


def test_other_penalties() -> None:
    embeddings, labels = batch()
    norms = embeddings.norm(dim=1)
    for penalty, expected in [
        (L2Norm(weight=0.1), 0.1 * norms.square().mean()),
        (FixedNorm(weight=0.1, radius=5.0, p=1), 0.1 * (norms - 5).abs().mean()),
    ]:
        regularized, plain = with_and_without("Triplet", penalty)  # type: ignore[arg-type]
        difference = regularized(embeddings, labels) - plain(embeddings, labels)
        assert difference.item() == pytest.approx(expected.item(), abs=4e-6)


def test_weight_of_the_library_multiplies() -> None:
    embeddings, labels = batch()
    penalty = EmbeddingRegularizer(SEC(weight=0.5))
    doubled = losses.NTXentLoss(embedding_regularizer=penalty, embedding_reg_weight=2)
    difference = doubled(embeddings, labels) - losses.NTXentLoss()(embeddings, labels)
    variance = embeddings.norm(dim=1).var(correction=0)
    assert difference.item() == pytest.approx(variance.item(), abs=4e-6)


def test_linear_schedule_follows_progress() -> None:
    embeddings, _ = batch()
    penalty = EmbeddingRegularizer(SEC(weight=1.0, schedule="linear"))
    full = penalty(embeddings)
    penalty.progress = 0.25
    torch.testing.assert_close(penalty(embeddings), full / 4)


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


def test_half_precision_embeddings_do_not_overflow() -> None:
    embeddings = torch.full((4, 1), 300.0, dtype=torch.float16)
    embeddings[0] = 304
    found = EmbeddingRegularizer(SEC(weight=1.0))(embeddings)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(3.0)  # deviations 3, −1, −1, −1


def test_reference_embeddings_are_not_seen() -> None:
    embeddings, labels = batch()
    regularized, plain = with_and_without("Triplet", SEC(weight=1.0))
    arguments = {"ref_emb": 100 * torch.rand(5, 16), "ref_labels": torch.arange(5) % 4}
    difference = regularized(embeddings, labels, **arguments) - plain(
        embeddings, labels, **arguments
    )
    variance = embeddings.norm(dim=1).var(correction=0)
    assert difference.item() == pytest.approx(variance.item(), abs=4e-6)
