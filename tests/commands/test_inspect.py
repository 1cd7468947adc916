"""``facerec inspect``: what it says of every kind of file, and that it refuses in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from helpers.toy_onnx import noted, tiles  # noqa: E402

from facerec.backbones import Backbone, Preprocessing, create_backbone  # noqa: E402
from facerec.commands import inspect as command  # noqa: E402
from facerec.embedding import save_model  # noqa: E402
from facerec.embedding.bundle import BUNDLE_SCHEMA, write_sums  # noqa: E402
from facerec.files import sha256  # noqa: E402


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")


def test_a_strangers_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiles(metadata={"author": "[red]me[/red]"})
    model.producer_name = "builder"
    path, out = tmp_path / "theirs.onnx", tmp_path / "inspection.json"
    onnx.save(model, path)
    command.main([str(path), "--json", str(out)])
    text = capsys.readouterr().out
    for words in (
        sha256(path),
        "1,176 parameters",
        "opset 17, IR 8",
        "builder",
        "data float32 [batch, 3, 112, 112]",
        "embedding float32 [batch, 8]",
        "Cast 1, AveragePool 1, Flatten 1, Gemm 1",
        "author: [red]me[/red]",
        "RGB, (pixel − 127.5) / 127.5",
        "an assumption: nothing in the file tells",
        "embeddings of 8 numbers",
    ):
        assert words in text
    found = json.loads(out.read_text())
    assert found["preprocessing_assumed"] == ["channels", "mean", "std"]
    assert found["facts"]["operators"].startswith("Cast 1")


def test_runs_and_bundles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Backbone("iresnet18", embedding_size=16, width=0.125)
    backbone = create_backbone(config, seed=1)
    save_model(tmp_path / "run/model.safetensors", backbone, config, Preprocessing("bgr"), {})
    command.main([str(tmp_path / "run")])
    text = capsys.readouterr().out
    assert "iresnet18, width 0.125" in text and "BGR, (pixel" in text
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    onnx.save(tiles(metadata=noted()), bundle / "model.onnx")
    (bundle / "facerec.json").write_text(json.dumps({"schema": BUNDLE_SCHEMA}))
    write_sums(bundle)
    command.main([str(bundle)])
    assert "whose checksums are right" in capsys.readouterr().out


def test_a_file_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(b"\0" * 100)
    with pytest.raises(SystemExit) as exit_:
        command.main([str(path)])
    captured = capsys.readouterr()
    assert exit_.value.code == 2 and captured.out == ""
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
