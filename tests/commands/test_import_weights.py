from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toy_files import faces
from pytest import CaptureFixture
from safetensors import safe_open
from safetensors.torch import save_file

from facerec.backbones import Preprocessing, create_backbone
from facerec.base.files import sha256
from facerec.commands.import_weights import main
from facerec.embedding import TorchModel, load_model
from facerec.embedding.onnx_file import METADATA_FORMAT
from facerec.export.graph import export_graph
from tests.commands.conftest import Refused

NOTE = {"format": METADATA_FORMAT}
SMALL = ["--embedding-size", "16", "--width", "0.125"]


def foreign(path: Path, name: str = "iresnet18", **options: Any) -> TorchModel:
    """Write the state dict of a backbone as others do; return the model that it belongs to."""
    backbone = create_backbone(name, width=0.125, embedding_size=16, seed=3, **options)
    generator = torch.Generator().manual_seed(0)
    for buffer in backbone.buffers():
        if buffer.dtype == torch.float32:
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    torch.save(backbone.state_dict(), path)
    return TorchModel(backbone, Preprocessing())


@pytest.mark.integration
def test_an_onnx_file_becomes_a_model_that_embeds_the_same(
    tmp_path: Path, refused: Refused
) -> None:
    pytest.importorskip("onnx")
    theirs = foreign(tmp_path / "unused.pth", "mobilefacenet_half", embedding_bn="affine")
    path = tmp_path / "backbone.onnx"
    path.write_bytes(export_graph(theirs.backbone, Preprocessing(), note=NOTE))
    main([str(path), "--backbone", "mobilefacenet_half", *SMALL])
    ours = load_model(tmp_path / "backbone.safetensors")
    np.testing.assert_allclose(ours.embed(faces(3)), theirs.embed(faces(3)), rtol=1e-3, atol=1e-4)
    sentence = refused(main, path, "--backbone", "mbf", *SMALL, "--out", tmp_path / "x.safetensors")
    assert "backbone.onnx" in sentence and not (tmp_path / "x.safetensors").exists()


@pytest.mark.integration
def test_an_onnx_file_of_facerec_says_how_its_pixels_are_prepared(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    theirs = foreign(tmp_path / "unused.pth")
    path = tmp_path / "backbone.onnx"
    # Another mean than 127.5 stays outside of the graph, where the image is padded with zeros.
    path.write_bytes(export_graph(theirs.backbone, Preprocessing("bgr", 120.0, 64.0), note=NOTE))
    main([str(path), "--backbone", "iresnet18", *SMALL])
    ours, exported = load_model(tmp_path / "backbone.safetensors"), load_model(path)
    assert ours.preprocessing == Preprocessing("rgb", 120.0, 64.0)
    np.testing.assert_allclose(ours.embed(faces(3)), exported.embed(faces(3)), rtol=1e-3, atol=1e-4)
    out = tmp_path / "given.safetensors"
    main([str(path), "--backbone", "iresnet18", *SMALL, "--std", "128", "--out", str(out)])
    assert load_model(out).preprocessing == Preprocessing("rgb", 120.0, 128.0)


def wrapped(kind: str, own: dict[str, torch.Tensor]) -> Any:
    """Return a state dict as training code leaves it."""
    head = torch.randn(16, 5)
    lightning = {f"model.{name}": t for name, t in own.items()} | {"head.kernel": head}
    return {
        "arcface_torch": {
            "epoch": 3,
            "state_dict_backbone": own,
            "state_dict_softmax_fc": {"weight": head},
            "state_optimizer": {"state": {0: {"momentum_buffer": head}}, "param_groups": [{}]},
            "state_lr_scheduler": {"base_lrs": [0.1], "last_epoch": 7, "verbose": False},
        },
        "lightning": {"state_dict": lightning},
        "bare head": {**own, "head.weight": head},
        "nothing": own,
        "halves": {name: t.half() if t.is_floating_point() else t for name, t in own.items()},
    }[kind]


@pytest.mark.parametrize(
    ("name", "bn", "kind"),
    [
        ("iresnet18", "frozen_gamma", "nothing"),
        ("vit_t", "affine", "nothing"),
        ("iresnet18", "affine", "bare head"),
        ("mbf", "affine", "lightning"),
        ("r18", "affine", "arcface_torch"),
        ("iresnet18", "frozen_gamma", "halves"),
    ],
)
def test_weights_are_found_in_whatever_training_wraps_around_them(
    tmp_path: Path, capsys: CaptureFixture, name: str, bn: Any, kind: str
) -> None:
    theirs = foreign(tmp_path / "plain.pth", name, embedding_bn=bn)
    path = tmp_path / ("theirs.safetensors" if kind == "halves" else "theirs.ckpt")
    content = wrapped(kind, dict(theirs.backbone.state_dict()))
    if kind == "halves":
        save_file(content, path)
        theirs.backbone.half().float()
    else:
        torch.save(content, path)
    wanted, out = theirs.embed(faces(3)), tmp_path / "ours.safetensors"
    affine = ["--embedding-bn", "affine"] if bn == "affine" else []
    main([str(path), "--backbone", name, "--out", str(out), *SMALL, *affine])
    heads = {"arcface_torch": "state_dict_softmax_fc.weight", "lightning": "state_dict.head.kernel"}
    heads |= {"bare head": "head.weight"}
    said = capsys.readouterr().out
    assert str(out) in said and ("left out" in said) == (kind in heads)
    assert heads.get(kind, "") in said
    ours = load_model(out)
    np.testing.assert_array_equal(ours.embed(faces(3)), wanted)
    assert ours.preprocessing == Preprocessing() and ours.recipe == {}
    assert ours.config.embedding_bn == bn
    with safe_open(out, framework="pt") as file:
        note = json.loads(file.metadata()["facerec"])
    assert note["extra"] == {"imported": {"file": path.name, "sha256": sha256(path)}}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--backbone", "iresnet34", *SMALL], "another architecture"),
        (["--backbone", "iresnet19", *SMALL], "did you mean 'iresnet18'"),
        (["--backbone", "iresnet18", *SMALL, "--std", "0"], "std must be at least"),
    ],
)
def test_wrong_flags_are_refused_and_leave_nothing(
    tmp_path: Path, refused: Refused, arguments: list[str], sentence: str
) -> None:
    path = tmp_path / "backbone.pth"
    foreign(path)
    assert sentence in refused(main, path, *arguments)
    assert [file.name for file in tmp_path.iterdir()] == ["backbone.pth"]


def test_a_file_that_is_there_is_replaced_by_force_alone(tmp_path: Path, refused: Refused) -> None:
    path, out = tmp_path / "backbone.pth", tmp_path / "backbone.safetensors"
    foreign(path)
    out.write_text("mine")
    assert "--force" in refused(main, path, "--backbone", "iresnet18", *SMALL)
    assert out.read_text() == "mine"
    main([str(path), "--backbone", "iresnet18", *SMALL, "--force"])
    assert load_model(out).embedding_size == 16
    # Not even --force puts a file in the place of the one that it is made of.
    before = out.read_bytes()
    assert "--out" in refused(main, out, "--backbone", "iresnet18", *SMALL, "--force")
    assert out.read_bytes() == before
