"""The chunked softmax equals the dense one, whatever the tiles and the cosines."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.examples import examples
from helpers.margin_list import MARGINS as EVERY
from helpers.thin import thinned
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from facerec.heads import AdaFace, ArcFace, MagFace, Softmax, SphereFace2017, SphereFaceR
from facerec.heads.margin_softmax import margin_softmax
from facerec.heads.margins import NormMargin
from facerec.heads.tiles import TileSettings

MARGINS = [
    *EVERY,
    SphereFaceR(version="v2", gradient="straight_through"),
    AdaFace(),
    MagFace(l_a=3, u_a=8),  # the embeddings below have norms around 5.6
    MagFace(l_a=3, u_a=8, wrap="linear"),
]
AVERAGE = torch.tensor([5.0, 1.5], dtype=torch.float64)
"""What AdaFace compares these norms with."""


def softmax(*given, chunk=0, reduced=False, **options):
    return margin_softmax(*given, settings=TileSettings(reduced, chunk), **options)


def problem(rows, size, classes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(rows, size, generator=generator, dtype=torch.float64)
    weight = torch.randn(classes, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (rows,), generator=generator)
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels


def dense(x, weight, labels, margin, step=0, norm_average=AVERAGE):
    """The loss as the papers write it, all logits at once."""
    rows, norms, penalty = torch.arange(len(x)), x.norm(dim=1), 0
    cosine = F.normalize(x, eps=1e-6) @ F.normalize(weight, eps=1e-6).T
    own = cosine[rows, labels]
    if isinstance(margin, NormMargin):
        target = margin.target_cosine(own, step, norms, norm_average)
        if isinstance(margin, MagFace):
            penalty = margin.norm_penalty(norms).mean()
    else:
        target = margin.target_cosine(own, step)
    logits = margin.scale * margin.other_cosine(cosine).index_put((rows, labels), target)
    if margin.scales_by_norm:
        logits = logits * norms[:, None]
    return margin.loss_factor * F.cross_entropy(logits, labels) + penalty


def with_gradients(loss, *tensors):
    return [loss.detach(), *torch.autograd.grad(loss, tensors)]


def assert_close(found, expected, tolerance):
    for left, right in zip(found, expected, strict=True):
        bound = tolerance * max(1.0, right.abs().max().item())
        assert (left - right).abs().max() <= bound


@pytest.mark.parametrize("rows", [5, 20])
@pytest.mark.parametrize("margin", MARGINS, ids=str)
def test_equals_the_dense_form(margin, rows):
    """In float32 within 1e-6, or at least as near as the dense form is (and a half).

    Around 64 the spacing of logits is 8e-6, which no form escapes.
    """
    x, weight, labels = problem(rows, 8, 11, torch.float32)
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    options = {"step": 700, "norm_average": AVERAGE}
    expected = with_gradients(dense(*exact, labels, margin, **options), *exact)
    plain = with_gradients(dense(x, weight, labels, margin, **options), x, weight)
    for chunk in (1, 3, 10, 11, None):
        loss = softmax(*exact, labels, margin, chunk=chunk, **options).loss
        assert_close(with_gradients(loss, *exact), expected, 1e-12)
        loss = softmax(x, weight, labels, margin, chunk=chunk, **options).loss
        found = with_gradients(loss, x, weight)
        for ours, theirs, truth in zip(found, plain, expected, strict=True):
            bound = 1e-6 * max(1.0, truth.abs().max().item())
            bound = max(bound, 1.5 * (theirs - truth).abs().max().item())
            assert (ours - truth).abs().max() <= bound


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.integers(1, 12),
    size=st.integers(1, 10),
    classes=st.integers(1, 40),
    chunk=st.integers(1, 50),
    margin=st.sampled_from(MARGINS),
    seed=st.integers(0, 2**31),
)
def test_equals_the_dense_form_at_any_size(rows, size, classes, chunk, margin, seed):
    x, weight, labels = problem(rows, size, classes, seed=seed)
    found = softmax(x, weight, labels, margin, chunk=chunk, norm_average=AVERAGE).loss
    expected = dense(x, weight, labels, margin)
    # Near cosines of ±1, where a tiny size leads, the slope of the arc cosine is huge.
    tolerance = 1e-9 if size > 1 else 1e-5
    assert_close(with_gradients(found, x, weight), with_gradients(expected, x, weight), tolerance)


@pytest.mark.parametrize("margin", [Softmax(), ArcFace(), SphereFaceR()], ids=str)
@pytest.mark.parametrize("nearest", ["none", "own", "last other", "first other"])
def test_cosines_near_minus_one_do_not_underflow(margin, nearest):
    """e^(64·(−1 − 1)) is 0 in float32; a shift by anything but the largest logit loses it all."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.zeros(16, dtype=torch.float64)
    direction[0] = 1
    x = direction + 0.01 * torch.randn(4, 16, generator=generator, dtype=torch.float64)
    weight = 0.01 * torch.randn(9, 16, generator=generator, dtype=torch.float64) - direction
    labels = torch.tensor([3, 3, 4, 5])
    if nearest != "none":
        weight[{"own": 3, "last other": 8, "first other": 0}[nearest]] *= -1
    exact = [t.requires_grad_() for t in (x, weight)]
    rounded = [t.detach().float().requires_grad_() for t in exact]
    expected = with_gradients(dense(*exact, labels, margin), *exact)
    found = with_gradients(softmax(*rounded, labels, margin, chunk=2).loss, *rounded)
    assert all(value.isfinite().all() for value in found)
    # The slope of the arc cosine, 1/sin θ, magnifies what rounding leaves of the cosine.
    assert_close(found[:1], expected[:1], 1e-6 if margin == Softmax() else 1e-5)
    assert_close(found[1:], expected[1:], 2e-4)
    if nearest == "none" and margin == Softmax():
        # All logits lie around −64, none of them is lost.
        assert found[0].item() == pytest.approx(math.log(9), abs=0.1)


class Memory(TorchDispatchMode):
    """Follows the memory behind every result, but for that of tensors given before.

    Attributes:
        most: most bytes alive at once.
        wholes: sizes in bytes of what is as large as the gradient of the centres or larger, which
            is not counted in ``most``.
    """

    def __init__(self, whole, *given):
        super().__init__()
        self.whole, self.given = whole, {t.untyped_storage().data_ptr() for t in given}
        self.alive, self.most, self.wholes = {}, 0, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.see(tensor.untyped_storage())
        self.alive = {k: v for k, v in self.alive.items() if not v[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.alive.values()))
        return result

    def see(self, storage):
        if storage.data_ptr() in self.given:
            return
        if storage.nbytes() >= self.whole:
            self.wholes[storage.data_ptr()] = storage.nbytes()
        else:
            self.alive[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()


@pytest.mark.parametrize("rows", [8, 64], ids=["fewer than dimensions", "more than dimensions"])
@pytest.mark.parametrize(
    "margin",
    thinned([ArcFace(), SphereFaceR(), MagFace()], lambda margin: isinstance(margin, ArcFace)),
    ids=str,
)
def test_no_matrix_of_batch_by_classes_is_ever_held(margin, rows):
    size, classes, chunk = 16, 4000, 40
    x, weight, labels = problem(rows, size, classes, torch.float32)
    matrix, centers = 4 * rows * classes, 4 * classes * size
    forward, backward = (Memory(centers, weight) for _ in range(2))
    with forward:
        loss = softmax(x, weight, labels, margin, chunk=chunk).loss
    with backward:
        loss.backward()
    # A tile is a hundredth of the matrix; the lengths of the centres take the rest.
    for memory in (forward, backward):
        assert 0 < memory.most < 0.15 * matrix + 4 * classes + 20_000
    assert forward.wholes == {}
    # The gradient itself, but for the room that aligns it.
    (only,) = backward.wholes.values()
    assert centers <= only < centers + 100
    assert list(backward.wholes) == [weight.grad.untyped_storage().data_ptr()]


@pytest.mark.parametrize(
    "margin",
    [ArcFace(), SphereFace2017(), SphereFaceR(), AdaFace(), MagFace(l_a=12, u_a=20, lambda_g=100)],
    ids=str,
)
@pytest.mark.parametrize("rows", [32, 96])
def test_products_in_bf16(margin, rows):
    x, weight, labels = problem(rows, 64, 500, torch.float32)
    options = {"chunk": 128, "norm_average": torch.tensor([16.0, 1.5])}
    plain = softmax(x, weight, labels, margin, **options)
    rounded = softmax(x, weight, labels, margin, reduced=True, **options)
    # The target's path knows nothing of it.
    assert torch.equal(rounded.target_cosine, plain.target_cosine)
    assert rounded.loss.item() == pytest.approx(plain.loss.item(), rel=1e-2)
    assert rounded.loss != plain.loss
    for left, right in zip(
        torch.autograd.grad(rounded.loss, (x, weight)),
        torch.autograd.grad(plain.loss, (x, weight)),
        strict=True,
    ):
        assert left.dtype == torch.float32
        assert F.cosine_similarity(left.flatten(), right.flatten(), 0) > 0.999
        assert (left - right).norm() < 0.05 * right.norm()
