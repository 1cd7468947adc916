"""Photos in which faces are told by marks, and a detector that sees the marks."""

from __future__ import annotations

from typing import Any

import numpy as np

from facerec.embedding.align import Detector, face_template


def marked_photo(
    *faces: tuple[int, float, float, float], height: int = 300, width: int = 400
) -> np.ndarray:
    """Draw faces as (number from 1 to 9, left, top, size); the blue channel holds the marks alone.

    The larger a number, the higher the score. Around each face is noise of its own.
    """
    photo = np.zeros((height, width, 3), np.uint8)
    for number, left, top, size in faces:
        points = np.rint(face_template() * size + (left, top)).astype(int)
        low, high = points.min(axis=0) - int(20 * size), points.max(axis=0) + int(20 * size)
        noise = np.random.default_rng(number).integers(0, 256, (9, 9, 2), dtype=np.uint8)
        part = photo[max(low[1], 0) : high[1], max(low[0], 0) : high[0], :2]
        rows, columns = (np.arange(side) * 9 // side for side in part.shape[:2])
        part[:] = noise[rows][:, columns]
        for place, (x, y) in enumerate(points, 1):
            photo[y, x, 2] = 10 * number + place
    return photo


def marks(photo: np.ndarray, number: int) -> np.ndarray | None:
    """Return the five points of a face in a photo, ``(5, 2)``; None if it is not there."""
    places = [np.argwhere(photo[:, :, 2] == 10 * number + place) for place in range(1, 6)]
    if any(len(place) != 1 for place in places):
        return None
    return np.concatenate(places)[:, ::-1].astype(float)


class Marked(Detector):
    """Finds the faces that are upright; their boxes end at their points."""

    name = "marked"

    def __init__(self) -> None:
        super().__init__(0.1)
        self.looks = 0
        self.scores: dict[int, float] = {}

    def _detect(self, image: np.ndarray) -> Any:
        self.looks += 1
        found = [(number, marks(image[:, :, ::-1], number)) for number in range(1, 10)]
        upright = [
            (number, points)
            for number, points in found
            if points is not None and np.ptp(points[:2], axis=0)[1] < points[1, 0] - points[0, 0]
        ]
        points = np.array([points for _, points in upright]).reshape(-1, 5, 2)
        boxes = np.concatenate([points.min(axis=1, initial=1e9), points.max(axis=1, initial=0)], 1)
        return boxes, points, np.array([self.scores.get(n, n / 10) for n, _ in upright])

    def describe(self) -> dict[str, Any]:
        return {"method": "marked"}
