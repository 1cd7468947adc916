"""What ``facerec audit-plan`` prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_audit import default_audit

from facerec.commands.audit_plan import main
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import write_embeddings
from facerec.fairness.outputs import to_json

FEW = ["--audits", "50", "--images", "2"]


def test_people_for_a_difference_of_norms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_file, plot = tmp_path / "plan.json", tmp_path / "power.svg"
    main(["norms", "--eta2", "0.2", *FEW, "--json", str(json_file), "--plot", str(plot)])
    document = json.loads(json_file.read_text(encoding="utf-8"))
    (answer,) = document["answers"]
    assert document["searched"] == "people" and 20 <= answer["people"] < 80
    text = capsys.readouterr().out
    assert f"{answer['people']:,}" in text and "LFW" in text and "η²" in text
    assert plot.read_bytes().startswith(b"<?xml")


def test_variation_of_an_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(to_json(default_audit())), encoding="utf-8")
    main(["norms", "--people", "100", *FEW, "--from", str(path)])
    assert "variation: audit.json" in " ".join(capsys.readouterr().out.split())


def test_variation_of_embeddings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(30), 4)
    vectors = rng.standard_normal((30, 16))[person] + 0.4 * rng.standard_normal((120, 16))
    vectors = vectors.astype(np.float32)
    ids = np.array([f"{row}.jpg" for row in range(120)])
    norms = np.linalg.norm(vectors, axis=1)
    names = np.array([f"p{one}" for one in person])
    path = tmp_path / "e.npz"
    write_embeddings(path, Embeddings(vectors, norms, False, ids, subjects=names))
    main(["norms", "--people", "100", *FEW, "--from", str(path)])
    assert "variation: e.npz" in " ".join(capsys.readouterr().out.split())
    write_embeddings(path, Embeddings(vectors, norms, False, ids))
    with pytest.raises(SystemExit) as stop:
        main(["norms", "--people", "100", *FEW, "--from", str(path)])
    assert stop.value.code == 2 and "--attributes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["norms"], "--eta2"),
        (["norms", "--ratio", "2"], "--ratio"),
        (["fmr", "--ratio", "2", "--people", "100"], "--people"),
        (["fmr", "--ratio", "2", "--shares", "1"], "--shares"),
        (["fmr", "--ratio", "2", "--images", "1"], "mated"),
        (["fmr", "--ratio", "50"], "at most 10"),
        (["fmr", "--ratio", "3", "--fmr", "1e-2"], "lower --fmr"),
        (["fnmr", "--people", "100", "--fnmr", "0.5"], "lower --fnmr"),
        (["fmr", "--ratio", "2", "--fmr", "0.5"], "--fmr must be"),
        (["norms", "--eta2", "2"], "--eta2 must be"),
        (["norms", "--people", "100", "--from", "nothing.json"], "nothing.json"),
        (["norms", "--people", "100", "--from", "model.onnx"], "model.onnx"),
        (["norms", "--people", "100", "--group", "gender"], "--from"),
        (["norms", "--people", "100", "--from", "e.npz", "--group", "gender"], "--attributes"),
        (["norms", "--people", "100", "--plot", "x.gif"], "x.gif"),
        (["norms", "--people", "100", "--fmr", "1e-4"], "--fmr is no setting"),
        (["fmr", "--people", "100", "--fnmr", "0.1"], "--fnmr is no setting"),
        (["fnmr-interval", "--width", "0.2", "--shares", "3", "1"], "--shares is no setting"),
    ],
)
def test_what_is_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        main(flags)
    captured = capsys.readouterr()
    assert stop.value.code == 2 and said in captured.err + captured.out
