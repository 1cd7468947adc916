"""Weights come back out of .onnx files, whether batch norms were folded or not."""

from __future__ import annotations

import functools
import io

import pytest
import torch
from torch import nn

from facerec.backbones import Preprocessing, create_backbone
from facerec.base.errors import ModelError
from facerec.embedding.onnx_file import OnnxFile, parse_onnx
from facerec.embedding.onnx_weights import load_onnx_weights
from facerec.export.graph import export_graph, quiet

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SMALL = {"width": 0.25, "embedding_size": 16}


def trained(name: str, **options: object) -> nn.Module:
    """A backbone whose every number is its own, as after training."""
    backbone = create_backbone(name, seed=1, **{**SMALL, **options}).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for module in backbone.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                tensors = [module.bias, module.running_mean, module.running_var]
                if module.weight.requires_grad:
                    tensors.append(module.weight)
                for tensor in tensors:
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            elif isinstance(module, nn.PReLU):
                module.weight.copy_(torch.rand(module.weight.shape, generator=generator))
    return backbone


@functools.cache
def exported(name: str) -> OnnxFile:
    """What facerec exports of `trained`, made once for all tests."""
    return parse_onnx(export_graph(trained(name), Preprocessing(), note={}), "folded.onnx")


def unfolded(backbone: nn.Module) -> OnnxFile:
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            backbone,
            (torch.zeros(2, 3, 112, 112),),
            dynamo=True,
            optimize=False,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            verbose=False,
        )
    file = io.BytesIO()
    onnx.save_model(program.model_proto, file)
    return parse_onnx(file.getvalue(), "unfolded.onnx")


def embeddings(backbone: nn.Module) -> torch.Tensor:
    faces = torch.rand(3, 3, 112, 112, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return backbone(faces)


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest distance of two embeddings of an image, as a share of their length."""
    return float(((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max())


@pytest.mark.parametrize("folds", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("iresnet18", marks=pytest.mark.integration),
        pytest.param("mbf", marks=pytest.mark.integration),
        pytest.param("w600k_mbf", marks=pytest.mark.integration),
        "mobilefacenet_half",
    ],
)
def test_the_backbone_embeds_as_the_one_that_was_exported(name: str, folds: bool) -> None:
    theirs = trained(name)
    file = exported(name) if folds else unfolded(theirs)
    ours = create_backbone(name, seed=9, **SMALL)
    before = embeddings(ours.eval())
    load_onnx_weights(ours, file)
    expected = embeddings(theirs)
    assert relative(embeddings(ours), expected) < 1e-4 < 0.1 < relative(before, expected)
    kept = b"BatchNormalization" in file.content
    assert kept == (not folds or name == "iresnet18")


@pytest.mark.integration
def test_layers_that_are_missing_or_left_give_other_embeddings() -> None:
    names = ("mobilefacenet", "mobilefacenet_half")
    for ours, theirs in (names, names[::-1]):
        with pytest.raises(ModelError, match=r"folded\.onnx: .*other embeddings"):
            load_onnx_weights(create_backbone(ours, seed=0, **SMALL), exported(theirs))


def test_the_same_layers_joined_in_another_way_are_refused() -> None:
    """Another activation has no weights: only the embeddings tell."""
    backbone = create_backbone("mobilefacenet_half", seed=0, **SMALL)
    for module in backbone.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU6):
                setattr(module, name, nn.Sigmoid())
    with pytest.raises(ModelError, match="other embeddings"):
        load_onnx_weights(backbone, exported("mobilefacenet_half"))
