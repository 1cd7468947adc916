"""Files of others: what is read of them, and that hostile ones end in one sentence."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

from helpers.toy_onnx import noted, tiles  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from facerec.backbones import Preprocessing  # noqa: E402
from facerec.embedding import onnx_file  # noqa: E402
from facerec.embedding.onnx_file import (  # noqa: E402
    ImageInput,
    TensorInfo,
    first_line,
    guess_preprocessing,
    insightface_normalizes,
    parse_onnx,
    printable,
    read_onnx,
)
from facerec.errors import ModelError  # noqa: E402


def parsed(model: onnx.ModelProto) -> onnx_file.OnnxFile:
    return parse_onnx(model.SerializeToString(), "x.onnx")


def refusal(model: onnx.ModelProto) -> str:
    """Return the sentence with which a model is refused."""
    with pytest.raises(ModelError) as caught:
        parsed(model)
    sentence = str(caught.value)
    assert sentence.startswith("x.onnx: ") and "\n" not in sentence and len(sentence) < 500
    return sentence


# --- what is read ----------------------------------------------------------------------------


def test_a_file_tells_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "tiles.onnx"
    model = tiles(metadata={"author": "somebody"})
    model.producer_name, model.producer_version = "builder", "1.2"
    path.write_bytes(model.SerializeToString())
    file = read_onnx(path)
    assert file == parse_onnx(path.read_bytes(), str(path), path)
    assert (file.path, file.where, file.content) == (path, str(path), path.read_bytes())
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (file.opset, file.ir_version, file.producer) == (17, 8, "builder 1.2")
    assert file.inputs == (TensorInfo("data", "float32", ("batch", 3, 112, 112)),)
    assert file.outputs == (TensorInfo("embedding", "float32", ("batch", 8)),)
    assert file.metadata == {"author": "somebody"} and file.note is None
    assert file.operators == {"Cast": 1, "AveragePool": 1, "Flatten": 1, "Gemm": 1}
    assert file.nodes == ("first", "", "", "gemm")
    assert file.parameters == 8 * 147
    assert file.image_input() == ImageInput("data", "float32", None, "NCHW", 112, 112)
    assert file.embedding_output() == file.outputs[0]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("batch", [1, 4, "n"])
@pytest.mark.parametrize("dtype", ["FLOAT", "UINT8"])
def test_inputs_of_every_kind(layout: Any, batch: int | str, dtype: str) -> None:
    kind = TensorProto.DataType.Value(dtype)
    found = parsed(tiles(batch=batch, layout=layout, dtype=kind, side=224)).image_input()
    name: Any = {"FLOAT": "float32", "UINT8": "uint8"}[dtype]
    fixed = batch if isinstance(batch, int) else None
    assert found == ImageInput("data", name, fixed, layout, 224, 224)


def test_weights_among_the_inputs_are_no_inputs() -> None:
    """Files of IR 3 list every initialiser as an input too."""
    model = tiles()
    weight = helper.make_tensor_value_info("weight", TensorProto.FLOAT, [8, 147])
    model.graph.input.insert(0, weight)
    assert [info.name for info in parsed(model).inputs] == ["data"]


def test_numbers_of_every_storage_are_counted() -> None:
    model = tiles()
    for name, kind in (("h", "FLOAT16"), ("q", "INT8"), ("l", "INT64"), ("d", "DOUBLE")):
        code = TensorProto.DataType.Value(kind)
        raw = np.zeros(6, helper.tensor_dtype_to_np_dtype(code)).tobytes()
        model.graph.initializer.append(helper.make_tensor(name + "r", code, [2, 3], raw, raw=True))
        model.graph.initializer.append(helper.make_tensor(name, code, [6], [0] * 6))
    model.graph.initializer.append(helper.make_tensor("i4", TensorProto.INT4, [5], [0] * 5))
    assert parsed(model).parameters == 8 * 147 + 4 * 12 + 5


# --- interfaces that are none of an embedding model -------------------------------------------


def with_interface(
    inputs: list[tuple[str, int, list[Any]]], outputs: list[tuple[str, int, list[Any]]]
) -> onnx.ModelProto:
    """Return a graph that declares these inputs and outputs and copies the first to all."""
    graph = helper.make_graph(
        [helper.make_node("Identity", [inputs[0][0]], [name]) for name, _, _ in outputs],
        "copies",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FLOAT, HALF, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE
IMAGE = ("x", FLOAT, ["n", 3, 112, 112])
VECTOR = ("y", FLOAT, ["n", 512])


@pytest.mark.parametrize(
    ("inputs", "outputs", "sentence"),
    [
        ([IMAGE, ("mask", FLOAT, ["n"])], [VECTOR], r"found inputs \['x', 'mask'\] and outputs"),
        ([IMAGE], [VECTOR, ("norm", FLOAT, ["n", 1])], r"outputs \['y', 'norm'\]"),
        ([IMAGE], [("o" + str(i), FLOAT, [1]) for i in range(12)], r"'o7', …\]"),
        ([("x", FLOAT, ["n", 112, 112])], [VECTOR], r"found x float32 \[n, 112, 112\]"),
        ([("x", FLOAT, ["n", 1, 112, 112])], [VECTOR], "float32 images or uint8 images"),
        ([("x", FLOAT, ["n", "c", 112, 112])], [VECTOR], "float32 images or uint8 images"),
        ([("x", FLOAT, [])], [VECTOR], r"found x float32 \[\]"),
        ([("x", HALF, ["n", 3, 112, 112])], [VECTOR], "found x float16"),
        ([("x", DOUBLE, ["n", 3, 112, 112])], [VECTOR], "found x float64"),
        ([("x", TensorProto.STRING, ["n", 3, 112, 112])], [VECTOR], "found x object"),
        ([("x", FLOAT, ["n", 3, "height", "width"])], [VECTOR], r"\[n, 3, height, width\]"),
        ([("x", FLOAT, ["n", 3, 112, None])], [VECTOR], r"\[n, 3, 112, \?\]"),
        ([("x", FLOAT, ["n", 3, 0, 112])], [VECTOR], "height and width from 1 to 1024"),
        ([("x", FLOAT, ["n", 3, 2000, 112])], [VECTOR], "height and width from 1 to 1024"),
        ([("x", FLOAT, [2000, 3, 112, 112])], [VECTOR], "fixed batch must have from 1 to 1024"),
        ([("x", FLOAT, [0, 3, 112, 112])], [VECTOR], "fixed batch must have from 1 to 1024"),
        ([IMAGE], [("y", HALF, ["n", 512])], "output must be float32 embeddings, found y float16"),
    ],
)
def test_interfaces_of_other_kinds(inputs: Any, outputs: Any, sentence: str) -> None:
    file = parsed(with_interface(inputs, outputs))  # it can be looked at
    with pytest.raises(ModelError, match=sentence) as caught:
        file.image_input()
        file.embedding_output()
    assert str(caught.value).startswith("x.onnx: ") and "\n" not in str(caught.value)


def test_a_second_output_norm_is_for_our_own_exports_alone() -> None:
    model = with_interface([IMAGE], [VECTOR, ("norm", FLOAT, ["n", 1])])
    helper.set_model_props(model, noted())
    assert parsed(model).embedding_output().name == "y"
    model.graph.output[1].name = "logits"
    model.graph.node[1].output[0] = "logits"
    with pytest.raises(ModelError, match=r"\['y', 'logits'\]"):
        parsed(model).embedding_output()


def test_something_else_than_a_tensor() -> None:
    model = with_interface([IMAGE], [VECTOR])
    sequence = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    model.graph.input[0].CopyFrom(sequence)
    with pytest.raises(ModelError, match="found x sequence_type"):
        parsed(model).image_input()


# --- hostile files ----------------------------------------------------------------------------


def external(tensor: TensorProto, location: str) -> None:
    """Move the numbers of a tensor into another file, by word alone."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


NUMBERS = np.random.default_rng(0).normal(size=(8, 147)).astype(np.float32).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder of a model with weights beside it, and a secret outside."""
    folder = tmp_path / "models" / "theirs"
    (folder / "parts").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(NUMBERS)
    (folder / "weights.bin").write_bytes(b"head" + NUMBERS)
    (folder / "parts" / "one").write_bytes(NUMBERS)
    for link, target in (("link", "../../secret"), ("out", "../.."), ("near", "weights.bin")):
        (folder / link).symlink_to(target)
    os.mkfifo(folder / "pipe")
    return folder


def beside(folder: Path, location: str, **entries: str) -> Path:
    model = tiles()
    external(model.graph.initializer[0], location)
    for key, value in entries.items():
        model.graph.initializer[0].external_data.add(key=key, value=value)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("../../secret", "no file in its folder"),
        ("parts/../../../secret", "no file in its folder"),
        ("/etc/passwd", "no file in its folder"),
        ("", "no file in its folder"),
        (".", "no file in its folder"),
        ("link", "leaves its folder"),
        ("out/secret", "leaves its folder"),
        ("absent.bin", "No such file"),
        ("weights.bin/x", "Not a directory"),
        ("pipe", "not a regular file"),
        ("parts", "not a regular file"),
        ("x" * 5000, "cannot be read"),
        ("..\x1b[2J", "cannot be read"),
    ],
)
def test_no_path_leaves_the_folder(folder: Path, location: str, words: str) -> None:
    before = sorted(folder.rglob("*"))
    path = beside(folder, location)
    with pytest.raises(ModelError, match=words) as caught:
        read_onnx(path)
    assert str(caught.value).startswith(str(folder)) and str(caught.value).isprintable()
    assert sorted(folder.rglob("*")) == sorted({*before, path})


@pytest.mark.parametrize(
    ("location", "entries"),
    [
        ("parts/one", {}),
        ("weights.bin", {"offset": "4"}),
        ("near", {"offset": "4", "length": str(len(NUMBERS)), "checksum": "unread"}),
    ],
)
def test_weights_in_the_same_folder_are_read(
    folder: Path, location: str, entries: dict[str, str]
) -> None:
    path = beside(folder, location, **entries)
    file = read_onnx(path)
    assert file.beside == (location,)
    inside = onnx.load_model_from_string(file.content).graph.initializer[0]
    assert inside.raw_data == NUMBERS and not inside.external_data
    # The hash tells other weights apart, with the same file before them.
    (folder / "parts" / "one").write_bytes(NUMBERS[::-1])
    (folder / "weights.bin").write_bytes(b"head" + NUMBERS[::-1])
    assert read_onnx(path).sha256 != file.sha256
    assert parsed(tiles()).beside == ()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"offset": "5"}, "needs 4,704 bytes"),
        ({"offset": "4", "length": "4000"}, "needs 4,704 bytes"),
        ({"offset": "4", "length": "4705"}, "but that file has 4,708 bytes"),
        ({"offset": "4709"}, "but that file has 4,708 bytes"),
        ({"offset": "-4"}, "no place that is a number"),
        ({"offset": "4.0"}, "no place that is a number"),
        ({"length": "9" * 30}, "no place that is a number"),
    ],
)
def test_weights_beside_it_have_to_fit(folder: Path, entries: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_onnx(beside(folder, "weights.bin", **entries))


def test_all_files_together_are_bounded(folder: Path) -> None:
    path = beside(folder, "parts/one")
    whole = path.stat().st_size + len(NUMBERS)
    assert read_onnx(path, max_bytes=whole).beside
    with pytest.raises(ModelError, match="are read"):
        read_onnx(path, max_bytes=whole - 1)
    # A small file that is named by many tensors would become a large one.
    model = onnx.load_model_from_string(path.read_bytes())
    model.graph.initializer.extend([model.graph.initializer[0]] * 9)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="are read in all"):
        read_onnx(path, max_bytes=path.stat().st_size + 5 * len(NUMBERS))


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from x.onnx failed:/onnxruntime_src/onnx"
            "runtime/core/graph/model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, const "
            "std::function<void(int)>&, const onnxruntime::ModelOptions&) Unsupported model IR "
            "version: 99, max supported IR version: 13\n",
            "Unsupported model IR version: 99, max supported IR version: 13",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Add node. "
            "Name:'a' Status Message: /onnxruntime_src/core/element_wise_ops.h:540 void onnxruntime"
            "::BroadcastIterator::Init(ptrdiff_t, ptrdiff_t) [with T = float] axis == 1 was false. "
            "Attempting to broadcast an axis by a dimension other than 1. 7 by 5",
            "broadcast an axis by a dimension other than 1. 7 by 5",
        ),
        ("x" * 5000 + " and the end", " and the end"),
        ("/a.cc:1 f(" + "(" * 5000, "((("),
    ],
)
def test_of_a_librarys_message_the_half_about_the_model_is_kept(said: str, kept: str) -> None:
    words = first_line(RuntimeError(said))
    assert kept in words and len(words) <= 300
    assert "_src" not in words and "ONNXRuntimeError" not in words


@pytest.mark.parametrize("hidden", ["unmarked", "attribute", "list", "unlisted"])
def test_weights_in_other_files_are_found_wherever_they_hide(hidden: str) -> None:
    model = tiles()
    tensor = TensorProto(data_type=FLOAT, dims=[2], name="hidden")
    external(tensor, "/etc/passwd")
    if hidden == "unmarked":
        tensor.data_location = TensorProto.DEFAULT
        model.graph.initializer.append(tensor)
    elif hidden == "unlisted":
        del tensor.external_data[:]
        model.graph.initializer.append(tensor)
    else:
        node = helper.make_node("Constant", [], ["c"])
        attribute = node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
        if hidden == "attribute":
            attribute.t.CopyFrom(tensor)
        else:
            attribute.tensors.append(tensor)
        model.graph.node.append(node)
    assert "the tensor 'hidden' lies in another file" in refusal(model)


def custom_domain(model: onnx.ModelProto) -> None:
    model.graph.node[1].domain = "com.evil"
    model.opset_import.append(helper.make_opsetid("com.evil", 1))


def unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[1].op_type = "Explode"


def function(model: onnx.ModelProto) -> None:
    body = [helper.make_node("Identity", ["a"], ["b"])]
    imports = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("", "Relu", ["a"], ["b"], body, imports))


def branch(depth: int = 1, kind: int = onnx.AttributeProto.GRAPH) -> Callable[[Any], None]:
    def change(model: onnx.ModelProto) -> None:
        graph = helper.make_graph([helper.make_node("Identity", ["data"], ["z"])], "leaf", [], [])
        for _ in range(depth):
            node = helper.make_node("If", ["condition"], ["z"])
            attribute = node.attribute.add(name="then_branch", type=kind)
            attribute.g.CopyFrom(graph)
            graph = helper.make_graph([node], "branch", [], [])
        model.graph.node.extend(graph.node)

    return change


def list_of_graphs(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="bodies", type=onnx.AttributeProto.GRAPHS)
    attribute.graphs.add(name="body")


def sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add().dims.append(2)


def sparse_attribute(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="sparse_value")
    attribute.sparse_tensor.dims.append(2)


def training(model: onnx.ModelProto) -> None:
    model.training_info.add()


def declared(*dims: int) -> Callable[[Any], None]:
    def change(model: onnx.ModelProto) -> None:
        del model.graph.initializer[0].dims[:]
        model.graph.initializer[0].dims.extend(dims)

    return change


def typed_numbers(model: onnx.ModelProto) -> None:
    """Numbers in a field of their own kind, too few of them."""
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].float_data.extend([1.0, 2.0])


def text(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [1], [b"a"]))


def untyped(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 0


def invented_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 99


def growing(kind: str, *shape: int) -> Callable[[Any], None]:
    """Make a huge tensor out of a shape that takes a few bytes."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), "shape"))
        source = {"ConstantOfShape": [], "Expand": ["one"], "Tile": ["ones"]}[kind]
        one = np.ones([1] * (len(shape) if kind == "Tile" else 1), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(one, "".join(source) or "none"))
        model.graph.node.append(helper.make_node(kind, [*source, "shape"], ["huge"]))

    return change


def no_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def future_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 2**40


def future_format(model: onnx.ModelProto) -> None:
    model.ir_version = 2**40


def one_operand(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Conv", ["data"], ["z"]))


def many_dimensions(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims.extend([1] * 63)


def many_nodes(model: onnx.ModelProto) -> None:
    model.graph.node.extend([helper.make_node("Identity", ["data"], ["z"])] * 50_000)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (custom_domain, r"the operator 'AveragePool' of 'com.evil' is not part of standard ONNX"),
        (unknown_operator, "the operator 'Explode' is not part of standard ONNX"),
        (function, r"brings functions of its own \(1\)"),
        (branch(), "the operator 'If' holds a graph of its own"),
        (branch(20), "the operator 'If' holds a graph of its own"),
        (branch(1, onnx.AttributeProto.FLOAT), "the operator 'If' holds a graph of its own"),
        (list_of_graphs, "the operator 'Cast' holds a graph of its own"),
        (sparse, r"sparse initialisers \(1\)"),
        (sparse_attribute, "the operator 'Cast' holds a sparse tensor"),
        (training, r"instructions for training \(1\)"),
        (declared(2**40), r"\[1099511627776\] needs 4,398,046,511,104 bytes, the file holds 4,704"),
        (declared(2**40, 2**40, 2**40), "needs .* bytes, the file holds 4,704"),
        (declared(8, 146), r"of shape \[8, 146\] needs 4,672 bytes, the file holds 4,704"),
        (declared(-8, -147), r"negative size \[-8, -147\]"),
        (typed_numbers, r"of shape \[8, 147\] needs 1,176 numbers, the file holds 2"),
        (text, "the tensor 'words' holds no real numbers"),
        (untyped, "the tensor 'weight' holds no real numbers"),
        (invented_type, "the tensor 'weight' holds no real numbers"),
        (growing("ConstantOfShape", 2**20, 2**20), "'huge' would have 1,099,511,627,776 numbers"),
        (growing("Expand", 2**31), "'huge' would have 2,147,483,648 numbers"),
        (growing("Tile", 2**15, 2**15), "'huge' would have 1,073,741,824 numbers"),
        (no_opset, "the file names no opset"),
        (future_opset, "of opset 1099511627776, this onnx knows 1 to"),
        (future_format, "of IR version 1099511627776, which does not exist"),
        (one_operand, "the operator 'Conv' is not as ONNX defines it .* input size 1 "),
        (many_dimensions, "the tensor 'weight' has 65 dimensions, at most 16"),
        (many_nodes, "the graph has 50,004 nodes, at most 50,000"),
    ],
)
def test_hostile_graphs(change: Callable[[Any], None], sentence: str) -> None:
    model = tiles()
    change(model)
    assert re.search(sentence, refusal(model))


def test_a_graph_that_contradicts_itself() -> None:
    model = tiles()
    model.graph.node[3].input[1] = "data"  # a matrix product of images
    try:
        file = parsed(model)
    except ModelError as error:
        assert "contradicts itself" in str(error)
    else:  # left to the engine
        assert file.operators["Gemm"] == 1


def test_what_the_file_says_of_shapes_inside_is_not_believed() -> None:
    """A small declared shape hides nothing, a huge one accuses nothing."""
    model = tiles()
    growing("ConstantOfShape", 2**20, 2**20)(model)
    model.graph.value_info.append(helper.make_tensor_value_info("huge", FLOAT, [1]))
    assert "would have" in refusal(model)
    model = tiles()
    model.graph.value_info.append(helper.make_tensor_value_info("pooled", FLOAT, [2**40]))
    assert parsed(model).parameters == 8 * 147


def nested(depth: int) -> bytes:
    """Return a file with graphs in graphs, written byte by byte: protobuf's own API balks."""

    def field(number: int, payload: bytes) -> bytes:
        length, size = b"", len(payload)
        while True:
            size, low = size >> 7, size & 127
            length += bytes([low | (128 if size else 0)])
            if not size:
                return bytes([number << 3 | 2]) + length + payload

    graph = b""
    for _ in range(depth):
        attribute = field(1, b"then_branch") + field(6, graph)
        graph = field(1, field(4, b"If") + field(5, attribute))
    return field(7, graph) + field(8, b"\x10\x11")


@pytest.mark.parametrize("depth", [40, 100, 5_000])
def test_deep_nesting(depth: int) -> None:
    with pytest.raises(ModelError, match=r"nested too deeply|graph of its own"):
        parse_onnx(nested(depth), "x.onnx")


def test_every_truncation_is_refused() -> None:
    content = tiles().SerializeToString()
    for length in {*range(0, 400), *range(400, len(content), 97), len(content) - 1}:
        with pytest.raises(ModelError, match=r"x.onnx: (not a whole .onnx|the file names no ops)"):
            parse_onnx(content[:length], "x.onnx")


SOUND = tiles(leading=[("Sub", 127.5)], metadata=noted()).SerializeToString()


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_damage_never_escapes_as_another_error(data: st.DataObject) -> None:
    content = bytearray(SOUND)
    header = st.integers(0, 250) | st.integers(len(content) - 500, len(content) - 1)
    for place in data.draw(st.lists(header, min_size=1, max_size=6)):
        content[place] = data.draw(st.integers(0, 255))
    try:
        file = parse_onnx(bytes(content), "x.onnx")
        guess_preprocessing(file)
        file.image_input()
        file.embedding_output()
    except ModelError as error:
        assert "\n" not in str(error) and str(error).isprintable()


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_noise_is_no_model(content: bytes) -> None:
    with pytest.raises(ModelError, match=r"x.onnx: "):
        parse_onnx(content, "x.onnx")


def test_the_size_is_limited_before_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**31 + 1)  # takes no room on the disk
    with pytest.raises(ModelError, match="2,147,483,649 bytes, at most 2,147,483,648 are read"):
        read_onnx(path)
    content = tiles().SerializeToString()
    path.write_bytes(content)
    assert read_onnx(path, max_bytes=len(content)).content == content
    with pytest.raises(ModelError, match="at most 100 are read"):
        read_onnx(path, max_bytes=100)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent.onnx: cannot be read \(No such file"):
        read_onnx(tmp_path / "absent.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(ModelError, match=r"pipe.onnx: not a regular file"):
        read_onnx(tmp_path / "pipe.onnx")
    with pytest.raises(ModelError, match="not a regular file"):
        read_onnx(tmp_path)


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("input.1", "input.1"),
        ("gesicht_ü_顔", "gesicht_ü_顔"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("\u202ereversed\u200b", "\\u202ereversed\\u200b"),
        ("back\\slash", "back\\\\slash"),
        ("\x00", "\\x00"),
        ("a" * 100, "a" * 80 + "…"),
    ],
)
def test_names_are_printed_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown
    model = tiles()
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = name
    with pytest.raises(ModelError) as caught:
        parsed(model).image_input()
    assert f"found {shown} float32 [batch, 3, {shown}, 112]" in str(caught.value)


@given(st.text())
def test_escaped_text_is_printable(text: str) -> None:
    assert printable(text).isprintable()


# --- the note of our own exports --------------------------------------------------------------


def test_the_note_of_our_own_exports() -> None:
    note = parsed(tiles(metadata=noted(name="mine"))).note
    assert note is not None and note["name"] == "mine"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "entry 'facerec' is damaged"),
        ("[" * 100_000, "entry 'facerec' is damaged"),
        ('{"format": 1, "flip": NaN}', "entry 'facerec' is damaged .*NaN"),
        ('{"format": 1, "flip": 1e999}', "entry 'facerec' is damaged .*not finite"),
        ("[1]", "entry 'facerec' is damaged"),
        ('{"format": 1, "recipe": 3}', "entry 'facerec' is damaged"),
        ("{}", "of format None, this facerec reads format 1"),
        ('{"format": "\\u001b[2J"}', r"of format \\x1b\[2J"),
    ],
)
def test_a_damaged_note(text: str, sentence: str) -> None:
    file = parsed(tiles(metadata={"facerec": text}))
    for ask in (lambda: file.note, lambda: guess_preprocessing(file)):
        with pytest.raises(ModelError, match=sentence) as caught:
            ask()
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("entry", "dtype", "sentence"),
    [
        (None, FLOAT, "neither 'embedded' nor"),
        ("inside", FLOAT, "neither 'embedded' nor"),
        ({"channels": "rgb", "mean": 0.0}, FLOAT, "neither 'embedded' nor"),
        ({"channels": "gbr", "mean": 0.0, "std": 1.0}, FLOAT, "one of 'rgb', 'bgr'"),
        ({"channels": "rgb", "mean": 0.0, "std": 0.0}, FLOAT, "std must be at least"),
        ({"channels": "rgb", "mean": "a", "std": 1.0}, FLOAT, "mean"),
        (
            {"channels": "rgb", "mean": 0.0, "std": 1.0},
            TensorProto.UINT8,
            "uint8 pixels cannot be normalised",
        ),
    ],
)
def test_a_damaged_preprocessing(entry: Any, dtype: int, sentence: str) -> None:
    file = parsed(tiles(metadata=noted(preprocessing=entry), dtype=dtype))
    with pytest.raises(ModelError, match=f"preprocessing in its metadata .*{sentence}"):
        guess_preprocessing(file)


# --- guessing ---------------------------------------------------------------------------------


def test_our_own_note_decides() -> None:
    stated = {"channels": "bgr", "mean": 0.0, "std": 255.0}
    leading = [("Sub", 127.5), ("Mul", 1 / 128)]
    guess = guess_preprocessing(
        parsed(tiles(metadata=noted(preprocessing=stated), leading=leading))
    )
    assert guess.preprocessing == Preprocessing("bgr", 0.0, 255.0) and guess.stated
    assert guess.evidence[0] == "its metadata entry 'facerec' says so"
    guess = guess_preprocessing(parsed(tiles(metadata=noted(preprocessing="embedded"))))
    assert guess.preprocessing is None and guess.stated


PIXELS = "fits pixels 0…255"
UNIT = "fits pixels scaled to 0…1"
IMAGENET = np.array([0.485, 0.456, 0.406]).reshape(3, 1, 1)


@pytest.mark.parametrize(
    ("leading", "found", "evidence"),
    [
        ([("Sub", 127.5), ("Mul", 0.0078125)], None, f"Sub 127.5 → Mul 0.0078125, which {PIXELS}"),
        ([("Sub", [[[127.5]] * 3]), ("Div", 128.0)], None, "Sub 127.5, 127.5, 127.5 → Div 128"),
        ([("Mul", 1 / 127.5), ("Add", -1.0)], None, PIXELS),
        ([("Div", 255.0)], None, PIXELS),
        ([("Div", 255.0), ("Sub", 0.5), ("Div", 0.5)], None, PIXELS),
        ([("Sub", np.reshape([93.6, 104.8, 129.2], (3, 1, 1)))], None, PIXELS),
        ([("SubReversed", 127.5), ("Mul", -1 / 127.5)], None, "127.5 − x"),
        ([("Sub", 0.5), ("Div", 0.5)], Preprocessing("rgb", 0.0, 255.0), UNIT),
        ([("Sub", IMAGENET), ("Div", 0.225)], Preprocessing("rgb", 0.0, 255.0), UNIT),
        ([("MulReversed", 2.0), ("Sub", 1.0)], Preprocessing("rgb", 0.0, 255.0), UNIT),
        ([("Mul", 1.0)], Preprocessing(), "an assumption: nothing in the file tells"),
        ([("Mul", 0.0)], Preprocessing(), "an assumption"),
        ([("Mul", np.inf)], Preprocessing(), "an assumption"),
        ([("Div", 0.0)], Preprocessing(), "an assumption"),
        ([("DivReversed", 255.0)], Preprocessing(), "an assumption"),
        ([], Preprocessing(), "an assumption"),
    ],
)
def test_a_normalisation_in_the_graph_is_found(leading: Any, found: Any, evidence: str) -> None:
    for layout in ("NCHW", "NHWC"):
        if layout == "NHWC" and any(np.size(value) > 1 for _, value in leading):
            leading = [(kind, np.reshape(value, -1)[:3]) for kind, value in leading]
        guess = guess_preprocessing(parsed(tiles(leading=leading, layout=layout)))
        assert guess.preprocessing == found and not guess.stated
        assert layout == "NHWC" or evidence in guess.evidence[0]
        assumed = "channel order is an assumption" in guess.evidence[1]
        assert assumed or guess.preprocessing == Preprocessing()


def test_a_mean_for_every_pixel_is_no_scaling() -> None:
    assert parsed(tiles(leading=[("Sub", np.full((3, 112, 112), 127.5))])).scaling is None


def test_a_uint8_input_must_be_normalised_inside() -> None:
    guess = guess_preprocessing(parsed(tiles(dtype=TensorProto.UINT8)))
    assert guess.preprocessing is None and not guess.stated
    assert guess.evidence[0] == "the input is uint8, so the graph itself must normalise"


def test_a_step_that_changes_nothing_is_remarked() -> None:
    guess = guess_preprocessing(parsed(tiles(leading=[("Mul", 1.0), ("Add", 0.0)])))
    assert "the graph begins with Mul 1 → Add 0, which changes nothing" in guess.evidence


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Sub", "SubReversed", "Add", "AddReversed", "Mul", "Div"]),
            st.lists(st.floats(0.25, 200), min_size=3, max_size=3) | st.floats(0.25, 200),
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_the_scaling_is_what_the_nodes_compute(steps: list[tuple[str, Any]]) -> None:
    leading = [
        (kind, np.reshape(np.asarray(value, np.float32), (-1, 1, 1))) for kind, value in steps
    ]
    scaling = parsed(tiles(leading=leading)).scaling
    assert scaling is not None and len(scaling.nodes) == len(steps)
    pixels = np.linspace(0, 255, 7)
    computed = np.broadcast_to(pixels, (3, 7))
    for kind, value in leading:
        constant = value.reshape(-1, 1).astype(np.float64)
        computed = {
            "Sub": computed - constant,
            "SubReversed": constant - computed,
            "Add": computed + constant,
            "AddReversed": constant + computed,
            "Mul": computed * constant,
            "Div": computed / constant,
        }[kind]
    mean, std = (np.reshape(part, (-1, 1)) for part in (scaling.mean, scaling.std))
    scale = np.abs(computed).max()
    np.testing.assert_allclose(
        np.broadcast_to((pixels - mean) / std, (3, 7)), computed, atol=1e-9 * scale
    )


def test_constants_may_come_by_detours() -> None:
    """TorchScript's exporter writes Constant nodes and copies of initialisers."""
    model = tiles(leading=[("Sub", 127.5), ("Mul", 0.0078125)])
    tensor = next(t for t in model.graph.initializer if t.name == "c0")
    model.graph.initializer.remove(tensor)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c0"], value=tensor))
    model.graph.node.insert(1, helper.make_node("Identity", ["c1"], ["copy"]))
    next(node for node in model.graph.node if node.op_type == "Mul").input[1] = "copy"
    assert (
        parsed(model).scaling == parsed(tiles(leading=[("Sub", 127.5), ("Mul", 0.0078125)])).scaling
    )


def test_pixels_that_go_two_ways_tell_nothing() -> None:
    model = tiles(leading=[("Sub", 127.5), ("Mul", 0.0078125)])
    model.graph.node.append(helper.make_node("Relu", ["data"], ["aside"]))
    assert parsed(model).scaling is None


@pytest.mark.parametrize(
    ("names", "normalizes"),
    [
        (["node_sub", "node_mul"], True),
        (["Sub_1", "Mul_2"], False),
        (["_minusscalar0", "_mulscalar0"], False),
        (["Sub_1", "_mul"], False),
        (["Sub", "conv"], True),
        ([*"abcdefgh", "Sub", "Mul"], True),
        ([*"abcdef", "Mul", "Sub"], False),
    ],
)
def test_the_rule_of_insightface(names: list[str], normalizes: bool) -> None:
    model = tiles()
    model.graph.node.extend(helper.make_node("Identity", ["data"], [name]) for name in names)
    for node, name in zip(model.graph.node, [*names, *"rest"], strict=True):
        node.name = name
    file = parsed(model)
    assert insightface_normalizes(file) is normalizes
    fed = "normalised by 127.5/127.5" if normalizes else "raw RGB pixels"
    assert any(
        f"insightface would feed {'RGB ' * normalizes}{fed}" in e
        for e in guess_preprocessing(file).evidence
    )


def test_the_note_survives_the_file() -> None:
    text = parsed(tiles(metadata=noted())).metadata["facerec"]
    assert json.loads(text)["recipe"] == {"seed": 5}
