"""The main job on a handful of faces: records → train → embed → verify → audit → export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from facerec.embedding import load_model, read_embeddings

pytestmark = pytest.mark.integration


def test_every_step_leaves_what_the_next_one_reads(main_job: Path) -> None:
    assert {path.name for path in main_job.iterdir()} >= {
        *("data", "images", "records", "whole.rec", "runs", "e.npz", "lfw.json", "lfw_copy.npz"),
        *("audit", "bundle"),
    }
    model = load_model(main_job / "runs" / "run")
    embeddings = read_embeddings(main_job / "e.npz")
    assert embeddings.vectors.shape == (6 * 4, 16) and np.isfinite(embeddings.vectors).all()
    (result,) = json.loads((main_job / "lfw.json").read_text())["results"]
    assert result["bench"] == "lfw"
    audit = json.loads((main_job / "audit" / "audit.json").read_text())
    assert audit["groups"] and (main_job / "audit" / "audit.html").is_file()
    image = np.random.default_rng(0).integers(0, 256, (1, 112, 112, 3), np.uint8)
    exported = load_model(main_job / "bundle")
    np.testing.assert_allclose(exported.embed(image), model.embed(image), rtol=1e-3, atol=1e-4)
