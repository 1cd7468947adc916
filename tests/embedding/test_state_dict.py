"""Weights of strangers: tensors or one sentence, whatever the file holds."""

from __future__ import annotations

import errno
import io
import os
import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from facerec.embedding.state_dict import read_state_dict
from facerec.errors import ModelError

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.count": torch.tensor(3)}


def refusal(path: Path) -> str:
    """Return the sentence, which may show nothing that a terminal obeys."""
    with pytest.raises(ModelError) as caught:
        read_state_dict(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ") and sentence.isprintable() and len(sentence) < 600
    # torch's own advice is to run the file.
    assert "weights_only" not in sentence and "trust" not in sentence
    return sentence


@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_saves_is_read(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "w.pth"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=zipped)
    found = read_state_dict(path)
    assert list(found) == list(TENSORS)
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_names_of_a_wrapper_and_half_precision_are_read_as_the_plain_form(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    path = tmp_path / "w.pth"
    torch.save({"module.a": torch.randn(5).to(dtype), "module.b": torch.tensor(3)}, path)
    saved, found = torch.load(path, weights_only=True), read_state_dict(path)
    assert list(found) == ["a", "b"] and found["b"].dtype == torch.int64
    assert found["a"].dtype == torch.float32 and torch.equal(
        found["a"].to(dtype), saved["module.a"]
    )
    # A layer of that name beside others is the network's own.
    torch.save({"module.a": torch.ones(1), "b": torch.ones(1)}, path)
    assert list(read_state_dict(path)) == ["module.a", "b"]


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.empty(3, device="meta"), "'x' is no plain array of numbers (meta"),
        (torch.eye(3).to_sparse(), "'x' is no plain array of numbers (cpu, torch.sparse_coo)"),
    ],
)
def test_tensors_without_plain_numbers(tmp_path: Path, tensor: Any, words: str) -> None:
    torch.save({"x": tensor}, tmp_path / "w.pth")
    assert words in refusal(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"\x1b[2Jx": 1, "y\n": torch.ones(1)}, r"found a dict (\x1b[2Jx, y\n)"),
        ({1: torch.ones(1)}, "found a dict (no names)"),
        ([torch.ones(1)], "found a list (no names)"),
        ({"x" * 5000: 3}, "found a dict (xxx"),
    ],
)
def test_what_is_no_state_dict(tmp_path: Path, content: Any, words: str) -> None:
    torch.save(content, tmp_path / "w.pth")
    assert words in refusal(tmp_path / "w.pth")


def test_code_is_named_and_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    path = tmp_path / "w.pth"
    for content in (pickle.dumps({"x": Trap()}, 2), b"\x80\x02cos\nsys\x1b[1mtem\nq\x00."):
        path.write_bytes(content)
        assert "not a state dict that loads without running code" in refusal(path)
    torch.save({"x": Trap()}, path)
    assert "which is code and no number" in refusal(path)
    assert not (tmp_path / "sprung").exists()


def test_every_opcode_in_place_of_every_other(tmp_path: Path) -> None:
    """A pickle that lacks what it takes from the stack ends in errors of many kinds."""
    path = tmp_path / "w.pth"
    torch.save(TENSORS, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (name for name in members if name.endswith("data.pkl"))
    whole = members[name]
    generator = np.random.default_rng(0)
    places = [at for _, _, at in pickletools.genops(whole) if at is not None]
    codes = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
    for code in codes:
        at = int(generator.choice(places))
        members[name] = whole[:at] + code + whole[at + 1 :]
        with zipfile.ZipFile(path, "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content)
        try:
            read_state_dict(path)
        except ModelError as error:
            assert str(error).isprintable()


def test_a_small_file_does_not_become_a_large_one(tmp_path: Path) -> None:
    path, plain = tmp_path / "w.pth", io.BytesIO()
    torch.save({"x": torch.zeros(1 << 20)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as archive:
        for member in source.namelist():
            archive.writestr(member, source.read(member), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 14
    assert "its parts are compressed or overlap" in refusal(path)


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_a_file_without_rights_is_not_called_damaged_or_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> None:  # rights do not bind the user root
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    torch.save(TENSORS, tmp_path / name)
    monkeypatch.setattr(Path, "open", refuse)
    sentence = refusal(tmp_path / name)
    assert "Permission denied" in sentence and "rights" in sentence
    assert "state_dict" not in sentence and sentence.count(name) == 1


def test_half_a_download_is_to_be_fetched_again(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(TENSORS, path)
    for size in (path.stat().st_size // 2, 0):
        path.write_bytes(path.read_bytes()[:size])
        assert "again" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04" + bytes(40), b"\x80\x02}."])
def test_bytes_that_are_no_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.pth").write_bytes(content)
    refusal(tmp_path / "w.pth")
    with pytest.raises(ModelError, match="no such file"):
        read_state_dict(tmp_path / "absent.pth")
