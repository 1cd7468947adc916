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

from facerec.backbones.preprocessing import Preprocessing, normalize_array
from facerec.base.errors import ExportError
from facerec.embedding import TorchModel
from facerec.embedding.engines import OnnxruntimeEngine
from facerec.embedding.onnx_file import OnnxFile
from facerec.embedding.onnx_preprocessing import guess_preprocessing
from facerec.export.graph import copy_for_export
from facerec.records.faces import DrawnFace, draw_circumstances

BATCHES = (1, 2, 5, 64)
CONSTANTS = (0.0, 1.0, -1.0)
ROWS_ALONE = 5
"""Images that are also embedded one by one."""

MAX_ABS, MIN_COSINE = 1e-5, 0.999999
"""What a `Deviation` must reach."""

ROUNDING = 4.0
"""A difference of so many times torch's own, between float32 and float64, passes as rounding, which
some networks magnify (a batch norm over a channel of next to no variance)."""

Vectors = npt.NDArray[np.float32]
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Deviation:
    """How far embeddings are from those that they should be."""

    max_abs: float
    """Divided by the mean norm of the reference, so that 1 is the size of an embedding."""
    min_cosine: float

    def small(self, most: float, noise: Callable[[], float]) -> bool:
        """Tell whether it is no larger than it may be, or than torch's own rounding; NaN is not.

        Args:
            most: `max_abs` at most.
            noise: returns how far torch's float32 is from its float64, as `max_abs`; asked only
                where the difference is beyond ``most``.
        """
        if not self.min_cosine >= MIN_COSINE:
            return False
        return self.max_abs <= most or self.max_abs <= ROUNDING * noise()

    def words(self) -> str:
        """Say what was measured."""
        return f"max |Δ| {self.max_abs:.2g}, cosine {self.min_cosine:.7f}"


@dataclass(frozen=True)
class ParityRow(Deviation):
    """One comparison of onnxruntime with torch, or of a batch with its rows."""

    check: str
    batch: int


def deviation(reference: Vectors, actual: Vectors) -> Deviation:
    """Compare embeddings ``(N, D)`` row by row with what they should be.

    The figures have as many digits as a repetition gives again.

    Returns:
        NaN throughout where a value is not finite, or an embedding is zero on one side only. Two
        zero embeddings agree.
    """
    wanted, got = reference.astype(np.float64), actual.astype(np.float64)
    norms, actual_norms = np.linalg.norm(wanted, axis=1), np.linalg.norm(got, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = (wanted * got).sum(axis=1) / (norms * actual_norms)
        cosines[(norms == 0) & (actual_norms == 0)] = 1
        difference = np.abs(got - wanted).max() / (norms.mean() or 1)
    found = float(f"{difference:.1e}"), round(float(min(cosines.min(), 1)), 7)
    return Deviation(*found) if np.isfinite(found).all() else Deviation(np.nan, np.nan)


def check_parity(model: TorchModel, file: OnnxFile, exact: bool = True) -> list[ParityRow]:
    """Compare an exported file in onnxruntime with the backbone in torch, both float32 on the CPU.

    Random normal numbers, generated faces and constant inputs (0, 1, −1) go through in batches of
    1, 2, 5 and 64. Rows of a batch are also compared with the same images alone, which catches
    graphs whose rows depend on each other. A row beyond `MAX_ABS` passes where torch itself rounds
    as much, see `ROUNDING`.

    Args:
        model: what was exported.
        file: what came of it.
        exact: refuse other embeddings; else those alone that are not finite.

    Raises:
        ExportError: a row does not pass; the sentence names it.
    """
    engine = OnnxruntimeEngine(file)
    stated = guess_preprocessing(file).preprocessing
    rows: list[ParityRow] = []
    failed: list[ParityRow] = []
    for check, inputs in _inputs(stated, max(BATCHES)):
        # The constants repeat; torch need not embed them again.
        distinct = inputs[: len(CONSTANTS)] if check == "constant" else inputs
        known = torch_embeddings(model, distinct, stated)
        reference = np.resize(known, (len(inputs), known.shape[1]))
        # In float64, which takes long, only where something differs.
        noise = functools.cache(partial(torch_rounding, model, distinct, stated, known))
        pairs = [(check, batch, reference[:batch], engine.run(inputs[:batch])) for batch in BATCHES]
        alone = [engine.run(inputs[row : row + 1]) for row in range(ROWS_ALONE)]
        together = engine.run(inputs[:ROWS_ALONE])
        pairs.append((f"{check}, rows alone", ROWS_ALONE, together, np.concatenate(alone)))
        for name, batch, wanted, got in pairs:
            rows.append(ParityRow(**vars(deviation(wanted, got)), check=name, batch=batch))
            if not (rows[-1].small(MAX_ABS, noise) if exact else np.isfinite(rows[-1].max_abs)):
                failed.append(rows[-1])
    if failed:
        worst = max(failed, key=lambda row: np.nan_to_num(row.max_abs, nan=np.inf))
        raise ExportError(
            f"{file.where}: {engine.name} and torch differ in {len(failed)} of {len(rows)} checks, "
            f"most for {worst.check} at batch {worst.batch}: {worst.words()}; the exporter has "
            "changed the network, try another opset"
        )
    return rows


def sample_faces(count: int) -> npt.NDArray[np.uint8]:
    """Render faces, each of another subject: uint8 RGB, ``(count, 112, 112, 3)``."""
    return np.stack(list(map(_face, range(count))))


@functools.cache
def _face(index: int) -> npt.NDArray[np.uint8]:
    generator = np.random.default_rng(index)
    face = DrawnFace(generator)
    return face.photo(draw_circumstances("everyday", face.traits["age"], generator), generator)


def _inputs(stated: Preprocessing, count: int) -> Iterator[tuple[str, Vectors]]:
    """Yield what goes into the file, ``(count, 3, 112, 112)`` each."""
    generator = np.random.default_rng(0)
    faces = sample_faces(count)
    shape = (count, 3, *faces.shape[1:3])
    yield "random normal", generator.standard_normal(shape, np.float32)
    yield "faces", np.ascontiguousarray(normalize_array(faces, stated))
    constants = np.resize(CONSTANTS, count)[:, None, None, None]
    yield "constant", np.broadcast_to(constants, shape).astype(np.float32)


def torch_rounding(
    model: TorchModel, inputs: Vectors, stated: Preprocessing, known: Vectors
) -> float:
    """Return how far torch's float32 embeddings are from its float64, as `Deviation.max_abs`."""
    return deviation(torch_embeddings(model, inputs, stated, torch.float64), known).max_abs


def torch_embeddings(
    model: TorchModel, inputs: Vectors, stated: Preprocessing, dtype: torch.dtype = torch.float32
) -> npt.NDArray[Any]:
    """Embed what goes into a file with the backbone, which may have been trained on other pixels.

    Args:
        model: what was exported.
        inputs: normalised as the file wants them, ``(N, 3, 112, 112)``.
        stated: how that is.
        dtype: in which torch computes.
    """
    trained = model.preprocessing
    x = torch.from_numpy(inputs)
    if stated != trained:
        mean, std, own_mean, own_std = (
            torch.from_numpy(each.astype(np.float64))[:, None, None]
            for each in (*stated.per_channel(), *trained.per_channel())
        )
        x = x * std + mean
        x = x.flip(1) if stated.channels != trained.channels else x
        x = (x - own_mean) / own_std
    backbone = copy_for_export(model.backbone).to(dtype)
    with torch.no_grad():
        return torch.cat([backbone(chunk) for chunk in x.to(dtype).split(16)]).numpy()
