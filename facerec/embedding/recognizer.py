"""Images in, decisions out: what an application needs of a trained model, behind one door.

    facerec.verify("a.jpg", "b.jpg", model="bundle").same
    recognizer = facerec.load("bundle")
    recognizer.verify(first, second, fpr="1e-3").same

The score is the cosine of two raw embeddings, as in verification, so a threshold from a report
holds here; for unit vectors ‖a − b‖² = 2 − 2·cosine.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from facerec.embedding.align import (
    NO_DETECTOR,
    Detector,
    NotAcquiredError,
    align_face,
    detector_at_hand,
)
from facerec.embedding.extraction import Image, extract
from facerec.embedding.model import EmbeddingModel, load_model
from facerec.embedding.score_calibration import Evidence, ScoreCalibration, calibration_file
from facerec.errors import ImageError, MetricError, ModelError, printable
from facerec.files import parse_json, read_file
from facerec.records.decode import decode_image
from facerec.records.images import FolderImages
from facerec.statistics.operating_points import Rate, parse_rate

if TYPE_CHECKING:
    import torch

Photo = Image | str | Path | bytes
"""A photo: uint8 RGB ``(H, W, 3)``, a file, or what one holds."""

Images = Photo | Sequence[Photo]
"""One photo, a sequence, or an array of N ``(N, H, W, 3)``."""

Faces = Images | NDArray[np.floating[Any]]
"""Images, or raw embeddings: one ``(D,)``, or an array of N ``(N, D)``."""


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
    threshold: float | None
    """None where the model knows none and none was given."""
    same: bool | None
    """Whether the similarity reaches the threshold."""
    source: str
    """Where the threshold comes from: ``given``, or FPR, bench and report; why there is none."""
    fpr: str | None = None
    """Share of pairs of different people that reach the threshold, at most."""
    evidence: Evidence | None = None
    """What the similarity says as a likelihood ratio; None for a model without a calibration."""
    notes: tuple[str, ...] = ()
    """What is to be known of the photos, such as several faces, and of the calibration."""

    def __str__(self) -> str:
        if self.threshold is None:
            return f"cosine {self.similarity:.4f}; no decision: {self.source}"
        verdict = "the same person" if self.same else "different people"
        relation = "≥" if self.same else "<"
        cosine = f"{self.similarity:.4f}"
        if (float(cosine) >= self.threshold) is not self.same:
            cosine = repr(self.similarity)  # the line must do what it says
        return f"{verdict}: cosine {cosine} {relation} {self.threshold!r} ({self.source})"


@dataclass(frozen=True)
class Found:
    """A photo of a folder, and how alike its face is."""

    image: str
    """Its path in the folder."""
    similarity: float
    same: bool | None
    """Whether the similarity reaches the model's threshold; None without one, or without a face."""
    note: str = ""
    """What is to be known of the two photos, such as several faces."""


DEFAULT_FPR = "1e-3"
"""The FPR whose threshold is taken unless another is asked for."""


class FaceRecognizer:
    """A model with its alignment and thresholds.

    Args:
        model: what embeds.
        detector: a YuNet ``.onnx`` file or ``insightface``, for photos that are not aligned; by
            default the one at hand, see `detector_at_hand`. It is loaded when a photo needs it.
        flip: add the raw embedding of the mirror image to each, which takes twice the time; by
            default as the model's thresholds or its calibration have it, else yes, as in every
            command.

    Attributes:
        thresholds: the operating points that the model file knows.
        calibration: what its cosines are worth as evidence; None where that is not known.

    Raises:
        ModelError: the file's table of thresholds, or its calibration, is damaged.
    """

    def __init__(
        self, model: EmbeddingModel, *, flip: bool | None = None, detector: str | None = None
    ) -> None:
        self.model, self._detector = model, detector
        self.thresholds = _read_thresholds(model)
        known, inside = _read_calibration(model)
        about = known.model if known is not None and inside else model.describe()
        own = True
        if self.thresholds:
            own = self.thresholds[0].flip
        elif known is not None and known.model["sha256"] == about.get("sha256"):
            own = known.flip
        self.flip = own if flip is None else flip
        self.calibration, self._doubt = known, ""
        if known is not None:
            try:
                known.check(about, self.flip, str(calibration_file(model.path or Path())))
            except ModelError as error:  # what is left beside a file must not bar the way to it
                self.calibration, self._doubt = None, str(error)

    def __repr__(self) -> str:
        about = self.model.describe()
        mirrored = ", mirror images added" if self.flip else ", no flip"
        return (
            f"<FaceRecognizer {about['name']}: {about['runtime']} on {about['device']}, "
            f"{about['precision']}, {self.embedding_size} dimensions{mirrored}>"
        )

    @functools.cached_property
    def detector(self) -> Detector | None:
        """What finds the faces in photos that are not aligned; None if there is nothing."""
        path = self.model.path
        return detector_at_hand(self._detector, None if path is None else path.parent)

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

    def embed(self, images: Images) -> NDArray[np.float32]:
        """Return raw embeddings: ``(N, D)``, or ``(D,)`` for one image.

        Args:
            images: of the model's size they are taken as aligned; the faces of others are found by
                the detector.

        Raises:
            ImageError: an image of another shape or type, or without a face.
        """
        one = _is_photo(images)
        photos: list[Photo] = [cast(Photo, images)] if one else list(cast(Any, images))

        faces = (self.face(photo, f"image {i}")[0] for i, photo in enumerate(photos))
        batch_size = self.model.batch_size
        vectors = extract(self.model, faces, flip=self.flip, batch_size=batch_size).vectors
        return vectors[0] if one else vectors

    def face(
        self, photo: Photo, where: str = "the photo", number: int | None = 1
    ) -> tuple[Image, str]:
        """Return the aligned face of a photo, and a sentence if there are several.

        Args:
            photo: taken as aligned if it has the model's size, else its faces are found.
            where: names it, for errors.
            number: which face, from the largest on; None is the largest one, where no other is
                nearly as large.

        Raises:
            ImageError: it cannot be read, there is no face, or no detector; too few faces, or
                nobody knows which is meant.
        """
        image, where = read_photo(photo, where)
        if (detector := self._detector_for(image, where)) is None:
            return image, ""
        points, note = detector.choose(image, where, number)
        return align_face(image, points, self.model.image_size, where), note

    def faces(self, photo: Photo, where: str) -> list[tuple[Image, list[float] | None]]:
        """Return all aligned faces of a photo, the largest first, and their boxes.

        A box is left, top, right and bottom in pixels of the upright photo; None for an image that
        is aligned already. Arguments and errors are those of `face`.
        """
        image, where = read_photo(photo, where)
        if (detector := self._detector_for(image, where)) is None:
            return [(image, None)]
        size, found = self.model.image_size, zip(*detector.faces(image, where), strict=True)
        return [(align_face(image, points, size, where), box.tolist()) for points, box in found]

    def _detector_for(self, image: Image, where: str) -> Detector | None:
        """Return what finds the faces of a photo; None for one that is aligned."""
        found, size = image.shape[:2], self.model.image_size
        if found == size:
            return None
        if self.detector is None:
            sides = "{}×{} (height×width) is not {}×{}".format(*found, *size)
            raise ImageError(f"{where}: {sides}; {NO_DETECTOR}")
        return self.detector

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
        usual = parse_rate(DEFAULT_FPR if fpr is None else fpr)
        # Where all hold for the other flip mode, the refusal says so.
        rates = [parse_rate(t.fpr) for t in known if t.flip == self.flip]
        rates = rates or [parse_rate(t.fpr) for t in known]
        target = usual if fpr is not None or usual in rates else min(rates, default=usual)
        matching = [t for t in known if parse_rate(t.fpr) == target]
        usable = [t for t in matching if t.flip == self.flip]
        if len(usable) == 1:
            return usable[0]
        listed = ", ".join(dict.fromkeys(t.fpr for t in known))
        problem = f"no threshold for it is known (there are {listed or 'none'}); give a threshold"
        if usable:
            problem = f"it has one on {', '.join(t.bench for t in usable)}; name one bench"
        elif matching:
            problem = f"its threshold holds for embeddings with flip={not self.flip}; load it so"
        asked = matching[0].fpr if matching else fpr or DEFAULT_FPR
        raise ModelError(f"{self.model.name}, FPR {asked}: {problem}")

    def verify(
        self,
        a: Photo | NDArray[np.floating[Any]],
        b: Photo | NDArray[np.floating[Any]],
        threshold: float | None = None,
        *,
        fpr: Rate | None = None,
        bench: str | None = None,
        faces: tuple[int, int] = (1, 1),
    ) -> Verification:
        """Decide whether two faces belong to the same subject.

        Where no threshold is given, nor an FPR, and the model knows none, there is no decision.

        Args:
            a: one photo, or one raw embedding of this model.
            b: the same.
            threshold: cosine from which on they do; by default the model's own, see `threshold`.
            fpr: see `threshold`.
            bench: see `threshold`.
            faces: which face of each photo, from the largest on.

        Raises:
            ModelError: no threshold for the FPR is known; embeddings of another size.
            ImageError: an image of another shape or type, or more than one.
            MetricError: an embedding is zero or not finite, or the threshold is NaN.
        """
        limit = None if threshold is None else float(threshold)
        source, rate = "given", None
        if threshold is None and (self.thresholds or fpr is not None or bench is not None):
            known = self.threshold(fpr, bench)
            limit, source, rate = known.value, str(known), known.fpr
        elif threshold is None:
            source = (
                "this model knows no threshold; facerec verify --bench … --model MODEL writes one "
                "beside it"
            )
        sides, notes = [], []
        for name, side, number in zip("ab", (a, b), faces, strict=True):
            if not _are_vectors(side):
                side, note = self.face(cast(Photo, side), f"photo {name}", number)
                notes.append(note)
            sides.append(side)
        cosine = self.similarity(*sides)
        if cosine.ndim:
            raise ImageError("verify compares one face with one other; use similarity for more")
        similarity = float(cosine)
        if math.isnan(similarity + (limit or 0)):
            raise MetricError("the threshold is NaN, or an embedding is zero or not finite")
        same = None if limit is None else similarity >= limit
        worth = self.calibration
        evidence = None if worth is None else worth.evidence(similarity)
        told = tuple(filter(None, (*notes, self._doubt)))
        return Verification(similarity, limit, same, source, rate, evidence, told)

    def find(self, photo: Photo, people: str | Path) -> list[Found]:
        """Return the photos of a folder by how alike their faces are, the most alike first.

        Photos without a face stand at the end, with a similarity of NaN.

        Args:
            photo: whose face is looked for.
            people: a folder of photos, at any depth.

        Raises:
            ImageError: a photo does not decode, or there is no face on the one that is looked for.
            DatasetError: the folder holds no photos.
        """
        source = FolderImages(people)
        limit = self.threshold().value if self.thresholds else None
        (asked, several), found = self.face(photo), []
        wanted = self.embed(asked)
        for index, name in enumerate(source.ids.tolist()):
            try:
                face, more = self.face(source.encoded(index), source.where(index))
                cosine = float(self.similarity(wanted, self.embed(face)))
                same = None if limit is None else cosine >= limit
                found.append(Found(name, cosine, same, "; ".join(filter(None, (several, more)))))
            except NotAcquiredError:
                found.append(Found(name, math.nan, None))
        return sorted(found, key=lambda item: (math.isnan(item.similarity), -item.similarity))

    def _unit(self, faces: Faces) -> NDArray[np.float64]:
        """Return unit embeddings, ``(N, D)`` or ``(D,)``."""
        vectors = np.asarray(faces if _are_vectors(faces) else self.embed(cast(Images, faces)))
        if vectors.ndim not in (1, 2) or vectors.shape[-1] != self.embedding_size:
            raise ModelError(
                f"{self.model.name}: embeddings have {self.embedding_size} numbers each, found "
                f"{vectors.shape}; compare those of one model only, and give images as uint8"
            )
        wide = vectors.astype(np.float64)
        with np.errstate(all="ignore"):  # zero and non-finite rows become NaN, which is meant
            unit: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=-1, keepdims=True)
        return unit


def load(
    path: str | Path,
    *,
    device: str | torch.device = "auto",
    flip: bool | None = None,
    detector: str | None = None,
    **options: Any,
) -> FaceRecognizer:
    """Load a model to embed and compare faces with.

    Args:
        path: a bundle, an ``.onnx`` or ``.safetensors`` file, the folder of a run, or
            ``hf://OWNER/NAME@REVISION`` on the Hugging Face Hub.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``; one that is not there is refused, and
            ``repr`` names the one in use.
        flip: see `FaceRecognizer`.
        detector: see `FaceRecognizer`.
        options: ``engine``, ``variant``, ``precision``, ``batch_size``, and for files that do not
            say so ``channels``, ``mean`` and ``std``, see `load_model`.

    Raises:
        ModelError: missing, damaged, or it does not run there.
        DeviceError: the device is not there.
        MissingExtraError: the engine is not installed.
    """
    return FaceRecognizer(load_model(path, device=device, **options), flip=flip, detector=detector)


@functools.lru_cache(maxsize=4)
def _loaded(model: str, detector: str | None) -> FaceRecognizer:
    return load(model, detector=detector)


def verify(
    a: Photo, b: Photo, *, model: str | Path, detector: str | None = None, **options: Any
) -> Verification:
    """Decide whether two photos show the same person.

    The model stays loaded, as it and its thresholds were at the first call; see `load` for another.

    Args:
        a: a photo.
        b: another one.
        model: see `load`.
        detector: see `load`.
        options: those of `FaceRecognizer.verify`.
    """
    return _loaded(str(model), detector).verify(a, b, **options)


def find(
    photo: Photo, people: str | Path, *, model: str | Path, detector: str | None = None
) -> list[Found]:
    """Return the photos of a folder by how alike they are to one; see `FaceRecognizer.find`."""
    return _loaded(str(model), detector).find(photo, people)


def read_photo(photo: Photo, where: str) -> tuple[Image, str]:
    """Return a photo's pixels, upright, uint8 RGB ``(H, W, 3)``, and its name for messages.

    Raises:
        ImageError: it cannot be read or is no photo.
    """
    if isinstance(photo, (str, Path)):
        where = str(photo)
        try:
            photo = read_file(photo)
        except OSError as error:
            raise ImageError(
                f"{where}: the photo cannot be read ({error.strerror or error}); check the path"
            ) from error
    if isinstance(photo, (bytes, bytearray, memoryview)):
        return decode_image(bytes(photo), where, size=None, upright=True), where
    dtype, shape = getattr(photo, "dtype", type(photo).__name__), getattr(photo, "shape", ())
    if dtype != np.uint8 or shape[2:] != (3,) or not photo.size:
        raise ImageError(
            f"{where}: a file, its bytes or an array of uint8 RGB (H, W, 3) is needed, found "
            f"{dtype} {shape}"
        )
    return photo, where


def _are_vectors(faces: Any) -> bool:
    """Tell raw embeddings from images."""
    return isinstance(faces, np.ndarray) and faces.dtype.kind == "f"


def _is_photo(images: Any) -> bool:
    """Tell whether there is one photo, or several."""
    one = isinstance(images, (str, Path, bytes, bytearray, memoryview))
    return one or (isinstance(images, np.ndarray) and images.ndim < 4)


def thresholds_file(model: Path) -> Path:
    """Return where ``facerec verify`` leaves the thresholds of a model file, beside it."""
    return model.with_name(f"{model.name}.thresholds.json")


def _read_thresholds(model: EmbeddingModel) -> tuple[Threshold, ...]:
    """Return the thresholds in a model file, or else those beside it, if they are of this file."""
    table = (model.note or {}).get("thresholds") or []
    try:
        if not table and model.path is not None and thresholds_file(model.path).is_file():
            beside = parse_json(read_file(thresholds_file(model.path)))
            table = beside["thresholds"] if beside["sha256"] == model.sha256 else []
        return tuple(map(_threshold, table))
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError, MetricError) as error:
        raise ModelError(
            f"{model.path}: its table of thresholds is damaged ({error!r}); export it or run "
            "facerec verify again"
        ) from error


def _read_calibration(model: EmbeddingModel) -> tuple[ScoreCalibration | None, bool]:
    """Return the calibration in a model file, or else that beside it; and whether it is inside."""
    inside = (model.note or {}).get("score_calibration")
    if inside is not None:
        return ScoreCalibration.from_json(inside, str(model.path)), True
    if model.path is not None and calibration_file(model.path).is_file():
        return ScoreCalibration.read(calibration_file(model.path)), False
    return None, False


def _threshold(row: Any) -> Threshold:
    # These come from a file that anybody may have written, and are printed.
    bench, report = (
        printable(str(text or "")) for text in (row["bench"], row.get("source", {}).get("report"))
    )
    value, rate, flip = float(row["threshold"]), str(row["fpr"]), row["flip"]
    parse_rate(rate)
    if not math.isfinite(value) or not isinstance(flip, bool):
        raise ValueError(f"threshold {value}, flip {flip!r}")
    return Threshold(value, rate, bench, flip, report or None)
