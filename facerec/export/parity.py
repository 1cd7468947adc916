"""Does an exported file compute what the backbone computes?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from facerec.backbones import Preprocessing, normalize
from facerec.embedding import TorchModel
from facerec.embedding.engines import Engine, OnnxruntimeEngine, session_options
from facerec.embedding.onnx_file import NORM_OUTPUT, ImageInput, OnnxFile, guess_preprocessing
from facerec.errors import ExportError
from facerec.export.graph import copy_for_export
from facerec.records.faces import draw_circumstances, draw_identity, render
from facerec.report import words

BATCHES = (1, 2, 5, 64)
CONSTANTS = (0.0, 1.0, -1.0)
ROWS_ALONE = 5
"""Images that are also embedded one by one."""

ROUNDING = 4.0
"""A difference of so many times torch's own, between float32 and float64, passes as rounding, which
some networks magnify (a batch norm over a channel of next to no variance)."""

Vectors = npt.NDArray[np.float32]
Inputs = npt.NDArray[np.float32] | npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Deviation:
    """How far embeddings are from those that they should be.

    Both are divided by the mean norm of the reference, so that 1 is the size of an embedding.
    """

    max_abs: float
    min_cosine: float
    max_norm_ratio: float
    """The largest relative difference of two norms."""


@dataclass(frozen=True)
class Bar:
    """What a `Deviation` must reach."""

    max_abs: float = 1e-5
    min_cosine: float = 0.999999

    def passes(self, deviation: Deviation) -> bool:
        """Tell whether both are reached; NaN reaches nothing."""
        return deviation.max_abs <= self.max_abs and deviation.min_cosine >= self.min_cosine


@dataclass(frozen=True)
class ParityRow:
    """One comparison of onnxruntime with torch, or of a batch with its rows."""

    check: str
    batch: int
    max_abs: float
    min_cosine: float
    max_norm_ratio: float
    passed: bool
    rounding: float | None = None
    """Torch's own between float32 and float64, where a row beyond the bar was held against it."""


def deviation(reference: Vectors, actual: Vectors) -> Deviation:
    """Compare embeddings ``(N, D)`` row by row with what they should be.

    Returns:
        NaN throughout where a value is not finite, or an embedding is zero on one side only. Two
        zero embeddings agree.
    """
    if reference.shape != actual.shape:
        raise ValueError(f"{actual.shape} embeddings cannot be compared with {reference.shape}")
    wanted, got = reference.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        norms, actual_norms = np.linalg.norm(wanted, axis=1), np.linalg.norm(got, axis=1)
        both_zero = (norms == 0) & (actual_norms == 0)
        cosines = np.where(both_zero, 1.0, (wanted * got).sum(axis=1) / (norms * actual_norms))
        ratios = np.where(both_zero, 0.0, np.abs(actual_norms / norms - 1))
        unit = norms.mean() if norms.any() else 1.0
        result = (
            float(np.abs(got - wanted).max() / unit),
            float(min(cosines.min(), 1.0)),
            float(ratios.max()),
        )
    return Deviation(*(result if np.isfinite(result).all() else (np.nan,) * 3))


def judge(measured: Deviation, bar: Bar, noise: Callable[[], float]) -> tuple[bool, float | None]:
    """Tell whether a deviation reaches its bar, or is no more than torch's own rounding.

    Args:
        measured: what was found.
        bar: what it must reach.
        noise: returns how far torch's float32 is from its float64, as `Deviation.max_abs`; asked
            only where a difference is beyond the bar.

    Returns:
        Whether it passes, and torch's rounding where that was asked for.
    """
    if bar.passes(measured) or not measured.min_cosine >= bar.min_cosine:
        return bar.passes(measured), None
    rounding = noise()
    return measured.max_abs <= ROUNDING * rounding, rounding


def rounding_words(rounding: float) -> str:
    """Say why a difference beyond its bar passes."""
    return (
        f"beyond the bar, but torch itself rounds by {words.number(rounding, '.1e')} between "
        "float32 and float64"
    )


def check_parity(model: TorchModel, file: OnnxFile, bar: Bar | None = None) -> list[ParityRow]:
    """Compare a file in onnxruntime with the backbone in torch, both float32 on the CPU.

    Random normal numbers, generated faces and constant inputs (0, 1, −1) go through in batches of
    1, 2, 5 and 64; in a file with a fixed batch, in that. Rows of a batch are also compared with
    the same images alone, which catches graphs whose rows depend on each other. A second output
    ``norm`` is compared with the norms of the first. A row beyond the bar of differences passes
    where torch itself rounds as much, see `ROUNDING`.

    Raises:
        ExportError: a row does not pass; the sentence names it.
    """
    bar = Bar() if bar is None else bar
    engine = OnnxruntimeEngine(file)
    image = file.image_input()
    stated = guess_preprocessing(file).preprocessing
    batches = BATCHES if image.batch is None else (image.batch,)
    rows: list[ParityRow] = []

    def add(
        check: str, batch: int, reference: Vectors, actual: Vectors, noise: Callable[[], float]
    ) -> None:
        measured = deviation(reference, actual)
        passed, rounding = judge(measured, bar, noise)
        rows.append(ParityRow(check, batch, **vars(measured), passed=passed, rounding=rounding))

    for check, inputs in _inputs(image, stated, max(batches)):
        # The constants repeat; torch need not embed them again.
        distinct = inputs[: len(CONSTANTS)] if check.startswith("constant") else inputs
        known = _torch_embeddings(model, distinct, stated)
        reference = np.resize(known, (len(inputs), known.shape[1]))
        # In float64, which takes long, only where something differs.
        noise = functools.cache(partial(_rounding, model, distinct, stated, known))
        for batch in batches:
            actual = engine.run(inputs[:batch])
            add(check, batch, reference[:batch], actual, noise)
        if image.batch is None:
            together = engine.run(inputs[:ROWS_ALONE])
            alone = [engine.run(inputs[row : row + 1]) for row in range(ROWS_ALONE)]
            add(f"{check}, rows alone", ROWS_ALONE, together, np.concatenate(alone), noise)
        if file.outputs[-1].name == NORM_OUTPUT:
            norms = np.linalg.norm(reference, axis=1, keepdims=True)
            add(f"{check}, output {NORM_OUTPUT}", len(inputs), norms, _norms(file, inputs), noise)
    _raise_failed(rows, bar, engine, file)
    return rows


def sample_faces(count: int) -> npt.NDArray[np.uint8]:
    """Render faces, each of another subject: uint8 RGB, ``(count, 112, 112, 3)``."""
    return np.stack(list(map(_face, range(count))))


@functools.cache
def _face(index: int) -> npt.NDArray[np.uint8]:
    generator = np.random.default_rng(index)
    identity = draw_identity(generator)
    how = draw_circumstances(identity, "everyday", generator)
    return render(identity, how, generator)


def _inputs(
    image: ImageInput, stated: Preprocessing | None, count: int
) -> Iterator[tuple[str, Inputs]]:
    """Yield what goes into the file, ``(count, 3, H, W)`` each."""
    generator = np.random.default_rng(0)
    shape = (count, 3, image.height, image.width)
    faces = sample_faces(count)
    constants = np.resize(CONSTANTS, count)[:, None, None, None]
    if stated is None:
        kind = np.dtype(image.dtype)
        yield "random pixels", generator.integers(0, 256, shape).astype(kind)
        yield "faces", np.ascontiguousarray(faces.transpose(0, 3, 1, 2)).astype(kind)
        yield "constant pixels", np.broadcast_to(constants * 127 + 127, shape).astype(kind)
        return
    yield "random normal", generator.standard_normal(shape, np.float32)
    # Contiguous, since what torch returns lies in memory with the channels last.
    yield "faces", np.ascontiguousarray(normalize(torch.from_numpy(faces), stated).numpy())
    yield "constant", np.broadcast_to(constants, shape).astype(np.float32)


def _rounding(
    model: TorchModel, inputs: Inputs, stated: Preprocessing | None, known: Vectors
) -> float:
    """Return how far torch's float32 embeddings are from its float64, as `Deviation.max_abs`."""
    exact = _torch_embeddings(model, inputs, stated, torch.float64)
    return deviation(exact, known).max_abs


def _torch_embeddings(
    model: TorchModel,
    inputs: Inputs,
    stated: Preprocessing | None,
    dtype: torch.dtype = torch.float32,
) -> npt.NDArray[Any]:
    """Embed what goes into the file with the backbone, which may have been trained on other."""
    trained = model.preprocessing
    x = torch.from_numpy(inputs)
    if stated is None:
        x = normalize(x.to(torch.uint8).permute(0, 2, 3, 1), trained)
    elif stated != trained:
        x = x.flip(1) if stated.channels != trained.channels else x
        x = (x * stated.std + (stated.mean - trained.mean)) / trained.std
    backbone = copy_for_export(model.backbone).to(dtype)
    with torch.no_grad():
        return torch.cat([backbone(chunk) for chunk in x.to(dtype).split(16)]).numpy()


def _norms(file: OnnxFile, inputs: Inputs) -> Vectors:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        file.content, session_options(), providers=["CPUExecutionProvider"]
    )
    (norms,) = session.run([NORM_OUTPUT], {file.inputs[0].name: inputs})
    return np.asarray(norms, np.float32)


def _raise_failed(rows: list[ParityRow], bar: Bar, engine: Engine, file: OnnxFile) -> None:
    failed = [row for row in rows if not row.passed]
    if failed:
        worst = max(failed, key=lambda row: np.nan_to_num(row.max_abs, nan=np.inf))
        advice = (
            "the exporter has changed the network, try another opset"
            if bar == Bar()
            else "this network does not bear so few bits, leave this variant out"
        )
        raise ExportError(
            f"{file.where}: {engine.name} and torch differ in {len(failed)} of {len(rows)} checks, "
            f"most for {worst.check} at batch {worst.batch}: max |Δ| {worst.max_abs:.2g} (at most "
            f"{bar.max_abs:g}), cosine {worst.min_cosine:.7f} (at least {bar.min_cosine:g}); "
            f"{advice}"
        )
