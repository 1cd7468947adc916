"""What users bring to the wrong door, or under other names, is named with what to do."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from facerec.base.errors import DatasetError
from facerec.embedding.file import read_embeddings
from tests.commands.conftest import Refused


@pytest.mark.parametrize(
    ("command", "name", "content", "words"),
    [
        ("verify_scores", "s.csv", b"label,cosine\n1,.5\n0,.1\n", "label, cosine --columns"),
        ("verify_scores", "s.txt", b"y_true y_score\n1 .5\n", "y_true, y_score --columns"),
        ("verify_scores --columns score=cos", "s.csv", b"label,sim\n1,.5\n", "'cos' sim"),
        ("make_records --out o --unpack", "x.parquet", b"PAR1", "Parquet make-records"),
        ("make_records --out o", "x.tar.gz", b"\x1f\x8b\x08", "gunzip"),
        ("make_records --out o --unpack", "x.zip", b"PK\3\4", "unzip"),
        ("make_records --out o --unpack", "x.lst", b"0\t0\ta.jpg\n", "x.rec"),
        ("clean --out p.csv", "e.npy", b"\x93NUMPY", "e.txt ids"),
        ("overlap e.npy", "e.npy", b"\x93NUMPY", "e.txt ids"),
        ("overlap m.onnx", "m.onnx", b"\x08\x07", "a model --model"),
        ("verify", "a.jpg", b"", "facerec same a.jpg"),
    ],
)
def test_wrong_doors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
    command: str,
    name: str,
    content: bytes,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    module, *flags = command.split()
    said = refused(importlib.import_module(f"facerec.commands.{module}").main, name, *flags)
    assert name in said and "--repair" not in said
    assert all(word in said for word in words.split()), said


def test_what_is_said_of_other_embeddings_converts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ids, vectors = ["a/1.jpg", "b/1.jpg"], np.eye(2, 3)
    Path("e.json").write_text(json.dumps(dict(zip(ids, vectors.tolist(), strict=True))))
    with pytest.raises(DatasetError) as refused:
        read_embeddings("e.json")
    code = re.search("`(.*)`", str(refused.value))
    assert code is not None
    exec(code[1], {"np": np, "json": json})
    found = read_embeddings("e.npz")
    np.testing.assert_array_equal(found.vectors, vectors)
    assert found.ids is not None and found.ids.tolist() == ids
