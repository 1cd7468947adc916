"""A backbone in a user's own file: trained, verified, exported as on the page, and not found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.tiny_training import write_training_set
from helpers.toy_files import faces
from helpers.toy_packs import make_pack
from pytest import MonkeyPatch

from facerec.backbones import create_backbone, list_backbones, registry
from facerec.base.errors import ModelError
from facerec.base.recipe import load_recipe
from facerec.commands.export_onnx import main as export_onnx
from facerec.commands.train import main as train
from facerec.commands.verify import main as verify
from facerec.embedding import load_model, save_model
from facerec.training import Recipe
from tests.commands.conftest import Refused

PAGE = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
BLOCKS = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL))
SMALL = ["--batch-size", "12", "--epochs", "1", "--precision", "fp32", "--workers", "0"]


@pytest.fixture
def fresh(monkeypatch: MonkeyPatch) -> Any:
    """Forget what the test registers, also in its middle, as another process does."""
    own = dict(registry._builders)
    monkeypatch.setattr(registry, "_builders", dict(own))
    monkeypatch.delenv(registry.OWN_FILES, raising=False)

    def forget() -> None:
        monkeypatch.setattr(registry, "_builders", dict(own))

    return forget


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: MonkeyPatch, fresh: Any) -> Path:
    """The files of the page, with data beside them."""
    (tmp_path / "plainnet.py").write_text(BLOCKS["facerec/backbones/plainnet.py"])
    (tmp_path / "plain.py").write_text(BLOCKS["plain.py"])
    write_training_set(tmp_path / "data" / "train")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_model_needs_the_file_that_registers_its_backbone(
    workplace: Path, fresh: Any, monkeypatch: MonkeyPatch
) -> None:
    recipe = load_recipe(workplace / "plain.py", Recipe)
    assert load_recipe(workplace / "plain.py", Recipe) == recipe  # the file runs again
    path = workplace / "model.safetensors"
    backbone = create_backbone(recipe.backbone, seed=0)
    save_model(path, backbone, recipe.backbone, recipe.preprocessing, {})
    first = load_model(path).embed(faces(3))
    fresh()
    assert "plainnet" not in list_backbones()
    with pytest.raises(ModelError, match=r"is called 'plainnet'.*FACEREC_BACKBONES"):
        load_model(path)
    monkeypatch.setenv("FACEREC_BACKBONES", "plainnet.py")
    np.testing.assert_array_equal(load_model(path).embed(faces(3)), first)


@pytest.mark.integration
def test_it_trains_and_is_verified_and_exported(
    workplace: Path, fresh: Any, monkeypatch: MonkeyPatch, refused: Refused
) -> None:
    pytest.importorskip("onnxruntime")
    train(["plain.py", "--device", "cpu", *SMALL])
    pack = make_pack(workplace / "toy.bin", per_fold=1)
    arguments = ["--model", "runs/plain", "--bench", str(pack)]
    fresh()
    assert "FACEREC_BACKBONES" in refused(verify, *arguments)
    monkeypatch.setenv("FACEREC_BACKBONES", "plainnet.py")
    verify([*arguments, "--json", "out.json"])
    assert json.loads((workplace / "out.json").read_text())["results"]
    export_onnx(["runs/plain", "--out", "bundle"])
    ours, exported = load_model("runs/plain"), load_model("bundle")
    np.testing.assert_allclose(exported.embed(faces(3)), ours.embed(faces(3)), rtol=1e-4, atol=1e-5)
