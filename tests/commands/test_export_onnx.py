from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.calibrations import model_calibration, point
from helpers.toy_files import faces
from helpers.toy_packs import make_pack
from torch import nn

from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.base.files import sha256, write_json
from facerec.commands.export_onnx import main
from facerec.commands.import_weights import main as import_weights
from facerec.embedding import TorchModel, load_model, save_model
from facerec.embedding.bundle import NOTE_FILE, check_sums
from facerec.embedding.calibration import calibration_file
from facerec.export import parity
from facerec.export.bundle import default_folder
from tests.commands.conftest import Told

pytest.importorskip("onnx", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")

SMALL = Backbone("iresnet18", embedding_size=16, width=0.125)


def save_run(folder: Path) -> Path:
    backbone = create_backbone(SMALL, seed=1)
    save_model(folder / "model.safetensors", backbone, SMALL, Preprocessing(), {"seed": 1})
    return folder


@pytest.fixture(scope="module", autouse=True)
def _fewer_repetitions() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parity, "BATCHES", (1, 5))
        yield


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated run, and a pack."""
    folder = tmp_path_factory.mktemp("work")
    weights = save_run(folder / "runs" / "first") / "model.safetensors"
    make_pack(folder / "toy.bin", per_fold=1)
    known = model_calibration(point(0.3), sha256=sha256(weights))
    write_json(calibration_file(weights), known.to_json())
    return folder


@pytest.mark.integration
def test_a_run_becomes_a_bundle_with_all_tables(
    workplace: Path, tmp_path: Path, told: Told
) -> None:
    run, out = workplace / "runs" / "first", tmp_path / "bundle"
    flags = ["--int8", str(workplace / "toy.bin"), "--triton", "--license", "MIT"]
    bench = ["--bench", str(workplace / "toy.bin"), "--max-loss", "50"]
    text = told(main, str(run), "--out", str(out), *flags, *bench)

    assert default_folder(run) == run / "export"
    check_sums(out)
    note = json.loads((out / NOTE_FILE).read_text())
    assert [entry["name"] for entry in note["variants"]] == ["int8"]
    assert note["license"] == "MIT" and (out / "triton" / "first" / "config.pbtxt").is_file()
    assert note["model"]["thresholds"] == [point(0.3)]

    assert (
        re.search(r"B − A +accuracy +\S+ points", text)
        and "10 mated and 10 non-mated pairs" in text
    )
    assert re.search(r"int8.onnx .* worst of \d+: ", text)
    assert re.search(r"onnxruntime +\d+\.\S* +same +\S+e-\d\d +1\.0000000", text)
    assert re.search(r"int8: [\d,]+ bytes, 0\.\d\d of float32, least cosine", text)
    assert text.splitlines()[-1] == f"bundle: {out}"
    assert "in accuracy is unknown" not in text

    found, expected = (load_model(each).embed(faces(3)) for each in (out, run))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.integration
def test_weights_of_others_go_all_the_way(
    tmp_path: Path, told: Told, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A .pth → .safetensors → bundle; trained on BGR, used with RGB images like any other."""
    monkeypatch.chdir(tmp_path)
    backbone = create_backbone("mbf", embedding_size=16, width=0.125, embedding_bn="affine", seed=2)
    # A fresh network maps an image of zeros to zero, which has no cosine.
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in backbone.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.bias.normal_(0, 0.2, generator=generator)
    torch.save(backbone.state_dict(), "theirs.pth")
    size = ["--embedding-size", "16", "--width", "0.125", "--channels", "bgr", "--std", "128"]
    import_weights(["theirs.pth", "--backbone", "mbf", *size])
    text = told(main, "theirs.safetensors")
    assert text.splitlines()[-1] == "bundle: theirs_onnx"
    theirs = TorchModel(backbone, Preprocessing("bgr", 127.5, 128.0)).embed(faces(3))
    scale = np.abs(theirs).max()
    bundled = load_model("theirs_onnx")
    np.testing.assert_allclose(bundled.embed(faces(3)), theirs, atol=1e-5 * scale)
    # Every consumer feeds RGB scaled by 127.5: the file has taken in the rest.
    assert bundled.preprocessing == Preprocessing()
    for again in ("theirs_onnx", "theirs_onnx/model.onnx"):
        assert "exported model already" in refused(main, again)


def test_wrong_flags_end_in_a_sentence_and_leave_nothing(
    workplace: Path, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(workplace / "toy.bin", tmp_path)
    run = shutil.copytree(workplace / "runs" / "first", tmp_path / "run")
    before = sorted(run.iterdir())
    assert "compares int8 with float32" in refused(main, run, "--bench", "toy.bin")
    assert "gone.bin" in refused(main, run, "--int8", "gone.bin")
    assert sorted(run.iterdir()) == before
