"""From a photo to an aligned face: five points, the similarity transform, the crop.

The template and the way of cropping are InsightFace's (``python-package/insightface/utils/
face_align.py: norm_crop``), which the weights of that family expect. The points come from a table
that any detector wrote, from the insightface package, or from OpenCV with a YuNet file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import DatasetError, FacerecError, ImageError, ModelError
from facerec.base.files import check_regular, reading, sha256
from facerec.base.libraries import cv2, needed
from facerec.base.names import is_missing, same_name
from facerec.records.decode import TEMPLATE, has_template
from facerec.records.tables import TextTable

_MARGIN = np.array([8.0, 0.0])
"""Columns by which a 128×128 crop is wider at the left than a 112×112 one, and 112×96 narrower."""

POINTS = ("left eye", "right eye", "nose", "left corner of mouth", "right corner of mouth")
"""The order of the five points, left being the viewer's left."""

_COLUMNS = ("image_id", *(f"{axis}{point}" for point in range(1, 6) for axis in "xy"))

_MIN_SCALE, _MAX_SCALE = 1 / 250, 50.0
"""Pixels of a 112×112 crop per pixel of the photo: eyes 8,800 and 0.7 pixels apart."""

_MAX_SIDE = 32_766
"""Longest side of an image that OpenCV's warps take."""

_SIDE = 640
"""Longest side, in pixels, of what a detector is shown; the size that InsightFace uses."""

YUNET_THRESHOLD = 0.6
"""Least score of a face for YuNet. OpenCV's own 0.9 passes over most faces in profile."""

INSIGHTFACE_THRESHOLD = 0.5
"""Least score of a face for insightface: the default of its ``FaceAnalysis.prepare``."""

INSIGHTFACE_PACK = "buffalo_l"


_SIMILAR = 0.5
"""Least area of the second face's box, as a share of the largest one's, with which either may be
meant. People side by side are about as far from the camera, and their boxes differ by less, as a
head's turn or a child's smaller one make it; who is in the background is smaller by more."""

_AHEAD = 0.05
"""By how much a turned photo's face must be surer than one in the photo as it is; most photos are
upright, and those of hard faces would be turned for nothing. Of 2,993 crops of LFW, CFP and CelebA
YuNet takes 5 for turned (2 where only photos without a face are), and wrongly 1 of 200 on its side
(1 of 3) and 1 of 10 upside down (9 of 10)."""

Image = NDArray[np.uint8]
Points = NDArray[np.floating[Any]]
Faces = tuple[Points, Points]
"""Points ``(n, 5, 2)`` and boxes ``(n, 4)``: left, top, right and bottom, in pixels."""

Which = Literal["all"] | int | None
"""Which faces of a photo are meant: all, or one, see `Aligner.number`."""


class NotAcquiredError(ImageError):
    """No face could be found or aligned in an image: a failure to acquire, never an abort."""


def face_template(size: tuple[int, int] = (112, 112)) -> NDArray[np.float64]:
    """Return where the five points lie in a crop, ``(5, 2)`` as x and y in pixels.

    Multiples of 112 scale the template; multiples of 128 frame the face with a margin at both
    sides, as InsightFace does; 112×96 is the older crop without the outer columns.

    Args:
        size: height and width of the crop.

    Raises:
        ModelError: no template is defined for this size.
    """
    height, width = size
    if not has_template(size):
        raise ModelError(
            f"faces cannot be aligned to {height}×{width} (height×width), only to multiples of "
            "112×112 and 128×128, and 112×96; give crops of that size, cut as for its training"
        )
    if width % 112 == 0:
        return TEMPLATE * (width / 112)
    return TEMPLATE - _MARGIN if size == (112, 96) else (TEMPLATE + _MARGIN) * (width / 128)


def similarity_transform(points: ArrayLike, target: ArrayLike) -> NDArray[np.float64]:
    """Return the rotation, uniform scale and shift that bring ``points`` closest to ``target``.

    Least squares, never a reflection: points are complex numbers, of which a factor turns and
    scales all. It is what S. Umeyama finds in "Least-squares estimation of transformation
    parameters between two point patterns", PAMI 13(4), 1991.

    Args:
        points: ``(n, 2)``; if all coincide, or one is not finite, the result is not finite.
        target: ``(n, 2)``.

    Returns:
        ``(2, 3)``: maps ``(x, y, 1)`` to the target.
    """
    with np.errstate(all="ignore"):
        source, goal = (np.asarray(each, np.float64) @ (1, 1j) for each in (points, target))
        offsets = source - source.mean()
        turn = np.vdot(offsets, goal) / np.vdot(offsets, source)
        shift = goal.mean() - turn * source.mean()
    return np.array([[turn.real, -turn.imag, shift.real], [turn.imag, turn.real, shift.imag]])


def align_face(
    image: Image,
    points: ArrayLike,
    size: tuple[int, int] = (112, 112),
    where: str = "the image",
    cut: tuple[int, int] = (0, 0),
) -> Image:
    """Cut out a face so that its five points lie on the template, as InsightFace's norm_crop.

    Bilinear; what lies outside the image is black.

    Args:
        image: uint8 RGB, ``(height, width, 3)``.
        points: ``(5, 2)``, x and y in pixels of the image as it is stored: left eye, right eye,
            nose, left and right corner of the mouth, left being the viewer's left.
        size: height and width of the crop.
        where: begins the sentence of an error.
        cut: pixels right of and below the template where they are to lie.

    Returns:
        uint8 RGB, ``(*size, 3)``.

    Raises:
        NotAcquiredError: points that are not finite, coincide, or all lie outside the image; an
            image with a side too long for OpenCV.
        ModelError: no template is defined for ``size``.
    """
    template = face_template(size) + cut
    landmarks = np.asarray(points, np.float64)
    height, width = image.shape[:2]
    inside = ((landmarks >= 0) & (landmarks <= (width - 1, height - 1))).all(axis=1).any()
    transform = similarity_transform(landmarks, template)
    scale = np.hypot(*transform[:, 0]) * 112 / size[0]
    if not (inside and _MIN_SCALE <= scale <= _MAX_SCALE and max(height, width) <= _MAX_SIDE):
        raise NotAcquiredError(
            f"{where}: no face can be cut out of {height:,}×{width:,} pixels (height×width): its "
            "five points are no usable numbers, coincide, lie too far apart or all outside the "
            f"image, or a side has more than {_MAX_SIDE:,} pixels"
        )
    crop = cv2.warpAffine(image, transform, (size[1], size[0]), flags=cv2.INTER_LINEAR)
    return crop.astype(np.uint8, copy=False)


class Aligner(ABC):
    """Finds the five points of the face in a photo; safe to share between threads.

    Attributes:
        number: which of several faces is meant, from the largest on; None is the largest one, where
            no other is nearly as large. Points that are known belong to one face.
    """

    number: int | None = 1

    def __init__(self, **about: Any) -> None:
        self._about = about

    def describe(self) -> dict[str, Any]:
        """Return what a report must say about the alignment, as JSON types."""
        return dict(self._about)

    def choose(
        self, image: Image, where: str, number: Which, image_id: str = ""
    ) -> tuple[Faces, str]:
        """Return the points and box of a face, or of all, and a sentence if one is of several.

        Args:
            image: uint8 RGB, ``(height, width, 3)``, upright: turned as its EXIF data asks.
            where: begins the sentence of an error.
            number: which face, see the attribute; or all.
            image_id: the image's id in its source.

        Raises:
            NotAcquiredError: there is no such face, or nobody knows which is meant.
        """
        points, boxes = self.faces(image, where, image_id)
        if number == "all":
            return (points, boxes), ""
        areas, count = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1), len(points)
        if number is None and (areas[1:2] >= _SIMILAR * areas[0]).any():
            raise NotAcquiredError(
                f"{where}: {count} faces, of which more than one is large, and nothing says which "
                "is meant; cut out the right one (facerec enroll --face N takes the Nth largest)"
            )
        number = number or 1
        if not 1 <= number <= count:
            raise NotAcquiredError(f"{where}: there is no face {number} among the {count} found")
        several = f"{where}: {count} faces, face {number} from the largest on is taken"
        chosen = slice(number - 1, number)
        return (points[chosen], boxes[chosen]), several if count > 1 else ""

    @abstractmethod
    def faces(self, image: Image, where: str, image_id: str = "") -> Faces:
        """Return points ``(n, 5, 2)`` and boxes ``(n, 4)`` of all faces, the largest face first.

        A box is left, top, right and bottom.

        Raises:
            NotAcquiredError: there is none.
        """


class KnownPoints(Aligner):
    """Points that are known before; an image without any is a failure to acquire.

    Args:
        points: id of an image → its five points, ``(5, 2)``, or why there are none.
        **about: ``method`` and what else a report must say of them.
    """

    def __init__(self, points: Mapping[str, Points | FacerecError], **about: Any) -> None:
        super().__init__(**about)
        self._points = points

    def faces(self, image: Image, where: str, image_id: str = "") -> Faces:
        """Return the points of an image, and the box that they fill."""
        name, source = same_name(image_id), self._about.get("path", "the bench")
        none = NotAcquiredError(f"{where}: {source} has no line with points for {name!r}")
        if isinstance(points := self._points.get(name, none), FacerecError):
            raise points
        return points[None], np.concatenate([points.min(axis=0), points.max(axis=0)])[None]


def read_points(path: Path) -> KnownPoints:
    """Return points that a detector wrote before: ``image_id,x1,y1,x2,y2,…,x5,y5`` in each line.

    Further columns are ignored. An image without a line, or without any number on it, is a failure
    to acquire.

    Args:
        path: CSV in UTF-8, with or without BOM, LF or CRLF.

    Raises:
        DatasetError: no such table, a wrong line (named), an image with two lines, or points that
            come in another order in most lines.
    """
    found: dict[str, NDArray[np.float64]] = {}
    table = TextTable(path)
    advice = "a line has an image id, each once, and ten numbers; correct or remove it"
    for line, (image_id, *numbers) in table.rows(_COLUMNS):
        if all(map(is_missing, numbers)):
            continue
        with reading(table.where(line), DatasetError, advice, ValueError):
            if image_id in found:
                raise ValueError("the image has a line already")
            found[image_id] = np.array(numbers, np.float64).reshape(5, 2)
    if not found:
        raise DatasetError(f"{path}: no line has points; give a detector's table of them")
    faces = np.array(list(found.values())[:10_000])
    order, count = _order(faces)
    if order != POINTS:
        raise DatasetError(
            f"{path}: of {len(faces)} lines {count} are like a face whose points come as "
            f"{', '.join(order)}; give them as {', '.join(POINTS)}, left being the viewer's left"
        )
    return KnownPoints(found, method="points", path=str(path), sha256=sha256(path))


def _order(points: NDArray[np.float64]) -> tuple[tuple[str, ...], int]:
    """Return the order in which the points of most faces ``(n, 5, 2)`` come, and of how many.

    The order of a face is that in which the template is most like it, once turned and scaled; but a
    profile that is like the template has its order. `POINTS`, unless another is that of more than
    half of the faces.
    """
    orders = np.array(list(itertools.permutations(range(5))))  # the first is POINTS
    template, faces = TEMPLATE @ (1, 1j), points @ (1, 1j)
    offsets, template = faces - faces.mean(axis=1, keepdims=True), template - template.mean()
    likeness = np.abs(offsets.conj() @ template[orders].T)
    own = likeness[:, 0] / np.linalg.norm(offsets, axis=1) / np.linalg.norm(template)
    best = likeness.argmax(axis=1)
    # Of 597 faces of CFP all are as like as that, and of those in another order hardly any, but for
    # the last one, the reverse.
    best[(own > 0.75) & (best != len(orders) - 1)] = 0
    votes = np.bincount(best, minlength=len(orders))
    chosen = votes.argmax() if 2 * votes.max() > len(faces) else 0
    return tuple(POINTS[place] for place in orders[chosen]), int(votes[chosen])


class Detector(Aligner):
    """A face detector; of several faces in a photo the largest is taken, unless `number` says more.

    Attributes:
        sure: score from which on nobody doubts that a face is upright.
    """

    name: str
    sure = 0.0

    def __init__(self, threshold: float, **about: Any) -> None:
        super().__init__(method=self.name.lower(), **about, score_threshold=threshold)
        self.threshold = threshold
        self._lock = threading.Lock()  # neither library promises that a detector can be shared

    def faces(self, image: Image, where: str, image_id: str = "") -> Faces:
        """Return points and boxes of all faces, the largest face first, see `Aligner.faces`.

        A photo without a sure face is turned by 90°, 180° and 270° too, and that turn counts which
        shows the surest face.
        """
        views = [self._turned(image, 0)]
        if np.max(views[0][2], initial=-np.inf) < self.sure:
            views += [self._turned(image, turns) for turns in (1, 2, 3)]
        highest = [np.max(scores, initial=-np.inf) for _, _, scores in views]
        surest = int(np.argmax(highest))
        boxes, points, scores = views[surest if highest[surest] > highest[0] + _AHEAD else 0]
        if not len(scores):
            raise NotAcquiredError(
                f"{where}: {self.name} finds no face with a score of {self.threshold:g} or more"
            )
        order = np.argsort(-np.prod(boxes[:, 2:] - boxes[:, :2], axis=1), kind="stable")
        return points.reshape(-1, 5, 2)[order], boxes[order]

    def _turned(self, image: Image, turns: int) -> tuple[Points, Points, Points]:
        """Return what is found in an image turned to the left so often, in pixels of the image."""
        with self._lock:
            shown = np.rot90(image[:, :, ::-1], turns)
            boxes, points, scores = self._detect(np.ascontiguousarray(shown))
        places = np.concatenate([boxes.reshape(-1, 2, 2), points.reshape(-1, 5, 2)], axis=1)
        for turn in reversed(range(turns)):
            right = image.shape[1 - turn % 2] - 1  # last column before this turn
            places = np.stack([right - places[:, :, 1], places[:, :, 0]], axis=2)
        corners = np.sort(places[:, :2], axis=1)
        return corners.reshape(-1, 4), places[:, 2:], scores

    @abstractmethod
    def _detect(self, image: Image) -> tuple[Points, Points, Points]:
        """Return all faces in a BGR image, in its pixels.

        Left, top, right and bottom ``(n, 4)``; the points ``(n, 5, 2)``, see `align_face`; and the
        scores ``(n,)``, larger is surer.
        """


class InsightFaceDetector(Detector):
    """The detector of a model pack of the insightface package (extra ``insightface``).

    The package downloads the pack on first use.

    Args:
        threshold: least score of a face, from 0 to 1.

    Raises:
        MissingExtraError: the package is not installed.
        ModelError: the package cannot load its detector, or an impossible threshold.
    """

    name = "insightface"

    def __init__(self, threshold: float = INSIGHTFACE_THRESHOLD) -> None:
        with needed("'facerec[insightface]'"):
            import insightface
            from insightface.app import FaceAnalysis
        version = str(insightface.__version__)
        super().__init__(threshold, version=version, pack=INSIGHTFACE_PACK)
        pack = f"the model pack {INSIGHTFACE_PACK!r} of insightface {version}"
        advice = "download it to ~/.insightface/models, or align with another detector"
        # Missing packs and broken downloads end in many kinds of error. What the package prints
        # does not belong among results.
        with (
            reading(pack, ModelError, advice, Exception),
            contextlib.redirect_stdout(sys.stderr),
        ):
            self._app = FaceAnalysis(name=INSIGHTFACE_PACK, allowed_modules=["detection"])
            self._app.prepare(ctx_id=0, det_thresh=threshold, det_size=(_SIDE, _SIDE))

    def _detect(self, image: Image) -> tuple[Points, Points, Points]:
        faces = [face for face in self._app.get(image) if face.kps is not None]
        boxes = np.array([face.bbox for face in faces]).reshape(-1, 4)
        points = np.array([face.kps for face in faces])
        return boxes, points, np.array([face.det_score for face in faces])


class YuNet(Detector):
    """OpenCV's ``FaceDetectorYN`` with the user's YuNet file.

    Photos are shown to it scaled down to 640 pixels on the longer side, never scaled up.

    Args:
        path: the ``.onnx`` file, for example from OpenCV's model zoo.
        threshold: least score of a face, from 0 to 1.

    Raises:
        ModelError: no such file, OpenCV cannot load it, or an impossible threshold.
    """

    name = "YuNet"
    # It finds 3 of 10 faces on their side, and 9 of 10 upside down, as if they were upright, with
    # points that are wrong, at lower scores. Photos with a face of this score are looked at once.
    sure = 0.88

    def __init__(self, path: str | Path, threshold: float = YUNET_THRESHOLD) -> None:
        version = f"opencv {cv2.__version__}"
        advice = f"take face_detection_yunet from OpenCV's model zoo (this is {version})"
        with reading(path, ModelError, advice, (OSError, cv2.error), "used as a YuNet detector"):
            check_regular(path)
            self._detector = cv2.FaceDetectorYN.create(str(path), "", (_SIDE, _SIDE), threshold)
            self._detect(np.zeros((64, 64, 3), np.uint8))  # other networks load as well
        super().__init__(threshold, path=str(path), sha256=sha256(Path(path)), version=version)

    def _detect(self, image: Image) -> tuple[Points, Points, Points]:
        height, width = image.shape[:2]
        shrink = min(1.0, _SIDE / max(height, width))
        size = max(1, round(width * shrink)), max(1, round(height * shrink))
        shown = cv2.resize(image, size, interpolation=cv2.INTER_AREA) if shrink < 1 else image
        self._detector.setInputSize(size)
        detections = self._detector.detect(shown)[1]
        # Left, top, width, height, the five points in the template's order, score.
        rows = np.empty((0, 15)) if detections is None else np.asarray(detections, np.float64)
        back = np.array([width / size[0], height / size[1]])
        places = np.hstack([rows[:, :2], rows[:, :2] + rows[:, 2:4], rows[:, 4:14]])
        places = (places.reshape(-1, 7, 2) * back).reshape(-1, 14)
        return places[:, :4], places[:, 4:], rows[:, 14]


def parse_align(text: str | None, threshold: float | None = None) -> Aligner | None:
    """Return the aligner that a command line names; None if it names none.

    Args:
        text: a ``.csv`` file of points, ``insightface``, or a YuNet ``.onnx`` file.
        threshold: least score of a face for a detector, from 0 to 1; by default its own.

    Raises:
        FacerecError: another word, the aligner cannot be used, or a threshold without a detector.
    """
    if text is not None and threshold is None and Path(text).suffix.lower() == ".csv":
        return read_points(Path(text))
    return None if text is None and threshold is None else open_detector(text, threshold)


def open_detector(text: str | None, threshold: float | None = None) -> Detector:
    """Return the detector that a command line names.

    Args:
        text: ``insightface``, or a YuNet ``.onnx`` file.
        threshold: see `parse_align`.

    Raises:
        FacerecError: another word or none, or the detector cannot be used.
    """
    given = [] if threshold is None else [threshold]
    if text == "insightface":
        return InsightFaceDetector(*given)
    if text is not None and Path(text).suffix.lower() == ".onnx":
        return YuNet(text, *given)
    raise DatasetError(
        f"{text or '--align-threshold alone'} names no detector of faces; give insightface or a "
        "YuNet .onnx file (--align takes a .csv file of points, too, which have no threshold)"
    )


def detector_at_hand(given: str | None, beside: Path | None) -> Detector | None:
    """Return the detector for photos that are not aligned; None if there is none.

    The first of: the one that is given, the one that ``FACEREC_DETECTOR`` names, a YuNet file
    (``*yunet*.onnx``) beside the model, insightface where the package and its model pack are on
    this machine: nothing is downloaded unless insightface is named.

    Args:
        given: a YuNet ``.onnx`` file, or ``insightface``.
        beside: the folder of the model.

    Raises:
        FacerecError: the one that is named cannot be used.
    """
    named = given or os.environ.get("FACEREC_DETECTOR") or None
    if named is None and beside is not None:
        named = next((str(path) for path in sorted(beside.glob("*yunet*.onnx"))), None)
    pack = Path("~/.insightface/models").expanduser() / INSIGHTFACE_PACK
    if named is None and pack.is_dir() and importlib.util.find_spec("insightface") is not None:
        named = "insightface"
    return None if named is None else open_detector(named)


MISPLACED = 8.0
"""Mean distance of the five points, in pixels of a 112×112 crop, beyond which a face lies beside
the template: 95 % of aligned crops of LFW lie within 5.9, boxes of detectors at 18 to 22."""


def displacement(detector: Detector, crop: Image, cut: tuple[int, int] = (0, 0)) -> float | None:
    """Return how far the largest face in a crop lies from the template; None without a face.

    Args:
        detector: what finds it.
        crop: uint8 RGB, of a size that has a template.
        cut: see `align_face`.

    Returns:
        The mean distance of the five points, in pixels of a 112×112 crop.
    """
    height, width = crop.shape[:2]
    margin = height // 2  # a face that fills its picture is found less often
    sides = (margin, margin), (margin, margin), (0, 0)
    try:
        points = detector.faces(np.pad(crop, sides), "the crop")[0][0] - margin
    except NotAcquiredError:
        return None
    wanted = face_template((height, width)) + cut
    return float(np.linalg.norm(points - wanted, axis=1).mean()) * 112 / height


NO_DETECTOR = (
    "to find the face in it takes a detector, and none is at hand: download "
    "face_detection_yunet_2023mar.onnx of OpenCV's model zoo (github.com/opencv/opencv_zoo, MIT "
    "licence) and name it by --detector FILE or in the environment variable FACEREC_DETECTOR, or "
    "put it beside the model"
)
"""What to do with a photo that is not aligned, as the end of a sentence."""


def alignment_words(described: Mapping[str, Any]) -> str:
    """Say in a few words what `Aligner.describe` says."""
    file = described.get("pack") or Path(str(described.get("path", ""))).name
    return f"alignment: {described.get('method')}{f' ({file})' if file else ''}"
