"""``facerec serve`` as its users start and stop it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_files import encode

from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.commands.serve import main
from facerec.embedding import save_model
from facerec.embedding.recognizer import load as load_recognizer
from tests.commands.conftest import Refused
from tests.helpers.toy_service import faces, form


@pytest.fixture
def path(tmp_path: Path) -> Path:
    config = Backbone("iresnet18", embedding_size=8, width=0.125)
    path = tmp_path / "model.safetensors"
    save_model(path, create_backbone(config, seed=1), config, Preprocessing(), {})
    return path


def damaged_images() -> list[bytes]:
    """Return images of which decoders in C complain on stderr."""
    face, jpeg = encode(faces(1)[0]), encode(faces(1)[0], ".jpg")
    rows = zlib.compress(bytes([77]) * (112 * (1 + 3 * 112)))  # 77 is no filter of a row
    chunk = b"IDAT" + rows
    images = [face[:33] + len(rows).to_bytes(4, "big") + chunk]
    images[0] += zlib.crc32(chunk).to_bytes(4, "big") + face[-12:]
    for seed in range(20):
        broken = bytearray(jpeg)
        for place in np.random.default_rng(seed).integers(len(jpeg) // 2, len(jpeg) - 20, 3):
            broken[place] ^= 255
        images.append(bytes(broken))
    return images


@pytest.mark.integration
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_stop(path: Path, stop: signal.Signals) -> None:
    httpx = pytest.importorskip("httpx")
    command = [sys.executable, "-m", "facerec", "serve", str(path), "--port", "0"]
    command += ["--allow-host", "a.example", "b.example:80", "--allow-origin", "https://c.example"]
    process = subprocess.Popen(
        [*command, "--max-batch", "4", "--device", "cpu", "--threshold", "0.3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=path.parent,
    )
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        assert "torch" in lines[0] and "on cpu" in lines[0]
        assert lines[1].startswith("contract facerec-1-")
        url = lines[2].removeprefix("listening on ").strip()
        image = faces(1)[0]
        found = httpx.post(f"{url}/v1/embed", files=form(encode(image)), timeout=30).json()
        expected = load_recognizer(path, device="cpu").embed(image[None])
        np.testing.assert_allclose(found["embeddings"], expected, rtol=1e-3, atol=1e-4)
        for headers, status in (
            ({"Host": "b.example", "Origin": "https://c.example"}, 422),
            ({"Host": "c.example"}, 403),
            ({"Origin": "https://b.example"}, 403),
        ):
            answer = httpx.post(f"{url}/v1/embed", files=form(b"x"), headers=headers)
            assert answer.status_code == status
        damaged = damaged_images()
        for bad in damaged:
            assert httpx.post(f"{url}/v1/embed", files=form(bad)).status_code in (200, 422)
        began = time.monotonic()
        process.send_signal(stop)
        output, errors = process.communicate(timeout=30)
        assert time.monotonic() - began < 5
    finally:
        process.kill()
    assert process.returncode in (0, 128 + stop)
    assert output == ""
    # A line a request and nothing else, whatever decoders have to say.
    form_of_line = r"\d{4}-\d\d-\d\dT\S+ POST /v1/embed (200|403|422) images=\d \d+\.\d ms"
    assert len(errors.splitlines()) == 4 + len(damaged)
    assert all(re.fullmatch(form_of_line, line) for line in errors.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.onnx"], "absent.onnx: no such model"),
        (["absent.onnx", "--max-batch", "0"], "--max-batch must be at least 1"),
        (["MODEL", "--fpr", "often"], "target 'often' is not a rate"),
        (["MODEL", "--gallery", "g.npz", "--host", "0.0.0.0"], "give a --token-file"),
        (["MODEL", "--gallery", "MODEL"], "cannot be read"),
        (["MODEL", "--allow-origin", "*"], "--allow-origin *"),
        (["MODEL", "--allow-origin", "https://a.example/page"], "--allow-origin https://a.ex"),
        (["MODEL", "--port", "70000"], "cannot be listened to"),
    ],
)
def test_mistakes(path: Path, refused: Refused, arguments: list[str], words: str) -> None:
    assert words in refused(main, *(path if word == "MODEL" else word for word in arguments))
