"""The distillation losses against naive loops, over ranks and over micro-batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from facerec.heads.distillation_loss import DistillationLoss

KINDS = ["cosine", "mse", "relation"]


def batch(rows=6, size=4, targets=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    student, taught = (
        torch.randn(rows, n, generator=generator, dtype=torch.float64) for n in (size, targets)
    )
    return (student * 3).requires_grad_(), taught


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def naive(kind, student, targets, scale):
    rows = range(len(student))
    if kind == "cosine":
        return sum(1 - cosine(student[i], targets[i]) for i in rows) / len(student)
    if kind == "mse":
        pairs = [(s, t) for i in rows for s, t in zip(student[i], targets[i], strict=True)]
        return sum((s - scale * t) ** 2 for s, t in pairs) / len(pairs)
    pairs = [(i, j) for i in rows for j in rows if i != j]
    squares = [
        (cosine(student[i], student[j]) - cosine(targets[i], targets[j])) ** 2 for i, j in pairs
    ]
    return sum(squares) / len(squares)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [4, 3, 7])
def test_value_equals_a_loop_and_gradients_are_right(kind, size):
    student, targets = batch(size=size)
    loss = DistillationLoss(kind, 0.3, size, 4, target_scale=1.7, seed=5).double()
    assert (loss.map is None) == (size == 4 or kind == "relation")
    mapped = student if loss.map is None else student @ loss.map.weight.T
    output = loss(student, targets)
    expected = naive(kind, mapped.tolist(), targets.tolist(), 1.7)
    assert output.figures["distillation"].item() == pytest.approx(expected, rel=1e-12)
    assert output.loss.item() == pytest.approx(0.3 * expected, rel=1e-12)
    if kind == "relation":
        # What the gradient belongs to has other values: here each image moves its row alone.
        return
    parameters = (student, *loss.parameters())
    assert torch.autograd.gradcheck(lambda *_: loss(student, targets).loss, parameters)
    mean = sum(map(cosine, mapped.tolist(), targets.tolist())) / len(student)
    assert output.figures["teacher_cosine"].item() == pytest.approx(mean)


def test_the_gradient_of_the_relation_is_that_of_the_matrix_of_cosines():
    student, targets = batch(size=5, targets=3)

    def whole(x):
        units, taught = nn.functional.normalize(x), nn.functional.normalize(targets)
        squares = (units @ units.T - taught @ taught.T).square()
        return squares.sum() / (len(x) * (len(x) - 1))

    assert torch.autograd.gradcheck(whole, student)
    loss = DistillationLoss("relation", 1.0, 5, 3)(student, targets).loss
    (own,) = torch.autograd.grad(loss, student)
    (expected,) = torch.autograd.grad(whole(student), student)
    torch.testing.assert_close(own, expected)


# ---------------------------------------------------------------- over ranks


def steps(group, kind, size):
    """Train a tiny backbone for some steps; return its gradients, those of the map, and figures."""
    ranks, rank = (group.size(), group.rank()) if group else (1, 0)
    torch.manual_seed(0)
    backbone = nn.Linear(5, size).double()
    model = DistributedDataParallel(backbone, process_group=group) if group else backbone
    loss = DistillationLoss(kind, 0.5, size, 4, seed=3).double()
    x, targets = batch(rows=12, size=5, seed=9)
    x, targets = x.detach().chunk(ranks)[rank], targets.chunk(ranks)[rank]
    parameters = [*backbone.parameters(), *loss.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    record = []
    for _ in range(2):
        optimizer.zero_grad()
        output = loss(model(x), targets)
        output.loss.backward()
        record += [output.figures["distillation"], *(p.grad.clone() for p in parameters)]
        optimizer.step()
    return record


@pytest.mark.integration
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [4, 6])
def test_ranks_equal_one_process(pool, ranks, kind, size):
    dense = steps(None, kind, size)
    for record in pool.run(ranks, steps, kind, size):
        for left, right in zip(record, dense, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)
