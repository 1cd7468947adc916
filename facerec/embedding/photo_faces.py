"""All faces of photos, each as an image of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from facerec.base.errors import FacerecError, ImageError, RecordError
from facerec.base.progress import Progress
from facerec.embedding.align import Detector, KnownPoints, Points
from facerec.records.decode import batches_ahead, decode_image
from facerec.records.images import ImageSource, text_array


class PhotoFace(NamedTuple):
    """A face among those of a photo."""

    image_id: str
    """Id of the photo."""
    face: int | None = None
    """Number of the face, from the largest on; None where no face is looked for, or found."""
    box: tuple[float, ...] | None = None
    """Left, top, right and bottom, in pixels of the upright photo."""


class EveryFace(ImageSource):
    """The faces of photos as images; a photo without one has a row too.

    Faces are found at once, and their points kept: photos are read again when faces are cut out.

    Args:
        photos: encoded images.
        detector: finds their faces.
        batch_size: photos decoded together.
        progress: called with the photos done.

    Attributes:
        shown: which face each image is; without number for a photo without a face.
        aligner: cuts the faces out.
    """

    upright = True

    def __init__(
        self, photos: ImageSource, detector: Detector, batch_size: int, progress: Progress
    ) -> None:
        self._photos, self.notes = photos, photos.notes
        self._photo: list[int] = []
        self.shown: list[PhotoFace] = []
        known: dict[str, Points | FacerecError] = {}

        def find(index: int) -> list[tuple[Points | FacerecError, PhotoFace]]:
            name, where = str(photos.ids[index]), photos.where(index)
            try:
                image = decode_image(photos.encoded(index), where, size=None, upright=True)
                every = zip(*detector.faces(image, where), strict=True)
                return [
                    (points, PhotoFace(name, number, tuple(box.tolist())))
                    for number, (points, box) in enumerate(every, 1)
                ]
            except (ImageError, RecordError) as error:
                return [(error, PhotoFace(name))]

        for start, batch in batches_ahead(find, np.arange(len(photos)), batch_size):
            for index, future in enumerate(batch, start):
                found = future.result()
                for points, face in found:
                    several = f" face {face.face}" if len(found) > 1 else ""
                    known[face.image_id + several] = points
                    self._photo.append(index)
                    self.shown.append(face)
            progress("finding faces", start + len(batch), len(photos))
        self.ids = text_array([*known], "the photos")
        self.aligner = KnownPoints(known, **detector.describe())

    def encoded(self, i: int) -> bytes:
        """Return the encoded photo of face ``i``."""
        return self._photos.encoded(self._photo[i])

    def where(self, i: int) -> str:
        """Name the photo of face ``i``."""
        return self._photos.where(self._photo[i])
