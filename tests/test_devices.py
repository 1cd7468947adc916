"""Devices: what is fixed before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from facerec.devices import set_numerics


@pytest.fixture
def flags() -> Iterator[None]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic
    cudnn.allow_tf32 = matmul.allow_tf32 = True
    yield
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic = before


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize("deterministic", [False, True])
def test_float32_is_float32_on_cuda(deterministic: bool) -> None:
    set_numerics(torch.device("cpu"), deterministic)
    assert torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32
    set_numerics(torch.device("cuda"), deterministic)
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.benchmark is not deterministic
    assert torch.backends.cudnn.deterministic is deterministic
