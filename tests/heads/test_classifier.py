"""The classifier in one process: naive loops, closed forms of the gradient, and bad input."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from helpers.margin_list import MARGINS

from facerec.heads import AdaFace, ArcFace, MagFace, MarginClassifier, SphereFace2017, SphereFaceR
from facerec.heads.classifier import draw_centers
from facerec.heads.collectives import shard_bounds

MAGFACE = MagFace(l_a=3, u_a=9)  # the embeddings below have norms around 5.6


def batch(rows=6, size=8, classes=5, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, size, generator=generator, dtype=torch.float64) * 2
    labels = torch.randint(classes, (rows,), generator=generator)
    return x.to(dtype).requires_grad_(), labels


def classifier(margin, classes=5, size=8, **settings):
    return MarginClassifier(classes, size, margin, seed=3, **settings)


def loop(head, x, labels, classes):
    """The mean loss by plain loops over samples and the classes given."""
    number, total = head.centers_per_class, x.new_zeros(())
    for row, label in zip(x, labels.tolist(), strict=True):
        logits = []
        for j in classes:
            centers = F.normalize(head.weight[j * number : (j + 1) * number], dim=1)
            cosine = (centers @ F.normalize(row, dim=0)).max()
            if j == label:
                cosine, own = head.margin.target_cosine(cosine), len(logits)
            else:
                cosine = head.margin.other_cosine(cosine)
            length = row.norm() if head.margin.scales_by_norm else 1
            logits.append(head.margin.scale * length * cosine)
        total = total - torch.stack(logits).log_softmax(0)[own]
    factor = 50 / head.margin.scale if isinstance(head.margin, SphereFaceR) else 1
    return factor * total / len(labels)


@pytest.mark.parametrize(("number", "chunk"), [(1, 2), (3, None), (3, 3), (3, 7)])
@pytest.mark.parametrize("margin", MARGINS, ids=str)
def test_loss_and_gradients_equal_a_loop(margin, number, chunk):
    head = classifier(margin, centers_per_class=number, chunk=chunk).double()
    x, labels = batch(rows=7, dtype=torch.float64)
    output = head(x, labels)
    expected = loop(head, x, labels, range(5))
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-10)
    wanted = torch.autograd.grad(expected, (x, head.weight))
    found = torch.autograd.grad(output.loss, (x, head.weight))
    if getattr(margin, "gradient", "exact") == "exact":
        assert all(torch.allclose(*pair, atol=1e-9) for pair in zip(wanted, found, strict=True))
    cosines = F.normalize(x) @ F.normalize(head.weight).T
    nearest = cosines.view(7, 5, number).amax(2)
    own = nearest[torch.arange(7), labels]
    assert output.figures["target_cosine"].item() == pytest.approx(own.mean().item())
    assert output.figures["other_cosine"].item() == pytest.approx(
        ((nearest.sum() - own.sum()) / 28).item()
    )
    assert output.figures["center_norm"].item() == pytest.approx(1)


def test_whole_classes_are_sampled():
    settings = {"sample_rate": 0.5, "centers_per_class": 3}
    head = classifier(ArcFace(scale=8.0), classes=20, **settings).double()
    x, labels = batch(rows=7, classes=20, dtype=torch.float64)
    head.draw(labels, 0)
    assert len(head.classes) == 10 and set(labels.tolist()) <= set(head.classes.tolist())
    output = head(x, labels)
    expected = loop(head, x, labels, head.classes.tolist())
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-10)
    (wanted,) = torch.autograd.grad(expected, head.weight)
    (found,) = torch.autograd.grad(output.loss, head.weight)
    rows = (head.classes[:, None] * 3 + torch.arange(3)).view(-1)
    assert torch.equal(found._indices()[0], rows)
    assert torch.allclose(found.to_dense(), wanted, atol=1e-10)


@pytest.mark.parametrize("margin", [*MARGINS, AdaFace(), MAGFACE], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_parallel_and_antiparallel_embeddings_train(margin, dtype):
    head = classifier(margin)
    x = torch.cat([head.weight.detach()[:2], -head.weight.detach()[:2], torch.zeros(1, 8)])
    x = x.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head(x, torch.tensor([0, 1, 0, 1, 2])).loss
    loss.backward()
    assert loss.isfinite()
    assert loss.dtype == torch.float32
    assert head.weight.dtype == torch.float32
    assert head.weight.grad.isfinite().all()
    # The gradient of the zero embedding is bounded, but too large for float16.
    rows = x.grad[:4] if dtype == torch.float16 else x.grad
    assert rows.isfinite().all()


def test_annealing_counter_is_saved_and_matters():
    head, other = classifier(SphereFace2017()), classifier(SphereFace2017())
    x, labels = batch()
    start = head(x, labels).loss
    for _ in range(500):
        head.advance()
    assert head(x, labels).loss > start + 0.01
    other.load_state_dict(copy.deepcopy(head.state_dict()))
    assert other.step.item() == 500
    assert other.step.dtype == torch.int64
    assert torch.equal(other(x, labels).loss, head(x, labels).loss)


# ---------------------------------------------------------------- margins that read norms


def dense(x, weight, labels, target, scale=64):
    """Cross-entropy with the target's cosine put through ``target``."""
    rows = torch.arange(len(x))
    cosine = F.normalize(x) @ F.normalize(weight).T
    logits = scale * cosine.index_put((rows, labels), target(cosine[rows, labels]))
    return F.cross_entropy(logits, labels)


def assert_same(output, expected, x, weight):
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    found = torch.autograd.grad(output.loss, (x, weight))
    for left, right in zip(found, torch.autograd.grad(expected, (x, weight)), strict=True):
        assert torch.allclose(left, right, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("t_alpha", [0.01, 0.4, 1.0])
def test_adaface_follows_its_source_over_many_steps(t_alpha):
    """The update of head.py: the batch counts in the averages that its norms are compared with."""
    head = classifier(AdaFace(t_alpha=t_alpha)).double()
    mean, std = 20.0, 100.0
    for seed in range(4):
        x, labels = batch(seed=seed, dtype=torch.float64)
        norms = x.detach().norm(dim=1).clip(0.001, 100)
        mean = norms.mean() * t_alpha + (1 - t_alpha) * mean
        std = norms.std() * t_alpha + (1 - t_alpha) * std
        quality = ((norms - mean) / (std + 1e-3) * 0.333).clip(-1, 1)

        def target(cosine, quality=quality):
            angle = (cosine.acos() - 0.4 * quality).clip(0, math.pi)
            return angle.cos() - (0.4 + 0.4 * quality)

        output = head(x, labels)
        assert_same(output, dense(x, head.weight, labels, target), x, head.weight)
        head.advance()
        assert torch.allclose(head.norm_average.average, torch.stack([mean, std]), rtol=1e-12)


def test_adaface_averages_change_in_training_only_and_once_a_step():
    head = classifier(AdaFace(t_alpha=0.3))
    average = head.norm_average.average
    start = average.clone()
    x, labels = batch()
    losses = [head(x, labels).loss for _ in range(2)]
    assert torch.equal(average, start)
    head.advance()
    kept = average.clone()
    assert kept[0] == pytest.approx(0.7 * 20 + 0.3 * x.norm(dim=1).mean().item())
    head.advance()  # a step without a batch
    assert torch.equal(average, kept)
    head.eval()
    shown = [head(x, labels).loss for _ in range(2)]
    head.advance()
    assert torch.equal(average, kept)
    assert torch.equal(*shown)
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-2)
    assert classifier(ArcFace()).norm_average is None


def test_a_lost_step_or_a_single_image_does_not_spoil_the_averages():
    head = classifier(AdaFace(t_alpha=0.5))
    x, labels = batch()
    x.data[1, 1] = math.nan
    head(x, labels)
    head.advance()
    assert head.norm_average.average.tolist() == [20, 100]
    x, labels = batch(rows=1)
    assert head(x, labels).loss.isfinite()  # one norm has a mean, but no deviation
    head.advance()
    mean, std = head.norm_average.average.tolist()
    assert mean == pytest.approx((20 + x.norm().item()) / 2)
    assert std == 100


@pytest.mark.parametrize("init", ["unit", "normal", "xavier"])
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_centres_are_the_same_on_any_number_of_ranks(init, ranks):
    classes = 10_001  # three blocks, the last one partial
    settings = {"seed": 5, "center_init": init}
    dense = draw_centers(classes, 4, range(classes), **settings)
    bounds = [shard_bounds(classes, ranks, rank) for rank in range(ranks)]
    shards = [draw_centers(classes, 4, range(a, a + n), **settings) for a, n in bounds]
    assert torch.equal(torch.cat(shards), dense)
    assert len(dense.unique(dim=0)) == classes
    assert not torch.equal(
        dense, draw_centers(classes, 4, range(classes), seed=6, center_init=init)
    )
