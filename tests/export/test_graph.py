from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from helpers.thin import thinned
from torch import Tensor, nn

from facerec.backbones import Preprocessing
from facerec.base.errors import ExportError
from facerec.embedding import TorchModel
from facerec.embedding.onnx_file import METADATA_KEY, TensorInfo, parse_onnx
from facerec.embedding.onnx_preprocessing import leading_scaling
from facerec.export import check_parity, export_graph, graph_preprocessing

pytestmark = pytest.mark.integration

MEAN, STD = (120.0, 110.0, 100.0), (60.0, 55.0, 50.0)


class Small(nn.Module):
    """The smallest thing with every part that the exporter treats in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.embedding_size = 4
        self.conv = nn.Conv2d(3, 8, 3, stride=8, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.prelu = nn.PReLU(8)
        self.last = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(8 * 14 * 14, 4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(generator=generator)
            for norm in (self.norm, self.last):
                norm.running_mean.normal_(generator=generator)
                norm.running_var.uniform_(0.5, 2, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.prelu(self.norm(self.conv(x))))
        return self.fc(self.dropout(x.flatten(1)))


def export(module: nn.Module, preprocessing: Preprocessing | None = None, **options: Any) -> bytes:
    return export_graph(module, preprocessing or Preprocessing(), note={"format": 1}, **options)


# --- the contract ----------------------------------------------------------------------------


def test_one_file_from_images_to_embeddings_that_says_what_it_needs_and_no_more(
    tiny_onnx: bytes, tiny_note: dict[str, Any]
) -> None:
    file, model = parse_onnx(tiny_onnx, "tiny"), onnx.load_from_string(tiny_onnx)
    assert file.inputs == (TensorInfo("data", "float32", ("batch", 3, 112, 112)),)
    assert file.outputs == (TensorInfo("embedding", "float32", ("batch", 32)),)
    assert (file.opset, file.ir_version) == (17, 8)
    assert leading_scaling(file) is None
    wanted = {"channels": "rgb", "mean": 127.5, "std": 127.5}
    assert file.note == {**tiny_note, "preprocessing": wanted}
    assert [entry.domain for entry in model.opset_import] == [""]
    assert not model.functions
    assert all(t.data_location == onnx.TensorProto.DEFAULT for t in model.graph.initializer)
    assert [entry.key for entry in model.metadata_props] == [METADATA_KEY]
    assert not any(node.doc_string or node.metadata_props for node in model.graph.node)
    assert b"/home" not in tiny_onnx and str(Path(__file__).parents[2]).encode() not in tiny_onnx
    # None is named like a normalisation, which insightface would take for one.
    nodes = [node.name for node in model.graph.node]
    assert len(set(nodes)) == len(nodes)
    assert not any(name.startswith(("Sub", "Mul", "_minus", "_mul")) for name in nodes)
    assert nodes[:3] == ["conv_0", "prelu_1", "conv_2"]


def test_only_batch_norms_before_a_layer_stay(tiny_model: TorchModel, tiny_onnx: bytes) -> None:
    operators = Counter(node.op_type for node in onnx.load_from_string(tiny_onnx).graph.node)
    names = [name for name, _ in tiny_model.backbone.named_modules()]
    before = [name for name in names if name.endswith(".bn1") or name == "bn2"]
    assert operators["BatchNormalization"] == len(before) == 9
    assert operators.keys() == {"Conv", "PRelu", "BatchNormalization", "Add", "Reshape", "Gemm"}


def test_the_backbone_is_left_as_it_is_and_two_exports_have_the_same_bytes() -> None:
    backbone = Small()
    backbone.norm.eval()
    backbone.fc.requires_grad_(False)
    before = copy.deepcopy(backbone)
    first = export(backbone)
    after = backbone.state_dict()
    assert all(torch.equal(after[name], t) for name, t in before.state_dict().items())
    modes = [module.training for module in backbone.modules()]
    assert modes == [module.training for module in before.modules()]
    trainable = [p.requires_grad for p in backbone.parameters()]
    assert trainable == [p.requires_grad for p in before.parameters()]
    other = before.eval().requires_grad_(True).to(memory_format=torch.channels_last)
    assert export(other) == first


# --- opsets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opset", "ir"), thinned([(16, 8), (20, 9)], lambda opset, ir: opset == 16)
)
def test_the_opset_is_the_one_asked_for(opset: int, ir: int) -> None:
    module = Small()
    content = export(module, opset=opset)
    file = parse_onnx(content, "small")
    assert (file.opset, file.ir_version) == (opset, ir)
    check_parity(TorchModel(module, Preprocessing()), file)


# --- preprocessing ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trained", "wanted"),
    [
        (Preprocessing(), Preprocessing()),
        (Preprocessing("bgr", 127.5, 128.0), Preprocessing()),
        (Preprocessing("bgr", 110.0, 64.0), Preprocessing("rgb", 110.0, 64.0)),
        (Preprocessing("rgb", MEAN, STD), Preprocessing("rgb", MEAN)),
        (Preprocessing("bgr", MEAN, STD), Preprocessing("rgb", MEAN[::-1])),
        (Preprocessing("bgr", 127.5, STD), Preprocessing()),
    ],
)
def test_what_the_graph_wants(trained: Preprocessing, wanted: Preprocessing) -> None:
    assert graph_preprocessing(trained) == wanted


@pytest.mark.parametrize(
    ("mean", "std"), thinned([(127.5, 127.5), (110.0, 100.0)], lambda mean, std: mean == 110.0)
)
def test_channel_order_and_scale_go_into_the_first_convolution(mean: float, std: float) -> None:
    module = Small()
    trained = Preprocessing("bgr", mean, 100.0)
    file = parse_onnx(export(module, trained), "bgr")
    assert file.note["preprocessing"] == {"channels": "rgb", "mean": mean, "std": std}
    check_parity(TorchModel(module, trained), file)
    with pytest.raises(ExportError, match="differ"):
        check_parity(TorchModel(module, Preprocessing("rgb", mean, 100.0)), file)
