"""Batches by class: their shape, their balance, their repetition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from facerec.comparison import batches
from facerec.comparison.batches import class_batches, hard_batches, two_views
from facerec.errors import DatasetError


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(0, 3),
    st.integers(1, 30),
    st.randoms(use_true_random=False),
)
def test_every_batch_and_the_balance(
    images: list[int], classes: int, per_class: int, epoch: int, steps: int, random: object
) -> None:
    labels = np.repeat(np.arange(len(images)) * 3, images)  # class numbers with gaps
    random.shuffle(labels)  # type: ignore[attr-defined]
    if len(images) < classes:
        with pytest.raises(DatasetError, match=f"cannot be made from {len(images)} classes"):
            class_batches(labels, classes, per_class, 0, epoch)
        return
    found = class_batches(labels, classes, per_class, 7, epoch, steps)
    assert found.shape == (steps, classes * per_class)
    assert found.dtype == np.int64
    turns = np.zeros(len(images), int)
    taken = np.zeros(len(labels), int)
    for batch in found:
        rows = batch.reshape(classes, per_class)
        of_row = labels[rows]
        assert (of_row == of_row[:, :1]).all()
        assert len(set(of_row[:, 0].tolist())) == classes
        turns[of_row[:, 0] // 3] += 1
        assert np.ptp(turns) <= 1
        np.add.at(taken, batch, 1)
        for row, label in zip(rows, of_row[:, 0], strict=True):
            counts = np.unique(row, return_counts=True)[1]
            # No image twice, unless the class is too short; then all as often as can be.
            assert len(counts) == min(per_class, images[label // 3])
            assert np.ptp(counts) <= 1
            assert np.ptp(taken[labels == label]) <= 1
    np.testing.assert_array_equal(found, class_batches(labels, classes, per_class, 7, epoch, steps))


def test_an_epoch_is_as_many_images_as_there_are() -> None:
    labels = np.repeat(np.arange(10), 9)
    assert class_batches(labels, 4, 2, 0, 0).shape == (90 // 8, 8)
    assert class_batches(labels[:5], 1, 8, 0, 0).shape == (1, 8)
    # As every class and every image takes its turn, an epoch that divides shows each image once.
    found = class_batches(labels, 5, 3, 0, 0)
    assert sorted(found.ravel().tolist()) == list(range(90))


def test_seed_and_epoch_change_the_order() -> None:
    labels = np.repeat(np.arange(20), 5)
    first = class_batches(labels, 4, 2, 0, 0)
    assert (first != class_batches(labels, 4, 2, 1, 0)).any()
    assert (first != class_batches(labels, 4, 2, 0, 1)).any()
    # A longer epoch begins as a shorter one does.
    np.testing.assert_array_equal(class_batches(labels, 4, 2, 0, 0, 30)[: len(first)], first)


@pytest.mark.parametrize(("classes", "per_class"), [(0, 4), (4, 0)])
def test_empty_batches_are_refused(classes: int, per_class: int) -> None:
    with pytest.raises(DatasetError, match="cannot be made"):
        class_batches(np.arange(8), classes, per_class, 0, 0)


def test_two_views() -> None:
    assert two_views(np.array([4, 1])).tolist() == [4, 1, 4, 1]
    assert two_views(np.array([[4, 1], [2, 3]])).tolist() == [[4, 1, 4, 1], [2, 3, 2, 3]]


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
    found = hard_batches(embeddings, labels, classes=3, per_class=2, seed=1, epoch=0)
    assert found.shape == (60 // 6, 6) and found.dtype == np.int64
    for batch in found:
        drawn = labels[batch].reshape(3, 2)
        assert (drawn[:, 0] == drawn[:, 1]).all() and len(set(drawn[:, 0])) == 3
        assert len(set(batch)) == 6
        assert len(set(group[batch])) == 1
    # Four batches use every class once.
    for start in (0, 4):
        assert set(labels[found[start : start + 4].ravel()]) == set(labels)


@pytest.mark.parametrize("per_class", [3, 4, 7])
def test_no_image_twice_in_a_batch_unless_its_class_is_small(per_class: int) -> None:
    embeddings, labels, _ = planted(images=5)
    for batch in hard_batches(embeddings, labels, 4, per_class, 0, 0):
        for images in batch.reshape(4, per_class):
            assert len(set(labels[images])) == 1
            assert len(set(images)) == min(5, per_class)


def test_batches_depend_on_seed_and_epoch_alone() -> None:
    embeddings, labels, _ = planted()
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = hard_batches(embeddings, labels, 3, 2, seed=1, epoch=4)
    np.testing.assert_array_equal(first, hard_batches(embeddings, labels, 3, 2, 1, 4))
    assert (first != hard_batches(embeddings, labels, 3, 2, seed=1, epoch=5)).any()
    assert (first != hard_batches(embeddings, labels, 3, 2, seed=2, epoch=4)).any()
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_group_is_greedy_from_its_first_class() -> None:
    # The second class is nearest to the first; then the fourth is nearer to both than the third.
    angles = np.array([0.0, 0.2, -0.3, 0.4])
    centers = torch.tensor(np.stack([np.cos(angles), np.sin(angles)], 1))
    assert batches._greedy(centers, 3) == [0, 1, 3]


def test_sets_too_small_for_a_batch() -> None:
    embeddings, labels, _ = planted()
    with pytest.raises(DatasetError, match="a batch of 13 classes × 2 images cannot be made of 12"):
        hard_batches(embeddings, labels, 13, 2, 0, 0)
    with pytest.raises(DatasetError, match="at least one image"):
        hard_batches(embeddings, labels, 3, 0, 0, 0)
    one = hard_batches(embeddings[:3], np.array([0, 1, 1]), 2, 4, 0, 0)
    assert one.shape == (1, 8)
