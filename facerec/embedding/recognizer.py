"""Images in, decisions out: what an application needs of a trained model, behind one door.

    recognizer = facerec.load("bundle")
    recognizer.verify(first, second, fpr="1e-3").same

The score is the cosine of two raw embeddings, as in verification, so a threshold from a report
holds here; for unit vectors ‖a − b‖² = 2 − 2·cosine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from facerec.embedding.align import align_face
from facerec.embedding.engines import EngineName, Precision
from facerec.embedding.extraction import Image, extract
from facerec.embedding.model import EmbeddingModel, load_model
from facerec.embedding.onnx_file import printable
from facerec.errors import ImageError, MetricError, ModelError
from facerec.statistics.operating_points import Rate, parse_rate

Images = Image | Sequence[Image]
"""One image ``(H, W, 3)``, an array of N ``(N, H, W, 3)``, or a sequence; uint8 RGB."""

Faces = Images | NDArray[np.floating[Any]] | Sequence[NDArray[np.floating[Any]]]
"""Images, or raw embeddings: one ``(D,)``, an array of N ``(N, D)``, or a sequence."""


@dataclass(frozen=True)
class Threshold:
    """An operating point of the model, from a verification report."""

    value: float
    """Cosine at or above which two faces are taken for the same subject."""
    fpr: str
    """Share of different pairs that it accepts at most, as the report words it."""
    bench: str
    """Verification set on which it was found."""
    flip: bool
    """Whether the embeddings were sums over image and mirror image."""
    report: str | None = None
    """File name of the report."""

    def __str__(self) -> str:
        report = "" if self.report is None else f" ({self.report})"
        return f"FPR {self.fpr} on {self.bench}{report}"


@dataclass(frozen=True)
class Verification:
    """The comparison of two faces."""

    similarity: float
    """Cosine of the two embeddings."""
    threshold: float
    same: bool
    """Whether the similarity reaches the threshold."""
    source: str
    """Where the threshold comes from: ``given``, or FPR, bench and report."""


DEFAULT_FPR = "1e-3"
"""The FPR whose threshold is taken unless another is asked for."""


class FaceRecognizer:
    """A model with its alignment and thresholds.

    Args:
        model: what embeds.
        flip: add the raw embedding of the mirror image to each, which takes twice the time; by
            default as the model's thresholds have it, else yes, as in every command.

    Attributes:
        thresholds: the operating points that the model file knows.

    Raises:
        ModelError: the file's table of thresholds is damaged.
    """

    def __init__(self, model: EmbeddingModel, *, flip: bool | None = None) -> None:
        self.model = model
        self.thresholds = _read_thresholds(model)
        if flip is None:
            flip = self.thresholds[0].flip if self.thresholds else True
        self.flip = flip

    def __repr__(self) -> str:
        about = self.model.describe()
        mirrored = ", mirror images added" if self.flip else ", no flip"
        return (
            f"<FaceRecognizer {about['name']}: {about['runtime']} on {about['device']}, "
            f"{about['precision']}, {self.embedding_size} dimensions{mirrored}>"
        )

    @property
    def embedding_size(self) -> int:
        """Dimensions D of an embedding."""
        return self.model.embedding_size

    @property
    def contract(self) -> str | None:
        """Id of the embedding space: embeddings with different ids are never comparable.

        A hash of model file, preprocessing, alignment, flip and dimensions. Engine and device are
        not part of it, since they change embeddings by rounding alone. None for a model in memory.
        """
        if self.model.sha256 is None:
            return None
        terms = {
            "alignment": "arcface_112x112",
            "embedding_size": self.embedding_size,
            "flip": self.flip,
            "image_size": list(self.model.image_size),
            "model": self.model.sha256,
            "preprocessing": self.model.describe()["preprocessing"],
        }
        text = json.dumps(terms, sort_keys=True)
        return f"facerec-1-{hashlib.sha256(text.encode()).hexdigest()}"

    def describe(self) -> dict[str, Any]:
        """Return model, engine, device, precision and what embeddings are, as JSON types."""
        return {
            **self.model.describe(),
            "image_size": list(self.model.image_size),
            "flip": self.flip,
            "contract": self.contract,
        }

    def embed(self, images: Images, *, points: ArrayLike | None = None) -> NDArray[np.float32]:
        """Return raw embeddings: ``(N, D)``, or ``(D,)`` for one image.

        Args:
            images: uint8 RGB; aligned and of the model's size, or with ``points`` photos of any
                size.
            points: five points a photo, ``(N, 5, 2)``, or ``(5, 2)`` for one, see `align_face`.

        Raises:
            ImageError: an image of another shape or type, or points that do not fit.
        """
        one = isinstance(images, np.ndarray) and images.ndim == 3
        photos = _photos(images)
        landmarks = None if points is None else _landmarks(points, one, len(photos))

        def face(index: int) -> Image:
            if landmarks is None:
                return photos[index]
            size = self.model.image_size
            return align_face(photos[index], landmarks[index], size, f"image {index}")

        batch_size = self.model.batch_size
        vectors = extract(self.model, face, len(photos), flip=self.flip, batch_size=batch_size)
        return vectors.vectors[0] if one else vectors.vectors

    def similarity(self, a: Faces, b: Faces) -> NDArray[np.float32]:
        """Return the cosine of every face of ``a`` (rows) with every face of ``b`` (columns).

        As in `numpy.inner`, one image or embedding in place of N has no axis: N against M gives
        ``(N, M)``, one against M ``(M,)``, one against one ``()``. NaN where an embedding is zero
        or not finite.

        Args:
            a: aligned images, or raw embeddings of this model.
            b: the same.

        Raises:
            ImageError: an image of another shape or type.
            ModelError: embeddings of another size.
        """
        cosines = np.inner(self._unit(a), self._unit(b))
        # Thresholds are found among float32 scores, so only those compare exactly with them.
        return np.asarray(np.clip(cosines, -1, 1), np.float32)

    def threshold(self, fpr: Rate | None = None, bench: str | None = None) -> Threshold:
        """Return the operating point of the model at an FPR.

        Args:
            fpr: such as ``1e-3``; compared as an exact number. By default 1e-3, or the lowest that
                the model knows if it does not know that one.
            bench: the verification set; needed only where several have this FPR.

        Raises:
            ModelError: none is known, or several.
            MetricError: no rate between 0 and 1.
        """
        known = [t for t in self.thresholds if bench in (None, t.bench)]
        if fpr is None:
            # Where all hold for the other flip mode, the refusal says so.
            own_mode = [t for t in known if t.flip == self.flip] or known
            rates_known = {parse_rate(t.fpr): t.fpr for t in own_mode}
            usual = parse_rate(DEFAULT_FPR)
            own = usual if usual in rates_known else min(rates_known, default=usual)
            fpr = rates_known.get(own, DEFAULT_FPR)
        target = parse_rate(fpr)
        matching = [t for t in known if parse_rate(t.fpr) == target]
        usable = [t for t in matching if t.flip == self.flip]
        where = f"{self.model.name}: " + (f"on {bench} " if bench else "")
        if len(usable) == 1:
            return usable[0]
        if usable:
            benches = ", ".join(t.bench for t in usable)
            raise ModelError(f"{where}FPR {fpr} has a threshold on {benches}; name one bench")
        if matching:
            raise ModelError(
                f"{where}the threshold for FPR {fpr} holds for embeddings with flip="
                f"{not self.flip}; load the model so, or give a threshold"
            )
        rates = ", ".join(dict.fromkeys(t.fpr for t in known))
        raise ModelError(
            f"{where}no threshold for FPR {fpr} is known"
            + (f", only for {rates}" if rates else "")
            + "; give a threshold, for example from a report of facerec verify"
        )

    def verify(
        self,
        a: Image | NDArray[np.floating[Any]],
        b: Image | NDArray[np.floating[Any]],
        threshold: float | None = None,
        *,
        fpr: Rate | None = None,
        bench: str | None = None,
    ) -> Verification:
        """Decide whether two faces belong to the same subject.

        Args:
            a: one aligned image, or one raw embedding of this model.
            b: the same.
            threshold: cosine from which on they do; by default the model's own, see `threshold`.
            fpr: see `threshold`.
            bench: see `threshold`.

        Raises:
            ModelError: no threshold is given or known; embeddings of another size.
            ImageError: an image of another shape or type, or more than one.
            MetricError: an embedding is zero or not finite, or the threshold is NaN.
        """
        if threshold is None:
            known = self.threshold(fpr, bench)
            limit, source = known.value, str(known)
        elif math.isnan(threshold):
            raise MetricError("the threshold is NaN, which no similarity reaches; give a number")
        else:
            limit, source = float(threshold), "given"
        cosine = self.similarity(a, b)
        if cosine.ndim:
            raise ImageError(
                f"verify compares one face with one other, found {cosine.size} pairs; use "
                "similarity for more"
            )
        similarity = float(cosine)
        if math.isnan(similarity):
            raise MetricError("an embedding is zero or not finite, so it has no similarity")
        return Verification(similarity, limit, similarity >= limit, source)

    def _unit(self, faces: Faces) -> NDArray[np.float64]:
        """Return unit embeddings, ``(N, D)`` or ``(D,)``."""
        items: list[Any] = [faces] if isinstance(faces, np.ndarray) else list(faces)
        if {item.dtype.kind for item in items if isinstance(item, np.ndarray)} == {"f"}:
            vectors = self._checked(items[0] if isinstance(faces, np.ndarray) else _stack(items))
        else:
            vectors = self.embed(cast(Images, faces))
        wide = vectors.astype(np.float64)
        with np.errstate(all="ignore"):  # zero and non-finite rows become NaN, which is meant
            lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
            unit: NDArray[np.float64] = wide / lengths
        return unit

    def _checked(self, vectors: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        if vectors.ndim not in (1, 2) or vectors.shape[-1] != self.embedding_size:
            raise ModelError(
                f"{self.model.name}: embeddings have shape (N, {self.embedding_size}) or "
                f"({self.embedding_size},), found {vectors.shape}; compare embeddings of one "
                "model only, and give images as uint8"
            )
        return vectors


def load(
    path: str | Path,
    *,
    device: str | torch.device = "auto",
    engine: EngineName = "onnxruntime",
    variant: str | None = None,
    precision: Precision = "fp32",
    flip: bool | None = None,
    batch_size: int = 64,
    channels: Literal["rgb", "bgr"] | None = None,
    mean: float | None = None,
    std: float | None = None,
) -> FaceRecognizer:
    """Load a model to embed and compare faces with.

    Args:
        path: a bundle, an ``.onnx`` or ``.safetensors`` file, or the folder of a run.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``; one that is not there is refused, and
            ``repr`` names the one in use.
        engine: what computes an ``.onnx`` file.
        variant: one of the bundle's variants, for example ``int8``.
        precision: see `load_model`.
        flip: see `FaceRecognizer`.
        batch_size: images that go through the network at once.
        channels: channel order, for an ``.onnx`` file that does not state it.
        mean: the same for what is subtracted from every pixel value.
        std: the same for what divides the result.

    Raises:
        ModelError: missing, damaged, or it does not run there.
        DeviceError: the device is not there.
        MissingExtraError: the engine is not installed.
    """
    model = load_model(
        path,
        device=device,
        batch_size=batch_size,
        precision=precision,
        channels=channels,
        mean=mean,
        std=std,
        engine=engine,
        variant=variant,
    )
    return FaceRecognizer(model, flip=flip)


def _stack(embeddings: Sequence[Any]) -> NDArray[np.floating[Any]]:
    shapes = {embedding.shape for embedding in embeddings}
    if len(shapes) > 1:
        raise ModelError(f"embeddings of one model have one shape, found {sorted(shapes)}")
    return np.stack(embeddings)


def _photos(images: Images) -> list[Image]:
    """Return the single images, each of shape ``(H, W, 3)``."""
    if isinstance(images, np.ndarray) and images.ndim not in (3, 4):
        raise ImageError(
            f"images are uint8 RGB of shape (H, W, 3) or (N, H, W, 3), found {images.dtype} of "
            f"shape {images.shape}"
        )
    one = isinstance(images, np.ndarray) and images.ndim == 3
    photos = [cast(Image, images)] if one else list(images)
    for index, photo in enumerate(photos):
        if not isinstance(photo, np.ndarray):
            raise ImageError(
                f"image {index}: a NumPy array of uint8 RGB is needed, found a "
                f"{type(photo).__name__}"
            )
        if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3 or not photo.size:
            raise ImageError(
                f"image {index}: uint8 RGB of shape (H, W, 3) is needed, found {photo.dtype} of "
                f"shape {photo.shape}"
            )
    return photos


def _landmarks(points: ArrayLike, one: bool, count: int) -> NDArray[np.float64]:
    """Return the points of each image, ``(count, 5, 2)``."""
    wanted = (5, 2) if one else (count, 5, 2)
    try:
        landmarks = np.asarray(points, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ImageError(f"points are numbers of shape {wanted} ({error})") from error
    if landmarks.shape != wanted:
        raise ImageError(
            f"points have shape {wanted}, x and y of five points an image, found {landmarks.shape}"
        )
    return landmarks.reshape(count, 5, 2)


def _read_thresholds(model: EmbeddingModel) -> tuple[Threshold, ...]:
    table = (model.note or {}).get("thresholds") or []
    try:
        return tuple(_read_threshold(row) for row in table)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError, MetricError) as error:
        raise ModelError(
            f"{model.path}: its table of thresholds is damaged ({printable(repr(error), 200)}); "
            "export it again"
        ) from error


def _read_threshold(row: dict[str, Any]) -> Threshold:
    value, flip = float(row["threshold"]), row["flip"]
    if not math.isfinite(value) or not isinstance(flip, bool):
        raise ValueError(f"threshold {value}, flip {flip!r}")
    fpr = str(row["fpr"])
    parse_rate(fpr)
    report = row.get("source", {}).get("report")
    # The names come from a file that anybody may have written, and are printed.
    return Threshold(
        value, fpr, printable(str(row["bench"])), flip, report and printable(str(report))
    )
