"""One centre a class and several: naive loops, gradients, sampling."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.margin_list import MARGINS

from facerec.heads import ArcFace, MarginClassifier, SphereFaceR


def batch(rows=7, size=8, classes=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, size, generator=generator, dtype=torch.float64) * 2
    return x.requires_grad_(), torch.randint(classes, (rows,), generator=generator)


def classifier(margin, number=3, classes=5, **settings):
    head = MarginClassifier(classes, 8, margin, seed=3, centers_per_class=number, **settings)
    return head.double()


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
    head = classifier(margin, number, chunk=chunk)
    x, labels = batch()
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
    head = classifier(ArcFace(scale=8.0), classes=20, sample_rate=0.5)
    x, labels = batch(classes=20)
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
