"""Steps of training for a GPU, gone through without one: nothing in them waits for the device."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.pretend_cuda import in_another_process
from helpers.rehearsal import KERNELS, Seen, extracts, provoke, rehearsal_recipe, rehearse

from facerec.backbones import Backbone
from facerec.heads import (
    SEC,
    AdaFace,
    CosFace,
    FixedNorm,
    L2Norm,
    MagFace,
    RingLoss,
    SphereFace,
    SphereFace2017,
)
from facerec.training import Adam, AdamW, Distillation, Finetune, Head, RMSprop


def rehearsed(ranks: int = 1, steps: int = 3, **changes: Any) -> Seen:
    seen: Seen = in_another_process(rehearse, rehearsal_recipe(**changes), ranks, steps)
    return seen


def test_what_waits_is_found() -> None:
    ends = in_another_process(provoke)
    found = {name for name, end in ends.items() if end == "HostWaitError"}
    assert found == {name for name in ends if not name.startswith("fine")}
    assert {name for name, end in ends.items() if not end} == ends.keys() - found


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": AdamW(), "margin": CosFace()},
        {"optimizer": Adam(), "margin": SphereFace(), "regularizer": None},
        {"optimizer": RMSprop(), "margin": SphereFace2017()},
        {"clip_norm": None, "margin": AdaFace(), "regularizer": L2Norm(weight=0.1)},
        {"margin": MagFace(), "regularizer": FixedNorm(weight=0.1)},
        {
            "regularizer": RingLoss(weight=0.1),
            "head": Head(kernel="torch"),
        },
        {"regularizer": SEC(weight=0.1, rho=0.9, p=1, relative=True), "accumulation": 2},
        {"precision": "fp16"},
        {"precision": "fp16", "optimizer": AdamW(), "head": Head(kernel="torch", sample_rate=0.3)},
        {"head": Head(kernel="torch", precision="bf16")},
        {"head": Head(kernel="torch", sample_rate=0.3)},
        {"head": Head(kernel="torch", sample_rate=0.3), "optimizer": Adam(), "accumulation": 2},
        {"log_every": 1},
        {"ema": 0.99, "finetune": Finetune(freeze_steps=2, batch_norm="frozen")},
        pytest.param(
            {"recompute": True, "backbone": Backbone("mbf", embedding_size=32, width=0.25)},
            marks=pytest.mark.integration,
        ),
        pytest.param(
            {"backbone": Backbone("vit_t", embedding_size=32, drop_path=0.1, mask_ratio=0.1)},
            marks=pytest.mark.integration,
        ),
        {"distillation": Distillation(Path("teacher.onnx")), "ema": 0.9},
        {"distillation": Distillation(Path("teacher.onnx"), loss="relation"), "accumulation": 2},
        {"distillation": Distillation(Path("teacher.onnx"), loss="mse"), "margin": None},
    ],
    ids=str,
)
def test_no_step_waits(changes: dict[str, Any]) -> None:
    seen = rehearsed(**changes)
    assert seen.steps == 3
    assert set(seen.figures.values()) == {("cuda", "torch.float32")}


def test_types_and_orders_are_as_meant() -> None:
    backbone = Backbone("iresnet18", embedding_size=32, width=0.25)
    seen = rehearsed(head=Head(kernel="torch", precision="bf16"), backbone=backbone, steps=1)
    convolutions = {kind for kind in seen.products if kind[0].startswith("convolution")}
    assert {name for kind in convolutions for name in kind[1:]} == {"bfloat16"}
    assert seen.disordered == [] and seen.kernels_in_order
    # The last layer, forward and twice in backward, and nothing else takes float32.
    exact = Counter(kind[0] for kind in seen.products.elements() if set(kind[1:]) == {"float32"})
    assert exact == {"addmm": 1, "mm": 2}


@pytest.mark.parametrize("changes", [{}, {"optimizer": AdamW(), "accumulation": 2}], ids=str)
def test_kernels_are_launched_on_the_device_without_a_wait(changes: dict[str, Any]) -> None:
    pytest.importorskip("triton")
    seen = rehearsed(head=Head(kernel="triton", precision="bf16"), **changes)
    assert seen.launches == {name: {"cuda"} for name in KERNELS}


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_collectives_are_on_the_device_and_nobody_waits_for_them(rate: float) -> None:
    seen = rehearsed(
        ranks=4,
        head=Head(kernel="torch", sample_rate=rate),
        precision="fp16" if rate < 1 else "auto",
    )
    assert len(seen.collectives) >= 3
    assert {device for devices in seen.collectives.values() for device in devices} == {"cuda"}


def test_extraction_waits_for_a_batch_only_when_the_next_has_begun() -> None:
    shape, whole, products, idle = in_another_process(extracts)
    assert idle == 1  # at the end
    assert shape == (18, 32) and whole
    assert {kind[1:] for kind in products} == {("float32",) * 2, ("float32",) * 3}
