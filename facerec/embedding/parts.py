"""Embeddings of a long job, part by part, so that one that is killed goes on where it stopped."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.base.errors import DatasetError
from facerec.base.files import (
    NOTE,
    check_place,
    parse_json,
    read_file,
    reading,
    write_json,
)
from facerec.base.large_arrays import empty
from facerec.base.names import same_names
from facerec.base.recipe import differences
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import read_embeddings, write_embeddings
from facerec.records.images import check_unique

BATCHES_PER_CHUNK = 8
"""Batches after which a chunk is safe on the disk: what a kill costs at most, in each process."""


class EmbeddingsWriter:
    """Writes an embeddings file part by part, so that a killed job goes on where it stopped.

    Parts are embeddings files of their own in the folder ``OUT.npz.parts`` beside the target; any
    process may write any part. At the end they are joined one at a time, and the folder goes.
    Parts have fixed boundaries, so a file does not depend on who wrote what and when.

    Args:
        path: the file, ending in ``.npz``.
        ids: id of each image, ``(N,)``, unique.
        note: see `describe_embedding`, perhaps with more fields. Parts of a job with another note
            (but for names and paths) or other ids are refused.

    Attributes:
        rows: of each part, ascending; whole batches but for the last one.
        subjects: see `Embeddings`; whoever joins the parts sets them before.

    Raises:
        DatasetError: no image, ids that repeat, or a name that does not end in ``.npz``.
    """

    subjects: npt.NDArray[np.str_] | None = None

    def __init__(
        self, path: str | Path, ids: npt.NDArray[np.str_], note: Mapping[str, Any]
    ) -> None:
        self.path = Path(path)
        if self.path.suffix != ".npz" or not len(ids):
            raise DatasetError(
                f"{path}: an embeddings file has a name that ends in .npz, and an image to embed"
            )
        self.ids, self.note = same_names(ids), dict(note)
        check_unique(self.ids, str(self.path))
        self.folder = self.path.with_name(f"{self.path.name}.parts")
        chunk, every = BATCHES_PER_CHUNK * int(self.note["batch_size"]), range(len(ids))
        self.rows = [every[start : start + chunk] for start in every[::chunk]]
        self._files = [self.folder / f"part-{i:06d}.npz" for i in range(len(self.rows))]

    def begin(self) -> list[int]:
        """Make the folder of parts, or go on with the one that is there; return missing parts.

        Raises:
            FacerecError: the folder holds parts of another job, or cannot be written.
        """
        names = "\0".join(self.ids.tolist()).encode(errors="surrogateescape")
        ids = hashlib.sha256(names).hexdigest()
        begin_job(self.folder, {**job_identity(self.note), "images": len(self.ids), "ids": ids})
        return self.missing()

    def missing(self) -> list[int]:
        """Return the numbers of the parts that are not written yet."""
        return [number for number, file in enumerate(self._files) if not file.is_file()]

    def write(self, number: int, embeddings: Embeddings) -> None:
        """Write part ``number``, whole or not at all.

        Raises:
            FacerecError: a file that cannot be written.
        """
        write_embeddings(self._files[number], embeddings)

    def finish(self) -> Embeddings:
        """Join the parts into the file, remove them, and return what it holds.

        Vectors that are many lie on the disk, see `facerec.base.large_arrays`.

        Raises:
            FacerecError: parts are missing or damaged, or the file cannot be written.
        """
        whole = self._joined()
        write_embeddings(self.path, whole)
        shutil.rmtree(self.folder, ignore_errors=True)
        return whole

    def _joined(self) -> Embeddings:
        first = read_embeddings(self._files[0])
        vectors = empty((len(self.ids), first.vectors.shape[1]), np.float32)
        norms = np.empty(len(self.ids), np.float32)
        failures: dict[int, str] = {}
        several: dict[int, str] = {}
        digests, scores = [], []
        for rows, part in zip(self.rows, map(read_embeddings, self._files), strict=True):
            vectors[rows], norms[rows] = part.vectors, part.norms
            failures |= {rows[row]: why for row, why in part.failures.items()}
            several |= {rows[row]: note for row, note in part.several.items()}
            assert part.digests is not None  # as `embed_images` gives them
            digests.append(part.digests)
            if part.face_scores is not None:
                scores.append(part.face_scores)
        return Embeddings(
            vectors,
            norms,
            first.flip,
            ids=self.ids,
            subjects=self.subjects,
            failures=failures,
            face_scores=np.concatenate(scores) if scores else None,
            note=self.note,
            several=several,
            digests=np.concatenate(digests),
        )

    def abandon(self) -> int:
        """Remove the folder if no part is written; return the number of images in written parts."""
        missing = self.missing()
        kept = len(self.ids) - sum(len(self.rows[number]) for number in missing)
        if not kept:
            shutil.rmtree(self.folder, ignore_errors=True)
        return kept


def begin_job(folder: Path, job: Mapping[str, Any]) -> None:
    """Make the folder of the parts of a job, or go on with the one that is there.

    Raises:
        FacerecError: the folder holds parts of another job, or cannot be written.
    """
    file = folder / "job.json"
    check_place(folder)
    advice = "run that command again, choose another output, or remove the folder"
    with reading(folder, DatasetError, advice, Exception, "continued"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A kill while job.json was written leaves a hidden file at most.
        if all(path.name[0] == "." for path in folder.iterdir()):
            write_json(file, job)
        if changed := differences(parse_json(read_file(file, NOTE)), job):
            raise ValueError(f"it holds parts of a job that differs in {', '.join(changed[:4])}")


def job_identity(note: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes a job the same job: its note without names, paths, library."""
    job: dict[str, Any] = {}
    for name, value in note.items():
        if isinstance(value, Mapping):
            job[name] = job_identity(value)
        elif name not in ("name", "path", "runtime"):
            job[name] = str(value).split(":")[0] if name == "device" else value
    return job
