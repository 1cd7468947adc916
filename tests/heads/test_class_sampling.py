"""Partial FC: the drawn classes, and a head over them against a dense head of the same."""

from __future__ import annotations

import pytest
import torch
from helpers.margin_list import MARGINS
from torch import nn

from facerec.base.errors import TrainingError
from facerec.heads import AdaFace, ArcFace, CosFace, MarginClassifier, SphereFaceR
from facerec.heads.class_sampling import position_among, sample_classes


def test_a_draw_has_the_classes_of_the_batch_and_others():
    column = torch.tensor([7, -1, 3, 7, 99, -1, 0])
    classes = sample_classes(column, 100, 20, (5, 0, 1))
    assert len(classes) == 20 and classes.diff().min() > 0
    assert classes[0] >= 0 and classes[-1] < 100
    assert {0, 3, 7, 99} <= set(classes.tolist())
    position = position_among(classes, column)
    assert torch.equal(position < 0, column < 0)
    assert torch.equal(classes[position[column >= 0]], column[column >= 0])


def test_a_class_that_was_not_drawn_is_no_silent_mistake():
    head = MarginClassifier(100, 4, CosFace(), seed=0, sample_rate=0.05)
    head.draw(torch.tensor([1, 2]), 0)
    missing = next(c for c in range(100) if c not in head.classes.tolist())
    with pytest.raises(TrainingError, match="was not drawn"):
        head(torch.randn(2, 4), torch.tensor([1, missing]))


@pytest.mark.parametrize("margin", [*MARGINS, AdaFace()], ids=str)
def test_the_head_is_a_dense_head_of_the_drawn_classes(margin):
    torch.manual_seed(0)
    x = torch.randn(6, 5, dtype=torch.float64)
    labels = torch.tensor([3, 30, 3, 17, 0, 39])
    head = MarginClassifier(40, 5, margin, seed=1, sample_rate=0.3, chunk=5).double()
    head.draw(labels, 9)
    dense = MarginClassifier(12, 5, margin, seed=2).double()
    with torch.no_grad():
        dense.weight.copy_(head.weight[head.classes])
    results = []
    for module, y in ((head, labels), (dense, torch.searchsorted(head.classes, labels))):
        f = x.clone().requires_grad_()
        output = module(f, y)
        output.loss.backward()
        results.append((output, f.grad))
    (sampled, gradient), (expected, reference) = results
    torch.testing.assert_close(sampled.loss, expected.loss)
    for name in ("target_cosine", "other_cosine", "center_norm"):
        torch.testing.assert_close(sampled.figures[name], expected.figures[name])
    torch.testing.assert_close(gradient, reference)
    assert head.weight.grad.is_sparse
    assert torch.equal(head.weight.grad._indices()[0], head.classes)
    torch.testing.assert_close(head.weight.grad._values(), dense.weight.grad)


def sharded_step(group, margin, classes, number):
    ranks, rank = group.size(), group.rank()
    x, labels = batch(classes)
    head = MarginClassifier(classes, 4, margin, seed=1, sample_rate=0.4).double()
    f, y = x.chunk(ranks)[rank].clone().requires_grad_(), labels.chunk(ranks)[rank]
    head.draw(y, number)
    output = head(f, y)
    output.loss.backward()
    gradient = head.weight.grad.to_dense()
    drawn = head.classes + head.class_offset
    # For DistributedDataParallel the gradient is multiplied by the number of ranks.
    return output.loss.detach(), output.figures["other_cosine"], f.grad / ranks, gradient, drawn


def batch(classes):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (6,), generator=generator)


@pytest.mark.integration
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("margin", [ArcFace(), SphereFaceR(version="v2")], ids=str)
def test_ranks_join_what_each_of_them_drew(pool, ranks, margin):
    for classes in (4, 31, 60):  # 4 classes leave the last of 3 ranks empty
        shards = pool.run(ranks, sharded_step, margin, classes, 2)
        x, labels = batch(classes)
        x.requires_grad_()
        drawn = torch.cat([shard[4] for shard in shards])
        whole = MarginClassifier(classes, 4, margin, seed=1).double()
        dense = MarginClassifier(len(drawn), 4, margin, seed=0).double()
        dense.weight = nn.Parameter(whole.weight.detach()[drawn])
        output = dense(x, torch.searchsorted(drawn, labels))
        output.loss.backward()
        expected = torch.zeros_like(whole.weight).index_copy(0, drawn, dense.weight.grad)
        for loss, other, *_ in shards:
            torch.testing.assert_close(loss, output.loss.detach())
            torch.testing.assert_close(other, output.figures["other_cosine"])
        torch.testing.assert_close(torch.cat([shard[2] for shard in shards]), x.grad)
        torch.testing.assert_close(torch.cat([shard[3] for shard in shards]), expected)
    if ranks > 1:
        first, second = shards[0][4], shards[1][4] - shards[1][4].min()
        assert not torch.equal(first - first.min(), second)  # ranks draw apart
