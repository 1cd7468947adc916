"""Names of the IR networks of face.evoLVe, TFace, AdaFace and CVLface, which are iResNets.

Their blocks are iResNet's in another spelling but for two things, which an iResNet computes too:
where channels stay as they are the shortcut takes every second pixel, as a convolution of ones and
a batch norm that changes nothing do; and face.evoLVe has no batch norm before the PReLU of a block.
Definitions: ``model_irse.py`` of face.evoLVe and TFace, ``net.py`` of AdaFace.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from facerec.base.errors import ModelError

_MARK = "body.0.res_layer.0.weight"
_ENDS = {
    "input_layer.0": "conv1",
    "input_layer.1": "bn1",
    "input_layer.2": "prelu",
    "output_layer.0": "bn2",
    "output_layer.3": "fc",
    "output_layer.4": "features",
}
_BLOCK = ("bn1", "conv1", "bn2", "prelu", "conv2", "bn3")
"""iResNet's layers of a block, and theirs in their order; face.evoLVe's lacks the third."""


def iresnet_names(
    where: object, tensors: Mapping[str, Tensor], names: Collection[str]
) -> dict[str, Tensor]:
    """Return tensors, for an iResNet with those of IR networks under its names.

    Args:
        where: the file, for messages.
        tensors: of `read_state_dict`, under any prefix.
        names: of the network's own tensors.

    Raises:
        ModelError: an IR network of another depth, or one that no iResNet computes.
    """
    found = dict(tensors)
    if "layer1.0.prelu.weight" not in names:
        return found
    for prefix in [name.removesuffix(_MARK) for name in tensors if name.endswith(_MARK)]:
        parts = tuple(prefix + part for part in ("input_layer.", "body.", "output_layer."))
        theirs = {n.removeprefix(prefix): found.pop(n) for n in tensors if n.startswith(parts)}
        modules = _modules({name.rpartition(".")[0] for name in theirs})
        odd = sorted(name for name in theirs if name.rpartition(".")[0] not in modules)
        with_odd = f" with {odd[0]!r}" if odd else ""
        blocks, own = (
            {m.rpartition(".")[0] for m in each if m.endswith(".prelu")}
            for each in (modules.values(), (name.rpartition(".")[0] for name in names))
        )
        if odd or blocks != own:
            raise ModelError(
                f"{where}: an IR network of {len(blocks)} blocks{with_odd}, the backbone has "
                f"{len(own)} blocks; give the iresnet of as many (r18 has 8, r34 16, r50 24, r100 "
                "49), or, where it has squeeze-and-excitation or blocks of three convolutions, "
                "export it to ONNX with your project's own code for the other commands"
            )
        ours = {
            f"{modules[module]}.{leaf}": tensor
            for name, tensor in theirs.items()
            for module, _, leaf in [name.rpartition(".")]
        }
        stem = theirs[_MARK]
        added = _unchanging("layer1.0.downsample.1", stem)
        added["layer1.0.downsample.0.weight"] = torch.eye(len(stem))[..., None, None]
        for name, tensor in ours.items():
            if name.endswith(".prelu.weight") and "body.0.res_layer.5" not in modules:
                added |= _unchanging(f"{name.removesuffix('.prelu.weight')}.bn2", tensor)
            elif name == "features.running_mean":  # theirs may have neither γ nor β
                added |= _unchanging("features", tensor)
        found |= {prefix + name: tensor for name, tensor in (added | ours).items()}
    return found


def _modules(theirs: Collection[str]) -> dict[str, str]:
    """Return iResNet's name of each layer of theirs; a stage begins where the shortcut has one."""
    names = dict(_ENDS)
    order = [layer for layer in _BLOCK if layer != "bn2" or "body.0.res_layer.5" in theirs]
    stage, place = 1, -1
    for number in range(
        sum(re.fullmatch(r"body\.\d+\.res_layer\.0", name) is not None for name in theirs)
    ):
        body = f"body.{number}"
        begins = f"{body}.shortcut_layer.0" in theirs
        stage, place = (stage + 1, 0) if begins else (stage, place + 1)
        own = f"layer{stage}.{place}"
        names |= {f"{body}.res_layer.{i}": f"{own}.{layer}" for i, layer in enumerate(order)}
        names |= {f"{body}.shortcut_layer.{i}": f"{own}.downsample.{i}" for i in range(2 * begins)}
    return names


def _unchanging(name: str, like: Tensor) -> dict[str, Tensor]:
    """Return the tensors of a batch norm in evaluation that returns what it gets."""
    norm = nn.BatchNorm1d(len(like))
    assert norm.running_var is not None
    norm.running_var -= norm.eps
    return {f"{name}.{leaf}": tensor.detach() for leaf, tensor in norm.state_dict().items()}
