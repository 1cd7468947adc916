"""The norm penalties against naive loops, closed forms and the BatchNorm identities."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from facerec.base.errors import RecipeError
from facerec.heads import (
    SEC,
    ArcFace,
    FixedNorm,
    L2Norm,
    NormRegularizer,
    RingLoss,
    combination_warnings,
)
from facerec.heads.norm_regularizer import embedding_norms


def embeddings(rows=7, size=5, seed=0, dtype=torch.float64, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    result = torch.randn(rows, size, generator=generator, dtype=torch.float64) * scale
    return result.to(dtype).requires_grad_()


def norms_of(x):
    return [math.sqrt(sum(v * v for v in row)) for row in x.tolist()]


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("form", [{}, {"relative": True}, {"scale_free": True}], ids=str)
def test_value_and_gradient_equal_a_loop(p, form):
    x = embeddings()
    norms = norms_of(x)
    mean = sum(norms) / len(norms)
    for config, center in [
        (SEC(0.3, p=p, **form), mean),
        (L2Norm(0.3, p=p, **form), 0.0),
        (FixedNorm(0.3, p=p, **form, radius=2.5), 2.5),
        (RingLoss(0.3, p=p, **form), float(torch.tensor(mean).float())),
    ]:
        divisor = mean**p if form else 1.0
        weight = 0.3 * (16.0 if "scale_free" in form else 1.0)
        expected = sum(abs(n - center) ** p for n in norms) / len(norms) / divisor
        output = NormRegularizer(config, scale=16.0)(x)
        assert output.figures["penalty"].item() == pytest.approx(expected, rel=1e-7)
        assert output.loss.item() == pytest.approx(weight * expected, rel=1e-7)
        assert output.figures["center"].item() == pytest.approx(center, rel=1e-7)
        (gradient,) = torch.autograd.grad(output.loss, x)
        for row, direction, n in zip(gradient, x.detach(), norms, strict=True):
            outward = 2 * (n - center) if p == 2 else math.copysign(1, n - center)
            radial = weight * outward / len(norms) / divisor * direction / n
            assert torch.allclose(row, radial, atol=1e-7, rtol=0)


@pytest.mark.parametrize("p", [1, 2])
def test_one_scale_free_weight_presses_alike_on_all_scales(p):
    """Of the margin loss's gradient, the penalty's has one share for any norm and scale."""

    def share(size, scale, **form):
        """SEC against a target cosine that is pulled with the head's scale."""
        x = embeddings(size=5, scale=size)
        penalty = NormRegularizer(SEC(0.3, p=p, **form), scale=scale)(x).loss
        pull = -scale * nn.functional.normalize(x)[:, 0].mean()
        radial, tangential = (torch.autograd.grad(loss, x)[0] for loss in (penalty, pull))
        return (radial.norm() / tangential.norm()).item()

    reference = share(1.0, 1.0, scale_free=True)
    for size, scale in [(7.0, 1.0), (1.0, 64.0), (20.0, 32.0)]:
        assert share(size, scale, scale_free=True) == pytest.approx(reference, rel=1e-6)
        # A plain weight presses harder by the p-th power of the norms, and less by the scale.
        assert share(size, scale) == pytest.approx(share(1.0, 1.0) * size**p / scale, rel=1e-6)


def test_moving_average_takes_in_the_current_batch():
    module = NormRegularizer(SEC(1.0, rho=0.1))
    center = None
    for seed in range(5):
        x = embeddings(seed=seed, dtype=torch.float32)
        norms = norms_of(x)
        mean = sum(norms) / len(norms)
        center = mean if center is None else 0.9 * center + 0.1 * mean
        output = module(x)
        assert output.figures["center"].item() == pytest.approx(center, rel=1e-6)
        assert module.center.item() == pytest.approx(center, rel=1e-6)
        expected = sum((n - center) ** 2 for n in norms) / len(norms)
        assert output.figures["penalty"].item() == pytest.approx(expected, rel=1e-5)


def test_eval_mode_and_update_false_leave_the_state():
    module = NormRegularizer(SEC(1.0, rho=0.5))
    module(embeddings(seed=1))
    before = copy.deepcopy(module.state_dict())
    shown = module(embeddings(seed=2), update=False)
    module.eval()
    assert module(embeddings(seed=2)).figures["penalty"] == shown.figures["penalty"]
    assert shown.figures["center"].item() == pytest.approx(before["center"].item())
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


OTHERS = [FixedNorm(1.0, relative=True), RingLoss(1.0), L2Norm(1.0)]


@pytest.mark.parametrize(
    "config", [SEC(1.0), SEC(1.0, p=1), SEC(1.0, rho=0.2, relative=True), *OTHERS], ids=str
)
def test_micro_batches_equal_the_big_batch(config):
    whole, parts = NormRegularizer(config), NormRegularizer(config)
    x = embeddings(rows=12)
    for module in (whole, parts):
        module(embeddings(seed=5))  # a first step, so that averages and the radius have started
    big = whole(x)
    mean = embedding_norms(x).mean() if parts.couples_samples else None
    pieces = enumerate(x.chunk(3))
    small = [parts(piece, mean_norm=mean, update=i == 0).loss / 3 for i, piece in pieces]
    assert sum(small).item() == pytest.approx(big.loss.item(), rel=1e-6)
    expected = torch.autograd.grad(big.loss, [x, *whole.parameters()])
    accumulated = torch.autograd.grad(sum(small), [x, *parts.parameters()])
    for left, right in zip(expected, accumulated, strict=True):
        assert torch.allclose(left, right, atol=1e-6, rtol=1e-6)
    assert torch.equal(whole.center, parts.center)


def test_linear_schedule():
    x = embeddings()
    module = NormRegularizer(SEC(2.0, schedule="linear"))
    full = module(x).loss
    assert module(x, progress=0.0).loss == 0
    assert module(x, progress=0.25).loss.item() == pytest.approx(full.item() / 4)
    assert NormRegularizer(SEC(2.0))(x, progress=0.25).loss == full


def test_warnings_name_the_doubtful_combinations():
    for sound in (None, SEC(0.1), L2Norm(0.0)):
        assert combination_warnings(sound, ArcFace(), "frozen_gamma") == []
    assert combination_warnings(L2Norm(0.1), ArcFace(), "none") == []
    for choice in ("frozen_gamma", "affine"):
        (sentence,) = combination_warnings(L2Norm(0.1), ArcFace(), choice)
        assert "no effect below the final BatchNorm" in sentence
    (sentence,) = combination_warnings(RingLoss(0.1), ArcFace(), "frozen_gamma")
    assert "like SEC with another weight" in sentence


@pytest.mark.parametrize(
    "make", [lambda: SEC(-1.0), lambda: SEC(1.0, rho=0.0), lambda: FixedNorm(1.0, radius=-3.0)]
)
def test_impossible_penalties_are_refused_in_a_sentence(make):
    with pytest.raises(RecipeError, match="must"):
        make()
