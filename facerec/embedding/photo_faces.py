"""All faces of photos, each as an image of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from facerec.embedding.align import Aligner, Detector, Points
from facerec.errors import FacerecError, ImageError, RecordError
from facerec.progress import Progress
from facerec.records.decode import decode_image
from facerec.records.images import ImageSource, text_array
from facerec.threads import batches_ahead


class PhotoFace(NamedTuple):
    """A face among those of a photo."""

    photo: str
    """Id of the photo."""
    number: int
    """From the largest on."""
    box: tuple[float, ...]
    """Left, top, right and bottom, in pixels of the upright photo."""


class EveryFace(ImageSource, Aligner):
    """The faces of photos as images, and what cuts them out; a photo without one has a row too.

    Faces are found at once, and their points kept: photos are read again when faces are cut out.

    Args:
        photos: encoded images.
        detector: finds their faces.
        batch_size: photos decoded together.
        progress: called with the photos done.

    Attributes:
        faces: row → which face it is; none for a photo that cannot be read or has no face.
    """

    upright = True

    def __init__(
        self, photos: ImageSource, detector: Detector, batch_size: int, progress: Progress
    ) -> None:
        self._photos, self._detector, self.notes = photos, detector, photos.notes
        self._photo: list[int] = []
        self._points: dict[str, Points | FacerecError] = {}
        self.faces: dict[int, PhotoFace] = {}
        ids: list[str] = []

        def find(index: int) -> list[tuple[Points | FacerecError, Points | None]]:
            where = photos.where(index)
            try:
                image = decode_image(photos.encoded(index), where, size=None, upright=True)
                return list(zip(*detector.faces(image, where), strict=True))
            except (ImageError, RecordError) as error:
                return [(error, None)]

        names = photos.ids.tolist()
        for start, batch in batches_ahead(find, np.arange(len(names)), batch_size):
            for index, future in enumerate(batch, start):
                found, name = future.result(), names[index]
                for number, (points, box) in enumerate(found, 1):
                    if box is not None:
                        self.faces[len(ids)] = PhotoFace(name, number, tuple(box.tolist()))
                    ids.append(f"{name} face {number}" if len(found) > 1 else name)
                    self._points[ids[-1]] = points
                    self._photo.append(index)
            progress("finding faces", start + len(batch), len(names))
        self.ids = text_array(ids, "the photos")

    def encoded(self, i: int) -> bytes:
        """Return the encoded photo of face ``i``."""
        return self._photos.encoded(self._photo[i])

    def where(self, i: int) -> str:
        """Name the photo of face ``i``."""
        return self._photos.where(self._photo[i])

    def find(self, image: NDArray[np.uint8], image_id: str, where: str) -> tuple[Points, str]:
        """Return the points of a face."""
        if isinstance(points := self._points[image_id], FacerecError):
            raise points
        return points, ""

    def describe(self) -> dict[str, Any]:
        """Return what the detector says of itself."""
        return self._detector.describe()
