"""MobileFaceNet has InsightFace's names, shapes and initial weights."""

from __future__ import annotations

import pytest
import torch

from facerec.backbones import create_backbone

Shapes = dict[str, tuple[int, ...]]


def insightface_names(blocks: tuple[int, int, int, int], scale: int) -> Shapes:
    """The state dict of ``arcface_torch``'s MobileFaceNet, written down layer by layer."""
    shapes: Shapes = {}

    def batch_norm(name: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)
        shapes[f"{name}.num_batches_tracked"] = ()

    def conv(name: str, into: int, per_group: int, kernel: int, activation: bool = True) -> None:
        shapes[f"{name}.layers.0.weight"] = (into, per_group, kernel, kernel)
        batch_norm(f"{name}.layers.1", into)
        if activation:
            shapes[f"{name}.layers.2.weight"] = (into,)

    def unit(name: str, channels: int, into: int, hidden: int) -> None:
        conv(f"{name}.layers.0", hidden, channels, 1)
        conv(f"{name}.layers.1", hidden, 1, 3)
        conv(f"{name}.layers.2", into, hidden, 1, activation=False)

    def group(name: str, channels: int, hidden: int, count: int) -> None:
        for j in range(count):
            unit(f"{name}.layers.{j}", channels, channels, hidden)

    s = 64 * scale
    conv("layers.0", s, 3, 3)
    if blocks[0] == 1:
        conv("layers.1", s, s // 64, 3)
    else:
        group("layers.1", s, 128, blocks[0])
    unit("layers.2", s, s, 128)
    group("layers.3", s, 128, blocks[1])
    unit("layers.4", s, 2 * s, 256)
    group("layers.5", 2 * s, 256, blocks[2])
    unit("layers.6", 2 * s, 2 * s, 512)
    group("layers.7", 2 * s, 256, blocks[3])
    conv("conv_sep", 512, 2 * s, 1)
    conv("features.layers.0", 512, 1, 7, activation=False)
    shapes["features.layers.2.weight"] = (512, 512)
    batch_norm("features.layers.3", 512)
    return shapes


@pytest.mark.parametrize(
    ("name", "blocks", "scale", "entries", "parameters"),
    [("mbf", (1, 4, 6, 2), 2, 333, 2_059_520), ("mbf_large", (2, 8, 12, 4), 4, 606, 6_314_880)],
)
def test_names_and_shapes_are_those_of_insightface(
    name: str, blocks: tuple[int, int, int, int], scale: int, entries: int, parameters: int
) -> None:
    with torch.device("meta"):
        backbone = create_backbone(name, embedding_bn="affine")
    state = backbone.state_dict()
    expected = insightface_names(blocks, scale)
    assert {n: tuple(t.shape) for n, t in state.items()} == expected
    assert list(state) == list(expected)
    assert len(state) == entries
    assert sum(p.numel() for p in backbone.parameters()) == parameters
    assert all(p.requires_grad for p in backbone.parameters())


def test_the_form_in_insightfaces_packs_ends_without_pooling() -> None:
    """As the layers of its file, w600k_mbf.onnx, with the batch norms that its exporter folded."""
    with torch.device("meta"):
        backbone = create_backbone("w600k_mbf", embedding_bn="affine")
        mbf = create_backbone("mbf", embedding_bn="affine")
    shapes = {n: tuple(t.shape) for n, t in backbone.state_dict().items()}
    trunk = {n: tuple(t.shape) for n, t in mbf.state_dict().items() if "features" not in n}
    assert {n: shape for n, shape in shapes.items() if "features" not in n} == trunk
    assert shapes["features.layers.0.layers.0.weight"] == (64, 512, 1, 1)
    assert shapes["features.layers.0.layers.2.weight"] == (64,)
    assert shapes["features.layers.2.weight"] == (512, 64 * 7 * 7)
    assert sum(p.numel() for p in backbone.parameters()) == 3_409_856
