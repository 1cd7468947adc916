"""Several ranks equal one process: losses, gradients, centre and radius."""

from __future__ import annotations

import pytest
import torch
from helpers.margin_list import MARGINS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from facerec.base.errors import TrainingError
from facerec.heads import (
    SEC,
    AdaFace,
    ArcFace,
    FixedNorm,
    L2Norm,
    MagFace,
    MarginClassifier,
    NormRegularizer,
    RingLoss,
    SphereFace2017,
)

pytestmark = pytest.mark.integration

ALL = [*MARGINS, AdaFace(t_alpha=0.5), MagFace(l_a=0.5, u_a=2, lambda_g=1)]
PENALTIES = [
    SEC(0.5),
    SEC(0.5, p=1),
    SEC(0.5, rho=0.3, relative=True),
    L2Norm(0.5),
    FixedNorm(0.5, radius=2.0, p=1),
    RingLoss(0.5),
    RingLoss(0.5, p=1),
]


def batch(rows, size, classes):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(rows, size, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (rows,), generator=generator)


def steps(group, margin, penalty, classes, dtype, number=1, count=2):
    """Train a tiny backbone for some steps; return what can be compared with one process."""
    ranks = group.size() if group else 1
    rank = group.rank() if group else 0
    torch.manual_seed(0)
    backbone = nn.Linear(6, 4).to(dtype)
    model = DistributedDataParallel(backbone, process_group=group) if group else backbone
    how = {"centers_per_class": number, "chunk": 2}
    head = MarginClassifier(classes, 4, margin, seed=1, **how).to(dtype)
    regularizer = NormRegularizer(penalty)
    modules = (backbone, head, regularizer)
    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)
    x, labels = batch(12, 6, classes)
    x, labels = x.to(dtype).chunk(ranks)[rank], labels.chunk(ranks)[rank]
    record = []
    for _ in range(count):
        optimizer.zero_grad()
        f = model(x)
        output, norms = head(f, labels), regularizer(f)
        (output.loss + norms.loss).backward()
        record += [output.loss, *output.figures.values(), *norms.figures.values()]
        record += [p.grad.clone() for p in (*backbone.parameters(), *regularizer.parameters())]
        optimizer.step()
        head.advance()
        if head.norm_average is not None:
            record.append(head.norm_average.average.clone())
    shared = [value.detach() for value in record]
    return shared, head.weight.grad, head.weight.detach(), regularizer.center


def assert_equal_to_dense(pool, ranks, margin, penalty, classes, dtype, tolerance, number=1):
    dense = steps(None, margin, penalty, classes, dtype, number)
    shards = pool.run(ranks, steps, margin, penalty, classes, dtype, number)

    def close(left, right):
        bound = tolerance * max(1.0, right.abs().max().item())
        return (left - right).abs().max() <= bound

    for shared, *_ in shards:
        for left, right in zip(shared, dense[0], strict=True):
            assert close(left, right)
        # Not just close: the ranks must agree to the last bit, or they drift apart.
        assert all(torch.equal(a, b) for a, b in zip(shared, shards[0][0], strict=True))
    assert close(torch.cat([gradient for _, gradient, _, _ in shards]), dense[1])
    assert close(torch.cat([weight for _, _, weight, _ in shards]), dense[2])
    assert all(torch.equal(center, shards[0][3]) for *_, center in shards)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("margin", ALL, ids=str)
def test_sharded_equals_dense(pool, ranks, margin):
    for classes in (2, 4, 7, 10):  # 2 and 4 classes leave the last of 3 ranks empty
        assert_equal_to_dense(pool, ranks, margin, SEC(0.5), classes, torch.float64, 1e-9)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("margin", [ArcFace(), SphereFace2017(), AdaFace(t_alpha=0.5)], ids=str)
def test_several_centres_a_class_equal_dense(pool, ranks, margin):
    for classes in (2, 4, 7):
        assert_equal_to_dense(pool, ranks, margin, SEC(0.5), classes, torch.float64, 1e-9, 3)


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_penalties_equal_one_process(pool, penalty):
    for ranks in (2, 3):
        # Buffers are float32, whatever the embeddings.
        assert_equal_to_dense(pool, ranks, ArcFace(), penalty, 7, torch.float64, 1e-6)


def refusal(group, labels, penalty=None):
    embeddings = torch.ones(len(labels), 4)
    try:
        if penalty is None:
            MarginClassifier(7, 4, ArcFace(), seed=0)(embeddings, labels)
        else:
            NormRegularizer(penalty)(embeddings)
    except TrainingError as error:
        return str(error)
    return None


def test_all_ranks_refuse_a_bad_label_together(pool):
    good, bad = torch.tensor([0, 6]), torch.tensor([3, 7])
    for sentence in pool.run(2, refusal, each=[(good,), (bad,)]):
        assert sentence.startswith("a label lies outside [0, 7)")
    assert pool.run(2, refusal, good) == [None, None]


def test_all_ranks_refuse_batches_of_unequal_sizes_together(pool):
    labels = torch.tensor([0, 6, 1])
    for penalty in (None, SEC(0.5)):
        for sentence in pool.run(2, refusal, each=[(labels, penalty), (labels[:2], penalty)]):
            assert sentence.startswith("ranks gave batches of different sizes")


def poisoned(group):
    head = MarginClassifier(4, 4, ArcFace(), seed=0)
    x = torch.ones(2, 4)
    x[0, 0] = float("nan") if group.rank() == 1 else 1.0
    return head(x, torch.tensor([0, 1])).loss.detach()


def test_nan_on_one_rank_is_seen_by_all(pool):
    assert all(loss.isnan() for loss in pool.run(3, poisoned))
