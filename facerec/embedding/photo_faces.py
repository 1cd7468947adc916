"""All faces of photos, each as an image of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from facerec.base.errors import FacerecError, ImageError, RecordError
from facerec.base.progress import Progress
from facerec.embedding.align import Aligner, Detector, Faces, Image
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


class EveryFace(ImageSource, Aligner):
    """The faces of photos as images, and what cuts them out; a photo without one has a row too.

    Faces are found at once, and their points kept: photos are read again when faces are cut out.

    Args:
        photos: encoded images.
        detector: finds their faces.
        batch_size: photos decoded together.
        progress: called with the photos done.

    Attributes:
        shown: which face each image is; without number for a photo without a face.
    """

    upright = True

    def __init__(
        self, photos: ImageSource, detector: Detector, batch_size: int, progress: Progress
    ) -> None:
        self._photos, self._detector, self.notes = photos, detector, photos.notes
        self._photo: list[int] = []
        self._found: dict[str, Faces | FacerecError] = {}
        self.shown: list[PhotoFace] = []
        ids: list[str] = []

        def find(index: int) -> list[tuple[Faces | FacerecError, PhotoFace]]:
            name, where = str(photos.ids[index]), photos.where(index)
            try:
                image = decode_image(photos.encoded(index), where, size=None, upright=True)
                points, boxes = detector.faces(image, where)
            except (ImageError, RecordError) as error:
                return [(error, PhotoFace(name))]
            every = zip(points[:, None], boxes[:, None], boxes.tolist(), strict=True)
            return [
                ((five, box), PhotoFace(name, number, tuple(corners)))
                for number, (five, box, corners) in enumerate(every, 1)
            ]

        for start, batch in batches_ahead(find, np.arange(len(photos)), batch_size):
            for index, future in enumerate(batch, start):
                found = future.result()
                for face, shown in found:
                    several = f" face {shown.face}" if len(found) > 1 else ""
                    ids.append(shown.image_id + several)
                    self._found[ids[-1]] = face
                    self._photo.append(index)
                    self.shown.append(shown)
            progress("finding faces", start + len(batch), len(photos))
        self.ids = text_array(ids, "the photos")

    def encoded(self, i: int) -> bytes:
        """Return the encoded photo of face ``i``."""
        return self._photos.encoded(self._photo[i])

    def where(self, i: int) -> str:
        """Name the photo of face ``i``."""
        return self._photos.where(self._photo[i])

    def faces(self, image: Image, where: str, image_id: str = "") -> Faces:
        """Return the points and the box of a face."""
        if isinstance(face := self._found[image_id], FacerecError):
            raise face
        return face

    def describe(self) -> dict[str, Any]:
        """Return what the detector says of itself."""
        return self._detector.describe()
