"""Engines that compute an ``.onnx`` file: onnxruntime and OpenVINO, on the checked bytes alone."""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from facerec.embedding.onnx_file import OnnxFile
from facerec.embedding.trial import run_apart
from facerec.environment import available_cores
from facerec.errors import MissingExtraError, ModelError, message_line

Images = npt.NDArray[np.float32] | npt.NDArray[np.uint8]
EngineName = Literal["onnxruntime", "openvino"]
Precision = Literal["fp32", "bf16"]

FOLDED_BYTES = 2**28
"""What onnxruntime may compute in advance from constants, for one tensor."""


class Engine(ABC):
    """A loaded file that turns batches of images into its first output.

    Args:
        file: a file that passed the checks.

    Attributes:
        name: the library and its version.
        device: where it really computes.
        precision: in which numbers it really computes.

    Raises:
        ModelError: the file takes something else than images.
    """

    name: str
    device: str
    precision: str

    def __init__(self, file: OnnxFile) -> None:
        self.where = file.where
        self.input = file.image_input()

    def run(self, batch: Images) -> npt.NDArray[np.float32]:
        """Compute one batch.

        Args:
            batch: images in the file's own layout, type and batch size.

        Returns:
            The file's first output, float32.

        Raises:
            ModelError: a batch of another shape or type, or the engine fails.
        """
        # OpenVINO would put any numbers of any shape into the input, without a word.
        shape = self.input.shape
        count = self.input.batch or len(batch)
        if batch.shape != (count, *shape) or batch.dtype != self.input.dtype:
            raise ModelError(
                f"{self.where}: the input is {self.input.dtype} of shape "
                f"({self.input.batch or 'N'}, {', '.join(map(str, shape))}), found {batch.dtype} "
                f"of shape {batch.shape}"
            )
        return self._compute(batch)

    @abstractmethod
    def _compute(self, batch: Images) -> npt.NDArray[np.float32]:
        """Compute a batch that fits."""


class OnnxruntimeEngine(Engine):
    """The file in onnxruntime; calls from several threads may overlap.

    Args:
        file: a file that passed the checks.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        threads: CPU threads of one call; by default `default_threads`.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        ModelError: onnxruntime refuses the file, or the device is not there.
    """

    def __init__(self, file: OnnxFile, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(file)
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtraError(
                f"{file.where}: reading .onnx needs onnxruntime; run: pip install 'facerec[onnx]'"
            ) from error
        self.name = f"onnxruntime {onnxruntime.__version__}"
        self.device = device
        self.precision = "as stored in the file"
        self._session = _session(onnxruntime, file, device, threads)
        self._output = self._session.get_outputs()[0].name

    def _compute(self, batch: Images) -> npt.NDArray[np.float32]:
        try:
            (output,) = self._session.run([self._output], {self.input.name: batch})
            return np.asarray(output, np.float32)
        except Exception as error:  # onnxruntime's classes share no base but this
            raise ModelError(f"{self.where}: onnxruntime failed ({message_line(error)})") from error


def _session(onnxruntime: Any, file: OnnxFile, device: str, threads: int | None) -> Any:
    kind, _, index = device.partition(":")
    wanted = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(kind)
    if wanted is None:
        raise ModelError(f"{file.where}: an .onnx file runs on cpu or cuda, not on {device!r}")
    settings = {"device_id": index} if index else {}
    if kind == "cuda":
        settings["use_tf32"] = "0"  # its default; float32 would be rounded to 10 bits
    # Asked for a provider that it lacks, onnxruntime would only warn and compute on the CPU; and
    # one can be there and still not start, for want of its libraries.
    offered, session = onnxruntime.get_available_providers(), None
    if wanted in offered:
        try:
            session = onnxruntime.InferenceSession(
                file.content, session_options(threads), providers=[(wanted, settings)]
            )
        except Exception as error:  # onnxruntime's classes share no base but this
            raise ModelError(
                f"{file.where}: onnxruntime cannot load it ({message_line(error)})"
            ) from error
        offered = session.get_providers()
    if wanted not in offered:
        raise ModelError(
            f"{file.where}: onnxruntime offers no {wanted} here, only {', '.join(offered)}; "
            "install onnxruntime-gpu in place of onnxruntime, or use device cpu"
        )
    return session


def default_threads() -> int:
    """Return how many threads torch uses or would use, at most as many as there are cores."""
    torch, cores = sys.modules.get("torch"), available_cores()
    if torch is not None:
        return min(torch.get_num_threads(), cores)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(int(asked), cores) if asked.isdecimal() and int(asked) else cores


def session_options(threads: int | None = None) -> Any:
    """Return how onnxruntime computes a file here: as stored in the file, on every processor.

    Args:
        threads: CPU threads of one call; by default `default_threads`.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or default_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    entries = {
        # Bytes can be built that onnxruntime would take for its own format, which nobody checked.
        "session.load_model_format": "ONNX",
        "optimization.constant_folding_max_output_size_in_bytes": str(FOLDED_BYTES),
        # ARM processors with bfloat16 can compute products of float32 in it.
        "mlas.enable_gemm_fastmath_arm64_bfloat16": "0",
    }
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    return options


class OpenVinoEngine(Engine):
    """The file in OpenVINO on the CPU; calls from several threads wait for each other.

    A processor without bfloat16 computes in float32 whatever is asked for; ``precision`` says so.

    Args:
        file: a file that passed the checks.
        precision: in which numbers to compute what the file stores as float32.
        threads: CPU threads; by default `default_threads`.

    Raises:
        MissingExtraError: OpenVINO is not installed.
        ModelError: OpenVINO refuses the file.
    """

    def __init__(
        self, file: OnnxFile, precision: Precision = "fp32", threads: int | None = None
    ) -> None:
        super().__init__(file)
        try:
            import openvino
            from openvino.frontend import FrontEndManager
        except ImportError as error:
            raise MissingExtraError(
                f"{file.where}: engine openvino is not installed; run: "
                "pip install 'facerec[openvino]'"
            ) from error
        self.name = f"OpenVINO {openvino.__version__.split('-')[0]}"
        self.device = "cpu"
        self._lock = threading.Lock()
        hints = _openvino_hints(precision, threads)
        try:
            # Named, so that no other format is recognised in the bytes.
            reader = FrontEndManager().load_by_framework("onnx")
            model = reader.convert(reader.load(io.BytesIO(file.content)))
            compiled = openvino_core().compile_model(model, "CPU", hints)
            self._request = compiled.create_infer_request()
            real = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        except Exception as error:  # OpenVINO raises bare RuntimeErrors
            raise ModelError(
                f"{file.where}: OpenVINO cannot load it ({message_line(error)})"
            ) from error
        self.precision = {"f32": "fp32", "bf16": "bf16"}.get(real, real)
        if self.precision != precision:
            self.precision += f" (this processor has no {precision})"

    def _compute(self, batch: Images) -> npt.NDArray[np.float32]:
        try:
            with self._lock:
                self._request.infer([batch])
                return np.array(self._request.get_output_tensor(0).data, np.float32)
        except Exception as error:  # OpenVINO raises bare RuntimeErrors
            raise ModelError(f"{self.where}: OpenVINO failed ({message_line(error)})") from error


def _openvino_hints(precision: Precision, threads: int | None) -> dict[str, Any]:
    """Return what is asked of OpenVINO, whose defaults follow the processor.

    Asked for bfloat16 it emulates that with AVX-512, too, and then takes four times as long as in
    float32 (MobileFaceNet, one thread).
    """
    native = "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" and native else "f32",
        "INFERENCE_NUM_THREADS": threads or default_threads(),
    }


_OPENVINO_TRIAL = """
import io, json
import numpy
hints, batches, shape, dtype = map(json.loads, sys.argv[1:])
content = sys.stdin.buffer.read()
inputs = [numpy.zeros((batch, *shape), dtype) for batch in batches]
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.intra_op_num_threads = hints["INFERENCE_NUM_THREADS"]
options.add_session_config_entry("session.load_model_format", "ONNX")
session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
wanted = [session.run(None, {name: images})[0].shape for images in inputs]
import openvino
from openvino.frontend import FrontEndManager
reader = FrontEndManager().load_by_framework("onnx")
model = reader.convert(reader.load(io.BytesIO(content)))
request = openvino.Core().compile_model(model, "CPU", hints).create_infer_request()
found = [request.infer([images])[0].shape for images in inputs]
if found != wanted:
    raise ValueError(f"it computes an output of shape {found[0]}, onnxruntime of {wanted[0]}")
"""


def _try_openvino(file: OnnxFile, precision: Precision, threads: int | None) -> None:
    """Refuse a file with which OpenVINO crashes, is busy for ever, or computes beyond its tensors.

    onnxruntime must take it too: OpenVINO does not hold all shapes against each other, and what it
    writes where it should not shows later, in something else.
    """
    image = file.image_input()
    batches = (1, 2) if image.batch is None else (image.batch,)
    given = _openvino_hints(precision, threads), batches, image.shape, image.dtype
    run = run_apart(file.where, "OpenVINO", _OPENVINO_TRIAL, file.content, *map(json.dumps, given))
    if run.returncode:
        said = [line for line in run.stderr.decode(errors="replace").splitlines() if line.strip()]
        raise ModelError(f"{file.where}: OpenVINO cannot load it ({''.join(said[-1:])[:300]})")


@functools.cache
def openvino_core() -> Any:
    """Return the one OpenVINO core of this process, which lives as long as the process.

    Its CPU plugin gives the thread that loads it another stack for signal handlers and unmaps that
    stack when the last core goes, in whatever thread that is; the next signal with a handler would
    then end the process.
    """
    import openvino

    return openvino.Core()


def open_engine(
    file: OnnxFile,
    engine: EngineName = "onnxruntime",
    device: str = "cpu",
    precision: Precision = "fp32",
    threads: int | None = None,
) -> Engine:
    """Load a file of anybody's into an engine.

    OpenVINO crashes on some files that its own checks and those of ONNX let pass, so it gets each
    in another process first, after onnxruntime. Files made in this process need no such trial:
    `OpenVinoEngine`.

    Args:
        file: a file that passed the checks.
        engine: onnxruntime, or OpenVINO, which is faster on Intel's processors.
        device: ``cpu``, ``cuda`` or ``cuda:1``; ``auto`` is the CPU.
        precision: ``bf16`` for OpenVINO alone.
        threads: CPU threads; by default `default_threads`.

    Raises:
        MissingExtraError: the engine is not installed.
        ModelError: the engine refuses the file or the device, or is unknown.
    """
    device = "cpu" if device == "auto" else device
    if engine == "onnxruntime":
        if precision != "fp32":
            raise ModelError(
                f"{file.where}: an .onnx file fixes its own precision; leave out {precision}, or "
                "use engine openvino"
            )
        return OnnxruntimeEngine(file, device, threads)
    if engine != "openvino":
        raise ModelError(f"{file.where}: engine must be onnxruntime or openvino, found {engine!r}")
    if device != "cpu":
        raise ModelError(f"{file.where}: engine openvino runs on cpu here, not on {device!r}")
    if importlib.util.find_spec("openvino") is not None:  # else the engine says what to install
        _try_openvino(file, precision, threads)
    return OpenVinoEngine(file, precision, threads)
