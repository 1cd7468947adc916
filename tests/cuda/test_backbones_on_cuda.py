"""Every backbone on the GPU against the CPU: embeddings and gradients."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from facerec.backbones import (
    Backbone,
    Preprocessing,
    create_backbone,
    list_backbones,
    recompute_activations,
)
from facerec.embedding import TorchModel, extract
from tests.cuda.small import a_batch, relative_error

pytestmark = pytest.mark.cuda

NAMES = [name for name in list_backbones() if name != "pixel" and not name.startswith("tiny")]


def small(name: str) -> nn.Module:
    torch.manual_seed(0)
    backbone = create_backbone(Backbone(name, embedding_size=32, width=0.125), seed=0)
    for module in backbone.modules():  # as after training: no slope or variance is as it began
        if isinstance(module, nn.PReLU):
            nn.init.uniform_(module.weight, 0.1, 0.4)
    return backbone


def passed(backbone: nn.Module, device: torch.device, images: Tensor) -> dict[str, Tensor]:
    """Embeddings of a pass in training mode, gradients, running statistics, embeddings after it."""
    backbone = copy.deepcopy(backbone).to(device).train()
    x = images.to(device)
    embeddings = backbone(x)
    target = torch.linspace(-1, 1, embeddings.numel(), device=device, dtype=embeddings.dtype)
    (embeddings * target.view_as(embeddings)).sum().backward()
    found = {f"gradient of {n}": p.grad for n, p in backbone.named_parameters() if p.requires_grad}
    found |= {n: b for n, b in backbone.named_buffers() if b.is_floating_point()}
    with torch.no_grad():
        after = backbone.eval()(x)
    return {"embeddings": embeddings, "after": after, **found}


def worst(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    largest = max(t.detach().double().norm() for n, t in expected.items() if "gradient" in n)
    result = 0.0
    for name, tensor in expected.items():
        if "gradient" in name and tensor.double().norm() < 1e-9 * largest:
            continue  # a bias before a batch norm: nothing but rounding
        result = max(result, relative_error(found[name], tensor))
    return result


@pytest.mark.parametrize("name", NAMES)
def test_a_backbone(device: torch.device, name: str) -> None:
    images = torch.randn(4, 3, 112, 112, generator=torch.Generator().manual_seed(1))
    backbone = small(name).double()
    torch.manual_seed(0)  # of stochastic depth, if there is any
    expected = passed(backbone, torch.device("cpu"), images.double())
    if any(isinstance(m, nn.Dropout) and m.p for m in backbone.modules()):
        pytest.skip("random masks differ between devices")
    assert worst(passed(backbone, device, images.double()), expected) < 1e-7
    channels_last = images.to(memory_format=torch.channels_last)
    found = passed(backbone.float().to(memory_format=torch.channels_last), device, channels_last)
    assert relative_error(found["embeddings"], expected["embeddings"]) < 1e-3
    assert relative_error(found["after"], expected["after"]) < 1e-3


@pytest.mark.parametrize("name", ["iresnet18", "mbf"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_autocast_stays_close(device: torch.device, name: str, kind: torch.dtype) -> None:
    images = torch.randn(4, 3, 112, 112, generator=torch.Generator().manual_seed(1)).to(device)
    backbone = small(name).to(device).eval()
    with torch.no_grad():
        expected = backbone(images)
        with torch.autocast(device.type, kind):
            found = backbone(images)
    assert found.dtype == torch.float32
    assert F.cosine_similarity(found, expected).min() > 0.99


def test_activations_computed_again_change_nothing(device: torch.device) -> None:
    images = torch.randn(4, 3, 112, 112, generator=torch.Generator().manual_seed(1)).double()
    plain = small("iresnet18").double()
    again = copy.deepcopy(plain)
    recompute_activations(again)
    expected, found = passed(plain, device, images), passed(again, device, images)
    assert worst(found, expected) < 1e-9


@pytest.mark.parametrize("flip", [False, True])
def test_extraction(device: torch.device, flip: bool) -> None:
    images = a_batch(size=10).images.numpy()
    backbone = small("iresnet18").eval()
    expected = extract(
        TorchModel(copy.deepcopy(backbone), Preprocessing()), images, flip=flip, batch_size=4
    )
    for precision, least in (("fp32", 1 - 1e-6), ("bf16", 0.99)):
        model = TorchModel(backbone, Preprocessing(), device, batch_size=4, precision=precision)
        found = extract(model, images, flip=flip, batch_size=4)
        a, b = (e.vectors / np.linalg.norm(e.vectors, axis=1)[:, None] for e in (found, expected))
        assert (a * b).sum(axis=1).min() > least
        np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-4 if least > 0.999 else 0.1)
