"""Laws of the formulas, and the corners that batches of a comparison reach."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from facerec.comparison import pair_losses
from facerec.comparison.losses import LossModule, MetricLoss

OWN = (
    *("TripletAll", "SemihardTriplet", "NPairNormalized", "NPairInnerProductL2", "NTXent"),
    *("MultiSimilaritySEC", "LiftedStructure", "SNRContrastive", "TupletMargin"),
)
# Which sample of a class comes first decides what N-pair does.
ORDERLESS = [name for name in OWN if "NPair" not in name]

LABELS = st.lists(st.integers(0, 4), min_size=2, max_size=14)


def drawn(labels: list[int], seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(len(labels), 6, generator=generator, dtype=torch.float64)
    return embeddings, torch.tensor(labels)


@settings(max_examples=examples(40), deadline=None)
@given(labels=LABELS, seed=st.integers(0, 2**31))
@pytest.mark.parametrize("name", OWN)
def test_laws(name: str, labels: list[int], seed: int) -> None:
    formula = LossModule(MetricLoss(name), 8, 6, seed=0)
    embeddings, classes = drawn(labels, seed)
    embeddings.requires_grad_()
    loss = formula(embeddings, classes)
    loss.backward()
    assert loss.isfinite() and loss.item() >= 0
    assert embeddings.grad is not None and embeddings.grad.isfinite().all()
    plain = embeddings.detach()

    if name != "SNRContrastive":  # whose variances depend on the axes
        rotation = torch.linalg.qr(drawn([0] * 6, seed + 1)[0]).Q
        assert formula(plain @ rotation, classes).item() == pytest.approx(loss.item(), abs=1e-9)
    # Names of classes carry no meaning.
    assert formula(plain, 7 - classes).item() == pytest.approx(loss.item(), abs=1e-12)
    if name in ORDERLESS:
        order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
        moved = formula(plain[order], classes[order]).item()
        assert moved == pytest.approx(loss.item(), abs=1e-9)


def test_weights_of_negatives() -> None:
    # In the plane the density of distances is 1/√(1 − d²/4): weights ∝ √(1 − d²/4).
    angles = torch.tensor([0.0, 0.3, 0.9, 1.2, 3.0], dtype=torch.float64)
    embeddings = torch.stack([angles.cos(), angles.sin()], 1) * torch.arange(1, 6)[:, None]
    labels = torch.tensor([0, 0, 1, 2, 1])
    found = pair_losses.negative_weights(embeddings, labels)
    assert not found[0, [0, 1, 4]].any()  # itself, its positive, and what is farther than 1.4
    distances = [2 * math.sin(a / 2) for a in (0.9, 1.2)]
    raw = [math.sqrt(1 - d * d / 4) for d in distances]
    assert found[0, 2].item() == pytest.approx(raw[0] / sum(raw))
    assert found[0, 3].item() == pytest.approx(raw[1] / sum(raw))
    assert not found[4].any()
    # In 512 dimensions the densities themselves are beyond float32.
    many = torch.randn(20, 512, generator=torch.Generator().manual_seed(0)) + 1
    sums = pair_losses.negative_weights(many, torch.arange(20) % 5).sum(1)
    torch.testing.assert_close(sums, torch.ones(20))


def test_miner_draws_one_negative_a_positive_pair_by_weight() -> None:
    tensor, labels = drawn([0, 1, 2, 3] * 3, 0)
    tensor, classes = tensor + 1, labels  # all near enough
    miner = pair_losses.DistanceWeightedMiner(seed=5)
    state = torch.get_rng_state()
    counts = torch.zeros(len(labels), len(labels))
    rounds = 400
    for _ in range(rounds):
        anchor, positive, negative = miner(tensor, classes)
        assert (classes[anchor] == classes[positive]).all() and (anchor != positive).all()
        assert (classes[anchor] != classes[negative]).all()
        assert len(anchor) == len(labels) * 2
        counts[anchor, negative] += 1
    torch.testing.assert_close(torch.get_rng_state(), state)
    assert int(miner.draws) == rounds
    expected = pair_losses.negative_weights(tensor, classes) * 2 * rounds
    # Each count is binomial; 5 standard deviations.
    assert ((counts - expected).abs() <= 5 * expected.sqrt() + 1).all()
