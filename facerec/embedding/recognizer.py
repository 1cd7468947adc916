"""Images in, decisions out: what an application needs of a trained model, behind one door.

    facerec.verify("a.jpg", "b.jpg", model="bundle").same
    recognizer = facerec.load("bundle")
    recognizer.verify(first, second, fpr="1e-3").same

The score is the cosine of two raw embeddings, as in verification, so a threshold from a report
holds here; for unit vectors ‖a − b‖² = 2 − 2·cosine.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import ImageError, MetricError, ModelError
from facerec.base.files import read_file, reading
from facerec.cosines.unit_rows import on_grid
from facerec.embedding.align import (
    MISPLACED,
    NO_DETECTOR,
    Detector,
    Which,
    align_face,
    detector_at_hand,
    displacement,
    face_template,
)
from facerec.embedding.calibration import Threshold
from facerec.embedding.evidence import Evidence
from facerec.embedding.extraction import Image, extract
from facerec.embedding.loading import load_model
from facerec.embedding.model import EmbeddingModel
from facerec.embedding.space import Space
from facerec.records.decode import decode_image
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
    face_scores: tuple[float | None, float | None] = (None, None)
    """Face scores of both, see `FaceScore`; None where the model has no limits."""
    unknown: tuple[str, ...] = ()
    """Sentences on photos that are not what the model knows as a face; there is no decision then,
    and no evidence."""

    def __bool__(self) -> bool:
        raise TypeError("a verification is neither true nor false; ask for its .same")

    def __str__(self) -> str:
        if self.unknown:
            return f"no decision: {'; '.join(self.unknown)} (cosine {self.similarity:.4f})"
        if self.threshold is None:
            return f"cosine {self.similarity:.4f}; no decision: {self.source}"
        verdict = "the same person" if self.same else "different people"
        relation = "≥" if self.same else "<"
        cosine = f"{self.similarity:.4f}"
        if (float(cosine) >= self.threshold) is not self.same:
            cosine = repr(self.similarity)  # the line must do what it says
        return f"{verdict}: cosine {cosine} {relation} {self.threshold!r} ({self.source})"


DEFAULT_FPR = "1e-3"
"""The FPR whose threshold is taken unless another is asked for."""


class FaceRecognizer:
    """A model with its alignment and its calibration.

    Args:
        model: what embeds.
        detector: a YuNet ``.onnx`` file or ``insightface``, for photos that are not aligned; by
            default the one at hand, see `detector_at_hand`. It is loaded when a photo needs it.
        flip: add the raw embedding of the mirror image to each, which takes twice the time; by
            default as the model's calibration has it, else yes, as in every command.
        unchecked: decide on any picture, also on one that does not look like the faces that the
            model was calibrated on.

    Attributes:
        thresholds: the operating points that the model's calibration has.
        calibration: what its cosines are worth as evidence; None where that is not known.
        face_limits: which pictures it knows as faces; None where that is not known.

    Raises:
        ModelError: its calibration contradicts the flip.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        *,
        flip: bool | None = None,
        detector: str | None = None,
        unchecked: bool = False,
    ) -> None:
        self.model, self._detector, known = model, detector, model.calibration
        self.flip = model.flip_mode(flip)
        self.thresholds = () if known is None else known.thresholds
        self.calibration = None if known is None else known.score_calibration
        self.face_limits = model.faces
        self.unchecked = unchecked

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
    def space(self) -> Space:
        """What its embeddings can be compared by."""
        return Space.of_model(self.model.describe(), self.flip, self.embedding_size)

    @property
    def contract(self) -> str | None:
        """Id of the embedding space, see `Space.contract`."""
        return self.space.contract(self.model.image_size)

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
        batch_size = max(64, self.model.batch_size)
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
        (face, *_), note = self.faces(photo, where, number)
        return face[0], note

    def faces(
        self, photo: Photo, where: str = "the photo", number: Which = "all"
    ) -> tuple[list[tuple[Image, list[float] | None]], str]:
        """Return aligned faces of a photo with their boxes, the largest first, and a sentence.

        A box is left, top, right and bottom in pixels of the upright photo; None for an image that
        is aligned already. Arguments and errors are those of `face`, where ``number`` may be all.
        """
        image, where = read_photo(photo, where)
        (height, width), size = image.shape[:2], self.model.image_size
        if (height, width) == size:
            return [(image, None)], ""
        face_template(size)  # no detector helps where there is none
        if self.detector is None:
            sides = f"{height}×{width} (height×width) is not {size[0]}×{size[1]}"
            raise ImageError(f"{where}: {sides}; {NO_DETECTOR}")
        (points, boxes), note = self.detector.choose(image, where, number)
        crops = [align_face(image, each, size, where, self.model.cut) for each in points]
        return list(zip(crops, boxes.tolist(), strict=True)), note

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
        # Thresholds are found among scores on the grid, so only those compare exactly with them.
        return on_grid(np.array(np.inner(self._unit(a), self._unit(b))))

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
        target = parse_rate(DEFAULT_FPR if fpr is None else fpr)
        rates = [parse_rate(t.fpr) for t in known]
        if fpr is None and target not in rates:
            target = min(rates, default=target)
        matching = [t for t, rate in zip(known, rates, strict=True) if rate == target]
        if len(matching) != 1:
            listed = ", ".join(map(str, self.thresholds)) or "which are none"
            raise ModelError(
                f"{self.model.name}, FPR {fpr or DEFAULT_FPR} on {bench or 'any bench'}: it has "
                f"{len(matching) or 'no'} thresholds for it; name one by FPR and bench, of those "
                f"that it knows, {listed}"
            )
        return matching[0]

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

        Where no threshold is given, nor an FPR, and the model knows none, there is no decision; nor
        is there for a picture that is not what the model knows as a face.

        Args:
            a: one photo, or one raw embedding of this model.
            b: the same.
            threshold: cosine from which on they do; by default the model's own, see `threshold`.
            fpr: see `threshold`.
            bench: see `threshold`.
            faces: which face of each photo, from the largest on.

        Raises:
            ModelError: no threshold for the FPR is known; embeddings of another size.
            ImageError: an image of another shape or type.
            MetricError: an embedding is zero or not finite, or the threshold is NaN.
        """
        limit = None if threshold is None else float(threshold)
        source, rate, sides = "given", None, ("photo a", "photo b")
        if limit is None and (self.thresholds or fpr is not None or bench is not None):
            known = self.threshold(fpr, bench)
            limit, source, rate = known.threshold, str(known), known.fpr
        elif limit is None:
            source = (
                "this model knows no threshold; facerec calibrate --bench …, or --people FOLDER, "
                "--model MODEL finds one"
            )
        vectors, notes, unknown = [], [], []
        for where, side, number in zip(sides, (a, b), faces, strict=True):
            if not _are_vectors(side):
                image, _ = read_photo(cast(Photo, side), where)
                side, note = self.face(image, where, number)
                notes += [note, self._unlooked(image)]
                unknown.append(self.misplaced(image, where))
            vectors.append(self._vectors(side))
        similarity = float(self.similarity(*vectors))
        if math.isnan(similarity + (limit or 0)):
            raise MetricError("the threshold is NaN, or an embedding is zero or not finite")
        scores = [self.face_score(vector) for vector in vectors]
        unknown = [*filter(None, (*unknown, *map(self.unlike, scores, sides)))]
        same, evidence = None, None
        if not unknown:
            same = None if limit is None else similarity >= limit
            evidence = None if self.calibration is None else self.calibration.evidence(similarity)
        return Verification(
            similarity,
            limit,
            same,
            source,
            fpr=rate,
            evidence=evidence,
            notes=tuple(dict.fromkeys(filter(None, (*notes, self.unseen, *self.model.notes)))),
            face_scores=(scores[0], scores[1]),
            unknown=tuple(unknown),
        )

    def face_score(self, vector: NDArray[np.floating[Any]]) -> float | None:
        """Return the face score of one raw embedding ``(D,)``; None where there are no limits."""
        return None if self.face_limits is None else float(self.face_limits(vector[None])[0])

    @property
    def unseen(self) -> str:
        """A sentence on the kinds of pictures that the face score does not see; else empty."""
        blind = "" if self.face_limits is None else self.face_limits.blind
        return f"the face score of this model does not see {blind}" if blind else ""

    def unlike(self, score: float | None, where: str) -> str:
        """Return a sentence on a picture whose face score is below the model's limit, else none."""
        known = self.face_limits
        if score is None or known is None or self.unchecked or not score < known.limit:
            return ""
        return (
            f"{where} does not look like the faces that this model was calibrated on: face score "
            f"{score:.1f}, below the limit of {known.limit:.1f}"
        )

    def _unlooked(self, image: Image) -> str:
        """Return a sentence on what is not looked at in a photo; else an empty one."""
        if self.unchecked:
            return "taken for faces unlooked at, as was asked for"
        if image.shape[:2] != self.model.image_size or self.detector is not None:
            return ""
        return "no detector is at hand to look where the faces lie in their crops"

    def misplaced(self, image: Image, where: str) -> str:
        """Return a sentence on a crop whose face lies elsewhere than the network expects it.

        An empty one is returned for a photo of another size, in which the face is looked for; where
        no detector is at hand; and where it finds no face in the crop.

        Args:
            image: uint8 RGB.
            where: names it.
        """
        if image.shape[:2] != self.model.image_size or self.unchecked or self.detector is None:
            return ""
        right, down = self.model.shift
        far = displacement(self.detector, image, (-right, -down))
        if far is None or far <= MISPLACED:
            return ""
        return (
            f"in {where} the face lies {far:.0f} pixels from where the network expects it; give "
            "the photo that it was cut from"
        )

    def _vectors(self, faces: Faces) -> NDArray[np.floating[Any]]:
        """Return raw embeddings, ``(N, D)`` or ``(D,)``."""
        vectors = np.asarray(faces if _are_vectors(faces) else self.embed(cast(Images, faces)))
        if vectors.ndim not in (1, 2) or vectors.shape[-1] != self.embedding_size:
            raise ModelError(
                f"{self.model.name}: embeddings have {self.embedding_size} numbers each, found "
                f"{vectors.shape}; compare those of one model only, and give images as uint8"
            )
        return vectors

    def _unit(self, faces: Faces) -> NDArray[np.float64]:
        """Return unit embeddings, ``(N, D)`` or ``(D,)``."""
        wide = self._vectors(faces).astype(np.float64)
        with np.errstate(all="ignore"):  # zero and non-finite rows become NaN, which is meant
            unit: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=-1, keepdims=True)
        return unit


def load(
    path: str | Path,
    *,
    device: str | torch.device = "auto",
    flip: bool | None = None,
    detector: str | None = None,
    unchecked: bool = False,
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
        unchecked: see `FaceRecognizer`.
        options: ``engine``, ``variant``, ``precision``, ``batch_size``, ``shift``, and for files
            that do not say so ``channels``, ``mean`` and ``std``, see `load_model`.

    Raises:
        ModelError: missing, damaged, or it does not run there.
        DeviceError: the device is not there.
        MissingExtraError: the engine is not installed.
    """
    model = load_model(path, device=device, **options)
    return FaceRecognizer(model, flip=flip, detector=detector, unchecked=unchecked)


@functools.lru_cache(maxsize=4)
def loaded(model: str, detector: str | None) -> FaceRecognizer:
    """Return what `load` returns, the same one while it is asked for again."""
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
    return loaded(str(model), detector).verify(a, b, **options)


def read_photo(photo: Photo, where: str) -> tuple[Image, str]:
    """Return a photo's pixels, upright, uint8 RGB ``(H, W, 3)``, and its name for messages.

    Raises:
        ImageError: it cannot be read or is no photo.
    """
    if isinstance(photo, (str, Path)):
        where = str(photo)
        with reading(where, ImageError):
            photo = read_file(photo)
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
