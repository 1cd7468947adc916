"""Weights of strangers: tensors or one sentence, whatever the file holds."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from facerec.base.errors import ModelError
from facerec.embedding.state_dict import own_names, read_state_dict

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


PREFIXES = ["", "module.", "backbone.", "features.module.", "_orig_mod.module.model.", "a.b.c."]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("keys", [(), ("state_dict",), ("checkpoint", "model", "ema")])
def test_names_are_found_under_any_prefix_and_in_any_mapping(
    tmp_path: Path, prefix: str, keys: tuple[str, ...]
) -> None:
    wanted = {"conv.weight": torch.ones(2), "block.conv.weight": torch.ones(3)}
    content: dict[str, Any] = {f"{prefix}{name}": t for name, t in wanted.items()}
    content["head.kernel"] = torch.ones(2, 2)
    for key in keys:
        content = {"epoch": 3, key: content, "optimizer": {"state": {0: {"m": torch.ones(1)}}}}
    torch.save(content, tmp_path / "w.pth")
    tensors = read_state_dict(tmp_path / "w.pth")
    found, others = own_names("w.pth", tensors, [*wanted, "bn.num_batches_tracked"])
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    (head,) = {*others, *(found.keys() - wanted.keys())}  # inside where there is no prefix
    assert head in (".".join([*keys[::-1], "head.kernel"]), "head.kernel")


def test_two_whole_copies_and_what_is_no_state_dict_are_refused(tmp_path: Path) -> None:
    twice = {f"{p}.{n}": torch.ones(1) for p in ("teacher", "student") for n in "ab"}
    with pytest.raises(ModelError, match=r"w.pth: .*more than once.*'teacher\.'.*'student\.'"):
        own_names("w.pth", twice, "ab")
    layer = torch.nn.Linear(2, 3)
    torch.jit.trace(layer, torch.ones(1, 2)).save(tmp_path / "w.pt")
    assert "TorchScript" in refusal(tmp_path / "w.pt")
    for content in (layer, (layer.state_dict(), 3), {"epoch": 3}):
        torch.save(content, tmp_path / "w.pth")
        assert "state_dict()" in refusal(tmp_path / "w.pth")


def test_code_is_named_and_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    path = tmp_path / "w.pth"
    for content in (pickle.dumps({"x": Trap()}, 2), b"\x80\x02cos\nsys\x1b[1mtem\nq\x00."):
        path.write_bytes(content)
        assert "not a state dict that loads without running code" in refusal(path)
    torch.save({"x": Trap()}, path)
    assert "more than tensors" in refusal(path)
    assert not (tmp_path / "sprung").exists()


def test_a_small_file_does_not_become_a_large_one(tmp_path: Path) -> None:
    path, plain = tmp_path / "w.pth", io.BytesIO()
    torch.save({"x": torch.zeros(1 << 20)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as archive:
        for member in source.namelist():
            archive.writestr(member, source.read(member), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 14
    assert "its parts are compressed" in refusal(path)
