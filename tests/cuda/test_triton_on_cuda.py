"""Triton's kernels of the margin softmax on the GPU against the torch form on the CPU in float64.

TRITON_INTERPRET=1 FACEREC_CUDA_TESTS_ON=cpu rehearses them.
"""

from __future__ import annotations

import pytest
import torch

from facerec.heads import ArcFace, Margin, MarginClassifier
from facerec.heads.kernel_choice import milliseconds
from facerec.heads.tiles import TileSettings
from tests.cuda.small import MARGINS, NEED_TRITON, computed, largest_error, no_host_waits

pytestmark = NEED_TRITON

pytest.importorskip("triton", reason="triton is not installed (extra gpu)")


@pytest.mark.parametrize(
    "margin", [m for m in MARGINS if not m.changes_others], ids=lambda margin: type(margin).__name__
)
def test_a_margin_in_float32(device: torch.device, margin: Margin) -> None:
    """Three products of TF32 are nearly one of float32."""
    expected = computed(torch.device("cpu"), torch.float64, margin)
    settings = TileSettings(kernel="triton")
    found = computed(device, torch.float32, margin, settings=settings)
    assert largest_error(found, expected) < 2e-4


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("sizes", [(1, 1, 5), (7, 130, 96), (300, 20_011, 512)])
@pytest.mark.parametrize("reduced", [False, True])
def test_sizes_and_operands(
    device: torch.device, sizes: tuple[int, int, int], reduced: bool
) -> None:
    expected = computed(torch.device("cpu"), torch.float64, ArcFace(), sizes)
    settings = TileSettings(reduced=reduced, kernel="triton")
    found = computed(device, torch.float32, ArcFace(), sizes, settings=settings)
    # Logits up to 64 are rounded to 8 bits, and slopes follow their exponentials.
    assert largest_error(found, expected) < (0.15 if reduced else 2e-4)


@pytest.mark.usefixtures("on_gpu")
def test_the_same_bits_twice(device: torch.device) -> None:
    sizes, options = (300, 20_011, 512), {"settings": TileSettings(reduced=True, kernel="triton")}
    first, second = (computed(device, torch.float32, ArcFace(), sizes, **options) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.usefixtures("on_gpu")
def test_a_step_waits_for_nothing_and_both_forms_can_be_timed(device: torch.device) -> None:
    head = MarginClassifier(5000, 64, ArcFace(), seed=0, precision="bf16").to(device)
    head.choose_kernel("triton", 96)
    embeddings = torch.randn(96, 64, device=device, requires_grad=True)
    labels = torch.arange(96, device=device)
    head(embeddings, labels).loss.backward()  # compiles
    with no_host_waits(device):
        head(embeddings, labels).loss.backward()
    head.choose_kernel("auto", 96)
    assert head.kernel in ("torch", "triton")
    assert milliseconds("triton", 3, 96, 64, 5000, True, device) > 0
