"""Engines that compute an ``.onnx`` file: onnxruntime and OpenVINO, on the checked bytes alone."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import json
import math
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from facerec.base.environment import available_cores
from facerec.base.errors import ModelError, message_line
from facerec.base.libraries import needed
from facerec.embedding.onnx_file import MAX_BATCH, OnnxFile
from facerec.embedding.rewriting import without_prelu
from facerec.embedding.trial import run_apart

Images = npt.NDArray[np.float32] | npt.NDArray[np.uint8]
EngineName = Literal["auto", "onnxruntime", "openvino"]
Precision = Literal["fp32", "bf16"]

FOLDED_BYTES = 2**28
"""What onnxruntime may compute in advance from constants, for one tensor."""

EQUAL = 1e-5
"""By how much of its norm an embedding of the same network may differ in another form of it."""

TIMING_SECONDS = 0.4
ROUNDS = 5
"""For how long, or how often, two engines are timed in turn; three times in any case."""

AT_ONCE = 1
"""Pictures that one core computes at once: more are no faster, and take more memory."""


class Engine(ABC):
    """A loaded file that turns batches of images into raw embeddings.

    Args:
        file: a file that passed the checks.
        how: what the engine is asked for.

    Attributes:
        name: the library and its version.
        device: where it really computes.
        precision: in which numbers it really computes.
        one_by_one: whether more than one image at once is refused, see `open_engine`.
        callers: how many threads compute at once, each on one core; with 1 the engine itself takes
            all cores for each batch.
        at_once: pictures that are computed together, at most.
        form: how the file was rewritten for it, in words.
        timing: of what it was chosen, in words; empty where there was no choice.

    Raises:
        MissingExtraError: the library is not installed.
        ModelError: the file takes something else than images, the library refuses it, or the device
            is not there.
    """

    library: ClassVar[tuple[str, str]]
    """How people and how Python write the library's name."""
    extra: ClassVar[str]
    device = "cpu"
    precision = "as stored in the file"
    one_by_one = False
    callers = 1
    at_once = MAX_BATCH
    form = ""
    timing = ""

    def __init__(self, file: OnnxFile, *how: str) -> None:
        self.where, self.input = file.where, file.image_input()
        title, module = self.library
        with needed(f"'facerec[{self.extra}]'", file.where):
            library = importlib.import_module(module)
        self.name = f"{title} {library.__version__.split('-')[0]}"
        try:
            self._load(library, file.content, *how)
        except Exception as error:  # the libraries' classes share no base but this
            raise ModelError(
                f"{file.where}: {title} cannot load it ({message_line(error)})"
            ) from error

    def run(self, batch: Images, alone: bool = False) -> npt.NDArray[np.float32]:
        """Compute one batch.

        Args:
            batch: images in the file's own layout, type and batch size.
            alone: nothing else is computed meanwhile, so that it may have all cores.

        Returns:
            Raw embeddings, float32 ``(N, D)``.

        Raises:
            ModelError: the engine fails, or the outputs are no embeddings.
        """
        try:
            if self.one_by_one and len(batch) > 1:
                raise ValueError("the file takes one image at a time")
            outputs = [np.asarray(output, np.float32) for output in self._compute(batch, alone)]
        except Exception as error:
            raise ModelError(f"{self.where}: {self.name} failed ({message_line(error)})") from error
        return _raw_embeddings(outputs, len(batch), self.where)

    @abstractmethod
    def _load(self, library: Any, content: bytes, *how: str) -> None:
        """Make ready to compute; any error is a refusal."""

    @abstractmethod
    def _compute(self, batch: Images, alone: bool = False) -> list[npt.NDArray[Any]]:
        """Return all outputs for a batch."""


def _raw_embeddings(
    outputs: list[npt.NDArray[np.float32]], count: int, where: str
) -> npt.NDArray[np.float32]:
    """Return the raw embeddings, ``(N, D)``, that a file's outputs stand for.

    Axes of length 1 do not matter. Beside the embedding a second output may hold its norm, one
    number for each image. Rows of unit length get that norm, as AdaFace's exports need it; others
    are raw already.

    Raises:
        ModelError: outputs of other shapes, or a negative norm.
    """
    rows = [
        output.reshape(count, -1)
        for output in outputs
        if output.shape[:1] == (count,)
        and output.size == count * max(output.shape[1:], default=1) > 0
    ]
    rows.sort(key=lambda row: row.shape[1])
    several = [row.shape[1] > 1 for row in rows]
    expected = len(rows) == len(outputs) and several in ([True], [False, True])
    if not expected or any((norm < 0).any() for norm in rows[:-1]):
        shapes = " and ".join(str(output.shape) for output in outputs)
        raise ModelError(
            f"{where}: {count} images gave an output of shape {shapes}, not ({count}, D), alone or "
            f"with its norm ({count}, 1) of 0 or more; export the embedding alone"
        )
    *norms, vectors = rows
    for norm in norms:
        with np.errstate(over="ignore"):  # a row so long is not of unit length
            length = np.linalg.norm(vectors, axis=1, keepdims=True)
        # In bfloat16 a length of 1 is off by up to half a percent.
        unit = np.abs(length - 1) < 0.01
        vectors = vectors * np.divide(norm, length, out=np.ones_like(norm), where=unit)
    return vectors


class OnnxruntimeEngine(Engine):
    """The file in onnxruntime; calls from several threads may overlap.

    ``how`` is the device: ``cpu``, ``cuda`` or ``cuda:1``.
    """

    library = "onnxruntime", "onnxruntime"
    extra = "onnx"

    def _load(self, library: Any, content: bytes, *how: str) -> None:
        self.device = device = how[0] if how else "cpu"
        kind, _, index = device.partition(":")
        wanted = f"{kind.upper()}ExecutionProvider"
        settings = {"device_id": index} if index else {}
        if kind == "cuda":
            settings["use_tf32"] = "0"  # its default; float32 would be rounded to 10 bits
        # Asked for a provider that it lacks, onnxruntime would only warn and compute on the CPU;
        # and one can be there and still not start, for want of its libraries.
        offered = library.get_available_providers()
        if wanted in offered:
            providers = [(wanted, settings)]
            # Several batches at once, each on one core, are as fast as one on all cores or faster,
            # and need not be large to keep the cores busy.
            if kind == "cpu":
                self.callers, self.at_once = default_threads(), AT_ONCE
            make = functools.partial(library.InferenceSession, providers=providers)
            self._session = make(content, session_options(1 if kind == "cpu" else None))
            self._on_all_cores = functools.cache(lambda: make(content, session_options()))
            offered = self._session.get_providers()
        if wanted not in offered:
            raise ValueError(
                f"it offers no {wanted} here, only {', '.join(offered)}; install onnxruntime-gpu "
                "in place of onnxruntime, or use device cpu"
            )

    def _compute(self, batch: Images, alone: bool = False) -> list[npt.NDArray[Any]]:
        session = self._on_all_cores() if alone and self.callers > 1 else self._session
        return session.run(None, {self.input.name: batch})


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
        threads: that compute one batch; by default `default_threads`.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or default_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    entry = options.add_session_config_entry
    # Bytes can be built that onnxruntime would take for its own format, which nobody checked.
    entry("session.load_model_format", "ONNX")
    entry("optimization.constant_folding_max_output_size_in_bytes", str(FOLDED_BYTES))
    # ARM processors with bfloat16 can compute products of float32 in it.
    entry("mlas.enable_gemm_fastmath_arm64_bfloat16", "0")
    return options


class OpenVinoEngine(Engine):
    """The file in OpenVINO on the CPU; calls from several threads wait for each other.

    ``how`` is the precision of what the file stores as float32. A processor without bfloat16
    computes in float32 whatever is asked for; ``precision`` says so.
    """

    library = "OpenVINO", "openvino"
    extra = "openvino"

    def _load(self, library: Any, content: bytes, *how: str) -> None:
        from openvino.frontend import FrontEndManager

        precision = how[0] if how else "fp32"
        self._lock = threading.Lock()
        # Named, so that no other format is recognised in the bytes.
        reader = FrontEndManager().load_by_framework("onnx")
        model = reader.convert(reader.load(io.BytesIO(content)))
        compiled = openvino_core().compile_model(model, "CPU", _openvino_hints(precision))
        self._request = compiled.create_infer_request()
        self._outputs = range(len(compiled.outputs))
        real = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        self.precision = {"f32": "fp32", "bf16": "bf16"}.get(real, real)
        if self.precision != precision:
            self.precision += f" (this processor has no {precision})"

    def _compute(self, batch: Images, alone: bool = False) -> list[npt.NDArray[Any]]:
        with self._lock:
            self._request.infer([batch])
            return [np.array(self._request.get_output_tensor(i).data) for i in self._outputs]


def _openvino_hints(precision: str) -> dict[str, Any]:
    """Return what is asked of OpenVINO, whose defaults follow the processor.

    Asked for bfloat16 it emulates that with AVX-512, too, and then takes four times as long as in
    float32 (MobileFaceNet, one thread).
    """
    native = "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" and native else "f32",
        "INFERENCE_NUM_THREADS": default_threads(),
    }


_OPENVINO_TRIAL = """
import io, json
import numpy
hints, batches, shape, dtype = map(json.loads, sys.argv[1:])
content = sys.stdin.buffer.read()
import onnxruntime
session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
import openvino
from openvino.frontend import FrontEndManager
reader = FrontEndManager().load_by_framework("onnx")
model = reader.convert(reader.load(io.BytesIO(content)))
request = openvino.Core().compile_model(model, "CPU", hints).create_infer_request()
for done, batch in enumerate(batches):
    images = numpy.zeros((batch, *shape), dtype)
    try:
        wanted = [output.shape for output in session.run(None, {name: images})]
        found = [output.shape for output in request.infer([images]).to_tuple()]
    except Exception:
        if not done:
            raise
        sys.exit()
    if found != wanted:
        raise ValueError(f"it computes outputs of shape {found}, onnxruntime of {wanted}")
print("all")
"""


def _try_openvino(file: OnnxFile, precision: Precision) -> bool:
    """Return whether both engines take two images at once; where the batch is fixed, whether that.

    Refuse a file with which OpenVINO crashes, is busy for ever, or computes beyond its tensors.
    onnxruntime must take it too: OpenVINO does not hold all shapes against each other, and what it
    writes where it should not shows later, in something else. A batch that onnxruntime refuses is
    not tried.
    """
    image = file.image_input()
    batches = (1, 2) if image.batch is None else (image.batch,)
    given = _openvino_hints(precision), batches, image.shape, image.dtype
    said = run_apart(file.where, "OpenVINO", _OPENVINO_TRIAL, file.content, *map(json.dumps, given))
    return said.endswith(b"all\n")


@functools.cache
def openvino_core() -> Any:
    """Return the one OpenVINO core of this process, which lives as long as the process.

    Its CPU plugin gives the thread that loads it another stack for signal handlers and unmaps that
    stack when the last core goes, in whatever thread that is; the next signal with a handler would
    then end the process.
    """
    import openvino

    return openvino.Core()


def _without_prelu(file: OnnxFile) -> Engine | None:
    """Return onnxruntime with the file `without_prelu`; None if it has no PReLU."""
    content = without_prelu(file.content)
    if content is None:
        return None
    engine = OnnxruntimeEngine(replace(file, content=content))
    engine.form = " with PReLUs as ReLUs"
    return engine


def _faster(one: Engine, make: Callable[[], Engine | None], batches: Sequence[Images]) -> Engine:
    """Return another engine if it computes the same embeddings, and faster; else the given one.

    Times are those of the processor, which other work beside it hardly changes.

    Args:
        one: the engine.
        make: loads the other one; it may fail, or there may be none.
        batches: see `open_engine`.
    """
    try:
        if (other := make()) is None:
            return one
        engines = one, other
        wanted, found = (np.concatenate([e.run(batch) for batch in batches]) for e in engines)
        same = np.linalg.norm(found - wanted, axis=1) <= EQUAL * np.linalg.norm(wanted, axis=1)
        ends, seconds = time.monotonic() + TIMING_SECONDS, [math.inf, math.inf]
        for number in range(ROUNDS):
            if number > 2 and time.monotonic() > ends:
                break
            for which, engine in enumerate(engines):
                start = time.process_time()
                engine.run(batches[0])
                seconds[which] = min(seconds[which], time.process_time() - start)
    except Exception:  # whatever a library raises: the file is computed as it is
        return one
    if not same.all():
        return one
    best = other if seconds[1] < seconds[0] else one
    times = (
        f"{engine.name}{engine.form} {1000 * spent / len(batches[0]):.1f} ms"
        for engine, spent in zip(engines, seconds, strict=True)
    )
    best.timing = f"{best.name}{best.form}; {', '.join(times)} a picture and core"
    return best


def open_engine(
    file: OnnxFile,
    engine: EngineName = "onnxruntime",
    device: str = "cpu",
    precision: Precision = "fp32",
    batches: Sequence[Images] = (),
) -> Engine:
    """Load a file of anybody's into an engine.

    OpenVINO crashes on some files that its own checks and those of ONNX let pass, so it gets each
    in another process first, after onnxruntime; where one of them computes one image but not two,
    the engine is ``one_by_one``. Files made in this process need no such trial: `OpenVinoEngine`.

    Args:
        file: a file that passed the checks.
        engine: onnxruntime, or OpenVINO, which is faster on Intel's processors; ``auto`` takes
            OpenVINO where it is installed, embeds ``batches`` equally, and faster.
        device: ``cpu``, ``cuda`` or ``cuda:1``; ``auto`` is the CPU.
        precision: ``bf16`` for OpenVINO alone.
        batches: some pictures in the file's own layout, type and batch size. With them, a file is
            computed on a CPU `without_prelu` where that embeds these equally, and faster.

    Raises:
        MissingExtraError: the engine is not installed.
        ModelError: the engine refuses the file or the device, or is unknown.
    """
    device = "cpu" if device == "auto" else device
    there = importlib.util.find_spec("openvino") is not None
    if engine in ("auto", "onnxruntime") and precision == "fp32":
        opened: Engine = OnnxruntimeEngine(file, device)
        if batches and device == "cpu":
            opened = _faster(opened, functools.partial(_without_prelu, file), batches)
            if engine == "auto" and there:
                opened = _faster(opened, functools.partial(open_engine, file, "openvino"), batches)
        return opened
    if engine not in ("auto", "openvino") or device != "cpu":
        raise ModelError(
            f"{file.where}: there is no engine {engine!r} for {precision} on {device!r}; "
            "onnxruntime computes a file as it is on cpu or cuda, openvino in fp32 or bf16 on cpu"
        )
    # OpenVINO takes slopes of one axis for those of channels; the standard, for those of the width.
    file = replace(file, content=without_prelu(file.content, least_axes=2) or file.content)
    # Without OpenVINO the engine says what to install.
    one_by_one = there and not _try_openvino(file, precision)
    opened = OpenVinoEngine(file, precision)
    opened.one_by_one = one_by_one
    return opened
