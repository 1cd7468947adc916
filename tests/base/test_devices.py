"""Devices: what is fixed before anything is computed, and while a model embeds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from facerec.base.devices import exact_products, set_numerics, true_float32


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


def allowed() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.fixture
def careless() -> Iterator[None]:
    """A caller that lets products and convolutions be rounded."""
    before = allowed()
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize("block", [true_float32, exact_products])
def test_nothing_is_rounded_inside(block: object) -> None:
    with pytest.raises(ZeroDivisionError), block():  # type: ignore[operator]
        assert allowed() == ("highest", False)
        1 / 0  # noqa: B018
    assert allowed() == ("medium", True)
