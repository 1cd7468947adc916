"""iResNet has InsightFace's names, shapes and initial weights."""

from __future__ import annotations

import pytest
import torch

from facerec.backbones import create_backbone

DEPTHS = {
    "iresnet18": ((2, 2, 2, 2), 187, 24_025_600),
    "iresnet34": ((3, 4, 6, 3), 331, 34_139_328),
    "iresnet50": ((3, 4, 14, 3), 475, 43_590_848),
    "iresnet100": ((3, 13, 30, 3), 925, 65_156_160),
    "iresnet200": ((6, 26, 60, 6), 1807, 118_833_920),
}


@pytest.mark.parametrize("name", DEPTHS)
def test_sizes_are_those_of_insightface(name: str) -> None:
    """Its names are those that the formula takes."""
    blocks, entries, parameters = DEPTHS[name]
    with torch.device("meta"):
        backbone = create_backbone(name)
    state = backbone.state_dict()
    assert len(state) == entries == 43 + 18 * sum(blocks)
    assert sum(p.numel() for p in backbone.parameters()) == parameters
    for stage, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), start=1):
        assert f"layer{stage}.{count}.bn1.weight" not in state
        assert state[f"layer{stage}.{count - 1}.conv1.weight"].shape[0] == width
    counters = {n for n, t in state.items() if t.dtype == torch.int64}
    assert counters == {n for n in state if n.endswith("num_batches_tracked")}


def test_forward_against_the_formula() -> None:
    """The whole network spelled out with functional calls, weights taken by name."""
    backbone = create_backbone("iresnet18", width=0.125, embedding_size=8, seed=5).double().eval()
    generator = torch.Generator().manual_seed(1)
    state = backbone.state_dict()
    for name, tensor in state.items():
        if name.endswith(("running_mean", "bias")):
            tensor.normal_(std=0.1, generator=generator)
        elif name.endswith("running_var"):
            tensor.uniform_(0.5, 2, generator=generator)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        w, b, m, v = (
            state[f"{name}.{k}"].view(-1, *[1] * (x.ndim - 2))
            for k in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - m) / (v + 1e-5).sqrt() * w + b

    def conv(x: torch.Tensor, name: str, stride: int = 1) -> torch.Tensor:
        weight = state[f"{name}.weight"]
        return torch.nn.functional.conv2d(x, weight, None, stride, weight.shape[2] // 2)

    def prelu(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.where(x > 0, x, state[f"{name}.weight"].view(-1, 1, 1) * x)

    x = torch.randn(2, 3, 112, 112, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        y = prelu(norm(conv(x, "conv1"), "bn1"), "prelu")
        for block in (f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)):
            stride = 2 if block.endswith("0") else 1
            identity = y
            if stride == 2:
                identity = norm(conv(y, f"{block}.downsample.0", 2), f"{block}.downsample.1")
            y = prelu(
                norm(conv(norm(y, f"{block}.bn1"), f"{block}.conv1"), f"{block}.bn2"),
                f"{block}.prelu",
            )
            y = norm(conv(y, f"{block}.conv2", stride), f"{block}.bn3") + identity
        y = norm(y, "bn2").flatten(1) @ state["fc.weight"].T + state["fc.bias"]
        expected = norm(y, "features")
        torch.testing.assert_close(backbone(x), expected, rtol=1e-10, atol=1e-10)
