"""`OnnxModel` and `load_model`: any embedding file, ours or a stranger's, from uint8 RGB on."""

from __future__ import annotations

import json
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_files import faces

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import torch
from helpers.thin import thinned
from helpers.toy_onnx import expected, noted, same, tiles
from onnx import TensorProto

from facerec.backbones import Preprocessing, create_backbone
from facerec.base.errors import ModelError
from facerec.base.files import sha256
from facerec.embedding import OnnxModel, TorchModel, load_model
from facerec.embedding.bundle import BUNDLE_SCHEMA, write_sums

UNSCALED = Preprocessing("rgb", 0.0, 1.0)
RGB = Preprocessing()
UINT8 = TensorProto.UINT8
INSIDE = [("Sub", 127.5), ("Mul", 1 / 127.5)]


def written(path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tiles(**options).SerializeToString())
    return path


# --- preprocessing ----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(
    ("layout", "batch"),
    thinned(
        product(["NCHW", "NHWC"], [1, 4, "n"]), lambda *pair: pair in (("NCHW", "n"), ("NHWC", 4))
    ),
)
@pytest.mark.parametrize("kind", ["outside", "inside", "uint8"])
def test_every_kind_of_file_gives_the_same_embeddings(
    tmp_path: Path, engine: Any, layout: str, batch: Any, kind: str
) -> None:
    """Whoever normalises, the embedding of the pixels is one."""
    pytest.importorskip(engine)
    options: dict[str, Any] = {"layout": layout, "batch": batch}
    if kind != "outside":
        options["leading"] = INSIDE
    if kind == "uint8":
        options["dtype"] = UINT8
    path = written(tmp_path / "tiles.onnx", **options)
    model = load_model(path, batch_size=3, engine=engine)
    assert model.preprocessing == (RGB if kind == "outside" else UNSCALED)
    assert model.batch_size == (3 if batch == "n" else batch)
    same(model.embed(faces(5)), expected(faces(5), RGB))
    same(load_model(path, channels="bgr").embed(faces(5)), expected(faces(5), Preprocessing("bgr")))
    assert model.embed(faces(0)).shape == (0, 8)


@pytest.mark.parametrize(
    "stated", [RGB, Preprocessing("bgr", 127.5, 128.0), Preprocessing("rgb", 0.0, 255.0)]
)
def test_what_the_file_states_is_used(tmp_path: Path, stated: Preprocessing) -> None:
    entry = {"channels": stated.channels, "mean": stated.mean, "std": stated.std}
    path = written(tmp_path / "ours.onnx", metadata=noted(preprocessing=entry))
    model = load_model(path)
    assert model.preprocessing == stated
    same(model.embed(faces(3)), expected(faces(3), stated))
    assert model.recipe == {"seed": 5} and model.note is not None
    assert load_model(path, channels=stated.channels, std=stated.std).preprocessing == stated
    told = json.loads(json.dumps(model.describe()))
    assert told["preprocessing_evidence"][0] == "its metadata entry 'facerec' says so"


@pytest.mark.parametrize(
    ("options", "asked", "sentence"),
    [
        ({"metadata": noted()}, {"mean": 0.0}, "the file wants mean 127.5, so mean 0.0 would be w"),
        ({"metadata": noted()}, {"channels": "bgr"}, "wants channels rgb, so channels bgr would"),
        ({"dtype": UINT8}, {"mean": 127.5}, "wants mean 0.0"),
    ],
)
def test_a_preprocessing_that_the_file_contradicts(
    tmp_path: Path, options: Any, asked: Any, sentence: str
) -> None:
    path = written(tmp_path / "tiles.onnx", **options)
    with pytest.raises(ModelError, match=rf"tiles.onnx: .*{sentence}"):
        load_model(path, **asked)


def test_a_guess_yields_to_the_user(tmp_path: Path) -> None:
    path = written(tmp_path / "theirs.onnx", leading=INSIDE)
    model = load_model(path, mean=10.0)
    assert model.preprocessing == Preprocessing("rgb", 10.0, 127.5)
    told = model.describe()["preprocessing_evidence"]
    assert told[0] == "mean was given by the user" and "Sub 127.5" in told[1]
    # A graph that scales pixels of 0…1 gets those.
    path = written(tmp_path / "unit.onnx", leading=[("Sub", 0.5), ("Div", 0.5)])
    same(load_model(path).embed(faces(2)), expected(faces(2), RGB))


def test_what_torch_exports_by_default_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    path = tmp_path / "theirs" / "net.onnx"
    path.parent.mkdir()
    net = create_backbone("iresnet18", width=0.125, embedding_size=16, seed=0).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.zeros(1, 3, 112, 112),), path, verbose=False)
    wanted = TorchModel(net, Preprocessing()).embed(faces(2))
    monkeypatch.chdir(path.parent)
    for place in (path, Path("net.onnx")):
        found = load_model(place).embed(faces(2))
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    path.with_name("net.onnx.data").unlink()
    with pytest.raises(ModelError, match="cannot be used"):
        load_model(path)


# --- bundles ----------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    written(folder / "model.onnx", metadata=noted())
    inside = {"leading": INSIDE, "dtype": UINT8}
    written(folder / "variants" / "uint8.onnx", **inside)
    (folder / "facerec.json").write_text(json.dumps({"schema": BUNDLE_SCHEMA}))
    write_sums(folder)
    return folder


def test_a_bundle_is_a_model(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(bundle, batch_size=2)
    assert isinstance(model, OnnxModel) and model.name == "mine"
    assert model.path == bundle / "model.onnx" and model.sha256 == sha256(bundle / "model.onnx")
    same(model.embed(faces(3)), expected(faces(3), RGB))
    variant = load_model(bundle, variant="uint8")
    assert variant.name == "mine (uint8)" and variant.preprocessing == UNSCALED
    same(variant.embed(faces(3)), expected(faces(3), RGB))
    with pytest.raises(
        ModelError, match=r"no variants/int8\.onnx in this bundle, it has .*uint8\.onnx"
    ):
        load_model(bundle, variant="int8")
    monkeypatch.chdir(bundle)
    assert load_model(".").name == "mine"
