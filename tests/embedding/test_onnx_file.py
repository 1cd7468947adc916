"""Files of others: what is read of them, and that hostile ones end in one sentence."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

from helpers.toy_onnx import noted, parsed, tiles  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from facerec.base.errors import FacerecError, ModelError  # noqa: E402
from facerec.embedding import onnx_file  # noqa: E402
from facerec.embedding.model import OnnxModel  # noqa: E402
from facerec.embedding.onnx_file import (  # noqa: E402
    TensorInfo,
    parse_onnx,
    read_onnx,
)
from facerec.embedding.onnx_preprocessing import guess_preprocessing  # noqa: E402


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
    assert file.parameters == 8 * 147


FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
IMAGE = ("x", FLOAT, ["n", 3, 112, 112])
VECTOR = ("y", FLOAT, ["n", 512])


@pytest.mark.parametrize(
    ("inputs", "outputs", "sentence"),
    [
        ([IMAGE, ("mask", FLOAT, ["n"])], [VECTOR], "found x float32 .*; mask float32"),
        ([IMAGE], [VECTOR, ("norm", FLOAT, ["n", 1]), ("z", FLOAT, ["n", 1])], "; z float32"),
        ([IMAGE], [VECTOR, ("class", TensorProto.INT64, ["n"])], "; class int64"),
        ([("x", FLOAT, ["n", 112, 112])], [VECTOR], r"found x float32 \[n, 112, 112\]"),
        ([("x", FLOAT, [])], [VECTOR], r"found x float32 \[\]"),
        ([("x", HALF, ["n", 3, 112, 112])], [VECTOR], "found x float16"),
        ([("x", FLOAT, ["n", 3, "height", "width"])], [VECTOR], r"\[n, 3, height, width\]"),
        ([("x", FLOAT, [2000, 3, 112, 112])], [VECTOR], "up to 1024"),
    ],
)
def test_interfaces_of_other_kinds(inputs: Any, outputs: Any, sentence: str) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", [inputs[0][0]], [name]) for name, _, _ in outputs],
        "copies",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = parsed(model)  # it can be looked at
    with pytest.raises(ModelError, match=sentence):
        file.image_input()


# --- weights in other files -------------------------------------------------------------------


NUMBERS = np.random.default_rng(0).normal(size=(8, 147)).astype(np.float32).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder of a model with weights beside it, and a secret outside."""
    folder = tmp_path / "models" / "theirs"
    (folder / "parts").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(NUMBERS)
    (folder / "weights.bin").write_bytes(b"head" + NUMBERS)
    (folder / "parts" / "one").write_bytes(NUMBERS)
    (folder / "link").symlink_to("../../secret")
    (folder / "out").symlink_to("../..")
    os.mkfifo(folder / "pipe")
    return folder


def external(tensor: TensorProto, location: str, **entries: str) -> None:
    """Move the numbers of a tensor into another file, by word alone."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)


def beside(folder: Path, location: str, **entries: str) -> Path:
    model = tiles()
    external(model.graph.initializer[0], location, **entries)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


@pytest.mark.parametrize(
    ("location", "entries"),
    [
        *((place, {}) for place in ("../../secret", "parts/../../../secret", "/etc/passwd", "")),
        *((place, {}) for place in ("link", "out/secret", "absent.bin", "pipe", "parts", ".")),
        *(("weights.bin", {"offset": offset}) for offset in ("5", "4709", "-4", "4.0")),
        *(("weights.bin", {"offset": "4", "length": n}) for n in ("4000", "4705", "9" * 30)),
        ("..\x1b[2J", {}),
    ],
)
def test_no_path_leaves_the_folder_and_weights_fit(
    folder: Path, location: str, entries: dict[str, str]
) -> None:
    before = sorted(folder.rglob("*"))
    path = beside(folder, location, **entries)
    with pytest.raises(ModelError) as caught:
        OnnxModel(read_onnx(path))
    assert str(caught.value).startswith(str(folder)) and str(caught.value).isprintable()
    assert sorted(folder.rglob("*")) == sorted({*before, path})


@pytest.mark.parametrize(
    ("location", "entries"), [("parts/one", {}), ("weights.bin", {"offset": "4"})]
)
def test_weights_in_the_same_folder_are_read(
    folder: Path, location: str, entries: dict[str, str]
) -> None:
    path = beside(folder, location, **entries)
    file = read_onnx(path)
    inside = onnx.load_model_from_string(file.content).graph.initializer[0]
    assert inside.raw_data == NUMBERS and not inside.external_data
    # The hash tells other weights apart, with the same file before them.
    (folder / "parts" / "one").write_bytes(NUMBERS[::-1])
    (folder / "weights.bin").write_bytes(b"head" + NUMBERS[::-1])
    assert read_onnx(path).sha256 != file.sha256


def test_all_files_together_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = beside(folder, "parts/one")
    whole = path.stat().st_size + len(NUMBERS)
    monkeypatch.setattr(onnx_file, "MAX_BYTES", whole)
    assert len(read_onnx(path).content) > len(NUMBERS)
    monkeypatch.setattr(onnx_file, "MAX_BYTES", whole - 1)
    with pytest.raises(ModelError, match="read in all"):
        read_onnx(path)
    # A small file that is named by many tensors would become a large one.
    model = onnx.load_model_from_string(path.read_bytes())
    model.graph.initializer.extend([model.graph.initializer[0]] * 9)
    path.write_bytes(model.SerializeToString())
    monkeypatch.setattr(onnx_file, "MAX_BYTES", path.stat().st_size + 5 * len(NUMBERS))
    with pytest.raises(ModelError, match="read in all"):
        read_onnx(path)


@pytest.mark.parametrize("hidden", ["unmarked", "attribute", "list", "unlisted"])
def test_weights_in_other_files_are_found_wherever_they_hide(hidden: str) -> None:
    model = tiles()
    tensor = TensorProto(data_type=FLOAT, dims=[2], name="hidden")
    external(tensor, "/etc/passwd")
    if hidden in ("unmarked", "unlisted"):
        if hidden == "unmarked":
            tensor.data_location = TensorProto.DEFAULT
        else:
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
    with pytest.raises(ModelError, match="hidden"):
        parsed(model)


# --- hostile graphs ---------------------------------------------------------------------------


def custom_domain(model: onnx.ModelProto) -> None:
    model.graph.node[1].domain = "com.evil"
    model.opset_import.append(helper.make_opsetid("com.evil", 1))


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


def sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add().dims.append(2)


def sparse_attribute(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="sparse_value")
    attribute.sparse_tensor.dims.append(2)


def declared(*dims: int) -> Callable[[Any], None]:
    def change(model: onnx.ModelProto) -> None:
        del model.graph.initializer[0].dims[:]
        model.graph.initializer[0].dims.extend(dims)

    return change


def growing(kind: str, *shape: int) -> Callable[[Any], None]:
    """Make a huge tensor out of a shape that takes a few bytes."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), "shape"))
        source = {"ConstantOfShape": [], "Expand": ["one"], "Tile": ["ones"]}[kind]
        one = np.ones([1] * (len(shape) if kind == "Tile" else 1), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(one, "".join(source) or "none"))
        model.graph.node.append(helper.make_node(kind, [*source, "shape"], ["huge"]))

    return change


def many_nodes(model: onnx.ModelProto) -> None:
    model.graph.node.extend([helper.make_node("Identity", ["data"], ["z"])] * 50_000)


@pytest.mark.parametrize(
    "change",
    [
        custom_domain,
        function,
        branch(20),
        branch(1, onnx.AttributeProto.FLOAT),
        sparse,
        sparse_attribute,
        *(declared(*shape) for shape in ([2**40], [2**40] * 3, [8, 146], [-8, -147])),
        growing("ConstantOfShape", 2**20, 2**20),
        growing("Expand", 2**31),
        growing("Tile", 2**15, 2**15),
        many_nodes,
    ],
)
def test_hostile_graphs_end_in_a_sentence(change: Callable[[Any], None]) -> None:
    model = tiles()
    change(model)
    with pytest.raises(ModelError) as caught:
        OnnxModel(parsed(model))
    sentence = str(caught.value)
    assert sentence.startswith("x.onnx: ") and sentence.isprintable() and len(sentence) < 500


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
    except FacerecError as error:
        assert "\n" not in str(error) and str(error).isprintable()


@pytest.mark.parametrize(
    "text",
    ["{", "[" * 100_000, '{"format": 1, "flip": NaN}', "[1]", '{"format": 1, "recipe": 3}', "{}"],
)
def test_a_damaged_note(text: str) -> None:
    file = parsed(tiles(metadata={"facerec": text}))
    for ask in (lambda: file.note, lambda: guess_preprocessing(file)):
        with pytest.raises(ModelError, match="its metadata"):
            ask()
