"""Hard mining against brute force, on planted groups of similar classes, and its randomness."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from facerec.comparison import mining
from facerec.errors import DatasetError


def planted(
    groups: int = 4, classes: int = 3, images: int = 5, size: int = 16, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Images of classes that come in groups; class names are scattered and not contiguous."""
    generator = np.random.default_rng(seed)
    number = groups * classes
    group = np.arange(number) % groups
    names = generator.permutation(number) * 3 + 10
    centers = 5 * generator.normal(size=(groups, size))[group]
    centers += generator.normal(size=(number, size))
    which = generator.permutation(np.repeat(np.arange(number), images))
    embeddings = centers[which] + 0.3 * generator.normal(size=(len(which), size))
    lengths = generator.uniform(0.5, 20, size=(len(which), 1))
    return (embeddings * lengths).astype(np.float32), names[which], group[which]


def test_batches_are_made_of_hard_classes() -> None:
    embeddings, labels, group = planted()
    found = mining.hard_batches(embeddings, labels, classes=3, per_class=2, seed=1, epoch=0)
    assert found.shape == (60 // 6, 6) and found.dtype == np.int64
    for batch in found:
        drawn = labels[batch].reshape(3, 2)
        assert (drawn[:, 0] == drawn[:, 1]).all() and len(set(drawn[:, 0])) == 3
        assert len(set(batch)) == 6
        assert len(set(group[batch])) == 1
    # Four batches use every class once.
    for start in (0, 4):
        assert set(labels[found[start : start + 4].ravel()]) == set(labels)


def test_images_of_a_class_come_evenly() -> None:
    embeddings, labels, _ = planted(images=4)
    found = mining.hard_batches(embeddings, labels, classes=3, per_class=2, seed=1, epoch=0)
    assert len(found) == 8  # two rounds over twelve classes, two of four images each
    assert sorted(found.ravel().tolist()) == list(range(len(labels)))


@pytest.mark.parametrize("per_class", [3, 4, 7])
def test_no_image_twice_in_a_batch_unless_its_class_is_small(per_class: int) -> None:
    embeddings, labels, _ = planted(images=5)
    for batch in mining.hard_batches(embeddings, labels, 4, per_class, 0, 0):
        for images in batch.reshape(4, per_class):
            assert len(set(labels[images])) == 1
            assert len(set(images)) == min(5, per_class)


def test_batches_depend_on_seed_and_epoch_alone() -> None:
    embeddings, labels, _ = planted()
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = mining.hard_batches(embeddings, labels, 3, 2, seed=1, epoch=4)
    np.testing.assert_array_equal(first, mining.hard_batches(embeddings, labels, 3, 2, 1, 4))
    assert (first != mining.hard_batches(embeddings, labels, 3, 2, seed=1, epoch=5)).any()
    assert (first != mining.hard_batches(embeddings, labels, 3, 2, seed=2, epoch=4)).any()
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_number_of_batches_can_be_set() -> None:
    embeddings, labels, _ = planted()
    usual = mining.hard_batches(embeddings, labels, 3, 2, 1, 0)
    more = mining.hard_batches(embeddings, labels, 3, 2, 1, 0, steps=25)
    assert len(more) == 25
    np.testing.assert_array_equal(more[: len(usual)], usual)


def test_group_is_greedy_from_its_first_class() -> None:
    # The second class is nearest to the first; then the fourth is nearer to both than the third.
    angles = np.array([0.0, 0.2, -0.3, 0.4])
    centers = torch.tensor(np.stack([np.cos(angles), np.sin(angles)], 1))
    assert mining._greedy(centers, 3) == [0, 1, 3]


def test_classes_with_equal_centers_start_their_own_batches() -> None:
    embeddings = np.ones((12, 4), np.float32)
    labels = np.arange(12) % 6
    found = mining.hard_batches(embeddings, labels, 2, 2, 0, 0)
    assert sorted(found.ravel().tolist()) == list(range(12))


def test_sets_too_small_for_a_batch() -> None:
    embeddings, labels, _ = planted()
    with pytest.raises(DatasetError, match="a batch of 13 classes × 2 images cannot be made of 12"):
        mining.hard_batches(embeddings, labels, 13, 2, 0, 0)
    with pytest.raises(DatasetError, match="at least one image"):
        mining.hard_batches(embeddings, labels, 3, 0, 0, 0)
    one = mining.hard_batches(embeddings[:3], np.array([0, 1, 1]), 2, 4, 0, 0)
    assert one.shape == (1, 8)


def test_weights_of_negatives() -> None:
    # In the plane the density of distances is 1/√(1 − d²/4): weights ∝ √(1 − d²/4).
    angles = torch.tensor([0.0, 0.3, 0.9, 1.2, 3.0], dtype=torch.float64)
    embeddings = torch.stack([angles.cos(), angles.sin()], 1) * torch.arange(1, 6)[:, None]
    labels = torch.tensor([0, 0, 1, 2, 1])
    found = mining.negative_weights(embeddings, labels)
    assert not found[0, [0, 1, 4]].any()  # itself, its positive, and what is farther than 1.4
    distances = [2 * math.sin(a / 2) for a in (0.9, 1.2)]
    raw = [math.sqrt(1 - d * d / 4) for d in distances]
    assert found[0, 2].item() == pytest.approx(raw[0] / sum(raw))
    assert found[0, 3].item() == pytest.approx(raw[1] / sum(raw))
    assert not found[4].any()
    # In 512 dimensions the densities themselves are beyond float32.
    many = torch.randn(20, 512, generator=torch.Generator().manual_seed(0)) + 1
    sums = mining.negative_weights(many, torch.arange(20) % 5).sum(1)
    torch.testing.assert_close(sums, torch.ones(20))


def test_weights_follow_the_law_of_the_sphere() -> None:
    # Drawn evenly over distances: the nearest of uniform points must be far likelier than others.
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(400, 8, generator=generator, dtype=torch.float64)
    labels = torch.arange(400) % 200
    weight = mining.negative_weights(embeddings, labels)[:50]
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    distance = (2 - 2 * unit[:50] @ unit.T).clamp(min=0).sqrt()
    inside = (distance > 0.7) & (distance < 1.4)
    lower = weight[inside & (distance < 1.05)].sum() / weight[inside].sum()
    assert lower.item() == pytest.approx(0.5, abs=0.1)
    share = (inside & (distance < 1.05)).sum() / inside.sum()
    assert share.item() < 0.25  # most points lie far out


def test_miner_draws_one_negative_a_positive_pair_by_weight() -> None:
    embeddings, labels, _ = planted(groups=1, classes=4, images=3, size=6)
    tensor, classes = torch.tensor(embeddings), torch.tensor(labels)
    miner = mining.DistanceWeightedMiner(seed=5)
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
    expected = mining.negative_weights(tensor, classes) * 2 * rounds
    # Each count is binomial; 5 standard deviations.
    assert ((counts - expected).abs() <= 5 * expected.sqrt() + 1).all()


def test_miner_resumes_and_depends_on_its_seed() -> None:
    embeddings, labels, _ = planted(groups=1, classes=4, images=3, size=6)
    tensor, classes = torch.tensor(embeddings), torch.tensor(labels)
    first, resumed, other = (mining.DistanceWeightedMiner(seed) for seed in (5, 5, 6))
    one = first(tensor, classes)[2]
    resumed.load_state_dict(first.state_dict())
    two = first(tensor, classes)[2]
    assert (two == resumed(tensor, classes)[2]).all()
    assert (one != two).any() and (one != other(tensor, classes)[2]).any()


def test_miner_without_near_negatives() -> None:
    opposite = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1]])
    found = mining.DistanceWeightedMiner(0)(opposite, torch.tensor([0, 0, 1, 1]))
    assert [len(part) for part in found] == [0, 0, 0]
