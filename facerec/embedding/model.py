"""Models behind one door: uint8 images in, raw embeddings out, whatever computes them.

Nothing here normalises an embedding, and nothing here imports torch: an ``.onnx`` file needs none.
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from facerec.backbones.preprocessing import Preprocessing, normalize_array
from facerec.base.environment import give_back_memory
from facerec.base.errors import ImageError, ModelError
from facerec.base.recipe import to_dict
from facerec.embedding.engines import EngineName, Precision, open_engine
from facerec.embedding.onnx_file import OnnxFile
from facerec.embedding.onnx_preprocessing import PixelGuess, guess_preprocessing

if TYPE_CHECKING:
    import torch

    from facerec.backbones import Backbone
    from facerec.embedding.calibration import FaceScore, ModelCalibration

Finish = Callable[[], npt.NDArray[np.float32]]
"""Waits for embeddings and returns them."""


class EmbeddingModel(ABC):
    """Something that turns aligned faces into raw embeddings.

    Attributes:
        name: short name for tables: the run's folder, or the file without its suffix.
        path: the file that the weights came from, or None for a module in memory.
        sha256: SHA-256 of that file, or None.
        hub: its name on the Hugging Face Hub with the commit, if it came from there.
        runtime: what computes, with its version.
        device: where it really computes.
        precision: in which numbers.
        config: the recipe's section on the backbone; None if unknown.
        embedding_size: dimensions D of an embedding.
        image_size: height and width of the images, in pixels.
        preprocessing: what happens to the pixels before the network.
        evidence: why the preprocessing is what it is, in sentences, the decisive one first.
        assumed: parts of the preprocessing of which nothing tells: ``channels``, ``mean``, ``std``.
        batch_size: images that go through the network at once.
        recipe: the recipe of the run that trained it; empty if unknown.
        note: what facerec wrote into the file at export (`OnnxFile.note`); None without it.
        calibration: all that decides beside the weights; None where nothing is known.
        shift: pixels by which pictures are moved right and down before they are embedded, and
            before they are mirrored (`facerec.embedding.extraction`).
        cut: pixels right of and below ArcFace's template where a face that is cut out of a photo
            must lie for that.
        notes: what a user must know of how it computes, in sentences.
        timing: what was measured to choose how it computes, in words; empty where nothing was.
    """

    name: str
    path: Path | None = None
    sha256: str | None = None
    hub: str | None = None
    runtime: str
    device: str | torch.device
    precision: str
    config: Backbone | None = None
    embedding_size: int
    image_size: tuple[int, int] = (112, 112)
    preprocessing: Preprocessing
    evidence: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    batch_size: int
    recipe: dict[str, Any]
    note: dict[str, Any] | None = None
    calibration: ModelCalibration | None = None
    shift: tuple[int, int] = (0, 0)
    cut: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()
    timing: str = ""

    def embed(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Embed images in batches of ``batch_size``.

        Args:
            images: uint8 RGB, ``(N, 112, 112, 3)``.

        Returns:
            Raw embeddings, float32 ``(N, D)``.

        Raises:
            ImageError: images of another shape or type.
        """
        return self.embed_later(images)()

    def embed_later(self, images: npt.NDArray[np.uint8]) -> Finish:
        """Begin to embed images; a GPU works on while the caller does other things.

        Args:
            images: as for `embed`.

        Returns:
            What waits for the raw embeddings, and returns them as `embed` does.

        Raises:
            ImageError: images of another shape or type.
        """
        if images.dtype != np.uint8 or images.shape[1:] != (*self.image_size, 3):
            height, width = self.image_size
            raise ImageError(
                f"{self.name} takes aligned uint8 RGB images of shape (N, {height}, {width}, 3), "
                f"found {images.dtype} of shape {images.shape}"
            )
        vectors = np.full((len(images), self.embedding_size), np.nan, np.float32)
        waiting: deque[tuple[slice, Finish]] = deque()

        def finish(rest: int) -> npt.NDArray[np.float32]:
            while len(waiting) > rest:
                rows, begun = waiting.popleft()
                vectors[rows] = begun()
            return vectors

        with self._ready():
            for start in range(0, len(images), self._begun_at_once):
                rows = slice(start, start + self._begun_at_once)
                # Engines take no negative strides, which is what a mirrored view has.
                waiting.append((rows, self._begin(np.ascontiguousarray(images[rows]))))
                finish(2)  # what a GPU has before it, and the memory of that, is bounded
        return lambda: finish(0)

    def stop(self) -> None:
        """Drop what is begun and not yet computed, where that is much."""
        return

    @property
    def _begun_at_once(self) -> int:
        return self.batch_size

    def with_preprocessing(
        self, preprocessing: Preprocessing, shift: tuple[int, int] = (0, 0)
    ) -> EmbeddingModel:
        """Return the same model for pixels that are prepared or placed otherwise."""
        other = copy.copy(self)
        other.prepare(PixelGuess(preprocessing, ("it was given by the caller",)))
        other.shift = shift
        return other

    @property
    def faces(self) -> FaceScore | None:
        """Which pictures it knows as faces; None where its calibration does not tell."""
        return None if self.calibration is None else self.calibration.faces

    def flip_mode(self, asked: bool | None) -> bool:
        """Return whether mirror images are added: as its calibration has it, else unless refused.

        Raises:
            ModelError: what is asked for contradicts the calibration.
        """
        known = self.calibration
        return asked is not False if known is None else known.flip_mode(asked)

    def prepare(self, pixels: PixelGuess) -> None:
        """Take over what happens to the pixels, and what speaks for it."""
        self.preprocessing = pixels.preprocessing
        self.evidence, self.assumed = pixels.evidence, pixels.assumed

    def describe(self) -> dict[str, Any]:
        """Return what a report must say about this model, as JSON types."""
        named = ("name", "sha256", "runtime", "precision", "embedding_size")
        return {
            **{name: getattr(self, name) for name in named},
            "path": None if self.path is None else str(self.path),
            **({} if self.hub is None else {"hub": self.hub}),
            "device": str(self.device),
            "preprocessing": to_dict(self.preprocessing),
            # Not a part of it: sets that lie otherwise are moved otherwise, to be comparable.
            **({"shift": list(self.shift)} if any(self.shift) else {}),
            "preprocessing_evidence": list(self.evidence),
            "preprocessing_assumed": list(self.assumed),
            "backbone": None if self.config is None else to_dict(self.config),
        }

    @abstractmethod
    def _begin(self, pixels: npt.NDArray[np.uint8]) -> Finish:
        """Begin to embed one batch, uint8 ``(B, H, W, 3)``."""

    def _ready(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


NEIGHBOR_TOLERANCE = 1e-3
"""By how much of its norm an embedding may change with the other pictures of its batch."""


class OnnxModel(EmbeddingModel):
    """An ``.onnx`` file in an engine: one input of images, one output of embeddings.

    Input name, type, layout (NCHW or NHWC) and image size are read from the file. A file with a
    fixed batch gets batches of just that size, the last one padded with black images. One with a
    free batch that fails for two pictures, or whose embeddings depend on their neighbors, gets one
    picture at a time; ``notes`` says so. A second output may hold the norm of the embedding. Asked
    for CUDA, it computes there or not at all.

    Args:
        file: the file, read and checked.
        pixels: ``channels``, ``mean`` and ``std`` where the file leaves them open.
        device: ``cpu``, ``cuda`` or ``cuda:1``; ``auto`` is the CPU.
        batch_size: images that go through the network at once, where the file leaves it open.
        engine: what computes.
        precision: ``bf16`` for OpenVINO.

    Raises:
        MissingExtraError: the engine is not installed.
        ModelError: no embedding model, a preprocessing that the file contradicts, or the device is
            not there.
    """

    def __init__(
        self,
        file: OnnxFile,
        *,
        pixels: Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
        batch_size: int = 64,
        engine: EngineName = "onnxruntime",
        precision: Precision = "fp32",
    ) -> None:
        self.file, self.path = file, file.path
        self.name = "model" if file.path is None else file.path.stem
        self.sha256 = file.sha256
        self.note = file.note
        self.recipe = (self.note or {}).get("recipe", {})
        self._input = file.image_input()
        self.prepare(guess_preprocessing(file).asked(file.where, pixels or {}))
        self.image_size = (self._input.height, self._input.width)
        self.batch_size = self._input.batch or batch_size
        pictures = _trial_pictures(*self.image_size)
        batches = [self._prepared(each[None]) for each in pictures]
        self._engine = opened = open_engine(file, engine, str(device), precision, batches)
        self.runtime, self.device, self.precision = opened.name, opened.device, opened.precision
        self.timing = opened.timing
        give_back_memory()  # of the checks, and of an engine that was not chosen
        self._pool = ThreadPoolExecutor(opened.callers)
        # The stated output shape may be symbolic or wrong; a picture tells the truth.
        alone = self._run(pictures[1:], alone=False)
        self.embedding_size = alone.shape[1]
        if self.batch_size > 1 and self._mixes(pictures, alone):
            then = "pictures go through it one by one"
            if self._input.batch is not None:
                then = f"its batch of {self._input.batch} is fixed: export it with a free batch"
            self.batch_size = self._input.batch or 1
            self.notes = (
                "its embedding of a picture depends on the others in the batch, as dynamic "
                f"quantization, statistics of the batch or a fixed shape make it; {then}",
            )

    def _mixes(self, pictures: npt.NDArray[np.uint8], alone: npt.NDArray[np.float32]) -> bool:
        """Tell whether the last of two pictures is embedded otherwise than alone, or not at all."""
        try:
            beside = self._run(pictures, alone=False)[1:]
        except ModelError:
            if self._input.batch is not None:
                raise
            return True
        if beside.shape != alone.shape:
            return True
        with np.errstate(all="ignore"):
            change = np.linalg.norm(beside - alone) / np.linalg.norm(alone)
        # What is zero or not finite, alone as beside others, does not change.
        return not (change <= NEIGHBOR_TOLERANCE or np.array_equal(beside, alone, equal_nan=True))

    @property
    def _begun_at_once(self) -> int:
        return max(self.batch_size, 16 * self._engine.callers)

    def _begin(self, pixels: npt.NDArray[np.uint8]) -> Finish:
        size = self.batch_size
        if self._input.batch is None:
            size = min(size, self._engine.at_once)
        starts = range(0, len(pixels), size)
        begun = [
            self._pool.submit(self._run, pixels[start : start + size], len(starts) == 1)
            for start in starts
        ]
        return lambda: np.concatenate([each.result() for each in begun])

    def stop(self) -> None:
        """Drop batches that no thread has taken up."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = ThreadPoolExecutor(self._engine.callers)

    def _run(self, pixels: npt.NDArray[np.uint8], alone: bool) -> npt.NDArray[np.float32]:
        return self._engine.run(self._prepared(pixels), alone)[: len(pixels)]

    def _prepared(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return pictures as the file takes them, in a whole batch where that is fixed."""
        missing = (self._input.batch or 0) - len(pixels)
        if missing > 0:
            pixels = np.pad(pixels, [(0, missing), (0, 0), (0, 0), (0, 0)])
        x: npt.NDArray[Any] = pixels.transpose(0, 3, 1, 2)
        if self._input.dtype == "float32":
            x = normalize_array(pixels, self.preprocessing)
        elif self.preprocessing.channels == "bgr":
            x = x[:, ::-1]
        if self._input.layout == "NHWC":
            x = x.transpose(0, 2, 3, 1)
        return np.ascontiguousarray(x)


def _trial_pictures(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return a patchwork of full contrast and a faint one, uint8 ``(2, H, W, 3)``.

    Where a batch shares its scales or its statistics, the faint one suffers most.
    """
    patches = np.random.default_rng(0).integers(0, 256, (2, 7, 7, 3))
    patches[1] = 120 + patches[1] // 16
    rows, columns = np.arange(height) * 7 // height, np.arange(width) * 7 // width
    return patches[:, rows[:, None], columns].astype(np.uint8)


def shifted(images: npt.NDArray[np.uint8], shift: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return pictures moved right and down by some pixels; what comes in is black.

    Args:
        images: ``(N, H, W, C)``.
        shift: pixels to the right, and down; less than 0 to the left, and up.
    """
    right, down = shift
    height, width = images.shape[1:3]
    above, left = max(-down, 0), max(-right, 0)
    wide = np.pad(images, [(0, 0), (max(down, 0), above), (max(right, 0), left), (0, 0)])
    return wide[:, above : above + height, left : left + width]
