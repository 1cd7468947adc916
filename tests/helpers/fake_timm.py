"""A module in timm's place, since timm may not import beside a CPU build of torch."""

from __future__ import annotations

import types

import torch
from torch import nn


class ToyResNet(nn.Module):
    """What timm gives for ``num_classes=0``: pooled features."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.pretrained_cfg = {"classifier": "fc"}
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2)
        self.bn1 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, num_classes) if num_classes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.bn1(self.conv1(x)).mean((2, 3)))


class Of32(ToyResNet):
    """Takes images of one size, and cannot be built for another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[2] == 32, "Input height doesn't match model"
        return super().forward(x)


class ToyTransformer(nn.Module):
    """Is built for one size, and computes positions that are part of no state dict."""

    def __init__(self, img_size: int = 224, drop_path_rate: float = 0.0) -> None:
        super().__init__()
        self.drop_path_rate = drop_path_rate
        self.patch = nn.Conv2d(3, 8, 16, 16)
        tokens = (img_size // 16) ** 2
        self.register_buffer("positions", torch.linspace(-1, 1, tokens), persistent=False)
        self.scale = nn.Parameter(torch.ones(tokens))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patch(x).flatten(2)
        assert tokens.shape[2] == len(self.positions), "Input height doesn't match model"
        return (tokens * self.scale + self.positions).square().mean(2)


def fake_timm() -> types.ModuleType:
    """Return a module with timm's functions that the adapter uses, and four networks."""
    module = types.ModuleType("timm")

    def get_pretrained_cfg(name: str) -> types.SimpleNamespace | None:
        if name == "toy_map":
            return None
        return types.SimpleNamespace(fixed_input_size=name == "toy_vit")

    def create_model(name: str, pretrained: bool, num_classes: int, **options: float) -> nn.Module:
        assert not pretrained
        makers = {
            "toy_resnet": lambda: ToyResNet(num_classes, **options),
            "toy_of_32": lambda: Of32(num_classes, **options),
            "toy_vit": lambda: ToyTransformer(**options),  # type: ignore[arg-type]
            "toy_map": lambda: nn.Conv2d(3, 8, 3),
        }
        if name not in makers:
            raise RuntimeError(f"Unknown model ({name})")
        return makers[name]()

    module.create_model = create_model  # type: ignore[attr-defined]
    module.get_pretrained_cfg = get_pretrained_cfg  # type: ignore[attr-defined]
    return module
