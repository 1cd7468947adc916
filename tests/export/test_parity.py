from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from facerec.backbones import Backbone, list_backbones
from facerec.base.errors import ExportError
from facerec.embedding import TorchModel
from facerec.embedding.onnx_file import OnnxFile, parse_onnx
from facerec.export import check_parity, export_graph, parity
from facerec.export.parity import BATCHES, deviation

pytestmark = pytest.mark.integration


def changed(content: bytes, change: Callable[[Any], None]) -> OnnxFile:
    """Apply ``change`` to the graph of a file."""
    model = onnx.load_from_string(content)
    change(model.graph)
    return parse_onnx(model.SerializeToString(), "changed")


# --- real exports ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("iresnet18", "mbf") else pytest.param(name, marks=pytest.mark.slow)
        for name in list_backbones()
    ],
)
def test_every_registered_backbone_reaches_the_bar(
    request: pytest.FixtureRequest, make_model: Callable[..., TorchModel], name: str
) -> None:
    if name == "iresnet18":
        model, content = map(request.getfixturevalue, ("tiny_model", "tiny_onnx"))
    else:
        model = make_model(Backbone(name, 32, width=0.125, embedding_bn="affine"))
        content = export_graph(model.backbone, model.preprocessing, note={"format": 1})
    rows = check_parity(model, parse_onnx(content, name))
    for kind in ("random normal", "faces", "constant"):
        assert [row.batch for row in rows if row.check == kind] == list(BATCHES)
        assert [row.batch for row in rows if row.check == f"{kind}, rows alone"] == [5]
    # Small networks of ReLU6 have channels of next to no variance here.
    bar = 1e-4 if name.startswith("mobilefacenet") else 1e-5
    assert max(row.max_abs for row in rows) <= bar
    assert min(row.min_cosine for row in rows) >= 0.999999


# --- controls: what must not pass ------------------------------------------------------------


def test_what_torch_rounds_itself_is_no_fault(
    tiny_model: TorchModel, tiny_onnx: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "BATCHES", (1, 5))
    monkeypatch.setattr(parity, "MAX_ABS", 0.0)
    rows = check_parity(tiny_model, parse_onnx(tiny_onnx, "tiny"))
    assert max(row.max_abs for row in rows) > 0


def test_rows_that_depend_on_the_batch_fail(tiny_model: TorchModel, tiny_onnx: bytes) -> None:
    file = changed(tiny_onnx, add_to_batches_of_five)
    with pytest.raises(ExportError, match="differ in 6 of 15 checks"):
        check_parity(tiny_model, file)
    rows = check_parity(tiny_model, file, exact=False)
    failed = [row for row in rows if row.max_abs > 1e-5]
    assert {row.batch for row in failed} == {5}
    kinds = ("random normal", "faces", "constant")
    assert [row.check for row in failed] == [n for k in kinds for n in (k, f"{k}, rows alone")]


def add_to_batches_of_five(graph: Any) -> None:
    """Add 0.01 to the embeddings of every batch of 5 images."""
    constants = {"five": np.array(5, np.int64), "much": np.array(0.01, np.float32)}
    for name, value in constants.items():
        graph.initializer.append(numpy_helper.from_array(value, name))
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "first"))
    graph.node[-1].output[0] = "inner"
    steps = [
        helper.make_node("Shape", ["inner"], ["shape"], "shape"),
        helper.make_node("Gather", ["shape", "first"], ["count"], "gather"),
        helper.make_node("Equal", ["count", "five"], ["is_five"], "equal"),
        helper.make_node("Cast", ["is_five"], ["one"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["one", "much"], ["plus"], "times"),
        helper.make_node("Add", ["inner", "plus"], ["embedding"], "add"),
    ]
    graph.node.extend(steps)


def test_values_that_are_not_finite_fail(tiny_model: TorchModel, tiny_onnx: bytes) -> None:
    def root(graph: Any) -> None:
        graph.node[-1].output[0] = "inner"
        graph.node.append(helper.make_node("Sqrt", ["inner"], ["embedding"], "root"))

    with pytest.raises(ExportError, match=r"max \|Δ\| nan"):
        check_parity(tiny_model, changed(tiny_onnx, root), exact=False)


# --- the measure -----------------------------------------------------------------------------


def test_deviation_by_hand() -> None:
    found = deviation(np.array([[3.0, 4.0], [0.0, 1.0]]), np.array([[3.0, 4.0], [1.0, 1.0]]))
    assert (found.max_abs, found.min_cosine) == (0.33, round(1 / np.sqrt(2), 7))
