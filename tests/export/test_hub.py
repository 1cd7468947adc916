"""Bundles go to a Hub on this machine and come back, the second time without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_hub import COMMIT, FakeHub
from helpers.toy_files import encode

from facerec.base.errors import FacerecError
from facerec.embedding import hub as names
from facerec.embedding import load_model
from facerec.embedding.bundle import EVALUATIONS_FILE, write_sums
from facerec.embedding.file import read_embeddings
from facerec.export.hub import check_push, push_bundle

constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra hub")
pytest.importorskip("onnx", reason="needs the extra onnx")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        # What the library reads from HF_ENDPOINT and HF_HUB_CACHE when it is loaded.
        files = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_0")
        monkeypatch.setenv("HF_ENDPOINT", server.url)  # for the process that fetches
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server
        server.shutdown()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    from helpers.toy_onnx import noted, tiles

    (tmp_path / "made" / "variants").mkdir(parents=True)
    for name in ("model.onnx", "variants/int8.onnx", "facerec.json", "README.md"):
        made = tiles(metadata=noted()).SerializeToString() if "onnx" in name else b"{}"
        (tmp_path / "made" / name).write_bytes(made)
    write_sums(tmp_path / "made")
    return tmp_path / "made"


def test_a_bundle_comes_back_as_it_went(
    hub: FakeHub, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {".gitattributes": b"", "LICENSE": b"", "notes.pth": b""}
    hub.files = {**others, "variants/old.onnx": b"", EVALUATIONS_FILE: b""}
    check_push("owner/name", "mit")
    assert push_bundle(bundle, "owner/name") == f"hf://owner/name@{COMMIT}"
    new = json.loads(dict(hub.requests)["/api/repos/create"])
    assert new.get("private") or new["visibility"] == "private"
    went = {p.relative_to(bundle).as_posix(): p.read_bytes() for p in bundle.rglob("*.*")}
    assert hub.files == {**others, **went, "SHA256SUMS": (bundle / "SHA256SUMS").read_bytes()}
    hub.files["README.md"] = b"edited there"
    hub.requests.clear()
    for name in ("hf://owner/name", Path("hf://owner/name@v1"), f"hf://owner/name@{COMMIT}"):
        model = load_model(name, variant="int8")
        assert model.describe()["hub"] == f"hf://owner/name@{COMMIT}"
        assert model.name == "name (int8)" and model.sha256 == load_model(bundle).sha256
    asked = {path.rpartition("/")[2] for path, _ in hub.requests if "/resolve/" in path}
    assert asked == {"SHA256SUMS", "facerec.json", "model.onnx", "int8.onnx"}
    # From the cache, whose files are checked too.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    file = load_model("hf://owner/name@v1").path
    with pytest.raises(FacerecError, match=r"hf://owner/name@v2: not in the cache"):
        load_model("hf://owner/name@v2")
    assert file is not None and hub.requests == []
    file.resolve().write_bytes(b"changed")
    with pytest.raises(FacerecError, match=r"model.onnx' is [0-9a-f]{64}, and in"):
        load_model("hf://owner/name")


@pytest.mark.parametrize("fault", ["name", "size", "slow"])
def test_a_server_decides_neither_names_nor_sizes_nor_time(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    hub.files, hub.fault = {"facerec.json": b"{}"}, fault
    monkeypatch.setattr(names, "FETCH_SECONDS", 3 if fault == "slow" else 60)
    words = {"name": "no hash", "size": "not in the cache", "slow": "after 3 seconds"}[fault]
    with pytest.raises(FacerecError, match=words):
        load_model("hf://owner/name")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in written) < 3 << 20
    assert all(path.is_relative_to(tmp_path / "cache") for path in written)


LOAD = {
    "hf://name": "hf://OWNER/NAME",
    "hf://owner/name@": "hf://OWNER/NAME",
    "hf://owner/../name": "hf://OWNER/NAME",
    "hf://owner/other": "Repository Not Found",
    "hf://owner/name@gone": "Revision Not Found",
    "hf://owner/name@large": "at most",
    "hf://owner/name": r"hf://owner/name@\w+: no such model",
}
PUSH = {"name": "give OWNER/NAME", "owner/name@v1": "give OWNER/NAME", "owner/name": "HF_TOKEN"}


def test_what_is_refused(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    monkeypatch.setattr(names, "MAX_BYTES", 4)
    for name, words in LOAD.items():
        hub.files = {"pytorch_model.bin": b"pickled"}
        hub.files |= {"model.safetensors": b"12345"} if "large" in name else {}
        with pytest.raises(FacerecError, match=words):
            load_model(name)
    assert not any("/resolve/" in path for path, _ in hub.requests)
    hub.requests.clear()
    for name, words in PUSH.items():
        with pytest.raises(FacerecError, match=words):
            check_push(name, "mit")
    with pytest.raises(FacerecError, match="--license"):
        check_push("owner/name", " ")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FacerecError, match=r"facerec\[hub\]"):
        load_model("hf://owner/name")
    assert hub.requests == []


@pytest.mark.integration
def test_a_command_takes_such_a_name(hub: FakeHub, bundle: Path, tmp_path: Path) -> None:
    push_bundle(bundle, "owner/name")
    (tmp_path / "face.png").write_bytes(encode(np.zeros((112, 112, 3), np.uint8)))
    command = [sys.executable, "-m", "facerec", "embed", "--images", str(tmp_path), "--model"]
    for number, more in enumerate(({"HF_ENDPOINT": hub.url}, {"HF_HUB_OFFLINE": "1"})):
        hub.requests.clear()
        out = ["hf://owner/name@v1", "--out", str(tmp_path / f"{number}.npz")]
        home = {"HF_HOME": str(tmp_path / "home")}
        subprocess.run([*command, *out], env={**os.environ, **home, **more}, check=True)
    assert hub.requests == []
    assert read_embeddings(tmp_path / "1.npz").note["model"]["hub"].endswith(COMMIT)
