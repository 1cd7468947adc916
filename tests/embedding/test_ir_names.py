"""IR networks of others become iResNets that embed the same, proved with their own definitions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers.toy_files import faces
from torch import Tensor, nn

from facerec.backbones import Preprocessing
from facerec.base.errors import ModelError
from facerec.base.recipe import run_python
from facerec.commands.import_weights import main
from facerec.embedding import load_model
from facerec.embedding.ir_names import iresnet_names

CLONES = "FACEREC_CLONES"
"""Names a folder with clones of these repositories, under their own names."""

DEFINITIONS = {
    "AdaFace": "net.py",
    "CVLface": "cvlface/research/recognition/code/run_v1/models/iresnet/model.py",
    "TFace": "recognition/torchkit/backbone/model_irse.py",
    "face.evoLVe": "backbone/model_irse.py",
}


class Block(nn.Module):
    def __init__(self, i: int, o: int, stride: int, normed: bool) -> None:
        super().__init__()
        conv = nn.Conv2d(i, o, 1, stride, bias=False)
        same = i == o
        self.shortcut_layer = (
            nn.MaxPool2d(1, stride) if same else nn.Sequential(conv, nn.BatchNorm2d(o))
        )
        middle = [nn.BatchNorm2d(o)] if normed else []
        first, second = (nn.Conv2d(c, o, 3, s, 1, bias=False) for c, s in ((i, 1), (o, stride)))
        self.res_layer = nn.Sequential(
            nn.BatchNorm2d(i), first, *middle, nn.PReLU(o), second, nn.BatchNorm2d(o)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.res_layer(x) + self.shortcut_layer(x)


def small(normed: bool, affine: bool) -> nn.Module:
    """Return an IR network of 18 layers and a quarter of the width, from its description."""
    widths = [16, 16, 16, 32, 32, 64, 64, 128, 128]
    body = [Block(widths[n], widths[n + 1], 2 - n % 2, normed) for n in range(8)]
    network = nn.Sequential()
    network.input_layer = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.PReLU(16)
    )
    network.body = nn.Sequential(*body)
    network.output_layer = nn.Sequential(
        *(nn.BatchNorm2d(128), nn.Dropout(0.4), nn.Flatten()),
        *(nn.Linear(128 * 49, 16), nn.BatchNorm1d(16, affine=affine)),
    )
    return network


def public(name: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """Return the smallest IR network of a repository, by its own code."""
    file = Path(os.environ.get(CLONES, "/nowhere")) / name / DEFINITIONS[name]
    if not file.is_file():
        pytest.skip(f"{CLONES} names no folder with a clone of {name}")
    monkeypatch.setitem(sys.modules, "fvcore", ModuleType("fvcore"))  # counts FLOP alone
    counter = ModuleType("fvcore.nn")
    counter.flop_count = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fvcore.nn", counter)
    for package in ("torchkit", "torchkit.backbone"):  # without all its other networks
        module = ModuleType(package)
        module.__path__ = [str(file.parents[1 - package.count(".")])]
        monkeypatch.setitem(sys.modules, package, module)
    code = run_python(file)
    return code["IR_50" if name == "face.evoLVe" else "IR_18"]((112, 112))


def moved(network: nn.Module) -> nn.Module:
    """Return it with statistics, weights and slopes of their own."""
    torch.manual_seed(0)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.2 * torch.rand_like(parameter)
    with torch.no_grad():
        for _ in range(2):
            network.train()(torch.randn(4, 3, 112, 112))
    return network.eval()


def imported(path: Path, *options: str) -> Any:
    main([str(path), "--out", str(path.with_name("ours.safetensors")), *options])
    return load_model(path.with_name("ours.safetensors"))


def check_equal(ours: Any, theirs: nn.Module) -> None:
    pixels = torch.from_numpy(faces(3)).permute(0, 3, 1, 2)
    pixels = (pixels.flip(1) if ours.preprocessing.channels == "bgr" else pixels).contiguous()
    with torch.no_grad():
        wanted = theirs((pixels / 255.0 - 0.5) / 0.5)
    wanted = wanted[0] * wanted[1] if isinstance(wanted, tuple) else wanted
    found = torch.from_numpy(ours.embed(faces(3)))
    assert float(((found - wanted).norm(dim=1) / wanted.norm(dim=1)).max()) <= 1e-5


def lightning(own: dict[str, Tensor]) -> Any:
    head = {"head.kernel": torch.ones(16, 3), "head.batch_mean": torch.ones(1)}
    return {"state_dict": {f"model.{n}": t for n, t in own.items()} | head, "epoch": 3}


def prefixed(own: dict[str, Tensor]) -> Any:
    return {f"net.{name}": tensor for name, tensor in own.items()}


def plain(own: dict[str, Tensor]) -> Any:
    return own


@pytest.mark.parametrize(
    ("name", "bn", "saved"),
    [
        ("AdaFace", "frozen_gamma", lightning),
        ("CVLface", "frozen_gamma", prefixed),
        ("TFace", "frozen_gamma", plain),
        ("face.evoLVe", "affine", plain),
    ],
)
@pytest.mark.parametrize("definition", ["drawn", "public"])
def test_an_ir_network_becomes_an_iresnet_that_embeds_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    bn: str,
    saved: Callable[[dict[str, Tensor]], Any],
    definition: str,
) -> None:
    evolve = name == "face.evoLVe"
    theirs = moved(
        small(not evolve, evolve) if definition == "drawn" else public(name, monkeypatch)
    )
    path = tmp_path / "theirs.ckpt"
    torch.save(saved(dict(theirs.state_dict())), path)
    depth = "iresnet50" if evolve and definition == "public" else "iresnet18"
    size = ["--width", "0.25", "--embedding-size", "16"] if definition == "drawn" else []
    ours = imported(path, "--backbone", depth, "--embedding-bn", bn, *size)
    assert ours.preprocessing == Preprocessing("bgr" if name == "AdaFace" else "rgb")
    check_equal(ours, theirs)


def test_what_no_iresnet_computes_says_how_it_can_be_used() -> None:
    state, own = small(True, False).state_dict(), {"layer1.0.prelu.weight", "conv1.weight"}
    odd = state | {"body.0.res_layer.5.fc1.weight": torch.ones(1)}
    for tensors, found in ((odd, r"'body\.0\.res_layer\.5\.fc1\.weight'"), (state, "of 8 blocks")):
        with pytest.raises(ModelError, match=rf"w\.pth: .*{found}.*export it to ONNX"):
            iresnet_names("w.pth", tensors, own)
