"""A gallery that the service keeps: its file and what is in memory stay alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException

from facerec.base.errors import DatasetError, FacerecError, MetricError
from facerec.embedding.extraction import Embeddings, image_digest
from facerec.embedding.recognizer import FaceRecognizer
from facerec.galleries.gallery import Gallery
from facerec.galleries.threshold import Fpir
from facerec.service.batching import Vectors
from facerec.service.uploads import Form, Places
from facerec.statistics.operating_points import parse_rate


class GalleryFile:
    """A gallery and its file, written whole after every change; one thread at a time calls it.

    Args:
        path: the file, read if it is there.
        recognizer: embeds all images that come.
        max_people: in the gallery.
        fpir: the chance of a false alarm whose threshold is taken at the gallery's size.
        threshold: cosine from which on somebody is identified, in place of an FPIR.

    Raises:
        MetricError: the FPIR is no rate.
        ModelError: the gallery is of another model.
        DatasetError: it cannot be read.
    """

    def __init__(
        self,
        path: Path,
        recognizer: FaceRecognizer,
        max_people: int = 100_000,
        fpir: str = "1e-2",
        threshold: float | None = None,
    ) -> None:
        parse_rate(fpir)
        self._path, self._recognizer = path, recognizer
        self._max_people, self._fpir, self._threshold = max_people, fpir, threshold
        self.gallery = self._read()
        self.gallery.space.check(recognizer.space, str(recognizer.model.path or "the model"))
        self._known: Fpir | None = None

    def enroll(self, vectors: Vectors, form: Form, places: Places) -> dict[str, Any]:
        """Add images of a person, new or not, and write the file."""
        subject = form.subject
        new = subject not in self.gallery
        if new and len(self.gallery) >= self._max_people:
            full = f"the gallery is full with {len(self.gallery):,} people; delete some first"
            raise HTTPException(409, full)
        names, digests = np.full(len(vectors), subject), np.array([*map(image_digest, form.images)])
        images = replace(self._faces(vectors), subjects=names, digests=digests)
        with self._changing():
            report = self.gallery.enroll(images)
            if not report.images + report.repeated:
                why = "; ".join(dict.fromkeys(report.failures.values()))
                raise HTTPException(422, f"no image can be enrolled: {why}")
        row = int(np.flatnonzero(self.gallery.subjects == subject)[0])
        return {
            "subject": subject,
            "new": new,
            "images": int(self.gallery.images[row]),
            "repeated": report.repeated,
            "expires": None if np.isnat(last := self.gallery.expires[row]) else str(last),
            "failures": [{"image": int(i), "failure": why} for i, why in report.failures.items()],
            "people": len(self.gallery),
        }

    def delete(self, vectors: Vectors, form: Form, places: Places) -> dict[str, Any]:
        """Take a person out, and write the file, which keeps nothing of them."""
        with self._changing(form.subject):
            self.gallery.delete(form.subject)
        return {"subject": form.subject, "people": len(self.gallery)}

    def rename(self, vectors: Vectors, form: Form, places: Places) -> dict[str, Any]:
        """Give a person another name, and write the file, which keeps nothing of the old one."""
        with self._changing(form.subject):
            self.gallery.rename(form.subject, form.new_subject)
        return {"subject": form.new_subject, "people": len(self.gallery)}

    def people(self, offset: int, limit: int) -> dict[str, Any]:
        """Return so many people from a number on, in the order of their enrolment."""
        held, page = self.gallery, slice(offset, offset + limit)
        columns = (held.subjects, held.images, held.enrolled, held.expires)
        names = ("subject", "images", "enrolled", "expires")
        rows = zip(*(column[page].tolist() for column in columns), strict=True)
        return {
            "subjects": [dict(zip(names, row, strict=True)) for row in rows],
            "people": len(held),
            "expired": held.expired.size,
            "images": int(held.images.sum()),
            "space": asdict(held.space),
        }

    def identify(self, vectors: Vectors, form: Form, places: Places) -> dict[str, Any]:
        """Return an answer for each face, and the FPIR of the threshold."""
        try:
            point = self._point() or self._threshold
            found = self.gallery.identify(self._faces(vectors), threshold=point)
        except MetricError as error:  # nobody is enrolled, or too few for the FPIR
            raise HTTPException(501, str(error)) from error
        return {
            **found.to_json(places),
            "people": len(found.subjects),
            "expired": len(self.gallery) - len(found.subjects),
        }

    def _faces(self, vectors: Vectors) -> Embeddings:
        """Return embeddings, in which pictures that the model knows as no faces are failures."""
        own, norms = self._recognizer, np.linalg.norm(vectors, axis=1)
        found = Embeddings(vectors, norms, own.flip, note={"model": own.model.describe()})
        if own.face_limits is None or own.unchecked:
            return found
        note = {**found.note, "face_limit": own.face_limits.limit}
        return replace(found, note=note, face_scores=own.face_limits(vectors)).without_unlike()

    def _point(self) -> Fpir | None:
        gallery = self.gallery
        if self._known is None or self._known.size != len(gallery.current()):
            known = gallery.calibration
            if known is None or known.entry_subjects.size < 0.9 * len(gallery):
                gallery.recalibrate()
            fpir = self._fpir if self._threshold is None else None
            self._known = gallery.point(fpir, self._threshold)
        return self._known

    @contextlib.contextmanager
    def _changing(self, subject: str | None = None) -> Iterator[None]:
        """Write what the block changes; if that fails, the gallery is again what the file holds.

        Args:
            subject: who must be in it.
        """
        if subject is not None and subject not in self.gallery:
            raise HTTPException(404, "nobody of that name is in the gallery")
        self._known = None
        try:
            yield
            self.gallery.write(self._path)
        except BaseException as error:
            self.gallery = self._read()
            if isinstance(error, FacerecError):  # a name that is taken, or a full disk
                status = 409 if isinstance(error, DatasetError) else 507
                raise HTTPException(status, str(error)) from error
            raise

    def _read(self) -> Gallery:
        own = self._recognizer
        gallery = Gallery.read(self._path) if self._path.exists() else Gallery(own.space)
        gallery.score_calibration = own.calibration or gallery.score_calibration
        return gallery
