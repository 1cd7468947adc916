"""A bundle is read when every file is what its checksum says, and not otherwise."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from facerec.base.errors import ModelError
from facerec.embedding.bundle import (
    BUNDLE_SCHEMA,
    bundle_file,
    check_sums,
    write_sums,
)

FILES = {
    "model.onnx": b"weights",
    "facerec.json": json.dumps({"schema": BUNDLE_SCHEMA, "name": "mine"}).encode(),
    "words.txt": b"{}",
    "variants/int8.onnx": b"small",
    "variants/fixed-batch-1.onnx": b"one",
    "variants/README.md": b"words",
    "triton/mine/1/model.onnx": b"weights",
    "name with blanks and ü.txt": b"",
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    write_sums(folder)
    return folder


def test_a_whole_bundle(bundle: Path) -> None:
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(FILES.items())}
    (bundle / "README.md").write_bytes(b"of people, who edit it")
    assert check_sums(bundle) == sums
    assert bundle_file(bundle) == bundle / "model.onnx"
    small = "variants/int8.onnx"
    assert bundle_file(bundle, "int8") == bundle / small
    for absent in ("fp16", "README", "model"):
        with pytest.raises(
            ModelError, match=f"no variants/{absent}.onnx .* it has .*fixed-batch-1.onnx, .*int8"
        ):
            bundle_file(bundle, absent)


def test_the_list_is_that_of_sha256sum(bundle: Path) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("no sha256sum here")
    before = (bundle / "SHA256SUMS").read_text()
    run = subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=bundle, check=False)
    assert run.returncode == 0
    write_sums(bundle)  # over the old list, which does not list itself
    assert (bundle / "SHA256SUMS").read_text() == before
    assert not list(bundle.glob(".*"))


def change(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content)


def remove(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def link(name: str, target: str) -> Callable[[Path], Any]:
    def make(folder: Path) -> None:
        if (folder / name).is_dir():
            (folder / name).rename(folder.parent / "moved")
        else:
            (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return make


def listing(line: str) -> Callable[[Path], Any]:
    def append(folder: Path) -> None:
        with (folder / "SHA256SUMS").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    return append


ZEROS = "0" * 64
EMPTY = hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            change("model.onnx", b"Weights"),
            r"model.onnx' is [0-9a-f]{64}, and in SHA256SUMS [0-9a-f]{64}",
        ),
        (change("variants/int8.onnx", b""), r"int8.onnx' is [0-9a-f]{64}, and in"),
        (change("more.onnx", b"x"), r"'more.onnx' is .* not listed"),
        (change("variants/more.onnx", b"x"), r"'variants/more.onnx' is .* not listed"),
        (change("\x1b[2J", b"x"), r"a name that"),
        (remove("words.txt"), r"'words.txt' is missing"),
        (remove("SHA256SUMS"), r"SHA256SUMS: cannot be read"),
        (link("model.onnx", "../moved"), r"'model.onnx' is a link or no regular file"),
        (link("variants", "../moved"), r"'variants' is a link"),
        (link("SHA256SUMS", "/etc/passwd"), r"'SHA256SUMS' is a link"),
        (link("dangling", "nowhere"), r"'dangling' is a link"),
        (lambda folder: os.mkfifo(folder / "pipe"), r"'pipe' is a link or no regular file"),
        (listing(f"{ZEROS}  ../secret"), r"'../secret' is missing"),
        (listing(f"{ZEROS}  model.onnx"), r"model.onnx' is [0-9a-f]{64}, and in"),
        (listing(f"{EMPTY}  variants"), r"'variants' is missing"),
        (change("SHA256SUMS", b"\xff"), r"is missing"),
        (change("SHA256SUMS", b"a" * (2**24 + 1)), r"16,777,216 at most"),
    ],
)
def test_a_bundle_that_is_not_whole(
    bundle: Path, damage: Callable[[Path], Any], sentence: str
) -> None:
    (bundle.parent / "secret").write_bytes(b"")
    damage(bundle)
    before = sorted(bundle.parent.rglob("*"))
    with pytest.raises(ModelError, match=sentence) as caught:
        bundle_file(bundle)
    assert str(caught.value).isprintable() and str(bundle) in str(caught.value)
    assert sorted(bundle.parent.rglob("*")) == before
