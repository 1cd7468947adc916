"""``facerec inspect``: what it says of every kind of file, and that it refuses in one sentence."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from helpers.toy_onnx import noted, tiles  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import facerec  # noqa: E402
from facerec.backbones import Backbone, Preprocessing, create_backbone  # noqa: E402
from facerec.commands import inspect as command  # noqa: E402
from facerec.embedding import engines, save_model, trial  # noqa: E402
from facerec.embedding.bundle import BUNDLE_SCHEMA, write_sums  # noqa: E402
from facerec.files import sha256  # noqa: E402

pytestmark = pytest.mark.integration

INSIDE = [("Sub", 127.5), ("Mul", 1 / 127.5)]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")


def save(path: Path, model: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def inspected(
    path: Path, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[str, dict[str, Any]]:
    """Return what is printed and what is written."""
    out = path.parent / "inspection.json"
    command.main([str(path), "--json", str(out), *flags])
    found = json.loads(out.read_text())
    out.unlink()
    return capsys.readouterr().out, found


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(SystemExit) as exit_:
        command.main([str(path), "--json", str(path.parent / "inspection.json")])
    captured = capsys.readouterr()
    assert exit_.value.code == 2 and captured.out == ""
    assert sorted(path.parent.rglob("*")) == before
    assert captured.err.startswith("error: ") and captured.err[:-1].isprintable()
    return captured.err


def suits(found: dict[str, Any]) -> dict[str, Any]:
    return {row["consumer"]: row["suits"] for row in found["consumers"]}


def test_a_strangers_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiles(metadata={"author": "[red]me[/red]"})
    model.producer_name = "builder"
    path = save(tmp_path / "theirs.onnx", model)
    text, found = inspected(path, capsys)
    for words in (
        str(path),
        sha256(path),
        f"{path.stat().st_size:,} bytes, 1,176 parameters",
        "opset 17, IR 8",
        "builder",
        "data float32 [batch, 3, 112, 112]",
        "embedding float32 [batch, 8]",
        "Cast 1, AveragePool 1, Flatten 1, Gemm 1",
        "author: [red]me[/red]",
        "RGB, (pixel − 127.5) / 127.5",
        "an assumption: nothing in the file tells",
        "insightface would feed RGB normalised by 127.5/127.5",
        "embeddings of 8 numbers",
    ):
        assert words in text
    assert found["preprocessing"]["stated"] is False
    assert found["preprocessing"]["value"]["std"] == 127.5
    assert found["inputs"] == [
        {"name": "data", "dtype": "float32", "shape": ["batch", 3, 112, 112]}
    ]
    assert found["operators"]["Gemm"] == 1 and found["metadata"] == {"author": "[red]me[/red]"}
    assert found["bundle"] is None
    assert "channel order unknown" in text
    assert suits(found) | {"OpenVINO": True} == {
        "facerec": None,
        "onnxruntime": True,
        "OpenVINO": True,
        "OpenCV DNN": True,
        "insightface, a bare path": None,
        "insightface ≥ 2, a manifest": None,
        "OpenCV FaceRecognizerSF": False,
        "Triton, dynamic batching": True,
    }


@pytest.mark.parametrize(
    ("options", "preprocessing", "different"),
    [
        ({"batch": 2}, "RGB, (pixel", {"insightface, a bare path", "insightface ≥ 2, a manifest"}),
        ({"batch": 1}, "RGB, (pixel", set()),
        (
            {"layout": "NHWC"},
            "RGB, (pixel",
            {"insightface, a bare path", "insightface ≥ 2, a manifest"},
        ),
        ({"leading": INSIDE}, "inside the graph", {"insightface, a bare path"}),
        (
            {"leading": INSIDE, "dtype": TensorProto.UINT8},
            "inside the graph",
            {"insightface, a bare path"},
        ),
        (
            {"metadata": noted(preprocessing={"channels": "bgr", "mean": 127.5, "std": 128.0})},
            "BGR, (pixel − 127.5) / 128",
            {"insightface, a bare path", "insightface ≥ 2, a manifest"},
        ),
        ({"side": 224}, "RGB, (pixel", set()),
        ({"side": 98}, "RGB, (pixel", {"insightface, a bare path"}),
    ],
)
def test_consumers_are_told_apart(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, Any],
    preprocessing: str,
    different: set[str],
) -> None:
    text, found = inspected(save(tmp_path / "tiles.onnx", tiles(**options)), capsys)
    assert preprocessing in text
    told = suits(found)
    # Where nothing tells the order of channels, nobody knows whether RGB suits.
    known = True if "metadata" in options else None
    assert told["facerec"] is known and told["onnxruntime"]
    insightface = {name: yes for name, yes in told.items() if name.startswith("insight")}
    assert {name for name, yes in insightface.items() if yes is False} == different
    assert {*insightface.values()} <= {False, known}
    assert ("channel order unknown" in text) is (known is None)
    fixed = isinstance(options.get("batch"), int)
    assert told["Triton, dynamic batching"] is not fixed
    raw = options == {"leading": INSIDE}
    assert told["OpenCV FaceRecognizerSF"] is (None if raw else False)


@pytest.mark.parametrize(("name", "known"), [("w600k_r50.onnx", True), ("adaface.onnx", False)])
def test_a_name_tells_the_order_of_channels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, known: bool
) -> None:
    text, found = inspected(save(tmp_path / name, tiles()), capsys)
    assert suits(found)["insightface, a bare path"] is known and "order unknown" not in text


def test_node_names_tell_insightface_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The double normalisation that only names prevent."""
    model = tiles(leading=INSIDE)
    _, found = inspected(save(tmp_path / "twice.onnx", model), capsys)
    row = next(row for row in found["consumers"] if row["consumer"] == "insightface, a bare path")
    assert (
        row["suits"] is False
        and row["remark"] == "feeds RGB with mean 127.5 and std 127.5, which is not what it wants"
    )
    model.graph.node[1].name, model.graph.node[2].name = "Sub_", "Mul_"
    _, found = inspected(save(tmp_path / "once.onnx", model), capsys)
    assert suits(found)["insightface, a bare path"] is None


def test_a_file_that_is_no_embedding_model_is_shown_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiles()
    value = helper.make_tensor_value_info("flat", TensorProto.FLOAT, None)
    model.graph.output.append(value)
    text, found = inspected(save(tmp_path / "two.onnx", model), capsys)
    assert "an embedding model has one input and one output" in text
    assert suits(found) == {"facerec": False, "insightface, a bare path": False}
    del model.graph.input[:]
    text, found = inspected(save(tmp_path / "none.onnx", model), capsys)
    assert "the file has no input" in text and found["inputs"] == []


def test_names_of_the_model_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiles(metadata={"\x1b[2J": "a\nb", "\u202e": "[bold]x"})
    model.producer_name = "\x1b]0;title\x07"
    name = "\x1b[31m[blink]"
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "\x9b1m"
    text, found = inspected(save(tmp_path / "evil.onnx", model), capsys)
    assert text.replace("\n", "").isprintable()
    assert "\\x1b[31m[blink] float32 [\\x9b1m, 3" in text and "\\x1b[2J: a\\nb" in text
    assert found["inputs"][0]["name"] == name


@pytest.mark.parametrize(
    "kind", ["external", "domain", "cut", "absent", "operands", "opset", "rank"]
)
def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    model = tiles()
    sentences = {
        "external": "lies in another file ('../../secret'), which is not read",
        "domain": "the operator 'Gemm' of 'evil' is not part of standard ONNX",
        "cut": "not a whole .onnx file",
        "absent": "cannot be read",
        "operands": "the operator 'Conv' is not as ONNX defines it",  # it crashes OpenVINO
        "opset": "of opset 1099511627776, this onnx knows 1 to",  # it keeps OpenVINO busy
        "rank": "the tensor 'one' has 65 dimensions, at most 16",  # numpy ends at 64
    }
    if kind == "external":
        tensor = model.graph.initializer[0]
        tensor.external_data.add(key="location", value="../../secret")
    elif kind == "domain":
        model.graph.node[-1].domain = "evil"
    elif kind == "operands":
        model.graph.node.append(helper.make_node("Conv", ["data"], ["z"]))
    elif kind == "opset":
        model.opset_import[0].version = 2**40
    elif kind == "rank":
        one = numpy_helper.from_array(np.ones(1, np.float32), "one")
        one.dims[:] = [1] * 65
        model.graph.initializer.append(one)
        model.graph.node.append(helper.make_node("Mul", ["data", "one"], ["z"]))
    path = save(tmp_path / "bad.onnx", model)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif kind == "absent":
        path.unlink()
    assert sentences[kind] in refused(path, capsys)


def test_engines_are_left_alone_where_that_is_wished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("facerec.embedding.model.OnnxModel", load)
    monkeypatch.setattr(command, "_opencv_size", load)
    _, found = inspected(save(tmp_path / "theirs.onnx", tiles()), capsys, "--no-load")
    assert [row["suits"] for row in found["consumers"] if row["basis"] == "tried"] == [None] * 3


def test_engines_that_are_missing_or_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    model = tiles()
    model.graph.node[-1].input[0] = "nowhere"
    _, found = inspected(save(tmp_path / "broken.onnx", model), capsys)
    told = suits(found)
    assert told["OpenVINO"] is None
    assert told["onnxruntime"] is False and told["OpenCV DNN"] is False


def test_a_crash_of_opencv_is_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGFPE)"
    monkeypatch.setattr(command, "_OPENCV_TRIAL", crash)
    path = save(tmp_path / "tiles.onnx", tiles())
    _, found = inspected(path, capsys)
    row = next(row for row in found["consumers"] if row["consumer"] == "OpenCV DNN")
    assert row["suits"] is False and "its process ended by signal 8" in row["remark"]
    monkeypatch.setattr(command, "_OPENCV_TRIAL", "while True: pass")
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 0.5)
    monkeypatch.setattr(engines, "_OPENVINO_TRIAL", "while True: pass")
    _, found = inspected(path, capsys)
    told = {row["consumer"]: row["remark"] for row in found["consumers"]}
    assert "no embedding after 0.5 seconds" in told["OpenCV DNN"]
    if importlib.util.find_spec("openvino"):
        assert "no embedding after 0.5 seconds" in told["OpenVINO"]


def test_opencv_is_tried_without_the_working_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cv2.py").write_text("open('sprung', 'w')")
    monkeypatch.chdir(tmp_path)
    _, found = inspected(save(tmp_path / "tiles.onnx", tiles()), capsys)
    assert suits(found)["OpenCV DNN"] is True and not (tmp_path / "sprung").exists()


def test_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    save(folder / "model.onnx", tiles(metadata=noted()))
    save(folder / "variants" / "int8.onnx", tiles())
    note = {"schema": BUNDLE_SCHEMA, "name": "mine"}
    (folder / "facerec.json").write_text(json.dumps(note))
    write_sums(folder)
    text, found = inspected(folder, capsys)
    assert "3 files, all checksums right" in text and "int8" in text
    assert "its metadata entry 'facerec' says so" in text and "facerec's own note" in text
    assert found["bundle"]["note"] == note and found["bundle"]["variants"] == ["int8"]
    assert found["preprocessing"]["stated"] is True
    (folder / "variants" / "int8.onnx").write_bytes(b"")
    assert "its SHA-256 is not the one in SHA256SUMS" in refused(folder, capsys)


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Backbone("iresnet18", embedding_size=16, width=0.125)
    backbone = create_backbone(config, seed=1)
    path = tmp_path / "run" / "model.safetensors"
    save_model(path, backbone, config, Preprocessing("bgr"), {"seed": 5})
    text, found = inspected(path.parent, capsys)
    count = sum(np.prod(parameter.shape) for parameter in backbone.parameters())
    assert f"{path.stat().st_size:,} bytes, {count:,} parameters" in text
    assert "iresnet18, width 0.125" in text and "BGR, (pixel − 127.5) / 127.5" in text
    assert found["sha256"] == sha256(path) and found["recipe"] == {"seed": 5}
    assert found["backbone"]["name"] == "iresnet18" and found["parameters"] == count


def test_its_door_leaves_pythons_own_module_alone() -> None:
    """A tools/inspect.py would be imported by the standard library in every door."""
    tools = Path(facerec.__file__).parent.parent / "tools"
    assert not (tools / "inspect.py").exists()
    run = subprocess.run(
        [sys.executable, str(tools / "inspect_model.py"), "--help"], capture_output=True, text=True
    )
    assert run.returncode == 0 and run.stdout.startswith("usage: inspect_model.py")
