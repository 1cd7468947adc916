"""iResNet by kernels of Triton on the GPU against torch's operations in float64.

TRITON_INTERPRET=1 FACEREC_CUDA_TESTS_ON=cpu rehearses them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from small import NEED_TRITON, a_batch, no_host_waits, small_recipe, trainer_on
from torch import Tensor, nn

from facerec.backbones import Backbone
from facerec.backbones.iresnet import IResNet

pytestmark = NEED_TRITON

pytest.importorskip("triton", reason="triton is not installed (extra gpu)")

from facerec.backbones import triton_batch_norm  # noqa: E402


@dataclass(frozen=True)
class Case:
    """A small network, and how it is computed."""

    blocks: tuple[int, int, int, int] = (1, 1, 1, 1)
    width: float = 0.125
    images: int = 3
    shift: float = 0.0
    """Added to what convolutions give, so that means are far larger than deviations."""
    programs: int = 3
    frozen: bool = False
    """Whether convolutions learn nothing."""
    kind: torch.dtype | None = None
    """Of autocast."""


CASES = {
    "plain": Case((2, 1, 1, 1)),
    "a program for each share": Case(programs=10_000),
    "24 and 48 channels, an image": Case(width=0.375, images=1),
    "far means": Case(shift=300.0),
    "frozen convolutions": Case(frozen=True),
    "bf16": Case(kind=torch.bfloat16),
}


def network(case: Case) -> IResNet:
    torch.manual_seed(0)
    config = Backbone("iresnet18", embedding_size=8, width=case.width, embedding_bn="none")
    result = IResNet(case.blocks, config)
    result.fc = nn.Linear(result.fc.in_features // 49 * 4, 8)  # of images of 32×32
    for part in result.modules():
        if isinstance(part, nn.PReLU):
            nn.init.uniform_(part.weight, -0.2, 0.6)
        elif isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, -1.5, 1.5)
            nn.init.uniform_(part.bias, -0.5, 0.5)
            nn.init.uniform_(part.running_mean, -1, 1)
        elif isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight).requires_grad_(not case.frozen)
            part.bias = nn.Parameter(torch.full((part.out_channels,), case.shift))
    return result.train()


def passed(backbone: IResNet, images: Tensor, kind: torch.dtype | None) -> dict[str, Tensor]:
    """Embeddings, gradients and running statistics of a pass in training, in float64."""
    x = images.clone().requires_grad_()
    with torch.autocast(x.device.type, kind, enabled=kind is not None):
        embeddings = backbone(x)
    target = torch.linspace(-1, 1, embeddings.numel(), device=x.device).view_as(embeddings)
    (embeddings * target).sum().backward()
    found = {f"gradient of {n}": p.grad for n, p in backbone.named_parameters() if p.requires_grad}
    found |= {"embeddings": embeddings, "gradient of images": x.grad}
    return {n: t.detach().double() for n, t in (found | dict(backbone.named_buffers())).items()}


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_as_exact_as_torch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    monkeypatch.setattr(triton_batch_norm, "_PROGRAMS", case.programs)
    images = torch.randn(case.images, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    images = images.to(device, memory_format=torch.channels_last)
    plain = network(case).to(device=device, memory_format=torch.channels_last)
    exact = passed(copy.deepcopy(plain).double(), images.double(), None)
    own = copy.deepcopy(plain)
    own.kernels = "triton"
    found, torchs = (passed(each, images, case.kind) for each in (own, plain))
    assert found.keys() == torchs.keys() == exact.keys()
    # A gradient that is small beside others may be of what a batch norm takes off again: rounding.
    sizes = [tensor.norm() for name, tensor in exact.items() if "gradient" in name]
    least = torch.stack(sizes).median() / 10
    # The interpreter cuts numbers off to bfloat16, where a GPU rounds them.
    floor = 1e-2 if case.kind else 1e-5
    for name, tensor in exact.items():
        size = max(tensor.norm(), least) if "gradient" in name else tensor.norm()
        error, usual = ((each[name] - tensor).norm() / size for each in (found, torchs))
        assert error < 4 * usual + floor, name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_training_by_kernels_does_not_wait(
    device: torch.device, on_gpu: None, precision: Any
) -> None:
    backbone = Backbone("iresnet18", embedding_size=32, width=0.125, kernels="triton")
    recipe = small_recipe(backbone=backbone, precision=precision, deterministic=False, epochs=10)
    learner = trainer_on(device, recipe).learner
    assert learner.kernels == "triton" and not learner.compiled
    batch = a_batch(device)
    losses = [learner.train_step(batch)["loss"] for _ in range(4)]
    with no_host_waits(device):
        losses += [learner.train_step(batch)["loss"] for _ in range(8)]
    values = torch.stack(losses).tolist()
    assert np.isfinite(values).all() and values[-1] < values[0]


@pytest.mark.parametrize("compile_it", [False, "auto"])
def test_the_faster_form_is_chosen(device: torch.device, on_gpu: None, compile_it: Any) -> None:
    recipe = small_recipe(deterministic=False, compile=compile_it, precision="bf16")
    learner = trainer_on(device, recipe).learner
    assert learner.compiled == (compile_it == "auto" and learner.kernels == "torch")
