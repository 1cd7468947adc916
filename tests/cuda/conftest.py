"""What tests on a GPU share.

They need PyTorch, NumPy, SciPy and pytest, and no file outside this folder:

    python -m pytest --confcutdir=tests/cuda tests/cuda

FACEREC_CUDA_TESTS_ON=cpu runs the same bodies on the CPU, which finds mistakes in the tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from facerec.base.devices import set_numerics


@pytest.fixture(scope="session")
def device() -> Iterator[torch.device]:
    """The GPU, with float32 that is float32."""
    name = os.environ.get("FACEREC_CUDA_TESTS_ON", "cuda")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here (FACEREC_CUDA_TESTS_ON=cpu rehearses on the CPU)")
    device = torch.device(name, 0) if name == "cuda" else torch.device(name)
    set_numerics(device)
    yield device


@pytest.fixture
def compiler(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, graphs whose operations run as they are: compiling them takes too long there."""
    if device.type == "cpu":
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.fixture
def on_gpu(device: torch.device) -> None:
    """For tests that mean nothing elsewhere."""
    if device.type != "cuda":
        pytest.skip("means nothing without CUDA")
