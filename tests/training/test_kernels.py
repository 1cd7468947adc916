"""Who computes iResNet's batch norms: kernels of Triton, where they can and are faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.triton_compiler import run_script
from torch import nn

from facerec.backbones import Backbone, create_backbone
from facerec.errors import FacerecError
from facerec.training import Finetune, Recipe, kernels

CUDA = torch.device("cuda")


@pytest.mark.integration
@pytest.mark.parametrize("capability", ["90", "80"])
def test_kernels_compile_and_spill_nothing(tmp_path: Path, capability: str) -> None:
    script = Path(__file__).with_name("batch_norms_compiled.py")
    kernels = run_script(script, capability, TRITON_CACHE_DIR=str(tmp_path))
    gradients = {"parameter_sums", "merge_sums", "propagate"}
    assert {n for n, _ in kernels} == {"moments", "merge_moments", "activate"} | gradients
    for name, used in kernels:
        assert used["spilled"] == 0, name
        # Two programs or more share a multiprocessor.
        assert used["registers"] * used["warps"] * 32 <= 65_536 / 2, name


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("mbf", CUDA, "MobileFaceNet"),
        ("iresnet18", torch.device("cpu"), "cpu"),
        ("iresnet18", CUDA, "capability"),
        ("iresnet18", torch.device("cuda", 1), None),
    ],
)
def test_what_stands_in_the_way(
    monkeypatch: pytest.MonkeyPatch, name: str, device: torch.device, reason: str | None
) -> None:
    older = {CUDA: (7, 5)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda d: older.get(d, (9, 0)))
    with torch.device("meta"):
        backbone = create_backbone(name)
    found = kernels.kernels_obstacle(backbone, device)
    assert found is None if reason is None else reason in str(found)
    if reason is not None:
        chosen = kernels.choose_kernels("auto", backbone, device, 4, None, compiled=True)
        assert chosen == "torch"
        with pytest.raises(FacerecError, match=reason):
            kernels.choose_kernels("triton", backbone, device, 4, None, compiled=True)


@pytest.mark.parametrize("faster", ["torch", "triton"])
def test_the_faster_form_is_chosen(monkeypatch: pytest.MonkeyPatch, faster: str) -> None:
    def milliseconds(form: str, channels: int, *_: Any) -> float:
        assert channels == 32
        return 1.0 if form == faster else 2.0

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kernels, "block_milliseconds", milliseconds)
    backbone: nn.Module = create_backbone("iresnet18", width=0.125)
    assert kernels.choose_kernels("auto", backbone, CUDA, 4, torch.bfloat16, True) == faster


@pytest.mark.parametrize(
    "field", [{"compile": True}, {"recompute": True}, {"finetune": Finetune(batch_norm="frozen")}]
)
def test_kernels_alone(field: dict[str, Any]) -> None:
    assert Recipe(**field).excludes_kernels
    with pytest.raises(FacerecError, match=r"backbone\.kernels"):
        Recipe(backbone=Backbone(kernels="triton"), **field)
