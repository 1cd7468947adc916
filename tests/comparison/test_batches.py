"""Batches by class: their shape, their balance, their repetition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facerec.base.errors import DatasetError
from facerec.comparison.batches import class_batches


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
            class_batches(labels, classes, per_class, 0, epoch, steps)
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


def test_as_many_batches_as_the_images_fill_show_each_once() -> None:
    labels = np.repeat(np.arange(10), 9)
    found = class_batches(labels, 5, 3, 0, 0, 6)
    assert sorted(found.ravel().tolist()) == list(range(90))


def test_seed_and_epoch_change_the_order() -> None:
    labels = np.repeat(np.arange(20), 5)
    first = class_batches(labels, 4, 2, 0, 0, 12)
    assert (first != class_batches(labels, 4, 2, 1, 0, 12)).any()
    assert (first != class_batches(labels, 4, 2, 0, 1, 12)).any()
    # A longer epoch begins as a shorter one does.
    np.testing.assert_array_equal(class_batches(labels, 4, 2, 0, 0, 30)[: len(first)], first)
