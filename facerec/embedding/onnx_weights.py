"""Weights out of an ``.onnx`` file, for a backbone that is to be trained further.

Exporters fold batch norms into convolutions and give tensors names of their own, so neither names
nor modules can be compared. What stays is the order in which layers of one shape are computed,
which is that of the backbone's modules: layers are matched by kind and shape in that order, and the
match is then proved, for the backbone must give the same embeddings as the file. A folded batch
norm comes back as the identity with a bias: right as long as its statistics are frozen
(``finetune.batch_norm="frozen"``).
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from facerec.base.errors import ModelError
from facerec.base.files import reading
from facerec.embedding.engines import open_engine
from facerec.embedding.onnx_file import OnnxFile, constants_of
from facerec.embedding.onnx_preprocessing import leading_scaling

TOLERANCE = 1e-3
"""Largest difference of embeddings from the file's, as a share of their length. Layers that change
places change them by about their length, rounding by 1e-6 to 1e-5."""

_ON_CONSTANTS = ("Identity", "Unsqueeze", "Reshape", "Transpose")
"""Operators between a stored tensor and its layer, where the exporter did not carry them out; what
they do to the shape is undone by the backbone's own, but for the transposition of a matrix."""

_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d
_KINDS = {
    **dict.fromkeys(("Conv", "Gemm", "MatMul", nn.Conv2d, nn.Linear), "product"),
    **dict.fromkeys(("PRelu", nn.PReLU), "PReLU"),
    **dict.fromkeys(("BatchNormalization", nn.BatchNorm1d, nn.BatchNorm2d), "norm"),
}
"""Kinds of layers with weights, of ONNX's operators and of modules."""


@dataclass
class _Layer:
    """A layer with weights, as the file computes it."""

    kind: str
    """``product``, a convolution or a matrix; ``PReLU``; or ``norm``."""
    weight: Tensor
    bias: Tensor | None = None
    norm: list[Tensor] | None = None
    """γ, β, mean and variance, with its ε, of a batch norm: itself, or one behind it that is not
    folded."""


def _key(kind: str, weight: Tensor) -> tuple[str, tuple[int, ...]]:
    """Return one key of a linear layer and the 1×1 convolution that some write in its place."""
    shape = tuple(weight.shape)
    plain = kind == "product" and set(shape[2:]) <= {1}
    return kind, shape[:2] if plain else shape if kind == "product" else (weight.numel(),)


def load_onnx_weights(backbone: nn.Module, file: OnnxFile) -> None:
    """Load the weights of an ``.onnx`` file of the same architecture into a backbone.

    Takes networks of convolutions, batch norms, PReLUs and linear layers (iResNet, MobileFaceNet
    and their like), whichever exporter wrote them.

    Args:
        backbone: from `create_backbone`; its weights are replaced, and it is in evaluation mode
            afterwards.
        file: of `read_onnx`.

    Raises:
        ModelError: other layers than the backbone has, or the same layers joined in another way, so
            that the embeddings differ.
        MissingExtraError: onnx or onnxruntime is not installed.
    """
    waiting: dict[tuple[str, tuple[int, ...]], deque[_Layer]] = defaultdict(deque)
    backbone.eval()
    advice = "give the architecture, width and embedding size that it was exported from"
    # A node may break the rules of ONNX, or its tensors not belong together.
    with reading(file.where, ModelError, advice, Exception, "taken in"):
        for layer in _layers(file):
            waiting[_key(layer.kind, layer.weight)].append(layer)
        with torch.no_grad():
            for module, norm in _modules(backbone):
                # A batch norm that is not there is folded into the layer behind it; any other layer
                # that is not there, or too many, gives other embeddings.
                missing = _Layer(_KINDS[type(module)], module.get_parameter("weight"))
                there = waiting[_key(missing.kind, missing.weight)]
                _fill(module, norm, there.popleft() if there else missing)
        difference = _difference(backbone, file)
        if not difference <= TOLERANCE:
            raise ValueError(
                f"with its weights this backbone gives other embeddings, {difference:.2g} of their "
                "length apart"
            )


def _difference(backbone: nn.Module, file: OnnxFile) -> float:
    """Return how far the embeddings of noise are from the file's, as a share of their length."""
    engine = open_engine(file)
    images = torch.randn(4, 3, 112, 112, generator=torch.Generator().manual_seed(0)) / 2
    pixels = images
    scaling = leading_scaling(file)
    if scaling is not None:  # the graph makes of pixels what the backbone is given
        mean, std = (torch.tensor(n).view(-1, 1, 1) for n in (scaling.mean, scaling.std))
        pixels = images * std + mean
    if engine.input.layout == "NHWC":
        pixels = pixels.permute(0, 2, 3, 1)
    batches = pixels.split(engine.input.batch or len(pixels))
    theirs = torch.cat([torch.from_numpy(engine.run(b.contiguous().numpy())) for b in batches])
    with torch.no_grad():
        ours = backbone(images)
    return float(((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max())


# ---------------------------------------------------------------- the file's layers


def _layers(file: OnnxFile) -> list[_Layer]:
    """Return the file's layers in its order, which is the one they are computed in."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model_from_string(file.content).graph
    stored = constants_of(graph).items()
    constants = {name: numpy_helper.to_array(tensor) for name, tensor in stored}
    made_by: dict[str, _Layer] = {}
    layers: list[_Layer] = []
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type in _ON_CONSTANTS and node.input[0] in constants:
            constant = constants[node.input[0]]
            constants[node.output[0]] = constant.T if node.op_type == "Transpose" else constant
            continue
        numbers = [
            torch.from_numpy(constants[name].astype(np.float32))
            for name in node.input
            if name in constants
        ]
        before = next((made_by[name] for name in node.input if name in made_by), None)
        layer = _layer(node.op_type, numbers, attributes)
        if layer is not None and layer.kind == "norm" and before is not None and not before.norm:
            before.norm, layer = layer.norm, before
        elif layer is not None:
            layers.append(layer)
        elif node.op_type == "Add" and before is not None and before.bias is before.norm is None:
            (before.bias,), layer = [number.flatten() for number in numbers], before
        if layer is not None and layer.kind == "product":
            made_by[node.output[0]] = layer
    return layers


def _layer(operator: str, numbers: list[Tensor], attributes: dict[str, Any]) -> _Layer | None:
    """Return a layer of a node's constants, None for an operator without weights."""
    if not numbers or operator not in _KINDS:
        return None
    weight, *more = numbers
    if operator == "BatchNormalization":
        *norm, variance = numbers[:4]
        return _Layer("norm", weight, norm=[*norm, variance + attributes.get("epsilon", 1e-5)])
    if operator in ("Gemm", "MatMul") and not attributes.get("transB", 0):
        weight = weight.T
    return _Layer(_KINDS[operator], weight, more[0].flatten() if more else None)


# ---------------------------------------------------------------- the backbone's layers


def _modules(backbone: nn.Module) -> list[tuple[nn.Module, _BatchNorm | None]]:
    """Return the layers in their order, each with the batch norm that follows a product."""
    order = [module for module in backbone.modules() if type(module) in _KINDS]
    follows = {
        module: after
        for module, after in itertools.pairwise(order)
        if _KINDS[type(module)] == "product" and isinstance(after, _BatchNorm)
    }
    return [(module, follows.get(module)) for module in order if module not in follows.values()]


def _fill(module: nn.Module, norm: _BatchNorm | None, layer: _Layer) -> None:
    """Give a module, and the batch norm behind it, a layer's numbers."""
    if isinstance(module, _BatchNorm):
        norm = module
    else:
        weight = module.get_parameter("weight")
        weight.copy_(layer.weight.reshape(weight.shape))
    shift = torch.zeros(()) if layer.bias is None else layer.bias
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        module.bias.copy_(shift)
        shift = torch.zeros(())
    if norm is None:
        return  # a bias that finds no place changes the embeddings, which are compared
    one = torch.ones(())
    gamma, beta, mean, variance = layer.norm or (one, shift, shift, one)
    assert norm.running_mean is not None and norm.running_var is not None
    norm.weight.copy_(gamma)
    norm.bias.copy_(beta)
    norm.running_mean.copy_(mean - shift)
    norm.running_var.copy_(variance - norm.eps)
