"""Margins against scalar formulas, published check values and finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from facerec.base.errors import RecipeError
from facerec.heads import (
    AdaFace,
    ArcFace,
    CombinedMargin,
    CosFace,
    MagFace,
    Softmax,
    SphereFace,
    SphereFace2017,
    SphereFaceR,
)

COMBINED = [
    CombinedMargin(m1=m1, m2=m2, m3=m3, wrap=wrap)
    for m1 in (0.9, 1.0, 1.35, 2.5)
    for m2 in (0.0, 0.3, 0.5)
    for m3 in (0.0, 0.2)
    for wrap in ("fold", "clamp", "none")
]
ARCFACE = [ArcFace(wrap=wrap) for wrap in ("fold", "linear", "clamp", "none", "easy")]
SPHEREFACE = [SphereFace(margin=m) for m in (1.0, 1.35, 1.5, 1.7, 4.0)]
SPHEREFACE_R = [SphereFaceR(version=v) for v in ("v1", "v2")]
OTHERS = [Softmax(), CosFace(), *SPHEREFACE, SphereFace2017(), *SPHEREFACE_R]
EVERYTHING = [*OTHERS, *ARCFACE, *COMBINED]


def fold(phi):
    """The folded cosine, by walking from one half turn to the next."""
    turns = 0
    while phi > (turns + 1) * math.pi:
        turns += 1
    return (-1) ** turns * math.cos(phi) - 2 * turns


def wrapped(phi, wrap):
    return {"fold": fold(phi), "clamp": math.cos(min(phi, math.pi)), "none": math.cos(phi)}[wrap]


def naive(margin, theta):
    """ψ of one target angle, step 0."""
    match margin:
        case CosFace():
            return math.cos(theta) - margin.margin
        case ArcFace(wrap="linear"):
            if theta + margin.margin > math.pi:
                return math.cos(theta) - margin.margin * math.sin(margin.margin)
            return math.cos(theta + margin.margin)
        case ArcFace(wrap="easy"):
            return math.cos(theta + margin.margin if math.cos(theta) > 0 else theta)
        case ArcFace():
            return wrapped(theta + margin.margin, margin.wrap)
        case CombinedMargin():
            return wrapped(margin.m1 * theta + margin.m2, margin.wrap) - margin.m3
        case SphereFace():
            return fold(margin.margin * theta)
        case SphereFace2017():
            return (1000 * math.cos(theta) + fold(4 * theta)) / 1001
        case SphereFaceR(version="v1"):
            return math.cos(min(margin.margin * theta, math.pi))
    return math.cos(theta)


@pytest.mark.parametrize("margin", EVERYTHING, ids=str)
def test_target_equals_the_scalar_formula(margin):
    angles = [0.01 + 3.12 * i / 400 for i in range(401)]
    cosines = torch.tensor([math.cos(a) for a in angles], dtype=torch.float64)
    expected = torch.tensor([naive(margin, a) for a in angles], dtype=torch.float64)
    assert torch.allclose(margin.target_cosine(cosines), expected, atol=1e-12, rtol=0)


def test_annealing_of_2017():
    margin = SphereFace2017()
    assert margin.annealing(0).item() == 1000
    assert margin.annealing(1658).item() > 5
    assert margin.annealing(1659).item() == 5
    assert margin.annealing(torch.tensor(100)).item() == pytest.approx(1000 / 13)


@pytest.mark.parametrize("margin", EVERYTHING, ids=str)
def test_exact_gradient_equals_finite_differences(margin):
    # No kink of any margin lies within 1e-3 of these cosines.
    cosines = torch.linspace(-0.9731, 0.9837, 23, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c: margin.target_cosine(c, 50), cosines)
    assert torch.autograd.gradcheck(margin.other_cosine, cosines)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda g, w=w: ArcFace(wrap=w, gradient=g) for w in ("fold", "linear", "clamp", "none")),
        lambda g: CombinedMargin(m1=1.3, gradient=g),
        lambda g: SphereFace(gradient=g),
        lambda g: SphereFaceR(version="v1", gradient=g),
        lambda g: SphereFaceR(version="v2", gradient=g),
    ],
)
def test_straight_through_keeps_values_and_passes_the_gradient(make):
    cosines = torch.linspace(-1, 1, 101, requires_grad=True)
    exact, through = make("exact"), make("straight_through")
    for name in ("target_cosine", "other_cosine"):
        values = getattr(through, name)(cosines)
        assert torch.equal(values, getattr(exact, name)(cosines))
        (gradient,) = torch.autograd.grad(values.sum(), cosines)
        assert torch.equal(gradient, torch.ones(101))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ArcFace(margin=28.6),
        lambda: ArcFace(scale=0),
        lambda: CombinedMargin(m1=0),
        lambda: SphereFaceR(margin=0.9),
        lambda: MagFace(l_a=110, u_a=10),
    ],
)
def test_impossible_margins_are_refused_in_a_sentence(make):
    with pytest.raises(RecipeError, match=r"(Face|Margin).*\b(must|found)\b"):
        make()


# ---------------------------------------------------------------- margins that read norms

ANGLES = [0.01 + 3.12 * i / 60 for i in range(61)]
NORMS = [1e-5, 0.5, 9.0, 14.2, 21.7, 26.0, 60.0, 111.0, 300.0]
AVERAGE = (22.0, 1.75)


def grid():
    """Every angle with every norm, as cosines and norms."""
    angles = torch.tensor(ANGLES, dtype=torch.float64)
    norms = torch.tensor(NORMS, dtype=torch.float64)
    return angles.cos().repeat_interleave(len(norms)), norms.repeat(len(angles))


def naive_magface(theta, norm, wrap):
    margin = 0.45 + (0.8 - 0.45) * (min(max(norm, 10), 110) - 10) / 100
    if wrap == "easy" and math.cos(theta) <= 0:
        return math.cos(theta)
    if wrap == "linear" and theta + margin > math.pi:
        return math.cos(theta) - margin * math.sin(margin)
    return math.cos(theta + margin)


@pytest.mark.parametrize("wrap", ["easy", "linear"])
def test_magface_equals_the_scalar_formula(wrap):
    cosine, norms = grid()
    found = MagFace(wrap=wrap).target_cosine(cosine, 0, norms)
    expected = [naive_magface(a, n, wrap) for a in ANGLES for n in NORMS]
    assert torch.allclose(found, found.new_tensor(expected), atol=1e-12, rtol=0)
    penalty = [35 * (a / 110**2 + 1 / a) for a in (min(max(n, 10), 110) for n in NORMS)]
    found = MagFace(wrap=wrap).norm_penalty(norms[: len(NORMS)])
    assert torch.allclose(found, found.new_tensor(penalty), atol=1e-12, rtol=0)


def test_gradients_reach_norms_in_magface_alone():
    cosine = torch.linspace(-0.9731, 0.9837, 23, dtype=torch.float64, requires_grad=True)
    inside = torch.linspace(10.5, 109.5, 23, dtype=torch.float64, requires_grad=True)
    for wrap in ("easy", "linear"):
        margin = MagFace(wrap=wrap)
        assert torch.autograd.gradcheck(
            lambda c, n, m=margin: m.target_cosine(c, 0, n) + m.norm_penalty(n), (cosine, inside)
        )
    outside = torch.tensor([3.0, 9.9, 110.1, 500.0], requires_grad=True)
    margin = MagFace()
    total = margin.target_cosine(torch.full((4,), 0.5), 0, outside) + margin.norm_penalty(outside)
    assert torch.equal(torch.autograd.grad(total.sum(), outside)[0], torch.zeros(4))

    average = torch.tensor(AVERAGE)
    # 23 norms around the mean, where quality varies and the angle stays off 0 and π.
    norms = torch.linspace(20.0, 24.0, 23, dtype=torch.float64, requires_grad=True)
    assert not AdaFace().quality(norms, average).requires_grad
    assert torch.autograd.gradcheck(
        lambda c: AdaFace().target_cosine(c, 0, norms.detach(), average), cosine
    )
