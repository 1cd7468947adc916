"""Engines compute what the file says, on the bytes that were checked, where they were asked to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_files import faces

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from helpers.toy_onnx import expected, parsed, tiles  # noqa: E402

from facerec.backbones import Preprocessing  # noqa: E402
from facerec.base.errors import ModelError  # noqa: E402
from facerec.embedding import engines, trial  # noqa: E402
from facerec.embedding.engines import (  # noqa: E402
    Engine,
    OnnxruntimeEngine,
    OpenVinoEngine,
    open_engine,
    openvino_core,
)
from facerec.embedding.onnx_file import OnnxFile, read_onnx  # noqa: E402

UNSCALED = Preprocessing("rgb", 0.0, 1.0)


def opened(name: Any, file: OnnxFile, **options: Any) -> Engine:
    if name == "openvino":
        pytest.importorskip("openvino")
    return open_engine(file, name, **options)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_an_engine_gets_the_checked_bytes(tmp_path: Path, name: str) -> None:
    """Whoever changes the file after the check changes nothing."""
    path = tmp_path / "tiles.onnx"
    path.write_bytes(tiles().SerializeToString())
    file = read_onnx(path)
    path.write_bytes(b"changed")
    images = faces(2)
    x = np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32)
    wanted = expected(images, UNSCALED)
    found = opened(name, file).run(x)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


# --- devices ----------------------------------------------------------------------------------


class Session:
    """Stands for a session of onnxruntime-gpu; computes nothing."""

    asked: tuple[Any, ...] = ()
    started = True

    def __init__(self, content: bytes, options: Any, providers: Any) -> None:
        Session.asked = (content, providers)

    def get_providers(self) -> list[str]:
        return ["CUDAExecutionProvider"] * Session.started + ["CPUExecutionProvider"]

    def get_inputs(self) -> list[Any]:
        return [type("Value", (), {"name": "data"})]

    get_outputs = get_inputs


@pytest.fixture
def gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: offered)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(Session, "started", True)


@pytest.mark.usefixtures("gpu_build")
@pytest.mark.parametrize(("device", "options"), [("cuda", {}), ("cuda:1", {"device_id": "1"})])
def test_cuda_is_asked_for_alone(device: str, options: dict[str, str]) -> None:
    file = parsed(tiles())
    engine = OnnxruntimeEngine(file, device)
    assert engine.device == device
    exact = {"use_tf32": "0"}
    assert Session.asked == (file.content, [("CUDAExecutionProvider", {**options, **exact})])


@pytest.mark.usefixtures("gpu_build")
def test_a_provider_that_does_not_start_is_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU build lists CUDA also where its libraries are missing, and then takes the CPU."""
    monkeypatch.setattr(Session, "started", False)
    with pytest.raises(ModelError, match="offers no CUDAExecutionProvider here, only CPUExec"):
        OnnxruntimeEngine(parsed(tiles()), "cuda")


# --- precision --------------------------------------------------------------------------------


def test_openvino_says_in_which_numbers_it_computes() -> None:
    pytest.importorskip("openvino")
    file = parsed(tiles())
    x = np.ascontiguousarray(faces(4).transpose(0, 3, 1, 2), np.float32) / 255
    exact = OpenVinoEngine(file)
    assert exact.precision == "fp32"
    half = OpenVinoEngine(file, "bf16")
    able = "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert half.precision == ("bf16" if able else "fp32 (this processor has no bf16)")
    same = np.array_equal(exact.run(x), half.run(x))
    assert same is not able
    np.testing.assert_allclose(half.run(x), exact.run(x), atol=0.02 * np.abs(exact.run(x)).max())


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by signal 11"),
        ("while True: pass", "no embedding after 0.5 seconds"),
    ],
)
def test_what_kills_openvino_kills_a_trial_alone(
    monkeypatch: pytest.MonkeyPatch, code: str, sentence: str
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(engines, "_OPENVINO_TRIAL", code)
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 0.5 if "while" in code else 60)
    with pytest.raises(ModelError, match=rf"^x.onnx: OpenVINO cannot load it \(.*{sentence}"):
        open_engine(parsed(tiles()), "openvino")


@pytest.mark.integration
def test_an_openvino_model_may_go_in_any_thread(tmp_path: Path) -> None:
    """Its plugin would unmap the stack on which the other thread's signal handlers run."""
    pytest.importorskip("openvino")
    path = tmp_path / "x.onnx"
    path.write_bytes(tiles().SerializeToString())
    code = """
import faulthandler, signal, subprocess, sys, threading
faulthandler.enable()
signal.signal(signal.SIGCHLD, lambda number, frame: None)
from facerec.embedding.engines import OpenVinoEngine
from facerec.embedding.onnx_file import read_onnx
engines = [OpenVinoEngine(read_onnx(sys.argv[1]))]
dropping = threading.Thread(target=engines.clear)
dropping.start()
dropping.join()
subprocess.run(["true"])
print("alive")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "alive\n", done
