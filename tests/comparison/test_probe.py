"""The measured step against the closed forms of free embeddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from facerec.comparison.probe import probe_step


class _Free(nn.Module):
    """Embeddings that are parameters themselves."""

    def __init__(self, embeddings: torch.Tensor) -> None:
        super().__init__()
        self.f = nn.Parameter(embeddings)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return 1.0 * self.f


def probed(optimizer: Any, rate: float, power: float = 0.0) -> Any:
    """Let one direction at several norms turn towards another, under a loss of angles alone."""
    torch.manual_seed(0)
    direction, target = nn.functional.normalize(torch.randn(2, 64, dtype=torch.float64))
    norms = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    trunk = _Free(norms[:, None] * direction)
    steps = optimizer(trunk.parameters(), lr=rate)
    embeddings = trunk(torch.zeros(4))
    cosine = nn.functional.normalize(embeddings) @ target
    loss = (1 - cosine).sum() + power * embeddings.norm(dim=1).sum()

    def update() -> None:
        loss.backward()
        steps.step()

    found = probe_step(3, trunk, torch.zeros(4), embeddings, loss, update)
    return found, trunk


def test_slopes_of_free_embeddings() -> None:
    """Δθ goes with 1/n² under SGD and with 1/n at Adam's first step."""
    sgd, _ = probed(torch.optim.SGD, 1e-5)
    assert sgd.slope == pytest.approx(-2, abs=1e-6)
    adam, _ = probed(torch.optim.Adam, 1e-6)
    assert adam.slope == pytest.approx(-1, abs=1e-3)


def test_a_loss_of_directions_has_no_radial_gradient() -> None:
    found, _ = probed(torch.optim.SGD, 1e-5)
    assert found.radial < 1e-12
    # ‖g‖·n is the sine of the angle for each of the four.
    assert found.gradient_cv == pytest.approx(
        torch.tensor([1, 1 / 2, 1 / 4, 1 / 8]).std(correction=0).item() / (15 / 32), rel=1e-6
    )
    with_radial, _ = probed(torch.optim.SGD, 1e-5, power=1.0)
    assert with_radial.radial > 0.5
    # The loss pulls every norm down by the rate.
    assert with_radial.norm_growth == pytest.approx(-1e-5 * 4 / 15, rel=1e-3)
