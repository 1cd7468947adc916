from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from helpers.examples import examples
from helpers.marked_faces import Marked, marked_photo, marks
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.base.errors import DatasetError
from facerec.base.files import sha256
from facerec.embedding.align import (
    InsightFaceDetector,
    NotAcquiredError,
    YuNet,
    align_face,
    alignment_words,
    face_template,
    parse_align,
    read_points,
    similarity_transform,
)

HEADER = "image_id,x1,y1,x2,y2,x3,y3,x4,y4,x5,y5"

coordinates = st.floats(-200, 200, allow_subnormal=False)
point_sets = st.lists(st.tuples(coordinates, coordinates), min_size=5, max_size=5).map(np.array)


def photo(height: int = 150, width: int = 200, seed: int = 0) -> np.ndarray:
    """A smooth picture, so that a shift by a fraction of a pixel changes little."""
    small = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def moved(points: np.ndarray, angle: float, scale: float, shift: tuple[float, float]) -> np.ndarray:
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return scale * points @ turn.T + shift


def least_squares(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The same fit as a linear problem: x' = ax − by + s, y' = bx + ay + t."""
    rows, right = [], []
    for (x, y), (u, v) in zip(points, target, strict=True):
        rows += [[x, -y, 1, 0], [y, x, 0, 1]]
        right += [u, v]
    a, b, s, t = np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0]
    return np.array([[a, -b, s], [b, a, t]])


def table(path: Path, *lines: str, header: str = HEADER, ending: str = "\n") -> Path:
    path.write_bytes(ending.join([header, *lines, ""]).encode())
    return path


def line(image_id: str, points: np.ndarray) -> str:
    return ",".join([image_id, *(repr(float(value)) for value in points.reshape(-1))])


# --- geometry --------------------------------------------------------------------------------


def test_template_scales_and_frames_as_insightface_does() -> None:
    template = face_template()
    assert template[0].tolist() == [38.2946, 51.6963]
    assert template[4].tolist() == [70.7299, 92.2041]
    np.testing.assert_allclose(face_template((224, 224)), 2 * template)
    np.testing.assert_allclose(face_template((128, 128)), template + np.array([8, 0]))
    np.testing.assert_allclose(face_template((256, 256)), 2 * (template + np.array([8, 0])))
    np.testing.assert_allclose(face_template((112, 96)), template - [8, 0])


@settings(max_examples=examples(200), deadline=None)
@given(point_sets, point_sets)
def test_umeyama_is_the_least_squares_similarity(points: np.ndarray, target: np.ndarray) -> None:
    if points.var(axis=0).sum() < 1e-2:
        return
    found = similarity_transform(points, target)
    turn = found[:, :2]
    scale = np.hypot(*turn[:, 0])
    # A rotation times a scale, never a reflection.
    np.testing.assert_allclose(turn.T @ turn, scale**2 * np.eye(2), atol=1e-6 * (1 + scale**2))
    assert np.linalg.det(turn) >= -1e-6 * (1 + scale**2)
    expected = least_squares(points, target)
    residuals = [
        ((points @ matrix[:, :2].T + matrix[:, 2] - target) ** 2).sum()
        for matrix in (found, expected)
    ]
    assert residuals[0] == pytest.approx(residuals[1], rel=1e-6, abs=1e-6)


# --- crops -----------------------------------------------------------------------------------


def test_points_on_the_template_leave_the_image_as_it_is() -> None:
    image = photo(112, 112)
    np.testing.assert_array_equal(align_face(image, face_template()), image)
    wide = photo(256, 256)
    np.testing.assert_array_equal(align_face(wide, face_template((256, 256)), (256, 256)), wide)
    np.testing.assert_array_equal(align_face(image, face_template(), (112, 96)), image[:, 8:104])


def test_crop_equals_a_bilinear_loop() -> None:
    image = photo()
    points = moved(face_template(), 0.4, 0.9, (40.0, -40.0))
    crop = align_face(image, points)
    # The crop's pixel (u, v) shows the photo at the inverse of the transform, black outside.
    matrix = np.vstack([least_squares(points, face_template()), [0, 0, 1]])
    back = np.linalg.inv(matrix)
    padded = np.zeros((image.shape[0] + 2, image.shape[1] + 2, 3))
    padded[1:-1, 1:-1] = image
    outside = 0
    for v in range(0, 112, 7):
        for u in range(0, 112, 5):
            x, y, _ = back @ (u, v, 1)
            i, j = int(np.floor(y)), int(np.floor(x))
            if not (-1 <= i < image.shape[0] and -1 <= j < image.shape[1]):
                outside += 1
                assert not crop[v, u].any()
                continue
            q, p = y - i, x - j
            corners = padded[i + 1 : i + 3, j + 1 : j + 3]
            weights = np.array([[(1 - q) * (1 - p), (1 - q) * p], [q * (1 - p), q * p]])
            expected = np.einsum("ij,ijc->c", weights, corners)
            # OpenCV rounds positions to 1/32 pixel.
            np.testing.assert_allclose(crop[v, u], expected, atol=8)
    assert outside > 10


@pytest.mark.parametrize(
    "points",
    [
        np.full((5, 2), 50.0),
        50 + 1e-9 * face_template(),
        np.vstack([face_template()[:4], [[np.inf, 1]]]),
        face_template() * 1e300,
        1000 * (face_template() - face_template()[0]) + 50,
        face_template() + 500,
        -face_template(),
    ],
)
def test_impossible_points_are_failures_to_acquire(points: np.ndarray) -> None:
    with pytest.raises(NotAcquiredError, match=r"^a.jpg: no face can be cut out of 150×200"):
        align_face(photo(), points, where="a.jpg")


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.floats(), min_size=10, max_size=10))
def test_any_points_give_a_crop_or_a_reason(values: list[float]) -> None:
    points = np.array(values).reshape(5, 2)
    try:
        crop = align_face(photo(), points)
    except NotAcquiredError:
        return
    assert crop.shape == (112, 112, 3) and crop.dtype == np.uint8


# --- tables of points ------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_table_of_points(tmp_path: Path, ending: str, mark: str) -> None:
    first, second = moved(face_template(), 0.1, 1.2, (3, 4)), face_template() + 30
    lines = line("a/1.jpg", first), line('"comma, inside.jpg"', second)
    path = table(tmp_path / "points.csv", *lines, header=mark + HEADER, ending=ending)
    aligner = read_points(path)
    for image_id, points in (("a/1.jpg", first), ("comma, inside.jpg", second)):
        np.testing.assert_array_equal(aligner.choose(photo(), "where", 1, image_id)[0][0], [points])
    with pytest.raises(NotAcquiredError, match=r"^b.jpg: .*points.csv has no line .*'b'"):
        aligner.choose(photo(), "b.jpg", 1, "b")
    assert aligner.describe() == {"method": "points", "path": str(path), "sha256": sha256(path)}


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["a,1,2"], "line 2: 3 fields where the first line has 11"),
        ([line("a", face_template()), "b" + ",1" * 9 + ",x"], "line 3: .* an image id, each once"),
        ([line("a", face_template())] * 2, "line 3: .*has a line already"),
        ([], "no line has points"),
        # As mtcnn has them, of heads that are turned and of another size.
        (
            [
                line(name, moved(face_template(), 0.3, scale, (9, 2))[[2, 4, 1, 0, 3]])
                for name, scale in {"a": 1.2, "b": 0.7}.items()
            ],
            "of 2 lines 2 are like .*come as nose, right corner of mouth, right eye, left eye",
        ),
        ([line("a", face_template()), "b\0" + ",1" * 9 + ",\0"], "NUL bytes"),
        ([line("x" * 200_000, face_template())], "line 2: "),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, lines: list[str], sentence: str) -> None:
    path = table(tmp_path / "points.csv", *lines)
    with pytest.raises(DatasetError, match=sentence) as error:
        read_points(path)
    assert str(error.value).startswith(str(path))


def test_a_profile_has_its_order(tmp_path: Path) -> None:
    profile = np.array([[40, 50], [44, 50], [30, 62], [42, 80], [46, 80]])
    read_points(table(tmp_path / "points.csv", line("a", profile)))


# --- detectors -------------------------------------------------------------------------------


class FakeAnalysis:
    """Stands in for insightface.app.FaceAnalysis."""

    made: FakeAnalysis
    faces: list[Any]

    def __init__(self, name: str, allowed_modules: list[str]) -> None:
        print("find model: chatter")
        self.options = name, allowed_modules
        FakeAnalysis.made = self

    def prepare(self, ctx_id: int, det_thresh: float, det_size: tuple[int, int]) -> None:
        self.threshold = det_thresh
        self.det_size = det_size

    def get(self, image: np.ndarray) -> list[Any]:
        self.seen = image
        return self.faces


@pytest.fixture
def insightface(monkeypatch: pytest.MonkeyPatch) -> type[FakeAnalysis]:
    package, app = types.ModuleType("insightface"), types.ModuleType("insightface.app")
    package.__version__ = "9.9"  # type: ignore[attr-defined]
    app.FaceAnalysis = FakeAnalysis  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "insightface", package)
    monkeypatch.setitem(sys.modules, "insightface.app", app)
    return FakeAnalysis


def face(left: float, width: float, points: np.ndarray | None) -> types.SimpleNamespace:
    box = np.array([left, 0, left + width, width], np.float32)
    return types.SimpleNamespace(bbox=box, det_score=np.float32(0.8), kps=points)


def test_insightface(insightface: type[FakeAnalysis], capsys: pytest.CaptureFixture[str]) -> None:
    aligner = parse_align("insightface")
    assert isinstance(aligner, InsightFaceDetector)
    assert capsys.readouterr().out == ""
    assert insightface.made.options == ("buffalo_l", ["detection"])
    assert aligner.describe() == {
        "method": "insightface",
        "version": "9.9",
        "pack": "buffalo_l",
        "score_threshold": 0.5,
    }
    assert insightface.made.threshold == 0.5
    image = photo()
    small, large = face_template().astype(np.float32), (face_template() + 9).astype(np.float32)
    insightface.faces = [face(0, 20, small), face(5, 90, None), face(30, 60, large)]
    np.testing.assert_array_equal(aligner.choose(image, "a", 1)[0][0], [large])
    # The package takes BGR.
    np.testing.assert_array_equal(insightface.made.seen, image[:, :, ::-1])
    insightface.faces = []
    with pytest.raises(NotAcquiredError, match=r"^a.jpg: insightface finds no face"):
        aligner.choose(image, "a.jpg", 1)
    parse_align("insightface", 0.25)
    assert insightface.made.threshold == 0.25


class FakeYN:
    """Stands in for cv2.FaceDetectorYN."""

    rows: np.ndarray | None = None

    def __init__(self) -> None:
        self.size = (0, 0)
        self.seen = np.empty(0)

    def setInputSize(self, size: tuple[int, int]) -> None:
        self.size = size

    def detect(self, image: np.ndarray) -> tuple[int, np.ndarray | None]:
        self.seen = image
        return 1, self.rows


def test_yunet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str, float]] = []
    fake = FakeYN()

    def create(model: str, config: str, size: tuple[int, int], score: float) -> FakeYN:
        made.append((model, config, score))
        return fake

    monkeypatch.setattr(cv2, "FaceDetectorYN", types.SimpleNamespace(create=create))
    path = tmp_path / "yunet.onnx"
    path.write_bytes(b"weights")
    aligner = parse_align(str(path))
    assert isinstance(aligner, YuNet)
    assert made == [(str(path), "", 0.6)]
    described = aligner.describe()
    assert described["sha256"] == sha256(path)
    assert described["score_threshold"] == 0.6
    assert alignment_words(described) == "alignment: yunet (yunet.onnx)"
    asked = parse_align(str(path), 0.9)
    assert asked is not None and asked.describe()["score_threshold"] == 0.9 == made[-1][2]

    points = face_template() + 10
    fake.rows = np.array(
        [[0, 0, 20, 20, *range(10), 0.99], [10, 20, 90, 80, *points.reshape(-1), 0.95]], np.float32
    )
    image = photo()
    ((found,), _), several = aligner.choose(image, "a", 1)
    np.testing.assert_allclose(found, points, rtol=1e-6)
    assert "2 faces" in several and aligner.faces(image, "a")[1][0].tolist() == [10, 20, 100, 100]
    assert fake.size == (200, 150)
    np.testing.assert_array_equal(fake.seen, image[:, :, ::-1])  # OpenCV takes BGR

    # Large photos are shown smaller, and the points come back in their own pixels.
    (found,), _ = aligner.choose(photo(1500, 2000), "a", 1)[0]
    assert fake.size == (640, 480) and fake.seen.shape == (480, 640, 3)
    np.testing.assert_allclose(found, points * 3.125, rtol=1e-6)

    fake.rows = None
    with pytest.raises(NotAcquiredError, match=r"^a.jpg: YuNet finds no face .*0\.6"):
        aligner.choose(image, "a.jpg", 1)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_face_on_its_side_is_found_upright(turns: int) -> None:
    photo = marked_photo((3, 20, 40, 1.5), (5, 260, 80, 0.9))
    lying, detector = np.ascontiguousarray(np.rot90(photo, turns)), Marked()
    points, boxes = detector.faces(lying, "a")
    assert detector.looks == (4 if turns else 1)
    for number, mine, box in zip((3, 5), points, boxes, strict=True):
        expected = marks(lying, number)
        np.testing.assert_array_equal(mine, expected)
        np.testing.assert_array_equal(box, [*expected.min(axis=0), *expected.max(axis=0)])
    crop = align_face(lying, points[0]).astype(int)
    assert np.abs(crop - align_face(photo, marks(photo, 3))).mean() < 1


def test_of_faces_in_several_turns_the_surest_counts() -> None:
    one, other = marked_photo((3, 20, 40, 1.5)), marked_photo((5, 20, 40, 1.5))
    both = np.concatenate([np.rot90(one), np.rot90(other, 3)], axis=1)
    points, _ = Marked().faces(both, "a")
    np.testing.assert_array_equal(points, [marks(both, 5)])
    # Where one is upright the others count if it is doubtful, and they are much surer.
    both, detector = np.concatenate([one, np.rot90(other, 2)], axis=1), Marked()
    for sure, score, face in ((0.0, 0.5, 3), (0.4, 0.5, 5), (0.4, 0.32, 3)):
        detector.sure, detector.scores = sure, {5: score}
        points, _ = detector.faces(both, "a")
        np.testing.assert_array_equal(points, [marks(both, face)])
    with pytest.raises(NotAcquiredError, match=r"a\.jpg: marked finds no face"):
        Marked().faces(np.zeros((50, 60, 3), np.uint8), "a.jpg")


@pytest.mark.parametrize(("size", "refused"), [(0.75, True), (0.65, False)])
def test_which_of_several_faces_is_meant(size: float, refused: bool) -> None:
    """The second face's area is 0.56 and 0.42 of the first one's."""
    photo, detector = marked_photo((3, 10, 40, 1.5), (5, 220, 80, 1.5 * size)), Marked()
    for number, face in ((1, 3), (2, 5)):
        (points, _), note = detector.choose(photo, "a.jpg", number)
        np.testing.assert_array_equal(points, [marks(photo, face)])
        assert note.startswith("a.jpg: 2 faces") and f"face {number}" in note
    with pytest.raises(NotAcquiredError, match=r"no face 3 among the 2"):
        detector.choose(photo, "a.jpg", 3)
    if refused:
        with pytest.raises(NotAcquiredError, match=r"^a\.jpg: 2 faces"):
            detector.choose(photo, "a.jpg", None)
    else:
        (points, _), note = detector.choose(photo, "a.jpg", None)
        assert "face 1" in note and (points == marks(photo, 3)).all()
